//! Chunks: the parts in which the contents of staged files travel, are hashed and are cached.
//!
//! Launcher and agents cut the contents in the same way, from the plan alone. A large file has chunks of its own; small files
//! share chunks. The cuts between small files depend on their names, so a file that is added or has grown changes few chunks.

use serde::{Deserialize, Serialize};

use super::StagePlan;
use super::tree::TreeKind;
use crate::core::limits::{STAGED_CHUNK_BYTES, STAGED_CHUNKS_MAX, STAGED_PACKED_BYTES};

/// The length of a SHA-256.
pub const DIGEST_BYTES: usize = 32;
/// The hash of a chunk.
pub type Digest = [u8; DIGEST_BYTES];

/// A chunk ends after one of this many small files.
const PACKED_FILES: u32 = 64;

/// A file whose bytes travel.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Content {
    /// Its place in the plan.
    pub place: ContentPlace,
    /// Its length.
    pub bytes: u64,
}

/// The place of a file in the plan.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ContentPlace {
    /// The index of a file.
    File(usize),
    /// The index of a directory, and of an entry of it.
    Entry(usize, usize),
}

/// Consecutive bytes of one file, or several whole files.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Chunk {
    /// The index of its first content.
    pub content: usize,
    /// The position of its first byte in this content.
    pub offset: u64,
    /// Its length, at most [`STAGED_CHUNK_BYTES`].
    pub bytes: u64,
}

/// The contents of a plan in their order, and the chunks that they are cut into.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chunks {
    /// All contents.
    pub contents: Vec<Content>,
    /// All chunks.
    pub chunks: Vec<Chunk>,
}

impl Chunks {
    /// Cuts the contents of a plan.
    pub fn of(plan: &StagePlan) -> Self {
        let mut contents = Vec::new();
        let mut names: Vec<&[u8]> = Vec::new();
        for (index, file) in plan.files().iter().enumerate() {
            contents.push(Content { place: ContentPlace::File(index), bytes: file.bytes });
            names.push(&file.name);
        }
        for (at, tree) in plan.trees().iter().enumerate() {
            for (index, entry) in tree.entries.iter().enumerate() {
                if let TreeKind::File { bytes } = entry.kind {
                    contents.push(Content { place: ContentPlace::Entry(at, index), bytes });
                    names.push(&entry.name);
                }
            }
        }
        let (mut chunks, mut open) = (Vec::new(), None::<Chunk>);
        for (index, (content, name)) in contents.iter().zip(names).enumerate() {
            if content.bytes == 0 {
                continue;
            }
            if content.bytes >= STAGED_PACKED_BYTES {
                chunks.extend(open.take());
                let starts = (0..content.bytes).step_by(STAGED_CHUNK_BYTES as usize);
                chunks.extend(starts.map(|offset| Chunk {
                    content: index,
                    offset,
                    bytes: (content.bytes - offset).min(STAGED_CHUNK_BYTES),
                }));
                continue;
            }
            if open.is_some_and(|open| open.bytes + content.bytes > STAGED_CHUNK_BYTES) {
                chunks.extend(open.take());
            }
            open.get_or_insert(Chunk { content: index, offset: 0, bytes: 0 }).bytes += content.bytes;
            if is_cut(name) {
                chunks.extend(open.take());
            }
        }
        chunks.extend(open);
        Self { contents, chunks }
    }

    /// Calls `take` for each part of a chunk with the index of its content, its position in the content, and its range in the
    /// chunk, until that fails.
    pub fn parts<E>(
        &self,
        chunk: Chunk,
        mut take: impl FnMut(usize, u64, std::ops::Range<u64>) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mut done, mut offset) = (0, chunk.offset);
        for (index, content) in self.contents.iter().enumerate().skip(chunk.content) {
            let length = (content.bytes - offset).min(chunk.bytes - done);
            if length > 0 {
                take(index, offset, done..done + length)?;
            }
            (done, offset) = (done + length, 0);
            if done == chunk.bytes {
                break;
            }
        }
        Ok(())
    }
}

/// Whether a chunk ends after the small file of this name (FNV-1a).
fn is_cut(name: &[u8]) -> bool {
    let hash = name.iter().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193));
    (hash ^ (hash >> 15)).is_multiple_of(PACKED_FILES)
}

/// A set of chunks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ChunkSet(#[serde(with = "serde_bytes")] Vec<u8>);

impl ChunkSet {
    /// An empty set of up to `count` chunks.
    pub fn none(count: usize) -> Self {
        Self(vec![0; count.div_ceil(8)])
    }

    /// Reads a set of `count` chunks. `None` if it has another size, or chunks that there are not.
    pub fn from_bytes(bytes: &[u8], count: usize) -> Option<Self> {
        let spare = count.div_ceil(8) * 8 - count;
        let is_good = bytes.len() == count.div_ceil(8)
            && count <= STAGED_CHUNKS_MAX
            && bytes.last().is_none_or(|last| last.leading_zeros() as usize >= spare);
        is_good.then(|| Self(bytes.to_vec()))
    }

