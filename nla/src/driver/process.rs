//! A whole agent process: from its first instruction until it has joined the tree and its actor runs.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::ExitCode;

use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::LocalSet;
use tokio::time::timeout;

use super::agent::Driver;
use super::clock::Clock;
use super::greeting::{Gatekeeper, connect, let_in};
use crate::core::limits::{AGENTS_MAX, BOOT_BYTES_MAX, JOIN_TIME, RANKS_PER_AGENT};
use crate::core::{AgentId, Subtree};
use crate::sys::{self, GuardianLink};
use crate::wire::{BootOrder, BootReport, ParentAddress, decode, encode};

/// Descriptors for which there is room from the beginning: those of as many ranks as an agent has by
/// default.
const DESCRIPTORS_AT_ONCE: u64 = 4 * RANKS_PER_AGENT as u64 + 128;
/// Runs an agent whose bootstrap channel is standard input and output; the result is its exit
/// code. To be called at the start of `main`: it takes over the process.
pub fn run_agent() -> ExitCode {
    match begin() {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            // The channel may be gone with whoever could read this.
            let _ = report(&mut io::stdout(), &BootReport::Failed { why: error.to_string() });
            tracing::error!(%error, "the agent cannot start");
            ExitCode::from(251)
        }
    }
}

fn begin() -> io::Result<u8> {
    sys::set_process_name("scela-agent")?;
    // First of all: only with the order's marker can anything be reported.
    let order: BootOrder = read_frame(&mut io::stdin().lock())?;
    io::stdout().write_all(&order.marker)?;
    if order.agents > AGENTS_MAX {
        return Err(io::Error::other(format!("{} agents are more than a session can have", order.agents)));
    }
    let guardian = GuardianLink::inherited()?;
    sys::reserve_low()?;
    let descriptors = sys::raise_limit()?;
    sys::make_room(DESCRIPTORS_AT_ONCE)?;
    sys::forbid_dump()?;
    sys::become_subreaper()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = LocalSet::new().block_on(&runtime, live(order, guardian, descriptors));
    // Nothing that still runs is worth waiting for.
    runtime.shutdown_background();
    result
}

fn read_frame<M: serde::de::DeserializeOwned>(channel: &mut impl Read) -> io::Result<M> {
    let mut length = [0; 4];
    channel.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > BOOT_BYTES_MAX {
        return Err(io::Error::other("the order on the bootstrap channel is too long"));
    }
    let mut bytes = vec![0; length];
    channel.read_exact(&mut bytes)?;
    decode(&bytes).map_err(io::Error::other)
}

fn report(channel: &mut impl Write, report: &BootReport) -> io::Result<()> {
    let bytes = encode(report);
    channel.write_all(&(bytes.len() as u32).to_le_bytes())?;
    channel.write_all(&bytes)?;
    channel.flush()
}

/// Joins the tree and stays in it until the session is over.
async fn live(order: BootOrder, guardian: Option<GuardianLink>, descriptors: u64) -> io::Result<u8> {
    let here = Subtree::whole(order.agents, order.fanout)
        .of(order.agent)
        .ok_or_else(|| io::Error::other("the tree has no such agent"))?;
    let parent = Subtree::whole(order.agents, order.fanout).parent_of(order.agent).unwrap_or(AgentId::ROOT);
    let children: Vec<AgentId> = here.children().map(|child| child.head()).collect();
    let listener = if children.is_empty() {
        None
    } else {
        Some(TcpListener::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0)).await?)
    };
    let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;

    let mut stdout = io::stdout();
    report(&mut stdout, &BootReport::Listening { address, host: sys::host_name(), descriptors })?;
    // The launcher answers at once if it is the parent, else when the parent listens. If it goes
    // away the channel ends, and so does this.
    let ParentAddress(address) = read_parent_address().await?;
    let (accepted, now) = connect(address, parent, order.agent, order.session, &order.key)
        .await
        .map_err(|error| io::Error::other(format!("its parent at {address} cannot be joined: {error}")))?;
    let clock = Clock::joined(now);
    report(&mut stdout, &BootReport::Joined)?;
    // The bootstrap channel is not needed any more, and nobody shall wait for its end.
    let null = std::fs::OpenOptions::new().read(true).write(true).open("/dev/null")?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    if std::env::var_os("SCELA_LOG").is_none() {
        // A reader of the launcher's errors that has fallen asleep must not stop an agent.
        nix::unistd::dup2_stderr(&null)?;
    }

    let mut driver = Driver::new(&order, here, accepted, clock, guardian)?;
    if let Some(listener) = listener {
        let gatekeeper = Gatekeeper::new(order.session, order.key.clone(), children);
        tokio::task::spawn_local(let_in(listener, gatekeeper, clock, driver.joining.clone()));
    }
    Ok(driver.run().await)
}

async fn read_parent_address() -> io::Result<ParentAddress> {
    let (done, result) = oneshot::channel();
    // A thread of its own: standard input may be anything, and this read ends with the launcher.
    std::thread::spawn(move || {
        let _ = done.send(read_frame(&mut io::stdin().lock()));
    });
    match timeout(JOIN_TIME, result).await {
        Ok(Ok(address)) => address,
        _ => Err(io::Error::new(io::ErrorKind::TimedOut, "the launcher did not say where the agent's parent is")),
    }
}
