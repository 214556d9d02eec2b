//! Waits for a word in shared memory to change.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Waits while `word` is `old`, for at most `timeout`; may return early. Returns the word's new value,
/// if it has changed, with acquire semantics.
///
/// The futex is not a private one: the process that wakes it has a mapping of its own.
pub(crate) fn wait(word: &AtomicU32, old: u32, timeout: Duration) -> Option<u32> {
    let changed = || Some(word.load(Ordering::Acquire)).filter(|&now| now != old);
    if let Some(now) = changed() {
        return Some(now);
    }
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos() as _,
    };
    // Woken, timed out, interrupted or called too late: `changed` decides in every case.
    // SAFETY: the kernel reads the word and the timeout, which both outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, old, &raw const timeout) };
    changed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_returns_on_a_changed_word_and_on_the_timeout() {
        let word = AtomicU32::new(7);
        assert_eq!(wait(&word, 6, Duration::from_secs(60)), Some(7));
        assert_eq!(wait(&word, 7, Duration::from_millis(1)), None);
    }

    #[test]
    fn a_waiter_is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.store(1, Ordering::Release);
                // SAFETY: the kernel uses only the address, of a word that outlives the call.
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
            });
            assert_eq!(wait(&word, 0, Duration::from_secs(60)), Some(1));
        });
    }
}
