//! [`Mapping`]: the node of each rank, as PMI's blocks.
//!
//! A block describes `ppn` consecutive ranks on each of `count` nodes from `start`. Ranks are assigned to the blocks in
//! order. Our mappings cover every rank exactly: if ranks are left over, legacy clients wrap around by rules of their own
//! (to the first block that starts at node 0).

use std::fmt::Write;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::Rank;
use crate::limits::{MAPPING_BLOCKS_MAX, MAPPING_BYTES_MAX};

/// `ppn` consecutive ranks on each of `count` nodes from `start`.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Block {
    /// The number of the first node.
    pub start: u32,
    /// The number of nodes, at least 1.
    pub count: u32,
    /// The number of ranks on each node, at least 1.
    pub ppn: u32,
}

/// The node of each rank of a namespace.
///
/// Two ranks on one node share its kernel, `/dev/shm` and process ids. MPI libraries rely on this for shared memory, so a
/// wrong mapping breaks jobs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "Vec<Block>", into = "Vec<Block>")]
pub struct Mapping {
    blocks: Vec<Block>,
    /// The first rank of each block, and one more: the size.
    firsts: Vec<u32>,
}

/// Why blocks from a peer are not a mapping.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Error)]
pub enum MappingError {
    /// There are more blocks than [`MAPPING_BLOCKS_MAX`].
    #[error("mapping has more than {MAPPING_BLOCKS_MAX} blocks")]
    TooMany,
    /// A block has no node or no rank.
    #[error("block {0} of the mapping is empty")]
    EmptyBlock(usize),
    /// A node number or a rank exceeds 32 bits.
    #[error("block {0} of the mapping exceeds 32 bits")]
    Overflow(usize),
}

impl Mapping {
    /// Builds a mapping from the node of rank 0, of rank 1 and so on. Node numbers are kept as given.
    ///
    /// The caller numbers nodes densely from 0 in order of first appearance: old clients were only seen to work with that.
    ///
    /// # Panics
    ///
    /// If there are 2^32 ranks or more, which no plan has.
    pub fn from_nodes(nodes: impl IntoIterator<Item = u32>) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        let nodes: Vec<u32> = nodes.into_iter().collect();
        for run in nodes.chunk_by(|node, next| node == next) {
            let (start, ppn) = (run[0], u32::try_from(run.len()).expect("a plan has fewer than 2^32 ranks"));
            match blocks.last_mut() {
                Some(last) if last.ppn == ppn && last.start.checked_add(last.count) == Some(start) => last.count += 1,
                _ => blocks.push(Block { start, count: 1, ppn }),
            }
        }
        Self::indexed(blocks).expect("a plan has fewer than 2^32 ranks")
    }

    /// Returns the blocks in order of their ranks.
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Returns the number of ranks.
    pub fn size(&self) -> u32 {
        self.firsts.last().copied().unwrap_or(0)
    }

    /// Returns the node of a rank, or `None` for a rank beyond the size. O(log blocks).
    pub fn node_of(&self, rank: Rank) -> Option<u32> {
        let (at, offset) = self.locate(rank)?;
        let block = self.blocks[at];
        Some(block.start + offset / block.ppn)
    }

    /// Returns the number of lower ranks on the same node, or `None` for a rank beyond the size. O(blocks).
    pub fn local_rank(&self, rank: Rank) -> Option<u32> {
        let (at, offset) = self.locate(rank)?;
        let block = self.blocks[at];
        let node = block.start + offset / block.ppn;
        let before: u32 = self.blocks[..at].iter().map(|earlier| earlier.ranks_on(node)).sum();
        Some(before + offset % block.ppn)
    }

    /// Returns the number of ranks on a node. O(blocks).
    pub fn local_size(&self, node: u32) -> u32 {
        self.blocks.iter().map(|block| block.ranks_on(node)).sum()
    }

    /// Returns the value of `PMI_process_mapping`, such as `(vector,(0,1,8))`: without blanks and in the old syntax only,
    /// since the extensions that MPICH >= 4.1 understands kill older clients.
    ///
    /// Returns `None` for an empty mapping and for one that is longer than legacy clients read (865 bytes), rather than a
    /// wrong one. Clients then compare host names.
    pub fn wire_value(&self) -> Option<String> {
        if self.blocks.is_empty() {
            return None;
        }
        let mut text = String::from("(vector");
        for Block { start, count, ppn } in &self.blocks {
            write!(text, ",({start},{count},{ppn})").ok()?;
            if text.len() >= MAPPING_BYTES_MAX {
                return None;
            }
        }
        text.push(')');
        Some(text)
    }

    /// Indexes `blocks`, each of at least one node and rank, for look-ups.
    fn indexed(blocks: Vec<Block>) -> Result<Self, MappingError> {
        let mut firsts = Vec::with_capacity(blocks.len() + 1);
        let mut size = 0_u32;
        firsts.push(size);
        for (at, block) in blocks.iter().enumerate() {
            let ranks = block.count.checked_mul(block.ppn);
            let sum = ranks.and_then(|ranks| size.checked_add(ranks));
            size = sum.ok_or(MappingError::Overflow(at))?;
            firsts.push(size);
            // The last node's number must fit 32 bits, the one after it need not.
            block.start.checked_add(block.count - 1).ok_or(MappingError::Overflow(at))?;
        }
        Ok(Self { blocks, firsts })
    }

    /// Returns the index of a rank's block and the rank's offset in it.
    fn locate(&self, rank: Rank) -> Option<(usize, u32)> {
        if rank.0 >= self.size() {
            return None;
        }
        let at = self.firsts.partition_point(|&first| first <= rank.0) - 1;
        Some((at, rank.0 - self.firsts[at]))
    }
}

