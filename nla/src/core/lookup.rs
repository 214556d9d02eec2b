//! Look-ups of one namespace that wait at one place in the tree for an answer from elsewhere.
//!
//! Many may wait for one key; one question is asked. Answers from above come in the same lane as
//! releases, behind those that they know of, so that what comes is what is true here now. An answer
//! from below may have crossed a release on its way up: then it is asked again.

use std::collections::{HashMap, hash_map};

use bytes::Bytes;
use pmi::board::{KeyBuildHasher, check_put};
use pmi::{Entry, LookUpResult, Rank};
use serde::{Deserialize, Serialize};

use super::cache::{Cache, Source};
use super::ids::AgentId;
use super::limits::FOREIGN_LOOK_UPS_MAX;
use super::message::Requester;

/// Who is to be answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum ReplyTo {
    /// An own rank.
    Rank(Rank),
    /// A child.
    Child(AgentId),
    /// The parent, which has learned that the key was put below here.
    Parent,
    /// A rank of another namespace.
    OtherNamespace(Requester),
}

/// Whom to ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Peer {
    /// The parent.
    Parent,
    /// A child.
    Child(AgentId),
}

/// What comes of a question.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum LookUpStep {
    /// This is the answer.
    Answer(LookUpResult),
    /// Somebody else is to be asked.
    Ask(Peer),
    /// Somebody else has been asked already.
    Wait,
}

/// What comes of an answer; nothing, if nobody has asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct AnswerEffect {
    /// Who is to be told.
    pub(super) tell: ReplyList,
    /// What.
    pub(super) result: LookUpResult,
    /// Whom to ask next for the same key, since it was the wrong one to ask.
    pub(super) ask: Option<Peer>,
}

/// Some who are to be answered, in the order in which they asked. One takes no memory besides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ReplyList {
    first: Option<ReplyTo>,
    more: Vec<ReplyTo>,
}

impl ReplyList {
    fn push(&mut self, waiter: ReplyTo) {
        match self.first {
            None => self.first = Some(waiter),
            Some(_) => self.more.push(waiter),
        }
    }

    fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.more.len()
    }
}

impl IntoIterator for ReplyList {
    type Item = ReplyTo;
    type IntoIter = std::iter::Chain<std::option::IntoIter<ReplyTo>, std::vec::IntoIter<ReplyTo>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}

impl FromIterator<ReplyTo> for ReplyList {
    fn from_iter<I: IntoIterator<Item = ReplyTo>>(waiters: I) -> Self {
        let mut waiters = waiters.into_iter();
        Self { first: waiters.next(), more: waiters.collect() }
    }
}

/// How gets were answered at one place.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GetCounts {
    /// Of own ranks, from what is here.
    pub own: u64,
    /// Of others, from what is here.
    pub others: u64,
    /// LookUpStep on.
    pub asked: u64,
    /// Joined to a question that was asked already.
    pub joined: u64,
}

impl GetCounts {
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
    waiters: ReplyList,
    way: Peer,
    /// How many children were asked in vain.
    tried: usize,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct LookUps {
    /// Never walked through: what comes of it has to be the same in each run.
    open: HashMap<Bytes, Question, KeyBuildHasher>,
    /// How many wait, for all of them.
    waiting: usize,
    gets: GetCounts,
}

impl LookUps {
    /// Whether a child may ask for this key: somebody could have put it, and no more wait for answers
    /// than there are `ranks` below, and [`FOREIGN_LOOK_UPS_MAX`].
    pub(super) fn admits(&self, ranks: u64, key: &[u8]) -> bool {
        check_put(key, b"").is_ok() && self.waiting < ranks as usize + FOREIGN_LOOK_UPS_MAX
    }

