//! Reads the session's files at the launcher, and sends them to the root's children.
//!
//! A thread reads at the pace of the slowest child. A file that changes after the plan was made is an error: nodes would get a
//! mixture of two versions. If nodes have caches, the thread first reads all files for the hashes of their chunks, and then those
//! chunks again that some node lacks.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::future::pending;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::Span;

use super::staging::NICE;
use crate::core::{
    AgentId, BLOCK_BYTES, Chunk, ChunkSet, Chunks, DIGESTS_PER_MESSAGE, Digest, StagePlan, StagedFile, StagedKind,
    hashes_message, part_header,
};
use crate::link::{Link, Receipt};
use crate::sys::{self, open_regular};
use crate::tasks::Tasks;
use crate::wire::Lane;

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

    /// Returns a file of a staged directory that was found there, and its length. Its last component is no link.
    pub fn found(path: PathBuf, found: &Metadata) -> Self {
        Self { path, version: Version::of(found) }
    }

    fn failed(&self, why: &str) -> String {
        format!("'{}' cannot be staged: {why}", self.path.display())
    }

    fn unreadable(&self, error: &io::Error) -> String {
        self.failed(&format!("it cannot be read: {error}"))
    }

    fn changed(&self) -> String {
        self.failed("it has changed since scela-run began")
    }

    fn open_again(&self) -> Result<File, String> {
        let file = open_regular(&self.path).map_err(|error| self.unreadable(&error))?;
        self.check(&file)?;
        Ok(file)
    }

    fn check(&self, file: &File) -> Result<(), String> {
        match file.metadata() {
            Ok(found) if Version::of(&found) == self.version => Ok(()),
            Ok(_) => Err(self.changed()),
            Err(error) => Err(self.unreadable(&error)),
        }
    }
}

/// Reads the session's files in chunks.
struct Reading {
    sources: Vec<StageSource>,
    cut: Chunks,
    /// The file that was read last, with the index of its content.
    open: Option<(usize, File)>,
}

impl Reading {
    /// The sources are those of the plan's contents, in their order.
    fn of(plan: &StagePlan, sources: Vec<StageSource>) -> Self {
        Self { sources, cut: Chunks::of(plan), open: None }
    }

