//! Makes new files beside others that the user named, whoever may write to their directory.
//!
//! A file is made with O_EXCL, which follows no link and opens no file that another user has put there. Links on the way to
//! the directory are followed as `Walk` does.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};

use super::path_walk::{Walk, is};

/// Begins the name of a file beside one whose own name is too long for that.
const SHORT: &str = ".scela";
/// How many names are tried.
const TRIES: u32 = 1000;
/// The bits of a mode without the type of the file.
const MODE: u32 = 0o7777;
/// The bits of a mode that concern the file's group.
const GROUP: u32 = 0o2070;

/// Creates a new, empty file in the directory of `path`, with the mode of the umask. Its name is that of `path`, the
/// process's number, and the first number for which there is no file; it begins otherwise if that is too long. Returns its path.
pub fn create_beside(path: &Path) -> io::Result<PathBuf> {
    let (walk, name) = reach(path)?;
    let (name, _file) = create(&walk, &name)?;
    Ok(path.with_file_name(name))
}

/// Replaces the file at `path`, or the link there, by a new file with these contents, which are stored before that. The new file
/// has the mode of the old one if that belongs to this user, else that of the umask. Readers get the old or the new contents.
pub fn replace_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let (walk, name) = reach(path)?;
    let found = walk.look(&name).and_then(|found| found.metadata()).ok();
    let beside = Beside::create(walk, &name, found.as_ref().filter(|found| keeps_mode(found)))?;
    beside.finish(|mut file| file.write_all(contents).map(|()| file))
}

/// Returns whether a file that takes the place of this one can have its mode and its owner.
pub(super) fn keeps_mode(found: &Metadata) -> bool {
    found.is_file() && found.uid() == geteuid().as_raw()
}

/// A new file that is to take the place of another one.
pub(super) struct Beside {
    walk: Walk,
    name: OsString,
    beside: OsString,
    file: File,
}

impl Beside {
    /// Creates it in the directory that was reached, empty, with the mode of `old` or of the umask.
    pub(super) fn create(walk: Walk, name: &OsStr, old: Option<&Metadata>) -> io::Result<Self> {
        let (beside, file) = create(&walk, name)?;
        if let Some(old) = old {
            let changed = file.set_permissions(Permissions::from_mode(old.mode() & MODE));
            or_remove(&walk, &beside, changed)?;
        }
        Ok(Self { walk, name: name.to_owned(), beside, file })
    }

    /// Gives the new file the group of `old`. If that fails, nothing of it is left.
    pub(super) fn take_group(&self, old: &Metadata) -> io::Result<()> {
        or_remove(&self.walk, &self.beside, self.try_group(old))
    }

    /// Gives the new file the group of `old`, or no rights to its own group if this user may not do that. If that fails, nothing of
    /// it is left.
    pub(super) fn take_group_or_none(&self, old: &Metadata) -> io::Result<()> {
        let without = || self.file.set_permissions(Permissions::from_mode(old.mode() & MODE & !GROUP));
        or_remove(&self.walk, &self.beside, self.try_group(old).or_else(|_| without()))
    }

    fn try_group(&self, old: &Metadata) -> io::Result<()> {
        let made = self.file.metadata()?;
        if made.gid() == old.gid() { Ok(()) } else { fchown(&self.file, None, Some(old.gid())) }
    }

    /// Lets `write` write the file, which it returns, stores it, and puts it into the place of the other one. If that fails,
    /// nothing of it is left.
    pub(super) fn finish(self, write: impl FnOnce(File) -> io::Result<File>) -> io::Result<()> {
        let Self { walk, name, beside, file } = self;
        let directory = walk.directory();
        let written = write(file).and_then(|file| {
            // A file system may delay the allocation of space to this call.
            file.sync_all()?;
            renameat(directory, beside.as_os_str(), directory, name.as_os_str())?;
            Ok(())
        });
        or_remove(&walk, &beside, written)
    }
}

/// Removes the new file `beside` after a failure. The failure is returned.
fn or_remove(walk: &Walk, beside: &OsStr, result: io::Result<()>) -> io::Result<()> {
    result.inspect_err(|_| {
        // The first error is reported.
        let _ = unlinkat(walk.directory(), beside, UnlinkatFlags::NoRemoveDir);
    })
}

