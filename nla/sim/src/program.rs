//! The program of each rank: the exchange of the benchmark programs, or steps drawn from a seed.

use bytes::Bytes;
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
    /// The steps of each rank.
    Drawn {
        ops: Vec<Vec<Op>>,
        /// The rank that fails when it runs for the first time, the position of its failure, and the failure.
        failure: Option<(u32, u32, Op)>,
    },
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
    /// Returns the step of a rank at a position of its program. The rank has started again `start` times.
    pub(crate) fn op(&self, rank: u32, position: u32, start: u32) -> Op {
        match self {
            Self::Exchange(exchange) => exchange.op(rank, position),
            Self::Drawn { failure: Some((who, at, failure)), .. } if start == 0 && (*who, *at) == (rank, position) => {
                failure.clone()
            }
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
                ops.push(program.op(rank, ops.len() as u32, 0));
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
}
