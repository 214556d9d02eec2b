//! The directory of an agent's staged files, and the places that may have it.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, futimens, utimensat};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::sys::statvfs::{FsFlags, statvfs};
use nix::sys::time::TimeSpec;
use nix::unistd::geteuid;

use super::announced_directory::{AnnouncedDirectory, DirectoryNote};
use super::remove_tree::FilesLeft;

/// The beginning of the directory's name.
const PREFIX: &str = "scela-stage-";

/// A directory of staged files, with mode 0700. Removed when this is dropped.
#[derive(Debug)]
pub struct StageDirectory(AnnouncedDirectory);

impl StageDirectory {
    /// Makes the directory in `parent`; see [`AnnouncedDirectory::make`].
    pub fn make(parent: &Path, note: DirectoryNote) -> io::Result<Self> {
        AnnouncedDirectory::make(parent, PREFIX, note).map(Self)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Makes a directory in it. `name` is relative to it and does not lead out of it.
    pub fn make_inside(&self, name: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(self.path().join(name))
    }

    /// Creates a file in it, whose name must be new. `name` is relative to it and does not lead out of it.
    pub fn create(&self, name: &Path, mode: u32) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(self.path().join(name))?;
        // Whatever the umask is.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(file)
    }

    /// Makes a symbolic link in it, whose name must be new. `name` is relative to it and does not lead out of it.
    pub fn link(&self, target: &[u8], name: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(OsStr::from_bytes(target), self.path().join(name))
    }

    /// Sets the mode and the times of a directory in it, which is complete.
    pub fn complete(&self, name: &Path, mode: u32, modified: (i64, u32)) -> io::Result<()> {
        let path = self.path().join(name);
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
        let time = time(modified);
        Ok(utimensat(AT_FDCWD, &path, &time, &time, UtimensatFlags::NoFollowSymlink)?)
    }

    /// Removes the directory.
    pub fn remove(self) -> Result<(), FilesLeft> {
        self.0.remove()
    }
}

/// Sets the times of a file that is complete.
pub fn set_modified(file: &File, modified: (i64, u32)) -> io::Result<()> {
    let time = time(modified);
    Ok(futimens(file, &time, &time)?)
}

fn time((seconds, nanoseconds): (i64, u32)) -> TimeSpec {
    TimeSpec::new(seconds, i64::from(nanoseconds.min(999_999_999)))
}

/// The fitness of a directory for staged files.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct StageRoom {
    /// Its file system is not mounted noexec.
    pub may_execute: bool,
    /// Users other than root and this one cannot exchange a directory that this user makes in it.
    pub is_safe: bool,
    /// The bytes that are free.
    pub free: u64,
    /// The files that can still be created; `u64::MAX` if the file system has no bound on them.
    pub files: u64,
}

/// Returns what the directory `path` has for staged files.
pub fn stage_room(path: &Path) -> io::Result<StageRoom> {
    const OTHERS_WRITE: u32 = 0o022;
    const STICKY: u32 = 0o1000;
    let found = fs::metadata(path)?;
    if !found.is_dir() {
        return Err(io::ErrorKind::NotADirectory.into());
    }
    let system = statvfs(path)?;
    let is_trusted = [0, geteuid().as_raw()].contains(&found.uid());
    Ok(StageRoom {
        may_execute: !system.flags().contains(FsFlags::ST_NOEXEC),
        is_safe: is_trusted && (found.mode() & OTHERS_WRITE == 0 || found.mode() & STICKY != 0),
        free: (system.blocks_available() as u64).saturating_mul(system.fragment_size() as u64),
        files: if system.files() == 0 { u64::MAX } else { system.files_available() as u64 },
    })
}

/// Returns whether files in the directory `path` take memory of the machine, and no disk.
pub fn is_in_memory(path: &Path) -> bool {
    statfs(path).is_ok_and(|system| system.filesystem_type() == TMPFS_MAGIC)
}

#[cfg(test)]
mod users;

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_have_their_modes_and_times() {
        let parent = tempfile::tempdir().unwrap();
        let made = StageDirectory::make(parent.path(), DirectoryNote::new().unwrap()).unwrap();
        let path = made.path().to_owned();
        made.make_inside(Path::new("bin")).unwrap();
        made.create(Path::new("bin/a"), 0o755).unwrap();
        let data = made.create(Path::new("data"), 0o600).unwrap();
        set_modified(&data, (1_000_000_000, 7)).unwrap();
        made.link(b"data", Path::new("link")).unwrap();
        made.complete(Path::new("bin"), 0o750, (-5, 0)).unwrap();
        assert_eq!(["bin", "bin/a", "data"].map(|name| mode(&path.join(name))), [0o750, 0o755, 0o600]);
        let modified =
            |name: &str| fs::symlink_metadata(path.join(name)).map(|found| (found.mtime(), found.mtime_nsec()));
        assert_eq!((modified("data").unwrap(), modified("bin").unwrap()), ((1_000_000_000, 7), (-5, 0)));
        assert_eq!(fs::read_link(path.join("link")).unwrap(), Path::new("data"));
        let again = made.create(Path::new("data"), 0o600).unwrap_err();
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        drop(made);
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn files_in_shared_memory_take_memory_and_those_of_other_file_systems_do_not() {
        assert!(is_in_memory(Path::new("/dev/shm")) && !is_in_memory(Path::new("/proc")));
        assert!(!is_in_memory(Path::new("/nonexistent")));
    }

    #[test]
    fn a_place_that_others_may_change_is_not_safe() {
        let parent = tempfile::tempdir().unwrap();
        let is_safe = |mode| {
            fs::set_permissions(parent.path(), fs::Permissions::from_mode(mode)).unwrap();
            stage_room(parent.path()).unwrap().is_safe
        };
        assert_eq!([0o700, 0o1777, 0o755, 0o777, 0o775].map(is_safe), [true, true, true, false, false]);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_eq!(stage_room(file.path()).unwrap_err().kind(), io::ErrorKind::NotADirectory);
    }
}
