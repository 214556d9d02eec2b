//! An epoll set of thousands of descriptors that one thread waits for.
//!
//! tokio itself takes several hundred bytes for each descriptor, and more for the task that waits for it.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;

/// The most descriptors that one wait reports.
const REPORTED_MAX: usize = 64;
/// The key of the waker.
const WAKER: u64 = u64::MAX;

/// Descriptors that are waited for until they can be read. Each has a key.
#[derive(Debug)]
pub struct EpollSet {
    epoll: Epoll,
    waker: Arc<EventFd>,
}

/// Ends the wait of the thread that waits for an [`EpollSet`], or its next one.
#[derive(Clone, Debug)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// Ends the wait.
    pub fn wake(&self) {
        // Fails only if 2^64 wakes were not seen.
        let _ = self.0.write(1);
    }

    /// Returns whether it was used since the last call.
    #[cfg(test)]
    pub fn was_used(&self) -> bool {
        self.0.read().is_ok()
    }
}

impl EpollSet {
    /// Creates an empty set.
    pub fn new() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let waker = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&waker, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, WAKER))?;
        Ok(Self { epoll, waker: Arc::new(waker) })
    }

    /// Returns what ends a wait for this set.
    pub fn waker(&self) -> Waker {
        Waker(Arc::clone(&self.waker))
    }

    /// Adds a descriptor: it is reported now if it can be read, and again each time when more can be read.
    pub fn add(&self, fd: impl AsFd, key: usize) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, key as u64))?)
    }

    /// Adds a descriptor: it is reported now if it can be written, and again each time when it has room after it was full.
    pub fn add_writer(&self, fd: impl AsFd, key: usize) -> io::Result<()> {
        Ok(self.epoll.add(fd, EpollEvent::new(EpollFlags::EPOLLOUT | EpollFlags::EPOLLET, key as u64))?)
    }

    /// Removes a descriptor. Closing it is not enough while a process that is just being started has a copy of it.
    pub fn remove(&self, fd: impl AsFd) -> io::Result<()> {
        Ok(self.epoll.delete(fd)?)
    }

    /// Waits until descriptors can be read or have lost their last writer, the waker is used, or `time` has passed.
    /// Appends the keys of descriptors to `ready`, each with whether no writer is left.
    pub fn wait(&self, time: Option<Duration>, ready: &mut Vec<(usize, bool)>) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); REPORTED_MAX];
        let time = time.map(TimeSpec::from_duration);
        let time_ptr = time.as_ref().map_or(std::ptr::null(), |time| std::ptr::from_ref(time.as_ref()));
        // SAFETY: EpollEvent is a transparent wrapper of epoll_event. The kernel writes at most the events of this array,
        // and reads the time if there is one. epoll_wait has no unit shorter than a millisecond.
        let count = unsafe {
            libc::epoll_pwait2(
                self.epoll.0.as_raw_fd(),
                events.as_mut_ptr().cast(),
                REPORTED_MAX as libc::c_int,
                time_ptr,
                std::ptr::null(),
            )
        };
        match Errno::result(count) {
            Ok(count) => {
                let reported = events[..count as usize].iter().filter(|event| event.data() != WAKER);
                ready.extend(reported.map(|event| {
                    (event.data() as usize, event.events().intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR))
                }));
                Ok(())
            }
            Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn ready(set: &EpollSet) -> Vec<(usize, bool)> {
        let mut ready = Vec::new();
        set.wait(Some(Duration::from_secs(20)), &mut ready).expect("epoll works");
        ready
    }

    #[test]
    fn bytes_and_ends_are_reported_once_and_the_waker_ends_a_wait() {
        let set = EpollSet::new().expect("descriptors are left");
        let [(first, mut to_first), (second, mut to_second)] = [(); 2].map(|()| std::io::pipe().expect("a pipe"));
        to_first.write_all(b"x").expect("the pipe has room");
        set.add(&first, 7).expect("it can be added");
        set.add(&second, 9).expect("it can be added");
        assert_eq!(ready(&set), [(7, false)]);
        set.waker().wake();
        assert_eq!(ready(&set), [], "only the waker ends this wait");
        to_second.write_all(b"y").expect("the pipe has room");
        assert_eq!(ready(&set), [(9, false)]);
        set.remove(&second).expect("it can be removed");
        drop((to_first, to_second));
        assert_eq!(ready(&set), [(7, true)]);
    }
}
