//! The directory of a session's files on one node: only its user can enter it.
//!
//! Its name has the agent's pid, so that the guardian of an agent that was killed finds it.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Names that are tried: other users may have taken some.
const NAMES: u32 = 16;

fn name(parent: &Path, pid: u32, number: u32) -> PathBuf {
    parent.join(format!("scela-pmix-{pid}-{number}"))
}

/// Makes a directory of this process in `parent`.
pub fn make_directory(parent: &Path) -> io::Result<PathBuf> {
    for number in 0..NAMES {
        let directory = name(parent, std::process::id(), number);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            result => return result.map(|()| directory),
        }
    }
    let text = format!("no directory scela-pmix-* can be made in {}: all names are taken", parent.display());
    Err(io::Error::other(text))
}

/// Removes the directories in `parent` of a process that has ended. Those of other users stay.
pub fn remove_directories(parent: &Path, pid: u32) {
    let user = nix::unistd::geteuid().as_raw();
    for number in 0..NAMES {
        let directory = name(parent, pid, number);
        // A link is not followed.
        if fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir() && found.uid() == user) {
            // Ignore errors: the agent that could report them has ended.
            let _ = fs::remove_dir_all(&directory);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn only_the_processs_own_directories_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("file"), "").unwrap();
        symlink(&other, name(parent.path(), pid, 0)).unwrap();
        fs::write(name(parent.path(), pid, 1), "").unwrap();
        let made = make_directory(parent.path()).unwrap();
        assert_eq!(made, name(parent.path(), pid, 2), "the other names are taken");
        assert_eq!(fs::metadata(&made).unwrap().permissions().mode() & 0o777, 0o700);
        fs::write(made.join("file"), "").unwrap();
        remove_directories(parent.path(), pid + 1);
        assert!(made.exists());
        remove_directories(parent.path(), pid);
        assert!(!made.exists() && other.join("file").exists() && name(parent.path(), pid, 1).exists());
    }

    #[test]
    fn a_directory_needs_a_free_name() {
        let parent = tempfile::tempdir().unwrap();
        for _ in 0..NAMES {
            make_directory(parent.path()).unwrap();
        }
        assert!(make_directory(parent.path()).is_err());
    }
}
