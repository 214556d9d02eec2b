//! One namespace's open fence at one place: the ranks of the subtree that have arrived, and what they contributed.
//!
//! A fence is identified by its namespace and its sequence number. A rank enters fence n+1 only after its own agent has
//! released it from fence n, and a child reports n+1 only after the release of n reached it through its parent. So a
//! place has at most one open fence per namespace, and a contribution to another one is a fault of the peer. Fences
//! never expire by themselves: a rank may compute for hours before it calls MPI_Finalize.
//!
//! If the session goes on after the death of a rank, a fence does not wait for ranks that have died. What they
//! contributed before they died counts. A fence to which no rank has contributed is never complete.
//!
//! A ring (`PMIX_Ring`) is a fence to which each rank contributes values for its neighbours instead of puts. The first
//! arrival decides which of the two an open fence is; all others must agree.

use std::collections::BTreeMap;

use pmi::limits::ATTRIBUTE_BYTES_MAX;
use pmi::{Puts, Rank, Ranks};
use thiserror::Error;

use super::ids::{AgentId, Time};
use super::limits::FENCE_BYTES_MAX;
use super::message::Contribution;
use super::ring::{self, RingPosition, RingSegment};

/// The reason why a contribution, or a release, was refused.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum FenceError {
    /// It is for another fence than the open one.
    #[error("it is for fence {got}, the open one is {open}")]
    OutOfTurn {
        /// The number in the contribution.
        got: u32,
        /// The number of the open fence.
        open: u32,
    },
    /// It is on behalf of ranks that are not the sender's.
    #[error("it is for ranks {0}, which are not the sender's")]
    ForeignRanks(Ranks),
    /// It is on behalf of no rank.
    #[error("it is for no rank")]
    NoRanks,
    /// Some of its ranks had arrived before.
    #[error("ranks of {0} arrived twice")]
    AlreadyArrived(Ranks),
    /// With it, the puts of the fence exceed [`FENCE_BYTES_MAX`].
    #[error("the puts of the fence exceed {FENCE_BYTES_MAX} bytes")]
    TooLarge,
    /// It is a put ahead of its fence, which the session's cache policy does not use.
    #[error("a put arrived ahead of its fence, which the session's cache policy does not allow")]
    EarlyPut,
    /// Its puts cannot be decoded.
    #[error("its puts cannot be decoded: {0}")]
    Puts(#[from] pmi::PutsError),
    /// Its ranks are in a fence and the others in a ring, or the reverse: a fault of the program, not of the sender.
    #[error("{}", if *.ring { "called PMIX_Ring where others are in a fence" } else { "entered a fence where others called PMIX_Ring" })]
    Mixed {
        /// It is a ring's contribution to a fence; otherwise a fence's to a ring.
        ring: bool,
    },
    /// Its segment of a ring does not consist of all ranks of the sender.
    #[error("its part of the ring has {count} ranks, those that arrived are {ranks}, the sender's are {all}")]
    IncompleteSegment {
        /// The number of ranks in the segment.
        count: u32,
        /// The ranks on whose behalf it is.
        ranks: Ranks,
        /// All ranks of the sender.
        all: Ranks,
    },
    /// A value for a neighbour in a ring exceeds [`ATTRIBUTE_BYTES_MAX`].
    #[error("a value in the ring exceeds {ATTRIBUTE_BYTES_MAX} bytes")]
    ValueTooLong,
    /// It releases a ring where no ring is complete.
    #[error("no ring is complete here")]
    Unexpected,
    /// The position that a release gives to the subtree is beyond the end of the ring.
    #[error("position {0} is beyond the end of the ring")]
    Position(u32),
}

/// A segment of a ring at one place, in the ring's order: the place's ranks ascending, then the children. Where
/// ranks are placed in blocks, that is the order of the ranks.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum RingPart {
    /// One of the place's ranks.
    Own(Rank),
    /// All ranks of a child.
    Child(AgentId),
}

/// The contributions to the open fence.
#[derive(Debug)]
enum Collected {
    /// No rank has arrived.
    Nothing,
    /// It is a fence.
    Puts(Puts),
    /// It is a ring. The segments are stored until the release, which has a position for each.
    Ring(BTreeMap<RingPart, RingSegment>),
}

