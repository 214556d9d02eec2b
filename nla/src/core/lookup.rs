//! Look-ups in one namespace that wait at one place for an answer from another.
//!
//! Many requests may wait for one key; one look-up is sent. Answers from the parent travel in the same lane as
//! releases, behind those that they reflect, so they are valid for the fence that is open here now. An answer from a child
//! may have crossed a release on its way up: then the key is looked up again.

use std::collections::{HashMap, hash_map};

use bytes::Bytes;
use pmi::board::{KeyBuildHasher, check_put};
use pmi::{Entry, LookUpResult, Rank};
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Source};
use super::ids::AgentId;
use super::limits::FOREIGN_LOOK_UPS_MAX;
use super::message::Requester;

/// The destination of the answer to a get.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ReplyTo {
    /// To one of this agent's ranks.
    Rank(Rank),
    /// To a child.
    Child(AgentId),
    /// To the parent, whose index says that the key was put in this subtree.
    Parent,
    /// To a rank of another namespace.
    OtherNamespace(Requester),
}

/// A neighbour in the tree that can be asked for an entry.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// The parent.
    Parent,
    /// A child.
    Child(AgentId),
}

/// The next step of a get.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LookUpStep {
    /// Answer it with this.
    Answer(LookUpResult),
    /// Ask this peer.
    Ask(Peer),
    /// Wait: a peer has been asked for the key already.
    Wait,
}

/// The effect of a peer's answer. It has none if no look-up is open for its key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AnswerEffect {
    /// The gets that are answered with `result`.
    pub(super) answered: ReplyList,
    pub(super) result: LookUpResult,
    /// The peer to ask next for the same key, because the last one did not have it.
    pub(super) ask: Option<Peer>,
}

/// Gets that wait for one key, in the order of their arrival. A single one takes no heap memory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReplyList {
    first: Option<ReplyTo>,
    more: Vec<ReplyTo>,
}

impl ReplyList {
    fn push(&mut self, reply_to: ReplyTo) {
        match self.first {
            None => self.first = Some(reply_to),
            Some(_) => self.more.push(reply_to),
        }
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }

    fn contains(&self, reply_to: ReplyTo) -> bool {
        self.first == Some(reply_to) || self.more.contains(&reply_to)
    }
}

impl IntoIterator for ReplyList {
    type Item = ReplyTo;
    type IntoIter = std::iter::Chain<std::option::IntoIter<ReplyTo>, std::vec::IntoIter<ReplyTo>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl FromIterator<ReplyTo> for ReplyList {
    fn from_iter<I: IntoIterator<Item = ReplyTo>>(list: I) -> Self {
        let mut list = list.into_iter();
        Self { first: list.next(), more: list.collect() }
    }
}

/// Counts how one place answered gets.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GetCounts {
    /// Gets of this place's ranks that were answered from the cache.
    pub own: u64,
    /// Gets of others that were answered from the cache.
    pub others: u64,
    /// Gets for which a peer was asked.
    pub asked: u64,
    /// Gets that waited for the answer to an earlier request for the same key.
    pub joined: u64,
}

impl GetCounts {
    /// Adds up both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            own: self.own.saturating_add(other.own),
            others: self.others.saturating_add(other.others),
            asked: self.asked.saturating_add(other.asked),
            joined: self.joined.saturating_add(other.joined),
        }
    }
}

/// A key for which a peer was asked.
#[derive(Debug)]
struct OpenLookUp {
    waiting: ReplyList,
    peer: Peer,
    /// Children that were asked and did not have the entry.
    tried: usize,
}

/// The open look-ups of one namespace.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// The order of a hash map differs from run to run: no result may depend on it.
    open: HashMap<Bytes, OpenLookUp, KeyBuildHasher>,
    /// Gets that wait, of all keys together.
    waiting: usize,
    counts: GetCounts,
}

impl LookUps {
    /// Whether a child may ask for this key: it could have been put, and fewer gets wait than one for each of the
    /// `ranks` below and [`FOREIGN_LOOK_UPS_MAX`] more.
    pub(super) fn admits(&self, ranks: u64, key: &[u8]) -> bool {
        check_put(key, b"").is_ok() && self.waiting < ranks as usize + FOREIGN_LOOK_UPS_MAX
    }

