//! The attributes of a node for one namespace, at the agent that owns them.
//!
//! The first agent of a node that has ranks of the namespace owns them; others of the node ask it.
//! A rank has one request outstanding, so at most one of its questions is parked here.

use std::collections::BTreeMap;

use pmi::Rank;

use super::ids::AgentId;
use super::limits::{NODE_ATTRIBUTES_BYTES_MAX, NODE_ATTRIBUTES_MAX};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Node {
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Of all attributes, keys included.
    bytes: usize,
    /// Ranks that wait for an attribute, with their agents, by its key.
    parked: BTreeMap<Vec<u8>, BTreeMap<Rank, AgentId>>,
    /// The same by rank.
    keys: BTreeMap<Rank, Vec<u8>>,
}

impl Node {
    /// Puts an attribute, in place of what was put before: those who waited for it, in order. None,
    /// and nothing done, if that is more than a node holds.
    pub(super) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) -> Option<Vec<(Rank, AgentId)>> {
        let before = self.attributes.get(&key).map(|value| key.len() + value.len());
        let bytes = self.bytes - before.unwrap_or(0) + key.len() + value.len();
        let count = self.attributes.len() + usize::from(before.is_none());
        if count > NODE_ATTRIBUTES_MAX || bytes > NODE_ATTRIBUTES_BYTES_MAX {
            return None;
        }
        self.bytes = bytes;
        let waited = self.parked.remove(&key).unwrap_or_default();
        for rank in waited.keys() {
            self.keys.remove(rank);
        }
        self.attributes.insert(key, value);
        Some(waited.into_iter().collect())
    }

    /// An attribute's value.
    pub(super) fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.attributes.get(key)
    }

    /// Parks the question of a rank until somebody puts the attribute. One that it had before is
    /// forgotten.
    pub(super) fn park(&mut self, rank: Rank, agent: AgentId, key: Vec<u8>) {
        self.forget(rank);
        self.keys.insert(rank, key.clone());
        self.parked.entry(key).or_default().insert(rank, agent);
    }

    /// Forgets what a rank has asked.
    pub(super) fn forget(&mut self, rank: Rank) {
        let Some(key) = self.keys.remove(&rank) else { return };
        if let Some(ranks) = self.parked.get_mut(&key) {
            ranks.remove(&rank);
            if ranks.is_empty() {
                self.parked.remove(&key);
            }
        }
    }

    /// Whether a question of this rank is parked.
    pub(super) fn is_parked(&self, rank: Rank) -> bool {
        self.keys.contains_key(&rank)
    }

    /// What must hold between two inputs.
    pub(super) fn check_invariants(&self) {
        let bytes: usize = self.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
        assert_eq!(bytes, self.bytes, "bytes are counted");
        assert!(bytes <= NODE_ATTRIBUTES_BYTES_MAX && self.attributes.len() <= NODE_ATTRIBUTES_MAX);
        let parked: usize = self.parked.values().map(BTreeMap::len).sum();
        assert_eq!(parked, self.keys.len(), "one question per rank");
        for (rank, key) in &self.keys {
            assert!(self.parked.get(key).is_some_and(|ranks| ranks.contains_key(rank)), "rank {rank} is parked");
            assert!(!self.attributes.contains_key(key), "nobody waits for what was put");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmi::limits::{ATTRIBUTE_BYTES_MAX, KEY_BYTES_MAX};

    const A: AgentId = AgentId(1);
    const B: AgentId = AgentId(2);

    fn put(node: &mut Node, key: &str, value: &str) -> Option<Vec<(Rank, AgentId)>> {
        let waited = node.put(key.into(), value.into());
        node.check_invariants();
        waited
    }

    #[test]
    fn a_put_answers_all_who_waited_and_may_come_again() {
        let mut node = Node::default();
        node.park(Rank(4), B, b"k".to_vec());
        node.park(Rank(1), A, b"k".to_vec());
        node.park(Rank(2), A, b"other".to_vec());
        node.check_invariants();
        assert_eq!(put(&mut node, "k", "v"), Some(vec![(Rank(1), A), (Rank(4), B)]));
        assert_eq!(node.get(b"k"), Some(&b"v"[..].to_vec()));
        assert_eq!(put(&mut node, "k", "longer"), Some(vec![]));
        assert_eq!(node.get(b"k"), Some(&b"longer"[..].to_vec()));
        assert!(node.is_parked(Rank(2)) && !node.is_parked(Rank(4)));
    }

    #[test]
    fn a_rank_waits_for_one_attribute_and_is_forgotten() {
        let mut node = Node::default();
        node.park(Rank(1), A, b"a".to_vec());
        node.park(Rank(1), A, b"b".to_vec());
        node.check_invariants();
        assert_eq!(put(&mut node, "a", ""), Some(vec![]));
        node.forget(Rank(1));
        node.forget(Rank(7));
        assert_eq!(put(&mut node, "b", ""), Some(vec![]));
    }

    #[test]
    fn there_is_a_bound_on_their_number() {
        let mut node = Node::default();
        for number in 0..NODE_ATTRIBUTES_MAX {
            assert_eq!(node.put(number.to_string().into_bytes(), Vec::new()), Some(vec![]));
        }
        assert_eq!(put(&mut node, "one more", ""), None);
        assert_eq!(put(&mut node, "0", "again"), Some(vec![]), "that is no more than before");
        assert_eq!(node.get(b"one more"), None);
    }

    #[test]
    fn there_is_a_bound_on_their_bytes() {
        let mut node = Node::default();
        let value = vec![b'v'; ATTRIBUTE_BYTES_MAX];
        let fill = |node: &mut Node| {
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
