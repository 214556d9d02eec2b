//! Staged directories: trees of files, directories and links.
//!
//! An entry names its parent by its place in the list, and itself by a single component. So no path from the wire is ever
//! parsed, and none leads out of the tree. A link has a relative target that ascends only at its beginning, and not further than
//! to the directory of the staged files.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::{StageError, is_component};
use crate::core::limits::{STAGED_DEPTH_MAX, STAGED_PATH_BYTES_MAX};

/// The bits of modes that are kept. A directory of staged files needs no set-user-ID bits.
const MODE_BITS: u16 = 0o777;

/// The kind of an entry, with its content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum TreeKind {
    /// A directory.
    Directory,
    /// A regular file of this length. Its bytes travel in chunks.
    File {
        /// Its length.
        bytes: u64,
    },
    /// A regular file whose text has the path of the directory of the staged files between these parts.
    Text {
        /// The parts.
        parts: Vec<ByteBuf>,
    },
    /// A symbolic link.
    Link {
        /// Its target.
        #[serde(with = "serde_bytes")]
        target: Vec<u8>,
    },
}

/// An entry of a staged directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TreeEntry {
    /// The directory that has it: 0 for that of the tree, N for the entry at N - 1, which precedes this one.
    pub parent: u32,
    /// Its name.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its kind.
    pub kind: TreeKind,
    /// The permissions of its owner, group and others.
    pub mode: u16,
    /// The time of its last modification, in seconds and nanoseconds.
    pub modified: (i64, u32),
}

impl TreeEntry {
    /// Returns the mode that its copy gets: its own, with what its owner needs to read, enter and remove it.
    pub fn copied_mode(&self) -> u32 {
        let needed = if self.kind == TreeKind::Directory { 0o700 } else { 0o400 };
        u32::from(self.mode & MODE_BITS | needed)
    }
}

/// A staged directory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StagedTree {
    /// Its name in the directory of the staged files.
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    /// Its entries. A directory precedes what is in it.
    pub entries: Vec<TreeEntry>,
}

impl StagedTree {
    /// Checks the entries' parents, names, depths and links.
    pub(super) fn check(&self) -> Result<(), StageError> {
        let shown = |entry: &TreeEntry| StageError::Name(String::from_utf8_lossy(&entry.name).into_owned());
        // The depth of each directory, and the length of its path.
        let mut directories = vec![Some((1, self.name.len()))];
        let mut known = BTreeSet::new();
        for entry in &self.entries {
            if !is_component(&entry.name) || !known.insert((entry.parent, entry.name.as_slice())) {
                return Err(shown(entry));
            }
            let parent = directories.get(entry.parent as usize).copied().flatten();
            let (depth, length) = parent.ok_or_else(|| shown(entry))?;
            let length = length + 1 + entry.name.len();
            if depth > STAGED_DEPTH_MAX || length > STAGED_PATH_BYTES_MAX {
                return Err(shown(entry));
            }
            if let TreeKind::Link { target } = &entry.kind
                && !is_inside(target, depth)
            {
                return Err(StageError::Link(String::from_utf8_lossy(&self.path(entry)).into_owned()));
            }
            directories.push((entry.kind == TreeKind::Directory).then_some((depth + 1, length)));
        }
        Ok(())
    }

    /// Returns the path of an entry, relative to the directory of the staged files.
    pub fn path(&self, entry: &TreeEntry) -> Vec<u8> {
        let above = |index: u32| self.entries.get(index.checked_sub(1)? as usize);
        let chain = std::iter::successors(Some(entry), |entry| above(entry.parent));
        let mut names: Vec<&[u8]> = chain.map(|entry| entry.name.as_slice()).collect();
        names.push(&self.name);
        names.reverse();
        names.join(&b'/')
    }

    /// Returns the bytes of names, targets and texts.
    pub(super) fn words_bytes(&self) -> usize {
        let of_entry = |entry: &TreeEntry| {
            entry.name.len()
                + match &entry.kind {
                    TreeKind::Directory | TreeKind::File { .. } => 0,
                    TreeKind::Text { parts } => parts.iter().map(|part| part.len()).sum(),
                    TreeKind::Link { target } => target.len(),
                }
        };
        self.entries.iter().map(of_entry).fold(self.name.len(), usize::saturating_add)
    }
}