    /// Takes a get.
    pub(super) fn ask(&mut self, cache: &mut dyn Cache, reply_to: ReplyTo, key: &Bytes) -> LookUpStep {
        let absent = || LookUpResult::Absent(key.clone());
        let peer = match next_peer(cache, key, 0) {
            Err(entry) => return self.answer(reply_to, entry.map_or_else(absent, LookUpResult::Entry)),
            // The parent's index says that the key is in this subtree, but it is not there any more.
            Ok(Peer::Parent) if reply_to == ReplyTo::Parent => return self.answer(reply_to, absent()),
            Ok(peer) => peer,
        };
        match self.open.entry(key.clone()) {
            hash_map::Entry::Occupied(open) if reply_to == ReplyTo::Parent && open.get().peer == Peer::Parent => {
                // Every child that could have the entry was asked. If this waited for the parent, each of the two
                // would wait for the other.
                self.answer(reply_to, absent())
            }
            hash_map::Entry::Occupied(mut open) => {
                open.get_mut().waiting.push(reply_to);
                self.waiting += 1;
                self.counts.joined += 1;
                LookUpStep::Wait
            }
            hash_map::Entry::Vacant(free) => {
                self.waiting += 1;
                free.insert(OpenLookUp { waiting: [reply_to].into_iter().collect(), peer, tried: 0 });
                self.counts.asked += 1;
                LookUpStep::Ask(peer)
            }
        }
    }

    /// Takes the answer of a peer. `is_fresh`: no release has crossed it on its way.
    pub(super) fn on_answer(
        &mut self,
        cache: &mut dyn Cache,
        from: Peer,
        result: LookUpResult,
        is_fresh: bool,
    ) -> AnswerEffect {
        let nothing = |result| AnswerEffect { answered: ReplyList::default(), result, ask: None };
        let Some((key, mut look_up)) = self.open.remove_entry(result.key()) else { return nothing(result) };
        if look_up.peer != from {
            self.open.insert(key, look_up);
            return nothing(result);
        }
        if is_fresh && (result.entry().is_some() || from == Peer::Parent) {
            cache.learn(&result);
            return self.close(look_up, result);
        }
        look_up.tried = if is_fresh { look_up.tried + 1 } else { 0 };
        let peer = match next_peer(cache, &key, look_up.tried) {
            Err(entry) => return self.close(look_up, entry.map_or(LookUpResult::Absent(key), LookUpResult::Entry)),
            Ok(peer) => peer,
        };
        // The parent asks only for what is in this subtree, and every child that could have it was asked.
        let is_answered = |reply_to: &ReplyTo| peer == Peer::Parent && *reply_to == ReplyTo::Parent;
        let (answered, waiting): (Vec<_>, Vec<_>) = look_up.waiting.into_iter().partition(is_answered);
        self.waiting -= answered.len();
        let ask = (!waiting.is_empty()).then_some(peer);
        if ask.is_some() {
            self.counts.asked += 1;
            self.open.insert(key.clone(), OpenLookUp { waiting: waiting.into_iter().collect(), peer, ..look_up });
        }
        AnswerEffect { answered: answered.into_iter().collect(), result: LookUpResult::Absent(key), ask }
    }

    /// Withdraws the get of a rank whose process has ended: the answer must not reach the rank's next process. The peer's
    /// answer is still awaited for the cache.
    pub(super) fn withdraw(&mut self, rank: Rank) {
        if self.waiting == 0 {
            return;
        }
        let rank = ReplyTo::Rank(rank);
        // The order of the look-ups does not matter here.
        for look_up in self.open.values_mut().filter(|look_up| look_up.waiting.contains(rank)) {
            let before = look_up.waiting.len();
            let others = std::mem::take(&mut look_up.waiting).into_iter().filter(|waiting| *waiting != rank);
            look_up.waiting = others.collect();
            self.waiting -= before - look_up.waiting.len();
        }
    }

    /// The keys for which `peer` was asked and has not answered, in order.
    pub(super) fn asked(&self, peer: Peer) -> Vec<Bytes> {
        let mut keys: Vec<_> =
            self.open.iter().filter(|(_, open)| open.peer == peer).map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    /// The open look-ups of ranks of other namespaces, with their keys, in order.
    pub(super) fn foreign(&self) -> Vec<(Requester, Bytes)> {
        let open = self.open.iter().flat_map(|(key, open)| open.waiting.clone().into_iter().map(move |to| (to, key)));
        let foreign = open.filter_map(|(to, key)| match to {
            ReplyTo::OtherNamespace(requester) => Some((requester, key.clone())),
            ReplyTo::Rank(_) | ReplyTo::Child(_) | ReplyTo::Parent => None,
        });
        let mut foreign: Vec<_> = foreign.collect();
        foreign.sort_unstable_by_key(|(Requester { agent, namespace, rank, .. }, _)| (*agent, *namespace, *rank));
        foreign
    }

    /// Answers all gets that wait for `look_up`.
    fn close(&mut self, look_up: OpenLookUp, result: LookUpResult) -> AnswerEffect {
        self.waiting -= look_up.waiting.len();
        AnswerEffect { answered: look_up.waiting, result, ask: None }
    }

    /// How gets were answered so far.
    pub(super) fn counts(&self) -> GetCounts {
        self.counts
    }

    fn answer(&mut self, reply_to: ReplyTo, result: LookUpResult) -> LookUpStep {
        match reply_to {
            ReplyTo::Rank(_) => self.counts.own += 1,
            ReplyTo::Child(_) | ReplyTo::Parent | ReplyTo::OtherNamespace(_) => self.counts.others += 1,
        }
        LookUpStep::Answer(result)
    }
}

/// Returns the peer to ask after `tried` children. The error is the cache's own answer: the entry, or `None` for an
/// absent key.
fn next_peer(cache: &mut dyn Cache, key: &[u8], tried: usize) -> Result<Peer, Option<Entry>> {
    match cache.look_up(key, tried) {
        Source::Stored(entry) => Err(Some(entry)),
        Source::Absent => Err(None),
        Source::Child(child) => Ok(Peer::Child(child)),
        Source::Parent => Ok(Peer::Parent),
    }
}

#[cfg(test)]
mod tests {
    use pmi::limits::KEY_BYTES_MAX;
    use pmi::{Epoch, Puts, Ranks};

