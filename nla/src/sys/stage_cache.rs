//! A user's cache of chunks of staged files on a node: a directory of mode 0700 with a file for each chunk, whose name is the
//! chunk's SHA-256.
//!
//! Sessions use it at the same time, and any of them may be killed at any instruction. So a chunk gets its name when it is
//! complete, and nothing depends on what another session has removed. The content of a file is never trusted: the caller hashes
//! it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, Metadata};
use std::io::{self, Read, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::{Mode, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// The beginning of the directory's name. The user's number follows.
const PREFIX: &str = "scela-cache-";
/// The beginning of the name of a chunk that is being written.
const NEW: &str = ".new-";
/// A chunk that is being written for longer belongs to a session that was killed.
const NEW_TIME: Duration = Duration::from_secs(60 * 60);
/// The most files that are looked at. A larger directory is not a cache.
const FILES_MAX: usize = 1 << 22;

/// A cache that was checked: a directory of this user's, which others cannot enter.
#[derive(Debug)]
pub struct StageCache {
    directory: File,
    path: PathBuf,
    /// The number of chunks that this process has written.
    written: u64,
}

impl StageCache {
    /// Opens the user's cache in `parent`, or makes it. Fails if the directory of its name is another user's, or others may
    /// enter it.
    pub fn open(parent: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(0o700).create(path_in(parent)) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => Self::open_existing(parent),
        }
    }

    /// Opens the user's cache in `parent`. Fails if there is none, if the directory of its name is another user's, or if others
    /// may enter it.
    pub fn open_existing(parent: &Path) -> io::Result<Self> {
        let (euid, path) = (geteuid().as_raw(), path_in(parent));
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let directory = File::from(open(&path, flags, Mode::empty())?);
        let found = directory.metadata()?;
        if found.uid() != euid || found.mode() & 0o077 != 0 {
            let text = format!("{} belongs to another user, or others may enter it", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(Self { directory, path, written: 0 })
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a chunk of this length, which the caller must hash, and notes its use. `None` if there is none.
    pub fn read(&self, name: &str, bytes: u64) -> Option<Vec<u8>> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = File::from(openat(self.directory.as_fd(), name, flags, Mode::empty()).ok()?);
        let found = file.metadata().ok()?;
        if !found.is_file() || found.uid() != geteuid().as_raw() || found.len() != bytes {
            self.remove(name);
            return None;
        }
        let mut content = Vec::with_capacity(usize::try_from(bytes).ok()?);
        file.take(bytes).read_to_end(&mut content).ok()?;
        let _ = utimensat(
            self.directory.as_fd(),
            name,
            &TimeSpec::UTIME_NOW,
            &TimeSpec::UTIME_NOW,
            UtimensatFlags::NoFollowSymlink,
        );
        Some(content).filter(|content| content.len() as u64 == bytes)
    }

    /// Removes a chunk, whose content is wrong.
    pub fn remove(&self, name: &str) {
        let _ = unlinkat(self.directory.as_fd(), name, UnlinkatFlags::NoRemoveDir);
    }

    /// Stores a chunk. Another process may store the same one.
    pub fn store(&mut self, name: &str, content: &[u8]) -> io::Result<()> {
        self.written += 1;
        let new = format!("{NEW}{}-{}-{name}", std::process::id(), self.written);
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut file = File::from(openat(self.directory.as_fd(), new.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?);
        let stored = file
            .write_all(content)
            .and_then(|()| Ok(renameat(self.directory.as_fd(), new.as_str(), self.directory.as_fd(), name)?));
        if stored.is_err() {
            self.remove(&new);
        }
        stored
    }

    /// Removes chunks that no session has used for `age`, and then the ones that were not used for the longest time, until all
    /// have `bytes_max` bytes at most.
    pub fn shrink(&self, bytes_max: u64, age: Duration, now: SystemTime) -> io::Result<()> {
        let chunks = self.remove_old(age, now)?;
        self.keep(chunks, bytes_max);
        Ok(())
    }

    /// Removes the chunks that were not used for the longest time, of so many bytes or a little more. Removes none if all have
    /// less.
    pub fn make_room(&self, bytes: u64, now: SystemTime) -> io::Result<()> {
        let chunks = self.remove_old(Duration::MAX, now)?;
        if let Some(rest) = chunks.iter().map(|(_, bytes, _)| bytes).sum::<u64>().checked_sub(bytes) {
            self.keep(chunks, rest);
        }
        Ok(())
    }

    /// Removes chunks that no session has used for `age`, and those of killed sessions. Returns the other complete ones: the time
    /// since they were used, their lengths, their names.
    fn remove_old(&self, age: Duration, now: SystemTime) -> io::Result<Vec<(Duration, u64, OsString)>> {
        let mut chunks = Vec::new();
        // By its path: the directory was checked, and its parent lets no other user exchange it.
        for entry in fs::read_dir(&self.path)?.take(FILES_MAX).flatten() {
            let Ok(found) = entry.metadata() else { continue };
            let unused = now.duration_since(used(&found)).unwrap_or_default();
            let is_new = entry.file_name().as_bytes().starts_with(NEW.as_bytes());
            if unused > if is_new { NEW_TIME } else { age } {
                self.unlink(&entry.file_name());
            } else if !is_new {
                chunks.push((unused, found.len(), entry.file_name()));
            }
        }
        Ok(chunks)
    }

    /// Removes the chunks that were not used for the longest time, until the others have `bytes_max` bytes at most.
    fn keep(&self, mut chunks: Vec<(Duration, u64, OsString)>, bytes_max: u64) {
        chunks.sort_unstable_by(|one, other| other.cmp(one));
        let mut all: u64 = chunks.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, bytes, name) in chunks {
            if all <= bytes_max {
                break;
            }
            self.unlink(&name);
            all = all.saturating_sub(bytes);
        }
    }

    fn unlink(&self, name: &OsStr) {
        match unlinkat(self.directory.as_fd(), name, UnlinkatFlags::NoRemoveDir) {
            // Another session has removed it.
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => tracing::debug!(%error, "a file of the cache is not removed"),
        }
    }
}

/// Returns the path of the user's cache in this directory.
fn path_in(parent: &Path) -> PathBuf {
    parent.join(format!("{PREFIX}{}", geteuid().as_raw()))
}

/// Returns when a chunk was used last.
fn used(found: &Metadata) -> SystemTime {
    found.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn names(cache: &StageCache) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(cache.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn chunks_are_read_as_they_were_stored() {
        let parent = tempfile::tempdir().unwrap();
        let mut cache = StageCache::open(parent.path()).unwrap();
        assert_eq!(fs::metadata(cache.path()).unwrap().mode() & 0o7777, 0o700);
        cache.store("a", b"hello").unwrap();
        cache.store("a", b"hello").unwrap();
        let again = StageCache::open(parent.path()).unwrap();
        assert_eq!((again.read("a", 5).as_deref(), again.read("b", 5)), (Some(&b"hello"[..]), None));
        assert_eq!(fs::metadata(cache.path().join("a")).unwrap().mode() & 0o7777, 0o600);
        // It has another length than the name says.
        assert_eq!((again.read("a", 4), again.read("a", 5)), (None, None));
        assert_eq!(names(&cache), Vec::<String>::new());
    }

    #[test]
    fn a_foreign_directory_is_no_cache() {
        let parent = tempfile::tempdir().unwrap();
        let path = StageCache::open(parent.path()).unwrap().path;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).unwrap();
        let error = StageCache::open(parent.path()).unwrap_err().to_string();
        assert!(error.ends_with("belongs to another user, or others may enter it"), "{error}");
        fs::remove_dir(&path).unwrap();
        symlink(parent.path(), &path).unwrap();
        assert!(StageCache::open(parent.path()).is_err(), "a link");
        fs::remove_file(&path).unwrap();
        fs::write(&path, "").unwrap();
        assert!(StageCache::open(parent.path()).is_err(), "a file");
        if geteuid().is_root() {
            fs::remove_file(&path).unwrap();
            fs::create_dir(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).unwrap();
            std::os::unix::fs::chown(&path, Some(65534), None).unwrap();
            assert!(StageCache::open(parent.path()).is_err(), "another user's");
        }
    }

    #[test]
    fn links_and_pipes_are_no_chunks() {
        let parent = tempfile::tempdir().unwrap();
        let cache = StageCache::open(parent.path()).unwrap();
        let other = parent.path().join("other");
        fs::write(&other, "hello").unwrap();
        symlink(&other, cache.path().join("link")).unwrap();
        nix::unistd::mkfifo(&cache.path().join("pipe"), Mode::S_IRWXU).unwrap();
        assert_eq!((cache.read("link", 5), cache.read("pipe", 5)), (None, None));
        assert_eq!(fs::read(&other).unwrap(), b"hello");
    }

    #[test]
    fn old_chunks_go_and_then_those_that_were_not_used_for_the_longest_time() {
        let parent = tempfile::tempdir().unwrap();
        let mut cache = StageCache::open(parent.path()).unwrap();
        let now = SystemTime::now();
        let mut put = |name: &str, age_s: u64| {
            cache.store(name, &[0; 100]).unwrap();
            let file = File::options().write(true).open(cache.path().join(name)).unwrap();
            file.set_modified(now - Duration::from_secs(age_s)).unwrap();
        };
        for (name, age_s) in [("a", 50), ("b", 40), ("c", 30), ("d", 5), (".new-1-1-x", 4000), (".new-2-1-x", 20)] {
            put(name, age_s);
        }
        cache.shrink(1000, Duration::from_secs(45), now).unwrap();
        assert_eq!(names(&cache), [".new-2-1-x", "b", "c", "d"]);
        assert!(cache.read("b", 100).is_some(), "it was used");
        cache.shrink(200, Duration::from_secs(45), SystemTime::now()).unwrap();
        assert_eq!(names(&cache), [".new-2-1-x", "b", "d"]);
        cache.make_room(201, SystemTime::now()).unwrap();
        assert_eq!(names(&cache), [".new-2-1-x", "b", "d"], "they have less");
        cache.make_room(1, SystemTime::now()).unwrap();
        assert_eq!(names(&cache), [".new-2-1-x", "b"]);
        cache.shrink(0, Duration::from_secs(45), SystemTime::now()).unwrap();
        assert_eq!(names(&cache), [".new-2-1-x"]);
    }
}
