//! The process that the user has started and waits for: this launcher, or a client that it serves in a pool.
//!
//! A client passes its signals on, and ends with the code that it is told. The launcher has the client's streams, so output
//! and input do not pass through the client.

use std::cell::Cell;
use std::io;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::Signal;
use nla::bootstrap::Keepers;
use nla::core::Resources;
use nla::keeper::AgentSpec;
use nla::sys::{self, Packets, WatchedPackets};
use nla::tasks::Tasks;
use nla::wire::{decode, encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tracing::Span;

use crate::exit;
use crate::run::signals::Asked;
use crate::run::stderr;
use crate::run::suspension::Suspension;

/// A message of a client to its launcher, on the line between them.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToJob {
    /// The client has received this signal.
    Signal(i32),
}

/// A message of a launcher to its client.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromJob {
    /// The launcher has taken the job of this number, and gets the client's signals. The first message: no rank runs before.
    Begins(u64),
    /// The ranks are stopped: the client may stop itself.
    Suspended,
    /// The job cannot run, for this reason.
    NotStarted(String),
    /// An error has been written to the client's standard error. If the launcher is lost after that, the client writes a note, not
    /// another error.
    Reported,
    /// These texts for standard error could not be written there. Precedes the end.
    Unwritten(String),
    /// Output of ranks could not be written to one of the client's streams, for this reason. Precedes the end.
    OutputCut(String),
    /// The job has ended: the client exits with this code.
    Ended(u8),
}

/// A message of the controller to a launcher of its pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToLauncher {
    /// Run this job. The descriptors are those that the client has sent. The first message.
    Run {
        /// The job's number in the pool.
        job: u64,
        /// The slots of the pool.
        slots: u32,
        /// The devices that it has, if it runs on this machine and the pool knows its devices.
        gres: Resources,
    },
    /// Handle this signal as if it had been sent to the client.
    Signal(i32),
}

/// A message of a launcher to the controller of its pool.
#[derive(Debug, Serialize, Deserialize)]
pub enum FromLauncher {
    /// It was forked. The fork server sends this.
    Forked {
        /// Its pid.
        pid: u32,
    },
    /// It stands by. The descriptor is that of its process, if the kernel has those.
    Ready,
    /// It has taken the job that it was sent.
    Took,
    /// It stands by no more, since its agent has ended. It runs a job that is on the way; otherwise it waits for the end of the
    /// connection.
    Leaves,
    /// Start an agent for its job. The descriptors are the agent's ends of its standard input, output and error.
    StartAgent {
        /// The node, by its name in the pool.
        node: String,
        /// The agent.
        agent: AgentSpec,
    },
    /// The ranks of its job have ended, and its output is delivered: the job's slots are free. The launcher stands by again, or exits.
    Ended,
}

/// See the module.
pub enum Front {
    /// The launcher itself.
    Own,
    /// A client.
    Client(Box<Client>),
}

/// A client and the controller of its pool.
pub struct Client {
    line: Packets,
    controller: Packets,
    lost_controller: Rc<Cell<bool>>,
    /// Whether the process has left the client's streams and directory, once the client has its exit code.
    left: Cell<Option<bool>>,
}

impl Front {
    /// Serves the client at the other end of `line`, in the pool of `controller`.
    pub fn client(line: Packets, controller: Packets) -> Self {
        if let Ok(line) = line.duplicate() {
            // A client that has disconnected needs no answer.
            let reported = move || drop(line.send(&encode(&FromJob::Reported), &[], false));
            stderr::on_error_written(Some(Arc::new(reported)));
        }
        Self::Client(Box::new(Client { line, controller, lost_controller: Rc::default(), left: Cell::new(None) }))
    }

    /// Returns the connection to a client.
    pub fn into_line(self) -> Option<Packets> {
        stderr::on_error_written(None);
        match self {
            Self::Own => None,
            Self::Client(client) => Some(client.line),
        }
    }