    /// Returns the bytes that [`ChunkSet::from_bytes`] reads.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether the chunk is in the set.
    pub fn contains(&self, chunk: usize) -> bool {
        self.0.get(chunk / 8).is_some_and(|byte| byte & (1 << (chunk % 8)) != 0)
    }

    /// Adds a chunk that the set has room for.
    pub fn insert(&mut self, chunk: usize) {
        if let Some(byte) = self.0.get_mut(chunk / 8) {
            *byte |= 1 << (chunk % 8);
        }
    }

    /// Removes a chunk. Returns whether it was in the set.
    pub fn remove(&mut self, chunk: usize) -> bool {
        let had = self.contains(chunk);
        if let Some(byte) = self.0.get_mut(chunk / 8) {
            *byte &= !(1 << (chunk % 8));
        }
        had
    }

    /// Adds all chunks of another set of the same size.
    pub fn unite(&mut self, other: &Self) {
        self.0.iter_mut().zip(&other.0).for_each(|(own, other)| *own |= other);
    }

    /// Returns the number of chunks.
    pub fn len(&self) -> usize {
        self.0.iter().map(|byte| byte.count_ones() as usize).sum()
    }

    /// Whether the set has no chunk.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|byte| *byte == 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::super::{StagedFile, StagedKind};
    use super::*;

    fn plan(lengths: &[u64]) -> StagePlan {
        let file = |(index, bytes): (usize, &u64)| StagedFile {
            kind: StagedKind::File,
            name: format!("f{index}").into_bytes(),
            bytes: *bytes,
            is_executable: false,
        };
        StagePlan::new(lengths.iter().enumerate().map(file).collect(), Vec::new(), None).unwrap()
    }

    #[test]
    fn large_files_have_their_own_chunks_and_small_ones_share_them() {
        const M: u64 = STAGED_CHUNK_BYTES;
        let cut = Chunks::of(&plan(&[5, 0, 6, STAGED_PACKED_BYTES, 2 * M + 1, 7]));
        let expected = [(0, 0, 11), (3, 0, STAGED_PACKED_BYTES), (4, 0, M), (4, M, M), (4, 2 * M, 1), (5, 0, 7)];
        assert_eq!(cut.chunks, expected.map(|(content, offset, bytes)| Chunk { content, offset, bytes }));
        let mut parts = Vec::new();
        cut.parts(cut.chunks[0], |content, offset, range| {
            parts.push((content, offset, range));
            Ok::<_, ()>(())
        })
        .unwrap();
        assert_eq!(parts, [(0, 0, 0..5), (2, 0, 5..11)]);
        assert_eq!(Chunks::of(&plan(&[0])).chunks, []);
    }

    #[test]
    fn a_file_that_has_grown_changes_few_chunks() {
        let lengths = vec![9000; 1000];
        let mut grown = lengths.clone();
        grown[500] += 1;
        let [before, after] = [&lengths, &grown].map(|lengths| Chunks::of(&plan(lengths)).chunks);
        let changed = before.iter().zip(&after).filter(|(one, other)| one != other).count();
        assert!(before.len() == after.len() && changed == 1 && (9..100).contains(&before.len()), "{changed}");
    }

    #[test]
    fn sets_have_a_size() {
        let mut set = ChunkSet::none(9);
        set.insert(8);
        set.insert(3);
        set.insert(99);
        assert_eq!((set.len(), set.contains(3), set.contains(4), set.contains(99)), (2, true, false, false));
        assert_eq!(ChunkSet::from_bytes(set.as_bytes(), 9), Some(set.clone()));
        assert_eq!(ChunkSet::from_bytes(set.as_bytes(), 8), None);
        assert_eq!(ChunkSet::from_bytes(&[0, 2], 9), None, "a chunk that there is not");
        let most = STAGED_CHUNKS_MAX;
        assert!(ChunkSet::from_bytes(&vec![0; most / 8], most).is_some());
        assert!(ChunkSet::from_bytes(&vec![0; most / 8 + 1], most + 1).is_none());
        let mut other = ChunkSet::none(9);
        other.unite(&set);
        assert!(other.remove(3) && !other.remove(3) && other.remove(8) && other.is_empty());
    }

    proptest! {
        #[test]
        fn chunks_have_each_byte_once_and_in_order(lengths in vec(prop_oneof![Just(0), 1..70_000_u64, 1..3_000_000_u64], 0..40)) {
            let cut = Chunks::of(&plan(&lengths));
            let mut found = vec![0; lengths.len()];
            for chunk in &cut.chunks {
                prop_assert!((1..=STAGED_CHUNK_BYTES).contains(&chunk.bytes));
                let mut done = 0;
                cut.parts(*chunk, |content, offset, range| {
                    assert_eq!((offset, range.start), (found[content], done));
                    done = range.end;
                    found[content] += range.end - range.start;
                    Ok::<_, ()>(())
                }).unwrap();
                prop_assert_eq!(done, chunk.bytes);
            }
            prop_assert_eq!(found, lengths);
        }
    }
}
