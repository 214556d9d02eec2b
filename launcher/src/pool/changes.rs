//! `scela pool add`, `drain` and `resume`: changes of a pool's nodes. A signal withdraws an addition.

use std::io;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nla::sys::{self, ShellState};

use super::client::{ENDING, wait_or_signal};
use super::commands::{answer, asked, broken};
use super::message::{NodeChange, ToClient, ToController};
use crate::refusal::Refusal;
use crate::run::stderr::{self, Kind};

/// The most bytes of a list of nodes.
const LIST_BYTES_MAX: usize = 24 * 1024;

/// Adds nodes, or changes whether they get jobs. Returns the signal that has interrupted an addition.
pub(super) fn change_nodes(pool: &str, change: &NodeChange, list: &str) -> Result<Option<i32>, Refusal> {
    if list.len() > LIST_BYTES_MAX {
        let hint = "name fewer at a time, or fold them: node[1-400]";
        return Err(Refusal::new("the list of nodes is too long", hint));
    }
    let question = ToController::Nodes(change.clone(), list.to_owned());
    if !matches!(change, NodeChange::Add { .. }) {
        return nodes_changed(answer(&asked(pool, &question)?, pool)?, pool).map(|()| None);
    }
    // A signal before that ends this process, and the controller adds nothing.
    stderr::allow_thread();
    let signals = ending_signals().map_err(|error| broken(pool, &error))?;
    let controller = asked(pool, &question)?;
    let Some(signal) = wait_or_signal(&controller, pool, &signals)? else {
        return nodes_changed(answer(&controller, pool)?, pool).map(|()| None);
    };
    // The controller then removes the nodes, and says so, unless it has answered before, or has ended.
    let _ = controller.end_sending();
    let text = match nodes_changed(answer(&controller, pool)?, pool) {
        Ok(()) => {
            let hint = format!("'scela pool drain NODES {pool}' gives nodes no more jobs");
            format!("the nodes were added before\n  hint: {hint}")
        }
        Err(refusal) => refusal.with_hint(),
    };
    stderr::line(Kind::Report, &format!("scela: {}: {text}", sys::signal_name(signal)));
    Ok(Some(signal))
}

/// Returns the meaning of an answer about nodes.
fn nodes_changed(answer: Option<ToClient>, pool: &str) -> Result<(), Refusal> {
    match answer {
        Some(ToClient::Done) => Ok(()),
        Some(ToClient::NodesRefused(why)) => Err(Refusal::new(why, "").of_system()),
        _ => Err(broken(pool, &"it gave no answer")),
    }
}

/// Blocks the signals that end a command, unless this process ignores them, and returns the descriptor that yields them.
fn ending_signals() -> io::Result<SignalFd> {
    let ignored = ShellState::recorded().ignored;
    let set = ENDING.into_iter().filter(|signal| ignored >> (*signal as i32 - 1) & 1 == 0).collect::<SigSet>();
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}
