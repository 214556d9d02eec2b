//! The agent: it sits in the tree between its parent and its children, and starts and serves its ranks.
//!
//! An `Agent` belongs to one session. It makes no decision that concerns other agents: it starts the ranks that its
//! parent names, serves them, merges what goes up, passes on what goes down, and reports facts. Only when it has lost
//! its parent does it act on its own: it kills its ranks and leaves, so that a cut network leaves no process behind.

mod action;
mod as_parent;
mod clearing;
mod ending;
mod fences;
mod forgetting;
mod groups;
mod input;
mod inquiries;
mod moving;
mod namespace;
mod node_attributes;
mod passing;
mod ranks;
mod rejoining;
mod reviving;
mod survey;

use std::time::Duration;

use litemap::LiteMap;
use pmi::{Rank, Ranks};

pub use self::action::Action;
use self::clearing::Clearing;
pub use self::input::Input;
use self::namespace::{Namespace, Stage};
use self::passing::Passing;
pub use self::passing::SignalWay;
use super::cache::{CachePeaks, CachePolicy};
use super::cause::{Cause, Failure};
use super::children::{ChildStage, Children};
use super::exchange::MoveIn;
use super::failure_policy::FailurePolicy;
use super::forgotten::Forgotten;
use super::ids::{AgentId, NamespaceId, Time};
use super::limits::{EARLY_MOVES_MAX, FAILURES_SINGLE_MAX};
use super::lookup::{GetCounts, Peer, ReplyTo};
use super::low_limits::LowLimits;
use super::message::{Down, Killed, NO_SIGNAL, Up};
use super::parent::Parent;
use super::pieces::PieceBytes;
use super::plan::{NamespacePlan, SessionPlan};
use super::reason::{LossReason, NotStartedReason};
use super::stats::{DriverCounts, DurationHistogram};
use super::survey::Collecting;
use super::timing::AgentTimes;
use super::topology::Subtree;
use super::trace::{TraceScope, Tracer};
use super::turn;
use super::words::one_line;

// Signal numbers, the same on all Linux machines.
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// The exit code of an agent that lost its parent.
const CODE_PARENT_LOST: u8 = 252;

type Turn<'a> = turn::Turn<'a, Action>;

/// The phase of an agent's life.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Agents join, ranks are started and served.
    Serving,
    /// The ranks are being ended: they get `signal`. At `kill_at`, if that is not over, those that are left get SIGKILL.
    Ending { signal: i32, kill_at: Option<Time> },
    /// All ranks have ended well. Processes that they have left may end by themselves; they get SIGTERM at `until`, and SIGKILL a
    /// grace later.
    Lingering { until: Time, grace: Duration, signalled: bool },
    /// All of this agent's ranks have ended; the driver kills the processes that outlived them.
    Sweeping,
    /// This agent has no process left; children may have some.
    Swept,
    /// The end was reported to the parent, or the parent is lost.
    Over,
}

/// How far the session's files are in an agent's subtree.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Staging {
    /// No plan has named any.
    None,
    /// This agent lacks some.
    Here,
    /// This agent has all of them; agents below it may lack some.
    Below,
    /// All agents of the subtree have all of them, and that was reported.
    Done,
}