    /// Reads a chunk, and calls `meanwhile` before its files are checked for changes.
    fn chunk(&mut self, chunk: Chunk) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; chunk.bytes as usize];
        let Self { sources, cut, open } = self;
        cut.parts(chunk, |content, offset, range| {
            let Some(source) = sources.get(content) else { return Err("a staged file has no source".to_owned()) };
            let file = match open.take() {
                Some((known, file)) if known == content => file,
                _ => source.open_again()?,
            };
            let part = bytes.get_mut(range.start as usize..range.end as usize).unwrap_or_default();
            file.read_exact_at(part, offset).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => source.changed(),
                _ => source.unreadable(&error),
            })?;
            // Before the hash: without it, no agent takes the chunk for complete.
            source.check(&file)?;
            *open = Some((content, file));
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Hands what nodes need to `send`, which returns false if it is not wanted any more. `needed` gets the messages with the hashes
    /// to be sent, and returns the chunks that some node lacks; `None` as above.
    fn send(
        &mut self,
        needed: Option<impl FnOnce(&[Digest]) -> Option<ChunkSet>>,
        send: &mut impl FnMut(usize, Bytes) -> bool,
    ) -> Result<(), String> {
        let chunks = self.cut.chunks.clone();
        let mut needs = None;
        if let Some(needed) = needed {
            let mut digests: Vec<Digest> = Vec::with_capacity(chunks.len());
            for chunk in &chunks {
                digests.push(Sha256::digest(self.chunk(*chunk)?).into());
            }
            needs = match needed(&digests) {
                Some(needs) => Some(needs),
                None => return Ok(()),
            };
        }
        for (index, chunk) in chunks.into_iter().enumerate() {
            if needs.as_ref().is_some_and(|needs| !needs.contains(index)) {
                continue;
            }
            let mut bytes = self.chunk(chunk)?;
            let digest = Sha256::digest(&bytes);
            bytes.extend_from_slice(&digest);
            let last = chunk.bytes as usize / BLOCK_BYTES * BLOCK_BYTES;
            let starts = (0..=last).step_by(BLOCK_BYTES);
            for start in starts.filter(|start| *start == 0 || (*start as u64) < chunk.bytes) {
                // The hash is with the last bytes.
                let is_last = (start + BLOCK_BYTES) as u64 >= chunk.bytes;
                let end = if is_last { bytes.len() } else { start + BLOCK_BYTES };
                let message = [&part_header(index)[..], &bytes[start..end]].concat();
                if !send(index, message.into()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }
}

/// A message to the children: its chunk, or all children get it.
type Message = (Option<usize>, Bytes);

/// The chunks that the subtree of a child lacks.
type Needs = (AgentId, ChunkSet);

/// The sending of the session's files.
#[derive(Default)]
pub(super) struct Sending {
    failed: Option<oneshot::Receiver<String>>,
    /// Takes the reports of children.
    pub(super) needs: Rc<NeedsHub>,
}

/// Takes the reports of children about the chunks that they lack.
#[derive(Default)]
pub(super) struct NeedsHub(RefCell<Option<(mpsc::UnboundedSender<Needs>, usize)>>);

impl NeedsHub {
    /// Takes the chunks that the subtree of a child lacks.
    pub(super) fn take(&self, child: AgentId, needs: &[u8]) {
        let hub = self.0.borrow();
        let known = hub.as_ref().and_then(|(sender, chunks)| Some((sender, ChunkSet::from_bytes(needs, *chunks)?)));
        match known {
            Some((sender, needs)) => drop(sender.send((child, needs))),
            None => tracing::warn!(%child, "a report about chunks of staged files is not expected"),
        }
    }
}

impl Sending {
    /// Begins to send the files to all `children`.
    pub(super) fn begin(
        &mut self,
        plan: &StagePlan,
        sources: Vec<StageSource>,
        children: Vec<(AgentId, Link)>,
        tasks: &Tasks,
    ) {
        let (report, failed) = oneshot::channel();
        self.failed = Some(failed);
        let mut reading = Reading::of(plan, sources);
        let chunks = reading.cut.chunks.len();
        let (blocks, incoming) = mpsc::channel::<Message>(1);
        let (ids, links) = children.into_iter().unzip::<AgentId, Link, Vec<_>, Vec<_>>();
        let (tell, told) = oneshot::channel();
        let asks = plan.cache().map(|_| {
            // Bounded by the number of children: each reports once.
            let (sender, mut needs) = mpsc::unbounded_channel::<Needs>();
            self.needs.0.replace(Some((sender, chunks)));
            let blocks = blocks.clone();
            move |digests: &[Digest]| {
                for digests in digests.chunks(DIGESTS_PER_MESSAGE) {
                    blocks.blocking_send((None, hashes_message(digests).into())).ok()?;
                }
                let (mut all, mut union) = (vec![None; ids.len()], ChunkSet::none(chunks));
                while all.iter().any(Option::is_none) {
                    let (child, needs) = needs.blocking_recv()?;
                    union.unite(&needs);
                    let at = ids.iter().position(|id| *id == child)?;
                    all[at] = Some(needs);
                }
                tell.send(all.into_iter().flatten().collect()).ok()?;
                Some(union)
            }
        });
        let work = move || {
            sys::set_thread_nice(NICE);
            let mut send = |chunk, block| blocks.blocking_send((Some(chunk), block)).is_ok();
            match reading.send(asks, &mut send) {
                Ok(()) => drop(blocks.blocking_send((None, Bytes::new()))),
                Err(why) => drop(report.send(why)),
            }
        };
        if let Err(error) = tasks.spawn_thread("stage source", work) {
            let (report, failed) = oneshot::channel();
            let _ = report.send(format!("the files cannot be read: {error}"));
            self.failed = Some(failed);
        }
        tasks.spawn("stage blocks", Span::current(), send(incoming, links, told));
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

async fn send(mut blocks: mpsc::Receiver<Message>, children: Vec<Link>, mut told: oneshot::Receiver<Vec<ChunkSet>>) {
    let room = Arc::new(Semaphore::new(BLOCKS));
    let mut needs: Option<Vec<ChunkSet>> = None;
    while let Some((chunk, block)) = blocks.recv().await {
        if needs.is_none() {
            // They are told before the first chunk.
            needs = told.try_recv().ok();
        }
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let permit = Arc::new(permit);
        for (index, child) in children.iter().enumerate() {
            let of_child = needs.as_ref().and_then(|needs| needs.get(index));
            if chunk.is_none_or(|chunk| of_child.is_none_or(|needs| needs.contains(chunk))) {
                child.send(Lane::Stage, block.clone(), Receipt::holding(Arc::clone(&permit)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::core::{DIGEST_BYTES, StageDown};

    type NoNeeds = fn(&[Digest]) -> Option<ChunkSet>;

    fn source(bytes: &[u8]) -> (tempfile::NamedTempFile, Reading) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        let (source, staged) = StageSource::open(file.path(), StagedKind::File, b"n".to_vec()).unwrap();
        assert_eq!((staged.bytes, staged.is_executable), (bytes.len() as u64, false));
        let plan = StagePlan::new(vec![staged], Vec::new(), None).unwrap();
        (file, Reading::of(&plan, vec![source]))
    }

    /// Reads the file while `meanwhile` is called before each block is taken.
    fn read(reading: &mut Reading, mut meanwhile: impl FnMut()) -> (Vec<u8>, Result<(), String>) {
        let mut all = Vec::new();
        let result = reading.send(None::<NoNeeds>, &mut |index, block| {
            meanwhile();
            let Some(StageDown::Part(chunk, bytes)) = StageDown::parse(&block) else { panic!("{block:?}") };
            assert_eq!(chunk, index);
            assert!(bytes.len() <= BLOCK_BYTES + DIGEST_BYTES);
            all.extend_from_slice(bytes);
            true
        });
        (all, result)
    }

    #[test]
    fn each_chunk_is_followed_by_its_hash() {
        const CHUNK: usize = 1 << 20;
        for length in [1, BLOCK_BYTES, BLOCK_BYTES + 1, CHUNK, 2 * CHUNK + 1] {
            let bytes: Vec<u8> = (0..length).map(|at| (at / 1000) as u8).collect();
            let (_file, mut reading) = source(&bytes);
            let expected = bytes.chunks(CHUNK).flat_map(|chunk| [chunk, &Sha256::digest(chunk)].concat());
            assert!(read(&mut reading, || ()) == (expected.collect(), Ok(())), "{length}");
        }
        let (_file, mut reading) = source(b"");
        assert_eq!(read(&mut reading, || ()), (Vec::new(), Ok(())));
    }

    #[test]
    fn only_what_nodes_lack_is_sent() {
        const CHUNK: usize = 1 << 20;
        let bytes: Vec<u8> = (0..2 * CHUNK + 9).map(|at| (at / 1000) as u8).collect();
        let (_file, mut reading) = source(&bytes);
        let digests: Vec<Digest> = bytes.chunks(CHUNK).map(|chunk| Sha256::digest(chunk).into()).collect();
        let mut sent = Vec::new();
        let needed = |found: &[Digest]| {
            assert_eq!(found, digests);
            let mut needs = ChunkSet::none(3);
            needs.insert(2);
            Some(needs)
        };
        reading
            .send(Some(needed), &mut |chunk, block| {
                sent.push((chunk, block.len()));
                true
            })
            .unwrap();
        assert_eq!(sent, [(2, part_header(2).len() + 9 + DIGEST_BYTES)]);
    }

    #[test]
    fn a_file_that_changes_is_never_complete() {
        let bytes = vec![7; 3 << 20];
        for change in ["before", "meanwhile", "cut"] {
            let (file, mut reading) = source(&bytes);
            let grow = || std::fs::OpenOptions::new().append(true).open(file.path()).unwrap().write_all(b"x").unwrap();
            if change == "before" {
                grow();
            }
            let mut is_first = change != "before";
            let (all, result) = read(&mut reading, || {
                if std::mem::take(&mut is_first) {
                    if change == "cut" { file.as_file().set_len(9).unwrap() } else { grow() }
                }
            });
            let expected =
                format!("'{}' cannot be staged: it has changed since scela-run began", file.path().display());
            assert_eq!(result, Err(expected), "{change}");
            assert!(all.len() < bytes.len(), "the other chunks do not follow");
        }
    }

    #[test]
    fn only_regular_files_that_can_be_read_are_staged() {
        let place = tempfile::tempdir().unwrap();
        for path in [place.path().to_owned(), place.path().join("missing"), "/dev/null".into()] {
            assert!(StageSource::open(&path, StagedKind::File, Vec::new()).is_err(), "{}", path.display());
        }
        let (file, mut reading) = source(b"x");
        let path = file.path().to_owned();
        drop(file);
        let (_, result) = read(&mut reading, || ());
        let missing =
            format!("'{}' cannot be staged: it cannot be read: No such file or directory (os error 2)", path.display());
        assert_eq!(result, Err(missing));
    }
}
