//! Walks a path by descriptors, without following what another user put into a directory like /tmp.
//!
//! The kernel applies the rule of `fs.protected_symlinks` to each link of a path if an administrator has set it. [`Walk`]
//! applies it on every system, to intermediate components too: in a sticky directory that others may write to, it follows a
//! link only if the link belongs to this user or to the directory's owner.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, readlinkat};
use nix::sys::stat::{Mode, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};

/// How often a component is looked up again: for each link, and if it is made or removed meanwhile. The kernel follows as
/// many links.
const LOOK_UPS_MAX: u32 = 40;
/// The bits of a sticky directory's mode that let others make files there.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// A path on its way to its last component.
#[derive(Debug)]
pub(super) struct Walk {
    euid: u32,
    /// The directory that has been reached, opened with O_PATH.
    directory: File,
    /// The components that are left, the next one last.
    rest: Vec<OsString>,
    look_ups: u32,
}

impl Walk {
    /// Begins at the root directory or at the working directory.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        // The working directory is not needed for an absolute path, and may not be searchable.
        let start = OsStr::new(if path.is_absolute() { "/" } else { "." });
        let directory = open(AT_FDCWD, start, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
        let euid = nix::unistd::geteuid().as_raw();
        let mut walk = Self { euid, directory, rest: Vec::new(), look_ups: 0 };
        walk.push(path)?;
        Ok(walk)
    }

    /// Puts `path` in front of the components that are left.
    fn push(&mut self, path: &Path) -> io::Result<()> {
        let bytes = path.as_os_str().as_bytes();
        if bytes.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        if bytes[0] == b'/' {
            self.directory = open(AT_FDCWD, OsStr::new("/"), OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
        }
        if bytes.ends_with(b"/") {
            // The name before a final slash is a directory.
            self.rest.push(".".into());
        }
        let names = bytes.split(|byte| *byte == b'/').rev().filter(|name| !name.is_empty());
        self.rest.extend(names.map(|name| OsStr::from_bytes(name).to_owned()));
        Ok(())
    }

    /// Walks to the directory of the last component. Returns the component's name. Fails with EISDIR for `.` and `..`.
    pub(super) fn last(&mut self) -> io::Result<OsString> {
        loop {
            match self.rest.pop() {
                Some(name) if !self.rest.is_empty() => self.enter(&name)?,
                Some(name) if name != "." && name != ".." => return Ok(name),
                _ => return Err(Errno::EISDIR.into()),
            }
        }
    }

    /// Enters the directory `name`, or begins to follow the link of this name.
    fn enter(&mut self, name: &OsStr) -> io::Result<()> {
        loop {
            // O_DIRECTORY makes autofs mount what belongs here.
            match self.open(name, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW, Mode::empty()) {
                Ok(directory) => {
                    self.directory = directory;
                    return Ok(());
                }
                Err(error) if is(&error, Errno::ENOTDIR) || is(&error, Errno::ELOOP) => {}
                Err(error) => return Err(error),
            }
            let file = self.look(name)?;
            let found = file.metadata()?;
            if found.is_symlink() {
                self.check(&found)?;
                return self.follow(name, &file);
            }
            if !found.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            // It has been replaced meanwhile.
            self.count()?;
        }
    }

    /// Walks to the end and opens the directory there. Makes it, and those on the way, unless they exist.
    pub(super) fn make_directory(mut self) -> io::Result<File> {
        while let Some(name) = self.rest.pop() {
            match self.enter(&name) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.count()?;
                    match mkdirat(&self.directory, name.as_os_str(), Mode::from_bits_truncate(0o777)) {
                        Ok(()) | Err(Errno::EEXIST) => self.rest.push(name),
                        Err(error) => return Err(error.into()),
                    }
                }
                Err(error) => return Err(error),
            }
        }
        self.open(OsStr::new("."), OFlag::O_RDONLY | OFlag::O_DIRECTORY, Mode::empty())
    }

    /// Begins to follow a link, which was opened with [`look`](Self::look) and has passed [`check`](Self::check).
    pub(super) fn follow(&mut self, name: &OsStr, link: &File) -> io::Result<()> {
        self.count()?;
        if self.is_in_proc()? {
            self.directory = self.open(name, OFlag::O_PATH | OFlag::O_DIRECTORY, Mode::empty())?;
            return Ok(());
        }
        self.push(Path::new(&readlinkat(link, "")?))
    }

    /// Counts a look-up. Fails with ELOOP after many.
    pub(super) fn count(&mut self) -> io::Result<()> {
        self.look_ups += 1;
        if self.look_ups > LOOK_UPS_MAX { Err(Errno::ELOOP.into()) } else { Ok(()) }
    }

    /// Returns whether the directory belongs to /proc. A link there leads to an open file, not to the path that it shows
    /// (/dev/stdout, /dev/fd/3), so only the kernel can follow it. No user can make such a link.
    pub(super) fn is_in_proc(&self) -> io::Result<bool> {
        Ok(fstatfs(&self.directory)?.filesystem_type() == PROC_SUPER_MAGIC)
    }

    /// Opens the file or link `name` in the directory, without any access to its content.
    pub(super) fn look(&self, name: &OsStr) -> io::Result<File> {
        self.open(name, OFlag::O_PATH | OFlag::O_NOFOLLOW, Mode::empty())
    }

    /// Opens `name` in the directory.
    pub(super) fn open(&self, name: &OsStr, flags: OFlag, mode: Mode) -> io::Result<File> {
        open(&self.directory, name, flags, mode)
    }

    /// Returns the directory that has been reached.
    pub(super) fn directory(&self) -> &File {
        &self.directory
    }

    /// Refuses what another user put into a sticky directory. A file with a second name is refused there as well: another
    /// user may have linked a file of this user's.
    pub(super) fn check(&self, file: &Metadata) -> io::Result<()> {
        check_in(&self.directory, file, self.euid)
    }
}

