//! The times of the phases of a session at its agents, for `--timing`.
//!
//! Each agent always notes a few times of its own, and none of single ranks. It reports them to its parent with the end
//! of its subtree, merged with its children's reports; the size of the report does not depend on the number of agents.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::ids::{AgentId, Time};
use super::limits::{TIMED_AGENTS_MAX, TIMED_FENCES_MAX};
use super::stats::DurationHistogram;
use super::topology::Subtree;
use super::trace::SpanKind;

/// A phase of a session as an agent sees it, in the order in which phases end.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum TimedPhase {
    /// From the launcher's sending of the job's description to its arrival at the agent.
    Description,
    /// From that arrival to the start of the agent's last rank.
    Spawn,
    /// From that arrival to the first PMI message of the agent's first rank.
    FirstContact,
    /// From that arrival to the first PMI message of the agent's last rank.
    LastContact,
    /// One of the first [`TIMED_FENCES_MAX`] fences, by its number: from the arrival of the agent's last rank to the
    /// release. The end that is reported is that arrival.
    Fence(u32),
    /// All further fences, in the same way.
    LaterFences,
    /// From the start of the agent's last rank to the last end of one.
    Run,
    /// From the order to end the ranks until no process is left.
    Teardown,
}

/// The times of one phase at a set of agents.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseTimes {
    /// How long it took at each agent.
    pub took: DurationHistogram,
    /// The [`TIMED_AGENTS_MAX`] agents at which it ended last, and when, in session time; the last one first.
    pub last: Vec<(AgentId, Time)>,
}

impl PhaseTimes {
    /// Adds one agent, at which it took this long and ended at `done`.
    pub fn note(&mut self, agent: AgentId, took: Duration, done: Time) {
        self.took.note(took);
        self.insert(agent, done);
    }

    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &Self) {
        self.took.merge(&other.took);
        other.last.iter().for_each(|(agent, done)| self.insert(*agent, *done));
    }

    /// When it ended at the last agent.
    pub fn done(&self) -> Option<Time> {
        self.last.first().map(|(_, done)| *done)
    }

    /// Adds the end at an agent. Each agent is listed once, with the latest of its ends.
    fn insert(&mut self, agent: AgentId, done: Time) {
        if let Some(at) = self.last.iter().position(|(other, _)| *other == agent) {
            if self.last[at].1 >= done {
                return;
            }
            self.last.remove(at);
        }
        let at = self.last.partition_point(|(other, before)| (*before, agent) > (done, *other));
        self.last.insert(at, (agent, done));
        self.last.truncate(TIMED_AGENTS_MAX);
    }

    fn is_of(&self, subtree: Subtree) -> bool {
        self.took.is_consistent()
            && self.last.is_empty() == (self.took.count() == 0)
            && self.last.len() <= TIMED_AGENTS_MAX
            && self.last.iter().all(|(agent, _)| subtree.contains(*agent))
            && self.last.is_sorted_by(|(_, later), (_, earlier)| later >= earlier)
    }
}

/// The times that the agents of a subtree have noted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Timing {
    /// The number of agents that have reported.
    pub agents: u32,
    /// The phases that have ended at any of them.
    pub phases: BTreeMap<TimedPhase, PhaseTimes>,
}

impl Timing {
    /// Adds everything in `other`.
    pub fn merge(&mut self, other: &Self) {
        self.agents = self.agents.saturating_add(other.agents);
        for (phase, times) in &other.phases {
            self.phases.entry(*phase).or_default().merge(times);
        }
    }

    /// Whether this can be a report of `subtree`. Reports of peers are checked with it.
    pub fn is_of(&self, subtree: Subtree) -> bool {
        let once = |times: &PhaseTimes| times.took.count() <= u64::from(self.agents);
        self.agents <= subtree.size()
            && self.phases.iter().all(|(phase, times)| {
                times.is_of(subtree)
                    && match phase {
                        TimedPhase::Fence(number) => *number < TIMED_FENCES_MAX && once(times),
                        TimedPhase::LaterFences => true,
                        _ => once(times),
                    }
            })
    }

    fn note(&mut self, phase: TimedPhase, agent: AgentId, from: Time, done: Time) {
        self.phases.entry(phase).or_default().note(agent, done.saturating_sub(from), done);
    }
}

/// Notes the times of one agent: of its ranks of the first namespace, and of its own end.
#[derive(Clone, Debug, Default)]
pub(super) struct AgentTimes {
    agent: AgentId,
    /// When the job's description was sent.
    sent: Time,
    described: Option<Time>,
    /// When the last of this agent's ranks were started.
    pub(super) started: Option<Time>,
    /// When the first and the last rank sent their first PMI messages.
    contacts: Option<(Time, Time)>,
    /// When the last of this agent's ranks arrived at the open fence.
    pub(super) arrived: Option<Time>,
    /// When the last of this agent's ranks ended.
    pub(super) rank_ended: Option<Time>,
    /// When the end of the ranks was first ordered.
    pub(super) ending: Option<Time>,
    /// When no process was left.
    pub(super) swept: Option<Time>,
    /// The times of the children's subtrees, and those of this agent that are complete.
    pub(super) timing: Timing,
}

