//! The connection to the PMI server: the inherited socket, or a port.

use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;

use pmi::Rank;
use pmi::v1::client::Client;

use crate::Finding;

/// A connected stream of either kind.
pub(crate) trait Stream: Read + Write {}
impl<S: Read + Write> Stream for S {}

/// Returns this rank, from the environment.
pub(crate) fn rank() -> u32 {
    variable("PMI_RANK").or_else(|| variable("PMI_ID")).unwrap_or_default()
}

/// Returns the number of ranks, from the environment.
pub(crate) fn size() -> u32 {
    variable("PMI_SIZE").unwrap_or(1)
}

/// Returns the rank to send to a port, or `None` if the socket is inherited.
pub(crate) fn port_rank() -> Option<u32> {
    if env::var_os("PMI_FD").is_some() { None } else { variable("PMI_ID") }
}

/// Connects to the port, or takes the inherited socket.
pub(crate) fn stream() -> Result<Box<dyn Stream>, Finding> {
    if port_rank().is_some() {
        Ok(Box::new(TcpStream::connect(env::var("PMI_PORT")?)?))
    } else {
        Ok(Box::new(nla::sys::pmi_socket()?))
    }
}

/// A client over either kind of stream, its rank, and the number of ranks.
pub(crate) type Joined = (Client<Box<dyn Stream>>, u32, u32);

/// Connects and initialises PMI.
pub(crate) fn client() -> Result<Joined, Finding> {
    let stream = stream()?;
    match port_rank() {
        Some(rank) => {
            let (client, size, rank) = Client::init_on_port(stream, Rank(rank))?;
            Ok((client, rank.0, size))
        }
        None => Ok((Client::init(stream)?, rank(), size())),
    }
}

fn variable(name: &str) -> Option<u32> {
    env::var(name).ok()?.parse().ok()
}