/// The decisions of one agent.
///
/// [`Agent::handle`] takes each input and appends the actions that follow from it.
#[derive(Debug)]
pub struct Agent {
    here: Subtree,
    phase: Phase,
    children: Children,
    namespaces: LiteMap<NamespaceId, Namespace>,
    /// The number after that of the last namespace that was launched here. They are launched in the order of their
    /// numbers.
    launched: u32,
    forgotten: Forgotten,
    ready_reported: bool,
    /// The session's files on their way to this subtree.
    staging: Staging,
    /// The parent was lost, and this agent tries to join an ancestor.
    is_orphaned: bool,
    /// When this process last found that it had not run for the dead time.
    stopped_at: Option<Time>,
    /// The parent was lost for good.
    parent_lost: bool,
    suspended: bool,
    /// The signals that reach ranks in several ways.
    passing: Passing,
    /// A signal asked this process to end, and that was reported.
    terminated: bool,
    /// Failures that were reported one by one.
    failures: Vec<Failure>,
    /// Requests of the subtree's ranks that were passed on and not answered, if the session goes on after the loss of an
    /// agent.
    requests: LiteMap<(AgentId, NamespaceId, Rank), Up>,
    /// Deaths in namespaces whose plans have not arrived.
    early_deaths: LiteMap<NamespaceId, Ranks>,
    /// Orders for namespaces whose plans have not arrived.
    early_moves: Vec<(NamespaceId, MoveIn)>,
    /// Further failures, whose number was not reported yet.
    failures_more: u64,
    /// Processes of the subtree that had outlived their ranks.
    leftovers: u64,
    /// The low limits of the subtree.
    low_limits: LowLimits,
    /// This agent has reported that all ranks of a namespace were started.
    is_start_reported: bool,
    wake_at: Option<Time>,
    /// The order to end all ranks that is carried out.
    clearing: Option<Clearing>,
    /// The survey under way.
    survey: Option<Collecting>,
    cache: CachePolicy,
    piece_bytes: PieceBytes,
    on_failure: FailurePolicy,
    /// The session's plan has arrived.
    is_configured: bool,
    /// The session's plan, if the session goes on after the loss of an agent.
    plan: Option<Box<SessionPlan>>,
    /// The session's ranks are served by PMIx, too.
    has_pmix: bool,
    /// The session's plan asks for last reports.
    reports_stats: bool,
    /// The scope of the session's trace.
    trace_scope: Option<TraceScope>,
    /// Notes what is traced here.
    tracer: Option<Box<Tracer>>,
    /// The driver's counts, until they are reported.
    counted: Option<Box<DriverCounts>>,
    /// When the launcher sent the session's plan.
    plan_sent: Time,
    times: AgentTimes,
}

impl Agent {
    /// The agent at the head of `here`.
    pub fn new(here: Subtree) -> Self {
        Self {
            here,
            phase: Phase::Serving,
            children: Children::new(here, ChildStage::Expected),
            namespaces: LiteMap::new(),
            launched: 0,
            forgotten: Forgotten::default(),
            ready_reported: false,
            staging: Staging::None,
            is_orphaned: false,
            stopped_at: None,
            parent_lost: false,
            suspended: false,
            passing: Passing::default(),
            terminated: false,
            failures: Vec::new(),
            requests: LiteMap::new(),
            early_deaths: LiteMap::new(),
            early_moves: Vec::new(),
            failures_more: 0,
            leftovers: 0,
            low_limits: LowLimits::default(),
            is_start_reported: false,
            wake_at: None,
            clearing: None,
            survey: None,
            cache: CachePolicy::default(),
            piece_bytes: None,
            on_failure: FailurePolicy::default(),
            is_configured: false,
            plan: None,
            has_pmix: false,
            reports_stats: false,
            trace_scope: None,
            tracer: None,
            counted: None,
            plan_sent: Time::ZERO,
            times: AgentTimes::new(here.head()),
        }
    }

