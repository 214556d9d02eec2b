//! Staged files: the files that travel from the launcher to every node before the first rank starts.
//!
//! The session's plan lists them ([`StagePlan`]). Their contents follow in the lane Stage as one stream: the bytes of each file
//! in the plan's order, and after each file the SHA-256 of these bytes. Agents forward the stream as it arrives.
//! [`StageStream`] cuts it into the files again.

use std::collections::BTreeSet;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::limits::{STAGED_BYTES_MAX, STAGED_FILES_MAX, STAGED_NAME_BYTES_MAX};
use crate::figures;

/// The environment variable that names the directory of the staged files to ranks.
pub const STAGE_DIRECTORY: &str = "SCELA_STAGE_DIR";

/// The directory of staged programs, inside that of the staged files.
const PROGRAMS: &str = "bin";
/// The directory of staged libraries, inside that of the staged files.
const LIBRARIES: &str = "lib";
/// The length of a SHA-256.
const DIGEST_BYTES: usize = 32;
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

/// Returns the path of a staged program in the `directory` of the staged files.
pub fn staged_program(directory: &[u8], name: &[u8]) -> Vec<u8> {
    joined(&[directory, PROGRAMS.as_bytes(), name])
}

/// Why files cannot be staged.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum StageError {
    /// The name is no single component of a path, is too long, or is taken.
    #[error("a staged file cannot be called '{0}'")]
    Name(String),
    /// Two files have the same name.
    #[error("two staged files are called '{0}'")]
    Twice(String),
    /// There are more than [`STAGED_FILES_MAX`] files.
    #[error("{0} files are more than can be staged ({STAGED_FILES_MAX})")]
    TooMany(usize),
    /// The files have more than [`STAGED_BYTES_MAX`] bytes.
    #[error("the files are larger than what can be staged ({})", figures::bytes(STAGED_BYTES_MAX))]
    TooLarge,
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

/// The files that every node gets, in the order in which they travel. Their names are safe: none leads out of the directory of
/// the staged files.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct StagePlan(Vec<StagedFile>);

impl StagePlan {
    /// Checks the names, the number and the length of the files.
    pub fn new(files: Vec<StagedFile>) -> Result<Self, StageError> {
        if files.len() > STAGED_FILES_MAX {
            return Err(StageError::TooMany(files.len()));
        }
        let (mut known, mut all) = (BTreeSet::new(), 0_u64);
        for StagedFile { kind, name, bytes, .. } in &files {
            let shown = || String::from_utf8_lossy(name).into_owned();
            let is_taken = *kind == StagedKind::File && [PROGRAMS, LIBRARIES].iter().any(|dir| name == dir.as_bytes());
            if is_taken || !is_component(name) {
                return Err(StageError::Name(shown()));
            }
            if !known.insert((*kind, name.as_slice())) {
                return Err(StageError::Twice(shown()));
            }
            all = all.checked_add(*bytes).filter(|all| *all <= STAGED_BYTES_MAX).ok_or(StageError::TooLarge)?;
        }
        Ok(Self(files))
    }

    /// Whether no file is staged.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the files.
    pub fn files(&self) -> &[StagedFile] {
        &self.0
    }

    /// Returns the memory that a file system may need for all files.
    pub fn room(&self) -> u64 {
        self.0.iter().map(|file| file.bytes + OVERHEAD_BYTES).sum()
    }

    /// Returns the directories that the files need, relative to that of the staged files.
    pub fn directories(&self) -> impl Iterator<Item = &'static str> {
        let needed = [(StagedKind::Program, PROGRAMS), (StagedKind::Library, LIBRARIES)];
        needed.into_iter().filter(|(kind, _)| self.0.iter().any(|file| file.kind == *kind)).map(|(_, name)| name)
    }

    /// Returns the value of LD_LIBRARY_PATH with which programs find the staged libraries in `directory`, before those of the
    /// value `before`. `None` if no library is staged.
    pub fn library_path(&self, directory: &[u8], before: Option<&[u8]>) -> Option<Vec<u8>> {
        self.0.iter().find(|file| file.kind == StagedKind::Library)?;
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
        Self::new(Deserialize::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// Whether a name is a single component of a path that names a file of its directory.
fn is_component(name: &[u8]) -> bool {
    let is_known = matches!(name, b"" | b"." | b"..");
    !is_known && name.len() <= STAGED_NAME_BYTES_MAX && !name.iter().any(|byte| matches!(byte, b'/' | 0))
}

/// A part of the stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum StagePart<'a> {
    /// Bytes of the file with this index.
    Bytes(usize, &'a [u8]),
    /// The SHA-256 of all bytes of the file with this index, which is complete. An empty file has only this part.
    Digest(usize, [u8; DIGEST_BYTES]),
}

/// Cuts the stream into files.
#[derive(Debug)]
pub struct StageStream {
    lengths: Vec<u64>,
    /// The file whose bytes are next.
    file: usize,
    /// Its bytes that have arrived.
    arrived: u64,
    /// The beginning of its digest.
    digest: Vec<u8>,
}

impl StageStream {
    /// The stream of the plan's files, from its beginning.
    pub fn of(plan: &StagePlan) -> Self {
        let lengths = plan.0.iter().map(|file| file.bytes).collect();
        Self { lengths, file: 0, arrived: 0, digest: Vec::new() }
    }

    /// Takes the next part from the front of `bytes`. Returns `None` if the part is not complete, or if no file follows.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Option<StagePart<'a>> {
        let file = self.file;
        let left = self.lengths.get(file)? - self.arrived;
        if left > 0 {
            let (part, rest) = bytes.split_at(usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len()));
            (*bytes, self.arrived) = (rest, self.arrived + part.len() as u64);
            return Some(StagePart::Bytes(file, part)).filter(|_| !part.is_empty());
        }
        let (part, rest) = bytes.split_at((DIGEST_BYTES - self.digest.len()).min(bytes.len()));
        self.digest.extend_from_slice(part);
        *bytes = rest;
        let digest = self.digest.as_slice().try_into().ok()?;
        (self.file, self.arrived) = (file + 1, 0);
        self.digest.clear();
        Some(StagePart::Digest(file, digest))
    }

    /// Returns the index of the file that is not complete. `None` if all are.
    pub fn open_file(&self) -> Option<usize> {
        (self.file < self.lengths.len()).then_some(self.file)
    }
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
}