/// Refuses what another user put into `directory` if that is a sticky one, as [`Walk::check`] does.
pub(super) fn check_in(directory: &File, file: &Metadata, euid: u32) -> io::Result<()> {
    let directory = directory.metadata()?;
    if !is_shared(directory.mode()) {
        return Ok(());
    }
    if !is_trusted(file.uid(), directory.uid(), euid) {
        let what = if file.is_symlink() {
            "link"
        } else if file.file_type().is_fifo() {
            "FIFO"
        } else if file.is_dir() {
            "directory"
        } else {
            "file"
        };
        let text = format!("it is a {what} of another user (uid {}), in a directory that others write to", file.uid());
        return Err(refused(&text));
    }
    if file.is_file() && file.nlink() > 1 {
        return Err(refused("it has another name as well, in a directory that others write to"));
    }
    Ok(())
}

/// Opens `name` in `directory`. Repeats the call after a signal.
fn open(directory: impl std::os::fd::AsFd, name: &OsStr, flags: OFlag, mode: Mode) -> io::Result<File> {
    loop {
        match openat(directory.as_fd(), name, flags | OFlag::O_CLOEXEC, mode) {
            Err(Errno::EINTR) => {}
            opened => return Ok(opened?.into()),
        }
    }
}

/// Returns whether `error` is `errno`.
pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

/// Returns whether others may make names in a directory of this mode, and not replace those of this user.
fn is_shared(mode: u32) -> bool {
    mode & STICKY != 0 && mode & OTHERS_WRITE != 0
}

/// Returns whether a file of `owner`, in a sticky directory of `directory`'s, may be opened by the user `euid`.
fn is_trusted(owner: u32, directory: u32, euid: u32) -> bool {
    owner == euid || owner == directory
}

