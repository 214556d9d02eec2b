//! The oracle: what must hold in every run, whatever faults strike. It watches the run and judges its end.
//!
//! - No rank is released from a fence before all ranks have arrived. Each fence releases all its ranks, or the
//!   session ends.
//! - A get returns what was put before the last fence. If several ranks put a key, the value of the highest rank
//!   counts, and of its values the last one. A rank sees its own puts at once. A key that no rank put is not found.
//! - The session ends in bounded time. It ends successfully if and only if nothing fatal happened.

use nla::core::{FailurePolicy, Outcome};
use pmi::Ranks;
use thiserror::Error;

use crate::casualties::Casualties;
use crate::ledger::Ledger;
use crate::world::Setup;

/// An observation that breaks a rule of the oracle.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("at {:.3} ms: {why}", *.at as f64 / 1e6)]
pub struct Violation {
    at: u64,
    why: String,
}

impl Violation {
    pub(crate) fn new(at: u64, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }
}

/// How the session must end, given the faults so far. The order is that of severity.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum ExpectedEnd {
    /// It must succeed.
    Success,
    /// It must go on to its end, and name the first failure.
    Survived,
    /// A fault struck after all ranks had ended: it may succeed or fail.
    Either,
    /// It must fail.
    Failure,
}

/// One fence, as its ranks see it.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct FenceRecord {
    arrived: u32,
    released: u32,
    /// Whether the fence has failed, as the first rank was told.
    failed: Option<bool>,
    /// When the first rank and the last rank arrived.
    pub(crate) arrivals: Option<(u64, u64)>,
    /// When the last rank was released.
    pub(crate) last_release: u64,
}

/// A get of a rank.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Get<'a> {
    pub(crate) rank: u32,
    pub(crate) key: &'a [u8],
    /// The number of fences that have released the rank.
    pub(crate) fences: u32,
    /// The rank has started again and has passed no fence together with the others.
    pub(crate) catches_up: bool,
}

/// See the module's documentation.
pub(crate) struct Oracle {
    pub(crate) ranks: u32,
    on_failure: FailurePolicy,
    checked: bool,
    /// The entries of all ranks, if the run is checked.
    pub(crate) ledger: Ledger,
    /// The ranks that have ended with code 0.
    pub(crate) finished: Ranks,
    /// The fences, by number.
    pub(crate) fences: Vec<FenceRecord>,
    /// When the last get was answered.
    pub(crate) last_get: u64,
    /// The first violation.
    pub(crate) violation: Option<Violation>,
}

impl Oracle {
    /// Creates the oracle of a job of `ranks` ranks.
    pub(crate) fn new(ranks: u32, setup: &Setup) -> Self {
        let loses_entries = setup.cache.entries().is_some() && setup.on_failure.adopts();
        Self {
            ranks,
            on_failure: setup.on_failure,
            checked: setup.checked,
            ledger: Ledger::new(ranks, setup.cache.puts_at_once(), loses_entries),
            finished: Ranks::new(),
            fences: Vec::new(),
            last_get: 0,
            violation: None,
        }
    }

    /// Records a violation, unless there was one before.
    pub(crate) fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn fence(&mut self, number: u32) -> &mut FenceRecord {
        let number = number as usize;
        if self.fences.len() <= number {
            self.fences.resize(number + 1, FenceRecord::default());
        }
        &mut self.fences[number]
    }

    /// A rank has arrived at a fence.
    pub(crate) fn on_arrived(&mut self, number: u32, at: u64) {
        let fence = self.fence(number);
        fence.arrived += 1;
        let (first, last) = fence.arrivals.unwrap_or((at, at));
        fence.arrivals = Some((first.min(at), last.max(at)));
    }

    /// A rank was released from a fence.
    pub(crate) fn on_released(&mut self, rank: u32, number: u32, at: u64, failed: bool) {
        let ranks = self.ranks;
        let waits_for_all = self.on_failure == FailurePolicy::Abort;
        let fence = self.fence(number);
        fence.released += 1;
        fence.last_release = fence.last_release.max(at);
        let told = *fence.failed.get_or_insert(failed);
        if told != failed {
            let why = format!("fence {number} failed for some ranks only: rank {rank} differs from the first");
            self.fail(Violation::new(at, why));
        } else if waits_for_all && fence.arrived < ranks {
            let arrived = fence.arrived;
            let why = format!("rank {rank} was released from fence {number} when {arrived} of {ranks} had arrived");
            self.fail(Violation::new(at, why));
        }
        self.on_released_late(rank, number, at);
    }

