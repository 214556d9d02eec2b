//! Marks of processors that are seen by all sessions of this user on the machine.
//!
//! A mark is a lock of one byte of a file, at an offset made of the numbers of the session and the processor. It ends with the
//! process that has it, and a process can have any number of them with one descriptor. Only this user can open the file, so no other
//! user can set marks or make the search for them long. The guardian of the last process with marks removes the file.
//!
//! The file is in /dev/shm, or in the user's directory in /run if another user has made a file of that name first. Processes with
//! another /dev/shm, such as those of another container, do not see it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use super::path_walk::refused;

/// Processors of a session.
const CPUS: i64 = 1 << 14;
/// Sessions of a user, by the numbers that [`CpuMarks::set`] gets.
const SESSIONS: i64 = 1 << 16;
/// The most marks of other sessions that are looked at. One stands for a range of processors.
const MARKS_MAX: usize = 4096;
/// How often marks are tried to be set while another process removes the file, and the pause in between.
const TRIES_MAX: u32 = 50;
const PAUSE: Duration = Duration::from_millis(1);

/// The marks of this process. They end when it is dropped.
#[derive(Debug)]
pub struct CpuMarks {
    file: File,
    session: i64,
}

/// The files in which marks may be, the usual one first. All processes of a user come to the same one.
fn places() -> [PathBuf; 2] {
    let user = nix::unistd::geteuid();
    [format!("/dev/shm/scela-marks-{user}").into(), format!("/run/user/{user}/scela-marks").into()]
}

/// Removes the files of marks if no process has any.
pub(super) fn remove_unused_marks() {
    places().iter().for_each(|path| remove_if_unused(path));
}

impl CpuMarks {
    /// Marks the processors of these ranges, both ends included. The marks of all processes with the same `session` belong
    /// together.
    ///
    /// # Errors
    ///
    /// The error says which file cannot be used. It is `NotFound` if this machine has no place for one.
    pub fn set(session: u16, ranges: &[(u32, u32)]) -> io::Result<Self> {
        Self::set_in(&places(), session, ranges)
    }

    fn set_in(places: &[PathBuf], session: u16, ranges: &[(u32, u32)]) -> io::Result<Self> {
        let mut first_error = None;
        for path in places {
            match Self::set_at(path, session, ranges) {
                Ok(marks) => return Ok(marks),
                Err(error) => {
                    let text = format!("'{}': {error}", path.display());
                    first_error.get_or_insert(io::Error::new(error.kind(), text));
                }
            }
        }
        Err(first_error.unwrap_or_else(|| io::ErrorKind::NotFound.into()))
    }

    fn set_at(path: &Path, session: u16, ranges: &[(u32, u32)]) -> io::Result<Self> {
        for _ in 0..TRIES_MAX {
            let file = match open(path, true) {
                // It has just been made or removed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                opened => opened?,
            };
            match Self::set_on(file, session, ranges)? {
                Some(marks) => return Ok(marks),
                None => sleep(PAUSE),
            }
        }
        Err(refused("it is removed and made again and again"))
    }

