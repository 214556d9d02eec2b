//! The private directories of an agent: that of its staged files, and that of its `scela-pmix`.
//!
//! The agent announces the path to its guardian before it makes the directory. If the agent is killed at any point, the guardian
//! removes this directory and no other. The name has 64 random bits, so no other session makes a directory of this
//! name, on any host that shares the file system. (mkdtemp tells the name only once the directory exists.)

use std::fs::DirBuilder;
use std::io::{self, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use super::kernel_files::random_source;
use super::remove_tree::{FilesLeft, remove_tree};
use super::signs::Signs;

/// The memory in which an agent announces the path of a directory to its guardian.
#[derive(Copy, Clone, Debug)]
pub struct DirectoryNote(pub(super) Signs);

impl DirectoryNote {
    /// Maps the memory. Processes that are forked later share it.
    pub(crate) fn new() -> io::Result<Self> {
        Signs::new().map(Self)
    }

    /// Removes the directory that the agent, which has ended, left behind.
    pub(super) fn remove_announced(self) -> Result<(), FilesLeft> {
        self.0.announced_directory().map_or(Ok(()), |path| remove_tree(&path))
    }
}

/// A directory with mode 0700. Removed when this is dropped.
#[derive(Debug)]
pub struct AnnouncedDirectory {
    path: PathBuf,
    note: DirectoryNote,
}

impl AnnouncedDirectory {
    /// Makes a directory in `parent`, an absolute path of at most some 900 bytes. Its name begins with `prefix`.
    pub fn make(parent: &Path, prefix: &str, note: DirectoryNote) -> io::Result<Self> {
        let mut random = [0; 8];
        random_source()?.read_exact(&mut random)?;
        let path = parent.join(format!("{prefix}{:016x}", u64::from_ne_bytes(random)));
        note.0.announce_directory(Some(&path))?;
        // From here on it is removed on failure, too.
        let made = Self { path, note };
        DirBuilder::new().mode(0o700).create(&made.path)?;
        Ok(made)
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the directory.
    pub fn remove(self) -> Result<(), FilesLeft> {
        remove_tree(&self.path)
    }
}

impl Drop for AnnouncedDirectory {
    fn drop(&mut self) {
        let _ = remove_tree(&self.path);
        // An empty note is never too long.
        let _ = self.note.0.announce_directory(None);
    }
}

#[cfg(test)]
mod users;

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    const PREFIX: &str = "scela-test-";

    #[test]
    fn a_directory_is_private_and_goes_with_its_value() {
        let (parent, note) = (tempfile::tempdir().unwrap(), DirectoryNote::new().unwrap());
        let made = AnnouncedDirectory::make(parent.path(), PREFIX, note).unwrap();
        let path = made.path().to_owned();
        assert_eq!(
            (path.parent(), fs::metadata(&path).unwrap().permissions().mode() & 0o7777),
            (Some(parent.path()), 0o700)
        );
        assert!(path.file_name().unwrap().to_string_lossy().starts_with(PREFIX));
        assert_eq!(note.0.announced_directory().as_deref(), Some(&*path));
        drop(made);
        assert!(!path.exists() && note.0.announced_directory().is_none());
    }

    #[test]
    fn the_guardian_removes_what_was_announced_and_nothing_else() {
        let (parent, note) = (tempfile::tempdir().unwrap(), DirectoryNote::new().unwrap());
        let other = AnnouncedDirectory::make(parent.path(), PREFIX, DirectoryNote::new().unwrap()).unwrap();
        let made = AnnouncedDirectory::make(parent.path(), PREFIX, note).unwrap();
        symlink(other.path(), made.path().join("link")).unwrap();
        let path = made.path().to_owned();
        // As if the agent was killed.
        std::mem::forget(made);
        note.remove_announced().unwrap();
        assert!(!path.exists() && other.path().exists());
        symlink(other.path(), &path).unwrap();
        note.remove_announced().unwrap();
        assert!(other.path().exists() && fs::symlink_metadata(&path).is_ok(), "a link is not followed");
        DirectoryNote::new().unwrap().remove_announced().unwrap();
    }

    #[test]
    fn the_names_of_directories_cannot_be_foreseen() {
        let (parent, note) = (tempfile::tempdir().unwrap(), DirectoryNote::new().unwrap());
        let made = [(); 3].map(|()| AnnouncedDirectory::make(parent.path(), PREFIX, note).unwrap());
        let random = made.each_ref().map(|made| made.path().to_string_lossy().rsplit('-').next().unwrap().to_owned());
        assert!(random.iter().all(|random| random.len() == 16), "{random:?}");
        assert!(random[0] != random[1] && random[1] != random[2] && random[0] != random[2]);
    }

    #[test]
    fn a_missing_parent_is_an_error() {
        let note = DirectoryNote::new().unwrap();
        let error = AnnouncedDirectory::make(Path::new("/nonexistent"), PREFIX, note).unwrap_err();
        assert_eq!((error.kind(), note.0.announced_directory()), (io::ErrorKind::NotFound, None));
        let long = Path::new("/").join("n".repeat(5000));
        assert_eq!(AnnouncedDirectory::make(&long, PREFIX, note).unwrap_err().kind(), io::ErrorKind::InvalidFilename);
    }
}
