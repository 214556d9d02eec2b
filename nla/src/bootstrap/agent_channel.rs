//! The agent's end of its bootstrap channel.

use std::cell::Cell;
use std::fmt::Display;
use std::future::pending;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::{sleep, sleep_until};

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{BootCommand, BootOrder, BootReport};
use super::shell_channel::Reader;
use crate::core::limits::{BOOT_BYTES_MAX, ORDER_TIME_MIN, RECONNECT_TIME};
use crate::core::{AgentId, Time};
use crate::link::{Accepted, Address, Stream, candidates, connect};
use crate::sys::{self, GuardianLink};
use crate::wire::{Role, encode, framed, read_secret_frame};

/// The variable with the number of a task in its step, from 0 on.
const TASK: &str = "SLURM_PROCID";
/// The variable with the resource manager's name of the node of a task.
pub(crate) const NODE: &str = "SLURMD_NODENAME";

/// The channel to the process that started this agent.
pub(super) enum AgentChannel {
    /// Standard input and output.
    Own {
        reader: Reader,
        output: Sender,
        /// When the last command arrived.
        heard: Rc<Cell<Instant>>,
    },
    /// A connection that this agent opened.
    Callback(Box<Accepted>),
}

impl AgentChannel {
    /// Opens the channel that the order describes. A task of a step reports its node first.
    pub(super) async fn open(order: &BootOrder) -> Result<Self, StartFailure> {
        if order.callback.is_empty() {
            return Self::own().map_err(|error| {
                let words = format!("its standard input and output cannot be waited for: {error}");
                StartFailure::new(StartPhase::Join, words)
            });
        }
        if !order.is_shared() {
            let opener = "the process that opened its remote shell";
            return Ok(Self::Callback(Box::new(call_back(order, opener, AgentId(order.target)).await?)));
        }
        let task = std::env::var(TASK).ok().and_then(|task| task.parse::<u32>().ok()?.checked_add(1));
        let (Some(task), Ok(node)) = (task, std::env::var(NODE)) else {
            let words = format!("{TASK} and {NODE} do not tell which task this is");
            return Err(StartFailure::new(StartPhase::Step, words));
        };
        let mut accepted = call_back(order, "the launcher", AgentId(task)).await?;
        let lost = |error| {
            StartFailure::new(StartPhase::ConnectBack, format!("the connection to the launcher was lost: {error}"))
        };
        accepted.send(&BootReport::Task { node }).await.map_err(lost)?;
        Ok(Self::Callback(Box::new(accepted)))
    }

    /// Duplicates standard input and output. They may be pipes or sockets, but must be something that epoll can wait
    /// for.
    pub(super) fn own() -> io::Result<Self> {
        let input = io::stdin().as_fd().try_clone_to_owned()?;
        let output = io::stdout().as_fd().try_clone_to_owned()?;
        for own in [&input, &output] {
            sys::set_nonblocking(own.as_fd())?;
        }
        let reader = Reader::new(Receiver::from_owned_fd_unchecked(input)?);
        let heard = Rc::new(Cell::new(Instant::now()));
        Ok(Self::Own { reader, output: Sender::from_owned_fd_unchecked(output)?, heard })
    }

    /// Sends a report. Fails if the other end does not read any more.
    pub(super) async fn report(&mut self, report: &BootReport) -> io::Result<()> {
        match self {
            Self::Own { output, .. } => output.write_all(&framed(&encode(report))).await,
            Self::Callback(accepted) => accepted.send(report).await.map_err(io::Error::other),
        }
    }

    /// Waits for the next command; `None` once the channel has ended. Cancel safe.
    pub(super) async fn next(&mut self) -> Option<BootCommand> {
        match self {
            Self::Own { reader, heard, .. } => {
                let command = reader.next().await.ok().flatten();
                heard.set(Instant::now());
                command
            }
            Self::Callback(accepted) => accepted.receive().await.ok(),
        }
    }

    /// Returns a future that completes once nothing has arrived for `time`. It never completes on a connection, which reports
    /// a lost host itself.
    pub(super) fn silence(&self, time: Duration) -> impl Future<Output = ()> + use<> {
        let heard = match self {
            Self::Own { heard, .. } => Some(Rc::clone(heard)),
            Self::Callback(_) => None,
        };
        async move {
            let Some(heard) = heard else { return pending().await };
            while heard.get().elapsed() < time {
                sleep_until((heard.get() + time).into()).await;
            }
        }
    }