/// The open fence of one namespace at one place.
#[derive(Debug)]
pub struct Fence {
    number: u32,
    expected: Ranks,
    /// The number of expected ranks.
    count: u64,
    arrived: Ranks,
    /// The expected ranks that have died.
    dead: Ranks,
    /// The number of dead ranks that have not arrived at the open fence.
    absent: u64,
    collected: Collected,
    /// Ranks have left a ring that they had entered. It is never complete: joined segments cannot be separated.
    is_torn: bool,
    since: Option<Time>,
}

impl Fence {
    /// The first fence of the ranks `expected`.
    pub fn new(expected: Ranks) -> Self {
        Self {
            number: 0,
            count: expected.len(),
            expected,
            arrived: Ranks::new(),
            dead: Ranks::new(),
            absent: 0,
            collected: Collected::Nothing,
            is_torn: false,
            since: None,
        }
    }

    /// The number of the open fence, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The ranks that have arrived at the open fence.
    pub fn arrived(&self) -> &Ranks {
        &self.arrived
    }

    /// The ranks that have to arrive, dead ones included.
    pub fn expected_ranks(&self) -> &Ranks {
        &self.expected
    }

    /// The number of ranks that have to arrive.
    pub fn expected(&self) -> u64 {
        self.count
    }

    /// When the first rank arrived at the open fence.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// The expected ranks that have died.
    pub fn dead(&self) -> &Ranks {
        &self.dead
    }

    /// Whether a rank has died before it arrived at the open fence.
    pub fn has_absent(&self) -> bool {
        self.absent > 0
    }

    /// Stops waiting for those of `ranks` that are expected. Returns the ones that were not dead before.
    pub fn mark_dead(&mut self, ranks: &Ranks) -> Ranks {
        let new = ranks.intersection(&self.expected).difference(&self.dead);
        self.dead.union_with(&new);
        self.absent = self.dead.difference(&self.arrived).len();
        new
    }

    /// Takes back the arrival of ranks at the open fence, and their puts: their agent was lost, and they will arrive again.
    pub fn withdraw(&mut self, ranks: &Ranks) {
        let ranks = ranks.intersection(&self.arrived);
        if ranks.is_empty() {
            return;
        }
        self.arrived = self.arrived.difference(&ranks);
        self.absent = self.dead.difference(&self.arrived).len();
        match &mut self.collected {
            Collected::Puts(_) if self.arrived.is_empty() => {
                self.collected = Collected::Nothing;
                self.since = None;
            }
            Collected::Puts(puts) => *puts = puts.without(&ranks),
            Collected::Ring(_) => self.is_torn = true,
            Collected::Nothing => {}
        }
    }

    /// Stops expecting these ranks: they no longer have an agent in the subtree.
    pub fn move_out(&mut self, ranks: &Ranks) {
        self.withdraw(ranks);
        self.expected = self.expected.difference(ranks);
        self.count = self.expected.len();
    }

    /// Expects these ranks too, from the open fence on: an agent of the subtree starts them.
    pub fn move_in(&mut self, ranks: &Ranks) {
        self.expected.union_with(ranks);
        self.count = self.expected.len();
    }

    /// Whether a contribution of `ranks` to fence `number` has been taken: they have arrived, or the fence is the one before
    /// the open one.
    pub fn has_passed(&self, number: u32, ranks: &Ranks) -> bool {
        number.wrapping_add(1) == self.number
            || number == self.number && self.arrived.contains_all(ranks) && !ranks.is_empty()
    }

    /// Adds the contribution of one of the place's ranks to the open fence. A refused one changes nothing.
    pub fn enter(&mut self, now: Time, rank: Rank, contribution: Contribution) -> Result<(), FenceError> {
        let ranks: Ranks = std::iter::once(rank).collect();
        self.check(&ranks, &contribution)?;
        self.add(now, RingPart::Own(rank), &ranks, contribution);
        Ok(())
    }

