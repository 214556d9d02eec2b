//! An agent's end of its bootstrap channel.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

use tokio::sync::mpsc;

use super::decide::failure::{StartFailure, StartPhase};
use super::protocol::{BootCommand, BootOrder, BootReport};
use crate::core::limits::BOOT_BYTES_MAX;
use crate::core::{AgentId, Time};
use crate::link::listener as reach;
use crate::link::{Accepted, connect};
use crate::sys;
use crate::wire::{decode, encode, framed};

/// The number of a task in its step, from 0 on.
const TASK: &str = "SLURM_PROCID";
/// What the resource manager calls the node of a task.
pub(crate) const NODE: &str = "SLURMD_NODENAME";

/// See the module.
pub(crate) enum Channel {
    /// Standard input and output.
    Own(mpsc::UnboundedReceiver<BootCommand>),
    /// A connection to who awaits it.
    Callback(Box<Accepted>),
}

impl Channel {
    /// The channel that the order is about. A member of a step says which it is.
    pub(crate) async fn open(order: &BootOrder) -> Result<Self, StartFailure> {
        if order.callback.is_empty() {
            return Ok(Self::Own(commands()));
        }
        if !order.is_shared() {
            let opener = (AgentId::ROOT, "who has opened the session to here");
            return Ok(Self::Callback(Box::new(call(order, opener, AgentId(order.target)).await?)));
        }
        let task = std::env::var(TASK).ok().and_then(|task| task.parse::<u32>().ok()?.checked_add(1));
        let (Some(task), Ok(node)) = (task, std::env::var(NODE)) else {
            let words = format!("{TASK} and {NODE} do not tell which task this is");
            return Err(StartFailure::new(StartPhase::Step, words));
        };
        let mut accepted = call(order, (AgentId::ROOT, "the launcher"), AgentId(task)).await?;
        let lost = |error| StartFailure::new(StartPhase::ConnectBack, format!("the launcher is gone: {error}"));
        accepted.send(&BootReport::Task { node }).await.map_err(lost)?;
        Ok(Self::Callback(Box::new(accepted)))
    }

    /// Fails when nobody listens any more.
    pub(crate) async fn tell(&mut self, report: &BootReport) -> io::Result<()> {
        match self {
            Self::Own(_) => write_report(report),
            Self::Callback(accepted) => accepted.send(report).await.map_err(io::Error::other),
        }
    }

    /// What the agent is told; nothing more if the channel has ended. Nothing is lost if it is dropped before
    /// it is done.
    pub(crate) async fn next(&mut self) -> Option<BootCommand> {
        match self {
            Self::Own(commands) => commands.recv().await,
            Self::Callback(accepted) => accepted.receive().await.ok(),
        }
    }
}

/// Calls who awaits it: the command that has started this process is its child.
async fn call(order: &BootOrder, above: (AgentId, &str), agent: AgentId) -> Result<Accepted, StartFailure> {
    let port = order.callback.first().map(SocketAddr::port);
    let addresses = reach::candidates(port, order.callback.clone());
    let (accepted, _) = connect_to_any(order, addresses, above, agent).await?;
    // Should it fail, only a host that is lost while the agent waits for its place goes unnoticed.
    let _ = probe(&accepted, order.dead_time);
    Ok(accepted)
}

/// Lets the kernel ask now and then whether the other end's host is there, and end the connection when it has not
/// answered for about that time: nothing may be said on it for long. A process that is stopped counts as there.
fn probe(accepted: &Accepted, dead_time: Duration) -> nix::Result<()> {
    use nix::sys::socket::{setsockopt, sockopt};
    const PROBES: u32 = 4;
    let Some(connection) = accepted.stream.as_connection() else { return Ok(()) };
    let pause = (dead_time.as_secs() as u32 / PROBES).max(1);
    setsockopt(connection, sockopt::TcpKeepIdle, &pause)?;
    setsockopt(connection, sockopt::TcpKeepInterval, &pause)?;
    setsockopt(connection, sockopt::TcpKeepCount, &(PROBES - 1))?;
    setsockopt(connection, sockopt::KeepAlive, &true)?;
    // The same where something was said and nobody has taken it.
    setsockopt(connection, sockopt::TcpUserTimeout, &(dead_time.as_millis() as u32))
}

/// Connects to one of these addresses, the first where `who` is.
pub(crate) async fn connect_to_any(
    order: &BootOrder,
    addresses: impl IntoIterator<Item = SocketAddr>,
    above: (AgentId, &str),
    agent: AgentId,
) -> Result<(Accepted, Time), StartFailure> {
    let (above, who) = above;
    let mut why = Vec::new();
    for address in addresses {
        match connect(address, above, agent, order.session, &order.key).await {
            Ok(connected) => return Ok(connected),
            Err(error) => why.push(format!("{address}: {error}")),
        }
    }
    let words = format!("{who} cannot be reached ({})", why.join("; "));
    Err(StartFailure::new(StartPhase::ConnectBack, words))
}

/// The order, from standard input, and the marker behind which all is said that goes to standard output.
pub(crate) fn take_order() -> io::Result<BootOrder> {
    let order: BootOrder = read_frame(&mut Input)?;
    if !order.is_shared() {
        let mut channel = io::stdout().lock();
        channel.write_all(&order.marker)?;
        channel.flush()?;
    }
    Ok(order)
}

/// Says why there will be no agent, where no [`Channel`] is open: on standard output, where somebody listens to
/// this agent alone; in a step, among its command's own errors.
pub(crate) fn tell_failure(order: &BootOrder, failure: StartFailure) {
    // Whoever could read this may be gone.
    if !order.is_shared() {
        let _ = write_report(&BootReport::NotStarted(failure));
    } else {
        let node = std::env::var(NODE).unwrap_or_else(|_| sys::host_name());
        let _ = io::stderr().write_all(format!("scela: {node}: {}\n", failure.words).as_bytes());
    }
}

/// Lets go of standard input, output and errors: nobody shall wait for their end.
pub(crate) fn close_own(is_remote: bool) -> io::Result<()> {
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    // The errors of a session end with it; the launcher's own are there as long as it is.
    if is_remote || std::env::var_os("SCELA_LOG").is_none() {
        // A reader of the launcher's errors that has fallen asleep must not stop an agent.
        nix::unistd::dup2_stderr(&null)?;
    }
    Ok(())
}

/// Standard input without a buffer: what follows a frame may be for somebody else.
struct Input;

impl Read for Input {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        Ok(nix::unistd::read(io::stdin(), bytes)?)
    }
}

fn read_frame<M: serde::de::DeserializeOwned>(channel: &mut impl Read) -> io::Result<M> {
    let mut length = [0; 4];
    channel.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > BOOT_BYTES_MAX {
        return Err(io::Error::other("what comes over the bootstrap channel is too long"));
    }
    let mut bytes = Vec::new();
    channel.take(length as u64).read_to_end(&mut bytes)?;
    decode(&bytes).map_err(io::Error::other)
}

fn write_report(report: &BootReport) -> io::Result<()> {
    let mut channel = io::stdout().lock();
    channel.write_all(&framed(&encode(report)))?;
    channel.flush()
}

/// What comes over standard input, until it ends: by a thread of its own, since that may be anything. It ends
/// with who writes there.
fn commands() -> mpsc::UnboundedReceiver<BootCommand> {
    // Bounded by what one order of the launcher's is about.
    let (heard, commands) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        while let Ok(command) = read_frame(&mut Input) {
            if heard.send(command).is_err() {
                return;
            }
        }
    });
    commands
}
