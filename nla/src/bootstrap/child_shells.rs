//! The remote shells that an agent has opened (`--no-ports`): each carries the link to one of its children.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::mpsc;

use super::protocol::{BootCommand, BootOrder, BootReport, TargetReport};
use super::starter::Starter;
use crate::core::{AgentId, Subtree};
use crate::link::{Accepted, Clock};
use crate::sys::Ended;
use crate::tasks::Tasks;
use crate::wire::TreePosition;

/// The remote shells to an agent's children.
pub(crate) struct ChildShells {
    starter: Starter,
    reports: mpsc::UnboundedReceiver<TargetReport>,
}

impl ChildShells {
    /// Opens the remote shells that the order asks for; `None` if it asks for none.
    pub(super) fn open(order: &BootOrder, tasks: Tasks) -> Option<Self> {
        // Bounded by the targets below: each makes at most three reports.
        let (events, reports) = mpsc::unbounded_channel();
        let starter = Starter::below(order, events, tasks)?;
        Some(Self { starter, reports })
    }

    /// Waits for the next report. Cancel safe.
    pub(super) async fn next(&mut self) -> TargetReport {
        match self.reports.recv().await {
            Some(report) => report,
            // The starter, which holds the sender, lives as long as this.
            None => std::future::pending().await,
        }
    }

    /// Sends a command to the agent at a target.
    pub(super) fn tell(&self, target: u32, command: BootCommand) {
        self.starter.tell(target, command);
    }

    /// Tells the children of `here` to join over their remote shells. Their links go to `joined`.
    pub(crate) fn admit(&self, position: TreePosition, here: Subtree, clock: Clock, joined: mpsc::Sender<Accepted>) {
        self.starter.take_links(clock, joined);
        for child in here.children() {
            // In this tree each agent has the number of its target.
            self.starter.admit(child.head().0, TreePosition { agent: child.head(), ..position });
        }
    }

    /// Waits for a child that does not join, and the reason. Cancel safe.
    pub(crate) async fn next_failure(&mut self) -> (AgentId, String) {
        loop {
            if let (target, BootReport::NotStarted(failure)) = self.next().await {
                return (AgentId(target), failure.words);
            }
        }
    }

    /// Returns the pids of the remote shells' processes that have not been reaped.
    pub(crate) fn processes(&self) -> BTreeSet<u32> {
        self.starter.processes()
    }

    /// See [`Starter::note_ended`].
    pub(crate) fn note_ended(&self, pid: u32, ended: Ended) -> bool {
        self.starter.note_ended(pid, ended)
    }

    /// See [`Starter::wait`].
    pub(crate) async fn wait(&mut self, timeout: Duration) {
        let left = self.starter.wait(timeout).await;
        if left > 0 {
            tracing::warn!(left, "remote shells have not exited");
        }
    }
}