    /// Returns the stream for a link.
    pub(super) fn into_stream(self) -> Stream {
        match self {
            Self::Own { reader, output, .. } => {
                let (input, unread) = reader.into_parts();
                Stream::pipes(input, output, &unread)
            }
            Self::Callback(accepted) => accepted.stream,
        }
    }
}

/// Connects to the process that started this agent. `description` names that process in messages.
async fn call_back(order: &BootOrder, description: &str, agent: AgentId) -> Result<Accepted, StartFailure> {
    let port = order.callback.first().map(SocketAddr::port);
    let addresses = candidates(port, order.callback.clone().into());
    let (accepted, _) =
        connect_to_any(order, addresses, (Role::Callback { starter: order.starter }, description), agent).await?;
    // While the agent waits for its position, only keep-alive detects the loss of the other host: a host that is lost
    // does not close its connections.
    let _ = accepted.keep_alive(order.dead_time);
    Ok(accepted)
}

/// The pauses between two tries to connect: the first, and the longest.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
const RECONNECT_PAUSE_MAX: Duration = Duration::from_millis(500);

/// Connects to the first of these addresses that completes the handshake. Tries again, for at most
/// [`RECONNECT_TIME`], if the peer has closed a connection: it may have more strangers than room. `above` is the role
/// and, for messages, the description of the expected process; `agent` is this agent's own number.
pub(super) async fn connect_to_any(
    order: &BootOrder,
    addresses: Vec<Address>,
    above: (Role, &str),
    agent: AgentId,
) -> Result<(Accepted, Time), StartFailure> {
    let (role, description) = above;
    let began = Instant::now();
    let mut pause = RECONNECT_PAUSE;
    loop {
        let (mut errors, mut is_passing) = (Vec::new(), false);
        for address in &addresses {
            match connect(*address, role, agent, order.session, &order.key).await {
                Ok(connected) => return Ok(connected),
                Err(error) => {
                    is_passing |= error.is_passing();
                    errors.push(format!("{address}: {error}"));
                }
            }
        }
        if !is_passing || began.elapsed() + pause > RECONNECT_TIME {
            let words = format!("{description} cannot be reached ({})", errors.join("; "));
            return Err(StartFailure::new(StartPhase::ConnectBack, words));
        }
        sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_PAUSE_MAX);
    }
}

/// Reads the order from standard input, and writes the marker that precedes all reports to standard output. Fails if the
/// whole order has not arrived within the dead time or [`ORDER_TIME_MIN`], whichever is longer: the starter's host may be
/// lost. Without a dead time it waits until its input ends or its guardian has ended.
pub(super) fn take_order(dead_time: Option<Duration>, guardian: &GuardianLink) -> io::Result<BootOrder> {
    // srun holds the input of a step back until all nodes have answered. Slurm ends a step that it cannot reach.
    let dead_time = dead_time.filter(|_| std::env::var_os(TASK).is_none());
    let limit = dead_time.map(|dead_time| dead_time.max(ORDER_TIME_MIN));
    let mut input = Input { until: limit.map(|limit| Instant::now() + limit), guardian: guardian.as_fd() };
    let too_long = "a message on the bootstrap channel is too long";
    let order: BootOrder = read_secret_frame(&mut input, BOOT_BYTES_MAX, too_long)?;
    order.check().map_err(io::Error::other)?;
    if !order.is_shared() {
        let mut channel = io::stdout().lock();
        channel.write_all(&order.marker)?;
        channel.flush()?;
    }
    Ok(order)
}

/// Reports a failure before an [`AgentChannel`] is open: on standard output; in a step, whose output nothing reads, on
/// standard error.
pub(crate) fn report_failure(order: &BootOrder, failure: StartFailure) {
    // The reader may have exited.
    if !order.is_shared() {
        let _ = write_report(&BootReport::NotStarted(failure));
    } else {
        let node = std::env::var(NODE).unwrap_or_else(|_| sys::host_name());
        last_words(&node, failure.words);
    }
}

