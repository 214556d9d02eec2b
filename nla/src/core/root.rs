//! The root of the tree: the launcher's decisions.
//!
//! Only the root decides that a session has failed. Agents report events; the root knows when all agents have joined, releases fences, answers
//! requests that need one answer for the whole session (names, spawns), elects the first cause of a failure, and ends
//! the session.

mod as_parent;
mod ending;
mod flushing;
mod forgetting;
mod meetings;
mod moving;
mod namespace;
mod notice;
mod posts;
mod restarting;
mod root_requests;
mod staging;
mod stops;
mod survey;
mod watching;

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use litemap::LiteMap;
use pmi::{Rank, Ranks};

use self::flushing::Flow;
use self::meetings::Meetings;
use self::namespace::Namespace;
pub use self::notice::Notice;
use self::posts::Posts;
pub use self::restarting::INCARNATION;
use self::restarting::Restarts;
use self::stops::{Silences, Stop};

use super::cache::CachePeaks;
use super::cause::{Cause, Failure, Outcome};
use super::children::{ChildStage, Children};
use super::exchange::Exchange;
use super::forgotten::Forgotten;
use super::ids::{AgentId, GuardianAt, NamespaceId, Time};
use super::leftovers::LeftProcesses;
use super::limits::{END_MARGIN, JOIN_TIME};
use super::lookup::GetCounts;

use super::message::{Down, Killed, NO_SIGNAL, Reply, Requester, Up};
use super::parent::Parent;
use super::plan::{NamespacePlan, SessionPlan};
use super::reason::{LossReason, NotStartedReason};
use super::stats::{DriverCounts, DurationHistogram, LevelStats, Stats};
use super::survey::{Collecting, SurveyCause};
use super::timing::Timing;
use super::topology::Subtree;
use super::trace::TraceScope;
use super::turn;

const SIGINT: i32 = 2;
const SIGKILL: i32 = 9;
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// An event that the launcher reports to the root.
#[derive(Debug)]
pub enum RootInput {
    /// The link to a child, or to an agent of a subtree in [`RootAction::Adopt`], is up, and the peer was
    /// authenticated.
    ChildJoined(AgentId),
    /// A child sent a message.
    FromChild(AgentId, Up),
    /// The link to a child was lost.
    ChildLost(AgentId, LossReason),
    /// The same, before all output of the child's subtree has arrived.
    ChildOutputLost(AgentId, LossReason),
    /// An agent could not be started, or ended before it joined.
    AgentFailed(AgentId, NotStartedReason),
    /// All processes of an agent on the launcher's machine have ended: its guardian, which ends after them, has exited.
    AgentEnded(AgentId),
    /// SIGINT, SIGTERM or SIGHUP asked the session to end.
    Interrupt(i32),
    /// The resource manager of the job waits this long between SIGTERM and SIGKILL.
    KillWait(Duration),
    /// A signal arrived that is only passed on to the ranks.
    Forward(i32),
    /// The launcher is about to be stopped (true), or was continued (false).
    Suspend(bool),
    /// Nothing was heard from a child for this time, and its machine answers.
    ChildSilent(AgentId, Duration),
    /// The launcher did not run for this time without [`RootInput::Suspend`]: it was stopped or starved, or its machine was. If
    /// that is the dead time or longer, agents on other machines may have given it up.
    Stopped(Duration),
    /// The user asks how far the ranks are.
    Survey,
    /// The time of `--timeout` is over.
    TimeLimit(Duration),
    /// A file of the session's plan cannot be sent. The text names it and says why.
    NotStaged(String),
    /// The reader of the launcher's standard output closed it.
    OutputClosed,
    /// The launcher's standard output, or a file in its place, cannot be written, for example because the disk is full;
    /// or its input cannot be read.
    OutputLost,
    /// How far the launcher is with writing output. It reports each change once the ranks are being ended.
    OutputFlow {
        /// A number that grows with each byte written.
        progress: u64,
        /// The launcher has received output that it has not written.
        is_pending: bool,
    },
    /// Answers [`RootAction::EndGuardian`] if the agent was on another machine and other agents are there.
    Neighbours {
        /// The lost agent.
        lost: AgentId,
        /// Its guardian.
        guardian: GuardianAt,
        /// The other agents on its machine.
        neighbours: Vec<AgentId>,
    },
    /// All output of all ranks has been written.
    OutputDone,
    /// The time of the last [`RootAction::WakeAt`] is reached. A stale one is harmless.
    Timeout,
}

