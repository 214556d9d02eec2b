//! A timer as a descriptor.
//!
//! tokio's own timers wake a process several times before a time that is seconds away: they are sorted into slots of 1 ms,
//! 64 ms and 4 s, and the process wakes whenever one moves to a finer slot.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use tokio::io::Interest;

use super::readiness::{Watched, watch};

/// A timer that expires once each time it is set. Time in which the machine is suspended does not count.
#[derive(Debug)]
pub struct Timer(Watched);

impl Timer {
    /// Makes a timer that is not set. Call it inside a tokio runtime.
    pub fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: no memory is passed.
        let fd = Errno::result(unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) })?;
        // SAFETY: the descriptor is new and belongs to no other value.
        Ok(Self(watch(unsafe { OwnedFd::from_raw_fd(fd) })?))
    }

    /// Lets the timer expire after `time`, and not at the time that was set before.
    pub fn set(&self, time: Duration) -> io::Result<()> {
        let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // A time of zero would stop the timer.
        let tv_nsec = if time.is_zero() { 1 } else { time.subsec_nanos().into() };
        let at = libc::timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec };
        let once = libc::itimerspec { it_interval: zero, it_value: at };
        // SAFETY: the kernel reads `once`, and writes nothing.
        Errno::result(unsafe { libc::timerfd_settime(self.0.as_raw_fd(), 0, &once, std::ptr::null_mut()) })?;
        Ok(())
    }

    /// Waits until the timer has expired. Cancel-safe.
    pub async fn expired(&self) -> io::Result<()> {
        let read = |fd: &OwnedFd| Ok(nix::unistd::read(fd, &mut [0; 8])?);
        self.0.async_io(Interest::READABLE, read).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[tokio::test]
    async fn a_timer_expires_once_at_the_time_that_was_set_last() {
        let (short, long) = (Duration::from_millis(30), Duration::from_secs(60));
        let (timer, began) = (Timer::new().unwrap(), Instant::now());
        for first in [long, Duration::ZERO] {
            timer.set(first).unwrap();
            timer.set(short).unwrap();
            tokio::time::timeout(long, timer.expired()).await.expect("it expires").unwrap();
        }
        assert!(began.elapsed() >= 2 * short);
        assert!(tokio::time::timeout(short, timer.expired()).await.is_err(), "it is not set");
    }
}
