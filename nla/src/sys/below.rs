//! Files below a directory, reached without following any link: each component is opened in the directory before it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::path_walk::{Walk, check_in};

/// An open directory.
#[derive(Debug)]
pub struct Below(File);

/// An entry of a directory.
#[derive(Debug)]
pub enum BelowEntry {
    /// A directory.
    Directory(Below),
    /// A regular file, opened for reading.
    File(File, Metadata),
    /// Anything else: a link, a device, a FIFO, a socket.
    Other,
}

const DIRECTORY: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);

impl Below {
    /// Opens a directory. Its own path may have links.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self(openat(AT_FDCWD, path, DIRECTORY, Mode::empty())?.into()))
    }

    /// Makes a directory and those above it, unless they exist, and opens it. Its path may have links, except those that another user
    /// put into a sticky directory.
    pub fn make(path: &Path) -> io::Result<Self> {
        // The parent of a name without a slash.
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        Ok(Self(Walk::of(path)?.make_directory()?))
    }

    /// Returns what identifies the directory on this machine.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let found = self.0.metadata()?;
        Ok((found.dev(), found.ino()))
    }

    /// Returns the names of all entries, sorted.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        // The kernel leads this path to the open directory.
        let entries = std::fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        names.sort();
        Ok(names)
    }

    /// Opens an entry of this name. Never blocks.
    pub fn entry(&self, name: &OsStr) -> io::Result<BelowEntry> {
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let file = match openat(self.0.as_fd(), name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            // A link, or a socket or a device without a driver.
            Err(Errno::ELOOP | Errno::ENXIO | Errno::ENODEV) => return Ok(BelowEntry::Other),
            Err(error) => return Err(error.into()),
        };
        let found = file.metadata()?;
        Ok(match (found.is_dir(), found.is_file()) {
            (true, _) => BelowEntry::Directory(Self(file)),
            (_, true) => BelowEntry::File(file, found),
            _ => BelowEntry::Other,
        })
    }

    /// Opens the directory of this name, and makes it if there is none. Fails for a link, and for a directory that another user put
    /// into a sticky one.
    pub fn directory(&self, name: &OsStr) -> io::Result<Self> {
        match mkdirat(self.0.as_fd(), name, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let opened = self.existing(name)?;
        check_in(&self.0, &opened.0.metadata()?, geteuid().as_raw())?;
        Ok(opened)
    }

    /// Opens the directory of this name. Fails for a link.
    pub fn existing(&self, name: &OsStr) -> io::Result<Self> {
        Ok(Self(openat(self.0.as_fd(), name, DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty())?.into()))
    }

    /// Creates a file, whose name must be new. Its mode has bits of its owner only, whatever the umask is.
    pub fn create(&self, name: &OsStr, is_executable: bool) -> io::Result<File> {
        let mode = Mode::from_bits_truncate(if is_executable { 0o700 } else { 0o600 });
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(self.0.as_fd(), name, flags, mode)?.into())
    }

    /// Opens a file that this process has created, to write at its end.
    pub fn append(&self, name: &OsStr) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(self.0.as_fd(), name, flags, Mode::empty())?.into())
    }

    /// Moves a file to another directory of the same file system. A file or a link of its name is replaced, not followed.
    pub fn rename(&self, name: &OsStr, to: &Self, new: &OsStr) -> io::Result<()> {
        Ok(renameat(self.0.as_fd(), name, to.0.as_fd(), new)?)
    }

    /// Removes a file.
    pub fn remove(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self.0.as_fd(), name, UnlinkatFlags::NoRemoveDir)?)
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(self.0.as_fd(), name, UnlinkatFlags::RemoveDir)?)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::{Read as _, Write as _};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;
    use crate::sys::users::{as_user, is_root};

    const VICTIM: u32 = 65_501;
    const ATTACKER: u32 = 65_502;

    fn name(name: &str) -> &OsStr {
        OsStr::new(name)
    }

    #[test]
    fn another_users_link_leads_to_no_directory() {
        if !is_root() {
            return;
        }
        let (place, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (place, mode) in [(&place, 0o1777), (&home, 0o777)] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
        }
        let at = |name: &str| place.path().join(name);
        fs::create_dir(home.path().join("there")).unwrap();
        as_user(ATTACKER, || {
            symlink(home.path(), at("link")).unwrap();
            symlink(home.path().join("there"), at("to-there")).unwrap();
            symlink(home.path().join("none"), at("dangling")).unwrap();
            fs::create_dir(at("taken")).unwrap();
        });
        for user in [VICTIM, 0] {
            for name in ["link", "link/", "link/there", "link/new", "to-there", "dangling", "dangling/new"] {
                let error = as_user(user, || Below::make(&at(name)).unwrap_err()).to_string();
                assert!(error.starts_with("it is a link of another user"), "{name}: {error}");
            }
            let inside = as_user(user, || Below::open(place.path()).unwrap().directory(name("taken")).unwrap_err());
            assert!(inside.to_string().starts_with("it is a directory of another user"), "{inside}");
        }
        assert_eq!(Below::open(home.path()).unwrap().names().unwrap(), ["there"]);
        as_user(VICTIM, || symlink(home.path(), at("own")).unwrap());
        let made = as_user(VICTIM, || Below::make(&at("own/a/b/../c/")).unwrap().identity().unwrap());
        let found = fs::metadata(home.path().join("a/c")).unwrap();
        assert_eq!((made, found.uid()), ((found.dev(), found.ino()), VICTIM));
        assert_eq!(
            Below::make(Path::new("/")).unwrap().identity().unwrap(),
            Below::open(Path::new("/")).unwrap().identity().unwrap()
        );
        let error = as_user(VICTIM, || Below::make(&at("own/there/x")).unwrap_err());
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn no_link_is_followed() {
        let place = tempfile::tempdir().unwrap();
        let (top, other) = (place.path().join("top"), place.path().join("other"));
        fs::create_dir_all(top.join("d")).unwrap();
        fs::create_dir(&other).unwrap();
        fs::write(other.join("f"), "x").unwrap();
        symlink(&other, top.join("to-directory")).unwrap();
        symlink(other.join("f"), top.join("to-file")).unwrap();
        symlink(other.join("new"), top.join("dangling")).unwrap();
        nix::unistd::mkfifo(&top.join("pipe"), Mode::S_IRWXU).unwrap();
        let below = Below::open(&top).unwrap();
        assert_eq!(below.names().unwrap(), ["d", "dangling", "pipe", "to-directory", "to-file"]);
        for link in ["to-directory", "to-file", "dangling", "pipe"] {
            assert!(matches!(below.entry(name(link)), Ok(BelowEntry::Other)), "{link}");
            assert!(below.directory(name(link)).is_err() && below.create(name(link), false).is_err(), "{link}");
        }
        let inner = below.directory(name("d")).unwrap();
        inner.create(name("f"), true).unwrap().write_all(b"y").unwrap();
        inner.rename(name("f"), &below, name("to-file")).unwrap();
        assert_eq!(fs::read(other.join("f")).unwrap(), b"x", "the link was replaced");
        let Ok(BelowEntry::File(mut file, found)) = below.entry(name("to-file")) else { panic!("it is a file") };
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!((text.as_str(), found.len(), found.mode() & 0o7777), ("y", 1, 0o700));
        assert!(matches!(below.entry(name("d")), Ok(BelowEntry::Directory(_))));
        assert_eq!(below.entry(name("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        below.remove(name("to-file")).unwrap();
        below.remove_directory(name("d")).unwrap();
    }
}
