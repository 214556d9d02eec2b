//! Marks of processors that are seen by all processes of this user on the machine.
//!
//! A mark is a lock of one byte of the directory /dev/shm, at an offset made of the user's number and the processor's. It
//! ends with the process that has it, needs no file of its own, and a process can have any number of them with one
//! descriptor. Processes with another /dev/shm, such as those of another container, do not see it. Other users could set
//! marks in this one's name; a mark is therefore only a reason to say something.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

/// The distance of two users' marks.
const CPUS_OF_USER: i64 = 16_384;

/// The marks of this process. They end when it is dropped.
#[derive(Debug)]
pub struct CpuMarks(File);

impl CpuMarks {
    /// Opens /dev/shm without setting a mark.
    pub fn new() -> io::Result<Self> {
        OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY).open("/dev/shm").map(Self)
    }

    /// Marks the processors from `first` to `last`.
    pub fn set(&self, first: u32, last: u32) -> io::Result<()> {
        self.lock(libc::F_OFD_SETLK, libc::F_RDLCK, first, last).map(drop)
    }

    /// Returns the lowest range of processors from `first` to `last` that another process has marked.
    pub fn of_others(&self, first: u32, last: u32) -> io::Result<Option<(u32, u32)>> {
        // A lock for writing would be refused by any mark. It is only asked for.
        let found = self.lock(libc::F_OFD_GETLK, libc::F_WRLCK, first, last)?;
        if found.l_type == libc::F_UNLCK as libc::c_short {
            return Ok(None);
        }
        let begin = found.l_start - base();
        let end = if found.l_len == 0 { i64::MAX } else { begin.saturating_add(found.l_len - 1) };
        let cut = |cpu: i64| cpu.clamp(i64::from(first), i64::from(last)) as u32;
        Ok(Some((cut(begin), cut(end))))
    }

    fn lock(&self, command: i32, kind: i32, first: u32, last: u32) -> io::Result<libc::flock64> {
        let mut lock = libc::flock64 {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: base() + i64::from(first),
            l_len: i64::from(last.saturating_sub(first)) + 1,
            l_pid: 0,
        };
        // SAFETY: an open descriptor, and a lock that the kernel reads and, for GETLK, writes.
        if unsafe { libc::fcntl(self.0.as_raw_fd(), command, &raw mut lock) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(lock)
    }
}

/// The offset of the mark of processor 0.
fn base() -> i64 {
    // SAFETY: geteuid takes nothing.
    i64::from(unsafe { libc::geteuid() }) * CPUS_OF_USER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_see_a_mark_until_it_ends() {
        // Processors that no machine of the tests has.
        let (one, other) = (CpuMarks::new().unwrap(), CpuMarks::new().unwrap());
        one.set(16_001, 16_003).unwrap();
        one.set(16_005, 16_005).unwrap();
        assert_eq!(one.of_others(16_000, 16_010).unwrap(), None, "they are its own");
        assert_eq!(other.of_others(16_000, 16_000).unwrap(), None);
        assert_eq!(other.of_others(16_000, 16_010).unwrap(), Some((16_001, 16_003)));
        assert_eq!(other.of_others(16_002, 16_002).unwrap(), Some((16_002, 16_002)));
        assert_eq!(other.of_others(16_004, 16_010).unwrap(), Some((16_005, 16_005)));
        other.set(16_002, 16_002).unwrap();
        assert_eq!(one.of_others(16_000, 16_010).unwrap(), Some((16_002, 16_002)), "both can have it");
        drop(one);
        assert_eq!(other.of_others(16_000, 16_010).unwrap(), None);
    }
}
