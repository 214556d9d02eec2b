//! The directory of shared memory, /dev/shm, and the files that processes have mapped.
//!
//! All names are looked up relative to a descriptor, of the directory or of a process in /proc, and links are not
//! followed. So a process that reuses the pid of one that has ended is never mistaken for it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::DirEntryExt;
use std::path::Path;
use std::time::Instant;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, major, minor};
use nix::unistd::{Uid, UnlinkatFlags, unlinkat};

/// Linux's directory of shared memory.
const SHARED_MEMORY: &str = "/dev/shm";
/// The most bytes of a process's maps that are read: some 80,000 mappings, more than the kernel allows by default.
const MAPS_BYTES_MAX: u64 = 8 << 20;
/// The most bytes of a process's list of children.
const CHILDREN_BYTES_MAX: u64 = 64 << 10;
/// The usual length of /proc/PID/stat and of shorter files, at most.
const STAT_BYTES: u64 = 1024;
const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const FILE: OFlag = OFlag::O_RDONLY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// The directory of shared memory.
#[derive(Debug)]
pub struct SharedMemory {
    descriptor: OwnedFd,
}

/// The state of a file in the directory of shared memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SharedFile {
    /// The device's major and minor number.
    pub device: (u32, u32),
    /// The inode.
    pub inode: u64,
    /// The user who owns it.
    pub owner: u32,
    /// Whether it is a regular file.
    pub is_regular: bool,
    /// Its size.
    pub bytes: u64,
}

impl SharedFile {
    fn of(stat: &FileStat) -> Self {
        Self {
            device: (major(stat.st_dev) as u32, minor(stat.st_dev) as u32),
            inode: stat.st_ino,
            owner: stat.st_uid,
            is_regular: SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFREG,
            bytes: u64::try_from(stat.st_size).unwrap_or_default(),
        }
    }
}

impl SharedMemory {
    /// Opens /dev/shm. Fails if there is none or if it is a link.
    pub fn open() -> io::Result<Self> {
        Self::at(Path::new(SHARED_MEMORY))
    }

    fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { descriptor: open(path, DIRECTORY, Mode::empty())? })
    }

    /// Returns the time of the directory's last change, in nanoseconds. A change within a clock tick of the kernel (up
    /// to 10 ms) after another one need not show.
    pub fn changed(&self) -> io::Result<i128> {
        let stat = fstat(&self.descriptor)?;
        Ok(i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec))
    }

    /// Returns the names and inodes in the directory. Fails if there are more than `entries_max`.
    pub fn list(&self, entries_max: usize) -> io::Result<Vec<(Vec<u8>, u64)>> {
        let mut entries = Vec::new();
        // Opens the directory of the descriptor again, whatever its path means now: each list needs its own position.
        for entry in fs::read_dir(format!("/proc/self/fd/{}", self.descriptor.as_raw_fd()))? {
            let entry = entry?;
            if entries.len() >= entries_max {
                return Err(Errno::EOVERFLOW.into());
            }
            entries.push((entry.file_name().into_vec(), entry.ino()));
        }
        Ok(entries)
    }

    /// Returns the state of a file; `None` if there is none of this name. A link is not followed.
    pub fn file(&self, name: &[u8]) -> Option<SharedFile> {
        let stat =
            fstatat(&self.descriptor, Path::new(std::ffi::OsStr::from_bytes(name)), AtFlags::AT_SYMLINK_NOFOLLOW);
        Some(SharedFile::of(&stat.ok()?))
    }

    /// Removes the file of this name if it is still the file that [`SharedMemory::file`] returned. Returns whether it
    /// did.
    ///
    /// Between the check and the removal only the file's owner or the owner of the directory can exchange the file,
    /// because the directory is sticky.
    pub fn remove(&self, name: &[u8], file: &SharedFile) -> bool {
        let is_same = |now: SharedFile| {
            now.is_regular && (now.device, now.inode, now.owner) == (file.device, file.inode, file.owner)
        };
        let path = Path::new(std::ffi::OsStr::from_bytes(name));
        self.file(name).is_some_and(is_same) && unlinkat(&self.descriptor, path, UnlinkatFlags::NoRemoveDir).is_ok()
    }
}

/// A process, by its directory in /proc. If the process ends, all reads fail, whatever becomes of its pid.
#[derive(Debug)]
pub struct ProcessFiles {
    pid: u32,
    directory: OwnedFd,
}

impl ProcessFiles {
    /// Opens the directory of a process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let directory = open(Path::new(&format!("/proc/{pid}")), DIRECTORY, Mode::empty())?;
        Ok(Self { pid, directory })
    }

    /// Reads a file of the process, at most `bytes_max` bytes.
    pub(super) fn read(&self, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
        let mut text = Vec::with_capacity(bytes_max.min(STAT_BYTES) as usize);
        let file = File::from(openat(self.directory.as_fd(), name, FILE, Mode::empty())?);
        file.take(bytes_max).read_to_end(&mut text)?;
        Ok(text)
    }

    /// Returns the directory's descriptor, through which the process can be signalled.
    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }

    /// Returns the pid of the parent.
    pub fn parent(&self) -> Option<u32> {
        self.stat_field(1)?.parse().ok()
    }

    /// Returns field `number` of the process's stat file, counted from that of its state, 0.
    pub(super) fn stat_field(&self, number: usize) -> Option<String> {
        let stat = self.read("stat", 4096).ok()?;
        // "pid (name) state ppid": the name can contain any character, so parse from the last parenthesis.
        let end = stat.iter().rposition(|&byte| byte == b')')?;
        let mut fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?.split_ascii_whitespace();
        fields.nth(number).map(str::to_owned)
    }

    /// Returns the children of the process's first thread. Empty if the kernel has no such list.
    pub fn children(&self) -> Vec<u32> {
        let list = self.read(&format!("task/{}/children", self.pid), CHILDREN_BYTES_MAX).unwrap_or_default();
        String::from_utf8_lossy(&list).split_ascii_whitespace().flat_map(str::parse).collect()
    }

    /// Returns the text of the process's mappings. Fails for processes of other users, and for those that are not
    /// dumpable. May block for as long as a thread of the process holds the lock of its memory.
    pub fn maps(&self) -> io::Result<Vec<u8>> {
        self.read("maps", MAPS_BYTES_MAX)
    }
}

