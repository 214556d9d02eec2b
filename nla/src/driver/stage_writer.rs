//! Writes the session's files to a directory of this agent: a thread does, because the disk may be slow.
//!
//! A chunk is written when it is complete and its hash is right. It comes from the parent, or from the user's cache on this node,
//! whose content is trusted no more than the parent's. Links are made last, so that nothing is written through one. The cache
//! never takes the room that the files need: old chunks make room for them, and new ones are stored only in what they leave.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use crate::core::{
    Chunk, ChunkSet, Chunks, ContentPlace, DIGEST_BYTES, Digest, Room, StageDown, StageError, StagePlan, TreeKind,
    Variable,
};
use crate::link::Receipt;
use crate::sys::{DirectoryNote, StageCache, StageDirectory, StageRoom, set_modified, stage_room};

/// A message of the lane, and its receipt. An empty message ends the files.
pub(super) type Block = (Bytes, Arc<Receipt>);

/// Returns the directories in which that of the staged files may be made, the best first.
pub(super) fn places(environment: &[Variable]) -> Vec<PathBuf> {
    let chosen =
        environment.iter().find(|(name, _)| name == b"TMPDIR").map(|(_, value)| OsStr::from_bytes(value).into());
    let usual = ["/tmp", "/dev/shm"].map(PathBuf::from);
    chosen.into_iter().filter(|path: &PathBuf| path.is_absolute()).chain(usual).collect()
}

/// Writes all files to a new directory in the first of these places that can have them. If nodes have caches, `report` gets the
/// chunks that this one lacks.
pub(super) fn receive(
    plan: &StagePlan,
    places: &[PathBuf],
    note: DirectoryNote,
    blocks: &mut mpsc::UnboundedReceiver<Block>,
    report: impl FnOnce(ChunkSet),
) -> Result<StageDirectory, String> {
    let directory = make_directory(plan, places, note)?;
    let cut = Chunks::of(plan);
    let mut writing = Writing::begin(plan, &cut, &directory)?;
    let mut missing = ChunkSet::none(cut.chunks.len());
    (0..cut.chunks.len()).for_each(|chunk| missing.insert(chunk));
    let (mut cache, mut may_store) = (None, true);
    if let Some(bounds) = plan.cache() {
        let digests = digests(cut.chunks.len(), blocks)?;
        cache = open_cache(&directory);
        if let Some(cache) = &cache {
            // Before chunks are looked for: those that are used now are the last to be removed.
            let _ = cache.shrink(bounds.bytes, bounds.age, SystemTime::now());
            for (index, (chunk, digest)) in cut.chunks.iter().zip(&digests).enumerate() {
                let name = hex(digest);
                let Some(bytes) = cache.read(&name, chunk.bytes) else { continue };
                if Sha256::digest(&bytes)[..] == digest[..] {
                    writing.write(*chunk, &bytes)?;
                    missing.remove(index);
                } else {
                    tracing::warn!(chunk = name, "a chunk in the cache is damaged");
                    cache.remove(&name);
                }
            }
        }
        report(missing.clone());
    }
    let mut arrived = Vec::new();
    let mut open = None;
    while !missing.is_empty() {
        // The end of the session drops the sender; then no one reads the error.
        let block = blocks.blocking_recv().map(|(bytes, _receipt)| bytes).filter(|bytes| !bytes.is_empty());
        let incomplete = || StageError::Incomplete(writing.name_of(&missing)).to_string();
        let block = block.ok_or_else(incomplete)?;
        let Some(StageDown::Part(index, bytes)) = StageDown::parse(&block) else {
            return Err(StageError::Surplus.to_string());
        };
        let chunk = cut.chunks.get(index).filter(|_| missing.contains(index));
        let chunk =
            *chunk.filter(|_| open.is_none_or(|open| open == index)).ok_or_else(|| StageError::Surplus.to_string())?;
        arrived.extend_from_slice(bytes);
        let length = chunk.bytes as usize;
        if arrived.len() < length + DIGEST_BYTES {
            open = Some(index);
            continue;
        }
        let (content, digest) = arrived.split_at(length);
        if digest.len() > DIGEST_BYTES {
            return Err(StageError::Surplus.to_string());
        }
        if Sha256::digest(content)[..] != *digest {
            return Err(StageError::Damaged(writing.name(chunk.content)).to_string());
        }
        writing.write(chunk, content)?;
        if let Some(cache) = cache.as_mut().filter(|_| may_store) {
            let stored = match room(directory.path()) {
                Ok(room) if plan.spares(room, writing.written) => cache.store(&hex(digest), content),
                Ok(_) => Err(io::ErrorKind::StorageFull.into()),
                Err(error) => Err(error),
            };
            may_store =
                stored.inspect_err(|error| tracing::warn!(%error, "chunks are not stored in the cache")).is_ok();
        }
        missing.remove(index);
        arrived.clear();
        open = None;
    }
    if let (Some(bounds), Some(cache)) = (plan.cache(), cache) {
        let _ = cache.shrink(bounds.bytes, bounds.age, SystemTime::now());
    }
    writing.finish()?;
    Ok(directory)
}