impl AgentTimes {
    pub(super) fn new(agent: AgentId) -> Self {
        Self { agent, timing: Timing { agents: 1, ..Timing::default() }, ..Self::default() }
    }

    /// The job's description, which was sent at `sent`, has arrived.
    pub(super) fn on_described(&mut self, now: Time, sent: Time) {
        (self.sent, self.described) = (sent, Some(now));
        self.timing.note(TimedPhase::Description, self.agent, sent, now);
    }

    /// All ranks start again, by a plan that has arrived: their times replace those of the start before.
    pub(super) fn on_restarted(&mut self, now: Time) {
        let Timing { mut phases, .. } = std::mem::take(&mut self.timing);
        phases.retain(|phase, _| *phase == TimedPhase::Description);
        let again = Self::new(self.agent);
        let timing = Timing { phases, ..again.timing };
        *self = Self { sent: now, described: Some(now), timing, ..again };
    }

    /// One of this agent's ranks has spoken PMI for the first time.
    pub(super) fn on_contact(&mut self, now: Time) {
        self.contacts = Some((self.contacts.map_or(now, |(first, _)| first), now));
    }

    /// The open fence was released.
    pub(super) fn on_released(&mut self, now: Time, number: u32) {
        // An agent without ranks has not waited.
        let Some(arrived) = self.arrived.take() else { return };
        let phase = if number < TIMED_FENCES_MAX { TimedPhase::Fence(number) } else { TimedPhase::LaterFences };
        let times = self.timing.phases.entry(phase).or_default();
        times.note(self.agent, now.saturating_sub(arrived), arrived);
    }

    /// Returns the phases of the last start that are over, for the trace. They do not overlap: an order to end the ranks
    /// divides their run from their end.
    pub(super) fn phases(&self) -> Vec<(SpanKind, Time, Time)> {
        let run_ended = self.ending.into_iter().chain(self.rank_ended).min();
        let ranks_ended = self.rank_ended.filter(|ended| self.ending.is_none_or(|ending| ending < *ended));
        let spans = [
            (SpanKind::Description, Some(self.sent), self.described),
            (SpanKind::Spawn, self.described, self.started),
            (SpanKind::Run, self.started, run_ended),
            (SpanKind::End, self.ending, ranks_ended),
            (SpanKind::Sweep, self.ending.max(self.rank_ended), self.swept),
        ];
        spans.into_iter().filter_map(|(kind, from, to)| Some((kind, from?, to?))).collect()
    }