/// Whether a link's target stays inside the directory of the staged files. The link is in a directory that is `depth` levels
/// below. Ascending is allowed only at the beginning: there the path leads through directories that are no links.
pub fn is_inside(target: &[u8], depth: usize) -> bool {
    let is_plain = !target.is_empty() && !target.starts_with(b"/") && !target.contains(&0);
    let mut ascends = 0;
    let mut descends = false;
    is_plain
        && target.len() <= STAGED_PATH_BYTES_MAX
        && target.split(|byte| *byte == b'/').all(|component| match component {
            b"" | b"." => true,
            b".." => {
                ascends += 1;
                !descends && ascends <= depth
            }
            _ => {
                descends = true;
                true
            }
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::STAGED_NAME_BYTES_MAX;

    fn entry(parent: u32, name: &str, kind: TreeKind) -> TreeEntry {
        TreeEntry { parent, name: name.into(), kind, mode: 0o644, modified: (1, 2) }
    }

    fn check(entries: Vec<TreeEntry>) -> Result<(), StageError> {
        StagedTree { name: b"t".to_vec(), entries }.check()
    }

    fn named(name: &str) -> Result<(), StageError> {
        Err(StageError::Name(name.to_owned()))
    }

    #[test]
    fn an_entry_is_a_component_of_a_directory_that_precedes_it() {
        let (dir, file) = (|| TreeKind::Directory, || TreeKind::File { bytes: 1 });
        let good = vec![entry(0, "d", dir()), entry(1, "e", dir()), entry(2, "f", file()), entry(0, "f", file())];
        assert_eq!(check(good.clone()), Ok(()));
        let tree = StagedTree { name: b"t".to_vec(), entries: good };
        assert_eq!(tree.path(&tree.entries[2]), b"t/d/e/f");
        let long = "n".repeat(STAGED_NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "a/b", "/a", "a\0", &long] {
            assert_eq!(check(vec![entry(0, name, file())]), named(name));
        }
        // Its own parent, one that follows, and one that is no directory.
        for parent in [1, 2, u32::MAX] {
            assert_eq!(check(vec![entry(parent, "a", dir()), entry(0, "b", dir())]), named("a"));
        }
        assert_eq!(check(vec![entry(0, "a", file()), entry(1, "b", file())]), named("b"));
        assert_eq!(check(vec![entry(0, "a", file()), entry(0, "a", dir())]), named("a"), "twice");
    }

    #[test]
    fn depth_and_length_of_paths_are_bounded() {
        let chain = |count: usize, name: &str| {
            (0..count as u32).map(|index| entry(index, name, TreeKind::Directory)).collect::<Vec<_>>()
        };
        assert_eq!(check(chain(STAGED_DEPTH_MAX, "d")), Ok(()));
        assert_eq!(check(chain(STAGED_DEPTH_MAX + 1, "d")), named("d"));
        let long = "n".repeat(249);
        assert_eq!(check(chain(11, &long)), Ok(()));
        assert_eq!(check(chain(12, &long)), named(&long), "3001 bytes");
        let longest = entry(11, &long[1..], TreeKind::Directory);
        assert_eq!(check([chain(11, &long), vec![longest]].concat()), Ok(()), "3000 bytes");
    }

    #[test]
    fn links_stay_inside() {
        for (target, depth, expected) in [
            ("a", 1, true),
            ("./a//b", 1, true),
            ("../other/a", 1, true),
            ("../../a", 1, false),
            ("../../a", 2, true),
            ("", 1, false),
            ("/etc/passwd", 9, false),
            ("a/../b", 9, false),
            ("./..", 1, true),
            ("a\0", 1, false),
        ] {
            assert_eq!(is_inside(target.as_bytes(), depth), expected, "{target:?} {depth}");
        }
        let link = |target: &str| entry(1, "l", TreeKind::Link { target: target.into() });
        let with = |target| check(vec![entry(0, "d", TreeKind::Directory), link(target)]);
        assert_eq!((with("../../a"), with("../../../a")), (Ok(()), Err(StageError::Link("t/d/l".to_owned()))));
    }

    #[test]
    fn copies_can_be_read_and_removed_and_have_no_other_rights() {
        let mode = |mode, kind| TreeEntry { mode, ..entry(0, "a", kind) }.copied_mode();
        assert_eq!(mode(0o4755, TreeKind::File { bytes: 0 }), 0o755);
        assert_eq!((mode(0, TreeKind::File { bytes: 0 }), mode(0o55, TreeKind::Directory)), (0o400, 0o755));
    }
}