pub(super) fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use super::*;

    /// Walks to the last component, and returns its directory's inode and its name.
    fn walk(path: &Path) -> Result<(u64, OsString), Option<i32>> {
        let reach = || {
            let mut walk = Walk::of(path)?;
            let name = walk.last()?;
            Ok((walk.directory.metadata()?.ino(), name))
        };
        reach().map_err(|error: io::Error| error.raw_os_error())
    }

    #[test]
    fn a_walk_ends_where_the_kernel_does() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path();
        fs::create_dir_all(top.join("a/b/c")).unwrap();
        fs::write(top.join("file"), "").unwrap();
        for (target, link) in [
            ("a/b", "relative"),
            ("../a", "a/up"),
            ("relative/../b//./c/", "long"),
            ("file", "to-file"),
            ("nowhere", "dangling"),
            ("/proc/self/cwd", "cwd"),
        ] {
            symlink(target, top.join(link)).unwrap();
        }
        symlink(top.join("a"), top.join("absolute")).unwrap();
        for (path, errno) in [
            ("", None),
            ("a", None),
            ("./a//b", None),
            ("relative", None),
            ("a/up/b", None),
            ("long", None),
            ("absolute/b/..", None),
            ("absolute/up/up/up", None),
            ("cwd", None),
            ("file", Some(Errno::ENOTDIR)),
            ("to-file", Some(Errno::ENOTDIR)),
            ("dangling", Some(Errno::ENOENT)),
            ("none/a", Some(Errno::ENOENT)),
        ] {
            let path = top.join(path);
            let expected = match errno {
                None => Ok((fs::metadata(&path).unwrap().ino(), "out".into())),
                Some(errno) => Err(Some(errno as i32)),
            };
            assert_eq!(walk(&path.join("out")), expected, "{}", path.display());
        }
        for path in ["a/", "a/.", "a/..", "none/"] {
            let errno = if path.starts_with('a') { Errno::EISDIR } else { Errno::ENOENT };
            assert_eq!(walk(&top.join(path)), Err(Some(errno as i32)), "{path}");
        }
        assert_eq!(walk(Path::new("/")), Err(Some(Errno::EISDIR as i32)));
        assert_eq!(walk(Path::new("out")), Ok((fs::metadata(".").unwrap().ino(), "out".into())));
        assert_eq!(walk(Path::new("/dev/fd/../out")).map(|(_, name)| name), Ok("out".into()));
    }

    #[test]
    fn the_kernel_follows_the_links_of_proc() {
        let removed = tempfile::tempdir().unwrap();
        let directory = File::open(removed.path()).unwrap();
        fs::remove_dir(removed.path()).unwrap();
        let path = format!("/dev/fd/{}/out", directory.as_raw_fd());
        assert_eq!(walk(Path::new(&path)), Ok((directory.metadata().unwrap().ino(), "out".into())));
    }

    #[test]
    fn a_walk_follows_as_many_links_as_the_kernel() {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("link-0")).unwrap();
        for number in 1..=LOOK_UPS_MAX + 1 {
            symlink(format!("link-{}", number - 1), place.path().join(format!("link-{number}"))).unwrap();
        }
        for (number, expected) in [(LOOK_UPS_MAX, None), (LOOK_UPS_MAX + 1, Some(Some(Errno::ELOOP as i32)))] {
            let path = place.path().join(format!("link-{number}"));
            assert_eq!(fs::metadata(&path).err().map(|error| error.raw_os_error()), expected);
            assert_eq!(walk(&path.join("out")).err(), expected);
        }
    }

    #[test]
    fn only_files_of_trusted_users_are_opened_in_shared_directories() {
        for (mode, shared) in [(0o1777, true), (0o1775, true), (0o1755, false), (0o777, false), (0o700, false)] {
            assert_eq!(is_shared(0o40000 | mode), shared, "{mode:o}");
        }
        assert!(is_trusted(7, 0, 7) && is_trusted(0, 0, 7) && !is_trusted(8, 0, 7));
        assert!(!is_trusted(8, 0, 0), "root is no exception");
    }
}
