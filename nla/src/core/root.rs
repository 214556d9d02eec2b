//! The root of the tree: the launcher's decisions.
//!
//! Only the root judges. Agents report facts; the root knows when all have joined, releases
//! fences, answers what needs one answer for the whole session (names, spawns), elects the first
//! cause of a failure and ends the session.

mod ending;
mod fences;
mod gets;
mod joining;
mod namespace;
mod questions;
mod stats;

use std::collections::BTreeMap;
use std::time::Duration;

use pmi::{Rank, Ranks};

use self::namespace::Namespace;
use super::cause::{Cause, Failure, Outcome};
use super::ids::{AgentId, NamespaceId, Time};
use super::limits::{END_MARGIN, JOIN_TIME, UNFINALIZED_TIME};
use super::message::{Down, Up};
use super::plan::{NamespacePlan, SessionPlan};
use super::stats::Stats;
use super::timing::Timing;
use super::topology::Subtree;

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What has happened, to the launcher.
#[derive(Debug)]
pub enum RootInput {
    /// A message from a child.
    FromChild(AgentId, Up),
    /// The link to a child is gone.
    ChildLost(AgentId, String),
    /// An agent could not be started, or ended before it had joined.
    AgentFailed(AgentId, String),
    /// The user, or the system, wants the session to end: INT, TERM or HUP.
    Interrupt(i32),
    /// A signal that is only passed on to the ranks.
    Forward(i32),
    /// The launcher is about to be stopped (true), or goes on (false).
    Suspend(bool),
    /// `--timeout` has run out.
    TimeLimit(Duration),
    /// Nobody reads the launcher's standard output any more.
    OutputClosed,
    /// The launcher's standard output, or a file in its place, cannot be written: a full disk, for
    /// example.
    OutputLost,
    /// All output of all ranks has been written: nothing more will come.
    OutputDone,
    /// The time of the last [`RootAction::WakeAt`] has come. Harmless when it is stale.
    Timeout,
}

/// What the launcher is to do.
#[derive(Debug, PartialEq)]
pub enum RootAction {
    /// Send to a child.
    ToChild(AgentId, Down),
    /// Close the link to a child that broke the rules.
    CloseChild(AgentId, String),
    /// Tell whoever follows the session.
    Notice(Notice),
    /// Hand in [`RootInput::Timeout`] at this time.
    WakeAt(Time),
    /// The session is over.
    Over(Outcome),
}

/// Counts how far the ranks of the first namespace are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RankProgress {
    /// Ranks that were started; a child's are counted once all of its subtree's are.
    pub started: u64,
    /// Ranks that have arrived at the open fence.
    pub arrived: u64,
}

/// A step of the session, for those who follow it.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// All agents have joined; ranks are being started.
    Joined,
    /// All ranks of a namespace have been started.
    Started(NamespaceId, u32),
    /// A namespace's first rank has spoken PMI.
    Contact(NamespaceId),
    /// A fence was released, or a ring, which has no entries.
    Released {
        /// Of which namespace.
        namespace: NamespaceId,
        /// Which one.
        number: u32,
        /// Entries that were put.
        entries: usize,
        /// Bytes of what everybody was told of them.
        bytes: usize,
        /// How long ago the first ranks had arrived.
        took: Duration,
    },
    /// All ranks have ended.
    RanksEnded,
    /// A failure was reported.
    Failure(Failure),
    /// The session is being ended; the ranks get this signal, and KILL after the grace.
    Ending(i32, Duration),
    /// Processes that outlived their ranks were killed.
    Leftovers(u64),
}

/// What the root needs to know from the beginning.
#[derive(Clone, Debug)]
pub struct RootSettings {
    /// The whole tree.
    pub tree: Subtree,
    /// What all agents get.
    pub session: SessionPlan,
    /// The first namespace.
    pub first: NamespacePlan,
    /// The node of each agent: agents on one node have one number.
    pub nodes: BTreeMap<AgentId, u32>,
}