    use super::*;
    use crate::core::cache::{CacheLocation, CachePolicy};
    use crate::core::message::Update;

    #[test]
    fn as_many_gets_as_the_bound_may_wait() {
        const RANKS: u64 = 3;
        let at_bound = RANKS as usize + FOREIGN_LOOK_UPS_MAX;
        for (waiting, is_admitted) in [(0, true), (at_bound - 1, true), (at_bound, false), (at_bound + 1, false)] {
            let look_ups = LookUps { waiting, ..LookUps::default() };
            assert_eq!(look_ups.admits(RANKS, b"k"), is_admitted, "{waiting} gets wait");
        }
        let look_ups = LookUps::default();
        assert!(look_ups.admits(RANKS, &[b'k'; KEY_BYTES_MAX]));
        assert!(!look_ups.admits(RANKS, &[b'k'; KEY_BYTES_MAX + 1]));
    }

    const CHILD: Peer = Peer::Child(AgentId(2));

    /// The cache of an agent whose ranks are 4 and 5. Child 2 has ranks 0 and 1, child 5 has ranks 2 and 3. The value
    /// of "a", which rank 0 has put, was evicted; that of "b" was not.
    fn cache() -> Box<dyn Cache> {
        let shares = [(AgentId(2), Ranks::range(0..2)), (AgentId(5), Ranks::range(2..4))];
        let mut cache = CachePolicy::HcmabLru { entries: 1 }.cache_at(CacheLocation::new(false, &shares));
        let mut puts = Puts::new();
        puts.push(Rank(0), b"a", b"1");
        puts.push(Rank(2), b"b", b"2");
        cache.gather(&puts);
        cache.release(Update::Epoch(Epoch::merge(&puts).unwrap()));
        cache
    }

    fn key(key: &'static str) -> Bytes {
        Bytes::from_static(key.as_bytes())
    }

    fn entry(key: &str) -> LookUpResult {
        LookUpResult::Entry(Entry::new(key.as_bytes(), b"v"))
    }

    fn rank(rank: u32) -> ReplyTo {
        ReplyTo::Rank(Rank(rank))
    }

    fn effect(answered: &[ReplyTo], result: LookUpResult, ask: Option<Peer>) -> AnswerEffect {
        AnswerEffect { answered: answered.iter().copied().collect(), result, ask }
    }

    #[test]
    fn gets_wait_for_one_answer_and_are_counted() {
        let (mut cache, mut look_ups) = (cache(), LookUps::default());
        let child = ReplyTo::Child(AgentId(5));
        assert_eq!(look_ups.ask(cache.as_mut(), rank(4), &key("x")), LookUpStep::Ask(Peer::Parent));
        assert_eq!(look_ups.ask(cache.as_mut(), child, &key("x")), LookUpStep::Wait);
        assert_eq!(look_ups.ask(cache.as_mut(), rank(5), &key("c")), LookUpStep::Ask(Peer::Parent));
        assert_eq!((look_ups.waiting, look_ups.asked(Peer::Parent)), (3, vec![key("c"), key("x")]));
        assert_eq!(look_ups.asked(CHILD), [] as [Bytes; 0]);
        let answer = look_ups.on_answer(cache.as_mut(), Peer::Parent, entry("x"), true);
        assert_eq!(answer, effect(&[rank(4), child], entry("x"), None));
        assert_eq!((look_ups.waiting, look_ups.asked(Peer::Parent)), (1, vec![key("c")]));
        for (reply_to, text) in [(rank(4), "x"), (child, "x"), (child, "x")] {
            assert_eq!(look_ups.ask(cache.as_mut(), reply_to, &key(text)), LookUpStep::Answer(entry("x")));
        }
        assert_eq!(look_ups.counts(), GetCounts { own: 1, others: 2, asked: 2, joined: 1 });
    }

