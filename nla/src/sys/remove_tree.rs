//! Removes a directory with everything below it, whatever modes its owner has given to the directories.
//!
//! Each directory is reached through the descriptor of the one above it, and no link is followed.

use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

/// The most levels of directories that are removed: each takes a descriptor.
const LEVELS_MAX: u32 = 256;
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

impl fmt::Display for FilesLeft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)?;
        if self.count > 1 { write!(f, ", and {} more", self.count - 1) } else { Ok(()) }
    }
}

/// Removes a directory of this user. A path that is no such directory is left. An error does not end the removal: the first one is
/// returned, with the number of all.
pub(super) fn remove_tree(path: &Path) -> Result<(), FilesLeft> {
    let is_own = |found: fs::Metadata| found.is_dir() && found.uid() == geteuid().as_raw();
    let mut left = None;
    if fs::symlink_metadata(path).is_ok_and(is_own) {
        remove(AT_FDCWD, path.as_os_str(), path, LEVELS_MAX, &mut left);
    }
    left.map_or(Ok(()), Err)
}

/// Removes the entry `name` of a directory. `path` is its path for the report.
fn remove(parent: BorrowedFd<'_>, name: &OsStr, path: &Path, levels: u32, left: &mut Option<FilesLeft>) {
    let before = left.as_ref().map(|left| left.count);
    match try_remove(parent, name, path, levels, left) {
        Ok(()) => {}
        // The reason is what is left below.
        Err(error)
            if error.kind() == io::ErrorKind::DirectoryNotEmpty && left.as_ref().map(|left| left.count) > before => {}
        Err(why) => left.get_or_insert_with(|| FilesLeft { path: path.to_owned(), why, count: 0 }).count += 1,
    }
}

fn try_remove(
    parent: BorrowedFd<'_>,
    name: &OsStr,
    path: &Path,
    levels: u32,
    left: &mut Option<FilesLeft>,
) -> io::Result<()> {
    match unlinkat(parent, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR) => {}
        Err(error) => return Err(error.into()),
    }
    let Some(levels) = levels.checked_sub(1) else {
        return Err(io::Error::other(format!("more than {LEVELS_MAX} levels of directories")));
    };
    let directory = open_for_removal(parent, name)?;
    for entry in fs::read_dir(path_of(&directory))? {
        let name = entry?.file_name();
        remove(directory.as_fd(), &name, &path.join(&name), levels, left);
    }
    match unlinkat(parent, name, UnlinkatFlags::RemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Opens a directory to read it and to remove its entries. Adds to its mode what this needs, if it is this user's.
fn open_for_removal(parent: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let directory = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    // A directory that this user may not read can be opened only in this way.
    let place = File::from(openat(parent, name, OFlag::O_PATH | directory, Mode::empty())?);
    let found = place.metadata()?;
    if found.uid() == geteuid().as_raw() && found.mode() & OWNER != OWNER {
        // fchmod refuses such a descriptor.
        fs::set_permissions(path_of(&place), Permissions::from_mode(found.mode() & 0o7777 | OWNER))?;
    }
    Ok(openat(place.as_fd(), ".", OFlag::O_RDONLY | directory, Mode::empty())?.into())
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
            [("a/b/f", 0), ("a/b", 0o111), ("a", 0), ("", 0o555)].map(|(name, bits)| mode(&tree.join(name), bits));
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
        fs::create_dir_all(tree.join("foreign/of")).unwrap();
        (0..3).for_each(|number| fs::write(tree.join(format!("foreign/of/{number}")), "").unwrap());
        fs::create_dir_all(tree.join("own")).unwrap();
        ["", "own"].map(|name| chown(tree.join(name), Some(USER), None).unwrap());
        mode(place.path(), 0o777);
        let left = as_user(USER, || remove_tree(&tree)).unwrap_err().to_string();
        let first = tree.join("foreign/of/").display().to_string();
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
        fs::create_dir_all(tree.join(vec!["d"; LEVELS_MAX as usize - 1].join("/"))).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        fs::create_dir_all(tree.join(vec!["d"; LEVELS_MAX as usize].join("/"))).unwrap();
        let left = remove_tree(&tree).unwrap_err().to_string();
        assert!(left.ends_with("/d: more than 256 levels of directories"), "{left}");
    }
}
