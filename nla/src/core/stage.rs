//! Staged files: the files that travel from the launcher to every node before the first rank starts.
//!
//! The session's plan lists them ([`StagePlan`]). Their contents follow in the lane Stage in chunks ([`Chunks`]), each with its
//! SHA-256. Agents forward the parts of chunks as they arrive. If nodes have caches, the hashes of all chunks go down first, each
//! agent reports which chunks its subtree lacks, and only these follow.

mod chunk;
mod message;
mod tree;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

pub use self::chunk::{Chunk, ChunkSet, Chunks, Content, ContentPlace, DIGEST_BYTES, Digest};
pub use self::message::{
    BLOCK_BYTES, Collected, CollectedFile, DIGESTS_PER_MESSAGE, InMemory, StageDown, StageUp, hashes_message,
    is_relative, part_header,
};
pub use self::tree::{StagedTree, TreeEntry, TreeKind, is_inside};
use super::limits::{
    STAGED_BYTES_MAX, STAGED_CHUNK_BYTES, STAGED_CHUNKS_MAX, STAGED_ENTRIES_MAX, STAGED_FILES_MAX,
    STAGED_NAME_BYTES_MAX, STAGED_WORDS_BYTES_MAX,
};
use crate::figures;

/// The environment variable that names the directory of the staged files to ranks.
pub const STAGE_DIRECTORY: &str = "SCELA_STAGE_DIR";

/// The directory of staged programs, inside that of the staged files.
const PROGRAMS: &str = "bin";
/// The directory of staged libraries, inside that of the staged files.
const LIBRARIES: &str = "lib";
/// The memory that a file system may need for a file besides its bytes: its last block, and an entry of its directory.
const OVERHEAD_BYTES: u64 = 8192;

/// The purpose of a staged file, which decides its directory.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum StagedKind {
    /// A command's program.
    Program,
    /// A library that a program needs.
    Library,
    /// A file that the user named.
    File,
}

/// A file that every node gets.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagedFile {
    /// Its purpose.
    pub kind: StagedKind,
    /// Its name in the directory of its kind: one component of a path.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its length.
    pub bytes: u64,
    /// Whether its owner may execute it.
    pub is_executable: bool,
}

impl StagedFile {
    /// Returns its path, relative to the directory of the staged files.
    pub fn path(&self) -> Vec<u8> {
        match self.kind {
            StagedKind::Program => joined(&[PROGRAMS.as_bytes(), &self.name]),
            StagedKind::Library => joined(&[LIBRARIES.as_bytes(), &self.name]),
            StagedKind::File => self.name.clone(),
        }
    }
}

fn joined(components: &[&[u8]]) -> Vec<u8> {
    components.join(&b'/')
}

/// Returns the path of the program of this name, relative to the directory of the staged files.
pub fn staged_program(name: &[u8]) -> Vec<u8> {
    joined(&[PROGRAMS.as_bytes(), name])
}

/// Whether this is the path of a program of `--stage`, relative to the directory of the staged files.
pub fn is_staged_program(path: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').next() == Some(PROGRAMS.as_bytes())
}

/// Returns the rest of a word that begins with the variable of the directory: empty, or a slash and a path.
pub fn in_stage_directory(word: &[u8]) -> Option<&[u8]> {
    let rest = word.strip_prefix(b"$")?;
    let plain = rest.strip_prefix(STAGE_DIRECTORY.as_bytes());
    let rest =
        plain.or_else(|| rest.strip_prefix(b"{")?.strip_prefix(STAGE_DIRECTORY.as_bytes())?.strip_prefix(b"}"))?;
    Some(rest).filter(|rest| rest.is_empty() || rest.starts_with(b"/"))
}

/// Returns the word by which a command names a staged file of this name: agents replace the variable.
pub fn staged_file_word(name: &str) -> String {
    format!("${STAGE_DIRECTORY}/{name}")
}