    /// A rank was released from a fence that others may have left before.
    pub(crate) fn on_released_late(&mut self, rank: u32, number: u32, at: u64) {
        if self.checked && number >= self.ledger.released() {
            let why = format!("rank {rank} was released from fence {number} before the root had released it");
            self.fail(Violation::new(at, why));
        }
    }

    /// The root has released a fence.
    pub(crate) fn on_root_released(&mut self, number: u32, at: u64, casualties: &Casualties) {
        if !self.checked {
            return;
        }
        let none = (Ranks::new(), Casualties::default());
        let goes_on = self.on_failure.goes_on();
        let (excused, unreliable) = if goes_on { (casualties.ranks(), casualties) } else { (&none.0, &none.1) };
        if let Err(why) = self.ledger.release(number, excused, unreliable) {
            self.fail(Violation::new(at, why));
        }
    }

    /// Checks the answer to a get of a rank that has left this many fences. A rank that catches up may see the board after
    /// any later fence.
    pub(crate) fn check_get(&mut self, at: u64, get: &Get<'_>, got: Option<&[u8]>, casualties: &Casualties) {
        let Get { rank, key, fences, catches_up } = *get;
        let fits = if catches_up {
            (fences..=self.ledger.released()).any(|fences| self.ledger.may_see(fences, key, got, casualties))
        } else {
            self.ledger.sees(fences, key, got, casualties)
        };
        if !fits {
            let expected = self.ledger.expected(fences, key);
            self.compare(at, rank, key, got, expected.as_deref());
        }
    }

    /// A get was answered.
    pub(crate) fn on_got(&mut self, at: u64) {
        self.last_get = self.last_get.max(at);
    }

    /// Compares the answer to a get with the expected one.
    pub(crate) fn compare(&mut self, at: u64, rank: u32, key: &[u8], got: Option<&[u8]>, expected: Option<&[u8]>) {
        if got != expected {
            let show = |value: Option<&[u8]>| match value {
                Some(value) => format!("{:?}", String::from_utf8_lossy(&value[..value.len().min(40)])),
                None => "nothing".to_owned(),
            };
            let key = String::from_utf8_lossy(key).into_owned();
            let why = format!("rank {rank} got {} for {key}, expected {}", show(got), show(expected));
            self.fail(Violation::new(at, why));
        }
    }

    /// Describes the progress of all fences.
    pub(crate) fn state(&self) -> String {
        let ranks = self.ranks;
        let fences = self.fences.iter().enumerate().map(|(number, fence)| {
            format!("fence {number}: {} of {ranks} arrived, {} released", fence.arrived, fence.released)
        });
        let fences: Vec<_> = fences.collect();
        if fences.is_empty() { "no rank has arrived at a fence".to_owned() } else { fences.join("; ") }
    }

    /// Judges the end of the run.
    pub(crate) fn check_end(
        &self,
        at: u64,
        outcome: &Outcome,
        expected: ExpectedEnd,
        casualties: &Casualties,
    ) -> Result<(), Violation> {
        let success = *outcome == Outcome::Success;
        let survived = matches!(outcome, Outcome::Survived { .. });
        if expected == ExpectedEnd::Survived && !survived {
            return Err(Violation::new(at, format!("the session has not survived: {outcome:?}")));
        }
        if expected == ExpectedEnd::Success && !success {
            let why = format!("the session failed, although nothing fatal had happened: {outcome:?}");
            return Err(Violation::new(at, why));
        }
        if expected == ExpectedEnd::Failure && (success || survived) {
            return Err(Violation::new(at, "the session succeeded after a fatal event"));
        }
        let waits_for_all = self.on_failure == FailurePolicy::Abort;
        if success && waits_for_all && self.fences.iter().any(|fence| fence.released != self.ranks) {
            return Err(Violation::new(at, format!("not all ranks were released: {}", self.state())));
        }
        let all = Ranks::range(0..self.ranks);
        let excused = if self.on_failure.goes_on() { casualties.ranks().clone() } else { Ranks::new() };
        let left = all.difference(&excused).difference(&self.finished);
        if self.checked && (success || survived) && !left.is_empty() {
            return Err(Violation::new(at, format!("ranks {left} were not hit and have not finished")));
        }
        Ok(())
    }
}