impl Block {
    /// Returns the number of this block's ranks on `node`.
    fn ranks_on(self, node: u32) -> u32 {
        let has_node = node >= self.start && node - self.start < self.count;
        if has_node { self.ppn } else { 0 }
    }
}

impl Default for Mapping {
    /// The mapping of no ranks.
    fn default() -> Self {
        Self { blocks: Vec::new(), firsts: vec![0] }
    }
}

impl TryFrom<Vec<Block>> for Mapping {
    type Error = MappingError;

    fn try_from(blocks: Vec<Block>) -> Result<Self, MappingError> {
        if blocks.len() > MAPPING_BLOCKS_MAX {
            return Err(MappingError::TooMany);
        }
        if let Some(at) = blocks.iter().position(|block| block.count == 0 || block.ppn == 0) {
            return Err(MappingError::EmptyBlock(at));
        }
        Self::indexed(blocks)
    }
}

impl From<Mapping> for Vec<Block> {
    fn from(mapping: Mapping) -> Self {
        mapping.blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(nodes: &[u32], expected: &str) {
        let mapping = Mapping::from_nodes(nodes.iter().copied());
        assert_eq!(mapping.wire_value().as_deref(), Some(expected));
    }

    #[test]
    fn layouts_are_compressed() {
        check(&[0; 8], "(vector,(0,1,8))");
        check(&[0, 0, 1, 1], "(vector,(0,2,2))");
        check(&[0, 1, 2, 3], "(vector,(0,4,1))");
        check(&[0, 1, 1, 1], "(vector,(0,1,1),(1,1,3))");
        check(&[0, 1, 0, 1], "(vector,(0,2,1),(0,2,1))");
        check(&[5, 5, 7, 7], "(vector,(5,1,2),(7,1,2))");
        check(&[1, 2, 0], "(vector,(1,2,1),(0,1,1))");
    }

    #[test]
    fn no_ranks_have_no_mapping() {
        // An empty value makes MPICH 4.0.2 abort.
        for mapping in [Mapping::from_nodes([]), Mapping::default()] {
            assert_eq!(mapping, Mapping::default());
            assert_eq!(mapping.size(), 0);
            assert_eq!(mapping.wire_value(), None);
            assert_eq!(mapping.node_of(Rank(0)), None);
        }
    }

    #[test]
    fn a_value_too_long_for_legacy_clients_is_left_out() {
        let exact = Mapping::from_nodes(exactly(MAPPING_BYTES_MAX));
        assert_eq!(exact.wire_value().map(|value| value.len()), Some(MAPPING_BYTES_MAX));
        assert_eq!(Mapping::from_nodes(exactly(MAPPING_BYTES_MAX + 1)).wire_value(), None);
    }

    /// Returns the nodes of a mapping whose wire value has `bytes` bytes: 8, and 8 or 9 per block.
    fn exactly(bytes: usize) -> Vec<u32> {
        let (blocks, long) = ((bytes - 8) / 8, (bytes - 8) % 8);
        let mut nodes = Vec::new();
        for block in 0..blocks {
            let ppn = if block < long { 10 } else { 1 + block % 2 };
            nodes.extend(std::iter::repeat_n(if block % 2 == 0 { 0 } else { 2 }, ppn));
        }
        nodes
    }

    #[test]
    fn each_rank_is_on_its_node() {
        for nodes in [&[0, 1, 0, 1][..], &[5, 5, 7, 7], &[1, 2, 0], &[u32::MAX, 0]] {
            let mapping = Mapping::from_nodes(nodes.iter().copied());
            let found: Vec<_> = (0..mapping.size()).filter_map(|rank| mapping.node_of(Rank(rank))).collect();
            assert_eq!(found, nodes);
        }
    }

    #[test]
    fn a_million_ranks_take_a_few_bytes() {
        let mapping = Mapping::from_nodes((0..1_000_000).map(|rank| rank / 125));
        assert_eq!(mapping.blocks(), [Block { start: 0, count: 8000, ppn: 125 }]);
        assert_eq!(mapping.node_of(Rank(999_999)), Some(7999));
        assert_eq!(mapping.local_rank(Rank(999_999)), Some(124));
        assert_eq!(mapping.node_of(Rank(1_000_000)), None);
    }

    #[test]
    fn blocks_from_a_peer_are_checked() {
        let decode = |blocks: &[(u32, u32, u32)]| rmp_serde::from_slice::<Mapping>(&rmp_serde::to_vec(blocks).unwrap());
        assert_eq!(decode(&[(0, 2, 2)]).unwrap(), Mapping::from_nodes([0, 0, 1, 1]));
        let many = u32::MAX;
        for (blocks, words) in [
            (vec![(0, 0, 1)], "block 0 of the mapping is empty"),
            (vec![(0, 1, 1), (0, 1, 0)], "block 1 of the mapping is empty"),
            (vec![(0, many, 2)], "block 0 of the mapping exceeds 32 bits"),
            (vec![(0, 1, many), (0, 1, 1)], "block 1 of the mapping exceeds 32 bits"),
            (vec![(many, 2, 1)], "block 0 of the mapping exceeds 32 bits"),
        ] {
            let error = decode(&blocks).unwrap_err().to_string();
            assert!(error.contains(words), "{blocks:?}: {error}");
        }
        assert!(decode(&[(many, 1, 1)]).is_ok());
        let block = Block { start: 0, count: 1, ppn: 1 };
        assert!(Mapping::try_from(vec![block; MAPPING_BLOCKS_MAX]).is_ok());
        let error = Mapping::try_from(vec![block; MAPPING_BLOCKS_MAX + 1]).unwrap_err();
        assert_eq!(error, MappingError::TooMany);
    }

    mod properties {
        use proptest::collection::vec;
        use proptest::prelude::*;

        use super::super::*;

        proptest! {
            #[test]
            fn look_ups_agree_with_the_nodes_it_was_built_from(nodes in vec(0_u32..5, 0..40)) {
                let mapping = Mapping::from_nodes(nodes.iter().copied());
                prop_assert_eq!(mapping.size() as usize, nodes.len());
                for (rank, &node) in nodes.iter().enumerate() {
                    let local = nodes[..rank].iter().filter(|&&other| other == node).count();
                    let rank = Rank(rank as u32);
                    prop_assert_eq!(mapping.node_of(rank), Some(node));
                    prop_assert_eq!(mapping.local_rank(rank), Some(local as u32));
                }
                for node in 0..6 {
                    let all = nodes.iter().filter(|&&other| other == node).count();
                    prop_assert_eq!(mapping.local_size(node) as usize, all);
                }
                let bytes = rmp_serde::to_vec(&mapping).unwrap();
                prop_assert_eq!(&rmp_serde::from_slice::<Mapping>(&bytes).unwrap(), &mapping);
                // A legacy client that reads it covers every rank before it would wrap around.
                if let Some(value) = mapping.wire_value() {
                    prop_assert_eq!(assigned(&value), nodes);
                }
            }

            #[test]
            fn no_blocks_panic(blocks in vec((any::<u32>(), any::<u32>(), any::<u32>()), 0..6), rank in any::<u32>()) {
                let blocks = blocks.into_iter().map(|(start, count, ppn)| Block { start, count, ppn });
                if let Ok(mapping) = Mapping::try_from(blocks.collect::<Vec<_>>()) {
                    let node = mapping.node_of(Rank(rank));
                    prop_assert_eq!(node.is_some(), rank < mapping.size());
                    mapping.local_rank(Rank(rank));
                    mapping.local_size(node.unwrap_or(0));
                }
            }
        }

        /// Returns the node of each rank, by the grammar of the PMI reference.
        fn assigned(value: &str) -> Vec<u32> {
            let blocks = value.strip_prefix("(vector,(").unwrap().strip_suffix("))").unwrap();
            let mut nodes = Vec::new();
            for block in blocks.split("),(") {
                let mut numbers = block.split(',').map(|number| number.parse::<u32>().unwrap());
                let [start, count, ppn] = std::array::from_fn(|_| numbers.next().unwrap());
                for node in start..start + count {
                    nodes.extend((0..ppn).map(|_| node));
                }
            }
            nodes
        }
    }
}
