//! What ranks do, step by step: the exchange of the benchmark programs, or a program drawn from a seed.

use bytes::Bytes;
use pmi::{Epoch, Puts, Rank};
use serde::{Deserialize, Serialize};

use crate::values::Values;

/// What ranks get from each other in an exchange.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Pattern {
    /// They do not speak PMI at all: they start and end.
    Nothing,
    /// Each puts its entry and meets the others at the fences, and gets nothing.
    Fences,
    /// Each gets the entries of the ranks on its left and right, as a ring of neighbours does.
    #[default]
    Neighbours,
    /// Each gets all entries, in the order of the ranks that put them.
    All,
}

impl Pattern {
    /// How many gets a rank makes among `ranks`.
    pub fn gets(self, ranks: u32) -> u64 {
        match self {
            Self::Nothing | Self::Fences => 0,
            Self::Neighbours => 2,
            Self::All => ranks.into(),
        }
    }
}

/// A step of a rank's program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Op {
    /// Initialises PMI.
    Join,
    /// Puts an entry.
    Put { key: Vec<u8>, value: Vec<u8> },
    /// Puts the exchange's entry of its own.
    PutCard,
    /// Arrives at a fence, and waits for it.
    Fence,
    /// Gets an entry.
    Get { key: Bytes },
    /// Gets the exchange's entry of that rank.
    GetCard(u32),
    /// Gets the exchange's entries of all, in step with the other ranks of its agent.
    GetAllCards,
    /// Computes for so many nanoseconds.
    Compute(u64),
    /// Finalises PMI.
    Finalize,
    /// Aborts the job.
    Abort,
    /// Ends with this code.
    Exit(u8),
    /// Ends with 0 where others wait for it.
    Leave,
    /// Is ended by this signal.
    Die(u8),
}

/// What all ranks do.
pub(crate) enum Program {
    /// Put, fence, get, fence.
    Exchange(Exchange),
    /// Steps of each rank, and what is on the board after each fence.
    Drawn { ops: Vec<Vec<Op>>, boards: Vec<Epoch> },
}

/// See [`Program::Exchange`].
pub(crate) struct Exchange {
    ranks: u32,
    pattern: Pattern,
    values: Values,
    /// Of all ranks' entries.
    keys: Vec<Bytes>,
    /// There is a fence before it.
    ready: bool,
}

impl Program {
    /// Steps that are drawn, with the boards that come of them.
    pub(crate) fn drawn(ops: Vec<Vec<Op>>) -> Self {
        let fences = ops.iter().map(|ops| ops.iter().filter(|op| **op == Op::Fence).count()).max().unwrap_or(0);
        let mut rounds = vec![Puts::new(); fences];
        for (rank, ops) in ops.iter().enumerate() {
            let mut fence = 0;
            for op in ops {
                match op {
                    Op::Put { key, value } if fence < fences => rounds[fence].push(Rank(rank as u32), key, value),
                    Op::Fence => fence += 1,
                    _ => {}
                }
            }
        }
        let mut boards: Vec<Epoch> = Vec::new();
        for puts in &rounds {
            let new = Epoch::merge(puts).unwrap_or_default();
            let before = boards.last().cloned().unwrap_or_default();
            boards.push(Epoch::from_entries(before.iter().chain(new.iter())));
        }
        Self::Drawn { ops, boards }
    }

    /// The step of a rank at a position of its program.
    pub(crate) fn op(&self, rank: u32, position: u32) -> Op {
        match self {
            Self::Exchange(exchange) => exchange.op(rank, position),
            Self::Drawn { ops, .. } => {
                ops.get(rank as usize).and_then(|ops| ops.get(position as usize)).cloned().unwrap_or(Op::Exit(0))
            }
        }
    }

    /// How many fences ranks have passed when they get anything; at least 1.
    pub(crate) fn fences_before_gets(&self) -> usize {
        match self {
            Self::Exchange(exchange) => 1 + usize::from(exchange.ready),
            Self::Drawn { .. } => 1,
        }
    }

