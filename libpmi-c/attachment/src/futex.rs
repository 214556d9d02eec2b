//! Waiting for a word in shared memory to change.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Waits while `word` is `old`, for at most `timeout`; may return early. The word's new value, if
/// there is one, with acquire semantics.
///
/// The futex is a shared one: who wakes it is another process, with a mapping of its own.
pub(crate) fn wait(word: &AtomicU32, old: u32, timeout: Duration) -> Option<u32> {
    let changed = || Some(word.load(Ordering::Acquire)).filter(|&now| now != old);
    if let Some(now) = changed() {
        return Some(now);
    }
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(timeout.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: timeout.subsec_nanos() as _,
    };
    // Whether it was woken, timed out, interrupted or too late makes no difference.
    // SAFETY: the kernel reads the word and the timeout, which both outlive the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, old, &raw const timeout) };
    changed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_at_once_when_the_word_has_changed_and_late_when_it_has_not() {
        let word = AtomicU32::new(7);
        assert_eq!(wait(&word, 6, Duration::from_secs(60)), Some(7));
        assert_eq!(wait(&word, 7, Duration::from_millis(1)), None);
    }

    #[test]
    fn is_woken() {
        let word = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                word.store(1, Ordering::Release);
                // SAFETY: only the address is looked at, of a word that outlives the call.
                unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
            });
            assert_eq!(wait(&word, 0, Duration::from_secs(60)), Some(1));
        });
    }
}
