//! The controller's part in clients: accepts them, queues their jobs, and answers their questions.

use std::collections::HashMap;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nla::bootstrap::agent_id;
use nla::keeper::node_state;
use nla::sys::{self, Packet, Packets, WatchedListener, WatchedPackets};
use nla::tasks::Tasks;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tracing::Span;

use super::{Actor, DESCRIPTORS_PER_JOB, Event, Waiting, until_left};
use crate::pool::message::{
    Ask, JOB_DESCRIPTORS, JobNumber, JobRefusal, JobState, NodeReport, PoolState, Request, ToClient, ToController,
    WORDS_CHARS_MAX, packed, unpacked,
};
use crate::pool::nodes::{Node, NodeNumber};
use crate::pool::schedule::{Input, Shown};
use crate::refusal::shown;

/// How long a client may take to send its request, and to read the answer.
const CLIENT_TIME: Duration = Duration::from_secs(10);
/// How long a report on the nodes of other hosts waits for their answers.
const STATES_TIME: Duration = Duration::from_millis(50);
/// The most jobs of a node that a report names.
const JOBS_SHOWN: usize = 100;
/// Clients whose requests are awaited at a time. Further ones wait until they are accepted.
const REQUESTS_MAX: usize = 256;

impl Actor {
    pub(super) fn answer(&mut self, client: Rc<WatchedPackets>, question: ToController, descriptors: Vec<OwnedFd>) {
        match question {
            ToController::Run(ask) => self.submit(client, ask, descriptors),
            ToController::Attach(job) => self.attach(client, job),
            // Answered before.
            ToController::Nodes(..) => {}
            ToController::Status => match &self.fleet {
                Some(fleet) => {
                    fleet.ask_for_states();
                    // The answer waits for the states of nodes that answer soon.
                    self.report_after("client", sleep(STATES_TIME), Event::Report(client));
                }
                None => self.report(client),
            },
            ToController::Signal(jobs, signal) => {
                let unknown = jobs.iter().copied().filter(|job| !self.schedule.knows(*job)).collect();
                self.handle(Input::Signal(jobs, signal));
                self.send_all(client, vec![ToClient::Unknown(unknown)]);
            }
            ToController::Stop { kills } => {
                if kills {
                    self.kill_launchers();
                }
                // The client then waits for the end of the connection, which ends with this process.
                let _ = client.try_send(&packed(&ToClient::Done), &[]);
                self.tasks.spawn("client", Span::current(), async move {
                    let _client = client;
                    pending::<()>().await;
                });
                self.handle(Input::Stop);
            }
        }
    }

    /// Sends the state of the pool.
    pub(super) fn report(&self, client: Rc<WatchedPackets>) {
        let pool = ToClient::Pool(self.state());
        let nodes = self.nodes().into_iter().map(ToClient::Node);
        let jobs = self.jobs().into_iter().map(ToClient::Job);
        self.send_all(client, std::iter::once(pool).chain(nodes).chain(jobs).chain([ToClient::Done]).collect());
    }

    /// Sends an answer, for as long as the client reads it.
    fn send_all(&self, client: Rc<WatchedPackets>, answer: Vec<ToClient>) {
        self.tasks.spawn("client", Span::current(), async move {
            for message in answer {
                if !matches!(timeout(CLIENT_TIME, client.send(&packed(&message))).await, Ok(Ok(()))) {
                    return;
                }
            }
        });
    }

    fn submit(&mut self, client: Rc<WatchedPackets>, ask: Ask, descriptors: Vec<OwnedFd>) {
        // This process may have been stopped since the job was sent.
        if client.has_ended() {
            return;
        }
        let ask = Ask { words: shown(&ask.words, WORDS_CHARS_MAX), ..ask };
        let job = self.next_job;
        self.next_job += 1;
        let mut descriptors = descriptors;
        if let Some(detached) = ask.detached {
            if let Err(error) = self.detach(job, detached, &mut descriptors) {
                let text = format!("the output of the job cannot be kept: {error}");
                let _ = client.try_send(&packed(&ToClient::Refused(JobRefusal::NotKept(text))), &[]);
                return;
            }
            self.waiting.insert(job, Waiting { client: Rc::clone(&client), descriptors });
            self.handle(Input::Submitted(job, ask));
            return self.accept_detached(&client, job);
        }
        self.report_after("client", until_left(Rc::clone(&client)), Event::Left(job));
        self.waiting.insert(job, Waiting { client, descriptors });
        self.handle(Input::Submitted(job, ask));
    }

