//! The temporary directories of a bench: programs in the target directory, pages in shared memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// The two directories, removed on drop.
#[derive(Debug)]
pub struct Scratch {
    programs: TempDir,
    pages: TempDir,
}

impl Scratch {
    /// Creates both directories, the first one in `target`.
    ///
    /// # Errors
    /// If one cannot be created.
    pub fn create(target: &Path) -> io::Result<Self> {
        let parent = target.join("tmp");
        fs::create_dir_all(&parent)?;
        Ok(Self {
            programs: tempfile::Builder::new().prefix("scela-bench-").tempdir_in(parent)?,
            pages: tempfile::Builder::new().prefix("scela-bench-").tempdir_in(SHARED_MEMORY)?,
        })
    }

    /// Returns the directory for programs and stderr files of launchers.
    #[must_use]
    pub fn programs(&self) -> &Path {
        self.programs.path()
    }

    /// Returns the directory for pages.
    #[must_use]
    pub fn pages(&self) -> &Path {
        self.pages.path()
    }

    /// Returns both paths, for a clean-up without the value.
    #[must_use]
    pub fn paths(&self) -> [PathBuf; 2] {
        [self.programs().to_owned(), self.pages().to_owned()]
    }
}

const SHARED_MEMORY: &str = "/dev/shm";