impl Room {
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
        StagePlan::new(files.iter().map(|(kind, name, bytes)| file(*kind, name, *bytes)).collect())
    }

    #[test]
    fn no_name_leads_out_of_the_directory() {
        let long = "n".repeat(STAGED_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", &long] {
            for kind in [StagedKind::Program, StagedKind::Library, StagedKind::File] {
                assert_eq!(plan(&[(kind, name, 1)]), Err(StageError::Name(name.to_owned())));
                // As an agent reads it.
                let bytes = encode(&[file(kind, name, 1)]);
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
        assert_eq!(staged_program(b"/d", b"a"), b"/d/bin/a");
        assert_eq!(made.directories().collect::<Vec<_>>(), ["bin", "lib"]);
        assert_eq!(made.room(), 6 + 3 * OVERHEAD_BYTES);
        assert_eq!(decode::<StagePlan>(&encode(&made)).unwrap(), made);
        for name in ["bin", "lib"] {
            assert_eq!(plan(&[(StagedKind::File, name, 1)]), Err(StageError::Name(name.to_owned())));
            assert!(plan(&[(StagedKind::Program, name, 1)]).is_ok());
        }
        assert_eq!(plan(&[all[0], all[0]]), Err(StageError::Twice("a".to_owned())));
    }

    #[test]
    fn the_number_and_the_length_of_files_are_bounded() {
        let files = |count| (0..count).map(|number| file(StagedKind::File, &number.to_string(), 0)).collect();
        assert!(StagePlan::new(files(STAGED_FILES_MAX)).is_ok());
        let one_more = STAGED_FILES_MAX + 1;
        assert_eq!(StagePlan::new(files(one_more)), Err(StageError::TooMany(one_more)));
        assert!(plan(&[(StagedKind::File, "a", STAGED_BYTES_MAX)]).is_ok());
        for (a, b) in [(STAGED_BYTES_MAX, 1), (1, u64::MAX)] {
            let all = [(StagedKind::File, "a", a), (StagedKind::File, "b", b)];
            assert_eq!(plan(&all), Err(StageError::TooLarge));
        }
    }

    #[test]
    fn a_stream_is_cut_into_files_at_any_split() {
        let plan =
            plan(&[(StagedKind::File, "a", 5), (StagedKind::File, "none", 0), (StagedKind::File, "b", 40)]).unwrap();
        let digests = [1_u8, 2, 3].map(|byte| [byte; DIGEST_BYTES]);
        let contents = [&b"hello"[..], b"", &[9; 40]];
        let stream: Vec<u8> = contents.iter().zip(&digests).flat_map(|(file, hash)| [*file, hash].concat()).collect();
        for step in 1..=stream.len() {
            let mut files = [const { Vec::new() }; 3];
            let (mut over, mut cut) = (Vec::new(), StageStream::of(&plan));
            for mut bytes in stream.chunks(step) {
                while let Some(part) = cut.next(&mut bytes) {
                    match part {
                        StagePart::Bytes(file, bytes) => files[file].extend_from_slice(bytes),
                        StagePart::Digest(file, digest) => {
                            over.push(file);
                            assert_eq!(digest, digests[file]);
                            assert_eq!(cut.open_file(), (file < 2).then_some(file + 1));
                        }
                    }
                }
                assert!(bytes.is_empty());
            }
            assert_eq!((files.each_ref().map(Vec::as_slice), over), (contents, vec![0, 1, 2]), "{step}");
            let mut more = &b"x"[..];
            assert_eq!((cut.next(&mut more), more), (None, &b"x"[..]), "no file follows");
        }
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
        let room = Room { may_execute: true, is_safe: true, free: 2000 };
        assert_eq!((room.refusal(2000), room.refusal(0)), (None, None));
        assert_eq!(room.refusal(4000).as_deref(), Some("has 2.00 kB free, and 4.00 kB are needed"));
        assert_eq!(Room { may_execute: false, ..room }.refusal(1).as_deref(), Some("is mounted noexec"));
        assert_eq!(Room { is_safe: false, ..room }.refusal(1).as_deref(), Some("may be changed by other users"));
    }
}
