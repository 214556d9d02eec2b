//! PMI-1's port mode: ranks connect to a port instead of inheriting a socket, for programs behind wrappers that close
//! inherited descriptors.
//!
//! The protocol has no authentication: a client names its rank without proof. The agent therefore opens a port only if
//! the user asks for it, only on the loopback interface, and accepts a connection only if the socket at its other end
//! belongs to the user who runs the agent ([`Owners`]).
//!
//! A connection that has not named its rank costs a descriptor. The same policy as for links bounds them: the oldest one
//! is closed for a new one ([`Unproven`]). Connections of other users are closed at once and do not count, because a rank
//! that loses its connection does not try again.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use litemap::LiteMap;
use nix::unistd::geteuid;
use pmi::JobAttributes;
use pmi::Rank;
use pmi::v1::initack;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinHandle, yield_now};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Span;

use super::serving::{Connection, INIT_REFUSED, RankEvent};
use super::table::Key;
use crate::core::NamespaceId;
use crate::core::limits::{FIRST_MESSAGE_TIME, HELLO_TIME};
use crate::link::{RefusalLog, Unproven, listen_at, next_connection};
use crate::sys::{self, SocketDiag};
use crate::tasks::Tasks;

/// The maximum length of the first line: `cmd=initack pmiid=...`.
const FIRST_LINE_BYTES_MAX: usize = 128;

/// The ranks that may connect.
#[derive(Default)]
struct Expected {
    ranks: LiteMap<Rank, ExpectedRank>,
    /// The number of ranks that have not connected.
    missing: usize,
}

struct ExpectedRank {
    namespace: NamespaceId,
    /// The queue of the rank's task.
    task: mpsc::Sender<Connection>,
    /// The address of the rank's last connection.
    peer: Option<SocketAddr>,
    /// Set by the rank's task while a connected process has joined and has not finalized.
    has_joined: Rc<Cell<bool>>,
    /// A second process has been refused as this rank.
    was_refused: bool,
}

impl Expected {
    fn add(&mut self, (namespace, rank): Key, task: mpsc::Sender<Connection>, has_joined: Rc<Cell<bool>>) {
        let expected = ExpectedRank { namespace, task, peer: None, has_joined, was_refused: false };
        let before = self.ranks.insert(rank, expected);
        if before.is_none_or(|before| before.peer.is_some()) {
            self.missing += 1;
        }
    }

    /// Notes that `rank` has connected from an address, unless a process has joined as this rank whose end of the connection
    /// is still open.
    fn connect(&mut self, rank: Rank, peer: SocketAddr, is_open: impl Fn(SocketAddr) -> bool) -> Admission {
        let Some(expected) = self.ranks.get_mut(&rank) else { return Admission::Unknown };
        if let Some(first) = expected.peer.filter(|first| expected.has_joined.get() && is_open(*first)) {
            let is_new = !std::mem::replace(&mut expected.was_refused, true);
            return Admission::Refused { key: (expected.namespace, rank), first, is_new };
        }
        if expected.peer.replace(peer).is_none() {
            self.missing -= 1;
        }
        Admission::Admitted(expected.task.clone())
    }
}

/// What becomes of a connection that has named its rank.
enum Admission {
    /// It belongs to the task with this queue.
    Admitted(mpsc::Sender<Connection>),
    /// The rank is not here.
    Unknown,
    /// A process has joined as this rank, over a connection from the address `first`.
    Refused { key: Key, first: SocketAddr, is_new: bool },
}

/// The ranks and connections of a port.
struct Port {
    attributes: Arc<JobAttributes>,
    expected: RefCell<Expected>,
    events: mpsc::Sender<RankEvent>,
    unproven: RefCell<Unproven>,
    /// The tasks of the connections that have not been passed on, by number.
    running: RefCell<LiteMap<u64, AbortHandle>>,
    refusals: RefCell<RefusalLog>,
    began: Instant,
    times: Times,
}

/// How long a connection may take to name its rank.
#[derive(Clone, Copy)]
struct Times {
    /// Until its first byte.
    first_byte: Duration,
    /// Until the end of its first line.
    line: Duration,
}

const TIMES: Times = Times { first_byte: FIRST_MESSAGE_TIME, line: HELLO_TIME };

/// The open port of one namespace on one agent.
pub(super) struct PortServer {
    /// The address that ranks find in PMI_PORT.
    pub(super) address: SocketAddr,
    port: Rc<Port>,
    task: JoinHandle<()>,
}

