//! The controller's part in launchers: lets them stand by, passes jobs to them, and notices their ends.

use std::future::ready;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nla::sys::{self, FORKED_EXIT_TIME, Packets, WatchedPackets};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};
use tracing::Span;

use super::{Actor, Event, LauncherNumber};
use crate::pool::fleet::Channel;
use crate::pool::fork_server::FORK;
use crate::pool::message::{JobNumber, JobRefusal, ToClient, memory_file, packed, unpacked};
use crate::pool::nodes::{NodeNumber, Shares};
use crate::pool::schedule::Input;
use crate::run::front::{FromLauncher, ToLauncher};

/// The longest time that a launcher may take to stand by, and to take a job.
const ANSWER_TIME: Duration = Duration::from_secs(10);
/// The pause between two looks at a launcher that has not answered: one that is stopped gets no more time.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// How long the fork server may take to exit at the end of the pool.
const EXIT_TIME: Duration = FORKED_EXIT_TIME.saturating_add(Duration::from_secs(1));

/// A launcher.
pub(super) struct Launcher {
    pub(super) packets: Rc<WatchedPackets>,
    /// Its pid, once it is forked.
    pub(super) pid: Option<u32>,
    /// A descriptor of its process, once it has stood by, if its kernel has those.
    process: Option<OwnedFd>,
    /// It stands by, or has done so.
    has_stood_by: bool,
    stands_by: bool,
    pub(super) job: Option<JobNumber>,
    /// The channels to the agents of its job.
    channels: Vec<Channel>,
    /// The task that receives its messages.
    follows: AbortHandle,
}

impl Launcher {
    /// Kills the process.
    fn kill(&self) {
        match (&self.process, self.pid) {
            (Some(process), _) => drop(sys::signal_by(process.as_fd(), Signal::SIGKILL as i32)),
            // Its connection has not ended, so the pid is its own, or was until a moment ago.
            (None, Some(pid)) => drop(kill(Pid::from_raw(pid.cast_signed()), Signal::SIGKILL)),
            (None, None) => {}
        }
    }
}

