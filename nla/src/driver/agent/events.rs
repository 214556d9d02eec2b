//! Waits for everything that happens to an agent.

use std::future::{pending, ready};
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until};

use super::AgentDriver;
use crate::core::AgentId;
use crate::driver::pmix::PmixEvent;
use crate::driver::serving::RankEvent;
use crate::driver::shutdown::{SWEEP_PAUSE, Sweep};
use crate::driver::startup::Startup;
use crate::link::{Accepted, LinkEvent};
use crate::sys::SignalSender;

/// Everything that an agent waits for.
pub(super) enum Event {
    /// Messages and losses of links, in order.
    Links(Vec<(AgentId, LinkEvent)>),
    /// Requests and exits of ranks, in order.
    Ranks(Vec<RankEvent>),
    /// The process has received SIGCHLD.
    Reaped,
    /// SIGCHLD need not wait any longer.
    ReapDue,
    /// The process has received signals.
    Told(Vec<(i32, SignalSender)>),
    /// A child has authenticated itself.
    Joined(Accepted),
    /// The link to an ancestor is up, or no ancestor accepts this agent.
    Rejoined(Option<Accepted>),
    /// The directory with all files of the session, or the reason why they are missing.
    Staged(Result<PathBuf, String>),
    /// A child could not be started, with the reason.
    ChildFailed(AgentId, String),
    /// A child's output has ended.
    OutputEnded,
    /// A step of the sweep is complete.
    Sweep(Sweep),
    /// The next search for descendants that are left is due.
    SweepDue,
    /// The guardian has exited, or is stopped.
    GuardianDue,
    /// Regular work is due. If this process did not run for longer than between two ticks, for how long.
    Tick(Option<Duration>),
    /// The core's alarm has expired.
    Alarm,
    /// The spawner thread has results.
    Spawned,
    /// The start of a rank has taken long, or was cancelled.
    Stalled,
    /// The process that serves PMIx has sent a message, or was lost.
    Pmix(PmixEvent),
    /// Ranks wait to be released, and no other event is due.
    ReleaseDue,
    /// Ranks remain to be started, and no other event is due.
    StartDue,
}

impl AgentDriver {
    /// Waits for the next event. Of those that are due, it is the first one in the order below.
    pub(super) async fn next_event(&mut self) -> Event {
        let is_starting = self.startup.as_ref().is_some_and(Startup::is_busy);
        let awaits_former = self.startup.as_ref().is_some_and(Startup::awaits_former);
        let may_reap = self.next_reap <= Instant::now();
        tokio::select! {
            biased;
            // First: ranks that ask without a pause must not keep this process from showing that it runs.
            stop = self.pulse.beat() => Event::Tick(stop),
            events = self.links.events.next_turn() => Event::Links(events),
            events = self.ranks.next_turn() => Event::Ranks(events),
            _ = self.reaped.recv(), if may_reap => Event::Reaped,
            () = sleep_until(self.next_reap), if !may_reap => Event::ReapDue,
            signals = self.told.next() => Event::Told(signals),
            Some(accepted) = self.joined.recv() => Event::Joined(accepted),
            staged = self.staging.finished() => Event::Staged(staged),
            Some(found) = async { self.rejoined.as_mut()?.await.ok() } => Event::Rejoined(found),
            Some((child, why)) = async { Some(self.child_starter.as_mut()?.next_failure().await) } =>
                Event::ChildFailed(child, why),
            () = self.children.output_ended.notified() => Event::OutputEnded,
            next = self.sweep.next() => Event::Sweep(next),
            () = self.guarding.due() => Event::GuardianDue,
            () = self.alarm.due() => Event::Alarm,
            () = async { match &self.startup { Some(startup) => startup.finished().await, None => pending().await } } =>
                Event::Spawned,
            () = async { match &self.startup { Some(startup) => startup.stalled().await, None => pending().await } } =>
                Event::Stalled,
            event = async { match &mut self.pmix { Some(pmix) => pmix.next().await, None => pending().await } } =>
                Event::Pmix(event),
            () = ready(()), if !self.releases.is_empty() => Event::ReleaseDue,
            () = ready(()), if is_starting => Event::StartDue,
            () = sleep(SWEEP_PAUSE), if self.sweep.is_killing() => Event::SweepDue,
            () = sleep(SWEEP_PAUSE), if awaits_former => Event::Reaped,
        }
    }
}