/// A command to the launcher.
#[derive(Debug, PartialEq)]
pub enum RootAction {
    /// Send a message to a child.
    ToChild(AgentId, Down),
    /// Close the link to a child that broke the rules.
    CloseChild(AgentId, LossReason),
    /// Let each agent of these subtrees join once, from now on. Refuse all other agents that have lost their parents. A
    /// subtree leaves the list when its head joins.
    Adopt(Vec<Subtree>),
    /// An agent is lost for good: end its guardian and what it has left, if they are on this machine. Otherwise hand in
    /// [`RootInput::Neighbours`].
    EndGuardian(AgentId),
    /// Show a step of the session to the user.
    Notice(Notice),
    /// Hand in [`RootInput::Timeout`] at this time.
    WakeAt(Time),
    /// Exit: the session is over.
    Over(Outcome),
}

/// Counts how far the ranks of the first namespace are.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct RankProgress {
    /// Started ranks. A child's ranks count once all ranks of its subtree have started.
    pub started: u64,
    /// Ranks that have arrived at the open fence.
    pub arrived: u64,
}

/// The plan and the tree of a session.
#[derive(Clone, Debug)]
pub struct RootSettings {
    /// The whole tree.
    pub tree: Subtree,
    /// The part of the plan that all agents get.
    pub session: SessionPlan,
    /// The first namespace.
    pub first: NamespacePlan,
    /// How often all ranks may start again after a failure, if the failure policy says so.
    pub max_restarts: u32,
    /// The number of each agent's node; agents on the same node have the same number. The nodes whose agents have no ranks
    /// of `first` are spares, if ranks may start again.
    pub nodes: LiteMap<AgentId, u32>,
    /// How long ranks may wait in a fence before a survey, once for each fence; `None`: for ever.
    pub stuck_after: Option<Duration>,
    /// How long the ranks of a namespace may run after the first of them has ended.
    pub exit_timeout: Option<Duration>,
    /// Whether the ranks of `first` are expected to speak PMI.
    pub expects_pmi: bool,
    /// Whether the pieces of long epochs travel packed, where that makes them shorter.
    pub packs: bool,
}

type Turn<'a> = turn::Turn<'a, RootAction>;

/// The phase of the session.
#[derive(Debug)]
enum Phase {
    /// Agents are joining. The time limit starts with the first input.
    Joining { until: Option<Time> },
    /// All agents have joined and get the session's files. This phase has no time limit; a failed link ends it.
    Staging,
    /// Ranks are started and run.
    Running,
    /// A failure was reported; more reports may arrive before the first cause is elected.
    Gathering { until: Time },
    /// All ranks are being ended, to start again as namespace `next`.
    Restarting { until: Time, awaited: Vec<AgentId>, next: NamespaceId },
    /// The session is being ended. If it was `interrupted` by SIGINT, the next SIGINT ends the grace.
    Ending { outcome: Outcome, until: Time, interrupted: bool },
    /// No process is left. Output is written out, however slowly it is read, but unless the ranks succeeded it is dropped
    /// once it is not read at all; then agents report their statistics, if the session's plan asks for them.
    Flushing { outcome: Outcome },
    /// The session is over.
    Over,
}