    /// Somebody asks for a key.
    pub(super) fn ask(&mut self, cache: &mut dyn Cache, waiter: ReplyTo, key: &Bytes) -> LookUpStep {
        let absent = || LookUpResult::Absent(key.clone());
        let way = match way_to(cache, key, 0) {
            Err(result) => return self.answer_here(waiter, result.map_or_else(absent, LookUpResult::Entry)),
            // The parent asks since it believes it to be below: it is not, any more.
            Ok(Peer::Parent) if waiter == ReplyTo::Parent => return self.answer_here(waiter, absent()),
            Ok(way) => way,
        };
        match self.open.entry(key.clone()) {
            hash_map::Entry::Occupied(open) if waiter == ReplyTo::Parent && open.get().way == Peer::Parent => {
                // All that could be below was asked; to wait for the parent would be for ever.
                self.answer_here(waiter, absent())
            }
            hash_map::Entry::Occupied(mut open) => {
                open.get_mut().waiters.push(waiter);
                self.waiting += 1;
                self.gets.joined += 1;
                LookUpStep::Wait
            }
            hash_map::Entry::Vacant(free) => {
                self.waiting += 1;
                free.insert(Question { waiters: [waiter].into_iter().collect(), way, tried: 0 });
                self.gets.asked += 1;
                LookUpStep::Ask(way)
            }
        }
    }

    /// An answer has come from where the question went. `is_fresh` says that no release has crossed
    /// it.
    pub(super) fn on_answer(
        &mut self,
        cache: &mut dyn Cache,
        from: Peer,
        result: LookUpResult,
        is_fresh: bool,
    ) -> AnswerEffect {
        let nothing = |result| AnswerEffect { tell: ReplyList::default(), result, ask: None };
        let Some((key, mut question)) = self.open.remove_entry(result.key()) else { return nothing(result) };
        if question.way != from {
            self.open.insert(key, question);
            return nothing(result);
        }
        if is_fresh && (result.entry().is_some() || from == Peer::Parent) {
            cache.learn(&result);
            return self.close(question, result);
        }
        question.tried = if is_fresh { question.tried + 1 } else { 0 };
        let way = match way_to(cache, &key, question.tried) {
            Err(entry) => return self.close(question, entry.map_or(LookUpResult::Absent(key), LookUpResult::Entry)),
            Ok(way) => way,
        };
        // It asks for what is below, and all that could be was asked.
        let is_in_vain = |waiter: &ReplyTo| way == Peer::Parent && *waiter == ReplyTo::Parent;
        let (tell, wait): (Vec<_>, Vec<_>) = question.waiters.into_iter().partition(is_in_vain);
        self.waiting -= tell.len();
        let ask = (!wait.is_empty()).then_some(way);
        if ask.is_some() {
            self.gets.asked += 1;
            self.open.insert(key.clone(), Question { waiters: wait.into_iter().collect(), way, ..question });
        }
        AnswerEffect { tell: tell.into_iter().collect(), result: LookUpResult::Absent(key), ask }
    }

    /// All who wait are told.
    fn close(&mut self, question: Question, result: LookUpResult) -> AnswerEffect {
        self.waiting -= question.waiters.len();
        AnswerEffect { tell: question.waiters, result, ask: None }
    }

    /// How gets were answered so far.
    pub(super) fn gets(&self) -> GetCounts {
        self.gets
    }

    fn answer_here(&mut self, waiter: ReplyTo, result: LookUpResult) -> LookUpStep {
        match waiter {
            ReplyTo::Rank(_) => self.gets.own += 1,
            ReplyTo::Child(_) | ReplyTo::Parent | ReplyTo::OtherNamespace(_) => self.gets.others += 1,
        }
        LookUpStep::Answer(result)
    }
}

/// Whom to ask, or the answer.
fn way_to(cache: &mut dyn Cache, key: &[u8], tried: usize) -> Result<Peer, Option<Entry>> {
    match cache.look_up(key, tried) {
        Source::Stored(entry) => Err(Some(entry)),
        Source::Absent => Err(None),
        Source::Child(child) => Ok(Peer::Child(child)),
        Source::Parent => Ok(Peer::Parent),
    }
}