/// Receives the hashes of all chunks.
fn digests(count: usize, blocks: &mut mpsc::UnboundedReceiver<Block>) -> Result<Vec<Digest>, String> {
    let mut digests = Vec::new();
    while digests.len() < count {
        let block = blocks.blocking_recv().map(|(bytes, _receipt)| bytes);
        let Some(StageDown::Hashes(bytes)) = block.as_deref().and_then(StageDown::parse) else {
            return Err(StageError::Surplus.to_string());
        };
        digests.extend_from_slice(bytes.as_chunks().0);
    }
    if digests.len() > count { Err(StageError::Surplus.to_string()) } else { Ok(digests) }
}

/// Opens the user's cache beside the directory. Without a cache, all files are sent.
fn open_cache(directory: &StageDirectory) -> Option<StageCache> {
    let opened = StageCache::open(directory.path().parent()?);
    opened.inspect_err(|error| tracing::warn!(%error, "this node has no cache of staged files")).ok()
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns what a directory has for staged files.
fn room(place: &Path) -> io::Result<Room> {
    let StageRoom { may_execute, is_safe, free, files } = stage_room(place)?;
    Ok(Room { may_execute, is_safe, free, files })
}

/// Makes the directory, with its own directories, in the first of these places that can have the files.
fn make_directory(plan: &StagePlan, places: &[PathBuf], note: DirectoryNote) -> Result<StageDirectory, String> {
    let mut refusals = Vec::new();
    for place in places {
        let mut found = room(place);
        if let Some(lack) = found.as_ref().ok().and_then(|found| found.lack(plan.room()))
            && let Ok(cache) = StageCache::open_existing(place)
        {
            // A failure leaves the place without room, which is reported.
            let _ = cache.make_room(lack, SystemTime::now());
            found = room(place);
        }
        let made = match found.map(|found| found.refusal(plan.room())) {
            Ok(None) => StageDirectory::make(place, note).and_then(|made| {
                plan.directories().try_for_each(|name| made.make_inside(Path::new(name)))?;
                Ok(made)
            }),
            Ok(Some(why)) => {
                refusals.push(format!("{} {why}", place.display()));
                continue;
            }
            Err(error) => Err(error),
        };
        match made {
            Ok(made) => return Ok(made),
            Err(error) => refusals.push(format!("{}: {error}", place.display())),
        }
    }
    Err(format!("no directory can have the files: {}", refusals.join("; ")))
}

/// Writes chunks to their files.
struct Writing<'a> {
    plan: &'a StagePlan,
    cut: &'a Chunks,
    directory: &'a StageDirectory,
    /// The bytes of each content that have not been written.
    left: Vec<u64>,
    /// The bytes of all contents that have been written.
    written: u64,
    /// The file that was written last, with the index of its content.
    open: Option<(usize, File)>,
}

impl<'a> Writing<'a> {
    /// Makes all directories, and all files that have no content to wait for.
    fn begin(plan: &'a StagePlan, cut: &'a Chunks, directory: &'a StageDirectory) -> Result<Self, String> {
        let left = cut.contents.iter().map(|content| content.bytes).collect();
        let mut made = Self { plan, cut, directory, left, written: 0, open: None };
        for tree in plan.trees() {
            directory.make_inside(as_path(&tree.name)).map_err(made.failed(&tree.name))?;
            for entry in &tree.entries {
                let path = tree.path(entry);
                let done = match &entry.kind {
                    TreeKind::Directory => directory.make_inside(as_path(&path)),
                    TreeKind::Text { parts } => {
                        let parts: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
                        let text = parts.join(directory.path().as_os_str().as_bytes());
                        directory.create(as_path(&path), entry.copied_mode()).and_then(|file| {
                            file.write_all_at(&text, 0)?;
                            set_modified(&file, entry.modified)
                        })
                    }
                    TreeKind::File { .. } | TreeKind::Link { .. } => Ok(()),
                };
                done.map_err(made.failed(&path))?;
            }
        }
        for index in (0..cut.contents.len()).filter(|index| cut.contents[*index].bytes == 0) {
            made.write_to(index, 0, b"")?;
        }
        Ok(made)
    }