impl PortServer {
    /// Opens a port for the namespace that `attributes` describe.
    pub(super) fn start(
        attributes: Arc<JobAttributes>,
        events: mpsc::Sender<RankEvent>,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        Self::with(attributes, events, tasks, Owners::open, TIMES)
    }

    /// Does the same. `owners` makes the check for the port's address.
    fn with(
        attributes: Arc<JobAttributes>,
        events: mpsc::Sender<RankEvent>,
        tasks: &Tasks,
        owners: impl FnOnce(SocketAddr) -> Owners,
        times: Times,
    ) -> io::Result<Self> {
        let listener = listen_at(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0))?;
        let address = listener.local_addr()?;
        let owners = owners(address);
        let port = Rc::new(Port {
            attributes,
            expected: RefCell::default(),
            events,
            unproven: RefCell::new(Unproven::of_this_process()),
            running: RefCell::default(),
            refusals: RefCell::default(),
            began: Instant::now(),
            times,
        });
        let accepting = accept(listener, Rc::clone(&port), owners, tasks.clone());
        let task = tasks.spawn("PMI port", Span::current(), accepting);
        Ok(Self { address, port, task })
    }

    /// Makes the port send the connections of a rank to `task`, and refuse them while `has_joined` is set.
    pub(super) fn expect(&self, key: Key, task: mpsc::Sender<Connection>, has_joined: &Rc<Cell<bool>>) {
        self.port.expected.borrow_mut().add(key, task, Rc::clone(has_joined));
    }
}

impl Drop for PortServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The check whether a connection belongs to this user.
///
/// It asks the kernel for the one socket. Only if the kernel does not answer, it reads the table of all sockets, which other
/// users can make long. It then pauses, so that these reads take no more than a tenth of the agent's time: the next
/// connection waits.
struct Owners {
    /// Opened with the port, because later no descriptor may be left. `None` if the kernel does not answer.
    diag: Option<SocketDiag>,
    /// Returns the user of the socket from the second address to the first one.
    in_table: UidInTable,
    /// When the table may be read again.
    next_read: Cell<Instant>,
}

type UidInTable = fn(SocketAddr, SocketAddr) -> io::Result<Option<u32>>;

/// How many times as long as a read of the table the pause after it is.
const PAUSE_FACTOR: u32 = 9;

impl Owners {
    /// Makes the check for the port that listens at `address`.
    fn open(address: SocketAddr) -> Self {
        let diag = SocketDiag::open(address);
        if let Err(error) = &diag {
            tracing::debug!(%error, "the kernel does not say whose a single socket is: its table is read instead");
        }
        Self { diag: diag.ok(), ..Self::by_table(sys::uid_in_table) }
    }

    fn by_table(in_table: UidInTable) -> Self {
        Self { diag: None, in_table, next_read: Cell::new(Instant::now()) }
    }

    /// Returns whether the peer of the connection belongs to this user. `local` and `peer` are its addresses as this end
    /// sees them.
    async fn is_own(&self, local: SocketAddr, peer: SocketAddr) -> io::Result<bool> {
        let answer = self.diag.as_ref().and_then(|diag| diag.uid_of_tcp_peer(local, peer).ok());
        let uid = match answer {
            Some(uid) => uid,
            None => {
                sleep_until(self.next_read.get()).await;
                let began = Instant::now();
                let uid = (self.in_table)(local, peer);
                let ended = Instant::now();
                self.next_read.set(ended + PAUSE_FACTOR * (ended - began));
                uid?
            }
        };
        Ok(uid == Some(geteuid().as_raw()))
    }
}

async fn accept(listener: TcpListener, port: Rc<Port>, owners: Owners, tasks: Tasks) {
    loop {
        let Ok((stream, peer)) = next_connection(&listener).await else {
            // No descriptor is left.
            port.close_oldest();
            continue;
        };
        let own = loop {
            let own = match stream.local_addr() {
                Ok(local) => owners.is_own(local, peer).await,
                Err(error) => Err(error),
            };
            match own {
                // The connection has the last descriptor, and reading the table needs another.
                Err(error) if is_full(&error) && port.close_oldest() => yield_now().await,
                own => break own,
            }
        };
        if !matches!(own, Ok(true)) {
            port.refuse(peer, own.as_ref().err());
            // A stream of such connections must not hold up the agent's other tasks.
            yield_now().await;
            continue;
        }
        let missing = port.expected.borrow().missing;
        let (number, closed) = port.unproven.borrow_mut().add(peer.ip(), missing);
        port.close(closed);
        let of_task = Rc::clone(&port);
        let task = tasks.spawn("PMI connection", Span::current(), async move {
            let port = of_task;
            let admitted = timeout(port.times.line, port.admit(stream, number)).await;
            port.unproven.borrow_mut().remove(number);
            port.running.borrow_mut().remove(&number);
            match admitted {
                Ok(Ok(())) => {}
                Ok(Err(error)) => port.refuse(peer, Some(&error)),
                Err(_) => port.refuse(peer, Some(&io::ErrorKind::TimedOut.into())),
            }
        });
        port.running.borrow_mut().insert(number, task.abort_handle());
    }
}

