//! The keeper of a node.
//!
//! A guardian is forked from a process with one thread, so the keeper forks a fork server before it starts its runtime.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::LocalSet;
use tracing::Span;

use super::controller::ROLE;
use super::message::{AgentSpec, ChannelNumber, FromKeeper, KeeperOrder, NodeState, StreamName, ToKeeper};
use super::relay::{Ends, Relay};
use crate::core::AgentId;
use crate::core::limits::BOOT_BYTES_MAX;
use crate::link::{Accepted, connect};
use crate::sys::{self, FORKED_EXIT_TIME, Packets, WatchedPackets};
use crate::tasks::{Panics, Tasks};
use crate::wire::{decode, encode, read_secret_frame};

/// Messages that wait for the connection.
const OUTGOING: usize = 64;
/// How long the fork server may take to exit, which waits for the guardians.
const GUARDIANS_TIME: Duration = FORKED_EXIT_TIME.saturating_add(Duration::from_secs(1));
/// The variable with the number of this rank.
const RANK: &str = "PMI_RANK";
/// The variables that agents inherit, as from a login.
const VARIABLES: [&str; 8] = ["HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TMPDIR", "XDG_RUNTIME_DIR"];

/// The process in which [`keep_node`] has returned.
pub enum Kept {
    /// The keeper, or its fork server, at its end.
    Ended,
    /// A new guardian. It calls [`guarded`](sys::guarded) next, for an agent that may be silent for so long.
    Guardian(Duration),
}

/// Keeps this node until the connection to the controller ends. To be called by a rank with one thread.
pub fn keep_node() -> io::Result<Kept> {
    // The keys of jobs pass through this process, on their way to agents.
    sys::forbid_dump()?;
    let order = take_order()?;
    let rank: u32 = std::env::var(RANK).ok().and_then(|rank| rank.parse().ok()).unwrap_or_default();
    sys::keep_variables(&VARIABLES);
    let [requests, served] = Packets::pair()?;
    let Some(forks) = sys::fork_alone()? else {
        drop((order, requests));
        return Ok(serve_forks(&served)?.map_or(Kept::Ended, Kept::Guardian));
    };
    drop(served);
    sys::name_process(c"scela-keeper", "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut panics = Panics::new("keeper");
    let tasks = panics.tasks();
    let keeping = async {
        let kept = panics.watch("keeper", keep(&order, AgentId(order.first.saturating_add(rank)), requests, &tasks));
        kept.await.unwrap_or_else(|panic| Err(io::Error::other(panic.to_string())))
    };
    let kept = LocalSet::new().block_on(&runtime, keeping);
    runtime.shutdown_background();
    // The session of the keepers ends what this process leaves. Guardians that end after their jobs may still remove files.
    sys::await_exit(forks, GUARDIANS_TIME);
    kept.map(|()| Kept::Ended)
}

/// Reads the order. The session of the keepers ends those whose input stalls.
fn take_order() -> io::Result<KeeperOrder> {
    read_secret_frame(&mut io::stdin().lock(), BOOT_BYTES_MAX, "the order is too long")
}

/// Forks guardians until the keeper ends. Returns `None` then, and the dead time in each guardian.
fn serve_forks(requests: &Packets) -> io::Result<Option<Duration>> {
    sys::name_process(c"scela-forks", "");
    sys::serve_forks(requests, |packet| {
        let streams = <[OwnedFd; 3]>::try_from(packet.descriptors).ok()?;
        let AgentSpec { label, dead_time } = decode(&packet.bytes).ok()?;
        let is_forked = sys::fork_guardian(&streams, &label).unwrap_or_else(|error| {
            let [_, _, errors] = streams;
            let node = sys::host_name();
            // Its reader may be gone.
            let _ = writeln!(fs::File::from(errors), "scela: {node}: no agent can be forked: {error}");
            false
        });
        is_forked.then_some(dead_time)
    })
}

/// Serves the controller until the connection ends. Fails once the fork server has ended: no agent can be started then.
async fn keep(order: &KeeperOrder, number: AgentId, forks: Packets, tasks: &Tasks) -> io::Result<()> {
    let accepted = reach_controller(order, number).await?;
    let _ = accepted.keep_alive(order.dead_time);
    let (mut sender, mut receiver) = accepted.into_halves();
    sender.send(&FromKeeper::State(node_state())).await.map_err(io::Error::other)?;
    let (parcels, mut outgoing_parcels) = mpsc::channel(OUTGOING);
    // Bounded by the questions that the controller asks at a time.
    let (states, mut outgoing_states) = mpsc::unbounded_channel();
    tasks.spawn("to controller", Span::current(), async move {
        loop {
            let message = tokio::select! {
                Some(parcel) = outgoing_parcels.recv() => FromKeeper::Parcel(parcel),
                Some(state) = outgoing_states.recv() => FromKeeper::State(state),
                else => return,
            };
            if sender.send(&message).await.is_err() {
                return;
            }
        }
    });
    let relay = Rc::new(Relay::new(parcels, tasks.clone()));
    // A second handle of the socket: the first one blocks in send.
    let forks_end = WatchedPackets::of(forks.duplicate()?)?;
    loop {
        let received = tokio::select! {
            received = receiver.receive() => received,
            // The fork server sends nothing.
            _ = forks_end.receive() => {
                return Err(io::Error::other("the process that forks agents was killed"));
            }
        };
        match received {
            Ok(ToKeeper::Open(channel, agent)) => open(&relay, &forks, channel, &agent)?,
            Ok(ToKeeper::Parcel(parcel)) => {
                relay.on_parcel(parcel).map_err(|excess| io::Error::new(io::ErrorKind::InvalidData, excess))?;
            }
            Ok(ToKeeper::Close(channel)) => relay.close(channel),
            Ok(ToKeeper::Report) => drop(states.send(node_state())),
            // The pool has ended, or its host is lost.
            Err(error) => {
                tracing::debug!(%error, "the connection to the controller has ended");
                return Ok(());
            }
        }
    }
}

async fn reach_controller(order: &KeeperOrder, number: AgentId) -> io::Result<Accepted> {
    let mut errors = Vec::new();
    for address in &order.controller {
        match connect(*address, ROLE, number, order.session, &order.key).await {
            Ok((accepted, _)) => return Ok(accepted),
            Err(error) => errors.push(format!("{}: {error}", SocketAddr::ip(address))),
        }
    }
    Err(io::Error::other(format!("the controller of the pool cannot be reached ({})", errors.join("; "))))
}

/// Starts an agent, whose streams are those of the channel.
fn open(relay: &Relay, forks: &Packets, channel: ChannelNumber, agent: &AgentSpec) -> io::Result<()> {
    if !agent.is_valid() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the order for an agent is out of range"));
    }
    let (input, to_input) = sys::input_pipe()?;
    let [(from_output, output), (from_errors, errors)] = [sys::pipe()?, sys::pipe()?];
    // Waits if the fork server is behind.
    forks.send(&encode(agent), &[input.as_fd(), output.as_fd(), errors.as_fd()], true)?;
    let ends = Ends {
        sources: vec![(StreamName::Output, from_output), (StreamName::Errors, from_errors)],
        sinks: vec![(StreamName::Input, to_input)],
    };
    relay.open(channel, ends)
}

