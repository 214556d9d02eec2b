//! A survey: the root asks all agents how far their ranks are, and the answers are merged on their way up.
//!
//! It answers the user's question "why does my job hang?": which fence is open, which ranks are missing from it, what
//! they last asked of PMI, and whether their processes run. Each place merges the answers of its children, as Periscope
//! does, so the answer's size depends on the number of different states and not on the number of ranks.

use std::time::Duration;

use pmi::Ranks;
use serde::{Deserialize, Serialize};

use super::cause::Failure;
use super::ids::{AgentId, NamespaceId, Time};

/// How long the root waits for all answers. Each level of the tree waits an eighth less than the one above, so that an
/// agent that does not answer costs its siblings' answers nothing.
pub const SURVEY_TIME: Duration = Duration::from_secs(2);

/// The most groups of one namespace, and the most namespaces, that an answer has.
const GROUPS_MAX: usize = 64;
const NAMESPACES_MAX: usize = 16;
/// The most intervals of ranks that an answer has, all groups together: it must fit into a control message.
const INTERVALS_MAX: usize = 4096;

/// The last PMI call of a rank that its agent was asked to serve. Gets from a rank's own node and look-ups in the shared
/// segment are not among them.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum LastCall {
    /// It has not called PMI.
    #[default]
    None,
    /// It has initialised PMI.
    Init,
    /// It has put an entry.
    Put,
    /// It has asked for an entry.
    Get,
    /// It has entered a fence.
    Fence,
    /// It has entered a ring.
    Ring,
    /// It has put, or asked for, an attribute of its node.
    NodeAttribute,
    /// It has published, looked up or removed a name, or asked for another job.
    Name,
    /// It has spawned a job.
    Spawn,
    /// It has finalised PMI.
    Finalize,
    /// It has aborted.
    Abort,
}

/// The state of a rank's process, by /proc/PID/stat.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum ProcessState {
    /// It runs, or waits for a processor (R).
    Running,
    /// It sleeps and can be interrupted (S).
    Sleeping,
    /// It waits in the kernel and cannot be interrupted, for a disk or a file system (D).
    Blocked,
    /// It is stopped by a signal or a debugger (T, t).
    Stopped,
    /// It has ended (Z, X), or its state cannot be read.
    Ended,
    /// It has not been started yet.
    NotStarted,
}

/// The last call of a rank, and the state of its process.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct Activity {
    /// Its last call of PMI.
    pub call: LastCall,
    /// The state of its process.
    pub process: ProcessState,
}

/// The ranks of one namespace in a survey.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NamespaceSurvey {
    /// The namespace.
    pub namespace: NamespaceId,
    /// The number of the open fence, from 0.
    pub fence: u32,
    /// How many ranks have arrived at it.
    pub arrived: u64,
    /// The ranks that run or are being started and have not arrived, by what they do, sorted.
    pub missing: Vec<Group>,
}

/// Ranks that do the same.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Group {
    /// Their activity.
    pub activity: Activity,
    /// The ranks.
    pub ranks: Ranks,
    /// The number of further ranks, which are too scattered to be listed.
    pub more: u64,
}

impl Group {
    /// The number of its ranks.
    pub fn count(&self) -> u64 {
        self.ranks.len().saturating_add(self.more)
    }
}

/// The events that the session waits for, besides those of ranks.
#[derive(Clone, PartialEq, Debug)]
pub enum Wait {
    /// Agents are being started or join.
    Agents,
    /// Agents below these children, or these themselves, lack files that ranks need.
    Files(Vec<AgentId>),
    /// These children end their subtrees' ranks before all ranks start again.
    Clearing(Vec<AgentId>),
    /// All ranks start again at this time, when these lost agents have ended theirs.
    Restart(Vec<AgentId>, Time),
    /// These ranks start again at this time, when the lost agent that had them has ended them.
    Revival(AgentId, Ranks, Time),
    /// Ranks have died, and the others go on. The failure is the first cause.
    Dead(Ranks, Option<Failure>),
    /// All ranks have ended, and their output is being written.
    Output,
}

/// Why a survey was made.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SurveyCause {
    /// The user has asked, or interrupts the session.
    Asked,
    /// Ranks have waited in a fence for long.
    Stuck,
    /// Nothing was heard of ranks for long. Whether they wait for each other is not known.
    Quiet,
    /// Ranks that are to speak PMI may not have done so since their start.
    Silent,
}

/// The merged answer of a subtree.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Survey {
    /// The namespaces with running ranks.
    pub namespaces: Vec<NamespaceSurvey>,
    /// The agents that did not answer in time. Nothing is known of their subtrees.
    pub silent: Vec<AgentId>,
}

impl Survey {
    /// Whether any rank waits in a fence for others that have not arrived.
    pub fn has_open_fence(&self) -> bool {
        self.namespaces.iter().any(|one| one.arrived > 0 && !one.missing.is_empty())
    }