    fn name(&self, content: usize) -> String {
        let path = self.cut.contents.get(content).map(|content| self.plan.path(content.place)).unwrap_or_default();
        // As the user named it: the directories of programs and libraries are ours.
        match self.cut.contents.get(content).map(|content| content.place) {
            Some(ContentPlace::File(index)) => self
                .plan
                .files()
                .get(index)
                .map(|file| String::from_utf8_lossy(&file.name).into_owned())
                .unwrap_or_default(),
            _ => String::from_utf8_lossy(&path).into_owned(),
        }
    }

    /// Returns the name of the first file that is not complete.
    fn name_of(&self, missing: &ChunkSet) -> String {
        let first = (0..self.cut.chunks.len()).find(|chunk| missing.contains(*chunk));
        first.map(|chunk| self.name(self.cut.chunks[chunk].content)).unwrap_or_default()
    }

    fn failed(&self, name: &[u8]) -> impl Fn(io::Error) -> String + use<> {
        let (name, directory) =
            (String::from_utf8_lossy(name).into_owned(), self.directory.path().display().to_string());
        move |error| format!("'{name}' cannot be written to {directory}: {error}")
    }

    fn write(&mut self, chunk: Chunk, bytes: &[u8]) -> Result<(), String> {
        let cut = self.cut;
        cut.parts(chunk, |content, offset, range| {
            let part = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
            self.write_to(content, offset, part)
        })
    }

    /// Writes bytes of a file at this position. A file that is complete gets its mode and its times.
    fn write_to(&mut self, content: usize, offset: u64, bytes: &[u8]) -> Result<(), String> {
        let place = self.cut.contents[content].place;
        let file = match self.open.take() {
            Some((open, file)) if open == content => Ok(file),
            _ => self.open(content),
        };
        let written = file.and_then(|file| {
            file.write_all_at(bytes, offset)?;
            self.written += bytes.len() as u64;
            self.left[content] = self.left[content].saturating_sub(bytes.len() as u64);
            if self.left[content] > 0 {
                self.open = Some((content, file));
                return Ok(());
            }
            match place {
                ContentPlace::File(index) => {
                    let is_executable = self.plan.files().get(index).is_some_and(|file| file.is_executable);
                    file.set_permissions(std::fs::Permissions::from_mode(if is_executable { 0o700 } else { 0o600 }))
                }
                ContentPlace::Entry(tree, index) => {
                    let entry = self.plan.trees().get(tree).and_then(|tree| tree.entries.get(index));
                    let Some(entry) = entry else { return Ok(()) };
                    file.set_permissions(std::fs::Permissions::from_mode(entry.copied_mode()))?;
                    set_modified(&file, entry.modified)
                }
            }
        });
        written.map_err(|error| self.failed(self.name(content).as_bytes())(error))
    }

    /// Creates the file of a content, or opens it again.
    fn open(&self, content: usize) -> io::Result<File> {
        let Some(found) = self.cut.contents.get(content) else { return Err(io::ErrorKind::NotFound.into()) };
        let path = self.plan.path(found.place);
        if self.left[content] == found.bytes {
            return self.directory.create(as_path(&path), 0o600);
        }
        File::options().write(true).open(self.directory.path().join(as_path(&path)))
    }

    /// Makes the links, and gives directories their modes and times.
    fn finish(self) -> Result<(), String> {
        for tree in self.plan.trees() {
            for entry in &tree.entries {
                if let TreeKind::Link { target } = &entry.kind {
                    let path = tree.path(entry);
                    self.directory.link(target, as_path(&path)).map_err(self.failed(&path))?;
                }
            }
            // A directory's time changes with its entries.
            for entry in tree.entries.iter().rev().filter(|entry| entry.kind == TreeKind::Directory) {
                let path = tree.path(entry);
                let done = self.directory.complete(as_path(&path), entry.copied_mode(), entry.modified);
                done.map_err(self.failed(&path))?;
            }
        }
        Ok(())
    }
}

