//! The output that the launcher writes out at the end. After a success it waits for the readers without a deadline. After any
//! other end, output that is not read is dropped: a reader that has stopped must hide neither the end nor its reason.

use std::time::Duration;

use super::{Phase, Root};
use crate::core::cause::Outcome;
use crate::core::ids::Time;
use crate::core::limits::UNREAD_MARGIN;

/// How far the launcher is with writing output.
#[derive(Debug, Default)]
pub(super) struct Flow {
    progress: u64,
    /// The time since which output has waited to be written without progress.
    stuck_since: Option<Time>,
}

impl Flow {
    pub(super) fn note(&mut self, now: Time, progress: u64, is_pending: bool) {
        if !is_pending {
            self.stuck_since = None;
        } else if progress != self.progress || self.stuck_since.is_none() {
            self.stuck_since = Some(now);
        }
        self.progress = progress;
    }

    /// The launcher runs again after it was stopped. Its readers may have been stopped as well.
    pub(super) fn on_continued(&mut self, now: Time) {
        if let Some(since) = &mut self.stuck_since {
            *since = now;
        }
    }
}

impl Root {
    /// How long output may wait for its reader after an end that is no success.
    pub(super) fn unread_time(&self) -> Duration {
        self.session.kill_grace + UNREAD_MARGIN
    }

    /// When output that is not read will be dropped; `None` if it is being read, or if the ranks succeeded.
    pub(super) fn unread_deadline(&self) -> Option<Time> {
        let has_succeeded = |outcome: &Outcome| matches!(outcome, Outcome::Success | Outcome::Survived { .. });
        match &self.phase {
            Phase::Flushing { outcome } if !has_succeeded(outcome) => Some(self.flow.stuck_since? + self.unread_time()),
            _ => None,
        }
    }
}