/// Returns the state of this node.
pub fn node_state() -> NodeState {
    let read = |path| fs::read_to_string(path).unwrap_or_default();
    let cores = u32::try_from(sys::usable_cores()).unwrap_or(u32::MAX);
    node_state_of(&read("/proc/loadavg"), &read("/proc/meminfo"), cores)
}

/// Reads the state of a node from the texts of /proc/loadavg and /proc/meminfo. A missing value is 0.
fn node_state_of(loadavg: &str, meminfo: &str, cores: u32) -> NodeState {
    let load = loadavg.split_ascii_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or_default();
    let bytes = |name: &str| {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let kib = line.and_then(|line| line.split_ascii_whitespace().next()?.parse::<u64>().ok());
        kib.unwrap_or_default().saturating_mul(1024)
    };
    NodeState { cores, load, memory_free: bytes("MemAvailable"), memory: bytes("MemTotal") }
}

#[cfg(test)]
mod orders;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_node_is_read_from_proc() {
        let meminfo = "MemTotal:       2000 kB\nMemFree:  1 kB\nMemAvailable:   1000 kB\n";
        let state = node_state_of("1.25 0.50 0.10 1/300 4242\n", meminfo, 8);
        assert_eq!(state, NodeState { cores: 8, load: 1.25, memory_free: 1_024_000, memory: 2_048_000 });
        assert_eq!(node_state_of("x", "MemTotal", 8), NodeState { cores: 8, ..NodeState::default() });
        assert!(node_state().memory >= node_state().memory_free);
    }
}