fn as_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;
    use std::time::Duration;

    use super::*;
    use crate::core::{CacheBounds, StagedFile, StagedKind, StagedTree, TreeEntry, hashes_message, part_header};

    const CONTENTS: [&[u8]; 4] = [b"program", b"", b"library", b"in the tree"];

    fn entry(parent: u32, name: &str, kind: TreeKind, mode: u16) -> TreeEntry {
        TreeEntry { parent, name: name.into(), kind, mode, modified: (1_000_000_000, 5) }
    }

    fn plan(cache: Option<CacheBounds>) -> StagePlan {
        let file = |kind, name: &str, bytes: &[u8]| StagedFile {
            kind,
            name: name.into(),
            bytes: bytes.len() as u64,
            is_executable: kind == StagedKind::Program,
        };
        let files = [(StagedKind::Program, "a"), (StagedKind::File, "none"), (StagedKind::Library, "libx.so")];
        let files = files.iter().zip(CONTENTS).map(|((kind, name), bytes)| file(*kind, name, bytes)).collect();
        let text = TreeKind::Text { parts: vec![b"#!".to_vec().into(), b"/t/python\n".to_vec().into()] };
        let entries = vec![
            entry(0, "d", TreeKind::Directory, 0o555),
            entry(1, "f", TreeKind::File { bytes: CONTENTS[3].len() as u64 }, 0o444),
            entry(1, "link", TreeKind::Link { target: b"../d/f".to_vec() }, 0o777),
            entry(0, "script", text, 0o755),
            entry(0, "empty", TreeKind::File { bytes: 0 }, 0o640),
        ];
        StagePlan::new(files, vec![StagedTree { name: b"t".to_vec(), entries }], cache).unwrap()
    }

    fn contents() -> Vec<u8> {
        CONTENTS.concat()
    }

    /// All files share one chunk.
    fn stream() -> Vec<u8> {
        [&contents()[..], &Sha256::digest(contents())].concat()
    }

    /// Receives a chunk in small parts, and the end.
    fn received(stream: &[u8], places: &[PathBuf]) -> Result<StageDirectory, String> {
        let parts = stream.chunks(9).map(|part| [&part_header(0)[..], part].concat());
        received_with(None, parts.chain([Vec::new()]).collect(), places).0
    }

    fn received_with(
        cache: Option<CacheBounds>,
        messages: Vec<Vec<u8>>,
        places: &[PathBuf],
    ) -> (Result<StageDirectory, String>, Option<ChunkSet>) {
        let (sender, mut blocks) = mpsc::unbounded_channel();
        for message in messages {
            sender.send((Bytes::from(message), Arc::default())).unwrap();
        }
        drop(sender);
        let mut reported = None;
        let note = DirectoryNote::new().unwrap();
        let made = receive(&plan(cache), places, note, &mut blocks, |needs| reported = Some(needs));
        (made, reported)
    }

    fn is_empty(place: &Path) -> bool {
        std::fs::read_dir(place).unwrap().next().is_none()
    }

    #[track_caller]
    fn check_files(directory: &StageDirectory) {
        let path = |name: &str| directory.path().join(name);
        let found = ["bin/a", "none", "lib/libx.so", "t/d/f"].map(|name| std::fs::read(path(name)).unwrap());
        assert_eq!(found.each_ref().map(Vec::as_slice), CONTENTS);
        assert_eq!(std::fs::read(path("t/d/link")).unwrap(), CONTENTS[3]);
        assert_eq!(
            std::fs::read_to_string(path("t/script")).unwrap(),
            format!("#!{}/t/python\n", directory.path().display())
        );
        let modes = ["bin/a", "none", "t/d", "t/d/f", "t/script", "t/empty"]
            .map(|name| std::fs::metadata(path(name)).unwrap().mode() & 0o7777);
        assert_eq!(modes, [0o700, 0o600, 0o755, 0o444, 0o755, 0o640]);
        for name in ["t/d", "t/d/f", "t/script", "t/empty"] {
            assert_eq!(std::fs::metadata(path(name)).unwrap().mtime(), 1_000_000_000, "{name}");
        }
    }

    #[test]
    fn files_are_written_to_a_directory_that_ends_with_its_value() {
        let place = tempfile::tempdir().unwrap();
        let directory = received(&stream(), &[place.path().to_owned()]).unwrap();
        check_files(&directory);
        drop(directory);
        assert!(is_empty(place.path()));
    }

    #[test]
    fn a_file_gets_its_mode_with_its_last_bytes() {
        let (place, plan) = (tempfile::tempdir().unwrap(), plan(None));
        let (cut, note) = (Chunks::of(&plan), DirectoryNote::new().unwrap());
        let directory = StageDirectory::make(place.path(), note).unwrap();
        let mut writing = Writing::begin(&plan, &cut, &directory).unwrap();
        let is_it = |content| plan.path(content) == b"t/d/f";
        let content = cut.contents.iter().position(|content| is_it(content.place)).unwrap();
        let mode = || std::fs::metadata(directory.path().join("t/d/f")).unwrap().mode() & 0o7777;
        writing.write_to(content, 0, &CONTENTS[3][..4]).unwrap();
        // Only root could open it for writing again if it were read-only.
        assert_eq!(mode(), 0o600);
        writing.write_to(content, 4, &CONTENTS[3][4..]).unwrap();
        assert_eq!(mode(), 0o444);
    }

    #[test]
    fn damaged_cut_and_long_streams_leave_nothing() {
        let place = tempfile::tempdir().unwrap();
        let check = |made: Result<StageDirectory, String>, expected: &str| {
            assert_eq!(made.unwrap_err(), expected);
            assert!(is_empty(place.path()));
        };
        let received = |stream: &[u8]| received(stream, &[place.path().to_owned()]);
        let mut damaged = stream();
        damaged[3] ^= 1;
        check(received(&damaged), "'a' was damaged on its way: its SHA-256 is wrong");
        check(received(&stream()[..stream().len() - 1]), "'a' has not arrived completely");
        check(received(b""), "'a' has not arrived completely");
        check(received(&[&stream()[..], b"x"].concat()), "more bytes arrived than the files have");
        for message in [&b"\x09"[..], &part_header(7), &hashes_message(&[[1; DIGEST_BYTES]])] {
            let made = received_with(None, vec![message.to_vec()], &[place.path().to_owned()]).0;
            check(made, "more bytes arrived than the files have");
        }
    }

    #[test]
    fn chunks_of_the_cache_are_used_if_their_hashes_are_right() {
        let place = tempfile::tempdir().unwrap();
        let bounds = Some(CacheBounds { bytes: 1000, age: Duration::from_secs(3600) });
        let digest: Digest = Sha256::digest(contents()).into();
        let hashes = || hashes_message(&[digest]);
        let part = || [&part_header(0)[..], &stream()].concat();
        let received = |messages: Vec<Vec<u8>>| {
            let (made, reported) = received_with(bounds, messages, &[place.path().to_owned()]);
            (made, reported.map(|needs| needs.len()))
        };
        let (made, needs) = received(vec![hashes(), part()]);
        check_files(&made.unwrap());
        assert_eq!(needs, Some(1));
        let (made, needs) = received(vec![hashes()]);
        check_files(&made.unwrap());
        assert_eq!(needs, Some(0), "the cache has it");
        let cache = StageCache::open(place.path()).unwrap();
        let mut damaged = contents();
        damaged[3] ^= 1;
        std::fs::write(cache.path().join(hex(&digest)), damaged).unwrap();
        let (made, needs) = received(vec![hashes(), part()]);
        check_files(&made.unwrap());
        assert_eq!(needs, Some(1), "it was damaged");
        assert_eq!(cache.read(&hex(&digest), contents().len() as u64), Some(contents()));
        // Others may enter the directory: it is not used.
        std::fs::set_permissions(cache.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let (made, needs) = received(vec![hashes(), part()]);
        check_files(&made.unwrap());
        assert_eq!(needs, Some(1));
        let (made, needs) = received(vec![part()]);
        assert_eq!((made.unwrap_err(), needs), (StageError::Surplus.to_string(), None));
    }

    #[test]
    fn a_cache_stays_within_its_bound() {
        let place = tempfile::tempdir().unwrap();
        let digest: Digest = Sha256::digest(contents()).into();
        let messages = vec![hashes_message(&[digest]), [&part_header(0)[..], &stream()].concat()];
        let bounds = CacheBounds { bytes: contents().len() as u64 - 1, age: Duration::from_secs(3600) };
        received_with(Some(bounds), messages, &[place.path().to_owned()]).0.unwrap();
        assert!(is_empty(StageCache::open(place.path()).unwrap().path()));
    }

    #[test]
    fn the_first_place_that_can_have_the_files_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let (missing, good) = (place.path().join("missing"), place.path().to_owned());
        let directory = received(&stream(), &[missing.clone(), good]).unwrap();
        assert_eq!(directory.path().parent(), Some(place.path()));
        let why = received(&stream(), &[missing.clone(), "/proc".into()]).unwrap_err();
        let expected = format!("no directory can have the files: {}: No such file or directory", missing.display());
        assert!(why.starts_with(&expected) && why.contains("; /proc "), "{why}");
    }

    #[test]
    fn the_users_directory_is_the_first_place() {
        let of = |value: &str| places(&[(b"A".to_vec(), b"/a".to_vec()), (b"TMPDIR".to_vec(), value.into())]);
        assert_eq!(of("/scratch"), ["/scratch", "/tmp", "/dev/shm"].map(PathBuf::from));
        assert_eq!(of("relative"), ["/tmp", "/dev/shm"].map(PathBuf::from));
        assert_eq!(places(&[]), of(""));
    }
}
