//! A directory for the files of a program that the launcher runs, with the mode 0700.

use std::io;
use std::path::{Path, PathBuf};

use nla::sys::EndSignalsHeld;

/// The directory. Removed with all that is in it when this value is dropped. A signal that ends this process takes effect after that.
#[derive(Debug)]
pub(crate) struct PrivateDirectory {
    path: PathBuf,
    _held: EndSignalsHeld,
}

impl PrivateDirectory {
    /// Creates one in `$TMPDIR`, or /tmp, under a name that nobody else has. Errors never have kind NotFound, which callers read as
    /// "program not installed".
    pub(crate) fn create() -> io::Result<Self> {
        Self::create_in(&std::env::temp_dir())
    }

    fn create_in(place: &Path) -> io::Result<Self> {
        let held = EndSignalsHeld::begin();
        let path = nix::unistd::mkdtemp(&place.join("scela-XXXXXX")).map_err(|error| {
            io::Error::other(format!("no directory can be made in '{}': {}", place.display(), io::Error::from(error)))
        })?;
        Ok(Self { path, _held: held })
    }

    /// Returns its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        // The program may have removed it.
        let _ = std::fs::remove_dir_all(&self.path);
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
        let error = PrivateDirectory::create_in(Path::new("/nonexistent")).unwrap_err();
        let text = "no directory can be made in '/nonexistent': No such file or directory (os error 2)";
        assert_eq!((error.kind(), error.to_string().as_str()), (io::ErrorKind::Other, text));
    }
}