    /// Sets marks in an open file; `None` if it is being removed.
    fn set_on(file: File, session: u16, ranges: &[(u32, u32)]) -> io::Result<Option<Self>> {
        let marks = Self { file, session: i64::from(session) * CPUS };
        match ranges.iter().try_for_each(|(first, last)| marks.mark(*first, *last)) {
            Ok(()) => {}
            // The process that removes the file has locked it for writing.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let is_here = marks.file.metadata()?.nlink() == 1;
        Ok(is_here.then_some(marks))
    }

    fn mark(&self, first: u32, last: u32) -> io::Result<()> {
        let [begin, end] = [i64::from(first), i64::from(last) + 1].map(|at| self.session + at);
        lock(&self.file, libc::F_OFD_SETLK, libc::F_RDLCK, begin, end).map(drop)
    }

    /// Returns ranges of processors, both ends included, that other sessions have marked; at most 4096.
    pub fn of_others(&self) -> io::Result<Vec<(u32, u32)>> {
        let mut marked = Vec::new();
        let mut left = vec![(0, self.session), (self.session + CPUS, SESSIONS * CPUS)];
        while let Some((begin, end)) = left.pop().filter(|_| marked.len() < MARKS_MAX) {
            // A lock for writing would be refused by any mark. It is only asked for.
            let found = lock(&self.file, libc::F_OFD_GETLK, libc::F_WRLCK, begin, end)?;
            if found.l_type != libc::F_RDLCK as libc::c_short {
                continue;
            }
            // The kernel returns any of them, not the first one. A mark ends with its session's processors.
            let first = found.l_start.max(begin);
            let until = found.l_start.saturating_add(found.l_len).clamp(first + 1, first - first % CPUS + CPUS);
            marked.push(((first % CPUS) as u32, ((until - 1) % CPUS) as u32));
            left.extend([(begin, first), (until, end)].into_iter().filter(|(begin, end)| begin < end));
        }
        Ok(marked)
    }
}

/// Opens the file of marks, which only this user can open. Never waits. Fails with `AlreadyExists` if it was made or removed
/// meanwhile.
fn open(path: &Path, makes: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = match options.open(path) {
        // O_EXCL follows no link.
        Err(error) if error.kind() == io::ErrorKind::NotFound && makes => {
            options.create_new(true).mode(0o600).open(path)?
        }
        Ok(file) => file,
        Err(error) => {
            let own = nix::unistd::geteuid().as_raw();
            let owner = std::fs::symlink_metadata(path).ok().map(|found| found.uid()).filter(|owner| *owner != own);
            return Err(owner.map_or(error, foreign));
        }
    };
    let found = file.metadata()?;
    if found.uid() != nix::unistd::geteuid().as_raw() {
        return Err(foreign(found.uid()));
    }
    if !found.is_file() || found.mode() & 0o077 != 0 || found.nlink() > 1 {
        return Err(refused("it is not a regular file of mode 600 with one name"));
    }
    Ok(file)
}

fn foreign(owner: u32) -> io::Error {
    refused(&format!("it belongs to user {owner}"))
}

/// Removes the file of marks if no process has any. Whoever sets marks meanwhile finds that the file is locked, or has no name any
/// more.
fn remove_if_unused(path: &Path) {
    let Ok(file) = open(path, false) else { return };
    let is_here = || {
        let found = std::fs::symlink_metadata(path).ok()?;
        let opened = file.metadata().ok()?;
        Some((found.dev(), found.ino()) == (opened.dev(), opened.ino()))
    };
    if lock(&file, libc::F_OFD_SETLK, libc::F_WRLCK, 0, i64::MAX).is_ok() && is_here() == Some(true) {
        // An empty file that stays is used by the next session.
        let _ = std::fs::remove_file(path);
    }
}

/// Sets a lock, or asks for one, on the bytes from `begin` to before `end`. Never waits.
fn lock(file: &File, command: i32, kind: i32, begin: i64, end: i64) -> io::Result<libc::flock64> {
    let mut lock = libc::flock64 {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: begin,
        l_len: end - begin,
        l_pid: 0,
    };
    // SAFETY: an open descriptor, and a lock that the kernel reads and, for GETLK, writes.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;
    use crate::sys::users::{as_user, is_root};

    const VICTIM: u32 = 65_501;
    const ATTACKER: u32 = 65_502;

    #[test]
    fn other_sessions_see_a_mark_until_it_ends() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("marks");
        let set = |session, ranges: &[(u32, u32)]| CpuMarks::set_at(&path, session, ranges).unwrap();
        let others = |marks: &CpuMarks| {
            let mut marked = marks.of_others().unwrap();
            marked.sort_unstable();
            marked
        };
        let own = set(7, &[(1, 3), (16_383, 16_383)]);
        let same = set(7, &[(0, 0)]);
        assert_eq!([others(&own), others(&same)], [vec![], vec![]], "they are their own");
        let [low, high] = [(6, (2, 2)), (u16::MAX, (5, 6))].map(|(session, range)| set(session, &[range]));
        assert_eq!(others(&low), [(0, 0), (1, 3), (5, 6), (16_383, 16_383)]);
        assert_eq!(others(&high), [(0, 0), (1, 3), (2, 2), (16_383, 16_383)]);
        assert_eq!(others(&own), [(2, 2), (5, 6)], "several sessions can have one");
        drop((own, same));
        assert_eq!(others(&low), [(5, 6)]);
        drop(low);
        remove_if_unused(&path);
        assert!(path.exists());
        drop(high);
        remove_if_unused(&path);
        assert!(!path.exists());
    }

