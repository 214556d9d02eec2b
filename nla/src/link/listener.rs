//! The listener of an agent or the launcher, the addresses at which others reach it, and the order in which they try these.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::sleep;

use crate::core::limits::LISTEN_BACKLOG;
use crate::sys;

/// From where an agent must be reachable.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reach {
    /// From nowhere: it will have no children, and does not listen. Messages keep the variant's old name.
    #[serde(rename = "Nobody")]
    Nowhere,
    /// From this machine: it listens on the loopback interface.
    Here,
    /// From other nodes. It listens on a port of this range (first, last), or on any port.
    Network(Option<(u16, u16)>),
}

/// An open port, and the addresses where it is reachable.
pub struct BoundListener {
    /// The addresses, the likeliest first.
    pub addresses: Vec<SocketAddr>,
    /// The listening socket; `None` for [`Reach::Nowhere`].
    pub listener: Option<TcpListener>,
}

/// Opens a port that is reachable from `reach`.
pub async fn listen(reach: Reach) -> io::Result<BoundListener> {
    let ports = match reach {
        Reach::Nowhere => return Ok(BoundListener { addresses: Vec::new(), listener: None }),
        Reach::Here => {
            let listener = listen_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
            return Ok(BoundListener { addresses: vec![listener.local_addr()?], listener: Some(listener) });
        }
        Reach::Network(ports) => ports,
    };
    let listener = bind(ports)?;
    let port = listener.local_addr()?.port();
    let is_v4_only = listener.local_addr()?.is_ipv4();
    let mut own = sys::addresses();
    own.retain(|address| address.is_ipv4() || !is_v4_only);
    let addresses = ranked(ssh_address(SSH_SERVER), own).map(|address| SocketAddr::new(address, port)).collect();
    Ok(BoundListener { addresses, listener: Some(listener) })
}

/// Binds a port of the range, or any port, on all addresses, IPv6 included if the kernel supports it.
fn bind(ports: Option<(u16, u16)>) -> io::Result<TcpListener> {
    let (first, last) = ports.unwrap_or((0, 0));
    let mut failure = io::Error::other("the range of ports is empty");
    for port in first..=last {
        for address in [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)] {
            match listen_at(SocketAddr::new(address, port)) {
                Ok(listener) => return Ok(listener),
                Err(error) => failure = error,
            }
        }
    }
    Err(failure)
}

/// Opens a port with room for [`LISTEN_BACKLOG`] connections that were not accepted yet. A client whose first packet
/// finds no room sends it again only a second later.
pub(crate) fn listen_at(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As the standard library does: the port of a session that has just ended can be used again.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(LISTEN_BACKLOG)
}

/// Accepts the next connection. Pauses before it returns an error, which is most likely EMFILE: the connection stays in
/// the backlog. Cancel safe.
pub(crate) async fn next_connection(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    const PAUSE: Duration = Duration::from_millis(10);
    let connection = listener.accept().await;
    if connection.is_err() {
        sleep(PAUSE).await;
    }
    connection
}

/// Returns the addresses to try for a parent: the one that the remote shell to this node came from, if the parent
/// opened that, with `opener_port`; then the parent's own.
pub(crate) fn candidates(opener_port: Option<u16>, parent: Vec<SocketAddr>) -> Vec<SocketAddr> {
    first_of(opener_port.and_then(|port| Some(SocketAddr::new(opener()?, port))), parent)
}

/// Returns `first` and then the others, without repetitions.
fn first_of<T: PartialEq>(first: Option<T>, others: Vec<T>) -> Vec<T> {
    let mut all = Vec::new();
    for one in first.into_iter().chain(others) {
        if !all.contains(&one) {
            all.push(one);
        }
    }
    all
}

/// Orders addresses by how likely others reach this node at them: the `known` one first, at which they did, and
/// loopback addresses last, for processes of this machine.
fn ranked(known: Option<IpAddr>, own: Vec<IpAddr>) -> impl Iterator<Item = IpAddr> {
    let (last, first): (Vec<_>, Vec<_>) = first_of(known, own).into_iter().partition(IpAddr::is_loopback);
    first.into_iter().chain(last)
}

/// Returns the address that this process was started from, by sshd's or slurmd's environment.
fn opener() -> Option<IpAddr> {
    let of_step = || std::env::var(STEP_OPENER).ok()?.parse().ok();
    ssh_address(SSH_CLIENT).or_else(of_step)
}

/// The variable with the address of `srun`, in the environment of a step's tasks.
const STEP_OPENER: &str = "SLURM_LAUNCH_NODE_IPADDR";
/// The variable with both ends of the connection, in the environment of a remote shell that sshd started.
pub(crate) const SSH_CONNECTION: &str = "SSH_CONNECTION";

/// The words of SSH_CONNECTION with an address: sshd sets it to `client port server port`.
const SSH_CLIENT: usize = 0;
const SSH_SERVER: usize = 2;

fn ssh_address(word: usize) -> Option<IpAddr> {
    let connection = std::env::var(SSH_CONNECTION).ok()?;
    let word = connection.split_ascii_whitespace().nth(word)?;
    // A link-local address has a zone, which means nothing on another host; it does not parse.
    word.parse::<IpAddr>().ok().map(|address| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_that_was_reached_is_first_and_loopback_last() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let own = ["127.0.0.1", "10.0.0.5", "192.168.1.5"].map(address);
        let ranked = ranked(Some(address("192.168.1.5")), own.into());
        assert_eq!(ranked.collect::<Vec<_>>(), ["192.168.1.5", "10.0.0.5", "127.0.0.1"].map(address));
    }

    #[tokio::test]
    async fn the_ports_of_a_range_are_tried_in_order() {
        let taken = bind(None).unwrap();
        let port = taken.local_addr().unwrap().port();
        assert!(bind(Some((port, port))).is_err());
        if let Ok(next) = bind(Some((port, port.saturating_add(20)))) {
            assert_ne!(next.local_addr().unwrap().port(), port);
        }
        let listener = listen(Reach::Here).await.unwrap();
        assert!(listener.addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(listen(Reach::Nowhere).await.unwrap().listener.is_none());
    }
}