    /// Adds the contribution of `ranks` of a child to fence `number`. The child may speak for `share` only. A refused
    /// contribution changes nothing.
    pub fn arrive(
        &mut self,
        now: Time,
        child: AgentId,
        number: u32,
        ranks: &Ranks,
        share: &Ranks,
        contribution: Contribution,
    ) -> Result<(), FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        if ranks.is_empty() {
            return Err(FenceError::NoRanks);
        }
        if !share.contains_all(ranks) {
            return Err(FenceError::ForeignRanks(ranks.clone()));
        }
        self.check(ranks, &contribution)?;
        match &contribution {
            Contribution::Puts(puts) => drop(puts.validate()?),
            Contribution::Ring(segment)
                if share.difference(&self.dead).difference(ranks).is_empty()
                    && u64::from(segment.count) == ranks.len() => {}
            Contribution::Ring(segment) => {
                let (count, ranks, all) = (segment.count, ranks.clone(), share.clone());
                return Err(FenceError::IncompleteSegment { count, ranks, all });
            }
        }
        self.add(now, RingPart::Child(child), ranks, contribution);
        Ok(())
    }

    /// Checks puts that arrive ahead of fence `number`. Their ranks must be among `ranks` and not have arrived.
    pub fn check_ahead(&self, number: u32, ranks: &Ranks, puts: &Puts) -> Result<(), FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        for put in puts.iter() {
            let rank = put?.rank;
            let that_rank = || std::iter::once(rank).collect();
            if !ranks.contains(rank) {
                return Err(FenceError::ForeignRanks(that_rank()));
            }
            if self.arrived.contains(rank) {
                return Err(FenceError::AlreadyArrived(that_rank()));
            }
        }
        Ok(())
    }

    fn check(&self, ranks: &Ranks, contribution: &Contribution) -> Result<(), FenceError> {
        if !self.expected.contains_all(ranks) {
            return Err(FenceError::ForeignRanks(ranks.clone()));
        }
        if !self.arrived.is_disjoint(ranks) {
            return Err(FenceError::AlreadyArrived(ranks.clone()));
        }
        let before = self.pending_bytes();
        match (&self.collected, contribution) {
            (Collected::Ring(_), Contribution::Puts(_)) => Err(FenceError::Mixed { ring: false }),
            (Collected::Puts(_), Contribution::Ring(_)) => Err(FenceError::Mixed { ring: true }),
            (_, Contribution::Ring(segment)) if !segment.is_bounded() => Err(FenceError::ValueTooLong),
            (_, Contribution::Puts(puts)) if is_too_much(before, puts) => Err(FenceError::TooLarge),
            _ => Ok(()),
        }
    }

    fn add(&mut self, now: Time, part: RingPart, ranks: &Ranks, contribution: Contribution) {
        self.arrived.union_with(ranks);
        if !self.dead.is_empty() {
            self.absent = self.dead.difference(&self.arrived).len();
        }
        self.since.get_or_insert(now);
        match (&mut self.collected, contribution) {
            (Collected::Puts(before), Contribution::Puts(puts)) => before.append(&puts),
            (Collected::Ring(segments), Contribution::Ring(segment)) => drop(segments.insert(part, segment)),
            (collected, Contribution::Puts(puts)) => *collected = Collected::Puts(puts),
            (collected, Contribution::Ring(segment)) => *collected = Collected::Ring([(part, segment)].into()),
        }
    }

    /// The bytes of the puts that [`Fence::take`] has not taken.
    pub fn pending_bytes(&self) -> usize {
        if let Collected::Puts(puts) = &self.collected { puts.bytes_len() } else { 0 }
    }

    /// Whether each expected rank has arrived or died, and one has arrived.
    pub fn is_complete(&self) -> bool {
        self.is_settled() && !self.arrived.is_empty() && !self.is_torn
    }

    /// Whether each expected rank has arrived or died.
    fn is_settled(&self) -> bool {
        self.arrived.len() + self.absent == self.count
    }

    /// Returns the merged contribution, or what was added to it since the last call, to be sent to the parent or released. Puts are moved out; a ring's segments
    /// stay here for the release.
    pub fn take(&mut self) -> Contribution {
        match &mut self.collected {
            Collected::Nothing => Contribution::Puts(Puts::new()),
            Collected::Puts(puts) => Contribution::Puts(std::mem::take(puts)),
            Collected::Ring(segments) => {
                let none = || RingSegment { count: 0, to_left: Vec::new(), to_right: Vec::new() };
                Contribution::Ring(ring::join(segments.values()).unwrap_or_else(none))
            }
        }
    }

    /// Whether the open fence is a ring.
    pub fn is_ring(&self) -> bool {
        matches!(self.collected, Collected::Ring(_))
    }

    /// Returns the positions of all parts of ring `number`, which must be open and complete. `whole` is the position
    /// of the subtree, `size` the number of ranks in the whole ring.
    pub fn ring_positions(
        &self,
        number: u32,
        whole: &RingPosition,
        size: u32,
    ) -> Result<Vec<(RingPart, RingPosition)>, FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        let Collected::Ring(segments) = &self.collected else { return Err(FenceError::Unexpected) };
        if !self.is_complete() {
            return Err(FenceError::Unexpected);
        }
        if !whole.is_bounded(self.expected.len(), size) {
            return Err(FenceError::Position(whole.position));
        }
        Ok(segments.keys().copied().zip(ring::positions(segments.values(), whole)).collect())
    }

    /// Closes fence `number` and opens the next. Returns false, and does nothing, if `number` is not the open fence or
    /// a rank is missing.
    pub fn release(&mut self, number: u32) -> bool {
        if number != self.number || !self.is_settled() {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        self.arrived = Ranks::new();
        self.absent = self.dead.len();
        self.collected = Collected::Nothing;
        self.is_torn = false;
        self.since = None;
        true
    }

    /// Panics if an invariant between two inputs is broken.
    pub fn check_invariants(&self) {
        assert!(self.expected.contains_all(&self.arrived), "only expected ranks have arrived");
        assert!(self.expected.contains_all(&self.dead), "only expected ranks have died");
        assert_eq!(self.absent, self.dead.difference(&self.arrived).len(), "the count of absent ranks is right");
        match &self.collected {
            Collected::Nothing => assert!(self.arrived.is_empty(), "each arrival contributes something"),
            Collected::Puts(_) => assert!(!self.arrived.is_empty(), "puts are contributed by an arrival"),
            Collected::Ring(segments) => {
                let count: u64 = segments.values().map(|segment| u64::from(segment.count)).sum();
                let fits = if self.is_torn { count >= self.arrived.len() } else { count == self.arrived.len() };
                assert!(fits, "a ring has as many ranks as have arrived");
            }
        }
    }
}

