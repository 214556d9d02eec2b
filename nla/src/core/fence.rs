//! One fence as one place in the tree sees it: who of the subtree has arrived, with which puts.
//!
//! A fence is (namespace, sequence number). A rank enters fence n+1 only after its own agent has
//! released it from fence n, and a child gathers n+1 only after the release of n came down through
//! its parent; so a place in the tree has at most one open fence per namespace, and a contribution
//! to another one is a fault of the peer. Fences never expire by themselves: a rank may compute
//! for hours before it calls MPI_Finalize.

use pmi::{Puts, Ranks};
use thiserror::Error;

use super::ids::Time;
use super::limits::FENCE_BYTES_MAX;

/// Why a contribution was refused.
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
    NotYours(Ranks),
    /// Some of its ranks had arrived before.
    #[error("ranks of {0} arrived twice")]
    Twice(Ranks),
    /// All puts together are beyond [`FENCE_BYTES_MAX`].
    #[error("the puts of one fence are over {FENCE_BYTES_MAX} bytes")]
    TooLarge,
    /// Its puts cannot be read.
    #[error("its puts cannot be read: {0}")]
    Puts(#[from] pmi::PutsError),
}

/// The open fence of one namespace at one place in the tree.
#[derive(Debug)]
pub struct Fence {
    number: u32,
    expected: Ranks,
    arrived: Ranks,
    puts: Puts,
    since: Option<Time>,
}

impl Fence {
    /// The first fence of the ranks `expected`.
    pub fn new(expected: Ranks) -> Self {
        Self { number: 0, expected, arrived: Ranks::new(), puts: Puts::new(), since: None }
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
        self.expected.len()
    }

    /// When the first rank arrived at the open fence.
    pub fn since(&self) -> Option<Time> {
        self.since
    }

    /// Adds ranks and their puts to fence `number`. `allowed` are the ranks that the sender may
    /// speak for. Nothing is changed by a refused contribution.
    pub fn arrive(
        &mut self,
        now: Time,
        number: u32,
        ranks: &Ranks,
        allowed: &Ranks,
        puts: &Puts,
    ) -> Result<(), FenceError> {
        if number != self.number {
            return Err(FenceError::OutOfTurn { got: number, open: self.number });
        }
        if !allowed.contains_all(ranks) || !self.expected.contains_all(ranks) {
            return Err(FenceError::NotYours(ranks.clone()));
        }
        if !self.arrived.is_disjoint(ranks) {
            return Err(FenceError::Twice(ranks.clone()));
        }
        if self.puts.bytes_len() + puts.bytes_len() > FENCE_BYTES_MAX {
            return Err(FenceError::TooLarge);
        }
        self.arrived.union_with(ranks);
        self.puts.append(puts);
        self.since.get_or_insert(now);
        Ok(())
    }

    /// Whether all have arrived.
    pub fn is_complete(&self) -> bool {
        self.arrived.len() == self.expected.len()
    }

    /// Hands over the puts gathered so far, to be sent up or merged.
    pub fn take_puts(&mut self) -> Puts {
        std::mem::take(&mut self.puts)
    }

    /// Ends fence `number` and opens the next. False, and nothing done, if `number` is not the
    /// open and complete one.
    pub fn release(&mut self, number: u32) -> bool {
        if number != self.number || !self.is_complete() {
            return false;
        }
        self.number = self.number.wrapping_add(1);
        self.arrived = Ranks::new();
        self.puts = Puts::new();
        self.since = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmi::Rank;

    const T: Time = Time::ZERO;

    fn one(rank: u32) -> Ranks {
        Ranks::range(rank..rank + 1)
    }

    fn put(rank: u32, key: &str) -> Puts {
        let mut puts = Puts::new();
        puts.push(Rank(rank), key.as_bytes(), b"v");
        puts
    }

    #[test]
    fn completes_when_all_are_in_and_opens_the_next() {
        let all = Ranks::range(0..3);
        let mut fence = Fence::new(all.clone());
        fence.arrive(T, 0, &one(1), &all, &put(1, "a")).unwrap();
        assert!(!fence.is_complete());
        assert!(!fence.release(0), "not complete");
        fence.arrive(T, 0, &"0,2".parse().unwrap(), &all, &put(2, "b")).unwrap();
        assert!(fence.is_complete());
        assert_eq!(fence.take_puts().validate(), Ok(2));
        assert!(!fence.release(1), "not the open one");
        assert!(fence.release(0));
        assert_eq!((fence.number(), fence.is_complete()), (1, false));
    }

    #[test]
    fn refuses_strangers_repeats_and_other_fences() {
        let mut fence = Fence::new(Ranks::range(0..4));
        let allowed = Ranks::range(0..2);
        assert_eq!(fence.arrive(T, 1, &one(0), &allowed, &Puts::new()), Err(FenceError::OutOfTurn { got: 1, open: 0 }));
        assert_eq!(fence.arrive(T, 0, &one(2), &allowed, &Puts::new()), Err(FenceError::NotYours(one(2))));
        fence.arrive(T, 0, &one(0), &allowed, &Puts::new()).unwrap();
        assert_eq!(fence.arrive(T, 0, &one(0), &allowed, &put(0, "x")), Err(FenceError::Twice(one(0))));
        assert!(fence.take_puts().is_empty(), "a refused contribution leaves nothing behind");
    }
}
