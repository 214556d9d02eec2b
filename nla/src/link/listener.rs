//! The listener of an agent or the launcher: a port, and a Unix socket for processes of its machine.

use std::fmt::{Display, Formatter};
use std::future::pending;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::time::sleep;

use super::address::{Address, ListensAt, LocalSocket, ranked};
use super::stream::Stream;
use super::unproven::Source;
use crate::core::limits::LISTEN_BACKLOG;
use crate::sys::{self, LocalPeer, Surroundings, listen_at_name, peer_of};

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

/// The sockets at which a process accepts connections.
pub struct Listener {
    port: TcpListener,
    /// For processes of this machine.
    local: Option<UnixListener>,
}

impl From<TcpListener> for Listener {
    fn from(port: TcpListener) -> Self {
        Self { port, local: None }
    }
}

/// The other end of a connection that was accepted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// A process at this address.
    At(SocketAddr),
    /// A process of this machine, at a Unix socket.
    Here(LocalPeer),
}

impl Peer {
    /// Returns whether it may speak: only this user's processes may at a Unix socket.
    pub(super) fn may_speak(&self) -> bool {
        match self {
            Self::At(_) => true,
            Self::Here(peer) => peer.is_own(),
        }
    }

    /// Returns the source among which its connection counts until it has proved that it knows the key.
    pub(super) fn source(&self) -> Source {
        match self {
            Self::At(address) => Source::Address(address.ip()),
            Self::Here(_) => Source::ThisUser,
        }
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Here(LocalPeer { pid, user }) => write!(f, "process {pid} of user {user} on this machine"),
        }
    }
}

impl Listener {
    /// Accepts the next connection, as [`next_connection`] does. Cancel safe.
    pub(super) async fn next(&self) -> io::Result<(Stream, Peer)> {
        let local = async {
            let Some(local) = &self.local else { return pending().await };
            let (stream, _) = unhurried(local.accept().await).await?;
            let peer = peer_of(&stream)?;
            Ok((Stream::local(stream), Peer::Here(peer)))
        };
        tokio::select! {
            connection = next_connection(&self.port) =>
                connection.map(|(stream, peer)| (Stream::connection(stream), Peer::At(peer))),
            connection = local => connection,
        }
    }
}

/// A listener, and where it is reachable.
pub struct BoundListener {
    /// Its socket and its addresses.
    pub at: ListensAt,
    /// The listening sockets; `None` for [`Reach::Nowhere`].
    pub listener: Option<Listener>,
}

impl BoundListener {
    fn of(port: TcpListener, addresses: Vec<SocketAddr>) -> Self {
        Self { at: addresses.into(), listener: Some(port.into()) }
    }

    /// Also listens at a Unix socket, if this process knows its surroundings. Others use the port where that fails.
    pub fn with_local_socket(mut self) -> Self {
        if let Some(listener) = &mut self.listener {
            match local_socket() {
                Ok(Some((socket, local))) => (self.at.local, listener.local) = (Some(socket), Some(local)),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "this process cannot listen at a Unix socket"),
            }
        }
        self
    }
}

fn local_socket() -> io::Result<Option<(LocalSocket, UnixListener)>> {
    let Some(socket) = LocalSocket::new()? else { return Ok(None) };
    let listener = UnixListener::from_std(listen_at_name(&socket.name, LISTEN_BACKLOG)?)?;
    Ok(Some((socket, listener)))
}

/// Opens a port that is reachable from `reach`.
pub async fn listen(reach: Reach) -> io::Result<BoundListener> {
    let ports = match reach {
        Reach::Nowhere => return Ok(BoundListener { at: ListensAt::default(), listener: None }),
        Reach::Here => {
            let port = listen_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
            let addresses = vec![port.local_addr()?];
            return Ok(BoundListener::of(port, addresses));
        }
        Reach::Network(ports) => ports,
    };
    let listener = bind(ports)?;
    let port = listener.local_addr()?.port();
    let is_v4_only = listener.local_addr()?.is_ipv4();
    let mut own = sys::addresses();
    own.retain(|address| address.is_ipv4() || !is_v4_only);
    let addresses = ranked(ssh_address(SSH_SERVER), own).map(|address| SocketAddr::new(address, port)).collect();
    Ok(BoundListener::of(listener, addresses))
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
    unhurried(listener.accept().await).await
}

/// Pauses if this is an error.
async fn unhurried<T>(accepted: io::Result<T>) -> io::Result<T> {
    const PAUSE: Duration = Duration::from_millis(10);
    if accepted.is_err() {
        sleep(PAUSE).await;
    }
    accepted
}

