//! The entries that ranks have put, fence by fence, and the values that a get may return.
//!
//! A rank's contribution to a fence counts if the fence waited for it. If the rank's agent was lost, the contribution
//! may or may not have been passed on, but all ranks see the whole of it or none sees any of it. So the first get that
//! could see it decides for all later ones.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use pmi::{Rank, Ranks};

use crate::casualties::Casualties;

/// A process of a rank.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Writer {
    pub(crate) rank: u32,
    pub(crate) agent: u32,
    /// How often the rank had started before this process.
    pub(crate) start: u32,
}

/// An entry.
pub(crate) type KeyValue = (Bytes, Bytes);

/// Whether a contribution is part of its fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Standing {
    /// The fence is open.
    Pending,
    Counts,
    /// No rank has seen it or missed it yet.
    Unknown,
    Dropped,
}

/// Entries of one process that become visible together.
#[derive(Debug)]
struct Contribution {
    agent: u32,
    entries: Vec<KeyValue>,
    standing: Standing,
}

/// One fence.
#[derive(Debug, Default)]
struct Round {
    /// The process of each rank that was the last to arrive.
    arrived: BTreeMap<u32, Writer>,
    /// Contributions in the order in which they were made.
    of: BTreeMap<u32, Vec<Contribution>>,
    writers: HashMap<Bytes, BTreeSet<u32>>,
}

/// A value that a get may return, and the contribution that it is from: round, rank, and place among those of the rank.
struct Candidate<'a> {
    value: Option<&'a Bytes>,
    from: Option<(usize, u32, usize)>,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Ledger {
    ranks: u32,
    /// Each entry is passed on separately.
    at_once: bool,
    /// Entries that an agent's ranks have put may be lost with the agent.
    loses_entries: bool,
    rounds: Vec<Round>,
    /// The number of fences that the root has released.
    released: u32,
}

impl Ledger {
    pub(crate) fn new(ranks: u32, at_once: bool, loses_entries: bool) -> Self {
        Self { ranks, at_once, loses_entries, rounds: Vec::new(), released: 0 }
    }

    /// The number of fences that the root has released.
    pub(crate) fn released(&self) -> u32 {
        self.released
    }

    fn round(&mut self, number: u32) -> &mut Round {
        let number = number as usize;
        if self.rounds.len() <= number {
            self.rounds.resize_with(number + 1, Round::default);
        }
        &mut self.rounds[number]
    }

    /// Whether this fence has the contribution of another process of the rank: of an earlier one on the same agent, which
    /// counts for both, or of a later one on another agent.
    pub(crate) fn is_settled(&self, writer: Writer, number: u32) -> bool {
        let arrived = self.rounds.get(number as usize).and_then(|round| round.arrived.get(&writer.rank));
        arrived.is_some_and(|other| other.agent == writer.agent || other.start > writer.start)
    }

    /// A rank has arrived at a fence with its entries. What its process on another agent has contributed is dropped.
    pub(crate) fn arrive(&mut self, writer: Writer, number: u32, entries: Vec<KeyValue>) {
        let Writer { rank, agent, .. } = writer;
        let round = self.round(number);
        round.arrived.insert(rank, writer);
        for earlier in round.of.get_mut(&rank).into_iter().flatten().filter(|earlier| earlier.agent != agent) {
            earlier.standing = Standing::Dropped;
        }
        self.contribute((rank, agent), number, entries, Standing::Pending);
    }

    /// A process has ended, or cannot be reached any more, before it has arrived at a fence.
    pub(crate) fn leave(&mut self, rank: u32, agent: u32, number: u32, entries: Vec<KeyValue>) {
        if self.at_once {
            self.contribute((rank, agent), number, entries, Standing::Unknown);
        }
    }

    fn contribute(&mut self, (rank, agent): (u32, u32), number: u32, entries: Vec<KeyValue>, standing: Standing) {
        let at_once = self.at_once;
        let round = self.round(number);
        for (key, _) in &entries {
            round.writers.entry(key.clone()).or_default().insert(rank);
        }
        let all = round.of.entry(rank).or_default();
        if at_once {
            let single = entries.into_iter().map(|entry| Contribution { agent, entries: vec![entry], standing });
            all.extend(single);
        } else {
            all.push(Contribution { agent, entries, standing });
        }
    }