    #[test]
    fn the_parent_is_asked_for_what_a_child_does_not_have() {
        let (mut cache, mut look_ups) = (cache(), LookUps::default());
        let absent = || LookUpResult::Absent(key("a"));
        assert_eq!(look_ups.ask(cache.as_mut(), rank(4), &key("a")), LookUpStep::Ask(CHILD));
        assert_eq!(look_ups.ask(cache.as_mut(), ReplyTo::Parent, &key("a")), LookUpStep::Wait);
        let other = Peer::Child(AgentId(5));
        assert_eq!(look_ups.on_answer(cache.as_mut(), other, absent(), true), effect(&[], absent(), None));
        assert_eq!(look_ups.asked(CHILD), [key("a")], "another child was not asked");
        // The parent asks only for what is in this subtree.
        let answer = look_ups.on_answer(cache.as_mut(), CHILD, absent(), true);
        assert_eq!(answer, effect(&[ReplyTo::Parent], absent(), Some(Peer::Parent)));
        assert_eq!((look_ups.waiting, look_ups.asked(Peer::Parent)), (1, vec![key("a")]));
        assert_eq!(look_ups.ask(cache.as_mut(), ReplyTo::Parent, &key("a")), LookUpStep::Answer(absent()));
        assert_eq!(look_ups.ask(cache.as_mut(), rank(5), &key("a")), LookUpStep::Wait);
        let answer = look_ups.on_answer(cache.as_mut(), Peer::Parent, entry("a"), true);
        assert_eq!(answer, effect(&[rank(4), rank(5)], entry("a"), None));
        assert_eq!(look_ups.waiting, 0);
        assert_eq!(look_ups.counts(), GetCounts { own: 0, others: 1, asked: 2, joined: 2 });
    }

    #[test]
    fn a_look_up_for_the_parent_alone_ends_with_the_children() {
        let (mut cache, mut look_ups) = (cache(), LookUps::default());
        let absent = |text| LookUpResult::Absent(key(text));
        assert_eq!(look_ups.ask(cache.as_mut(), ReplyTo::Parent, &key("x")), LookUpStep::Answer(absent("x")));
        assert_eq!(look_ups.ask(cache.as_mut(), ReplyTo::Parent, &key("a")), LookUpStep::Ask(CHILD));
        let answer = look_ups.on_answer(cache.as_mut(), CHILD, absent("a"), true);
        assert_eq!(answer, effect(&[ReplyTo::Parent], absent("a"), None));
        assert_eq!((look_ups.waiting, look_ups.open.len()), (0, 0));
    }

    #[test]
    fn a_withdrawn_get_is_not_answered() {
        let (mut cache, mut look_ups) = (cache(), LookUps::default());
        for (reply_to, text) in [(rank(4), "x"), (rank(5), "x"), (ReplyTo::Child(AgentId(5)), "x"), (rank(4), "y")] {
            look_ups.ask(cache.as_mut(), reply_to, &key(text));
        }
        look_ups.withdraw(Rank(4));
        assert_eq!(look_ups.waiting, 2);
        let answer = look_ups.on_answer(cache.as_mut(), Peer::Parent, entry("x"), true);
        assert_eq!(answer, effect(&[rank(5), ReplyTo::Child(AgentId(5))], entry("x"), None));
        let answer = look_ups.on_answer(cache.as_mut(), Peer::Parent, entry("y"), true);
        assert_eq!(answer, effect(&[], entry("y"), None));
        assert_eq!(look_ups.ask(cache.as_mut(), rank(4), &key("y")), LookUpStep::Answer(entry("y")));
        assert_eq!((look_ups.waiting, look_ups.open.len()), (0, 0));
    }

    #[test]
    fn an_answer_that_has_crossed_a_release_is_asked_for_again() {
        let (mut cache, mut look_ups) = (cache(), LookUps::default());
        let absent = || LookUpResult::Absent(key("a"));
        look_ups.ask(cache.as_mut(), rank(4), &key("a"));
        for result in [absent(), entry("a")] {
            let answer = look_ups.on_answer(cache.as_mut(), CHILD, result, false);
            assert_eq!(answer, effect(&[], absent(), Some(CHILD)));
        }
        let answer = look_ups.on_answer(cache.as_mut(), CHILD, entry("a"), true);
        assert_eq!(answer, effect(&[rank(4)], entry("a"), None));
    }
}