#[derive(Debug, Default)]
struct Child {
    ready: bool,
    ended: bool,
    /// Nothing more comes from it.
    gone: bool,
    stats: Option<Box<Stats>>,
}

#[derive(Debug)]
enum Phase {
    /// Agents are joining; the time runs from the first input on.
    Joining { until: Option<Time> },
    /// Ranks run.
    Running,
    /// Something failed; more failures may come in before one is elected.
    Gathering { until: Time },
    /// The session is being ended.
    Ending { outcome: Outcome, until: Time, interrupted: bool },
    /// No process is left. Their output is written out, however slowly it is read; then agents tell
    /// what they have counted, if they are to.
    Flushing { outcome: Outcome },
    /// It is over.
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Root {
    tree: Subtree,
    session: SessionPlan,
    nodes: BTreeMap<AgentId, u32>,
    phase: Phase,
    children: BTreeMap<AgentId, Child>,
    namespaces: BTreeMap<NamespaceId, Namespace>,
    /// The namespaces by their names on the PMI wire.
    jobs: BTreeMap<String, NamespaceId>,
    first: Option<NamespacePlan>,
    names: BTreeMap<Vec<u8>, Vec<u8>>,
    failures: Vec<Failure>,
    failures_more: u64,
    leftovers: u64,
    timing: Timing,
    output_done: bool,
    wake_at: Option<Time>,
}

impl Root {
    /// A session that waits for its agents. The driver hands in a [`RootInput::Timeout`] to begin.
    pub fn new(settings: RootSettings) -> Self {
        let RootSettings { tree, session, first, nodes } = settings;
        Self {
            tree,
            session,
            nodes,
            phase: Phase::Joining { until: None },
            children: tree.children().map(|child| (child.head(), Child::default())).collect(),
            namespaces: BTreeMap::new(),
            jobs: BTreeMap::new(),
            first: Some(first),
            names: BTreeMap::new(),
            failures: Vec::new(),
            failures_more: 0,
            leftovers: 0,
            timing: Timing::default(),
            output_done: false,
            wake_at: None,
        }
    }

    /// Takes what happened at `now` and appends what is to be done. Never fails, never blocks.
    pub fn handle(&mut self, now: Time, input: RootInput, actions: &mut Vec<RootAction>) {
        if let Phase::Joining { until } = &mut self.phase {
            until.get_or_insert(now + JOIN_TIME);
        }
        match input {
            RootInput::FromChild(child, message) => self.on_up(now, child, message, actions),
            RootInput::ChildLost(child, why) => self.on_child_lost(now, child, why, actions),
            RootInput::AgentFailed(agent, why) => self.on_agent_failed(now, agent, why, actions),
            RootInput::Interrupt(signal) => self.on_interrupt(now, signal, actions),
            RootInput::Forward(signal) => self.to_children(&Down::Signal { signal }, actions),
            RootInput::Suspend(true) => self.to_children(&Down::Suspend, actions),
            RootInput::Suspend(false) => self.to_children(&Down::Resume, actions),
            RootInput::TimeLimit(limit) => self.end(now, Outcome::TimedOut { limit }, SIGTERM, actions),
            RootInput::OutputDone => self.output_done = true,
            RootInput::OutputLost => self.lose_output(now, Outcome::OutputLost, actions),
            RootInput::OutputClosed => self.lose_output(now, Outcome::Interrupted { signal: 13 }, actions),
            RootInput::Timeout => self.wake_at = None,
        }
        self.on_time(now, actions);
        self.settle(now, actions);
        self.set_timer(actions);
    }

    /// Whether no rank has spoken PMI in the first namespace.
    pub fn is_silent(&self) -> bool {
        self.namespaces.get(&NamespaceId::FIRST).is_some_and(|ns| !ns.contacted)
    }