    /// Whether any rank runs that waits in no fence, as far as that is known.
    pub fn has_ranks(&self) -> bool {
        self.namespaces.iter().any(|one| !one.missing.is_empty())
    }

    /// Whether the number of its parts is one that an agent can have sent.
    fn is_bounded(&self) -> bool {
        self.namespaces.len() <= NAMESPACES_MAX && self.namespaces.iter().all(|one| one.missing.len() <= GROUPS_MAX)
    }

    /// Adds the answer of another part of the tree.
    fn merge(&mut self, other: Self) {
        for theirs in other.namespaces {
            match self.namespaces.iter_mut().find(|ours| ours.namespace == theirs.namespace) {
                Some(ours) => ours.merge(theirs),
                None => self.namespaces.push(theirs),
            }
        }
        self.silent.extend(other.silent);
    }

    /// Adds what ranks of a namespace do.
    fn add(&mut self, namespace: NamespaceId, missing: Vec<(Activity, Ranks)>) {
        if let Some(ours) = self.namespaces.iter_mut().find(|ours| ours.namespace == namespace) {
            missing.into_iter().for_each(|(activity, ranks)| ours.add(Group { activity, ranks, more: 0 }));
        }
    }

    /// Only counts what exceeds the bounds of an answer.
    fn cut(&mut self) {
        self.namespaces.truncate(NAMESPACES_MAX);
        let mut intervals = INTERVALS_MAX;
        for group in self.namespaces.iter_mut().flat_map(|one| &mut one.missing) {
            let all = group.ranks.intervals();
            if all.len() > intervals {
                let before = group.ranks.len();
                let mut kept = Ranks::new();
                all[..intervals].iter().for_each(|(start, end)| kept.union_with(&Ranks::range(*start..*end)));
                group.ranks = kept;
                group.more = group.more.saturating_add(before - group.ranks.len());
            }
            intervals -= group.ranks.intervals().len();
        }
    }
}

impl NamespaceSurvey {
    fn merge(&mut self, other: Self) {
        // A part of the tree may not have been released from the fence before yet.
        if other.fence > self.fence {
            (self.fence, self.arrived) = (other.fence, other.arrived);
        } else if other.fence == self.fence {
            self.arrived = self.arrived.saturating_add(other.arrived);
        }
        other.missing.into_iter().for_each(|group| self.add(group));
    }

    fn add(&mut self, group: Group) {
        match self.missing.binary_search_by_key(&group.activity, |known| known.activity) {
            Ok(at) => {
                let known = &mut self.missing[at];
                known.ranks.union_with(&group.ranks);
                known.more = known.more.saturating_add(group.more);
            }
            Err(at) => self.missing.insert(at, group),
        }
    }
}

/// The answers to a survey under way at one place.
#[derive(Debug)]
pub(super) struct Collecting {
    number: u32,
    /// The children that have not answered.
    awaited: Vec<AgentId>,
    /// This place's own ranks are being inspected.
    inspects: bool,
    until: Time,
    survey: Survey,
}

impl Collecting {
    /// Begins survey `number` with what this place knows of its own ranks. `inspects` says that [`Collecting::on_own`]
    /// follows.
    pub(super) fn begin(
        number: u32,
        children: impl Iterator<Item = AgentId>,
        own: Vec<NamespaceSurvey>,
        inspects: bool,
        until: Time,
    ) -> Self {
        let survey = Survey { namespaces: own, silent: Vec::new() };
        Self { number, awaited: children.collect(), inspects, until, survey }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// The time by which it is over.
    pub(super) fn until(&self) -> Time {
        self.until
    }

    /// Takes what this place's ranks do.
    pub(super) fn on_own(&mut self, number: u32, found: Vec<(NamespaceId, Vec<(Activity, Ranks)>)>) {
        if number == self.number {
            self.inspects = false;
            found.into_iter().for_each(|(namespace, missing)| self.survey.add(namespace, missing));
        }
    }

    /// Takes the answer of a child. A late one, a second one, and one that is too large are dropped.
    pub(super) fn on_child(&mut self, child: AgentId, number: u32, survey: Survey) {
        let awaited = self.awaited.iter().position(|awaited| *awaited == child);
        if let Some(at) = awaited.filter(|_| number == self.number && survey.is_bounded()) {
            self.awaited.swap_remove(at);
            self.survey.merge(survey);
        }
    }

    /// Whether all have answered, or the time is over.
    pub(super) fn is_done(&self, now: Time) -> bool {
        self.awaited.is_empty() && !self.inspects || now >= self.until
    }

    /// The merged answer. Children that have not answered are silent.
    pub(super) fn finish(mut self) -> Survey {
        self.survey.silent.append(&mut self.awaited);
        self.survey.silent.sort_unstable();
        self.survey.cut();
        self.survey
    }
}

/// The time that the level below has, if this one has `within`.
pub(super) fn time_below(within: Duration) -> Duration {
    within - within / 8
}

#[cfg(test)]
mod tests {
    use super::*;

