//! A directory for the files of a program that the launcher runs, with the mode 0700.

use std::io;
use std::path::{Path, PathBuf};

/// The directory. Removed with all that is in it when this value is dropped.
#[derive(Debug)]
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    /// Creates one in `$TMPDIR`, or /tmp, under a name that nobody else has.
    pub(crate) fn create() -> io::Result<Self> {
        let template = std::env::temp_dir().join("scela-XXXXXX");
        Ok(Self(nix::unistd::mkdtemp(&template)?))
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // The program may have removed it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_directory_is_private_and_is_removed() {
        let directory = PrivateDirectory::create().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        std::fs::write(path.join("file"), "x").unwrap();
        drop(directory);
        assert!(!path.exists());
    }
}
