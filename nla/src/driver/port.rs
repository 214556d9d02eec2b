//! PMI-1's port mode: ranks connect to a port instead of inheriting a socket, for programs behind wrappers that close
//! inherited descriptors.
//!
//! The protocol has no authentication: a client names its rank without proof. The agent therefore opens a port only if
//! the user asks for it, only on the loopback interface, and accepts a connection only if the socket at its other end
//! belongs to the user who runs the agent.

use std::cell::RefCell;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use litemap::LiteMap;
use nix::unistd::geteuid;
use pmi::JobAttributes;
use pmi::Rank;
use pmi::v1::initack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::Span;

use super::serving::Connection;
use crate::core::limits::{HELLO_TIME, UNAUTHENTICATED_MAX};
use crate::link::listener as reach;
use crate::sys;
use crate::tasks::Tasks;

/// The maximum length of the first line: `cmd=initack pmiid=...`.
const FIRST_LINE_BYTES_MAX: usize = 128;

type Expected = Rc<RefCell<LiteMap<Rank, mpsc::Sender<Connection>>>>;

/// The open port of one namespace on one agent.
pub(super) struct PortServer {
    /// The address that ranks find in PMI_PORT.
    pub(super) address: SocketAddr,
    expected: Expected,
    task: JoinHandle<()>,
}

impl PortServer {
    /// Opens a port for the namespace that `attributes` describe.
    pub(super) fn start(attributes: Arc<JobAttributes>, tasks: &Tasks) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let listener = TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let expected = Expected::default();
        let accepting = accept(listener, attributes, Rc::clone(&expected), tasks.clone());
        let task = tasks.spawn("PMI port", Span::current(), accepting);
        Ok(Self { address, expected, task })
    }

    /// Makes the port send the connections of `rank` to `task`.
    pub(super) fn expect(&self, rank: Rank, task: mpsc::Sender<Connection>) {
        self.expected.borrow_mut().insert(rank, task);
    }
}

impl Drop for PortServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, attributes: Arc<JobAttributes>, expected: Expected, tasks: Tasks) {
    let connections = Arc::new(tokio::sync::Semaphore::new(UNAUTHENTICATED_MAX));
    loop {
        let Ok(permit) = Arc::clone(&connections).acquire_owned().await else { return };
        let (attributes, expected) = (Arc::clone(&attributes), Rc::clone(&expected));
        let Ok((stream, peer)) = reach::next_connection(&listener).await else { continue };
        tasks.spawn("PMI connection", Span::current(), async move {
            let _permit = permit;
            if let Ok(Err(error)) = timeout(HELLO_TIME, admit(stream, peer, &attributes, &expected)).await {
                tracing::warn!(%peer, %error, "a connection to the PMI port was refused");
            }
        });
    }
}

async fn admit(
    mut stream: TcpStream,
    peer: SocketAddr,
    attributes: &JobAttributes,
    expected: &Expected,
) -> io::Result<()> {
    let local = stream.local_addr()?;
    let owner = sys::uid_of_tcp_peer(local, peer)?;
    if owner != Some(geteuid().as_raw()) {
        return Err(io::Error::other("it belongs to another user"));
    }
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        if line.len() >= FIRST_LINE_BYTES_MAX {
            return Err(io::Error::other("its first line is too long"));
        }
        // Read byte by byte: the bytes after the line belong to the rank's task.
        line.push(stream.read_u8().await?);
    }
    line.pop();
    let rank = initack::parse(&line).map_err(io::Error::other)?;
    let task =
        expected.borrow().get(&rank).cloned().ok_or_else(|| io::Error::other("it names a rank that is not here"))?;
    stream.write_all(&initack::reply(attributes, rank)).await?;
    stream.set_nodelay(true)?;
    let stream: OwnedFd = stream.into_std()?.into();
    let _ = task.send(sys::watch(stream)?).await;
    Ok(())
}