/// The decisions of the launcher at the root of the tree.
///
/// [`Root::handle`] takes each input and appends the actions that follow from it.
#[derive(Debug)]
pub struct Root {
    tree: Subtree,
    session: SessionPlan,
    nodes: LiteMap<AgentId, u32>,
    /// Agents that were lost.
    lost: BTreeSet<AgentId>,
    /// Agents whose processes have all ended, as far as the launcher can know.
    without_processes: BTreeSet<AgentId>,
    /// Agents whose guardians were ended.
    without_guardian: BTreeSet<AgentId>,
    /// Lost agents whose guardians are ended then: once more, when the agents below them have joined others, or if an agent
    /// that has lost its guardian has not ended its ranks.
    ends_later: Vec<(Time, AgentId)>,
    /// The last time in which the launcher did not run for a dead time or longer.
    stop: Option<Stop>,
    /// Agents that are silent.
    silences: Silences,
    phase: Phase,
    children: Children,
    namespaces: LiteMap<NamespaceId, Namespace>,
    /// The number of namespaces that were ever launched.
    made: u32,
    /// Spawned namespaces whose ranks have all ended, in the order of their ends.
    ended: VecDeque<NamespaceId>,
    forgotten: Forgotten,
    /// The first namespace, until it is launched.
    first: Option<NamespacePlan>,
    /// The namespace of the job itself: the first one, or that of the last restart.
    job: NamespaceId,
    restarts: Restarts,
    /// The names that MPI_Publish_name has published, and their ports.
    names: LiteMap<Vec<u8>, Vec<u8>>,
    posts: Posts,
    meetings: Meetings,
    /// The last request of each rank, by its number, and the reply; if the session goes on after the loss of an agent.
    answered: LiteMap<(AgentId, NamespaceId, Rank), (u32, Option<Reply>)>,
    failures: Vec<Failure>,
    /// Failures beyond those in `failures`.
    failures_more: u64,
    leftovers: u64,
    /// The grace after SIGTERM of the resource manager.
    kill_wait: Option<Duration>,
    /// Ranks that were killed when their grace was over.
    killed: Vec<Killed>,
    /// The leftovers that are named.
    left: Vec<LeftProcesses>,
    timing: Timing,
    flow: Flow,
    output_done: bool,
    stuck_after: Option<Duration>,
    exit_timeout: Option<Duration>,
    expects_pmi: bool,
    /// The number of surveys so far.
    surveys: u32,
    /// The survey under way.
    survey: Option<(Collecting, SurveyCause)>,
    /// Whether the pieces of long epochs travel packed.
    packs: bool,
    wake_at: Option<Time>,
}

impl Root {
    /// A session that waits for its agents. The driver begins it with a [`RootInput::Timeout`].
    pub fn new(settings: RootSettings) -> Self {
        let RootSettings { tree, session, first, nodes, stuck_after, exit_timeout, expects_pmi, max_restarts, packs } =
            settings;
        // The tree may have grown by spares since the plan was made.
        let trace = session.trace.map(|_| TraceScope::of(tree.size() - 1));
        let session = SessionPlan { trace, ..session };
        let (restarts, first) = Restarts::begin(first, session.on_failure, max_restarts);
        Self {
            tree,
            session,
            nodes,
            lost: BTreeSet::new(),
            without_processes: BTreeSet::new(),
            without_guardian: BTreeSet::new(),
            ends_later: Vec::new(),
            stop: None,
            silences: Silences::default(),
            phase: Phase::Joining { until: None },
            // The root gets no input when they join. The driver drops messages to a child that has not joined.
            children: Children::new(tree, ChildStage::Joined),
            namespaces: LiteMap::new(),
            made: 0,
            ended: VecDeque::new(),
            forgotten: Forgotten::default(),
            restarts,
            first: Some(first),
            job: NamespaceId::FIRST,
            names: LiteMap::new(),
            posts: Posts::default(),
            meetings: Meetings::default(),
            answered: LiteMap::new(),
            failures: Vec::new(),
            failures_more: 0,
            leftovers: 0,
            kill_wait: None,
            killed: Vec::new(),
            left: Vec::new(),
            timing: Timing::default(),
            flow: Flow::default(),
            output_done: false,
            stuck_after,
            exit_timeout,
            expects_pmi,
            surveys: 0,
            survey: None,
            packs,
            wake_at: None,
        }
    }

