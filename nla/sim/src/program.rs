//! The program of each rank: the exchange of the benchmark programs, or steps drawn from a seed.

use bytes::Bytes;
use pmi::{Epoch, Puts, Rank};
use serde::{Deserialize, Serialize};

use crate::values::Values;

/// The entries that ranks get from each other in an exchange.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Pattern {
    /// Ranks start and exit without PMI.
    Nothing,
    /// Each rank puts its entry and passes the fences, but gets nothing.
    Fences,
    /// Each rank gets the entries of its left and right neighbours in a ring.
    #[default]
    Neighbours,
    /// Each rank gets all entries, in the order of the ranks that put them.
    All,
}

impl Pattern {
    /// Returns the number of gets per rank in a job of `ranks` ranks.
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
    /// Initializes PMI.
    Join,
    /// Puts an entry.
    Put { key: Vec<u8>, value: Vec<u8> },
    /// Puts the rank's own entry of the exchange.
    PutCard,
    /// Arrives at a fence and waits for the release.
    Fence,
    /// Gets an entry.
    Get { key: Bytes },
    /// Gets the entry of a rank in the exchange.
    GetCard(u32),
    /// Gets all entries of the exchange, in lockstep with the other ranks of the agent.
    GetAllCards,
    /// Computes for this many nanoseconds.
    Compute(u64),
    /// Finalizes PMI.
    Finalize,
    /// Aborts the job.
    Abort,
    /// Exits with this code.
    Exit(u8),
    /// Exits with 0 although other ranks wait for it at a fence.
    ExitEarly,
    /// Dies by this signal.
    Die(u8),
}

/// The programs of all ranks.
pub(crate) enum Program {
    /// Each rank puts its entry, passes a fence, gets entries, and passes another fence.
    Exchange(Exchange),
    /// The steps of each rank, and the whole board after each fence.
    Drawn { ops: Vec<Vec<Op>>, boards: Vec<Epoch> },
}

/// See [`Program::Exchange`].
pub(crate) struct Exchange {
    ranks: u32,
    pattern: Pattern,
    values: Values,
    /// The keys of all ranks' entries.
    keys: Vec<Bytes>,
    /// There is a fence before the puts.
    ready: bool,
}

impl Program {
    /// Creates a program of the given steps. Computes the board after each fence from their puts.
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

    /// Returns the step of a rank at a position of its program.
    pub(crate) fn op(&self, rank: u32, position: u32) -> Op {
        match self {
            Self::Exchange(exchange) => exchange.op(rank, position),
            Self::Drawn { ops, .. } => {
                ops.get(rank as usize).and_then(|ops| ops.get(position as usize)).cloned().unwrap_or(Op::Exit(0))
            }
        }
    }

    /// Returns the number of fences that a rank has passed before its first get; at least 1.
    pub(crate) fn fences_before_gets(&self) -> usize {
        match self {
            Self::Exchange(exchange) => 1 + usize::from(exchange.ready),
            Self::Drawn { .. } => 1,
        }
    }

    /// Returns the value of a key on the board after this many fences.
    pub(crate) fn value_after(&self, fences: u32, key: &[u8]) -> Option<&[u8]> {
        match self {
            Self::Exchange(_) => None,
            Self::Drawn { boards, .. } => boards.get(fences.checked_sub(1)? as usize)?.get(key),
        }
    }

    /// Returns the key of a rank's entry of the exchange.
    pub(crate) fn card_key(&self, rank: u32) -> &Bytes {
        static NONE: Bytes = Bytes::new();
        match self {
            Self::Exchange(exchange) => exchange.keys.get(rank as usize).unwrap_or(&NONE),
            Self::Drawn { .. } => &NONE,
        }
    }

    /// Returns the value of a rank's entry of the exchange.
    pub(crate) fn card(&self, rank: u32) -> &[u8] {
        match self {
            Self::Exchange(exchange) => exchange.values.value(rank),
            Self::Drawn { .. } => b"",
        }
    }
}

impl Exchange {
    /// Creates the exchange of `ranks` ranks. If `ready`, they pass a fence before the puts.
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
            (3, Pattern::Neighbours) => return Op::GetCard(self.neighbour(rank, self.ranks - 1)),
            (4, Pattern::Neighbours) => return Op::GetCard(self.neighbour(rank, 1)),
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

    fn neighbour(&self, rank: u32, distance: u32) -> u32 {
        ((u64::from(rank) + u64::from(distance)) % u64::from(self.ranks)) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exchange_puts_and_gets_between_fences() {
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
    fn the_last_put_of_the_highest_rank_wins() {
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
