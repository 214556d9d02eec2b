//! Removes a directory with everything below it, whatever modes its owner has given to the directories.
//!
//! Each directory is reached through the descriptor of the one above it, and no link is followed.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Permissions, ReadDir};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// The most levels of directories that are removed: each takes two descriptors.
const LEVELS_MAX: usize = 256;
/// What the owner of a directory needs to remove its entries.
const OWNER: u32 = 0o700;

/// Files that could not be removed.
#[derive(Debug)]
pub struct FilesLeft {
    path: PathBuf,
    why: io::Error,
    /// How many files and directories the kernel has refused to remove.
    count: u64,
}

impl FilesLeft {
    fn none() -> Self {
        Self { path: PathBuf::new(), why: io::ErrorKind::Other.into(), count: 0 }
    }

    fn note(&mut self, path: PathBuf, why: io::Error) {
        if self.count == 0 {
            (self.path, self.why) = (path, why);
        }
        self.count += 1;
    }
}

impl fmt::Display for FilesLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)?;
        if self.count > 1 { write!(f, ", and {} more", self.count - 1) } else { Ok(()) }
    }
}

/// A directory that is being removed.
struct Level {
    path: PathBuf,
    directory: File,
    entries: ReadDir,
    /// How many errors there were before it.
    before: u64,
}

/// Removes a directory that belongs to this user, and ignores any other path. Goes on after errors: the first one is
/// returned, with the number of all. Not recursive, because a thread's stack may be small.
pub(super) fn remove_tree(path: &Path) -> Result<(), FilesLeft> {
    let is_own = |found: fs::Metadata| found.is_dir() && found.uid() == geteuid().as_raw();
    if !fs::symlink_metadata(path).is_ok_and(is_own) {
        return Ok(());
    }
    let (mut levels, mut left) = (Vec::<Level>::new(), FilesLeft::none());
    match open_level(AT_FDCWD, path.as_os_str(), path.to_owned(), 0) {
        Ok(level) => levels.push(level),
        Err(why) => left.note(path.to_owned(), why),
    }
    while let Some(mut level) = levels.pop() {
        match level.entries.next() {
            Some(Ok(entry)) => {
                let (name, path) = (entry.file_name(), level.path.join(entry.file_name()));
                let above = level.directory.as_fd();
                let removed = match unlinkat(above, &*name, UnlinkatFlags::NoRemoveDir) {
                    Ok(()) | Err(Errno::ENOENT) => Ok(None),
                    Err(Errno::EISDIR) if levels.len() + 1 < LEVELS_MAX => {
                        open_level(above, &name, path.clone(), left.count).map(Some)
                    }
                    Err(Errno::EISDIR) => {
                        Err(io::Error::other(format!("more than {LEVELS_MAX} levels of directories")))
                    }
                    Err(error) => Err(error.into()),
                };
                levels.push(level);
                match removed {
                    Ok(below) => levels.extend(below),
                    Err(why) => left.note(path, why),
                }
            }
            Some(Err(why)) => left.note(level.path, why),
            None => {
                let removed = match levels.last() {
                    Some(above) => {
                        let name = level.path.file_name().unwrap_or_default();
                        unlinkat(above.directory.as_fd(), name, UnlinkatFlags::RemoveDir)
                    }
                    None => unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir),
                };
                match removed {
                    Ok(()) | Err(Errno::ENOENT) => {}
                    // The entries that could not be removed have been counted.
                    Err(Errno::ENOTEMPTY) if left.count > level.before => {}
                    Err(error) => left.note(level.path, error.into()),
                }
            }
        }
    }
    if left.count == 0 { Ok(()) } else { Err(left) }
}

/// Opens a directory to read it and to remove its entries. Adds to its mode what this needs, if it is this user's.
fn open_level(parent: BorrowedFd<'_>, name: &OsStr, path: PathBuf, before: u64) -> io::Result<Level> {
    let directory = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // A directory that this user may not read can be opened only in this way.
    let place = File::from(openat(parent, name, OFlag::O_PATH | directory, Mode::empty())?);
    let found = place.metadata()?;
    if found.uid() == geteuid().as_raw() && found.mode() & OWNER != OWNER {
        // fchmod refuses such a descriptor.
        fs::set_permissions(path_of(&place), Permissions::from_mode(found.mode() & 0o7777 | OWNER))?;
    }
    let directory = File::from(openat(place.as_fd(), ".", OFlag::O_RDONLY | directory, Mode::empty())?);
    let entries = fs::read_dir(path_of(&directory))?;
    Ok(Level { path, directory, entries, before })
}

/// Returns a path that the kernel leads to this open file.
fn path_of(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::super::users::{as_user, is_root};
    use super::*;

    const USER: u32 = 65534;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn directories_without_permissions_are_removed_and_no_link_is_followed() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        mode(place.path(), 0o777);
        let (tree, kept) = (place.path().join("tree"), place.path().join("kept"));
        let left = as_user(USER, || {
            fs::create_dir_all(tree.join("a/b")).unwrap();
            fs::create_dir(&kept).unwrap();
            fs::write(kept.join("f"), "").unwrap();
            fs::write(tree.join("a/b/f"), "").unwrap();
            symlink(&kept, tree.join("a/link")).unwrap();
            mode(&kept, 0o500);
            for (name, bits) in [("a/b/f", 0), ("a/b", 0o111), ("a", 0), ("", 0o555)] {
                mode(&tree.join(name), bits);
            }
            remove_tree(&tree)
        });
        assert!(left.is_ok() && !tree.exists(), "{left:?}");
        assert!(kept.join("f").exists() && kept.metadata().unwrap().mode() & 0o777 == 0o500);
    }

    #[test]
    fn an_error_does_not_keep_other_files() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join("foreign")).unwrap();
        (0..3).for_each(|number| fs::write(tree.join(format!("foreign/{number}")), "").unwrap());
        fs::create_dir_all(tree.join("own")).unwrap();
        ["", "own"].iter().for_each(|name| chown(tree.join(name), Some(USER), None).unwrap());
        mode(place.path(), 0o777);
        let left = as_user(USER, || remove_tree(&tree)).unwrap_err().to_string();
        let first = tree.join("foreign/").display().to_string();
        let expected = ": Permission denied (os error 13), and 2 more";
        assert!(left.starts_with(&first) && left.ends_with(expected), "{left}");
        assert!(!tree.join("own").exists());
        as_user(USER, || remove_tree(&tree.join("foreign"))).unwrap();
        assert!(tree.join("foreign").exists(), "it is another user's");
    }

    #[test]
    fn deep_directories_are_reported() {
        let place = tempfile::tempdir().unwrap();
        let tree = place.path().join("tree");
        fs::create_dir_all(tree.join(vec!["d"; LEVELS_MAX - 1].join("/"))).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        fs::create_dir_all(tree.join(vec!["d"; LEVELS_MAX].join("/"))).unwrap();
        let left = remove_tree(&tree).unwrap_err().to_string();
        assert!(left.ends_with("/d: more than 256 levels of directories"), "{left}");
    }
}