/// Walks to the directory of `path`. Returns its last component as well.
fn reach(path: &Path) -> io::Result<(Walk, OsString)> {
    let mut walk = Walk::of(path)?;
    let name = walk.last()?;
    Ok((walk, name))
}

/// Creates a file whose name begins with `name`, or with [`SHORT`] if it would be too long.
fn create(walk: &Walk, name: &OsStr) -> io::Result<(OsString, File)> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
    let process = std::process::id();
    let mut start = name;
    for number in 0..TRIES {
        let mut name = start.to_owned();
        name.push(format!(".{process}-{number}"));
        match walk.open(&name, flags, Mode::from_bits_truncate(0o666)) {
            Err(error) if is(&error, Errno::EEXIST) => {}
            Err(error) if is(&error, Errno::ENAMETOOLONG) && start != SHORT => start = OsStr::new(SHORT),
            made => return Ok((name, made?)),
        }
    }
    Err(Errno::EEXIST.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::users::{as_user, is_root};

    const VICTIM: u32 = 65_501;
    const ATTACKER: u32 = 65_502;

    fn directory(mode: u32) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
        place
    }

    fn names(place: &Path) -> Vec<OsString> {
        let mut names: Vec<_> = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let place = directory(0o700);
        let path = place.path().join("model");
        for contents in ["a long line", "b"] {
            replace_file(&path, contents.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        }
        assert_eq!(names(place.path()), ["model"]);
        fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        replace_file(&path, b"c").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600, "the mode is kept");
        let occupied = place.path().join("directory");
        fs::create_dir(&occupied).unwrap();
        assert!(replace_file(&occupied, b"").is_err());
        assert_eq!(names(place.path()), ["directory", "model"]);
    }

    #[test]
    fn names_that_exist_are_not_used() {
        let place = directory(0o700);
        let path = place.path().join("model");
        let first = create_beside(&path).unwrap();
        let second = create_beside(&path).unwrap();
        assert_ne!(first, second);
        assert!(fs::read(&second).unwrap().is_empty());
        assert!(first.to_str().unwrap().ends_with(&format!("/model.{}-0", std::process::id())));
    }

    #[test]
    fn the_longest_name_is_replaced() {
        let place = directory(0o700);
        let path = place.path().join("m".repeat(255));
        replace_file(&path, b"a").unwrap();
        replace_file(&path, b"b").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "b");
        assert_eq!(names(place.path()).len(), 1);
    }

    #[test]
    fn another_users_links_are_not_followed() {
        if !is_root() {
            return;
        }
        for mode in [0o1777, 0o777] {
            let (place, home) = (directory(mode), directory(0o777));
            let path = place.path().join("model");
            let mine = home.path().join("mine");
            as_user(VICTIM, || fs::write(&mine, "mine").unwrap());
            as_user(ATTACKER, || {
                symlink(&mine, &path).unwrap();
                for number in 0..10 {
                    let name = format!("model.{}-{number}", std::process::id());
                    symlink(&mine, place.path().join(name)).unwrap();
                }
            });
            as_user(VICTIM, || {
                let beside = create_beside(&path).unwrap();
                assert!(fs::symlink_metadata(beside).unwrap().is_file());
            });
            assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
            // The kernel lets nobody replace the link of another user in a sticky directory.
            let replaced = as_user(VICTIM, || replace_file(&path, b"new"));
            assert_eq!(replaced.is_ok(), mode == 0o777, "{replaced:?}");
            let found = fs::symlink_metadata(&path).unwrap();
            assert_eq!(found.uid(), if mode == 0o777 { VICTIM } else { ATTACKER });
            assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");

            let planted = place.path().join("planted");
            as_user(ATTACKER, || symlink(home.path(), &planted).unwrap());
            let through = planted.join("model");
            let made = as_user(VICTIM, || replace_file(&through, b"new").and(create_beside(&through)));
            assert_eq!(made.is_ok(), mode == 0o777, "{made:?}");
            assert_eq!(home.path().join("model").exists(), mode == 0o777);
        }
    }
}