    #[test]
    fn a_mark_is_never_in_a_file_that_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("marks");
        let [early, late] = [(); 2].map(|()| open(&path, true).unwrap());
        lock(&early, libc::F_OFD_SETLK, libc::F_WRLCK, 0, i64::MAX).unwrap();
        assert!(CpuMarks::set_on(late.try_clone().unwrap(), 1, &[(0, 0)]).unwrap().is_none(), "it is being removed");
        drop(early);
        remove_if_unused(&path);
        assert!(CpuMarks::set_on(late, 1, &[(0, 0)]).unwrap().is_none(), "it was removed");
        std::thread::scope(|threads| {
            for session in 0..4 {
                let path = &path;
                threads.spawn(move || {
                    for _ in 0..200 {
                        let own = CpuMarks::set_at(path, session, &[(0, 0)]).unwrap();
                        let probe = CpuMarks::set_at(path, 9, &[]).unwrap();
                        assert!(probe.of_others().unwrap().contains(&(0, 0)));
                        drop((probe, own));
                        remove_if_unused(path);
                    }
                });
            }
        });
        assert!(!path.exists());
    }

    /// Returns a directory like /dev/shm and one of the victim's own, and the victim's two places in them.
    fn places() -> (tempfile::TempDir, [PathBuf; 2]) {
        let top = tempfile::tempdir().unwrap();
        let of = |name: &str, mode: u32, owner: u32| {
            let path = top.path().join(name);
            fs::create_dir(&path).unwrap();
            std::os::unix::fs::chown(&path, Some(owner), None).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            path.join("marks")
        };
        let both = [of("shm", 0o1777, 0), of("own", 0o700, VICTIM)];
        fs::set_permissions(top.path(), Permissions::from_mode(0o755)).unwrap();
        (top, both)
    }

    #[test]
    fn what_another_user_has_put_there_is_not_used() {
        if !is_root() {
            return;
        }
        let (top, both) = places();
        let set = |places: &[PathBuf], session| {
            as_user(VICTIM, || CpuMarks::set_in(places, session, &[(0, 1)]).map_err(|error| error.to_string()))
        };
        let target = top.path().join("target");
        fs::write(&target, "").unwrap();
        fs::set_permissions(&target, Permissions::from_mode(0o666)).unwrap();
        let own = top.path().join("shm/victims");
        as_user(VICTIM, || OpenOptions::new().create_new(true).write(true).mode(0o600).open(&own)).unwrap();
        let place = &both[0];
        let file = |mode| {
            fs::write(place, "").unwrap();
            fs::set_permissions(place, Permissions::from_mode(mode)).unwrap();
        };
        let make: [(&(dyn Fn() + Sync), &str); 6] = [
            (&|| file(0o666), "it belongs to user 65502"),
            (&|| file(0o600), "it belongs to user 65502"),
            (&|| symlink(&target, place).unwrap(), "it belongs to user 65502"),
            (&|| nix::unistd::mkfifo(place, nix::sys::stat::Mode::S_IRWXU).unwrap(), "it belongs to user 65502"),
            (&|| fs::create_dir(place).unwrap(), "it belongs to user 65502"),
            (&|| fs::hard_link(&own, place).unwrap(), "it is not a regular file of mode 600 with one name"),
        ];
        for (make, expected) in make {
            // Linking another user's file may be forbidden to the attacker: root does it.
            as_user(if expected.contains("one name") { 0 } else { ATTACKER }, make);
            let error = set(&both[..1], 1).unwrap_err();
            assert!(error.ends_with(expected), "{error}");
            let (one, other) = (set(&both, 1).unwrap(), set(&both, 2).unwrap());
            assert_eq!(one.of_others().unwrap(), [(0, 1)], "both use the second place");
            drop((one, other));
            as_user(VICTIM, || remove_if_unused(&both[1]));
            assert!(!both[1].exists());
            if fs::remove_file(place).is_err() {
                fs::remove_dir(place).unwrap();
            }
        }
    }

    #[test]
    fn another_user_can_neither_mark_nor_delay() {
        if !is_root() {
            return;
        }
        let (_top, both) = places();
        let set = |session| as_user(VICTIM, || CpuMarks::set_in(&both[..1], session, &[(0, 1)]).unwrap());
        let own = set(1);
        let refused = as_user(ATTACKER, || OpenOptions::new().read(true).open(&both[0]).unwrap_err());
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // The directory is all that both can lock.
        let directory = as_user(ATTACKER, || File::open(both[0].parent().unwrap()).unwrap());
        lock(&directory, libc::F_OFD_SETLK, libc::F_RDLCK, 0, i64::MAX).unwrap();
        assert_eq!(own.of_others().unwrap(), []);
        assert_eq!(set(2).of_others().unwrap(), [(0, 1)]);
    }
}