/// Tells whoever reads the standard error of this `node` why the agent exits.
pub(super) fn last_words(node: &str, why: impl Display) {
    // In one write, so that the lines of several tasks stay whole.
    let _ = io::stderr().write_all(format!("scela: {node}: {why}\n").as_bytes());
}

/// Replaces standard input, output and error by /dev/null, so that their other ends see the end of the channel.
pub(super) fn close_standard_streams(is_remote: bool) -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    // Standard error of a remote shell ends with the shell. A local agent shares the launcher's, for SCELA_LOG only: a
    // stopped reader of it must not block an agent.
    if is_remote || std::env::var_os("SCELA_LOG").is_none() {
        nix::unistd::dup2_stderr(&null)?;
    }
    Ok(())
}

/// Standard input without a buffer: the bytes behind a frame may be for another reader.
struct Input<'a> {
    /// When a read stops waiting for bytes.
    until: Option<Instant>,
    /// Readable once the guardian has ended.
    guardian: BorrowedFd<'a>,
}

impl Read for Input<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let input = io::stdin();
        let timeout = match self.until.map(|until| until.saturating_duration_since(Instant::now())) {
            Some(left) => PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX),
            None => PollTimeout::NONE,
        };
        let mut ready = [input.as_fd(), self.guardian].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        if poll(&mut ready, timeout)? == 0 {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the order did not arrive in time"));
        }
        if ready[0].any() != Some(true) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(nix::unistd::read(input, bytes)?)
    }
}

fn write_report(report: &BootReport) -> io::Result<()> {
    let mut channel = io::stdout().lock();
    channel.write_all(&framed(&encode(report)))?;
    channel.flush()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::net::Ipv4Addr;

    use tokio::net::TcpListener;
    use tokio::task::LocalSet;

    use super::*;
    use crate::bootstrap::protocol::{Links, MARKER};
    use crate::link::{Authenticator, Clock, Reach, SessionKey, accept};
    use crate::wire::SessionId;

    fn order() -> BootOrder {
        BootOrder {
            session: SessionId(1),
            key: SessionKey::read_from(&mut &[1; 32][..]).expect("a page"),
            marker: [0; MARKER],
            target: 3,
            starter: 0,
            callback: Vec::new(),
            reach: Reach::Here,
            rejoins: false,
            links: Links::Connections,
            uses_local_sockets: true,
            label: String::new(),
            dead_time: Duration::from_secs(20),
            stop_time: Duration::from_secs(600),
            heartbeat: Duration::from_secs(5),
            below: None,
            log: None,
            place: None,
        }
    }

    fn run<T>(test: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, test)
    }

    async fn connected(address: SocketAddr) -> Result<AgentId, StartFailure> {
        let above = (Role::Link { parent: AgentId::ROOT }, "its parent");
        connect_to_any(&order(), vec![address.into()], above, AgentId(3)).await.map(|(accepted, _)| accepted.peer)
    }

    #[test]
    fn a_connection_that_the_peer_closes_is_tried_again() {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            let peer = async {
                for _ in 0..3 {
                    drop(listener.accept().await.expect("a connection"));
                }
                let order = order();
                let role = Role::Link { parent: AgentId::ROOT };
                let authenticator = RefCell::new(Authenticator::new(order.session, order.key, role, [AgentId(3)]));
                let (stream, _) = listener.accept().await.expect("a connection");
                let clock = Clock::start();
                accept(stream, &authenticator, || clock.now()).await.map(|accepted| accepted.peer)
            };
            let (joined, accepted) = tokio::join!(connected(address), peer);
            assert_eq!(joined.expect("the fourth connection is accepted"), AgentId::ROOT);
            assert_eq!(accepted.expect("the agent knows the key"), AgentId(3));
        });
    }

    #[test]
    fn a_port_that_is_closed_is_not_tried_again() {
        run(async {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("a port");
            let address = listener.local_addr().expect("an address");
            drop(listener);
            let failure = connected(address).await.expect_err("no process listens");
            assert!(failure.words.starts_with("its parent cannot be reached (127.0.0.1:"), "{failure:?}");
        });
    }
}