    /// Returns the report to the parent.
    pub(super) fn report(&self) -> Timing {
        let mut timing = self.timing.clone();
        let (first, last) = self.contacts.unzip();
        let spans = [
            (TimedPhase::Spawn, self.described, self.started),
            (TimedPhase::FirstContact, self.described, first),
            (TimedPhase::LastContact, self.described, last),
            (TimedPhase::Run, self.started, self.rank_ended),
            (TimedPhase::Teardown, self.ending, self.swept),
        ];
        for (phase, from, done) in spans {
            if let (Some(from), Some(done)) = (from, done) {
                timing.note(phase, self.agent, from, done);
            }
        }
        timing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    /// The report of an agent that is `late` milliseconds behind the others.
    fn reported(agent: u32, late: u64) -> Timing {
        let mut times = AgentTimes::new(AgentId(agent));
        let at = |time| ms(time + late);
        times.on_described(at(10), ms(9));
        [12, 14].into_iter().for_each(|time| times.started = Some(at(time)));
        [13, 15, 17].into_iter().for_each(|time| times.on_contact(at(time)));
        for number in 0..TIMED_FENCES_MAX + 2 {
            times.arrived = Some(at(20));
            times.arrived = Some(at(21));
            times.on_released(at(24), number);
        }
        times.on_released(at(25), 99);
        times.rank_ended = Some(at(30));
        times.ending.get_or_insert(at(31));
        times.ending.get_or_insert(at(32));
        times.swept = Some(at(35));
        times.report()
    }

    #[test]
    fn phases_of_a_trace_follow_each_other() {
        let mut times = AgentTimes::new(AgentId(3));
        times.on_described(ms(10), ms(9));
        times.started = Some(ms(14));
        times.rank_ended = Some(ms(30));
        times.ending = Some(ms(31));
        times.swept = Some(ms(35));
        let phase = |kind, from, to| (kind, ms(from), ms(to));
        let [description, spawn] = [phase(SpanKind::Description, 9, 10), phase(SpanKind::Spawn, 10, 14)];
        let success = [description, spawn, phase(SpanKind::Run, 14, 30), phase(SpanKind::Sweep, 31, 35)];
        assert_eq!(times.phases(), success);
        // Ranks that are killed end after the order.
        times.rank_ended = Some(ms(33));
        let [run, end] = [phase(SpanKind::Run, 14, 31), phase(SpanKind::End, 31, 33)];
        assert_eq!(times.phases(), [description, spawn, run, end, phase(SpanKind::Sweep, 33, 35)]);
    }

    #[test]
    fn the_times_of_a_restart_replace_those_of_the_start_before() {
        let mut times = AgentTimes::new(AgentId(3));
        times.on_described(ms(10), ms(9));
        times.started = Some(ms(14));
        times.on_contact(ms(15));
        times.arrived = Some(ms(16));
        times.on_released(ms(20), 0);
        times.rank_ended = Some(ms(30));
        times.on_restarted(ms(100));
        let phases: Vec<_> = times.report().phases.keys().copied().collect();
        assert_eq!(phases, [TimedPhase::Description]);
        times.started = Some(ms(103));
        let spawn = &times.report().phases[&TimedPhase::Spawn];
        assert_eq!((spawn.took.max(), spawn.done()), (Some(ms(3)), Some(ms(103))));
    }

    #[test]
    fn each_phase_lasts_from_one_event_to_another() {
        let timing = reported(3, 0);
        let of = |phase| {
            let times: &PhaseTimes = &timing.phases[&phase];
            assert_eq!(times.last[0].0, AgentId(3));
            (times.took.count(), times.took.max().unwrap(), times.done().unwrap())
        };
        assert_eq!(of(TimedPhase::Description), (1, ms(1), ms(10)));
        assert_eq!(of(TimedPhase::Spawn), (1, ms(4), ms(14)));
        assert_eq!(of(TimedPhase::FirstContact), (1, ms(3), ms(13)));
        assert_eq!(of(TimedPhase::LastContact), (1, ms(7), ms(17)));
        assert_eq!(of(TimedPhase::Fence(0)), (1, ms(3), ms(21)));
        assert_eq!(of(TimedPhase::LaterFences), (2, ms(3), ms(21)));
        assert_eq!(of(TimedPhase::Run), (1, ms(16), ms(30)));
        assert_eq!(of(TimedPhase::Teardown), (1, ms(4), ms(35)));
        assert_eq!(timing.phases.len(), 7 + TIMED_FENCES_MAX as usize);
    }

    #[test]
    fn phases_that_have_not_ended_are_not_reported() {
        assert_eq!(AgentTimes::new(AgentId(1)).report(), Timing { agents: 1, ..Timing::default() });
        let mut times = AgentTimes::new(AgentId(1));
        times.on_described(ms(10), ms(11));
        let timing = times.report();
        assert_eq!(timing.phases.keys().collect::<Vec<_>>(), [&TimedPhase::Description]);
        let times = &timing.phases[&TimedPhase::Description];
        assert_eq!(times.took.max(), Some(Duration::ZERO), "clocks differ by up to the latency of a link");
    }

    #[test]
    fn the_last_agents_are_the_same_for_any_order_of_reports() {
        let late = [(1, 5), (2, 40), (3, 7), (4, 40), (5, 9), (6, 0)];
        let mut forward = Timing::default();
        late.iter().for_each(|(agent, late)| forward.merge(&reported(*agent, *late)));
        let mut backward = Timing::default();
        late.iter().rev().for_each(|(agent, late)| backward.merge(&reported(*agent, *late)));
        assert_eq!(forward, backward);
        assert_eq!(forward.agents, 6);
        let spawn = &forward.phases[&TimedPhase::Spawn];
        assert_eq!(spawn.last, [(AgentId(2), ms(54)), (AgentId(4), ms(54)), (AgentId(5), ms(23))]);
        let later = &forward.phases[&TimedPhase::LaterFences];
        assert_eq!((later.took.count(), later.last.len()), (12, 3));
        assert!(forward.is_of(Subtree::whole(6, 2)));
        assert_eq!(decode::<Timing>(&encode(&forward)).unwrap(), forward);
    }

    #[test]
    fn a_report_that_cannot_be_of_its_subtree_is_refused() {
        let tree = Subtree::whole(4, 2); // 1 - 2, 3 - 4
        let below = tree.of(AgentId(1)).unwrap();
        let mut good = reported(1, 0);
        good.merge(&reported(2, 3));
        assert!(good.is_of(below) && Timing::default().is_of(below));
        let changes: [fn(&mut Timing); 8] = [
            |timing| timing.agents = 3,
            |timing| timing.agents = 1,
            |timing| timing.merge(&reported(3, 0)),
            |timing| drop(timing.phases.insert(TimedPhase::Run, reported(3, 0).phases[&TimedPhase::Run].clone())),
            |timing| timing.phases.get_mut(&TimedPhase::Run).unwrap().last.clear(),
            |timing| timing.phases.get_mut(&TimedPhase::Run).unwrap().last.reverse(),
            |timing| timing.phases.get_mut(&TimedPhase::Run).unwrap().last.extend([(AgentId(1), ms(0)); 2]),
            |timing| drop(timing.phases.insert(TimedPhase::Fence(TIMED_FENCES_MAX), PhaseTimes::default())),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(!bad.is_of(below), "change {at}");
        }
    }

    #[test]
    fn an_agent_is_listed_with_the_latest_of_its_ends() {
        let mut times = PhaseTimes::default();
        for end in [5, 7, 6] {
            times.insert(AgentId(1), ms(end));
        }
        assert_eq!(times.last, [(AgentId(1), ms(7))]);
    }
}