    /// Passes what a client and the controller ask for to `asked`. The job is ended if one of them is lost.
    pub(crate) fn listen(&self, asked: &mpsc::Sender<Asked>, tasks: &Tasks) -> io::Result<()> {
        let Self::Client(client) = self else { return Ok(()) };
        let (line, sender) = (WatchedPackets::of(client.line.duplicate()?)?, asked.clone());
        tasks.spawn("client", Span::current(), async move {
            while let Some(ToJob::Signal(signal)) = next(&line).await {
                ask(&sender, signal).await;
            }
            // The job of a lost client ends as if its terminal had hung up.
            let _ = sender.send(Asked::End(Signal::SIGHUP as i32)).await;
        });
        let (controller, sender) = (WatchedPackets::of(client.controller.duplicate()?)?, asked.clone());
        let lost = Rc::clone(&client.lost_controller);
        tasks.spawn("controller", Span::current(), async move {
            while let Some(ToLauncher::Signal(signal)) = next(&controller).await {
                ask(&sender, signal).await;
            }
            lost.set(true);
            let _ = sender.send(Asked::PoolLost).await;
        });
        Ok(())
    }

    /// Returns the keepers of the pool that a client's job runs in. They are asked through the controller.
    pub(crate) fn keepers(&self) -> io::Result<Option<Keepers>> {
        let Self::Client(client) = self else { return Ok(None) };
        let controller = client.controller.duplicate()?;
        Ok(Some(Keepers::new(move |host, label, dead_time, streams| {
            let agent = AgentSpec { label: label.to_owned(), dead_time };
            let message = FromLauncher::StartAgent { node: host.to_owned(), agent };
            controller.send(&encode(&message), &streams.each_ref().map(AsFd::as_fd), true)
        })))
    }

    /// Stops this process if `suspension` says so, and returns when it was continued. In a pool, tells the client that all ranks are
    /// stopped; the client then decides by its own signals.
    pub(crate) fn suspended(&self, suspension: &mut Suspension) {
        match self {
            Self::Own => suspension.act(),
            Self::Client(client) => client.tell(&FromJob::Suspended),
        }
    }

    /// Drops the connections, in a process that was forked: it must not close descriptors that it opens later under the same numbers.
    pub fn forget(&mut self) {
        stderr::on_error_written(None);
        *self = Self::Own;
    }

    /// Tells a client that output of ranks could not be written to one of its streams.
    pub(crate) fn output_cut(&self, why: String) {
        if let Self::Client(client) = self {
            client.tell(&FromJob::OutputCut(why));
        }
    }

    /// Returns whether the process that the user waits for is another one.
    pub(crate) fn is_client(&self) -> bool {
        matches!(self, Self::Client(_))
    }

    /// Tells a client the exit code, once, and the controller that the job's slots are free. Before that, waits until all texts for
    /// standard error were written, at most for `time`, and leaves the client's streams and directory. Returns the code.
    pub fn end(&self, code: u8, time: Duration) -> u8 {
        let Self::Client(client) = self else { return code };
        let code = if client.lost_controller.get() { exit::LOST } else { code };
        if client.left.get().is_none() {
            stderr::finish(time);
            client.left.set(Some(sys::leave_served().is_ok()));
            // First the controller: the client may submit another job at once. If it has disconnected, it needs no report.
            let _ = client.controller.send(&encode(&FromLauncher::Ended), &[], false);
            let unwritten = stderr::take_lost();
            if !unwritten.is_empty() {
                client.tell(&FromJob::Unwritten(unwritten));
            }
            client.tell(&FromJob::Ended(code));
            stderr::on_error_written(None);
            stderr::reopen();
        }
        code
    }

    /// Returns whether the process has left the streams and the directory of a client that has its exit code.
    pub fn has_left(&self) -> bool {
        matches!(self, Self::Client(client) if client.left.get() == Some(true))
    }
}

impl Client {
    fn tell(&self, message: &FromJob) {
        // A client that has disconnected, or reads nothing, needs no answer.
        let _ = self.line.send(&encode(message), &[], false);
    }
}

async fn ask(asked: &mpsc::Sender<Asked>, signal: i32) {
    if let Some(meaning) = Asked::of_signal(signal) {
        let _ = asked.send(meaning).await;
    }
}

/// Returns the next message; `None` once the connection has ended or broken.
async fn next<M: DeserializeOwned>(packets: &WatchedPackets) -> Option<M> {
    let packet = packets.receive().await.ok()??;
    decode(&packet.bytes).ok()
}
