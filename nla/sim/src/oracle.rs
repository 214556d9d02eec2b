//! The oracle: what must hold in every run, whatever faults strike. It watches the run and judges its end.
//!
//! - No rank is released from a fence before all ranks have arrived. Each fence releases all its ranks, or the
//!   session ends.
//! - A get returns what was put before the last fence. If several ranks put a key, the value of the highest rank
//!   counts, and of its values the last one. A rank sees its own puts at once. A key that no rank put is not found.
//! - The session ends in bounded time. It ends successfully if and only if nothing fatal happened.

use nla::core::Outcome;
use thiserror::Error;

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
    /// When the first rank and the last rank arrived.
    pub(crate) arrivals: Option<(u64, u64)>,
    /// When the last rank was released.
    pub(crate) last_release: u64,
}

/// See the module's documentation.
pub(crate) struct Oracle {
    pub(crate) ranks: u32,
    /// The fences, by number.
    pub(crate) fences: Vec<FenceRecord>,
    /// When the last get was answered.
    pub(crate) last_get: u64,
    /// The first violation.
    pub(crate) violation: Option<Violation>,
}

impl Oracle {
    /// Creates the oracle of a job of `ranks` ranks.
    pub(crate) fn new(ranks: u32) -> Self {
        Self { ranks, fences: Vec::new(), last_get: 0, violation: None }
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
    pub(crate) fn on_released(&mut self, rank: u32, number: u32, at: u64) {
        let ranks = self.ranks;
        let fence = self.fence(number);
        fence.released += 1;
        fence.last_release = fence.last_release.max(at);
        if fence.arrived < ranks {
            let arrived = fence.arrived;
            let why = format!("rank {rank} was released from fence {number} when {arrived} of {ranks} had arrived");
            self.fail(Violation::new(at, why));
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
    pub(crate) fn check_end(&self, at: u64, outcome: &Outcome, expected: ExpectedEnd) -> Result<(), Violation> {
        let success = *outcome == Outcome::Success;
        if expected == ExpectedEnd::Success && !success {
            let why = format!("the session failed, although nothing fatal had happened: {outcome:?}");
            return Err(Violation::new(at, why));
        }
        if expected == ExpectedEnd::Failure && success {
            return Err(Violation::new(at, "the session succeeded after a fatal event"));
        }
        if success && self.fences.iter().any(|fence| fence.released != self.ranks) {
            return Err(Violation::new(at, format!("not all ranks were released: {}", self.state())));
        }
        Ok(())
    }
}
