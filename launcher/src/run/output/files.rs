//! The files of `-outfile-pattern` and `-errfile-pattern`. Both streams share them: one file may get both, by one name or by several.

use std::collections::HashMap;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nla::core::NamespaceId;
use nla::sys::{Below, OutputMode, open_output};
use pmi::Rank;

/// Files that are open at a time; beyond that, all are closed and opened again when needed.
const FILES_OPEN_MAX: usize = 256;

/// The files of both streams.
#[derive(Default)]
pub(super) struct Files(Mutex<Known>);

#[derive(Default)]
struct Known {
    by_path: HashMap<PathBuf, Arc<Mutex<OutputFile>>>,
    /// Regular files, by device and inode.
    by_identity: HashMap<(u64, u64), Arc<Mutex<OutputFile>>>,
    /// Upper bound on the number of open files.
    open: usize,
}

/// A file. The stream that writes it holds its lock.
pub(super) struct OutputFile {
    path: PathBuf,
    /// `None` if it was closed to make room. An error is reported by the next [`Files::append`].
    file: Option<io::Result<File>>,
    /// The rank whose line is unfinished.
    pub(super) open_line: Option<(NamespaceId, Rank)>,
    /// Whether an error was reported.
    pub(super) has_failed: bool,
}

impl Files {
    /// Returns the file that `path` leads to. The first path to it empties it.
    pub(super) fn find(&self, path: &Path) -> Arc<Mutex<OutputFile>> {
        let known = &mut *lock(&self.0);
        if let Some(file) = known.by_path.get(path) {
            return Arc::clone(file);
        }
        let same = fs::metadata(path).ok().and_then(|found| known.by_identity.get(&identity(&found)?).cloned());
        let file = same.unwrap_or_else(|| known.open(path));
        known.by_path.insert(path.to_owned(), Arc::clone(&file));
        file
    }

    /// Writes to a file of this value.
    pub(super) fn append(&self, file: &mut OutputFile, bytes: &[u8]) -> io::Result<()> {
        let mut opened = match file.file.take() {
            Some(opened) => opened?,
            None => {
                let opened = open_output(&file.path, OutputMode::Append)?;
                lock(&self.0).note_open();
                opened
            }
        };
        let written = opened.write_all(bytes);
        file.file = Some(Ok(opened));
        written
    }
}

impl Known {
    fn open(&mut self, path: &Path) -> Arc<Mutex<OutputFile>> {
        let directory = path.parent().map_or(Ok(()), |parent| Below::make(parent).map(drop));
        let opened = directory.and_then(|()| open_output(path, OutputMode::Replace));
        let found = opened.as_ref().ok().and_then(|file| identity(&file.metadata().ok()?));
        self.note_open();
        let file = OutputFile { path: path.to_owned(), file: Some(opened), open_line: None, has_failed: false };
        let file = Arc::new(Mutex::new(file));
        if let Some(found) = found {
            self.by_identity.insert(found, Arc::clone(&file));
        }
        file
    }

    /// Closes all other files if there are too many. Skips one that the other stream writes now.
    fn note_open(&mut self) {
        if self.open >= FILES_OPEN_MAX {
            let files = self.by_path.values().filter_map(|file| file.try_lock().ok());
            files.filter(|file| matches!(file.file, Some(Ok(_)))).for_each(|mut file| file.file = None);
            self.open = 0;
        }
        self.open += 1;
    }
}

/// Locks a value.
pub(super) fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No holder of the lock panics.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns what identifies a regular file on this machine.
fn identity(found: &Metadata) -> Option<(u64, u64)> {
    found.is_file().then(|| (found.dev(), found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(files: &Files, path: &Path, text: &str) {
        files.append(&mut lock(&files.find(path)), text.as_bytes()).unwrap();
    }

    #[test]
    fn files_beyond_the_bound_are_continued_not_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let files = Files::default();
        for turn in 0..2 {
            for i in 0..FILES_OPEN_MAX + 3 {
                append(&files, &dir.path().join(format!("out.{i}")), &format!("{turn}\n"));
            }
        }
        for i in [0, 1, FILES_OPEN_MAX + 2] {
            assert_eq!(fs::read_to_string(dir.path().join(format!("out.{i}"))).unwrap(), "0\n1\n");
        }
        let open = |file: &&Arc<Mutex<OutputFile>>| lock(file).file.is_some();
        assert!(lock(&files.0).by_path.values().filter(open).count() <= FILES_OPEN_MAX);
    }

    #[test]
    fn all_names_of_a_file_add_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let [one, link, hard] = ["one", "link", "hard"].map(|name| dir.path().join(name));
        std::os::unix::fs::symlink("one", &link).unwrap();
        fs::write(&one, "before, and long\n").unwrap();
        fs::hard_link(&one, &hard).unwrap();
        let files = Files::default();
        for (path, text) in [(&link, "a\n"), (&one, "b\n"), (&hard, "c\n"), (&link, "d\n")] {
            append(&files, path, text);
        }
        assert_eq!(fs::read_to_string(&one).unwrap(), "a\nb\nc\nd\n");
        let new = dir.path().join("new");
        append(&files, &new, "x\n");
        append(&files, &dir.path().join("./new"), "y\n");
        assert_eq!(fs::read_to_string(&new).unwrap(), "x\ny\n");
    }
}
