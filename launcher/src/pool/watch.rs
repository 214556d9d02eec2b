//! Looks at a controller that has not answered, and words the report about its [`Silence`].

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nla::sys::{self, Packets};

use super::directory;
use super::silence::{LOOK_TIME, Seen, Silence};
use crate::run::stderr::{self, Kind};

/// See the module.
#[derive(Debug)]
pub(super) struct Watch {
    pool: String,
    began: Instant,
    looked: Instant,
    silence: Silence,
}

impl Watch {
    /// Watches the controller of a pool from now on. `waits` says what waits for its answer: "the job waits".
    pub(super) fn new(pool: &str, waits: &'static str) -> Self {
        let now = Instant::now();
        Self { pool: pool.to_owned(), began: now, looked: now, silence: Silence::new(waits) }
    }

    /// Notes an answer of the controller.
    pub(super) fn on_answer(&mut self) {
        self.silence.on_answer();
    }

    /// Returns how long to wait before the next look.
    pub(super) fn pause(&self) -> PollTimeout {
        PollTimeout::try_from(self.time_left()).unwrap_or(PollTimeout::MAX)
    }

    /// The same, as a time.
    pub(super) fn time_left(&self) -> Duration {
        // One millisecond more, so that `look` finds LOOK_TIME elapsed.
        LOOK_TIME.saturating_sub(self.looked.elapsed()) + Duration::from_millis(1)
    }

    /// Waits until the controller has sent something. Meanwhile reports its silence, as the program of this name.
    pub(super) fn wait(&mut self, controller: &Packets, program: &str) {
        while poll(&mut [PollFd::new(controller.as_fd(), PollFlags::POLLIN)], self.pause()) == Ok(0) {
            self.look().into_iter().for_each(|text| stderr::line(Kind::Report, &format!("{program}: {text}")));
        }
    }

    /// Looks at the controller if it is time. Returns a text for the user.
    pub(super) fn look(&mut self) -> Option<String> {
        if self.looked.elapsed() < LOOK_TIME {
            return None;
        }
        self.looked = Instant::now();
        let seen = directory::controller(&self.pool).map(|pid| Seen { pid, state: sys::process_state(pid) });
        self.silence.look(self.began.elapsed(), &self.pool, seen)
    }
}
