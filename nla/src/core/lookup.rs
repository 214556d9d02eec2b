//! Look-ups of one namespace that wait at one place in the tree for an answer from elsewhere.
//!
//! Many may wait for one key; one question is asked. Answers from above come in the same lane as
//! releases, behind those that they know of, so that what comes is what is true here now. An answer
//! from below may have crossed a release on its way up: then it is asked again.

use std::collections::{HashMap, hash_map};

use bytes::Bytes;
use pmi::Rank;
use pmi::board::check_put;
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Whereabouts};
use super::ids::AgentId;
use super::limits::FOREIGN_LOOK_UPS_MAX;
use super::message::Asker;

/// Who is to be answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Waiter {
    /// An own rank.
    Own(Rank),
    /// A child.
    Child(AgentId),
    /// The parent, which has learned that the key was put below here.
    Parent,
    /// A rank of another namespace.
    Elsewhere(Asker),
}

/// Whom to ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Way {
    /// The parent.
    Up,
    /// A child.
    Down(AgentId),
}

/// What comes of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// This is the answer.
    Answer(Option<Bytes>),
    /// Somebody else is to be asked.
    Ask(Way),
    /// Somebody else has been asked already.
    Waits,
}

/// What comes of an answer; nothing, if nobody has asked.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Answered {
    /// Who is to be told.
    pub(super) tell: Vec<Waiter>,
    /// What.
    pub(super) value: Option<Bytes>,
    /// Whom to ask next, since it was the wrong one to ask.
    pub(super) ask: Option<Way>,
}

/// How gets were answered at one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Gets {
    /// Of own ranks, from what is here.
    pub own: u64,
    /// Of others, from what is here.
    pub others: u64,
    /// Asked on.
    pub asked: u64,
    /// Joined to a question that was asked already.
    pub joined: u64,
}

impl Gets {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            own: self.own.saturating_add(other.own),
            others: self.others.saturating_add(other.others),
            asked: self.asked.saturating_add(other.asked),
            joined: self.joined.saturating_add(other.joined),
        }
    }
}

#[derive(Debug)]
struct Question {
    waiters: Vec<Waiter>,
    way: Way,
    /// How many children were asked in vain.
    tried: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// Never walked through: what comes of it has to be the same in each run.
    open: HashMap<Vec<u8>, Question>,
    /// How many wait, for all of them.
    waiting: usize,
    gets: Gets,
}

impl LookUps {
    /// Whether a child may ask for this key: somebody could have put it, and no more wait for answers
    /// than there are `ranks` below, and [`FOREIGN_LOOK_UPS_MAX`].
    pub(super) fn admits(&self, ranks: u64, key: &[u8]) -> bool {
        check_put(key, b"").is_ok() && self.waiting < ranks as usize + FOREIGN_LOOK_UPS_MAX
    }

    /// Somebody asks for a key.
    pub(super) fn ask(&mut self, cache: &mut dyn Cache, waiter: Waiter, key: &[u8]) -> Asked {
        let way = match way_to(cache, key, 0) {
            Err(value) => return self.answer_here(waiter, value),
            // The parent asks since it believes it to be below: it is not, any more.
            Ok(Way::Up) if waiter == Waiter::Parent => return self.answer_here(waiter, None),
            Ok(way) => way,
        };
        match self.open.entry(key.to_vec()) {
            hash_map::Entry::Occupied(open) if waiter == Waiter::Parent && open.get().way == Way::Up => {
                // All that could be below was asked; to wait for the parent would be for ever.
                self.answer_here(waiter, None)
            }
            hash_map::Entry::Occupied(mut open) => {
                open.get_mut().waiters.push(waiter);
                self.waiting += 1;
                self.gets.joined += 1;
                Asked::Waits
            }
            hash_map::Entry::Vacant(free) => {
                self.waiting += 1;
                free.insert(Question { waiters: vec![waiter], way, tried: 0 });
                self.gets.asked += 1;
                Asked::Ask(way)
            }
        }
    }

    /// An answer has come from where the question went. `is_fresh` says that no release has crossed
    /// it.
    pub(super) fn on_answer(
        &mut self,
        cache: &mut dyn Cache,
        from: Way,
        key: &[u8],
        value: Option<Bytes>,
        is_fresh: bool,
    ) -> Answered {
        let Some(question) = self.open.get_mut(key).filter(|question| question.way == from) else {
            return Answered::default();
        };
        if is_fresh && (value.is_some() || from == Way::Up) {
            cache.learn(key, value.as_ref());
            return Answered { tell: self.close(key), value, ask: None };
        }
        question.tried = if is_fresh { question.tried + 1 } else { 0 };
        match way_to(cache, key, question.tried) {
            Err(value) => Answered { tell: self.close(key), value, ask: None },
            Ok(way) => {
                // It asks for what is below, and all that could be was asked.
                let is_in_vain = |waiter: &Waiter| way == Way::Up && *waiter == Waiter::Parent;
                let (tell, wait): (Vec<_>, Vec<_>) = question.waiters.drain(..).partition(is_in_vain);
                if wait.is_empty() {
                    question.waiters = tell;
                    return Answered { tell: self.close(key), value: None, ask: None };
                }
                self.waiting -= tell.len();
                question.waiters = wait;
                question.way = way;
                self.gets.asked += 1;
                Answered { tell, value: None, ask: Some(way) }
            }
        }
    }

    fn close(&mut self, key: &[u8]) -> Vec<Waiter> {
        let waiters = self.open.remove(key).map(|question| question.waiters).unwrap_or_default();
        self.waiting -= waiters.len();
        waiters
    }

    /// How gets were answered so far.
    pub(super) fn gets(&self) -> Gets {
        self.gets
    }

    fn answer_here(&mut self, waiter: Waiter, value: Option<Bytes>) -> Asked {
        match waiter {
            Waiter::Own(_) => self.gets.own += 1,
            Waiter::Child(_) | Waiter::Parent | Waiter::Elsewhere(_) => self.gets.others += 1,
        }
        Asked::Answer(value)
    }
}

/// Whom to ask, or the answer.
fn way_to(cache: &mut dyn Cache, key: &[u8], tried: usize) -> Result<Way, Option<Bytes>> {
    match cache.look_up(key, tried) {
        Whereabouts::Here(value) => Err(Some(value)),
        Whereabouts::Nowhere => Err(None),
        Whereabouts::Below(child) => Ok(Way::Down(child)),
        Whereabouts::Above => Ok(Way::Up),
    }
}