    /// Handles an event of the time `now` and appends the commands that follow from it to `actions`. Never fails, never
    /// blocks.
    pub fn handle(&mut self, now: Time, input: RootInput, actions: &mut Vec<RootAction>) {
        let turn = &mut Turn { now, actions };
        if let Phase::Joining { until: None } = self.phase {
            self.enter(Phase::Joining { until: Some(turn.now + JOIN_TIME) }, "the session begins");
        }
        match input {
            RootInput::ChildJoined(child) => self.on_child_joined(child, turn),
            RootInput::FromChild(child, message) => self.on_up(child, message, turn),
            RootInput::ChildLost(child, why) => self.on_child_lost(child, Cause::Lost { why }, turn),
            RootInput::ChildOutputLost(child, why) => self.on_child_output_lost(child, why, turn),
            RootInput::AgentFailed(agent, why) => {
                // Ignored unless agents are still joining.
                if let Phase::Joining { .. } = self.phase {
                    self.judge(Failure::of_agent(turn.now, agent, Cause::NotStarted { why }), turn);
                }
            }
            RootInput::AgentEnded(agent) => self.on_agent_ended(agent, turn.now),
            RootInput::Interrupt(signal) => self.on_interrupt(signal, turn),
            RootInput::KillWait(time) => self.kill_wait = Some(time),
            RootInput::Forward(signal) => self.to_children(&Down::Signal { signal }, turn),
            RootInput::Survey => self.on_survey(turn),
            RootInput::Suspend(true) => self.to_children(&Down::Suspend, turn),
            RootInput::Suspend(false) => {
                self.flow.on_continued(turn.now);
                self.to_children(&Down::Resume, turn);
            }
            RootInput::ChildSilent(child, time) => self.on_silent(child, time, turn),
            RootInput::Stopped(time) => self.on_stopped(time, turn),
            RootInput::TimeLimit(limit) => {
                self.end_left(turn);
                self.end(Outcome::TimedOut { limit }, SIGTERM, "the time limit is reached", turn);
            }
            RootInput::OutputFlow { progress, is_pending } => self.flow.note(turn.now, progress, is_pending),
            RootInput::Neighbours { lost, guardian, neighbours } => {
                self.on_neighbours(lost, guardian, &neighbours, turn);
            }
            RootInput::NotStaged(why) => {
                self.judge(Failure::of_agent(turn.now, AgentId::ROOT, Cause::NotStaged { why }), turn);
            }
            RootInput::OutputDone => self.output_done = true,
            RootInput::OutputLost => self.on_output_lost(Outcome::OutputLost, turn),
            RootInput::OutputClosed => self.on_output_lost(Outcome::Interrupted { signal: SIGPIPE }, turn),
            RootInput::Timeout => self.wake_at = None,
        }
        self.on_time(turn);
        self.settle(turn);
        self.set_timer(turn);
        if self.job != NamespaceId::FIRST {
            // The user knows only one job, however often it has started.
            for action in turn.actions.iter_mut() {
                if let RootAction::Notice(notice) = action {
                    notice.name_job(self.job);
                }
            }
        }
    }

    /// Whether no rank of the first namespace has spoken PMI.
    pub fn is_silent(&self) -> bool {
        self.namespaces.get(&self.job).is_some_and(|ns| !ns.contacted)
    }

    /// Returns how far the ranks of the first namespace are, as reported so far.
    pub fn progress(&self) -> RankProgress {
        let first = self.namespaces.get(&self.job);
        first.map_or_else(RankProgress::default, |ns| RankProgress {
            started: ns.started,
            arrived: ns.exchange.fence.arrived().len(),
        })
    }

    /// The times that agents have reported. Agents that were lost have reported none.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// Returns the statistics of the tree that agents have reported so far. `counted` and `fences` are the launcher's
    /// own.
    pub fn stats(&self, counted: DriverCounts, fences: DurationHistogram) -> Stats {
        let here = LevelStats::of_member(counted, self.gets(), self.cache_peaks(), fences);
        Stats::of(here, Vec::new(), self.children.stats())
    }

    /// The most that the caches of the root have stored, all namespaces together.
    pub fn cache_peaks(&self) -> CachePeaks {
        self.forgotten.peaks(self.stored_peaks())
    }

    /// The same for the namespaces that were not forgotten.
    fn stored_peaks(&self) -> CachePeaks {
        self.namespaces.values().map(|ns| ns.exchange.cache.peaks()).fold(CachePeaks::default(), CachePeaks::plus)
    }

