//! Marks of processors that are seen by all sessions of this user on the machine.
//!
//! A mark is a lock of one byte of the directory /dev/shm, at an offset made of the numbers of the user, the session and the
//! processor. It ends with the process that has it, needs no file of its own, and a process can have any number of them with
//! one descriptor. Processes with another /dev/shm, such as those of another container, do not see it. Other users can forge
//! marks of this user, so a mark only causes a message, or leaves ranks unbound that the user has not asked to bind.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// Processors of a session.
const CPUS: i64 = 1 << 14;
/// Sessions of a user, by the numbers that [`CpuMarks::new`] gets.
const SESSIONS: i64 = 1 << 16;
/// The most marks of other sessions that are looked at. One stands for a range of processors.
const MARKS_MAX: usize = 4096;

/// The marks of this process. They end when it is dropped.
#[derive(Debug)]
pub struct CpuMarks {
    place: File,
    user: i64,
    session: i64,
}

impl CpuMarks {
    /// Opens /dev/shm without setting a mark. The marks of all processes with the same `session` belong together.
    pub fn new(session: u16) -> io::Result<Self> {
        let place = OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open("/dev/shm")?;
        // SAFETY: geteuid takes nothing.
        let user = i64::from(unsafe { libc::geteuid() }) * SESSIONS * CPUS;
        Ok(Self { place, user, session: user + i64::from(session) * CPUS })
    }

    /// Marks the processors from `first` to `last`.
    pub fn set(&self, first: u32, last: u32) -> io::Result<()> {
        let begin = self.session + i64::from(first);
        self.lock(libc::F_OFD_SETLK, libc::F_RDLCK, begin, self.session + i64::from(last) + 1).map(drop)
    }

    /// Returns ranges of processors, both ends included, that other sessions have marked; at most 4096.
    pub fn of_others(&self) -> io::Result<Vec<(u32, u32)>> {
        let mut marked = Vec::new();
        let [before, after] = [(self.user, self.session), (self.session + CPUS, self.user + SESSIONS * CPUS)];
        for (begin, end) in [before, after] {
            let mut from = begin;
            while from < end && marked.len() < MARKS_MAX {
                // A lock for writing would be refused by any mark. It is only asked for.
                let found = self.lock(libc::F_OFD_GETLK, libc::F_WRLCK, from, end)?;
                if found.l_type == libc::F_UNLCK as libc::c_short {
                    break;
                }
                let first = found.l_start.max(from);
                // A mark ends with its session's processors. Other processes may have set any lock.
                let end_of_session = first - first % CPUS + CPUS;
                let length = if found.l_len == 0 { CPUS } else { found.l_len };
                from = found.l_start.saturating_add(length).clamp(first + 1, end_of_session);
                marked.push(((first % CPUS) as u32, ((from - 1) % CPUS) as u32));
            }
        }
        Ok(marked)
    }

    /// Sets a lock, or asks for one, on the bytes from `begin` to before `end`.
    fn lock(&self, command: i32, kind: i32, begin: i64, end: i64) -> io::Result<libc::flock64> {
        let mut lock = libc::flock64 {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: begin,
            l_len: end - begin,
            l_pid: 0,
        };
        // SAFETY: an open descriptor, and a lock that the kernel reads and, for GETLK, writes.
        if unsafe { libc::fcntl(self.place.as_raw_fd(), command, &raw mut lock) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(lock)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The marks beyond the processors of all machines, so that sessions on this one do not matter.
    fn of_others(marks: &CpuMarks) -> Vec<(u32, u32)> {
        marks.of_others().unwrap().into_iter().filter(|(first, _)| *first >= 16_000).collect()
    }

    #[test]
    fn other_sessions_see_a_mark_until_it_ends() {
        let [own, same, low, high] = [7, 7, 6, u16::MAX].map(|session| CpuMarks::new(session).unwrap());
        own.set(16_001, 16_003).unwrap();
        own.set(16_383, 16_383).unwrap();
        assert_eq!([of_others(&own), of_others(&same)], [vec![], vec![]], "they are their own");
        let expected = vec![(16_001, 16_003), (16_383, 16_383)];
        assert_eq!([of_others(&low), of_others(&high)], [expected.clone(), expected]);
        low.set(16_002, 16_002).unwrap();
        high.set(16_005, 16_006).unwrap();
        assert_eq!(of_others(&own), [(16_002, 16_002), (16_005, 16_006)], "several sessions can have one");
        drop(own);
        assert_eq!(of_others(&low), [(16_005, 16_006)]);
    }
}