impl Actor {
    pub(super) fn add_standby(&mut self) {
        let number = self.next_launcher;
        self.next_launcher += 1;
        let forked = Packets::pair().and_then(|[own, other]| {
            self.forks.try_send(FORK, &[other.as_fd()])?;
            WatchedPackets::of(own)
        });
        match forked {
            Ok(packets) => {
                let packets = Rc::new(packets);
                let follow = follow_launcher(number, Rc::clone(&packets), self.events.clone());
                let follows = self.tasks.spawn("launcher", Span::current(), follow).abort_handle();
                self.launchers.insert(
                    number,
                    Launcher {
                        packets,
                        pid: None,
                        process: None,
                        has_stood_by: false,
                        stands_by: false,
                        job: None,
                        channels: Vec::new(),
                        follows,
                    },
                );
                self.look_later(number, None, Instant::now());
            }
            Err(error) => {
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, "no launcher can be started");
                }
                // Report it as an event: the caller is still carrying out actions.
                self.report_after("launcher", ready(()), Event::NoLauncher);
            }
        }
    }

    /// Lets a launcher that stands by exit: its connection ends.
    pub(super) fn dismiss(&mut self) {
        let idle = self.launchers.iter().find(|(_, launcher)| launcher.stands_by);
        if let Some(number) = idle.map(|(number, _)| *number) {
            self.forget_launcher(number);
        }
    }

    /// Passes a job to a launcher that stands by.
    pub(super) fn start(&mut self, job: JobNumber, shares: &Shares) {
        let Some(waiting) = self.waiting.remove(&job) else { return };
        if !self.detached.contains_key(&job) && waiting.client.has_ended() {
            // The event that says so has not been handled. This is one, too: the caller is still carrying out actions.
            return self.report_after("unwanted", ready(()), Event::NotWanted(job));
        }
        let slots = shares.values().sum();
        let nodes = self.schedule.nodes();
        let hosts = self.fleet.as_ref().and_then(|_| {
            let line = |(at, slots): (&NodeNumber, &u32)| {
                let gres = nodes.devices_of(*at, job);
                let gres = if gres.is_empty() { String::new() } else { format!(" gres={gres}") };
                Some(format!("{}:{slots}{gres}", nodes.node(*at)?.name))
            };
            memory_file(shares.iter().filter_map(line).collect::<Vec<_>>().join("\n").as_bytes()).ok()
        });
        let here = shares.keys().next().filter(|_| self.fleet.is_none());
        let gres = here.map(|at| nodes.devices_of(*at, job)).unwrap_or_default();
        let order = packed(&ToLauncher::Run { job, slots, gres });
        let descriptors: Vec<BorrowedFd<'_>> = waiting.descriptors.iter().chain(&hosts).map(AsFd::as_fd).collect();
        let ready = self.launchers.iter_mut().find(|(_, launcher)| launcher.stands_by);
        let sent = ready.map(|(number, launcher)| {
            (launcher.stands_by, launcher.job) = (false, Some(job));
            (*number, launcher.packets.try_send(&order, &descriptors))
        });
        match sent {
            Some((number, Ok(()))) => {
                self.handed.insert(job, waiting);
                self.look_later(number, Some(job), Instant::now());
            }
            // It has exited, which its connection will say.
            Some((number, Err(error))) if has_ended(&error) => {
                self.forget_launcher(number);
                self.waiting.insert(job, waiting);
                self.handle(Input::NotTaken(job));
            }
            failed => {
                self.refuse_detached(job, &JobRefusal::NoLauncher);
                let _ = waiting.client.try_send(&packed(&ToClient::Refused(JobRefusal::NoLauncher)), &[]);
                // The launcher exits when its connection ends.
                failed.into_iter().for_each(|(number, _)| self.forget_launcher(number));
                self.handle(Input::Ended(job));
            }
        }
    }

    /// Checks after a pause whether a launcher has taken the job sent to it at `since`. Without a job, checks whether a launcher that
    /// was asked for at that time is ready.
    fn look_later(&self, number: LauncherNumber, job: Option<JobNumber>, since: Instant) {
        self.report_after("launcher", sleep(LOOK_PAUSE), Event::Look(number, job, since));
    }

    /// Replaces a launcher that is stopped or has not answered in time.
    pub(super) fn look_at(&mut self, number: LauncherNumber, job: Option<JobNumber>, since: Instant) {
        let Some(launcher) = self.launchers.get(&number) else { return };
        let has_answered = match job {
            Some(job) => launcher.job != Some(job) || !self.handed.contains_key(&job),
            None => launcher.has_stood_by,
        };
        if has_answered {
            return;
        }
        let is_stopped = launcher.pid.is_some_and(|pid| sys::process_state(pid) == Some(b'T'));
        if !is_stopped && since.elapsed() < ANSWER_TIME {
            return self.look_later(number, job, since);
        }
        // It must not run the job when it goes on.
        launcher.kill();
        self.forget_launcher(number);
        match job {
            Some(job) => self.run_again(job),
            None => self.handle(Input::StandbyLost { was_ready: false }),
        }
    }

    /// Puts a job that no launcher has taken back into its place in the queue.
    fn run_again(&mut self, job: JobNumber) {
        if let Some(waiting) = self.handed.remove(&job) {
            self.waiting.insert(job, waiting);
            self.handle(Input::NotTaken(job));
        }
    }

    /// Closes the connection to a launcher.
    fn forget_launcher(&mut self, number: LauncherNumber) {
        if let Some(launcher) = self.launchers.remove(&number) {
            launcher.follows.abort();
        }
    }

    /// Kills the launchers of all jobs: their agents end the ranks.
    pub(super) fn kill_launchers(&self) {
        self.launchers.values().filter(|launcher| launcher.job.is_some()).for_each(Launcher::kill);
    }

    /// Lets all launchers exit, and waits until they and what they have started have, at most for [`EXIT_TIME`]: none has a job.
    pub(super) async fn leave_launchers(&mut self) {
        for launcher in std::mem::take(&mut self.launchers).into_values() {
            launcher.follows.abort();
        }
        // The fork server exits after those that it has forked.
        let _ = self.forks.end_sending();
        let _ = timeout(EXIT_TIME, self.forks.receive()).await;
    }

    pub(super) fn on_launcher(&mut self, number: LauncherNumber, message: FromLauncher, descriptors: Vec<OwnedFd>) {
        match message {
            FromLauncher::Ended => {
                let Some(launcher) = self.launchers.get_mut(&number) else { return };
                let channels = std::mem::take(&mut launcher.channels);
                if let Some(job) = launcher.job.take() {
                    self.handle(Input::Ended(job));
                }
                self.close(channels);
            }
            FromLauncher::Took => {
                let job = self.launchers.get(&number).and_then(|launcher| launcher.job);
                if let Some((job, waiting)) = job.and_then(|job| Some((job, self.handed.remove(&job)?))) {
                    // The end of the line reports a launcher that dies from now on.
                    let _ = waiting.client.try_send(&packed(&ToClient::Started(job)), &[]);
                }
            }
            FromLauncher::StartAgent { node, agent } => {
                let Ok(streams) = <[OwnedFd; 3]>::try_from(descriptors) else { return };
                let (Some(fleet), Some(launcher)) = (&mut self.fleet, self.launchers.get_mut(&number)) else { return };
                launcher.channels.extend(fleet.start_agent(&node, agent, streams));
            }
            FromLauncher::Leaves => {
                // A job that was passed to it before this message is run by it.
                let stands_by = self.launchers.get(&number).is_some_and(|launcher| launcher.stands_by);
                if stands_by {
                    self.forget_launcher(number);
                    self.handle(Input::StandbyLost { was_ready: true });
                }
            }
            FromLauncher::Forked { pid } => {
                if let Some(launcher) = self.launchers.get_mut(&number) {
                    launcher.pid = Some(pid);
                }
            }
            FromLauncher::Ready => {
                let Some(launcher) = self.launchers.get_mut(&number) else { return };
                let is_new = !std::mem::replace(&mut launcher.has_stood_by, true);
                launcher.process = descriptors.into_iter().next().or(launcher.process.take());
                if std::mem::replace(&mut launcher.stands_by, true) {
                    return;
                }
                self.has_warned = false;
                self.handle(if is_new { Input::StandbyReady } else { Input::StandbyBack });
            }
        }
    }

    pub(super) fn on_launcher_lost(&mut self, number: LauncherNumber) {
        let mut launcher = self.launchers.remove(&number);
        let channels = launcher.as_mut().map(|launcher| std::mem::take(&mut launcher.channels));
        self.close(channels.unwrap_or_default());
        match launcher {
            // It had not taken the job.
            Some(Launcher { job: Some(job), .. }) if self.handed.contains_key(&job) => self.run_again(job),
            Some(Launcher { job: Some(job), .. }) => self.handle(Input::Ended(job)),
            Some(Launcher { stands_by: true, .. }) => self.handle(Input::StandbyLost { was_ready: true }),
            // After its job.
            Some(Launcher { has_stood_by: true, .. }) => {}
            Some(Launcher { has_stood_by: false, .. }) => self.handle(Input::StandbyLost { was_ready: false }),
            // It was already removed.
            None => {}
        }
    }

    fn close(&self, channels: Vec<Channel>) {
        if let Some(fleet) = &self.fleet {
            channels.into_iter().for_each(|channel| fleet.close(channel));
        }
    }
}

/// Returns whether an error of sending means that the other end is closed.
fn has_ended(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset)
}

async fn follow_launcher(number: LauncherNumber, packets: Rc<WatchedPackets>, events: mpsc::Sender<Event>) {
    while let Ok(Some(packet)) = packets.receive().await {
        let Ok(message) = unpacked(&packet) else { break };
        if events.send(Event::Launcher(number, message, packet.descriptors)).await.is_err() {
            return;
        }
    }
    let _ = events.send(Event::LauncherLost(number)).await;
}
