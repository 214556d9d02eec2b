//! One fence as one place in the tree sees it: who of the subtree has arrived, with which puts.
//!
//! A fence is (namespace, sequence number). A rank enters fence n+1 only after its own agent has
//! released it from fence n, and a child gathers n+1 only after the release of n came down through
//! its parent; so a place in the tree has at most one open fence per namespace, and a contribution
//! to another one is a fault of the peer. Fences never expire by themselves: a rank may compute
//! for hours before it calls MPI_Finalize.
//!
//! A ring is a fence at which ranks bring their words to their neighbours in place of puts. Which
//! of the two an open fence is says who arrives first; all others must agree.

use std::collections::BTreeMap;

use pmi::limits::ATTRIBUTE_BYTES_MAX;
use pmi::{Puts, Rank, Ranks};
use thiserror::Error;

use super::ids::{AgentId, Time};
use super::limits::FENCE_BYTES_MAX;
use super::message::Contribution;
use super::ring::{self, RingPosition, RingSegment};

/// Why a contribution, or a release, was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FenceError {
    /// It is for another fence than the open one.
    #[error("it is for fence {got}, the open one is {open}")]
    OutOfTurn {
        /// The number that the contribution carries.
        got: u32,
        /// The number of the open fence.
        open: u32,
    },
    /// It speaks for ranks that are not the sender's.
    #[error("it speaks for ranks {0}, which are not the sender's")]
    ForeignRanks(Ranks),
    /// It speaks for no rank.
    #[error("it speaks for no rank")]
    NoRanks,
    /// Some of its ranks had arrived before.
    #[error("ranks of {0} arrived twice")]
    AlreadyArrived(Ranks),
    /// All puts together are beyond [`FENCE_BYTES_MAX`].
    #[error("the puts of one fence are over {FENCE_BYTES_MAX} bytes")]
    TooLarge,
    /// A put came ahead of its fence, which the cache policy does not do.
    #[error("a put came ahead of its fence, which the session's cache policy does not do")]
    EarlyPut,
    /// Its puts cannot be read.
    #[error("its puts cannot be read: {0}")]
    Puts(#[from] pmi::PutsError),
    /// Its ranks do not do what all others do: a fault of the program, not of who sent it.
    #[error("{}", if *.ring { "called PMIX_Ring where others are in a fence" } else { "entered a fence where others called PMIX_Ring" })]
    Mixed {
        /// It brings a ring to a fence; else a fence to a ring.
        ring: bool,
    },
    /// Its part of a ring is not that of all ranks of the sender.
    #[error("its part of the ring has {count} ranks, those that arrived are {ranks}, the sender's are {all}")]
    IncompleteSegment {
        /// How many it says.
        count: u32,
        /// For which it speaks.
        ranks: Ranks,
        /// For which it should.
        all: Ranks,
    },
    /// What neighbours in a ring have for each other is too long.
    #[error("words in a ring are over {ATTRIBUTE_BYTES_MAX} bytes")]
    SegmentTooLong,
    /// A release is not of the kind that was waited for, or comes before all have arrived.
    #[error("it is not what was waited for")]
    Unexpected,
    /// A seat in a ring is beyond its end.
    #[error("a seat at position {0} is beyond the end of the ring")]
    Position(u32),
}

/// A part of a ring at this place, in the ring's order: own ranks ascending, then the children.
/// Where ranks are placed in blocks that is the order of ranks.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Part {
    /// An own rank.
    Own(Rank),
    /// All ranks of a child.
    Child(AgentId),
}

/// What has been contribution to the open fence.
#[derive(Debug)]
enum Collected {
    /// Nobody is here yet.
    Nothing,
    /// It is a fence.
    Puts(Puts),
    /// It is a ring. The parts are kept until the release, which has a seat for each.
    Ring(BTreeMap<Part, RingSegment>),
}

