//! Sparse counts: a table with open addressing.

/// The bytes and the number of messages.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct Traffic {
    /// Bytes of data, without headers.
    pub bytes: u64,
    /// Messages, empty ones included.
    pub messages: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.messages = self.messages.saturating_add(1);
    }
}

/// Another rank, and which of the two sends.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Peer {
    /// Its number in the job.
    pub rank: u32,
    /// Data moves from it to this rank, by a one-sided operation of this rank.
    pub fetched: bool,
}

impl Peer {
    /// One number for both; never 0, which marks a free slot.
    fn key(self) -> u64 {
        (u64::from(self.rank) << 1 | u64::from(self.fetched)) + 1
    }

    fn of(key: u64) -> Self {
        Self { rank: ((key - 1) >> 1) as u32, fetched: (key - 1) & 1 == 1 }
    }
}

#[derive(Copy, Clone, Default)]
struct Slot {
    /// 0 if the slot is free.
    key: u64,
    traffic: Traffic,
}

/// The first size of a table; sizes are powers of two.
const SLOTS_MIN: usize = 64;

/// Returns the place of the slot of a key, or of the free one where it belongs; any place without slots.
#[inline]
fn find(slots: &[Slot], key: u64) -> usize {
    let mask = slots.len().wrapping_sub(1);
    // Fibonacci hashing: neighbouring ranks are the usual peers.
    let mut at = (key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & mask;
    while slots.get(at).is_some_and(|slot| slot.key != 0 && slot.key != key) {
        at = (at + 1) & mask;
    }
    at
}

/// The traffic with each peer. Nothing is ever removed.
#[derive(Default)]
pub(crate) struct Counters {
    slots: Vec<Slot>,
    used: usize,
}

impl Counters {
    pub(crate) const fn new() -> Self {
        Self { slots: Vec::new(), used: 0 }
    }

    /// Counts a message.
    #[inline]
    pub(crate) fn add(&mut self, peer: Peer, bytes: u64) {
        let key = peer.key();
        let at = find(&self.slots, key);
        match self.slots.get_mut(at) {
            Some(slot) if slot.key == key => slot.traffic.add(bytes),
            _ => self.add_first(key, bytes),
        }
    }

    /// Counts the first message of a peer.
    #[cold]
    fn add_first(&mut self, key: u64, bytes: u64) {
        // At most three quarters are used, so each search ends at a free slot.
        if (self.used + 1) * 4 > self.slots.len() * 3 {
            self.grow();
        }
        let at = find(&self.slots, key);
        self.slots[at].key = key;
        self.slots[at].traffic.add(bytes);
        self.used += 1;
    }

    fn grow(&mut self) {
        let mut slots = vec![Slot::default(); (self.slots.len() * 2).max(SLOTS_MIN)];
        for slot in self.slots.iter().filter(|slot| slot.key != 0) {
            let at = find(&slots, slot.key);
            slots[at] = *slot;
        }
        self.slots = slots;
    }

    /// Returns all peers with their traffic, in the order of their ranks.
    pub(crate) fn sorted(&self) -> Vec<(Peer, Traffic)> {
        let mut used: Vec<&Slot> = self.slots.iter().filter(|slot| slot.key != 0).collect();
        used.sort_unstable_by_key(|slot| slot.key);
        used.into_iter().map(|slot| (Peer::of(slot.key), slot.traffic)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn each_peer_is_counted_once_per_message() {
        let (mut counters, mut expected) = (Counters::new(), BTreeMap::new());
        let mut state = 7_u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let peer = Peer { rank: (state >> 33) as u32 % 3000, fetched: state >> 62 == 0 };
            let bytes = state >> 50;
            counters.add(peer, bytes);
            expected.entry(peer.key()).or_insert_with(Traffic::default).add(bytes);
        }
        let found: Vec<_> = counters.sorted().into_iter().map(|(peer, traffic)| (peer.key(), traffic)).collect();
        assert_eq!(found, expected.into_iter().collect::<Vec<_>>());
        assert!(counters.slots.len().is_power_of_two() && counters.used * 4 <= counters.slots.len() * 3);
    }

    #[test]
    fn the_highest_rank_has_a_key_of_its_own() {
        for fetched in [false, true] {
            let peer = Peer { rank: u32::MAX, fetched };
            assert_eq!(Peer::of(peer.key()), peer);
        }
        assert_ne!(Peer { rank: 0, fetched: false }.key(), 0);
    }
}