    /// Returns how far the ranks of the first namespace are, as reported so far.
    pub fn progress(&self) -> RankProgress {
        let first = self.namespaces.get(&NamespaceId::FIRST);
        first.map_or_else(RankProgress::default, |ns| RankProgress {
            started: ns.started,
            arrived: ns.fence.arrived().len(),
        })
    }

    /// When agents had done what, as far as they have told: those that were lost have not.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Whether the ranks are being ended or have ended.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Flushing { .. } | Phase::Over)
    }

    fn on_up(&mut self, now: Time, from: AgentId, message: Up, actions: &mut Vec<RootAction>) {
        let Some(child) = self.children.get_mut(&from) else { return };
        match message {
            Up::Ready => child.ready = true,
            Up::Ended { leftovers, timing } => self.on_ended(now, from, leftovers, &timing, actions),
            Up::Started { namespace } => self.on_started(from, namespace, actions),
            Up::Contact { namespace } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace)
                    && !std::mem::replace(&mut ns.contacted, true)
                {
                    actions.push(RootAction::Notice(Notice::Contact(namespace)));
                }
            }
            Up::Gathered { namespace, number, ranks, contribution } => {
                self.on_gathered(now, from, (namespace, number), ranks, contribution, actions);
            }
            Up::Put { namespace, number, puts } => self.on_put(now, from, (namespace, number), &puts, actions),
            Up::Get { namespace, key } => self.on_get(now, from, namespace, &key, actions),
            Up::Got { namespace, number, result } => self.on_got(from, (namespace, number), result, actions),
            Up::Waiting { namespace, number } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.waiting = Some(number);
                }
            }
            Up::Exited { namespace, fences, unfinished, ranks } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    if unfinished {
                        ns.unfinished.union_with(&ranks);
                        ns.unfinished_since.get_or_insert(now);
                    }
                    let gone = ns.gone.entry(fences).or_default();
                    let before = gone.len();
                    gone.union_with(&ranks);
                    ns.gone_count += gone.len() - before;
                }
            }
            Up::Failed(failure) => self.on_failure(now, failure, actions),
            Up::FailedMore { count } => self.failures_more = self.failures_more.saturating_add(count),
            Up::Ask { requester, question } => self.on_question(requester, question, actions),
            Up::Inquire(inquiry) => self.on_inquiry(now, from, inquiry, actions),
            Up::Reply { requester, reply } => self.on_reply(now, from, requester, reply, actions),
            Up::Stats(stats) => self.on_stats(now, from, stats, actions),
        }
    }

    /// A child broke the rules: its link is closed, and with that it is lost.
    fn cut_off(&mut self, now: Time, child: AgentId, why: String, actions: &mut Vec<RootAction>) {
        let why = format!("it broke the protocol: {why}");
        actions.push(RootAction::CloseChild(child, why.clone()));
        self.on_child_lost(now, child, why, actions);
    }

    fn to_children(&self, message: &Down, actions: &mut Vec<RootAction>) {
        actions.extend(self.children.keys().map(|child| RootAction::ToChild(*child, message.clone())));
    }

    fn on_time(&mut self, now: Time, actions: &mut Vec<RootAction>) {
        match &self.phase {
            Phase::Gathering { until } if now >= *until => {
                let outcome = self.elected();
                self.end(now, outcome, SIGTERM, actions);
            }
            Phase::Joining { until: Some(until) } if now >= *until => {
                let late: Vec<_> = self.children.iter().filter(|(_, child)| !child.ready).map(|(id, _)| *id).collect();
                for agent in late {
                    let why = format!("it, or an agent below it, had not joined after {} s", JOIN_TIME.as_secs());
                    self.note_not_started(now, agent, why, actions);
                }
                let outcome = self.elected();
                self.end(now, outcome, SIGTERM, actions);
            }
            Phase::Ending { until, .. } if now >= *until => {
                let late: Vec<_> = self.children.iter().filter(|(_, child)| !child.ended).map(|(id, _)| *id).collect();
                for agent in late {
                    let why = format!(
                        "it, or an agent below it, had not ended its ranks {} s after KILL",
                        END_MARGIN.as_secs()
                    );
                    self.on_child_lost(now, agent, why, actions);
                }
            }
            _ => {}
        }
    }

    fn settle(&mut self, now: Time, actions: &mut Vec<RootAction>) {
        if matches!(self.phase, Phase::Joining { .. })
            && self.children.values().all(|child| child.ready)
            && let Some(plan) = self.first.take()
        {
            self.phase = Phase::Running;
            self.session.sent = now;
            self.to_children(&Down::Session(Box::new(self.session.clone())), actions);
            actions.push(RootAction::Notice(Notice::Joined));
            self.launch(plan, None, actions);
        }
        if matches!(self.phase, Phase::Running) {
            let left: Vec<_> =
                self.namespaces.values().filter_map(|ns| ns.left(now).map(|left| (ns.plan.id, left))).collect();
            for (namespace, (ranks, in_fence)) in left {
                let agent = self.agent_of(namespace, ranks.first());
                let cause = Cause::ExitedEarly { in_fence };
                self.on_failure(now, Failure { at: now, agent, namespace, ranks, cause }, actions);
            }
        }
        if matches!(self.phase, Phase::Running)
            && !self.namespaces.is_empty()
            && self.namespaces.values().all(Namespace::is_over)
        {
            actions.push(RootAction::Notice(Notice::RanksEnded));
            self.end(now, Outcome::Success, SIGTERM, actions);
        }
        if let Phase::Ending { outcome, .. } = &self.phase
            && self.children.values().all(|child| child.ended)
        {
            let outcome = match outcome {
                // Lost on the way out: the job had succeeded, the clean-up may not have.
                Outcome::Success => self.elected(),
                other => other.clone(),
            };
            self.phase = Phase::Flushing { outcome };
        }
        if let Phase::Flushing { outcome } = &self.phase
            && self.output_done
            && self.all_have_told()
        {
            let outcome = outcome.clone();
            self.over(outcome, actions);
        }
    }

    /// What must hold between two inputs; the simulator calls it after each.
    pub fn check_invariants(&self) {
        for ns in self.namespaces.values() {
            ns.fence.check_invariants();
            assert!(ns.plan.is_consistent() && ns.plan.is_within(self.tree), "namespace {}'s plan", ns.plan.id);
            assert_eq!(self.jobs.get(&ns.plan.kvsname), Some(&ns.plan.id), "each namespace is found by its name");
        }
        assert_eq!(self.jobs.len(), self.namespaces.len(), "names are unique");
    }

    fn agent_of(&self, namespace: NamespaceId, rank: Option<Rank>) -> AgentId {
        let placement = self.namespaces.get(&namespace).map(|ns| ns.plan.placement.as_slice()).unwrap_or_default();
        let holds = |ranks: &Ranks| rank.is_some_and(|rank| ranks.contains(rank));
        placement.iter().find(|(_, ranks)| holds(ranks)).map_or(AgentId::ROOT, |(agent, _)| *agent)
    }

    fn set_timer(&mut self, actions: &mut Vec<RootAction>) {
        let next = match &self.phase {
            Phase::Joining { until: Some(until) } | Phase::Gathering { until } | Phase::Ending { until, .. } => *until,
            Phase::Running => {
                let unfinished =
                    self.namespaces.values().filter(|ns| !ns.is_over()).filter_map(|ns| ns.unfinished_since);
                match unfinished.min() {
                    Some(since) => since + UNFINALIZED_TIME,
                    None => return,
                }
            }
            Phase::Joining { until: None } | Phase::Flushing { .. } | Phase::Over => return,
        };
        if self.wake_at.is_none_or(|before| next < before) {
            self.wake_at = Some(next);
            actions.push(RootAction::WakeAt(next));
        }
    }
}

#[cfg(test)]
mod tests;