/// Returns a list of files, separated by colons or blanks as in LD_PRELOAD, with this directory in place of its variable.
pub fn in_directory(list: &[u8], directory: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(list.len() + directory.len());
    for entry in list.split_inclusive(|byte| b" :".contains(byte)) {
        match in_stage_directory(entry) {
            Some(path) => out.extend([directory, path].concat()),
            None => out.extend_from_slice(entry),
        }
    }
    out
}

/// The bounds of the caches of nodes.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CacheBounds {
    /// The bytes that stay.
    pub bytes: u64,
    /// How long a chunk stays that no session uses.
    pub age: Duration,
}

/// Why files cannot be staged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StageError {
    /// The name is no single component of a path, or is too long.
    #[error("a staged file cannot be called '{0}': a name has no '/', and at most {STAGED_NAME_BYTES_MAX} bytes")]
    Name(String),
    /// The name is that of a directory for programs or libraries.
    #[error("a staged file cannot be called '{0}': that name is reserved")]
    Reserved(String),
    /// Two files have the same name.
    #[error("two staged files are called '{0}'")]
    Twice(String),
    /// There are more than [`STAGED_FILES_MAX`] files.
    #[error("{0} files are more than can be staged ({STAGED_FILES_MAX})")]
    TooMany(usize),
    /// The files have more than [`STAGED_BYTES_MAX`] bytes.
    #[error("the files are larger than what can be staged ({})", figures::bytes(STAGED_BYTES_MAX))]
    TooLarge,
    /// There are more than [`STAGED_ENTRIES_MAX`] entries of directories.
    #[error("{0} files and directories are more than can be staged ({STAGED_ENTRIES_MAX})")]
    TooManyEntries(usize),
    /// The names are longer than [`STAGED_WORDS_BYTES_MAX`].
    #[error("the names of all files are longer than what can be staged ({})", figures::bytes(STAGED_WORDS_BYTES_MAX as u64))]
    TooManyWords,
    /// The files have more than [`STAGED_CHUNKS_MAX`] chunks, and nodes have caches.
    #[error("the files are larger than what can be staged through caches")]
    TooManyChunks,
    /// A link leads out of the directory of the staged files.
    #[error("the link '{0}' leads out of the staged directories")]
    Link(String),
    /// The bytes of a file have another hash than those that the launcher has sent.
    #[error("'{0}' was damaged on its way: its SHA-256 is wrong")]
    Damaged(String),
    /// The stream ended before the last file.
    #[error("'{0}' has not arrived completely")]
    Incomplete(String),
    /// The stream did not end with the last file.
    #[error("more bytes arrived than the files have")]
    Surplus,
}

/// The files and directories that every node gets, in the order in which they travel. Their names are safe: none leads out of the
/// directory of the staged files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StagePlan {
    files: Vec<StagedFile>,
    trees: Vec<StagedTree>,
    cache: Option<CacheBounds>,
}

impl StagePlan {
    /// Checks the names, the number and the length of the files. `cache`: nodes have caches with these bounds.
    pub fn new(files: Vec<StagedFile>, trees: Vec<StagedTree>, cache: Option<CacheBounds>) -> Result<Self, StageError> {
        if files.len() > STAGED_FILES_MAX {
            return Err(StageError::TooMany(files.len()));
        }
        let entries = trees.iter().map(|tree| tree.entries.len() + 1).sum();
        if entries > STAGED_ENTRIES_MAX {
            return Err(StageError::TooManyEntries(entries));
        }
        if trees.iter().map(StagedTree::words_bytes).sum::<usize>() > STAGED_WORDS_BYTES_MAX {
            return Err(StageError::TooManyWords);
        }
        let mut known = BTreeSet::new();
        let names = files.iter().map(|file| (file.kind, &file.name));
        for (kind, name) in names.chain(trees.iter().map(|tree| (StagedKind::File, &tree.name))) {
            let shown = || String::from_utf8_lossy(name).into_owned();
            let is_taken = kind == StagedKind::File && [PROGRAMS, LIBRARIES].iter().any(|dir| name == dir.as_bytes());
            if is_taken {
                return Err(StageError::Reserved(shown()));
            }
            if !is_component(name) {
                return Err(StageError::Name(shown()));
            }
            if !known.insert((kind, name.as_slice())) {
                return Err(StageError::Twice(shown()));
            }
        }
        trees.iter().try_for_each(StagedTree::check)?;
        let made = Self { files, trees, cache };
        let mut lengths = made.lengths();
        let all = lengths.try_fold(0_u64, |all, bytes| all.checked_add(bytes)).filter(|all| *all <= STAGED_BYTES_MAX);
        drop(lengths);
        if all.is_none() {
            return Err(StageError::TooLarge);
        }
        if made.cache.is_some() && Chunks::of(&made).chunks.len() > STAGED_CHUNKS_MAX {
            return Err(StageError::TooManyChunks);
        }
        Ok(made)
    }