    /// The root has released a fence. `excused` are the ranks for which it does not wait. Where lost agents are not
    /// replaced, contributions by way of them may be missing.
    pub(crate) fn release(&mut self, number: u32, excused: &Ranks, unreliable: &Casualties) -> Result<(), String> {
        if number != self.released {
            return Err(format!("the root released fence {number} after {} fences", self.released));
        }
        self.released += 1;
        let expected = Ranks::range(0..self.ranks).difference(excused);
        let round = self.round(number);
        let missing = expected.iter().find(|rank| !round.arrived.contains_key(&rank.0));
        if let Some(Rank(rank)) = missing {
            return Err(format!("the root released fence {number} before rank {rank} had arrived"));
        }
        for contribution in round.of.values_mut().flatten() {
            if contribution.standing == Standing::Pending {
                let is_doubtful = unreliable.has_agent(contribution.agent);
                contribution.standing = if is_doubtful { Standing::Unknown } else { Standing::Counts };
            }
        }
        Ok(())
    }

    /// The values that a get after this many fences may return, the likeliest first. If one is seen, those before it were
    /// dropped.
    fn candidates(&self, fences: u32, key: &[u8]) -> Vec<Candidate<'_>> {
        let mut found = Vec::new();
        for (number, round) in self.rounds.iter().enumerate().take(fences as usize).rev() {
            let writers = round.writers.get(key).into_iter().flatten().rev();
            for (rank, place, contribution) in writers.flat_map(|rank| {
                let all = round.of[rank].iter().enumerate().rev();
                all.map(move |(place, contribution)| (*rank, place, contribution))
            }) {
                let Some((_, value)) = contribution.entries.iter().rev().find(|(known, _)| known == key) else {
                    continue;
                };
                let from = Some((number, rank, place));
                match contribution.standing {
                    Standing::Counts => {
                        found.push(Candidate { value: Some(value), from });
                        return found;
                    }
                    Standing::Unknown => found.push(Candidate { value: Some(value), from }),
                    Standing::Pending | Standing::Dropped => {}
                }
            }
        }
        found.push(Candidate { value: None, from: None });
        found
    }

    /// Whether a get after this many fences may return this value. Decides about contributions that it sees or misses.
    pub(crate) fn sees(&mut self, fences: u32, key: &[u8], got: Option<&[u8]>, casualties: &Casualties) -> bool {
        let candidates = self.candidates(fences, key);
        let Some(seen) = position(&candidates, got) else { return self.may_lack(&candidates, got, casualties) };
        if got.is_none() && self.may_lack(&candidates, got, casualties) {
            return true;
        }
        let decided: Vec<_> = candidates[..=seen].iter().map(|candidate| candidate.from).collect();
        for (at, (number, rank, place)) in decided.iter().enumerate().filter_map(|(at, from)| Some((at, (*from)?))) {
            let contribution = self.rounds[number].of.get_mut(&rank).and_then(|all| all.get_mut(place));
            if let Some(contribution) = contribution {
                contribution.standing = if at == seen { Standing::Counts } else { Standing::Dropped };
            }
        }
        true
    }

    /// The same, without a decision.
    pub(crate) fn may_see(&self, fences: u32, key: &[u8], got: Option<&[u8]>, casualties: &Casualties) -> bool {
        let candidates = self.candidates(fences, key);
        position(&candidates, got).is_some() || self.may_lack(&candidates, got, casualties)
    }

    /// Whether an entry was not found because it may be lost.
    fn may_lack(&self, candidates: &[Candidate<'_>], got: Option<&[u8]>, casualties: &Casualties) -> bool {
        let mut of_lost = candidates.iter().filter_map(|candidate| candidate.from);
        self.loses_entries && got.is_none() && of_lost.any(|from| self.is_by(casualties, from))
    }

    fn is_by(&self, casualties: &Casualties, (number, rank, place): (usize, u32, usize)) -> bool {
        casualties.has_agent(self.rounds[number].of[&rank][place].agent)
    }

    /// The likeliest value after this many fences.
    pub(crate) fn expected(&self, fences: u32, key: &[u8]) -> Option<Bytes> {
        self.candidates(fences, key).first().and_then(|candidate| candidate.value.cloned())
    }
}

