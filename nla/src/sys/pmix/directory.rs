//! The directory of a session's files on one node: only its user can enter it.
//!
//! Its name has the agent's pid, so that the guardian of an agent that was killed finds it. The rest of the name is random:
//! other users cannot create all names beforehand.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::mkdtemp;

/// The beginning of the error of [`make_directory`].
pub const NO_DIRECTORY: &str = "no directory can be made in";

fn prefix(pid: u32) -> String {
    format!("scela-pmix-{pid}-")
}

/// Makes a directory of this process, with mode 0700, in `parent`.
pub fn make_directory(parent: &Path) -> io::Result<PathBuf> {
    let template = parent.join(prefix(std::process::id()) + "XXXXXX");
    mkdtemp(&template).map_err(|errno| {
        let error = io::Error::from(errno);
        io::Error::new(error.kind(), format!("{NO_DIRECTORY} {}: {error}", parent.display()))
    })
}

/// Removes the directories in `parent` of a process that has ended. Those of other users stay.
pub fn remove_directories(parent: &Path, pid: u32) {
    let (user, prefix) = (nix::unistd::geteuid().as_raw(), prefix(pid));
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_named = entry.file_name().as_bytes().starts_with(prefix.as_bytes());
        // A link is not followed.
        if is_named && entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user) {
            // Ignore errors: the agent that could report them has ended.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod users;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_the_processs_own_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let named = |rest: &str| parent.path().join(prefix(pid) + rest);
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        symlink(&other, named("link")).unwrap();
        fs::write(named("file"), "").unwrap();
        let made = make_directory(parent.path()).unwrap();
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o7777, 0o700);
        fs::write(made.join("file"), "").unwrap();
        remove_directories(parent.path(), pid / 10);
        assert!(made.exists());
        remove_directories(parent.path(), pid);
        assert!(!made.exists() && other.join("file").exists() && named("file").exists());
    }

    #[test]
    fn the_names_of_directories_cannot_be_foreseen() {
        let parent = tempfile::tempdir().unwrap();
        let made = [(); 3].map(|()| make_directory(parent.path()).unwrap());
        let random = |path: &Path| path.to_string_lossy().rsplit('-').next().unwrap().to_owned();
        assert!(made.iter().all(|path| random(path).len() == 6 && random(path) != "XXXXXX"));
        assert!(random(&made[0]) != random(&made[1]) && random(&made[1]) != random(&made[2]));
    }

    #[test]
    fn a_missing_parent_is_named() {
        let error = make_directory(Path::new("/nonexistent")).unwrap_err();
        let expected = "no directory can be made in /nonexistent: No such file or directory (os error 2)";
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::NotFound, expected));
    }
}