/// Returns whether an error says that no descriptor is left.
fn is_full(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

impl Port {
    /// Closes the oldest connection that has not named its rank. Returns whether there was one.
    fn close_oldest(&self) -> bool {
        let oldest = self.unproven.borrow_mut().remove_oldest();
        self.close(oldest);
        oldest.is_some()
    }

    /// Closes a connection that has not named its rank.
    fn close(&self, number: Option<u64>) {
        if let Some(task) = number.and_then(|number| self.running.borrow_mut().remove(&number)) {
            task.abort();
        }
    }

    /// Logs that a connection was refused, at a bounded rate. Without an error it belongs to another user.
    fn refuse(&self, peer: SocketAddr, error: Option<&io::Error>) {
        let mut refusals = self.refusals.borrow_mut();
        let Some(omitted) = refusals.note(self.began.elapsed()) else { return };
        if omitted > 0 {
            tracing::debug!(omitted, "more connections to the PMI port were refused");
        }
        match error {
            // Other users must not write to this user's terminal.
            None => tracing::debug!(%peer, "a connection of another user to the PMI port was refused"),
            Some(error) if refusals.warns() => {
                tracing::warn!(%peer, %error, "a connection to the PMI port was refused")
            }
            Some(error) => tracing::debug!(%peer, %error, "a connection to the PMI port was refused"),
        }
    }

    async fn admit(&self, mut stream: TcpStream, number: u64) -> io::Result<()> {
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            if line.len() >= FIRST_LINE_BYTES_MAX {
                return Err(io::Error::other("its first line is too long"));
            }
            // A rank sends its line as soon as it is connected.
            let time = if line.is_empty() { self.times.first_byte } else { self.times.line };
            // Read byte by byte: the bytes after the line belong to the rank's task.
            line.push(within(time, stream.read_u8()).await?);
        }
        line.pop();
        let rank = initack::parse(&line).map_err(io::Error::other)?;
        let (local, peer) = (stream.local_addr()?, stream.peer_addr()?);
        // The task of a rank whose program has ended may not have noticed that.
        let is_open = |first| !matches!(sys::uid_in_table(local, first), Ok(None));
        let admission = self.expected.borrow_mut().connect(rank, peer, is_open);
        self.unproven.borrow_mut().remove(number);
        let task = match admission {
            Admission::Admitted(task) => task,
            Admission::Unknown => return Err(io::Error::other("it names a rank that is not here")),
            Admission::Refused { key, first, is_new } => {
                if is_new {
                    let process = |peer| sys::process_of_peer(local, peer);
                    let text = sys::refusal_text(process(peer), process(first), "refused");
                    let _ = self.events.send(RankEvent::SecondJoiner { key, text }).await;
                }
                let reply = [&*initack::reply(&self.attributes, rank), INIT_REFUSED].concat();
                return stream.write_all(&reply).await;
            }
        };
        stream.write_all(&initack::reply(&self.attributes, rank)).await?;
        stream.set_nodelay(true)?;
        let stream: OwnedFd = stream.into_std()?.into();
        let _ = task.send(sys::watch(stream)?).await;
        Ok(())
    }
}