fn position(candidates: &[Candidate<'_>], got: Option<&[u8]>) -> Option<usize> {
    candidates.iter().position(|candidate| candidate.value.map(|value| &value[..]) == got)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(ranks: u32) -> Ledger {
        Ledger::new(ranks, false, false)
    }

    fn entry(key: &str, value: &str) -> KeyValue {
        (key.to_owned().into(), value.to_owned().into())
    }

    fn writer(rank: u32, agent: u32) -> Writer {
        Writer { rank, agent, start: 0 }
    }

    fn sees(ledger: &mut Ledger, fences: u32, key: &str, value: Option<&str>) -> bool {
        ledger.sees(fences, key.as_bytes(), value.map(str::as_bytes), &Casualties::default())
    }

    fn release(ledger: &mut Ledger, number: u32) -> Result<(), String> {
        ledger.release(number, &Ranks::new(), &Casualties::default())
    }

    #[test]
    fn the_last_put_of_the_highest_rank_wins() {
        let mut ledger = ledger(2);
        ledger.arrive(writer(0, 1), 0, vec![entry("k", "0"), entry("a", "0")]);
        assert_eq!(release(&mut ledger, 0).unwrap_err(), "the root released fence 0 before rank 1 had arrived");
        let mut ledger = self::ledger(2);
        ledger.arrive(writer(0, 1), 0, vec![entry("k", "0"), entry("a", "0")]);
        ledger.arrive(writer(1, 1), 0, vec![entry("k", "1"), entry("k", "2")]);
        release(&mut ledger, 0).unwrap();
        ledger.arrive(writer(0, 1), 1, vec![entry("k", "3")]);
        ledger.arrive(writer(1, 1), 1, vec![]);
        release(&mut ledger, 1).unwrap();
        for (fences, key, value) in
            [(0, "k", None), (1, "k", Some("2")), (2, "k", Some("3")), (2, "a", Some("0")), (2, "b", None)]
        {
            assert!(sees(&mut ledger, fences, key, value), "{key} after {fences} fences");
            assert!(!sees(&mut ledger, fences, key, Some("other")));
        }
        assert!(release(&mut ledger, 3).is_err(), "fence 2 is missing");
    }

    #[test]
    fn a_doubtful_contribution_is_seen_by_all_or_by_none() {
        for first_sees in [true, false] {
            let mut ledger = ledger(2);
            let mut casualties = Casualties::default();
            ledger.arrive(writer(0, 1), 0, vec![entry("k", "0")]);
            ledger.arrive(writer(1, 2), 0, vec![entry("k", "1"), entry("l", "1")]);
            casualties.add_agent(2);
            ledger.release(0, &Ranks::new(), &casualties).unwrap();
            let (seen, other) = if first_sees { ("1", "0") } else { ("0", "1") };
            assert!(sees(&mut ledger, 1, "k", Some(seen)));
            assert!(!sees(&mut ledger, 1, "k", Some(other)));
            assert_eq!(sees(&mut ledger, 1, "l", Some("1")), first_sees);
            assert_eq!(sees(&mut ledger, 1, "l", None), !first_sees);
        }
    }

    #[test]
    fn a_process_on_another_agent_replaces_the_contribution_to_the_open_fence() {
        let mut ledger = ledger(1);
        ledger.arrive(writer(0, 1), 0, vec![entry("k", "old"), entry("l", "old")]);
        let second = Writer { start: 1, ..writer(0, 2) };
        assert!(ledger.is_settled(writer(0, 1), 0) && !ledger.is_settled(second, 0));
        ledger.arrive(second, 0, vec![entry("k", "new")]);
        assert!(ledger.is_settled(writer(0, 1), 0), "the former process arrives again, or late");
        release(&mut ledger, 0).unwrap();
        assert!(sees(&mut ledger, 1, "k", Some("new")) && !sees(&mut ledger, 1, "l", Some("old")));
        assert!(sees(&mut ledger, 1, "l", None));
    }

    #[test]
    fn a_policy_may_lose_the_entries_of_a_lost_agent_but_not_change_them() {
        let mut ledger = Ledger::new(1, false, true);
        let mut casualties = Casualties::default();
        ledger.arrive(writer(0, 1), 0, vec![entry("k", "v")]);
        release(&mut ledger, 0).unwrap();
        assert!(!ledger.sees(1, b"k", None, &casualties));
        casualties.add_agent(1);
        assert!(ledger.sees(1, b"k", None, &casualties) && ledger.sees(1, b"k", Some(b"v"), &casualties));
        assert!(!ledger.sees(1, b"k", Some(b"w"), &casualties));
    }
}