    /// Whether nothing is staged.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.trees.is_empty()
    }

    /// Returns the files.
    pub fn files(&self) -> &[StagedFile] {
        &self.files
    }

    /// Returns the directories.
    pub fn trees(&self) -> &[StagedTree] {
        &self.trees
    }

    /// Returns the bounds of the caches of nodes. `None` if they have none.
    pub fn cache(&self) -> Option<CacheBounds> {
        self.cache
    }

    /// Returns the lengths of all files.
    pub fn lengths(&self) -> impl Iterator<Item = u64> {
        let in_trees = self.trees.iter().flat_map(|tree| &tree.entries).filter_map(|entry| match entry.kind {
            TreeKind::File { bytes } => Some(bytes),
            TreeKind::Directory | TreeKind::Text { .. } | TreeKind::Link { .. } => None,
        });
        self.files.iter().map(|file| file.bytes).chain(in_trees)
    }

    /// Returns the memory that a file system may need for all files.
    pub fn room(&self) -> u64 {
        self.lengths().fold(self.entries() * OVERHEAD_BYTES, u64::saturating_add)
    }

    /// Returns whether a chunk may go to a cache in the file system of the files when so many bytes of theirs were written: the
    /// rest of them must keep its room.
    pub fn spares(&self, room: Room, written: u64) -> bool {
        let rest = self.room().saturating_sub(written);
        room.free >= rest.saturating_add(STAGED_CHUNK_BYTES + OVERHEAD_BYTES) && room.files > self.entries()
    }

    /// Returns the number of files, directories and links.
    fn entries(&self) -> u64 {
        (self.files.len() + self.trees.iter().map(|tree| tree.entries.len() + 1).sum::<usize>()) as u64
    }

    /// Returns the path of a file, relative to the directory of the staged files.
    pub fn path(&self, place: ContentPlace) -> Vec<u8> {
        match place {
            ContentPlace::File(index) => self.files.get(index).map(StagedFile::path).unwrap_or_default(),
            ContentPlace::Entry(tree, index) => {
                let tree = self.trees.get(tree);
                let entry = tree.and_then(|tree| Some((tree, tree.entries.get(index)?)));
                entry.map(|(tree, entry)| tree.path(entry)).unwrap_or_default()
            }
        }
    }

    /// Returns the directories that the files need, relative to that of the staged files.
    pub fn directories(&self) -> impl Iterator<Item = &'static str> {
        let needed = [(StagedKind::Program, PROGRAMS), (StagedKind::Library, LIBRARIES)];
        needed.into_iter().filter(|(kind, _)| self.files.iter().any(|file| file.kind == *kind)).map(|(_, name)| name)
    }

    /// Returns the value of LD_LIBRARY_PATH with which programs find the staged libraries in `directory`, before those of the
    /// value `before`. `None` if no library is staged.
    pub fn library_path(&self, directory: &[u8], before: Option<&[u8]>) -> Option<Vec<u8>> {
        self.files.iter().find(|file| file.kind == StagedKind::Library)?;
        let mut path = joined(&[directory, LIBRARIES.as_bytes()]);
        if let Some(before) = before.filter(|before| !before.is_empty()) {
            path.push(b':');
            path.extend_from_slice(before);
        }
        Some(path)
    }
}