    /// How the root answered gets.
    pub fn gets(&self) -> GetCounts {
        self.namespaces.values().map(|ns| ns.exchange.look_ups.counts()).fold(self.forgotten.gets(), GetCounts::plus)
    }

    /// Whether agents that have lost their parent are still to join.
    pub fn awaits_agents(&self) -> bool {
        self.children.orphan_deadline().is_some()
    }

    /// Whether the namespace is that of the job itself: the first one, or that of the last restart.
    pub fn is_job(&self, namespace: NamespaceId) -> bool {
        self.job == namespace
    }

    /// Whether the ranks are being ended or have ended.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Flushing { .. } | Phase::Over)
    }

    /// Whether all agents have joined and have reported their ends, after which none of them has a process left.
    pub fn has_ended_in_order(&self) -> bool {
        self.children.have_ended_in_order()
    }

    /// Whether agents serve PMIx.
    pub fn serves_pmix(&self) -> bool {
        self.session.pmix.is_some()
    }

    /// The only place where the phase changes.
    fn enter(&mut self, phase: Phase, why: &'static str) {
        tracing::debug!(from = ?self.phase, to = ?phase, why, "the session's phase changes");
        self.phase = phase;
    }

    /// Launches a namespace. `requester` is the rank that spawned it, and is answered once all its ranks were started.
    fn launch(&mut self, mut plan: NamespacePlan, requester: Option<Requester>, turn: &mut Turn<'_>) {
        if self.session.moves_ranks() {
            // A spare agent takes part in the exchange from the beginning: it may take over ranks at any time.
            for spare in self.nodes.keys().filter(|agent| self.is_spare(**agent) && !self.lost.contains(agent)) {
                plan.move_in(*spare, &Ranks::new());
            }
        }
        self.launch_below(&plan, turn);
        let exchange =
            Exchange::new(&plan, self.tree, &self.children.subtrees(), self.session.cache, self.session.piece_bytes);
        self.made = self.made.max(plan.id.0 + 1);
        self.namespaces.insert(plan.id, Namespace::new(plan, exchange, requester));
    }

    fn on_time(&mut self, turn: &mut Turn<'_>) {
        self.watch(turn);
        self.tell_silences(turn);
        self.lose_ended_orphans(turn);
        self.lose_late_orphans(self.session.adoption_time(), turn);
        if matches!(self.phase, Phase::Flushing { .. }) && !self.adopts() {
            // All agents have ended their ranks. Some may still pass on output.
            self.ends_later.clear();
        }
        let due = self.ends_later.extract_if(.., |(at, _)| turn.now >= *at);
        turn.extend(due.map(|(_, agent)| RootAction::EndGuardian(agent)).collect::<Vec<_>>());
        match &self.phase {
            Phase::Gathering { until } if turn.now >= *until => self.end_gathering(turn),
            Phase::Joining { until: Some(until) } if turn.now >= *until => {
                for agent in self.children.not_ready().collect::<Vec<_>>() {
                    let cause = Cause::NotStarted { why: NotStartedReason::NotJoined(JOIN_TIME) };
                    self.judge(Failure::of_agent(turn.now, agent, cause), turn);
                }
                let outcome = self.elected();
                self.end(outcome, SIGTERM, "not all agents have joined in time", turn);
            }
            Phase::Restarting { until, awaited, .. } if turn.now >= *until && !awaited.is_empty() => {
                for agent in awaited.clone() {
                    let why = LossReason::NotEnded(END_MARGIN);
                    // The agents below it join others once its link is closed.
                    turn.push(RootAction::CloseChild(agent, why.clone()));
                    self.on_child_lost(agent, Cause::Lost { why }, turn);
                }
            }
            Phase::Ending { outcome, until, .. } if turn.now >= *until => {
                let margin = self.end_margin(outcome);
                for agent in self.children.not_ended().collect::<Vec<_>>() {
                    let cause = Cause::Lost { why: LossReason::NotEnded(margin) };
                    self.on_child_lost(agent, cause, turn);
                }
            }
            Phase::Flushing { outcome } if self.unread_deadline().is_some_and(|at| turn.now >= at) => {
                let outcome = outcome.clone();
                turn.push(RootAction::Notice(Notice::OutputDropped(self.unread_time())));
                self.over(outcome, "the output is not read", turn);
            }
            // No deadline has passed.
            _ => {}
        }
    }

    /// Takes the steps that are due in the new state, whichever input led to it.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        self.finish_survey(turn);
        self.begin_session(turn);
        self.launch_first(turn);
        self.continue_restart(turn);
        self.move_homeless(turn);
        if matches!(self.phase, Phase::Running) {
            self.report_early_exits(turn);
        }
        self.end_hopeless_meetings(turn);
        self.end_late_meetings(turn);
        self.end_readers(turn);
        self.forget_ended(turn);
        if matches!(self.phase, Phase::Running)
            && !self.namespaces.is_empty()
            && self.namespaces.values().all(Namespace::is_over)
        {
            turn.push(RootAction::Notice(Notice::RanksEnded));
            self.end(Outcome::Success, NO_SIGNAL, "all ranks have ended", turn);
        }
        if let Phase::Ending { outcome, .. } = &self.phase
            && self.children.all_ended()
        {
            let outcome = match outcome {
                // An agent may have been lost after its ranks had ended: its processes may not be cleaned up.
                Outcome::Success => self.reached(),
                failure => failure.clone(),
            };
            self.enter(Phase::Flushing { outcome }, "all processes of the session have ended");
        }
        if let Phase::Flushing { outcome } = &self.phase
            && self.output_done
            && (!self.session.has_last_reports() || self.children.all_reported_stats())
        {
            let outcome = outcome.clone();
            self.over(outcome, "all output is written", turn);
        }
    }

    /// Panics if an invariant between two inputs is broken. The simulator calls it after each input.
    pub fn check_invariants(&self) {
        for ns in self.namespaces.values() {
            ns.exchange.fence.check_invariants();
            assert!(ns.plan.is_consistent() && ns.plan.is_within(self.tree), "namespace {}'s plan", ns.plan.id);
            let same_name = self.namespaces.values().filter(|other| other.plan.kvsname == ns.plan.kvsname);
            assert_eq!(same_name.count(), 1, "names are unique");
        }
    }

    /// The agent of a rank.
    fn agent_of(&self, namespace: NamespaceId, rank: Option<Rank>) -> AgentId {
        let placement = self.namespaces.get(&namespace).map(|ns| ns.plan.placement.as_slice()).unwrap_or_default();
        let contain_it = |ranks: &Ranks| rank.is_some_and(|rank| ranks.contains(rank));
        placement.iter().find(|(_, ranks)| contain_it(ranks)).map_or(AgentId::ROOT, |(agent, _)| *agent)
    }

    fn set_timer(&mut self, turn: &mut Turn<'_>) {
        let next = match &self.phase {
            Phase::Joining { until } => *until,
            Phase::Restarting { awaited, .. } if awaited.is_empty() => Some(self.restarts.not_before()),
            Phase::Gathering { until } | Phase::Restarting { until, .. } | Phase::Ending { until, .. } => Some(*until),
            Phase::Running => {
                let unfinalized = self.namespaces.values().filter_map(Namespace::unfinalized_deadline);
                unfinalized.chain(self.restarts.homeless.iter().map(|homeless| homeless.until)).min()
            }
            Phase::Flushing { .. } => self.unread_deadline(),
            Phase::Staging | Phase::Over => None,
        };
        let next = next.into_iter().chain(self.survey.as_ref().map(|(survey, _)| survey.until()));
        let next = next.chain(self.watch_deadline());
        let next = next.chain(self.posts.deadline()).chain(self.meetings.deadline());
        let next = next.chain(self.children.orphan_deadline()).chain(self.silences.due());
        let next = next.chain(self.ends_later.iter().map(|(at, _)| *at)).min();
        if let Some(at) = next
            && self.wake_at.is_none_or(|before| at < before)
        {
            self.wake_at = Some(at);
            turn.push(RootAction::WakeAt(at));
        }
    }
}

#[cfg(test)]
mod tests;