async fn within<T>(time: Duration, read: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(time, read).await.unwrap_or_else(|_| Err(io::Error::other("it did not name its rank in time")))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;

    use tokio::task::LocalSet;

    use super::*;
    use crate::core::limits::{UNAUTHENTICATED_MAX, UNAUTHENTICATED_PER_SOURCE_MAX};
    use crate::tasks::Panics;

    const LONG: Duration = Duration::from_secs(30);

    fn attributes() -> Arc<JobAttributes> {
        Arc::new(JobAttributes {
            kvsname: "kvs_test".to_owned(),
            size: 4,
            universe_size: 4,
            mapping: None,
            preputs: pmi::Epoch::default(),
            spawner: None,
            puts_at_once: false,
        })
    }

    async fn connect(port: &PortServer) -> TcpStream {
        TcpStream::connect(port.address).await.expect("the port is open")
    }

    /// Connects as a rank and returns the first line of the answer.
    async fn admitted(port: &PortServer, rank: u32) -> String {
        let mut stream = connect(port).await;
        stream.write_all(format!("cmd=initack pmiid={rank}\n").as_bytes()).await.expect("the port reads");
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            match timeout(LONG, stream.read_u8()).await.expect("an answer or an end in time") {
                Ok(byte) => line.push(byte),
                Err(_) => break,
            }
        }
        String::from_utf8(line).expect("text")
    }

    async fn is_closed(stream: &mut TcpStream) -> bool {
        timeout(LONG, stream.read_u8()).await.is_ok_and(|read| read.is_err())
    }

    /// Runs a test with a port whose own time limits are longer than those of the test.
    fn run(owners: impl FnOnce(SocketAddr) -> Owners, test: impl AsyncFnOnce(PortServer)) {
        run_with(owners, Times { first_byte: 2 * LONG, line: 2 * LONG }, test);
    }

    fn run_with(owners: impl FnOnce(SocketAddr) -> Owners, times: Times, test: impl AsyncFnOnce(PortServer)) {
        let _ = sys::raise_limit();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            let tasks = Panics::new("test").tasks();
            test(PortServer::with(attributes(), mpsc::channel(8).0, &tasks, owners, times).expect("a port")).await;
        });
    }

    #[test]
    fn silent_connections_keep_no_rank_out() {
        run(Owners::open, async |port| {
            let (task, mut connections) = mpsc::channel(1);
            port.expect((NamespaceId::FIRST, Rank(2)), task, &Rc::default());
            let mut silent = Vec::new();
            for _ in 0..UNAUTHENTICATED_MAX + 1 {
                silent.push(connect(&port).await);
            }
            assert_eq!(admitted(&port, 2).await, "cmd=initack rc=0\n");
            assert!(connections.recv().await.is_some());
            // The rank is the last one of its source.
            let kept = UNAUTHENTICATED_PER_SOURCE_MAX - 1;
            let (closed, open) = silent.split_at_mut(UNAUTHENTICATED_MAX + 1 - kept);
            for stream in closed {
                assert!(is_closed(stream).await);
            }
            assert!(open.iter().all(|stream| stream.try_read(&mut [0]).is_err()), "no newer one was closed");
        });
    }

    #[test]
    fn a_connection_with_the_last_descriptor_is_checked_after_the_oldest_is_closed() {
        thread_local! {
            static CHECKS: Cell<u32> = const { Cell::new(0) };
        }
        let in_table: UidInTable = |local, peer| match CHECKS.replace(CHECKS.get() + 1) {
            1 => Err(io::Error::from_raw_os_error(libc::EMFILE)),
            _ => sys::uid_in_table(local, peer),
        };
        run(
            |_| Owners::by_table(in_table),
            async |port| {
                let (task, mut connections) = mpsc::channel(1);
                port.expect((NamespaceId::FIRST, Rank(2)), task, &Rc::default());
                let mut silent = connect(&port).await;
                assert_eq!(admitted(&port, 2).await, "cmd=initack rc=0\n");
                assert!(connections.recv().await.is_some());
                assert!(is_closed(&mut silent).await);
            },
        );
        assert_eq!(CHECKS.get(), 3);
    }

    #[test]
    fn the_table_of_sockets_is_read_only_if_the_kernel_answers_no_question() {
        let owners = |address| Owners { in_table: |_, _| panic!("the table was read"), ..Owners::open(address) };
        run(owners, async |port| {
            let (task, mut connections) = mpsc::channel(1);
            port.expect((NamespaceId::FIRST, Rank(2)), task, &Rc::default());
            assert_eq!(admitted(&port, 2).await, "cmd=initack rc=0\n");
            assert!(connections.recv().await.is_some());
        });
    }

    #[test]
    fn reading_a_long_table_leaves_the_agent_nine_tenths_of_its_time() {
        const READ: Duration = Duration::from_millis(20);
        thread_local! {
            static READS: Cell<u32> = const { Cell::new(0) };
        }
        let slow: UidInTable = |_, _| {
            READS.set(READS.get() + 1);
            std::thread::sleep(READ);
            Ok(None)
        };
        run(
            |_| Owners::by_table(slow),
            async |port| {
                let start = Instant::now();
                let mut strangers = Vec::new();
                for _ in 0..6 {
                    strangers.push(connect(&port).await);
                }
                for stranger in &mut strangers {
                    assert!(is_closed(stranger).await);
                }
                assert_eq!(READS.get(), 6);
                // Five pauses, and six reads.
                assert!(start.elapsed() >= 5 * PAUSE_FACTOR * READ + 6 * READ, "{:?}", start.elapsed());
            },
        );
    }

    #[test]
    fn a_failed_check_closes_no_other_connection_if_descriptors_are_left() {
        run(
            |_| Owners::by_table(|_, _| Err(io::ErrorKind::PermissionDenied.into())),
            async |port| {
                port.port.unproven.borrow_mut().add(IpAddr::from(Ipv4Addr::LOCALHOST), 1);
                assert!(is_closed(&mut connect(&port).await).await);
                assert_eq!(port.port.unproven.borrow_mut().remove_oldest(), Some(0));
            },
        );
    }

    #[test]
    fn a_silent_connection_is_closed_before_the_time_for_its_line() {
        let times = Times { first_byte: Duration::from_millis(200), line: 2 * LONG };
        run_with(Owners::open, times, async |port| {
            let mut silent = connect(&port).await;
            let connected = Instant::now();
            assert!(is_closed(&mut silent).await);
            assert!(connected.elapsed() >= Duration::from_millis(100), "it was closed at once");
        });
    }

    #[test]
    fn connections_of_other_users_are_closed_at_once() {
        run(
            |_| Owners::by_table(|_, _| Ok(Some(geteuid().as_raw() + 1))),
            async |port| {
                let mut stranger = connect(&port).await;
                assert!(is_closed(&mut stranger).await);
                assert_eq!(port.port.unproven.borrow_mut().remove_oldest(), None, "it took no place");
            },
        );
    }

    #[test]
    fn a_line_that_names_no_rank_is_refused() {
        run(Owners::open, async |port| {
            let (task, _connections) = mpsc::channel(1);
            port.expect((NamespaceId::FIRST, Rank(2)), task, &Rc::default());
            assert_eq!(admitted(&port, 3).await, "");
            let mut stream = connect(&port).await;
            stream.write_all(&[b'x'; FIRST_LINE_BYTES_MAX + 1]).await.expect("the port reads");
            assert!(is_closed(&mut stream).await);
        });
    }

    #[test]
    fn a_second_connection_of_a_rank_is_refused_while_the_first_has_joined() {
        run(Owners::open, async |port| {
            let (task, mut connections) = mpsc::channel(1);
            let has_joined = Rc::new(Cell::new(false));
            port.expect((NamespaceId::FIRST, Rank(2)), task, &has_joined);
            let mut admitted = async || {
                let mut stream = connect(&port).await;
                stream.write_all(b"cmd=initack pmiid=2\n").await.expect("the port reads");
                assert!(timeout(LONG, connections.recv()).await.is_ok_and(|connection| connection.is_some()));
                stream
            };
            let first = admitted().await;
            has_joined.set(true);
            let mut second = connect(&port).await;
            second.write_all(b"cmd=initack pmiid=2\n").await.expect("the port reads");
            let mut reply = String::new();
            timeout(LONG, second.read_to_string(&mut reply)).await.expect("an end in time").expect("text");
            assert!(reply.ends_with(std::str::from_utf8(INIT_REFUSED).expect("text")), "{reply}");
            // The first has ended, which its task has not noticed.
            drop(first);
            let _third = admitted().await;
            has_joined.set(false);
            let _fourth = admitted().await;
        });
    }

    #[test]
    fn no_rank_is_closed_for_another_rank() {
        run(Owners::open, async |port| {
            let count = UNAUTHENTICATED_PER_SOURCE_MAX as u32 + 36;
            let mut tasks = BTreeMap::new();
            for rank in 0..count {
                let (task, connections) = mpsc::channel(1);
                port.expect((NamespaceId::FIRST, Rank(rank)), task, &Rc::default());
                tasks.insert(rank, connections);
            }
            let mut streams = Vec::new();
            for _ in 0..count {
                streams.push(connect(&port).await);
            }
            for (rank, stream) in streams.iter_mut().enumerate() {
                stream.write_all(format!("cmd=initack pmiid={rank}\n").as_bytes()).await.expect("it is open");
            }
            for connections in tasks.values_mut() {
                assert!(timeout(LONG, connections.recv()).await.is_ok_and(|connection| connection.is_some()));
            }
            assert_eq!(port.port.expected.borrow().missing, 0);
        });
    }
}