/// A plan from the wire is checked like any other.
impl<'de> Deserialize<'de> for StagePlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Unchecked(Vec<StagedFile>, Vec<StagedTree>, Option<CacheBounds>);
        let Unchecked(files, trees, cache) = Deserialize::deserialize(deserializer)?;
        Self::new(files, trees, cache).map_err(D::Error::custom)
    }
}

/// Whether a name is a single component of a path that names a file of its directory.
fn is_component(name: &[u8]) -> bool {
    let is_known = matches!(name, b"" | b"." | b"..");
    !is_known && name.len() <= STAGED_NAME_BYTES_MAX && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// The room and the mount options of a file system, for staged files.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Room {
    /// It is not mounted noexec.
    pub may_execute: bool,
    /// Users other than root and this one cannot exchange a directory that this user makes there.
    pub is_safe: bool,
    /// The bytes that are free.
    pub free: u64,
    /// The files that can still be created.
    pub files: u64,
}

impl Room {
    /// Returns the bytes that must be freed so that files that need this memory can be staged there. `None` if that does not help.
    pub fn lack(self, needed: u64) -> Option<u64> {
        let Self { may_execute, is_safe, free, files: _ } = self;
        needed.checked_sub(free).filter(|lack| *lack > 0 && may_execute && is_safe)
    }

