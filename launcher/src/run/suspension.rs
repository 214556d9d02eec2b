//! Decides when a process stops itself after SIGTSTP.

use nix::sys::signal::{Signal, raise};

use crate::run::signals::Asked;

/// Decides whether this process stops itself. It does so after a SIGTSTP, when its ranks have stopped and no SIGCONT has arrived.
///
/// A stop signal makes the kernel drop a SIGCONT that waits to be read. So the caller reads all signals between
/// [`Self::on_suspended`] and [`Self::act`].
#[derive(Default, Debug)]
pub(crate) struct Suspension {
    is_asked: bool,
    is_due: bool,
}

impl Suspension {
    /// Takes note of a signal.
    pub(crate) fn on_asked(&mut self, asked: Asked) {
        match asked {
            Asked::Stop => self.is_asked = true,
            Asked::Continue => self.is_asked = false,
            Asked::End(_) | Asked::Forward(_) | Asked::Survey | Asked::PoolLost => {}
        }
    }

    /// The ranks are stopped.
    pub(crate) fn on_suspended(&mut self) {
        self.is_due = true;
    }

    /// Returns, once for each call of [`Self::on_suspended`], whether the process is to stop itself.
    pub(crate) fn take(&mut self) -> bool {
        std::mem::take(&mut self.is_due) && self.is_asked
    }

    /// Stops this process if it is to. In this case, returns when the process was continued.
    pub(crate) fn act(&mut self) {
        if self.take() {
            let _ = raise(Signal::SIGSTOP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_stops_once_its_ranks_are_stopped() {
        let mut suspension = Suspension::default();
        suspension.on_asked(Asked::Stop);
        assert!(!suspension.take());
        suspension.on_suspended();
        suspension.on_asked(Asked::Survey);
        assert!(suspension.take());
        assert!(!suspension.take());
    }

    #[test]
    fn a_process_that_is_continued_first_does_not_stop() {
        let mut suspension = Suspension::default();
        suspension.on_asked(Asked::Stop);
        suspension.on_asked(Asked::Continue);
        suspension.on_suspended();
        assert!(!suspension.take());
        suspension.on_asked(Asked::Stop);
        suspension.on_suspended();
        suspension.on_asked(Asked::Continue);
        assert!(!suspension.take());
        // A cancelled stop's report does not count for the next stop.
        suspension.on_asked(Asked::Stop);
        assert!(!suspension.take());
        suspension.on_suspended();
        assert!(suspension.take());
    }
}
