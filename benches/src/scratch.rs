//! The two directories of one bench: programs beside cargo's other output, pages in shared memory.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// Both directories are removed with the value.
#[derive(Debug)]
pub struct Scratch {
    programs: TempDir,
    pages: TempDir,
}

impl Scratch {
    /// Makes both directories, the first one in `target`.
    ///
    /// # Errors
    /// Where one cannot be made.
    pub fn create(target: &Path) -> io::Result<Self> {
        let parent = target.join("tmp");
        fs::create_dir_all(&parent)?;
        Ok(Self {
            programs: tempfile::Builder::new().prefix("scela-bench-").tempdir_in(parent)?,
            pages: tempfile::Builder::new().prefix("scela-bench-").tempdir_in(SHARED_MEMORY)?,
        })
    }

    /// Where programs and launchers' complaints go.
    #[must_use]
    pub fn programs(&self) -> &Path {
        self.programs.path()
    }

    /// Where pages go.
    #[must_use]
    pub fn pages(&self) -> &Path {
        self.pages.path()
    }

    /// Both paths, for whoever has to remove them without the value.
    #[must_use]
    pub fn paths(&self) -> [PathBuf; 2] {
        [self.programs().to_owned(), self.pages().to_owned()]
    }
}

const SHARED_MEMORY: &str = "/dev/shm";
