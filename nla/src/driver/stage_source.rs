//! Reads the session's files at the launcher, and sends them to the root's children.
//!
//! A thread reads at the pace of the slowest child. A file that changes after the plan was made is an error: nodes would get a
//! mixture of two versions.

use std::fs::{File, Metadata};
use std::future::pending;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::Span;

use crate::core::{StagedFile, StagedKind};
use crate::link::{Link, Receipt};
use crate::sys::open_regular;
use crate::tasks::Tasks;
use crate::wire::Lane;

/// Bytes of a block.
const BLOCK_BYTES: usize = 64 * 1024;
/// Blocks that have been read and not been written to all links.
const BLOCKS: usize = 8;

/// A file of the launcher's machine, as it was when the plan was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageSource {
    path: PathBuf,
    version: Version,
}

/// A file's identity, length and time of its last change.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Version {
    file: (u64, u64),
    bytes: u64,
    changed: (i64, i64),
}

impl Version {
    fn of(found: &Metadata) -> Self {
        Self { file: (found.dev(), found.ino()), bytes: found.len(), changed: (found.ctime(), found.ctime_nsec()) }
    }
}

impl StageSource {
    /// Returns the file at `path`, and how it is staged under this name. Fails if it cannot be read, or is no regular file.
    pub fn open(path: &Path, kind: StagedKind, name: Vec<u8>) -> io::Result<(Self, StagedFile)> {
        let found = open_regular(path)?.metadata()?;
        let is_executable = found.mode() & 0o100 != 0;
        let staged = StagedFile { kind, name, bytes: found.len(), is_executable };
        Ok((Self { path: path.to_owned(), version: Version::of(&found) }, staged))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Hands the file's bytes and their SHA-256 to `send`, which returns false if they are not wanted any more.
    fn read(&self, send: &mut impl FnMut(Bytes) -> bool) -> Result<(), String> {
        let failed = |why: &str| format!("'{}' cannot be staged: {why}", self.path.display());
        let unreadable = |error: io::Error| failed(&format!("it cannot be read: {error}"));
        let changed = || failed("it has changed since scela-run began");
        let check = |file: &File| match file.metadata() {
            Ok(found) if Version::of(&found) == self.version => Ok(()),
            Ok(_) => Err(changed()),
            Err(error) => Err(unreadable(error)),
        };
        let mut file = open_regular(&self.path).map_err(unreadable)?;
        check(&file)?;
        let (mut left, mut hash) = (self.version.bytes, Sha256::new());
        while left > 0 {
            let mut block = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK_BYTES)];
            file.read_exact(&mut block).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => changed(),
                _ => unreadable(error),
            })?;
            left -= block.len() as u64;
            hash.update(&block);
            if !send(block.into()) {
                return Ok(());
            }
        }
        // Before the hash: without it, no agent takes the file for complete.
        check(&file)?;
        send(Bytes::copy_from_slice(&hash.finalize()));
        Ok(())
    }
}

/// The sending of the session's files.
#[derive(Default)]
pub(super) struct Sending {
    failed: Option<oneshot::Receiver<String>>,
}

impl Sending {
    /// Begins to send the files to all `children`.
    pub(super) fn begin(&mut self, sources: Vec<StageSource>, children: Vec<Link>, tasks: &Tasks) {
        let (report, failed) = oneshot::channel();
        self.failed = Some(failed);
        let (blocks, incoming) = mpsc::channel(1);
        let work = move || {
            let mut send = |block| blocks.blocking_send(block).is_ok();
            match sources.iter().try_for_each(|source| source.read(&mut send)) {
                Ok(()) => drop(send(Bytes::new())),
                Err(why) => drop(report.send(why)),
            }
        };
        if let Err(error) = tasks.spawn_thread("stage source", work) {
            let (report, failed) = oneshot::channel();
            let _ = report.send(format!("the files cannot be read: {error}"));
            self.failed = Some(failed);
        }
        tasks.spawn("stage blocks", Span::current(), send(incoming, children));
    }

    /// Waits until a file cannot be sent, and returns why. Cancel-safe.
    pub(super) async fn failed(&mut self) -> String {
        let Some(failed) = &mut self.failed else { return pending().await };
        let failed = failed.await;
        self.failed = None;
        match failed {
            Ok(why) => why,
            // All files were read.
            Err(_) => pending().await,
        }
    }
}

async fn send(mut blocks: mpsc::Receiver<Bytes>, children: Vec<Link>) {
    let room = Arc::new(Semaphore::new(BLOCKS));
    while let Some(block) = blocks.recv().await {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let permit = Arc::new(permit);
        for child in &children {
            child.send(Lane::Stage, block.clone(), Receipt::holding(Arc::clone(&permit)));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn source(bytes: &[u8]) -> (tempfile::NamedTempFile, StageSource) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let (source, staged) = StageSource::open(file.path(), StagedKind::File, b"n".to_vec()).unwrap();
        assert_eq!((staged.bytes, staged.is_executable), (bytes.len() as u64, false));
        (file, source)
    }

    /// Reads the file while `meanwhile` is called before each block is taken.
    fn read(source: &StageSource, mut meanwhile: impl FnMut()) -> (Vec<u8>, Result<(), String>) {
        let mut all = Vec::new();
        let result = source.read(&mut |block| {
            meanwhile();
            all.extend_from_slice(&block);
            true
        });
        (all, result)
    }

    #[test]
    fn a_file_is_followed_by_its_hash() {
        for length in [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 1] {
            let bytes = vec![7; length];
            let (_file, source) = source(&bytes);
            let expected = [&bytes[..], &Sha256::digest(&bytes)].concat();
            assert!(read(&source, || ()) == (expected, Ok(())), "{length}");
        }
    }

    #[test]
    fn a_file_that_changes_is_never_complete() {
        let bytes = vec![7; 2 * BLOCK_BYTES];
        for change in ["before", "meanwhile", "cut"] {
            let (file, source) = source(&bytes);
            let grow = || std::fs::OpenOptions::new().append(true).open(file.path()).unwrap().write_all(b"x").unwrap();
            if change == "before" {
                grow();
            }
            let mut is_first = change != "before";
            let (all, result) = read(&source, || {
                if std::mem::take(&mut is_first) {
                    if change == "cut" { file.as_file().set_len(9).unwrap() } else { grow() }
                }
            });
            let expected =
                format!("'{}' cannot be staged: it has changed since scela-run began", file.path().display());
            assert_eq!(result, Err(expected), "{change}");
            assert!(all.len() <= bytes.len(), "no hash follows");
        }
    }

    #[test]
    fn only_regular_files_that_can_be_read_are_staged() {
        let place = tempfile::tempdir().unwrap();
        for path in [place.path().to_owned(), place.path().join("missing"), "/dev/null".into()] {
            assert!(StageSource::open(&path, StagedKind::File, Vec::new()).is_err(), "{}", path.display());
        }
        let (file, source) = source(b"x");
        let path = file.path().to_owned();
        drop(file);
        let (_, result) = read(&source, || ());
        let missing =
            format!("'{}' cannot be staged: it cannot be read: No such file or directory (os error 2)", path.display());
        assert_eq!(result, Err(missing));
    }
}
