//! A rank of a test that may start again: it makes fences, and puts a new key and replaces another one before each.

use pmi::{Answer, Puts, Rank, Request};

use super::NS;
use super::tree::Tree;
use crate::core::cache::CachePolicy;

#[derive(Clone, Default)]
pub(super) struct Process {
    rank: u32,
    /// How often it has started again.
    pub(super) start: u32,
    /// The number of fences that it has left.
    pub(super) left: u32,
    pub(super) waits: bool,
    /// How many fences it has left in which it had no part.
    pub(super) passed: u32,
}

impl Process {
    /// The ranks of a namespace of this size.
    pub(super) fn all(size: usize) -> Vec<Self> {
        (0..size as u32).map(|rank| Self { rank, ..Self::default() }).collect()
    }

    pub(super) fn begin_again(&mut self) {
        *self = Self { rank: self.rank, start: self.start + 1, passed: self.passed, ..Self::default() };
    }

    /// Puts both keys and makes the next fence.
    pub(super) fn enter(&mut self, tree: &mut Tree, policy: CachePolicy) {
        let Self { rank, start, left, .. } = *self;
        let mut puts = Puts::new();
        puts.push(Rank(rank), format!("card-{rank}-{left}").as_bytes(), b"card");
        puts.push(Rank(rank), format!("address-{rank}").as_bytes(), start.to_string().as_bytes());
        self.fence(puts, tree, policy);
    }

    /// Makes a fence with these puts, or after them if puts are passed on at once.
    pub(super) fn fence(&mut self, mut puts: Puts, tree: &mut Tree, policy: CachePolicy) {
        if policy.puts_at_once() && !puts.is_empty() {
            tree.ask(NS, self.rank, Request::Put { puts: std::mem::take(&mut puts) });
        }
        tree.ask(NS, self.rank, Request::Fence { puts, in_segment: false });
        self.waits = true;
    }

    /// Leaves the fence in which it waits, if there is an answer. Returns the fence's number.
    pub(super) fn leave(&mut self, tree: &mut Tree) -> Option<u32> {
        match tree.answer(NS, self.rank)? {
            Answer::Released => {}
            Answer::Passed => self.passed += 1,
            answer => panic!("rank {} waits in a fence and is answered {answer:?}", self.rank),
        }
        self.waits = false;
        self.left += 1;
        Some(self.left - 1)
    }
}
