//! Defers the signals that end a process until its commands have ended and its temporary files are removed.

use std::sync::atomic::{AtomicI32, Ordering};

use libc::c_int;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, raise, sigaction};

use super::shell::disposition;

/// The signals that are held back.
const SIGNALS: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

/// The signal that arrived last while signals are held back; 0 if none did.
static ARRIVED: AtomicI32 = AtomicI32::new(0);

extern "C" fn record(signal: c_int) {
    ARRIVED.store(signal, Ordering::Relaxed);
}

/// Records SIGHUP, SIGINT, SIGQUIT and SIGTERM in place of their default action while it exists. Does not change what this process
/// ignores or handles in another way. If a signal has arrived, the last one ends the process at the drop.
///
/// Values do not nest: dropping the first one restores the default actions.
#[derive(Debug)]
pub struct EndSignalsHeld(Vec<Signal>);

impl EndSignalsHeld {
    /// Holds back the signals. Commands that are executed meanwhile have the default actions.
    pub fn begin() -> Self {
        let action = SigAction::new(SigHandler::Handler(record), SaFlags::SA_RESTART, SigSet::empty());
        let is_default = |signal: &Signal| disposition(*signal as i32) == Some(libc::SIG_DFL);
        // SAFETY: the handler only stores to an atomic.
        let hold = |signal: &Signal| unsafe { sigaction(*signal, &action) }.is_ok();
        Self(SIGNALS.into_iter().filter(|signal| is_default(signal) && hold(signal)).collect())
    }

    /// Returns whether one of the signals has arrived since signals are held back.
    pub fn has_arrived() -> bool {
        ARRIVED.load(Ordering::Relaxed) != 0
    }
}

impl Drop for EndSignalsHeld {
    fn drop(&mut self) {
        let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
        for signal in &self.0 {
            if disposition(*signal as i32) == Some(record as *const () as libc::sighandler_t) {
                // SAFETY: sets the default action.
                let _ = unsafe { sigaction(*signal, &default) };
            }
        }
        if self.0.is_empty() {
            return;
        }
        if let Ok(signal) = Signal::try_from(ARRIVED.swap(0, Ordering::Relaxed)) {
            // Fails for no signal that exists.
            let _ = raise(signal);
        }
    }
}