    /// Handles an event of the time `now` and appends the commands that follow from it to `actions`. Never fails, never
    /// blocks.
    pub fn handle(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        // There may be millions of look-ups. Unless one breaks the protocol, it changes nothing that the end of this
        // function looks at, and no deadline has passed before `wake_at`.
        let is_look_up = input.is_look_up() && self.wake_at.is_none_or(|at| now < at);
        let before = actions.len();
        let turn = &mut Turn { now, actions };
        match input {
            Input::FromParent(message) => self.on_down(message, turn),
            Input::ParentLost { why } => self.on_parent_link_lost(&why, turn),
            Input::Rejoined => self.on_rejoined_parent(turn),
            Input::NotRejoined => self.on_parent_lost(turn),
            Input::Stopped(time) => {
                if self.plan.as_ref().is_some_and(|plan| time >= plan.dead_time) {
                    self.stopped_at = Some(turn.now);
                }
            }
            Input::ChildSilent(child, time) => self.on_silent(child, time, turn),
            Input::ChildJoined(child) => self.on_child_joined(child, turn),
            Input::FromChild(child, message) => self.on_up(child, message, turn),
            Input::ChildLost(child, why) => self.on_child_lost(child, Cause::Lost { why }, turn),
            Input::ChildOutputLost(child, why) => self.on_child_output_lost(child, why, turn),
            Input::ChildFailed(child, why) => self.on_child_lost(child, Cause::NotStarted { why }, turn),
            Input::GuardianLost => self.fail(LossReason::GuardianLost, turn),
            Input::GuardianSilent => self.fail(LossReason::GuardianSilent, turn),
            Input::PmixLost(why) if self.is_serving() => self.fail(LossReason::Reported(why), turn),
            Input::PmixLost(_) => {}
            Input::Signalled(signal, way) => self.on_signal(signal, way, turn),
            Input::Started(namespace, ranks) => self.on_started(namespace, &ranks, turn),
            Input::NotStarted(namespace, ranks, why) => self.on_not_started(namespace, ranks, why, turn),
            Input::FromRank(namespace, rank, request) => self.on_request(namespace, rank, request, turn),
            Input::RankEnded(namespace, rank, exit) => self.on_rank_ended(namespace, rank, exit, turn),
            Input::LookedUp { namespace, key, requester, value } => {
                self.on_looked_up(namespace, &key, requester, value, turn);
            }
            Input::Modexed(requester, data) => self.on_modexed(requester, data, turn),
            Input::FilesLeft(report) => {
                let agent = self.id();
                turn.push(Action::ToParent(Up::FilesLeft { agent, report }));
            }
            Input::Left(left) => turn.push(Action::ToParent(Up::Left(left))),
            Input::Busy(text) => {
                let agent = self.id();
                turn.push(Action::ToParent(Up::Busy { agent, text: one_line(text) }));
            }
            Input::SecondJoiner(rank, text) => {
                let agent = self.id();
                turn.push(Action::ToParent(Up::SecondJoiner { agent, rank, text: one_line(text) }));
            }
            Input::Staged if self.staging == Staging::Here => self.staging = Staging::Below,
            Input::Staged => {}
            Input::NotStaged(why) => {
                let cause = Cause::NotStaged { why: one_line(why) };
                self.report_failure(Failure::of_agent(turn.now, self.id(), cause), turn);
            }
            Input::Bound(report) => {
                let agent = self.id();
                turn.push(Action::ToParent(Up::Bound { agent, report }));
            }
            Input::LowLimits(granted) => self.note_low_limits(LowLimits::of_agent(self.id(), &granted), turn),
            Input::NotCleared => self.fail(LossReason::NotCleared, turn),
            Input::Cleared { leftovers } => self.on_own_cleared(leftovers),
            Input::Swept { leftovers } => self.on_swept(turn.now, leftovers),
            Input::Drained { counted, spans } => self.on_drained(turn.now, counted, spans),
            Input::Inspected(number, found) => {
                if let Some(survey) = &mut self.survey {
                    survey.on_own(number, found);
                }
            }
            Input::Timeout => self.wake_at = None,
        }
        if is_look_up
            && !self.is_orphaned
            && !turn.actions[before..].iter().any(|action| matches!(action, Action::CloseChild(..)))
        {
            return;
        }
        self.on_time(turn);
        self.settle(turn);
        self.set_timer(turn);
        if self.is_orphaned {
            // All reports are repeated to the ancestor that this agent will join.
            let new = turn.actions.split_off(before);
            turn.extend(new.into_iter().filter(|action| !matches!(action, Action::ToParent(_))));
        }
    }

    /// The most that the caches of this agent have stored, all namespaces together.
    pub fn cache_peaks(&self) -> CachePeaks {
        self.forgotten.peaks(self.stored_peaks())
    }

    /// The same for the namespaces that were not forgotten.
    fn stored_peaks(&self) -> CachePeaks {
        self.namespaces.values().map(|ns| ns.exchange.cache.peaks()).fold(CachePeaks::default(), CachePeaks::plus)
    }

    /// How this agent's core answered gets. Those that the boards answered are not among them.
    pub fn gets(&self) -> GetCounts {
        self.namespaces.values().map(|ns| ns.exchange.look_ups.counts()).fold(self.forgotten.gets(), GetCounts::plus)
    }

    /// How long fences took from the subtree's last arrival to the release.
    pub fn fences(&self) -> DurationHistogram {
        let mut times = self.forgotten.fences.clone();
        self.namespaces.values().for_each(|ns| times.merge(&ns.fence_times));
        times
    }

    /// Whether agents that have lost their parent are still to join here.
    pub fn awaits_agents(&self) -> bool {
        self.children.orphan_deadline().is_some()
    }

    fn id(&self) -> AgentId {
        self.here.head()
    }

    fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// The only place where the phase changes.
    fn enter(&mut self, phase: Phase, why: &'static str) {
        tracing::debug!(agent = self.id().0, from = ?self.phase, to = ?phase, why, "the agent's phase changes");
        self.phase = phase;
    }

    // ---- messages of the parent ----

