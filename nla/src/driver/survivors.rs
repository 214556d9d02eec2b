//! Ends what lost agents have left on this machine, in a thread: /proc/PID/environ may block, and a guardian takes its time.

use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::core::{AgentId, GuardianAt};
use crate::sys;
use crate::tasks::Tasks;
use crate::wire::SessionId;

/// The environment variable of ranks that names their session and agent.
const VARIABLE: &str = "SCELA_AGENT";
/// How long a guardian that was continued may take to end its agent, and how long its agent may take then.
const GUARDIAN_TIME: Duration = Duration::from_secs(2);
/// How long the processes of a lost agent are searched for and killed.
const SEARCH_TIME: Duration = Duration::from_secs(1);
/// How long the end of this process waits for all of that.
const END_TIME: Duration = Duration::from_secs(5);

/// Returns the variable of the ranks of an agent, and its value.
pub(super) fn mark(session: SessionId, agent: AgentId) -> (&'static str, String) {
    (VARIABLE, format!("{session}-{agent}"))
}

/// The thread, which is started for the first lost agent.
pub(super) struct Survivors {
    session: SessionId,
    tasks: Tasks,
    /// Each lost agent is in the queue twice at most.
    queue: Option<mpsc::Sender<Lost>>,
    /// Closes when the thread has ended.
    done: Option<oneshot::Receiver<()>>,
}

/// A lost agent: its guardian, and the entry in the environment of its ranks.
struct Lost {
    guardian: GuardianAt,
    mark: String,
}

impl Survivors {
    pub(super) fn new(session: SessionId, tasks: Tasks) -> Self {
        Self { session, tasks, queue: None, done: None }
    }

    /// Begins to end the guardian of an agent and what is left of its ranks. Returns false if they are on another machine.
    pub(super) fn end(&mut self, lost: AgentId, guardian: GuardianAt) -> bool {
        if sys::machine() != Some(guardian.machine) {
            return false;
        }
        tracing::debug!(agent = %lost, ?guardian, "ending what a lost agent has left");
        let (name, value) = mark(self.session, lost);
        let lost = Lost { guardian, mark: format!("{name}={value}") };
        if self.queue.is_none() {
            self.start();
        }
        // The thread ends only when the queue is closed, or after a panic, which is reported.
        let _ = self.queue.as_ref().map(|queue| queue.send(lost));
        true
    }

    fn start(&mut self) {
        let (queue, incoming) = mpsc::channel();
        let (working, done) = oneshot::channel::<()>();
        let begun = self.tasks.spawn_thread("survivors", move || {
            let _working = working;
            sys::leave_exit_signals();
            while let Ok(first) = incoming.recv() {
                let all: Vec<Lost> = std::iter::once(first).chain(incoming.try_iter()).collect();
                end_all(all);
            }
        });
        match begun {
            Ok(_) => (self.queue, self.done) = (Some(queue), Some(done)),
            // The limit that forbids it has a report of its own.
            Err(error) => tracing::debug!(%error, "no thread to end what lost agents have left"),
        }
    }

    /// Waits until everything is done, but not for ever.
    pub(super) async fn ended(&mut self) {
        self.queue = None;
        if let Some(done) = self.done.take() {
            // No value is sent.
            let _ = timeout(END_TIME, done).await;
        }
    }
}

fn end_all(all: Vec<Lost>) {
    let guardians: Vec<_> = all.iter().map(|lost| (lost.guardian.guardian, lost.guardian.agent)).collect();
    sys::end_guardians(&guardians, GUARDIAN_TIME);
    let marks: Vec<String> = all.into_iter().map(|lost| lost.mark).collect();
    let killed = sys::end_marked(&marks, SEARCH_TIME);
    tracing::debug!(?guardians, killed, "ended what lost agents have left");
}