/// Whether a fence that has collected `before` bytes of puts cannot take these too.
pub(super) fn is_too_much(before: usize, puts: &Puts) -> bool {
    before + puts.bytes_len() > FENCE_BYTES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Time = Time::ZERO;
    const CHILD: AgentId = AgentId(2);

    fn one(rank: u32) -> Ranks {
        Ranks::range(rank..rank + 1)
    }

    fn put(rank: u32, key: &str) -> Contribution {
        let mut puts = Puts::new();
        puts.push(Rank(rank), key.as_bytes(), b"v");
        Contribution::Puts(puts)
    }

    #[test]
    fn ranks_that_move_take_their_arrival_and_their_puts_back() {
        let mut fence = Fence::new(Ranks::range(0..3));
        fence.enter(T, Rank(0), put(0, "a")).unwrap();
        fence.arrive(T, CHILD, 0, &one(2), &one(2), put(2, "b")).unwrap();
        fence.withdraw(&one(2));
        assert_eq!((fence.arrived(), fence.expected()), (&one(0), 3), "it will arrive again");
        fence.move_out(&one(2));
        fence.enter(T, Rank(1), put(1, "c")).unwrap();
        assert!(fence.is_complete(), "the rank is not expected here any more");
        fence.move_in(&one(2));
        assert!(!fence.is_complete());
        fence.enter(T, Rank(2), put(2, "d")).unwrap();
        let Contribution::Puts(puts) = fence.take() else { panic!("it is a fence") };
        let keys: Vec<_> = puts.iter().map(|put| put.unwrap().key.to_vec()).collect();
        assert_eq!(keys, [b"a", b"c", b"d"]);
    }

    #[test]
    fn a_ring_that_a_rank_has_left_is_never_complete() {
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), ring(1, "a")).unwrap();
        fence.enter(T, Rank(1), ring(1, "b")).unwrap();
        fence.move_out(&one(1));
        fence.check_invariants();
        assert!(!fence.is_complete());
    }

    fn ring(count: u32, word: &str) -> Contribution {
        Contribution::Ring(RingSegment {
            count,
            to_left: format!("{word}<").into(),
            to_right: format!(">{word}").into(),
        })
    }

    fn position(position: u32, from_left: &str, from_right: &str) -> RingPosition {
        RingPosition { position, from_left: from_left.into(), from_right: from_right.into() }
    }

    fn taken(fence: &mut Fence) -> usize {
        match fence.take() {
            Contribution::Puts(puts) => puts.validate().unwrap(),
            Contribution::Ring(part) => panic!("{part:?}"),
        }
    }

    #[test]
    fn a_fence_completes_with_the_last_arrival_and_opens_the_next() {
        let all = Ranks::range(0..3);
        let mut fence = Fence::new(all.clone());
        fence.enter(T, Rank(1), put(1, "a")).unwrap();
        assert!(!fence.is_complete());
        assert!(!fence.release(0), "not complete");
        fence.arrive(T, CHILD, 0, &"0,2".parse().unwrap(), &all, put(2, "b")).unwrap();
        assert!(fence.is_complete());
        assert_eq!(taken(&mut fence), 2);
        assert!(!fence.release(1), "not the open one");
        assert!(fence.release(0));
        assert_eq!((fence.number(), fence.is_complete()), (1, false));
        fence.check_invariants();
    }

    #[test]
    fn foreign_and_repeated_ranks_and_other_fences_are_refused() {
        let mut fence = Fence::new(Ranks::range(0..4));
        let share = Ranks::range(0..2);
        assert_eq!(
            fence.arrive(T, CHILD, 1, &one(0), &share, put(0, "x")),
            Err(FenceError::OutOfTurn { got: 1, open: 0 })
        );
        assert_eq!(fence.arrive(T, CHILD, 0, &one(2), &share, put(2, "x")), Err(FenceError::ForeignRanks(one(2))));
        assert_eq!(fence.enter(T, Rank(4), put(4, "x")), Err(FenceError::ForeignRanks(one(4))));
        fence.arrive(T, CHILD, 0, &one(0), &share, Contribution::Puts(Puts::new())).unwrap();
        assert_eq!(fence.arrive(T, CHILD, 0, &one(0), &share, put(0, "x")), Err(FenceError::AlreadyArrived(one(0))));
        assert_eq!(fence.enter(T, Rank(0), put(0, "x")), Err(FenceError::AlreadyArrived(one(0))));
        assert_eq!(taken(&mut fence), 0, "a refused contribution leaves nothing behind");
    }

    #[test]
    fn a_ring_orders_own_ranks_before_children() {
        let mut fence = Fence::new(Ranks::range(0..5));
        fence.arrive(T, AgentId(9), 0, &one(0), &one(0), ring(1, "d")).unwrap();
        fence.enter(T, Rank(4), ring(1, "b")).unwrap();
        fence.arrive(T, CHILD, 0, &"2-3".parse().unwrap(), &"2-3".parse().unwrap(), ring(2, "c")).unwrap();
        fence.check_invariants();
        assert_eq!(fence.ring_positions(0, &position(0, "", ""), 5), Err(FenceError::Unexpected), "a rank is missing");
        fence.enter(T, Rank(1), ring(1, "a")).unwrap();
        let whole = RingSegment { count: 5, to_left: b"a<".to_vec(), to_right: b">d".to_vec() };
        assert_eq!(fence.take(), Contribution::Ring(whole.clone()));
        assert_eq!(
            fence.ring_positions(0, &whole.closed(), 5).unwrap(),
            [
                (RingPart::Own(Rank(1)), position(0, ">d", "b<")),
                (RingPart::Own(Rank(4)), position(1, ">a", "c<")),
                (RingPart::Child(CHILD), position(2, ">b", "d<")),
                (RingPart::Child(AgentId(9)), position(4, ">c", "a<")),
            ]
        );
        assert_eq!(fence.ring_positions(0, &position(1, "", ""), 5), Err(FenceError::Position(1)));
        assert_eq!(fence.ring_positions(1, &position(0, "", ""), 5), Err(FenceError::OutOfTurn { got: 1, open: 0 }));
        assert!(fence.release(0));
        fence.enter(T, Rank(1), put(1, "a")).unwrap();
        assert!(!fence.is_ring(), "the next one may be a fence");
        assert_eq!(fence.ring_positions(1, &position(0, "", ""), 5), Err(FenceError::Unexpected));
    }

    #[test]
    fn a_fence_and_a_ring_cannot_be_mixed() {
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), ring(1, "a")).unwrap();
        assert_eq!(fence.enter(T, Rank(1), put(1, "x")), Err(FenceError::Mixed { ring: false }));
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), put(0, "x")).unwrap();
        assert_eq!(fence.arrive(T, CHILD, 0, &one(1), &one(1), ring(1, "a")), Err(FenceError::Mixed { ring: true }));
        fence.check_invariants();
    }

    #[test]
    fn a_childs_segment_of_a_ring_is_complete_and_bounded() {
        let share = Ranks::range(0..2);
        let mut fence = Fence::new(Ranks::range(0..3));
        for (ranks, count) in [(&share, 1), (&share, 3), (&one(0), 1), (&one(0), 2)] {
            let result = fence.arrive(T, CHILD, 0, ranks, &share, ring(count, "a"));
            assert_eq!(result, Err(FenceError::IncompleteSegment { count, ranks: ranks.clone(), all: share.clone() }));
        }
        assert_eq!(fence.arrive(T, CHILD, 0, &Ranks::new(), &share, ring(0, "a")), Err(FenceError::NoRanks));
        let values =
            |bytes: usize| Contribution::Ring(RingSegment { count: 2, to_left: vec![b'x'; bytes], to_right: vec![] });
        assert_eq!(
            fence.arrive(T, CHILD, 0, &share, &share, values(ATTRIBUTE_BYTES_MAX + 1)),
            Err(FenceError::ValueTooLong)
        );
        fence.check_invariants();
        assert_eq!(fence.arrive(T, CHILD, 0, &share, &share, values(ATTRIBUTE_BYTES_MAX)), Ok(()));
    }

    #[test]
    fn the_puts_of_a_fence_have_a_bound_in_bytes() {
        let bytes = |rank: u32, bytes: usize| {
            let mut puts = Puts::new();
            puts.push(Rank(rank), b"k", &vec![b'v'; bytes - Puts::cost(b"k", b"")]);
            Contribution::Puts(puts)
        };
        let small = 100;
        let mut fence = Fence::new(Ranks::range(0..3));
        fence.enter(T, Rank(0), bytes(0, FENCE_BYTES_MAX - small)).unwrap();
        assert_eq!(fence.enter(T, Rank(1), bytes(1, small + 1)), Err(FenceError::TooLarge));
        assert_eq!(fence.arrive(T, CHILD, 0, &one(1), &one(1), bytes(1, small + 1)), Err(FenceError::TooLarge));
        fence.enter(T, Rank(1), bytes(1, small)).unwrap();
        fence.enter(T, Rank(2), Contribution::Puts(Puts::new())).unwrap();
        let Contribution::Puts(puts) = fence.take() else { panic!("it is a fence") };
        assert_eq!(puts.bytes_len(), FENCE_BYTES_MAX);
    }

    #[test]
    fn a_fence_does_not_wait_for_ranks_that_have_died() {
        let all = Ranks::range(0..4);
        let mut fence = Fence::new(all.clone());
        fence.enter(T, Rank(0), put(0, "a")).unwrap();
        assert_eq!(fence.mark_dead(&"0,2-9".parse().unwrap()), "0,2-3".parse().unwrap());
        assert!(!fence.is_complete() && fence.has_absent(), "rank 1 is missing");
        fence.check_invariants();
        assert_eq!(fence.mark_dead(&one(3)), Ranks::new(), "it was dead before");
        assert_eq!(fence.dead(), &"0,2-3".parse().unwrap());
        // The contribution of rank 2 is on its way while it dies.
        fence.arrive(T, CHILD, 0, &"1-2".parse().unwrap(), &all, put(2, "b")).unwrap();
        assert!(fence.is_complete());
        fence.check_invariants();
        assert_eq!(taken(&mut fence), 2, "what the dead have put counts");
        assert!(fence.release(0));
        assert!(!fence.is_complete(), "no rank has arrived yet");
        fence.enter(T, Rank(1), put(1, "c")).unwrap();
        assert!(fence.is_complete() && fence.has_absent() && fence.release(1));
        fence.check_invariants();
    }

    #[test]
    fn a_fence_of_dead_ranks_is_released_but_never_complete() {
        let mut fence = Fence::new(Ranks::range(0..2));
        assert!(!fence.release(0));
        fence.mark_dead(&Ranks::range(0..2));
        assert!(!fence.is_complete(), "there is nothing to send to the parent");
        assert!(fence.release(0) && fence.release(1));
        fence.check_invariants();
    }

    #[test]
    fn a_ring_segment_may_lack_dead_ranks_only() {
        let share = Ranks::range(0..3);
        let mut fence = Fence::new(share.clone());
        let ranks: Ranks = "0,2".parse().unwrap();
        assert!(fence.arrive(T, CHILD, 0, &ranks, &share, ring(2, "a")).is_err(), "rank 1 lives");
        fence.mark_dead(&one(1));
        assert!(fence.arrive(T, CHILD, 0, &ranks, &share, ring(3, "a")).is_err(), "the count is wrong");
        fence.arrive(T, CHILD, 0, &ranks, &share, ring(2, "a")).unwrap();
        assert!(fence.is_complete() && fence.has_absent());
    }

    #[test]
    fn the_first_arrival_that_is_taken_back_leaves_the_fence_as_it_was() {
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), put(0, "a")).unwrap();
        fence.withdraw(&one(0));
        fence.check_invariants();
        assert_eq!(fence.since(), None);
        assert_eq!(fence.enter(T, Rank(0), ring(1, "a")), Ok(()), "it is no fence and no ring yet");
    }

    #[test]
    fn puts_ahead_of_a_fence_are_of_own_ranks_that_have_not_arrived() {
        let share = Ranks::range(0..2);
        let mut fence = Fence::new(Ranks::range(0..3));
        let ahead = |fence: &Fence, number, rank| {
            let Contribution::Puts(puts) = put(rank, "a") else { panic!("it is a put") };
            fence.check_ahead(number, &share, &puts)
        };
        assert_eq!(ahead(&fence, 0, 0), Ok(()));
        assert_eq!(ahead(&fence, 1, 0), Err(FenceError::OutOfTurn { got: 1, open: 0 }));
        assert_eq!(ahead(&fence, 0, 2), Err(FenceError::ForeignRanks(one(2))));
        fence.enter(T, Rank(0), put(0, "a")).unwrap();
        assert_eq!(ahead(&fence, 0, 0), Err(FenceError::AlreadyArrived(one(0))));
    }

    #[test]
    fn a_fence_takes_as_many_bytes_as_the_bound() {
        let mut puts = Puts::new();
        puts.push(Rank(0), b"k", b"v");
        let room = FENCE_BYTES_MAX - puts.bytes_len();
        assert!(!is_too_much(0, &puts) && !is_too_much(room, &puts) && is_too_much(room + 1, &puts));
    }

    #[test]
    fn a_repeated_contribution_to_the_open_fence_or_the_last_one_has_passed() {
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), put(0, "a")).unwrap();
        assert!(fence.has_passed(0, &one(0)) && !fence.has_passed(0, &one(1)));
        assert!(!fence.has_passed(0, &Ranks::new()), "it is refused");
        fence.enter(T, Rank(1), put(1, "b")).unwrap();
        fence.release(0);
        assert!(fence.has_passed(0, &one(0)) && !fence.has_passed(1, &one(0)));
    }
}