    fn on_down(&mut self, message: Down, turn: &mut Turn<'_>) {
        match message {
            Down::Session(plan) => {
                self.to_children(&Down::Session(plan.clone()), turn);
                self.cache = plan.cache;
                self.piece_bytes = plan.piece_bytes;
                self.staging = if plan.stage.is_empty() { Staging::None } else { Staging::Here };
                self.on_failure = plan.on_failure;
                self.is_configured = true;
                self.plan = self.adopts().then(|| plan.clone());
                self.has_pmix = plan.pmix.is_some();
                self.reports_stats = plan.has_last_reports();
                self.trace_scope = plan.trace;
                self.tracer = Tracer::begin(plan.trace, self.id());
                self.plan_sent = plan.sent;
                turn.push(Action::Configure(plan));
            }
            Down::Launch(plan) => self.on_launch(plan, turn),
            Down::Clear { signal, grace } => self.on_clear(signal, grace, turn),
            Down::Revive { agent, namespace, rank, incarnation } => {
                self.on_revive(agent, namespace, rank, incarnation, turn);
            }
            Down::MoveIn { agent, namespace, ranks, incarnation } => {
                let moved = MoveIn { to: agent, ranks, incarnation };
                if self.namespaces.contains_key(&namespace) {
                    self.on_move_in(namespace, moved, turn);
                } else if namespace.0 >= self.launched && self.early_moves.len() < EARLY_MOVES_MAX {
                    // The plan travels in another lane.
                    self.early_moves.push((namespace, moved));
                }
            }
            Down::EndNeighbour { agent, lost, guardian } if agent == self.id() => {
                turn.push(Action::EndNeighbour(lost, guardian));
            }
            Down::EndNeighbour { agent, .. } => self.route_order(agent, message, turn),
            Down::Undo { namespace } => self.on_undo(namespace, turn),
            Down::Forget { namespace } => self.on_forget(namespace, turn),
            Down::Piece { namespace, number, piece } => self.on_piece(namespace, number, piece, turn),
            Down::Release { namespace, number, content } => self.on_release(namespace, number, content, turn),
            Down::GroupReleased { namespace, group, payload } => {
                self.on_group_release(namespace, &group, &payload, turn);
            }
            Down::Died { namespace, ranks } => self.on_died(namespace, &ranks, turn),
            Down::Get { namespace, key } => self.on_get(namespace, ReplyTo::Parent, &key, turn),
            Down::Got { namespace, result } => self.on_got(namespace, Peer::Parent, None, result, turn),
            // A message about an agent outside the subtree would only go back up.
            Down::Inquire(inquiry) if self.here.contains(inquiry.to) => self.route_inquiry(inquiry, turn),
            Down::Reply { requester, reply } if self.here.contains(requester.agent) => {
                self.requests.remove(&(requester.agent, requester.namespace, requester.rank));
                self.route_reply(requester, reply, turn);
            }
            Down::Inquire(_) | Down::Reply { .. } => {}
            Down::Survey { number, within } => self.on_survey(number, within, turn),
            Down::Signal { signal } => {
                self.to_children(&Down::Signal { signal }, turn);
                self.on_signal(signal, SignalWay::Parent, turn);
            }
            Down::Suspend => {
                self.suspended = true;
                turn.push(Action::Suspended(true));
                self.to_children(&Down::Suspend, turn);
                self.signal_all(SIGSTOP, turn);
            }
            Down::Resume => {
                self.suspended = false;
                turn.push(Action::Suspended(false));
                self.to_children(&Down::Resume, turn);
                self.signal_all(SIGCONT, turn);
            }
            Down::End { signal, grace } => {
                self.to_children(&Down::End { signal, grace }, turn);
                self.end(signal, grace, "the launcher ends the session", turn);
            }
            Down::Leave => {
                self.to_children(&Down::Leave, turn);
                self.enter(Phase::Over, "the launcher said that the session is over");
                self.reports_stats = false;
                turn.push(Action::Leave(0));
            }
        }
    }

