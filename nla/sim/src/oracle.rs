//! What must be true of a run, whatever goes wrong in it: watched while it goes on, judged at its end.
//!
//! - Nobody is released from a fence before all have arrived, and each fence releases all or the
//!   session ends.
//! - A get finds what was put before the last fence: of several ranks' values that of the highest, and
//!   its last. A rank's own puts it finds at once. What nobody put it does not find.
//! - The session is over in bounded time, and ends well if and only if nothing fatal happened.

use std::fmt;

use nla::core::Outcome;

/// What should not have been.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    at: u64,
    why: String,
}

impl Violation {
    pub(crate) fn new(at: u64, why: impl Into<String>) -> Self {
        Self { at, why: why.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.3} ms: {}", self.at as f64 / 1e6, self.why)
    }
}

impl std::error::Error for Violation {}

/// Whether the job can still end well.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Doom {
    /// It has to.
    No,
    /// Something went wrong when all ranks had ended.
    Maybe,
    /// It cannot.
    Yes,
}

/// One fence, as its ranks see it.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Meeting {
    arrived: u32,
    released: u32,
    /// When the first rank, and the last, arrived.
    pub(crate) arrivals: Option<(u64, u64)>,
    /// When the last rank was let go.
    pub(crate) last_release: u64,
}

/// See the module.
pub(crate) struct Watch {
    ranks: u32,
    /// By their numbers.
    pub(crate) fences: Vec<Meeting>,
    /// When the last get was answered.
    pub(crate) last_get: u64,
    /// What was wrong first.
    pub(crate) violation: Option<Violation>,
}

impl Watch {
    pub(crate) fn new(ranks: u32) -> Self {
        Self { ranks, fences: Vec::new(), last_get: 0, violation: None }
    }

    /// How many ranks there are.
    pub(crate) fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Notes what is wrong.
    pub(crate) fn fail(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    fn fence(&mut self, number: u32) -> &mut Meeting {
        let number = number as usize;
        if self.fences.len() <= number {
            self.fences.resize(number + 1, Meeting::default());
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

    /// A get was answered with `got`, and should have been with `expected`.
    pub(crate) fn compare(&mut self, at: u64, rank: u32, key: &[u8], got: Option<&[u8]>, expected: Option<&[u8]>) {
        if got != expected {
            let show = |value: Option<&[u8]>| match value {
                Some(value) => format!("{:?}", String::from_utf8_lossy(&value[..value.len().min(40)])),
                None => "nothing".to_owned(),
            };
            let key = String::from_utf8_lossy(key).into_owned();
            let why = format!("rank {rank} got {} for {key}, which is {}", show(got), show(expected));
            self.fail(Violation::new(at, why));
        }
    }

    /// Where everybody is.
    pub(crate) fn state(&self) -> String {
        let ranks = self.ranks;
        let fences = self.fences.iter().enumerate().map(|(number, fence)| {
            format!("fence {number}: {} of {ranks} arrived, {} released", fence.arrived, fence.released)
        });
        let fences: Vec<_> = fences.collect();
        if fences.is_empty() { "no fence was entered".to_owned() } else { fences.join("; ") }
    }

    /// Judges the run.
    pub(crate) fn conclude(&self, at: u64, outcome: &Outcome, doom: Doom) -> Result<(), Violation> {
        let success = *outcome == Outcome::Success;
        match (doom, success) {
            (Doom::No, false) => {
                return Err(Violation::new(at, format!("nothing fatal happened, and the session failed: {outcome:?}")));
            }
            (Doom::Yes, true) => {
                return Err(Violation::new(at, "what happened was fatal, and the session ended well"));
            }
            _ => {}
        }
        if success && self.fences.iter().any(|fence| fence.released != self.ranks) {
            return Err(Violation::new(at, format!("not all were released: {}", self.state())));
        }
        Ok(())
    }
}
