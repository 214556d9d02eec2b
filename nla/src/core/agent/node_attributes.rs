//! The attributes of a node for one namespace, at the agent that owns them.
//!
//! The owner is the node's first agent that has ranks of the namespace; the node's other agents ask it. A rank has one
//! request outstanding, so at most one get of each rank is parked here.

use litemap::LiteMap;
use pmi::Rank;

use crate::core::limits::{NODE_ATTRIBUTES_BYTES_MAX, NODE_ATTRIBUTES_MAX};
use crate::core::message::Requester;

/// The attributes, and the ranks that wait for one.
#[derive(Debug, Default)]
pub(super) struct NodeAttributes {
    attributes: LiteMap<Vec<u8>, Vec<u8>>,
    /// Bytes of all attributes, keys included.
    bytes: usize,
    /// The ranks that wait for an attribute.
    parked: LiteMap<Rank, Parked>,
}

#[derive(Debug)]
struct Parked {
    requester: Requester,
    key: Vec<u8>,
}

impl NodeAttributes {
    /// Puts an attribute, in place of an earlier value. Returns the requesters that waited for it, in the order of
    /// their ranks. `None`, with
    /// nothing changed: the node's bounds are reached.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Option<Vec<Requester>> {
        let before = self.attributes.get(&key).map(|value| key.len() + value.len());
        let bytes = self.bytes - before.unwrap_or(0) + key.len() + value.len();
        let count = self.attributes.len() + usize::from(before.is_none());
        if count > NODE_ATTRIBUTES_MAX || bytes > NODE_ATTRIBUTES_BYTES_MAX {
            return None;
        }
        self.bytes = bytes;
        let waiting = self.parked.values().filter(|parked| parked.key == key);
        let waiting: Vec<_> = waiting.map(|parked| parked.requester).collect();
        self.parked.retain(|_, parked| parked.key != key);
        self.attributes.insert(key, value);
        Some(waiting)
    }

    /// The value of an attribute.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.attributes.get(key)
    }

    /// Parks a rank's get until a rank puts the attribute. Drops an earlier get of the same rank.
    pub(super) fn park(&mut self, requester: Requester, key: Vec<u8>) {
        self.parked.insert(requester.rank, Parked { requester, key });
    }

    /// Drops the parked get of a rank.
    pub(super) fn forget(&mut self, rank: Rank) {
        self.parked.remove(&rank);
    }

    /// Whether a get of this rank is parked.
    pub(super) fn is_parked(&self, rank: Rank) -> bool {
        self.parked.contains_key(&rank)
    }

    /// Panics if an invariant between two inputs is broken.
    pub(super) fn check_invariants(&self) {
        let bytes: usize = self.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(bytes, self.bytes, "the count of bytes is right");
        assert!(bytes <= NODE_ATTRIBUTES_BYTES_MAX && self.attributes.len() <= NODE_ATTRIBUTES_MAX);
        let is_put = |parked: &Parked| self.attributes.contains_key(&parked.key);
        assert!(!self.parked.values().any(is_put), "no rank waits for an attribute that was put");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::{AgentId, NamespaceId};
    use pmi::limits::{ATTRIBUTE_BYTES_MAX, KEY_BYTES_MAX};

    fn rank(rank: u32, agent: u32) -> Requester {
        Requester { agent: AgentId(agent), namespace: NamespaceId::FIRST, rank: Rank(rank), number: 0 }
    }

    fn put(node: &mut NodeAttributes, key: &str, value: &str) -> Option<Vec<Requester>> {
        let waited = node.put(key.into(), value.into());
        node.check_invariants();
        waited
    }

    #[test]
    fn a_put_answers_all_waiting_ranks_and_may_be_repeated() {
        let mut node = NodeAttributes::default();
        node.park(rank(4, 2), b"k".to_vec());
        node.park(rank(1, 1), b"k".to_vec());
        node.park(rank(2, 1), b"other".to_vec());
        node.check_invariants();
        assert_eq!(put(&mut node, "k", "v"), Some(vec![rank(1, 1), rank(4, 2)]));
        assert_eq!(node.get(b"k"), Some(&b"v"[..].to_vec()));
        assert_eq!(put(&mut node, "k", "longer"), Some(vec![]));
        assert_eq!(node.get(b"k"), Some(&b"longer"[..].to_vec()));
        assert!(node.is_parked(Rank(2)) && !node.is_parked(Rank(4)));
    }

    #[test]
    fn a_rank_waits_for_one_attribute_until_it_is_forgotten() {
        let mut node = NodeAttributes::default();
        node.park(rank(1, 1), b"a".to_vec());
        node.park(rank(1, 1), b"b".to_vec());
        node.check_invariants();
        assert_eq!(put(&mut node, "a", ""), Some(vec![]));
        node.forget(Rank(1));
        node.forget(Rank(7));
        assert_eq!(put(&mut node, "b", ""), Some(vec![]));
    }

    #[test]
    fn the_number_of_attributes_is_bounded() {
        let mut node = NodeAttributes::default();
        for number in 0..NODE_ATTRIBUTES_MAX {
            assert_eq!(node.put(number.to_string().into_bytes(), Vec::new()), Some(vec![]));
        }
        assert_eq!(put(&mut node, "one more", ""), None);
        assert_eq!(put(&mut node, "0", "again"), Some(vec![]), "replacing one adds none");
        assert_eq!(node.get(b"one more"), None);
    }

    #[test]
    fn the_bytes_of_attributes_are_bounded() {
        let mut node = NodeAttributes::default();
        let value = vec![b'v'; ATTRIBUTE_BYTES_MAX];
        let fill = |node: &mut NodeAttributes| {
            for number in 0.. {
                let key = format!("{number:0KEY_BYTES_MAX$}").into_bytes();
                let room = NODE_ATTRIBUTES_BYTES_MAX - node.bytes;
                let value = value[..room.saturating_sub(KEY_BYTES_MAX).min(value.len())].to_vec();
                if value.is_empty() || node.put(key, value).is_none() {
                    return;
                }
            }
        };
        fill(&mut node);
        let room = NODE_ATTRIBUTES_BYTES_MAX - node.bytes;
        assert!(room <= KEY_BYTES_MAX && node.attributes.len() < NODE_ATTRIBUTES_MAX);
        assert_eq!(put(&mut node, &"k".repeat(room + 1), ""), None);
        if room > 0 {
            assert_eq!(put(&mut node, &"k".repeat(room), ""), Some(vec![]));
            assert_eq!(node.bytes, NODE_ATTRIBUTES_BYTES_MAX);
        }
    }
}