    pub(super) fn withdraw(&mut self, job: JobNumber) {
        self.waiting.remove(&job);
        self.handle(Input::Withdrawn(job));
    }

    fn state(&self) -> PoolState {
        PoolState {
            name: self.name.clone(),
            pid: std::process::id(),
            host: sys::host_name(),
            age_ms: self.began.elapsed().as_millis() as u64,
            slots: self.schedule.nodes().all().map(|(_, node)| node.slots).sum(),
            ended: self.schedule.ended(),
            idle_ms: self.schedule.lifetime().idle.map(|idle| idle.as_millis() as u64),
            is_stopping: self.schedule.is_stopping(),
        }
    }

    fn nodes(&self) -> Vec<NodeReport> {
        let report = |(at, node): (NodeNumber, &Node)| NodeReport {
            name: node.name.clone(),
            slots: node.slots,
            busy: node.busy,
            jobs: self.schedule.jobs_on(at).take(JOBS_SHOWN).collect(),
            health: node.health.clone(),
            is_drained: node.is_drained,
            state: match &self.fleet {
                Some(fleet) => fleet.state(at),
                None => Some(node_state()),
            },
        };
        self.schedule.nodes().all().map(report).collect()
    }

    fn jobs(&self) -> Vec<JobState> {
        let pids: HashMap<JobNumber, u32> =
            self.launchers.values().filter_map(|launcher| launcher.job.zip(launcher.pid)).collect();
        let now = self.began.elapsed();
        let state = |Shown { job, slots, since, wait, is_returned, ask }: Shown<'_>| JobState {
            job,
            launcher: pids.get(&job).copied(),
            slots,
            priority: ask.priority,
            age_ms: now.saturating_sub(since).as_millis() as u64,
            wait,
            is_returned,
            words: ask.words.clone(),
        };
        self.schedule.jobs().map(state).collect()
    }
}

/// Accepts clients of this user and reads the request of each.
pub(super) async fn accept(listener: WatchedListener, events: mpsc::Sender<Event>, tasks: Tasks) {
    let room = Arc::new(Semaphore::new(requests_max(sys::open_files_limit())));
    let mut has_warned = false;
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let accepted = match listener.accept().await {
            Ok(accepted) => {
                has_warned = false;
                accepted
            }
            Err(error) => {
                if !std::mem::replace(&mut has_warned, true) {
                    tracing::warn!(%error, "no client can be accepted");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if !accepted.peer_user().is_ok_and(|user| user == nix::unistd::geteuid().as_raw()) {
            continue;
        }
        let events = events.clone();
        tasks.spawn("client", Span::current(), async move {
            if let Some((client, question, descriptors)) = first_request(accepted).await {
                let _ = events.send(Event::Asked(client, question, descriptors)).await;
            }
            drop(permit);
        });
    }
}

/// Returns how many requests are awaited at a time. Each may have the descriptors of a job, and together they may take a quarter
/// of all.
fn requests_max(open_files: u64) -> usize {
    (open_files / (4 * DESCRIPTORS_PER_JOB)).clamp(1, REQUESTS_MAX as u64) as usize
}

/// Reads the request of a client. Returns `None` if it is none, or does not arrive in time.
async fn first_request(client: Packets) -> Option<(Rc<WatchedPackets>, ToController, Vec<OwnedFd>)> {
    let client = Rc::new(WatchedPackets::of(client).ok()?);
    let packet = timeout(CLIENT_TIME, client.receive()).await.ok()?.ok()??;
    let request: Request = unpacked(&packet).ok()?;
    let Some(question) = request.question() else {
        let other = JobRefusal::OtherVersion(agent_id().to_string());
        let _ = client.try_send(&packed(&ToClient::Refused(other)), &[]);
        return None;
    };
    let question = question.ok()?;
    let Packet { descriptors, .. } = packet;
    let fits = match &question {
        ToController::Run(_) => descriptors.len() == JOB_DESCRIPTORS,
        _ => descriptors.is_empty(),
    };
    fits.then_some((client, question, descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_that_are_awaited_take_a_quarter_of_the_descriptors() {
        let job = DESCRIPTORS_PER_JOB;
        assert_eq!([0, 4 * job - 1, 4 * job, 12 * job, u64::MAX].map(requests_max), [1, 1, 1, 3, REQUESTS_MAX]);
    }
}