/// The open fence of one namespace at one place in the tree.
#[derive(Debug)]
pub struct Fence {
    number: u32,
    expected: Ranks,
    /// How many these are.
    count: u64,
    arrived: Ranks,
    held: Collected,
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
            held: Collected::Nothing,
            since: None,
        }
    }

    /// The number of the open fence, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Who has arrived at the open fence.
    pub fn arrived(&self) -> &Ranks {
        &self.arrived
    }

    /// How many ranks it takes.
    pub fn expected(&self) -> u64 {
        self.count
    }

    /// When the first rank arrived at the open fence.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// An own rank arrives at the open fence. Nothing is changed by a refused contribution.
    pub fn enter(&mut self, now: Time, rank: Rank, contribution: Contribution) -> Result<(), FenceError> {
        let ranks: Ranks = std::iter::once(rank).collect();
        self.check(&ranks, &contribution)?;
        self.add(now, Part::Own(rank), &ranks, contribution);
        Ok(())
    }

    /// Ranks of a child arrive at fence `number`. `share` are those that it may speak for. Nothing
    /// is changed by a refused contribution.
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
            Contribution::Ring(part) if ranks == share && u64::from(part.count) == ranks.len() => {}
            Contribution::Ring(part) => {
                return Err(FenceError::IncompleteSegment {
                    count: part.count,
                    ranks: ranks.clone(),
                    all: share.clone(),
                });
            }
        }
        self.add(now, Part::Child(child), ranks, contribution);
        Ok(())
    }

    /// Checks puts of `ranks` at most that come ahead of fence `number`.
    pub fn check_ahead(&self, number: u32, ranks: &Ranks, puts: &Puts) -> Result<(), FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        for put in puts.iter() {
            let rank = put?.rank;
            let whose = || std::iter::once(rank).collect();
            if !ranks.contains(rank) {
                return Err(FenceError::ForeignRanks(whose()));
            }
            if self.arrived.contains(rank) {
                return Err(FenceError::AlreadyArrived(whose()));
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
        match (&self.held, contribution) {
            (Collected::Ring(_), Contribution::Puts(_)) => Err(FenceError::Mixed { ring: false }),
            (Collected::Puts(_), Contribution::Ring(_)) => Err(FenceError::Mixed { ring: true }),
            (Collected::Nothing | Collected::Ring(_), Contribution::Ring(part)) if !part.is_bounded() => {
                Err(FenceError::SegmentTooLong)
            }
            (Collected::Puts(held), Contribution::Puts(puts))
                if held.bytes_len() + puts.bytes_len() > FENCE_BYTES_MAX =>
            {
                Err(FenceError::TooLarge)
            }
            (Collected::Nothing, Contribution::Puts(puts)) if puts.bytes_len() > FENCE_BYTES_MAX => {
                Err(FenceError::TooLarge)
            }
            (Collected::Nothing | Collected::Puts(_), Contribution::Puts(_))
            | (Collected::Nothing | Collected::Ring(_), Contribution::Ring(_)) => Ok(()),
        }
    }

    fn add(&mut self, now: Time, part: Part, ranks: &Ranks, contribution: Contribution) {
        self.arrived.union_with(ranks);
        self.since.get_or_insert(now);
        match (&mut self.held, contribution) {
            (Collected::Puts(held), Contribution::Puts(puts)) => held.append(&puts),
            (Collected::Ring(parts), Contribution::Ring(stretch)) => drop(parts.insert(part, stretch)),
            (held, Contribution::Puts(puts)) => *held = Collected::Puts(puts),
            (held, Contribution::Ring(stretch)) => *held = Collected::Ring(BTreeMap::from([(part, stretch)])),
        }
    }

    /// Whether all have arrived.
    pub fn is_complete(&self) -> bool {
        self.arrived.len() == self.count
    }

    /// What has been gathered so far, to be sent up or released. Puts are handed over, a ring's
    /// parts are kept.
    pub fn take(&mut self) -> Contribution {
        match &mut self.held {
            Collected::Nothing => Contribution::Puts(Puts::new()),
            Collected::Puts(puts) => Contribution::Puts(std::mem::take(puts)),
            Collected::Ring(parts) => Contribution::Ring(ring::join(parts.values()).unwrap_or(RingSegment {
                count: 0,
                to_left: Vec::new(),
                to_right: Vec::new(),
            })),
        }
    }

    /// Whether the open fence is a ring.
    pub fn is_ring(&self) -> bool {
        matches!(self.held, Collected::Ring(_))
    }

    /// The seats of all parts of ring `number`, of `size` ranks in all, which is the open and complete
    /// one. `whole` is the seat of this place.
    pub fn seats(&self, number: u32, whole: &RingPosition, size: u32) -> Result<Vec<(Part, RingPosition)>, FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        let Collected::Ring(parts) = &self.held else { return Err(FenceError::Unexpected) };
        if !self.is_complete() {
            return Err(FenceError::Unexpected);
        }
        if !whole.is_bounded(self.expected.len(), size) {
            return Err(FenceError::Position(whole.position));
        }
        Ok(parts.keys().copied().zip(ring::seats(parts.values(), whole)).collect())
    }

    /// Ends fence `number` and opens the next. False, and nothing done, if `number` is not the
    /// open and complete one.
    pub fn release(&mut self, number: u32) -> bool {
        if number != self.number || !self.is_complete() {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        self.arrived = Ranks::new();
        self.held = Collected::Nothing;
        self.since = None;
        true
    }

    /// What must hold between two inputs.
    pub fn check_invariants(&self) {
        assert!(self.expected.contains_all(&self.arrived), "strangers have arrived");
        match &self.held {
            Collected::Nothing => assert!(self.arrived.is_empty(), "who arrives brings something"),
            Collected::Puts(_) => assert!(!self.arrived.is_empty(), "somebody contribution the puts"),
            Collected::Ring(parts) => {
                let count: u64 = parts.values().map(|part| u64::from(part.count)).sum();
                assert_eq!(count, self.arrived.len(), "a ring has as many ranks as have arrived");
            }
        }
    }
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

    fn ring(count: u32, word: &str) -> Contribution {
        Contribution::Ring(RingSegment {
            count,
            to_left: format!("{word}<").into(),
            to_right: format!(">{word}").into(),
        })
    }

    fn seat(position: u32, from_left: &str, from_right: &str) -> RingPosition {
        RingPosition { position, from_left: from_left.into(), from_right: from_right.into() }
    }

    fn taken(fence: &mut Fence) -> usize {
        match fence.take() {
            Contribution::Puts(puts) => puts.validate().unwrap(),
            Contribution::Ring(part) => panic!("{part:?}"),
        }
    }

    #[test]
    fn completes_when_all_are_in_and_opens_the_next() {
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
    fn refuses_strangers_repeats_and_other_fences() {
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
    fn a_ring_seats_own_ranks_then_children() {
        let mut fence = Fence::new(Ranks::range(0..5));
        fence.arrive(T, AgentId(9), 0, &one(0), &one(0), ring(1, "d")).unwrap();
        fence.enter(T, Rank(4), ring(1, "b")).unwrap();
        fence.arrive(T, CHILD, 0, &"2-3".parse().unwrap(), &"2-3".parse().unwrap(), ring(2, "c")).unwrap();
        fence.check_invariants();
        assert_eq!(fence.seats(0, &seat(0, "", ""), 5), Err(FenceError::Unexpected), "somebody is missing");
        fence.enter(T, Rank(1), ring(1, "a")).unwrap();
        let whole = RingSegment { count: 5, to_left: b"a<".to_vec(), to_right: b">d".to_vec() };
        assert_eq!(fence.take(), Contribution::Ring(whole.clone()));
        assert_eq!(
            fence.seats(0, &whole.closed(), 5).unwrap(),
            [
                (Part::Own(Rank(1)), seat(0, ">d", "b<")),
                (Part::Own(Rank(4)), seat(1, ">a", "c<")),
                (Part::Child(CHILD), seat(2, ">b", "d<")),
                (Part::Child(AgentId(9)), seat(4, ">c", "a<")),
            ]
        );
        assert_eq!(fence.seats(0, &seat(1, "", ""), 5), Err(FenceError::Position(1)));
        assert_eq!(fence.seats(1, &seat(0, "", ""), 5), Err(FenceError::OutOfTurn { got: 1, open: 0 }));
        assert!(fence.release(0));
        fence.enter(T, Rank(1), put(1, "a")).unwrap();
        assert!(!fence.is_ring(), "the next may be a fence");
        assert_eq!(fence.seats(1, &seat(0, "", ""), 5), Err(FenceError::Unexpected));
    }

    #[test]
    fn a_fence_is_a_fence_or_a_ring() {
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), ring(1, "a")).unwrap();
        assert_eq!(fence.enter(T, Rank(1), put(1, "x")), Err(FenceError::Mixed { ring: false }));
        let mut fence = Fence::new(Ranks::range(0..2));
        fence.enter(T, Rank(0), put(0, "x")).unwrap();
        assert_eq!(fence.arrive(T, CHILD, 0, &one(1), &one(1), ring(1, "a")), Err(FenceError::Mixed { ring: true }));
        fence.check_invariants();
    }

    #[test]
    fn a_child_brings_all_of_its_part_of_a_ring_within_bounds() {
        let share = Ranks::range(0..2);
        let mut fence = Fence::new(Ranks::range(0..3));
        for (ranks, count) in [(&share, 1), (&share, 3), (&one(0), 1), (&one(0), 2)] {
            let result = fence.arrive(T, CHILD, 0, ranks, &share, ring(count, "a"));
            assert_eq!(result, Err(FenceError::IncompleteSegment { count, ranks: ranks.clone(), all: share.clone() }));
        }
        assert_eq!(fence.arrive(T, CHILD, 0, &Ranks::new(), &share, ring(0, "a")), Err(FenceError::NoRanks));
        let words =
            |bytes: usize| Contribution::Ring(RingSegment { count: 2, to_left: vec![b'x'; bytes], to_right: vec![] });
        assert_eq!(
            fence.arrive(T, CHILD, 0, &share, &share, words(ATTRIBUTE_BYTES_MAX + 1)),
            Err(FenceError::SegmentTooLong)
        );
        fence.check_invariants();
        assert_eq!(fence.arrive(T, CHILD, 0, &share, &share, words(ATTRIBUTE_BYTES_MAX)), Ok(()));
    }
}