    const NS: NamespaceId = NamespaceId::FIRST;
    const SLEEPS: Activity = Activity { call: LastCall::Put, process: ProcessState::Sleeping };
    const STOPPED: Activity = Activity { call: LastCall::None, process: ProcessState::Stopped };

    fn group(activity: Activity, ranks: std::ops::Range<u32>) -> Group {
        Group { activity, ranks: Ranks::range(ranks), more: 0 }
    }

    fn part(fence: u32, arrived: u64, missing: &[(Activity, std::ops::Range<u32>)]) -> NamespaceSurvey {
        let missing = missing.iter().map(|(activity, ranks)| group(*activity, ranks.clone())).collect();
        NamespaceSurvey { namespace: NS, fence, arrived, missing }
    }

    fn of(part: NamespaceSurvey) -> Survey {
        Survey { namespaces: vec![part], silent: Vec::new() }
    }

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn answers_are_merged_by_what_ranks_do() {
        let children = [AgentId(2), AgentId(3)];
        let mut all = Collecting::begin(1, children.into_iter(), vec![part(4, 2, &[])], true, at(9));
        all.on_own(1, vec![(NS, vec![(SLEEPS, Ranks::range(2..3))])]);
        all.on_child(AgentId(2), 1, of(part(4, 2, &[(STOPPED, 6..7)])));
        assert!(!all.is_done(at(8)), "a child has not answered");
        all.on_child(AgentId(3), 1, of(part(4, 0, &[(SLEEPS, 8..10)])));
        assert!(all.is_done(at(8)));
        let mut expected = part(4, 4, &[(STOPPED, 6..7), (SLEEPS, 2..3)]);
        expected.missing[1].ranks.union_with(&Ranks::range(8..10));
        assert_eq!(all.finish(), of(expected));
    }

    #[test]
    fn children_that_do_not_answer_in_time_are_silent() {
        let mut all = Collecting::begin(7, [AgentId(2), AgentId(3)].into_iter(), Vec::new(), false, at(9));
        // An answer to an earlier survey, one of a stranger to this place, and a second one.
        all.on_child(AgentId(2), 6, of(part(0, 1, &[])));
        all.on_child(AgentId(5), 7, of(part(0, 1, &[])));
        all.on_child(AgentId(3), 7, Survey { namespaces: Vec::new(), silent: vec![AgentId(9)] });
        all.on_child(AgentId(3), 7, of(part(0, 1, &[])));
        assert!(!all.is_done(at(8)) && all.is_done(at(9)));
        assert_eq!(all.finish(), Survey { namespaces: Vec::new(), silent: vec![AgentId(2), AgentId(9)] });
    }

    #[test]
    fn the_latest_fence_counts() {
        let mut survey = of(part(3, 4, &[]));
        survey.merge(of(part(4, 1, &[(SLEEPS, 5..6)])));
        survey.merge(of(part(3, 1, &[])));
        assert_eq!(survey, of(part(4, 1, &[(SLEEPS, 5..6)])));
        assert!(survey.has_open_fence());
    }

    #[test]
    fn an_answer_with_too_many_parts_is_dropped() {
        let mut all = Collecting::begin(1, [AgentId(2)].into_iter(), Vec::new(), false, at(9));
        let mut large = part(0, 0, &[]);
        large.missing = vec![group(SLEEPS, 0..1); GROUPS_MAX + 1];
        all.on_child(AgentId(2), 1, of(large));
        assert!(!all.is_done(at(8)));
    }

    /// A million ranks of which every other one is missing.
    #[test]
    fn scattered_ranks_are_counted() {
        let scattered: Ranks = (0..500_000).map(|rank| pmi::Rank(2 * rank)).collect();
        let mut all = Collecting::begin(1, std::iter::empty(), vec![part(0, 500_000, &[])], true, at(9));
        all.on_own(1, vec![(NS, vec![(SLEEPS, scattered), (STOPPED, Ranks::range(1_000_000..1_000_002))])]);
        let survey = all.finish();
        let counts: Vec<_> = survey.namespaces[0].missing.iter().map(|group| (group.ranks.len(), group.more)).collect();
        assert_eq!(counts, [(2, 0), (INTERVALS_MAX as u64 - 1, 500_001 - INTERVALS_MAX as u64)]);
        assert!(crate::wire::encode(&survey).len() < super::super::limits::CONTROL_BYTES_MAX / 2);
    }

    #[test]
    fn lower_levels_have_less_time() {
        assert_eq!(time_below(SURVEY_TIME), Duration::from_millis(1750));
    }

    #[test]
    fn a_group_counts_the_ranks_that_are_not_listed() {
        assert_eq!(Group { more: 3, ..group(SLEEPS, 2..4) }.count(), 5);
    }
}