    /// Returns why files that need this memory cannot be staged there.
    pub fn refusal(self, needed: u64) -> Option<String> {
        match self {
            Self { may_execute: false, .. } => Some("is mounted noexec".to_owned()),
            Self { is_safe: false, .. } => Some("may be changed by other users".to_owned()),
            Self { free, .. } if free < needed => {
                Some(format!("has {} free, and {} are needed", figures::bytes(free), figures::bytes(needed)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    fn file(kind: StagedKind, name: &str, bytes: u64) -> StagedFile {
        StagedFile { kind, name: name.into(), bytes, is_executable: kind == StagedKind::Program }
    }

    fn plan(files: &[(StagedKind, &str, u64)]) -> Result<StagePlan, StageError> {
        StagePlan::new(files.iter().map(|(kind, name, bytes)| file(*kind, name, *bytes)).collect(), Vec::new(), None)
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let long = "n".repeat(STAGED_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", &long] {
            for kind in [StagedKind::Program, StagedKind::Library, StagedKind::File] {
                assert_eq!(plan(&[(kind, name, 1)]), Err(StageError::Name(name.to_owned())));
                // As an agent reads it.
                let bytes = encode(&(vec![file(kind, name, 1)], Vec::<StagedTree>::new(), None::<CacheBounds>));
                let error = decode::<StagePlan>(&bytes).unwrap_err().to_string();
                assert!(error.contains("a staged file cannot be called"), "{error}");
            }
        }
        for name in ["a", "..a", "...", &long[1..]] {
            assert!(plan(&[(StagedKind::File, name, 1)]).is_ok(), "{name}");
        }
    }

    #[test]
    fn each_file_has_a_place_of_its_own() {
        let all = [(StagedKind::Program, "a", 1), (StagedKind::Library, "a", 2), (StagedKind::File, "a", 3)];
        let made = plan(&all).unwrap();
        let paths: Vec<_> = made.files().iter().map(StagedFile::path).collect();
        assert_eq!(paths, [&b"bin/a"[..], b"lib/a", b"a"]);
        assert_eq!(staged_program(b"a"), b"bin/a");
        assert!(is_staged_program(b"bin/a") && !is_staged_program(b"venv/bin/a") && !is_staged_program(b"binary/a"));
        assert_eq!(made.directories().collect::<Vec<_>>(), ["bin", "lib"]);
        assert_eq!(made.room(), 6 + 3 * OVERHEAD_BYTES);
        assert_eq!(decode::<StagePlan>(&encode(&made)).unwrap(), made);
        for name in ["bin", "lib"] {
            assert_eq!(plan(&[(StagedKind::File, name, 1)]), Err(StageError::Reserved(name.to_owned())));
            assert!(plan(&[(StagedKind::Program, name, 1)]).is_ok());
        }
        assert_eq!(plan(&[all[0], all[0]]), Err(StageError::Twice("a".to_owned())));
    }

    #[test]
    fn the_number_and_the_length_of_files_are_bounded() {
        let files = |count| (0..count).map(|number| file(StagedKind::File, &number.to_string(), 0)).collect();
        let new = |files| StagePlan::new(files, Vec::new(), None);
        assert!(new(files(STAGED_FILES_MAX)).is_ok());
        let one_more = STAGED_FILES_MAX + 1;
        assert_eq!(new(files(one_more)), Err(StageError::TooMany(one_more)));
        assert!(plan(&[(StagedKind::File, "a", STAGED_BYTES_MAX)]).is_ok());
        for (a, b) in [(STAGED_BYTES_MAX, 1), (1, u64::MAX)] {
            let all = [(StagedKind::File, "a", a), (StagedKind::File, "b", b)];
            assert_eq!(plan(&all), Err(StageError::TooLarge));
        }
    }

    fn tree(name: &str, entries: Vec<TreeEntry>) -> StagedTree {
        StagedTree { name: name.into(), entries }
    }

    fn entry(name: &str, kind: TreeKind) -> TreeEntry {
        TreeEntry { parent: 0, name: name.into(), kind, mode: 0o600, modified: (0, 0) }
    }

    #[test]
    fn directories_are_checked_like_files() {
        let with = |trees| StagePlan::new(vec![file(StagedKind::File, "data", 1)], trees, None);
        let made = with(vec![tree("t", vec![entry("a", TreeKind::File { bytes: 5 })])]).unwrap();
        assert_eq!(made.path(ContentPlace::Entry(0, 0)), b"t/a");
        assert_eq!((made.lengths().collect::<Vec<_>>(), made.room()), (vec![1, 5], 6 + 3 * OVERHEAD_BYTES));
        assert_eq!(decode::<StagePlan>(&encode(&made)).unwrap(), made);
        assert_eq!(with(vec![tree("lib", Vec::new())]), Err(StageError::Reserved("lib".to_owned())));
        for name in ["..", "a/b"] {
            assert_eq!(with(vec![tree(name, Vec::new())]), Err(StageError::Name(name.to_owned())));
        }
        assert_eq!(with(vec![tree("data", Vec::new())]), Err(StageError::Twice("data".to_owned())));
        let bad =
            (Vec::<StagedFile>::new(), vec![tree("t", vec![entry("..", TreeKind::Directory)])], None::<CacheBounds>);
        let error = decode::<StagePlan>(&encode(&bad)).unwrap_err().to_string();
        assert!(error.contains("a staged file cannot be called '..'"), "{error}");
    }

    #[test]
    fn the_number_and_the_words_of_entries_are_bounded() {
        let with = |count: usize, text: usize| {
            let parts = vec![vec![b'x'; text].into()];
            let first = entry("text", TreeKind::Text { parts });
            let others = (1..count).map(|number| entry(&number.to_string(), TreeKind::Directory));
            StagePlan::new(Vec::new(), vec![tree("t", std::iter::once(first).chain(others).collect())], None)
        };
        // The directory itself counts.
        assert!(with(STAGED_ENTRIES_MAX - 1, 0).is_ok());
        assert_eq!(with(STAGED_ENTRIES_MAX, 0), Err(StageError::TooManyEntries(STAGED_ENTRIES_MAX + 1)));
        let words = "t".len() + "text".len();
        assert!(with(1, STAGED_WORDS_BYTES_MAX - words).is_ok());
        assert_eq!(with(1, STAGED_WORDS_BYTES_MAX - words + 1), Err(StageError::TooManyWords));
    }

    #[test]
    fn words_name_files_by_the_variable_of_the_directory() {
        let rest =
            |word: &str| in_stage_directory(word.as_bytes()).map(|rest| String::from_utf8_lossy(rest).into_owned());
        assert_eq!(rest("$SCELA_STAGE_DIR/a/b").as_deref(), Some("/a/b"));
        assert_eq!(rest("${SCELA_STAGE_DIR}").as_deref(), Some(""));
        for other in ["$SCELA_STAGE_DIRS/a", "SCELA_STAGE_DIR/a", "x$SCELA_STAGE_DIR", "${SCELA_STAGE_DIR/a", ""] {
            assert_eq!(rest(other), None, "{other}");
        }
    }

    #[test]
    fn lists_name_files_by_the_variable_of_the_directory() {
        let word = staged_file_word("a.so");
        for (list, expected) in [
            (word.clone(), "/d/a.so"),
            (format!("{word}:/lib/b.so {word}"), "/d/a.so:/lib/b.so /d/a.so"),
            ("/lib/b.so:c.so".to_owned(), "/lib/b.so:c.so"),
            (String::new(), ""),
        ] {
            assert_eq!(String::from_utf8(in_directory(list.as_bytes(), b"/d")).unwrap(), expected);
        }
    }

    #[test]
    fn caches_bound_the_number_of_chunks() {
        let of = |bytes, cache| StagePlan::new(vec![file(StagedKind::File, "a", bytes)], Vec::new(), cache).map(drop);
        let (most, cache) = ((STAGED_CHUNKS_MAX as u64) << 20, CacheBounds { bytes: 1, age: Duration::ZERO });
        assert_eq!((of(most, Some(cache)), of(most + 1, None)), (Ok(()), Ok(())));
        assert_eq!(of(most + 1, Some(cache)), Err(StageError::TooManyChunks));
    }

    #[test]
    fn libraries_precede_those_of_the_user() {
        let made = plan(&[(StagedKind::Library, "libx.so", 1)]).unwrap();
        let path =
            |before: Option<&[u8]>| made.library_path(b"/d", before).map(|path| String::from_utf8(path).unwrap());
        assert_eq!(path(None).as_deref(), Some("/d/lib"));
        // An empty entry would mean the working directory.
        assert_eq!(path(Some(b"")).as_deref(), Some("/d/lib"));
        assert_eq!(path(Some(b"/a:/b")).as_deref(), Some("/d/lib:/a:/b"));
        assert_eq!(StagePlan::default().library_path(b"/d", Some(b"/a")), None);
    }

    #[test]
    fn a_place_is_refused_for_a_reason() {
        let room = Room { may_execute: true, is_safe: true, free: 2000, files: 9 };
        assert_eq!((room.refusal(2000), room.refusal(0)), (None, None));
        assert_eq!(room.refusal(4000).as_deref(), Some("has 2.00 kB free, and 4.00 kB are needed"));
        assert_eq!(Room { may_execute: false, ..room }.refusal(1).as_deref(), Some("is mounted noexec"));
        assert_eq!(Room { is_safe: false, ..room }.refusal(1).as_deref(), Some("may be changed by other users"));
        assert_eq!((room.lack(2000), room.lack(2001)), (None, Some(1)));
        assert_eq!(Room { may_execute: false, ..room }.lack(2001), None);
        assert_eq!(Room { is_safe: false, ..room }.lack(2001), None);
    }

    #[test]
    fn a_cache_leaves_room_for_the_rest_of_the_files_and_the_chunk() {
        let plan = plan(&[(StagedKind::File, "a", 5000), (StagedKind::File, "b", 1)]).unwrap();
        let free = 5001 - 1000 + 3 * OVERHEAD_BYTES + STAGED_CHUNK_BYTES;
        let room = Room { may_execute: true, is_safe: true, free, files: 3 };
        assert!(plan.spares(room, 1000));
        assert!(!plan.spares(room, 999));
        assert!(!plan.spares(Room { files: 2, ..room }, 1000));
    }
}
