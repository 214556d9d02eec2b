//! The agent's watch over its guardian.

use std::io;
use std::time::Duration;

use tokio::io::Interest;
use tokio::time::{Instant, sleep_until};

use crate::core::Input;
use crate::link::Ticks;
use crate::sys::{self, DirectoryNote, GuardianLink, ShmNote, Stop, Watched};

/// Watches the guardian, and shows it that the agent runs.
pub(super) struct Guarding {
    link: GuardianLink,
    /// Readable once the guardian has exited.
    end: Watched,
    is_guarded: bool,
    /// When the guardian was last looked at.
    looked: Instant,
    /// For how long it has not run.
    silent: Duration,
    stop: Stop,
}

impl Guarding {
    pub(super) fn new(link: GuardianLink) -> io::Result<Self> {
        let end = sys::watch_end(link.as_fd().try_clone_to_owned()?)?;
        Ok(Self { link, end, is_guarded: true, looked: Instant::now(), silent: Duration::ZERO, stop: Stop::default() })
    }

    /// Shows the guardian that this process runs. Fails if the guardian is dead.
    pub(super) fn alive(&self) -> io::Result<()> {
        self.link.alive()
    }

    pub(super) fn stage_note(&self) -> DirectoryNote {
        self.link.stage_note()
    }

    pub(super) fn pmix_note(&self) -> DirectoryNote {
        self.link.pmix_note()
    }

    pub(super) fn shm_note(&self) -> ShmNote {
        self.link.shm_note()
    }

    /// Waits until the guardian has ended or the next look is due. Cancel-safe.
    pub(super) async fn due(&mut self) {
        let (end, is_guarded, next) = (&mut self.end, self.is_guarded, self.looked + self.stop.next_look());
        tokio::select! {
            ready = end.ready(Interest::PRIORITY), if is_guarded => {
                // Before the read, which continues until the link is empty.
                if let Ok(mut guard) = ready {
                    guard.clear_ready();
                }
            }
            () = sleep_until(next), if is_guarded => {}
            else => std::future::pending().await,
        }
    }

    /// Shows the guardian that this process runs, and checks the guardian. Returns the guardian's loss, once. A stopped guardian
    /// is lost after a second, a starved one after the stop time. Time in which this process
    /// did not run does not count: a suspended machine runs neither.
    pub(super) fn look(&mut self, ticks: &Ticks) -> Option<Input> {
        if !self.is_guarded {
            // The guardian is lost, but its process may exist until another agent or the launcher kills it.
            let _ = self.link.alive();
            return None;
        }
        if self.link.alive().is_err() {
            self.is_guarded = false;
            return Some(Input::GuardianLost);
        }
        let elapsed = self.looked.elapsed();
        self.looked = Instant::now();
        let (period, time) = (ticks.period_max(), ticks.liveness().stop_time);
        self.silent = if self.link.has_run() { Duration::ZERO } else { self.silent + elapsed.min(period) };
        let is_stopped = self.stop.is_over(self.link.is_stopped(), elapsed);
        if !is_stopped && self.silent < time + period {
            return None;
        }
        self.is_guarded = false;
        self.link.kill();
        Some(Input::GuardianSilent)
    }
}