    fn on_launch(&mut self, plan: Box<NamespacePlan>, turn: &mut Turn<'_>) {
        if !self.is_serving() || self.adopts() && self.namespaces.contains_key(&plan.id) {
            return;
        }
        if !plan.is_consistent() || !plan.is_within(self.here) || self.namespaces.contains_key(&plan.id) {
            let cause = Cause::NotStarted { why: NotStartedReason::InvalidPlan };
            let failure = Failure { at: turn.now, agent: self.id(), namespace: plan.id, ranks: Ranks::new(), cause };
            return self.report_failure(failure, turn);
        }
        self.launched = self.launched.max(plan.id.0.saturating_add(1));
        self.early_deaths.retain(|id, _| *id >= plan.id);
        self.launch_below(&plan, turn);
        if plan.id == NamespaceId::FIRST {
            self.times.on_described(turn.now, self.plan_sent);
        } else if plan.spawner.is_none() {
            if let Some(tracer) = &mut self.tracer {
                tracer.on_restarted(self.times.phases());
            }
            self.times.on_restarted(turn.now);
        }
        let namespace = Namespace::new(
            &plan,
            self.here,
            &self.children.subtrees(),
            (self.cache, self.piece_bytes),
            self.adopts(),
            self.has_pmix,
        );
        let without_agent = namespace.without_agent(&plan, self.here);
        let mut board = namespace.exchange.cache.board();
        if self.goes_on() {
            board.set_dead(&Ranks::new());
        }
        let id = namespace.id;
        turn.push(Action::Start(plan, namespace.own.clone(), board));
        self.namespaces.insert(id, namespace);
        if let Some(dead) = self.early_deaths.remove(&id) {
            self.on_died(id, &dead, turn);
        }
        if !without_agent.is_empty() && self.goes_on() {
            self.on_dead(id, without_agent, turn);
        } else {
            self.move_out(id, &without_agent, turn);
        }
        let early: Vec<_> = self.early_moves.extract_if(.., |(of, _)| *of == id).collect();
        for (_, moved) in early {
            self.on_move_in(id, moved, turn);
        }
    }

    /// A spawn has failed elsewhere: its ranks are ended without a report.
    fn on_undo(&mut self, namespace: NamespaceId, turn: &mut Turn<'_>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.undone = true;
        turn.push(Action::Signal(namespace, ns.at(Stage::Running), SIGKILL));
        let children = ns.exchange.children.iter();
        turn.extend(children.map(|(child, _)| Action::ToChild(*child, Down::Undo { namespace })));
    }