    /// What a key's value is after so many fences, where nothing newer is known.
    pub(crate) fn value_after(&self, fences: u32, key: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Exchange(_) => None,
            Self::Drawn { boards, .. } => boards.get(fences.checked_sub(1)? as usize)?.get(key),
        }
    }

    /// The key of the exchange's entry of a rank.
    pub(crate) fn card_key(&self, rank: u32) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            Self::Exchange(exchange) => exchange.keys.get(rank as usize).unwrap_or(&NONE),
            Self::Drawn { .. } => &NONE,
        }
    }

    /// The value of the exchange's entry of a rank.
    pub(crate) fn card(&self, rank: u32) -> &[u8] {
        match self {
            Self::Exchange(exchange) => exchange.values.value(rank),
            Self::Drawn { .. } => b"",
        }
    }
}

impl Exchange {
    /// Of so many ranks.
    pub(crate) fn new(ranks: u32, pattern: Pattern, values: Values, ready: bool) -> Self {
        Self { ranks, pattern, keys: values.keys(ranks), values, ready }
    }

    fn op(&self, rank: u32, position: u32) -> Op {
        if self.pattern == Pattern::Nothing {
            return Op::Exit(0);
        }
        let position = match (self.ready, position) {
            (true, 1) => return Op::Fence,
            (true, 2..) => position - 1,
            _ => position,
        };
        match (position, self.pattern) {
            (0, _) => return Op::Join,
            (1, _) => return Op::PutCard,
            (2, _) => return Op::Fence,
            (3, Pattern::Neighbours) => return Op::GetCard(self.beside(rank, self.ranks - 1)),
            (4, Pattern::Neighbours) => return Op::GetCard(self.beside(rank, 1)),
            (3, Pattern::All) => return Op::GetAllCards,
            _ => {}
        }
        let gets = match self.pattern {
            Pattern::Nothing | Pattern::Fences => 0,
            Pattern::Neighbours => 2,
            Pattern::All => 1,
        };
        match position - 3 - gets {
            0 => Op::Fence,
            1 => Op::Finalize,
            _ => Op::Exit(0),
        }
    }

    fn beside(&self, rank: u32, by: u32) -> u32 {
        ((u64::from(rank) + u64::from(by)) % u64::from(self.ranks)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_is_put_fence_get_fence() {
        let steps = |pattern, rank| {
            let values = Values::new("card-", 1, 10);
            let program = Program::Exchange(Exchange::new(4, pattern, values, false));
            let mut ops: Vec<Op> = Vec::new();
            while !matches!(ops.last(), Some(Op::Exit(_))) {
                ops.push(program.op(rank, ops.len() as u32));
            }
            ops
        };
        let middle = |ops: &[Op]| ops[3..ops.len() - 3].to_vec();
        assert_eq!(steps(Pattern::Nothing, 0), [Op::Exit(0)]);
        let fences = [Op::Join, Op::PutCard, Op::Fence, Op::Fence, Op::Finalize, Op::Exit(0)];
        assert_eq!(steps(Pattern::Fences, 0), fences);
        assert_eq!(middle(&steps(Pattern::Neighbours, 0)), [Op::GetCard(3), Op::GetCard(1)]);
        assert_eq!(middle(&steps(Pattern::Neighbours, 3)), [Op::GetCard(2), Op::GetCard(0)]);
        assert_eq!(middle(&steps(Pattern::All, 1)), [Op::GetAllCards]);
    }

    #[test]
    fn the_highest_rank_and_its_last_put_win() {
        let put = |key: &str, value: &str| Op::Put { key: key.into(), value: value.into() };
        let program = Program::drawn(vec![
            vec![put("k", "0"), put("a", "0"), Op::Fence, put("k", "3"), Op::Fence],
            vec![put("k", "1"), put("k", "2"), Op::Fence, Op::Fence],
        ]);
        let value = |fences, key: &str| program.value_after(fences, key.as_bytes());
        assert_eq!(value(0, "k"), None);
        assert_eq!(value(1, "k"), Some(&b"2"[..]));
        assert_eq!(value(2, "k"), Some(&b"3"[..]));
        assert_eq!(value(2, "a"), Some(&b"0"[..]));
        assert_eq!(value(2, "b"), None);
    }
}