/// Returns the addresses to try for a parent: its socket, if it is on this machine; the one that the remote shell to this node came
/// from, if the parent opened that, with `opener_port`; then the parent's own.
pub(crate) fn candidates(opener_port: Option<u16>, parent: ListensAt) -> Vec<Address> {
    let opener = opener_port.and_then(|port| Some(SocketAddr::new(opener()?, port)));
    let here = parent.local.and_then(|_| Surroundings::of_this_process());
    parent.tried_from(here, opener)
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
    use std::iter;

    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::sync::{mpsc, oneshot};
    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::timeout;

    use super::*;
    use crate::core::AgentId;
    use crate::core::limits::{HELLO_TIME, UNAUTHENTICATED_MAX};
    use crate::link::{Accepted, Admission, Authenticator, Clock, HandshakeError, SessionKey, accept_early, connect};
    use crate::sys::users::{as_user, is_root};
    use crate::sys::{LocalName, connect_to_name, new_local_name};
    use crate::wire::{Role, SessionId};

    const SESSION: SessionId = SessionId(7);
    const ROLE: Role = Role::Link { parent: AgentId::ROOT };
    const STRANGER: u32 = 65_506;

    fn key(byte: u8) -> SessionKey {
        SessionKey::read_from(&mut &[byte; 32][..]).unwrap()
    }

    /// Connects as agent 1 to the first of these addresses that accepts it. Returns the number of its address, and the errors of
    /// those before.
    async fn joined(addresses: Vec<Address>, key: SessionKey) -> (Option<usize>, Vec<HandshakeError>) {
        let mut errors = Vec::new();
        for (number, address) in addresses.into_iter().enumerate() {
            match connect(address, ROLE, AgentId(1), SESSION, &key).await {
                Ok(_) => return (Some(number), errors),
                Err(error) => errors.push(error),
            }
        }
        (None, errors)
    }

    /// A parent that listens and waits for agent 1.
    struct Parent {
        at: ListensAt,
        admit: oneshot::Sender<Admission>,
        joining: mpsc::Sender<Accepted>,
        children: mpsc::Receiver<Accepted>,
    }

    impl Parent {
        async fn new() -> Self {
            let BoundListener { at, listener } = listen(Reach::Here).await.unwrap().with_local_socket();
            let (admit, admission) = oneshot::channel();
            spawn_local(accept_early(listener.unwrap(), admission));
            let (joining, children) = mpsc::channel(1);
            Self { at, admit, joining, children }
        }

        fn name(&self) -> LocalName {
            self.at.local.expect("this process knows its surroundings").name
        }

        /// Lets the agent join, and returns its link.
        async fn admit(self) -> Accepted {
            let Self { admit, joining, mut children, .. } = self;
            let authenticator = Authenticator::new(SESSION, key(1), ROLE, [AgentId(1)]);
            let clock = Clock::start();
            assert!(admit.send(Admission { authenticator, clock, joined: joining, adopted: None }).is_ok());
            timeout(HELLO_TIME, children.recv()).await.expect("it joins in time").unwrap()
        }
    }

    async fn in_thread(test: impl Future<Output = ()>) {
        LocalSet::new().run_until(test).await;
    }

    #[tokio::test]
    async fn a_process_of_the_machine_joins_at_the_socket() {
        in_thread(async {
            let parent = Parent::new().await;
            let child = spawn_local(joined(candidates(None, parent.at.clone()), key(1)));
            assert!(parent.admit().await.stream.is_local());
            assert!(matches!(child.await.unwrap(), (Some(0), errors) if errors.is_empty()));
        })
        .await;
    }

    /// A name that nothing listens at, or a process of another user does: the port is tried next.
    #[tokio::test]
    async fn where_the_socket_is_not_the_parents_the_agent_joins_at_the_port() {
        in_thread(async {
            let [free, taken] = [(); 2].map(|()| new_local_name().unwrap());
            let trap = is_root().then(|| as_user(STRANGER, || listen_at_name(&taken, 8).unwrap()));
            for (name, is_trap) in iter::once((free, false)).chain(trap.as_ref().map(|_| (taken, true))) {
                let parent = Parent::new().await;
                let mut at = parent.at.clone();
                at.local.as_mut().unwrap().name = name;
                let child = spawn_local(joined(candidates(None, at), key(1)));
                assert!(!parent.admit().await.stream.is_local());
                let (number, errors) = child.await.unwrap();
                assert_eq!(number, Some(1));
                assert!(matches!(
                    (&errors[..], is_trap),
                    ([HandshakeError::OtherUser], true) | ([HandshakeError::Io(_)], false)
                ));
            }
        })
        .await;
    }

    #[tokio::test]
    async fn a_process_of_this_user_without_the_key_is_refused_at_the_socket_as_at_the_port() {
        in_thread(async {
            let parent = Parent::new().await;
            let stranger = spawn_local(joined(candidates(None, parent.at.clone()), key(2)));
            let at = parent.at.clone();
            let admitted = spawn_local(parent.admit());
            let (number, errors) = stranger.await.unwrap();
            assert_eq!(number, None);
            let words: Vec<_> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(words, ["the other end does not know this session's key"; 2]);
            joined(candidates(None, at), key(1)).await.0.unwrap();
            assert!(admitted.await.unwrap().stream.is_local());
        })
        .await;
    }

    /// They take no room from the agents, whether these are known yet or not.
    #[tokio::test]
    async fn processes_of_other_users_are_closed_at_once() {
        if !is_root() {
            return;
        }
        in_thread(async {
            let parent = Parent::new().await;
            let (name, at) = (parent.name(), parent.at.clone());
            let strange = || UnixStream::from_std(as_user(STRANGER, || connect_to_name(&name).unwrap())).unwrap();
            // It connects before all strangers, and speaks after them: the oldest connection would be closed for theirs.
            let early = UnixStream::from_std(connect_to_name(&name).unwrap()).unwrap();
            for _ in 0..UNAUTHENTICATED_MAX + 1 {
                let end = timeout(HELLO_TIME, strange().read(&mut [0; 1])).await.expect("it is closed at once");
                assert_eq!(end.unwrap_or(0), 0);
            }
            assert!(early.try_read(&mut [0; 1]).is_err(), "it is open, and nothing was sent");
            let admitted = spawn_local(parent.admit());
            let end = timeout(HELLO_TIME, strange().read(&mut [0; 1])).await.expect("it is closed at once");
            assert_eq!(end.unwrap_or(0), 0);
            joined(candidates(None, at), key(1)).await.0.unwrap();
            assert!(admitted.await.unwrap().stream.is_local());
        })
        .await;
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
        assert!(listener.at.addresses.iter().all(|address| address.ip().is_loopback()));
        assert!(listen(Reach::Nowhere).await.unwrap().with_local_socket().listener.is_none());
    }
}