    /// The parent was lost for good. The agent ends its ranks and leaves.
    fn on_parent_lost(&mut self, turn: &mut Turn<'_>) {
        self.is_orphaned = false;
        self.parent_lost = true;
        if self.phase == Phase::Over {
            // All was reported; the parent would have said Leave.
            turn.push(Action::Leave(CODE_PARENT_LOST));
            return;
        }
        // If the session goes on, the children join an ancestor when their links to this agent end.
        if !self.adopts() {
            self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, turn);
        }
        self.end(SIGKILL, Duration::ZERO, "the parent was lost", turn);
    }

    // ---- failures ----

    /// Reports a failure to the parent. Beyond [`FAILURES_SINGLE_MAX`] failures are only counted.
    fn report_failure(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        if self.adopts() && self.failures.contains(&failure) {
            // An agent that has joined again repeats it.
            return;
        }
        if self.failures.len() < FAILURES_SINGLE_MAX as usize {
            self.failures.push(failure.clone());
            turn.push(Action::ToParent(Up::Failed(failure)));
        } else {
            self.failures_more = self.failures_more.saturating_add(1);
        }
    }

    /// Reports this agent as lost.
    fn fail(&mut self, why: LossReason, turn: &mut Turn<'_>) {
        self.report_failure(Failure::of_agent(turn.now, self.id(), Cause::Lost { why }), turn);
        if self.adopts() && self.is_serving() {
            self.on_parent_lost(turn);
        }
    }

    /// Reports that this process shall end. The root then ends the session, and gives all ranks their grace.
    fn on_terminated(&mut self, signal: i32, turn: &mut Turn<'_>) {
        if self.is_serving() && !std::mem::replace(&mut self.terminated, true) {
            self.report_failure(Failure::of_agent(turn.now, self.id(), Cause::Terminated { signal }), turn);
        }
    }

    // ---- time ----

    fn on_time(&mut self, turn: &mut Turn<'_>) {
        if let Some(plan) = &self.plan {
            let waited = plan.adoption_time();
            self.lose_late_orphans(waited, turn);
        }
        let all = !self.is_serving();
        for (_, ns) in self.namespaces.iter_mut() {
            let all = all || ns.is_exited();
            turn.extend(ns.due_reports(turn.now, all).into_iter().map(Action::ToParent));
        }
        self.report_unjoined(turn);
        if self.failures_more > 0 && all {
            let count = std::mem::take(&mut self.failures_more);
            turn.push(Action::ToParent(Up::FailedMore { count }));
        }
        match self.phase {
            Phase::Ending { signal, kill_at: Some(at) } if turn.now >= at => {
                let after = turn.now.saturating_sub(self.times.ending.unwrap_or(turn.now));
                for ns in self.namespaces.values() {
                    let ranks = ns.at(Stage::Running);
                    if !ranks.is_empty() {
                        let killed = Killed { namespace: ns.id, ranks, signal, after };
                        turn.push(Action::ToParent(Up::Killed(killed)));
                    }
                }
                self.signal_all(SIGKILL, turn);
                self.enter(Phase::Ending { signal: SIGKILL, kill_at: None }, "the grace is over");
            }
            Phase::Lingering { until, grace, signalled: false } if turn.now >= until => {
                turn.push(Action::EndLeft);
                let until = turn.now.saturating_add(grace);
                self.enter(Phase::Lingering { until, grace, signalled: true }, "the processes that are left are late");
            }
            Phase::Lingering { until, .. } if turn.now >= until => self.sweep("the grace is over", turn),
            // No time has passed.
            _ => {}
        }
    }

    /// Reports ranks that have ended without joining PMIx while others of their node need them.
    fn report_unjoined(&mut self, turn: &mut Turn<'_>) {
        let is_serving = self.is_serving();
        let take = |(id, ns): (&NamespaceId, &mut Namespace)| Some((*id, ns.take_unjoined(turn.now, is_serving)?));
        let unjoined: Vec<_> = self.namespaces.iter_mut().filter_map(take).collect();
        for (namespace, ranks) in unjoined {
            let (at, agent, cause) = (turn.now, self.id(), Cause::Unjoined);
            self.report_failure(Failure { at, agent, namespace, ranks, cause }, turn);
        }
    }

    /// Takes the steps that are due in the new state, whichever input led to it.
    fn settle(&mut self, turn: &mut Turn<'_>) {
        self.finish_survey(turn);
        self.continue_clearing(turn);
        self.free_ended(turn);
        if !self.ready_reported && self.children.all_ready() {
            self.ready_reported = true;
            turn.push(Action::ToParent(Up::Ready));
        }
        if self.staging == Staging::Below && self.children.all_staged() {
            self.staging = Staging::Done;
            turn.push(Action::ToParent(Up::Staged));
        }
        if let Phase::Ending { signal, kill_at } = self.phase
            && self.namespaces.values().all(|ns| ns.live == 0)
        {
            match kill_at.filter(|_| signal == NO_SIGNAL) {
                Some(until) => {
                    let grace = until.saturating_sub(turn.now);
                    self.enter(Phase::Lingering { until, grace, signalled: false }, "all ranks have ended well");
                    turn.push(Action::Linger);
                }
                None => self.sweep("all ranks of this agent have ended", turn),
            }
        }
        if self.phase == Phase::Swept && self.parent_lost {
            self.enter(Phase::Over, "the parent was lost");
            turn.push(Action::Leave(CODE_PARENT_LOST));
        } else if self.phase == Phase::Swept && self.children.all_ended() {
            self.enter(Phase::Over, "all processes of the subtree have ended");
            let timing = Box::new(self.times.report());
            turn.push(Action::ToParent(Up::Ended { leftovers: self.leftovers, timing }));
        }
        self.report_stats(turn);
    }

    fn set_timer(&mut self, turn: &mut Turn<'_>) {
        let kill_at = match self.phase {
            Phase::Ending { kill_at, .. } => kill_at,
            Phase::Lingering { until, .. } => Some(until),
            Phase::Serving | Phase::Sweeping | Phase::Swept | Phase::Over => None,
        };
        let next = self.namespaces.values().filter_map(Namespace::deadline).chain(kill_at);
        let next = next.chain(self.survey.as_ref().map(Collecting::until)).chain(self.children.orphan_deadline());
        let next = next.chain(self.clearing.as_ref().and_then(Clearing::deadline)).min();
        if let Some(at) = next
            && self.wake_at.is_none_or(|before| at < before)
        {
            self.wake_at = Some(at);
            turn.push(Action::WakeAt(at));
        }
    }

    /// Panics if an invariant between two inputs is broken. The simulator calls it after each input.
    pub fn check_invariants(&self) {
        for ns in self.namespaces.values() {
            ns.check_invariants();
        }
        if matches!(self.phase, Phase::Lingering { .. } | Phase::Sweeping | Phase::Swept) && !self.parent_lost {
            assert!(self.namespaces.values().all(|ns| ns.live == 0), "swept with live ranks");
        }
    }
}

#[cfg(test)]
mod tests;