/// What identifies a file: the major and minor number of its device, and its inode.
pub type FileNumbers = ((u32, u32), u64);

/// Parses the files that are mapped, from the text of /proc/PID/maps. Lines without a file are left out.
pub fn mapped_files(maps: &[u8]) -> impl Iterator<Item = FileNumbers> + '_ {
    maps.split(|byte| *byte == b'\n').filter_map(|line| {
        // address, permissions, offset, device, inode, path. The path is not read.
        let mut fields = line.splitn(6, |byte| *byte == b' ').skip(3);
        let (device, inode) = (std::str::from_utf8(fields.next()?).ok()?, std::str::from_utf8(fields.next()?).ok()?);
        let (major, minor) = device.split_once(':')?;
        let number = |hex: &str| u32::from_str_radix(hex, 16).ok();
        let inode = inode.parse().ok().filter(|inode| *inode > 0)?;
        Some(((number(major)?, number(minor)?), inode))
    })
}

/// Returns which of these files processes have mapped, and whether all processes could be read before `until`.
/// Processes of other users, and those that are not dumpable, cannot be read and count as if they used none.
pub fn files_in_use(wanted: &BTreeSet<FileNumbers>, until: Instant) -> (BTreeSet<FileNumbers>, bool) {
    let mut found = BTreeSet::new();
    for pid in processes() {
        if Instant::now() > until {
            return (found, false);
        }
        // The process may have ended.
        let maps = ProcessFiles::open(pid).and_then(|process| process.maps()).unwrap_or_default();
        found.extend(mapped_files(&maps).filter(|file| wanted.contains(file)));
    }
    (found, true)
}

/// Returns the pids of all processes, ascending.
pub fn processes() -> BTreeSet<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the effective user of this process.
pub fn user() -> u32 {
    Uid::effective().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::process;

    use super::*;

    #[test]
    fn files_are_listed_and_removed_by_identity() {
        let place = tempfile::tempdir().unwrap();
        let directory = SharedMemory::at(place.path()).unwrap();
        assert_eq!(directory.list(0).unwrap(), []);
        fs::write(place.path().join("a"), b"12345").unwrap();
        let file = directory.file(b"a").unwrap();
        assert!(file.is_regular && file.bytes == 5 && file.owner == user());
        assert_eq!(directory.list(1).unwrap(), [(b"a".to_vec(), file.inode)]);
        assert!(directory.list(0).is_err(), "more entries than allowed");
        // Another file of the same name, made while the first one exists: its inode differs.
        fs::write(place.path().join("b"), b"").unwrap();
        fs::rename(place.path().join("b"), place.path().join("a")).unwrap();
        assert!(!directory.remove(b"a", &file));
        let file = directory.file(b"a").unwrap();
        assert!(directory.remove(b"a", &file) && !place.path().join("a").exists());
        assert!(!directory.remove(b"a", &file), "there is none");
    }

    #[test]
    fn links_are_not_followed() {
        let place = tempfile::tempdir().unwrap();
        let directory = SharedMemory::at(place.path()).unwrap();
        fs::write(place.path().join("target"), b"").unwrap();
        symlink("target", place.path().join("link")).unwrap();
        fs::create_dir(place.path().join("directory")).unwrap();
        let (link, target) = (directory.file(b"link").unwrap(), directory.file(b"target").unwrap());
        assert!(!link.is_regular && link.inode != target.inode);
        assert!(!directory.remove(b"link", &target), "the link is not the file");
        assert!(!directory.remove(b"link", &link), "a link is not a regular file");
        assert!(!directory.remove(b"directory", &directory.file(b"directory").unwrap()));
        assert_eq!(directory.file(b"../escape/../nothing"), None);
        assert!(SharedMemory::at(&place.path().join("link")).is_err());
        symlink(place.path(), place.path().join("to-directory")).unwrap();
        assert!(SharedMemory::at(&place.path().join("to-directory")).is_err());
    }

    #[test]
    fn maps_are_parsed_up_to_the_inode() {
        let maps = b"7f0000000000-7f0000001000 rw-s 00000000 00:17 42                 /dev/shm/mpich_shm_1_0\n\
            7f0000001000-7f0000002000 rw-p 00000000 00:00 0 \n\
            7f0000002000-7f0000003000 r-xp 00001000 fd:0a 12345678901  /lib/x 00:17 43 y\\012z (deleted)\n\
            7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0                          [stack]\n\
            nonsense\n7f r 0 zz:1 1 x\n7f r 0 1:1 -1 x\n7f r 0 1:1";
        let found: Vec<_> = mapped_files(maps).collect();
        assert_eq!(found, [((0, 0x17), 42), ((0xfd, 0xa), 12_345_678_901)]);
    }

    #[test]
    fn a_process_has_a_parent_children_and_mappings() {
        let mut child = process::Command::new("sleep").arg("1000").spawn().unwrap();
        let files = ProcessFiles::open(child.id()).unwrap();
        assert_eq!(files.parent(), Some(process::id()));
        assert_eq!(files.children(), []);
        assert!(!files.maps().unwrap().is_empty());
        assert!(processes().contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!((files.parent(), files.maps().ok()), (None, None), "the pid means no other process");
    }
}
