//! The root of the tree: the launcher's decisions.
//!
//! Only the root judges. Agents report facts; the root knows when all have joined, releases
//! fences, answers what needs one answer for the whole session (names, spawns), elects the first
//! cause of a failure and ends the session.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use pmi::{Epoch, NameError, Rank, Ranks, SpawnOrder};

use super::cause::{Cause, Failure, Outcome, elect};
use super::fence::Fence;
use super::ids::{AgentId, NamespaceId, Time};
use super::limits::{END_MARGIN, FAILURES_SINGLE_MAX, GATHER_WINDOW, JOIN_TIME, LEFT_TIME, NAMES_MAX, NAMESPACES_MAX};
use super::message::{Down, Question, Reply, Up};
use super::plan::{NamespacePlan, SessionPlan};
use super::spawning::{self, Surroundings};
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

/// A step of the session, for those who follow it.
#[derive(Clone, Debug, PartialEq)]
pub enum Notice {
    /// All agents have joined; ranks are being started.
    Joined,
    /// All ranks of a namespace have been started.
    Started(NamespaceId, u32),
    /// A namespace's first rank has spoken PMI.
    Contact(NamespaceId),
    /// A fence was released.
    Released {
        /// Of which namespace.
        namespace: NamespaceId,
        /// Which one.
        number: u32,
        /// New entries on the board.
        entries: usize,
        /// Their bytes, index included.
        bytes: usize,
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
}

#[derive(Debug)]
struct Namespace {
    plan: NamespacePlan,
    fence: Fence,
    /// Child subtrees that have ranks of it; the shares that these may speak for.
    children: BTreeMap<AgentId, Ranks>,
    unstarted: usize,
    contacted: bool,
    /// Ranks that ended with 0, by the number of fences at which they had arrived.
    gone: BTreeMap<u32, Ranks>,
    gone_count: u64,
    /// Those of them that had spoken PMI and not finalized, and when the first was heard of.
    unfinished: Ranks,
    unfinished_since: Option<Time>,
    /// A fence in which somebody waits although it is not complete below.
    waiting: Option<u32>,
    /// The rank that spawned it and has not been answered yet.
    asker: Option<(AgentId, NamespaceId, Rank)>,
    undone: bool,
}

impl Namespace {
    fn is_over(&self) -> bool {
        self.undone || self.gone_count >= u64::from(self.plan.size)
    }

    /// Ranks that have ended where they should not have, and whether others wait for them in a
    /// fence.
    fn left(&self, now: Time) -> Option<(Ranks, bool)> {
        if self.is_over() {
            return None;
        }
        let missed = self.missed();
        if !missed.is_empty() {
            return Some((missed, true));
        }
        let late = self.unfinished_since.is_some_and(|since| now >= since + LEFT_TIME);
        late.then(|| (self.unfinished.clone(), false))
    }

    /// Ranks that have ended and for which others wait in the open fence.
    fn missed(&self) -> Ranks {
        let mut missed = Ranks::new();
        let open = self.fence.number();
        if self.fence.since().is_some() || self.waiting == Some(open) {
            for (_, ranks) in self.gone.range(..=open) {
                missed.union_with(ranks);
            }
        }
        missed
    }
}

#[derive(Debug)]
enum Phase {
    /// Agents are joining.
    Joining { until: Time },
    /// Ranks run.
    Running,
    /// Something failed; more failures may come in before one is elected.
    Gathering { until: Time },
    /// The session is being ended.
    Ending { outcome: Outcome, until: Time, interrupted: bool },
    /// No process is left. Their output is written out, however slowly it is read.
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
    first: Option<NamespacePlan>,
    names: BTreeMap<Vec<u8>, Vec<u8>>,
    failures: Vec<Failure>,
    failures_more: u64,
    leftovers: u64,
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
            phase: Phase::Joining { until: JOIN_TIME },
            children: tree.children().map(|child| (child.head(), Child::default())).collect(),
            namespaces: BTreeMap::new(),
            first: Some(first),
            names: BTreeMap::new(),
            failures: Vec::new(),
            failures_more: 0,
            leftovers: 0,
            output_done: false,
            wake_at: None,
        }
    }

    /// Takes what happened at `now` and appends what is to be done. Never fails, never blocks.
    pub fn handle(&mut self, now: Time, input: RootInput, actions: &mut Vec<RootAction>) {
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

    /// Whether the ranks are being ended or have ended.
    pub fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending { .. } | Phase::Flushing { .. } | Phase::Over)
    }

    fn on_up(&mut self, now: Time, from: AgentId, message: Up, actions: &mut Vec<RootAction>) {
        let Some(child) = self.children.get_mut(&from) else { return };
        match message {
            Up::Ready => child.ready = true,
            Up::Ended { leftovers } => {
                child.ended = true;
                self.leftovers += leftovers;
            }
            Up::Started { namespace } => self.on_started(namespace, actions),
            Up::Contact { namespace } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace)
                    && !std::mem::replace(&mut ns.contacted, true)
                {
                    actions.push(RootAction::Notice(Notice::Contact(namespace)));
                }
            }
            Up::Gathered { namespace, number, ranks, puts } => {
                let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
                let allowed = ns.children.get(&from).cloned().unwrap_or_default();
                let result = puts
                    .validate()
                    .map_err(Into::into)
                    .and_then(|_| ns.fence.arrive(now, number, &ranks, &allowed, &puts));
                match result {
                    Ok(()) => Self::release(ns, actions),
                    Err(error) => {
                        let why = format!("it broke the protocol: fence {number} of namespace {namespace}: {error}");
                        actions.push(RootAction::CloseChild(from, why.clone()));
                        self.on_child_lost(now, from, why, actions);
                    }
                }
            }
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
            Up::Ask { agent, namespace, rank, question } => self.on_question(agent, namespace, rank, question, actions),
        }
    }

    // ---- joining and starting ----

    fn launch(
        &mut self,
        plan: NamespacePlan,
        asker: Option<(AgentId, NamespaceId, Rank)>,
        actions: &mut Vec<RootAction>,
    ) {
        let mut children = BTreeMap::new();
        for child in self.tree.children() {
            if let Some(share) = plan.share_of(child) {
                children.insert(child.head(), share.ranks_of(child));
                actions.push(RootAction::ToChild(child.head(), Down::Launch(share)));
            }
        }
        let namespace = Namespace {
            fence: Fence::new(Ranks::range(0..plan.size)),
            unstarted: children.len(),
            children,
            contacted: false,
            gone: BTreeMap::new(),
            gone_count: 0,
            unfinished: Ranks::new(),
            unfinished_since: None,
            waiting: None,
            asker,
            undone: false,
            plan,
        };
        self.namespaces.insert(namespace.plan.id, namespace);
    }

    fn on_started(&mut self, namespace: NamespaceId, actions: &mut Vec<RootAction>) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        ns.unstarted = ns.unstarted.saturating_sub(1);
        if ns.unstarted > 0 || ns.undone {
            return;
        }
        actions.push(RootAction::Notice(Notice::Started(namespace, ns.plan.size)));
        if let Some(asker) = ns.asker.take() {
            let size = ns.plan.size;
            self.reply(asker, Reply::Spawned(Ok(size)), actions);
        }
    }

    fn on_agent_failed(&mut self, now: Time, agent: AgentId, why: String, actions: &mut Vec<RootAction>) {
        if let Phase::Joining { .. } = self.phase {
            self.note_not_started(now, agent, why, actions);
        }
    }

    fn note_not_started(&mut self, now: Time, agent: AgentId, why: String, actions: &mut Vec<RootAction>) {
        let (namespace, cause) = (NamespaceId::FIRST, Cause::NotStarted { why });
        self.on_failure(now, Failure { at: now, agent, namespace, ranks: Ranks::new(), cause }, actions);
    }

    // ---- fences ----

    fn release(ns: &mut Namespace, actions: &mut Vec<RootAction>) {
        if !ns.fence.is_complete() {
            return;
        }
        let (namespace, number) = (ns.plan.id, ns.fence.number());
        // The puts were validated when they came in, so merging them cannot fail.
        let epoch = Epoch::merge(&ns.fence.take_puts()).unwrap_or_else(|_| Epoch::from_entries([]));
        let bytes = if epoch.is_empty() { Bytes::new() } else { epoch.bytes().clone() };
        for child in ns.children.keys() {
            actions.push(RootAction::ToChild(*child, Down::Release { namespace, number, epoch: bytes.clone() }));
        }
        actions.push(RootAction::Notice(Notice::Released {
            namespace,
            number,
            entries: epoch.len(),
            bytes: bytes.len(),
        }));
        ns.fence.release(number);
    }

    // ---- questions ----

    fn on_question(
        &mut self,
        agent: AgentId,
        namespace: NamespaceId,
        rank: Rank,
        question: Question,
        actions: &mut Vec<RootAction>,
    ) {
        let asker = (agent, namespace, rank);
        let reply = match question {
            Question::Publish { service, port } => Reply::Published(if self.names.contains_key(&service) {
                Err(NameError::Taken)
            } else if self.names.len() >= NAMES_MAX {
                Err(NameError::Full)
            } else {
                self.names.insert(service, port);
                Ok(())
            }),
            Question::Lookup { service } => Reply::Found(self.names.get(&service).cloned().ok_or(NameError::Unknown)),
            Question::Unpublish { service } => {
                Reply::Unpublished(self.names.remove(&service).map(drop).ok_or(NameError::Unknown))
            }
            Question::Spawn(order) => match self.spawn(asker, order, actions) {
                Ok(()) => return,
                Err(why) => Reply::Spawned(Err(why)),
            },
        };
        self.reply(asker, reply, actions);
    }

    fn spawn(
        &mut self,
        asker: (AgentId, NamespaceId, Rank),
        order: SpawnOrder,
        actions: &mut Vec<RootAction>,
    ) -> Result<(), String> {
        if !matches!(self.phase, Phase::Running) {
            return Err("the_session_is_ending".to_owned());
        }
        order.check().map_err(|error| error.to_string())?;
        let next = self.namespaces.last_key_value().map_or(0, |(id, _)| id.0 + 1);
        if next >= NAMESPACES_MAX {
            return Err("too_many_namespaces".to_owned());
        }
        let parent = &self.namespaces.get(&asker.1).ok_or("unknown_namespace")?.plan;
        let (_, command) = parent.command_of(asker.2).ok_or("unknown_rank")?;
        let plan = spawning::plan(NamespaceId(next), order, &Surroundings { parent, command, nodes: &self.nodes })?;
        self.launch(plan, Some(asker), actions);
        Ok(())
    }

    fn reply(
        &self,
        (agent, namespace, rank): (AgentId, NamespaceId, Rank),
        reply: Reply,
        actions: &mut Vec<RootAction>,
    ) {
        if let Some(child) = self.tree.toward(agent) {
            actions.push(RootAction::ToChild(child.head(), Down::Reply { agent, namespace, rank, reply }));
        }
    }

    // ---- failures and the end ----

    fn on_failure(&mut self, now: Time, failure: Failure, actions: &mut Vec<RootAction>) {
        if let Cause::NotStarted { why } = &failure.cause
            && let Some(ns) = self.namespaces.get_mut(&failure.namespace)
            && ns.plan.spawned
        {
            // A spawn that fails concerns only who asked for it.
            if !std::mem::replace(&mut ns.undone, true) {
                let why = why.clone();
                let asker = ns.asker.take();
                let namespace = failure.namespace;
                for child in ns.children.keys() {
                    actions.push(RootAction::ToChild(*child, Down::Undo { namespace }));
                }
                if let Some(asker) = asker {
                    self.reply(asker, Reply::Spawned(Err(why)), actions);
                }
            }
            return;
        }
        if self.namespaces.get(&failure.namespace).is_some_and(|ns| ns.undone) {
            return;
        }
        actions.push(RootAction::Notice(Notice::Failure(failure.clone())));
        if self.failures.len() < FAILURES_SINGLE_MAX as usize {
            self.failures.push(failure);
        } else {
            self.failures_more = self.failures_more.saturating_add(1);
        }
        if matches!(self.phase, Phase::Joining { .. } | Phase::Running) {
            self.phase = Phase::Gathering { until: now + GATHER_WINDOW };
        }
    }

    fn on_child_lost(&mut self, now: Time, child: AgentId, why: String, actions: &mut Vec<RootAction>) {
        let Some(state) = self.children.get_mut(&child) else { return };
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        let failure = Failure {
            at: now,
            agent: child,
            namespace: NamespaceId::FIRST,
            ranks: Ranks::new(),
            cause: Cause::Lost { why },
        };
        self.on_failure(now, failure, actions);
    }

    fn on_interrupt(&mut self, now: Time, signal: i32, actions: &mut Vec<RootAction>) {
        if let Phase::Flushing { .. } = self.phase {
            // Only output is left, and the user does not want it.
            self.over(Outcome::Interrupted { signal }, actions);
            return;
        }
        if let Phase::Ending { until, interrupted, .. } = &mut self.phase {
            // Asked twice, or asked while the end is under way already: no more patience.
            if *interrupted {
                *until = now + END_MARGIN;
                self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, actions);
            }
            if let Phase::Ending { interrupted, .. } = &mut self.phase {
                *interrupted = true;
            }
            return;
        }
        // Before the launch, agents that failed may just have heard the same Ctrl-C.
        let outcome = if self.failures.is_empty() || self.first.is_some() {
            Outcome::Interrupted { signal }
        } else {
            self.elected()
        };
        self.end(now, outcome, signal, actions);
        if let Phase::Ending { interrupted, .. } = &mut self.phase {
            *interrupted = true;
        }
    }

    fn end(&mut self, now: Time, outcome: Outcome, signal: i32, actions: &mut Vec<RootAction>) {
        if self.is_ending() {
            return;
        }
        let joining = self.first.is_some();
        let grace = self.session.kill_grace;
        if outcome != Outcome::Success {
            actions.push(RootAction::Notice(Notice::Ending(signal, grace)));
        }
        if joining {
            // No rank was started: whoever has joined leaves when its link closes.
            self.over(outcome, actions);
            return;
        }
        self.to_children(&Down::End { signal, grace }, actions);
        self.phase = Phase::Ending { outcome, until: now + grace + END_MARGIN, interrupted: false };
    }

    /// Nobody has what the ranks wrote: the session ends, and if it is ending well, it is not well.
    fn lose_output(&mut self, now: Time, lost: Outcome, actions: &mut Vec<RootAction>) {
        match &mut self.phase {
            Phase::Ending { outcome, .. } | Phase::Flushing { outcome } if *outcome == Outcome::Success => {
                *outcome = lost
            }
            _ => self.end(now, lost, SIGTERM, actions),
        }
    }

    fn over(&mut self, outcome: Outcome, actions: &mut Vec<RootAction>) {
        self.to_children(&Down::Leave, actions);
        if self.leftovers > 0 {
            actions.push(RootAction::Notice(Notice::Leftovers(self.leftovers)));
        }
        self.phase = Phase::Over;
        actions.push(RootAction::Over(outcome));
    }

    fn to_children(&self, message: &Down, actions: &mut Vec<RootAction>) {
        actions.extend(self.children.keys().map(|child| RootAction::ToChild(*child, message.clone())));
    }

    fn elected(&self) -> Outcome {
        match elect(&self.failures) {
            Some(first) => {
                Outcome::Failed { first: first.clone(), others: self.failures.len() as u64 - 1 + self.failures_more }
            }
            None => Outcome::Success,
        }
    }

    fn on_time(&mut self, now: Time, actions: &mut Vec<RootAction>) {
        match &self.phase {
            Phase::Gathering { until } if now >= *until => {
                let outcome = self.elected();
                self.end(now, outcome, SIGTERM, actions);
            }
            Phase::Joining { until } if now >= *until => {
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
            self.to_children(&Down::Session(self.session.clone()), actions);
            actions.push(RootAction::Notice(Notice::Joined));
            self.launch(plan, None, actions);
        }
        if matches!(self.phase, Phase::Running) {
            let left: Vec<_> =
                self.namespaces.values().filter_map(|ns| ns.left(now).map(|left| (ns.plan.id, left))).collect();
            for (namespace, (ranks, in_fence)) in left {
                let agent = self.agent_of(namespace, ranks.first());
                let cause = Cause::Left { in_fence };
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
        {
            let outcome = outcome.clone();
            self.over(outcome, actions);
        }
    }

    fn agent_of(&self, namespace: NamespaceId, rank: Option<Rank>) -> AgentId {
        let placement = self.namespaces.get(&namespace).map(|ns| ns.plan.placement.as_slice()).unwrap_or_default();
        let holds = |ranks: &Ranks| rank.is_some_and(|rank| ranks.contains(rank));
        placement.iter().find(|(_, ranks)| holds(ranks)).map_or(AgentId::ROOT, |(agent, _)| *agent)
    }

    fn set_timer(&mut self, actions: &mut Vec<RootAction>) {
        let next = match &self.phase {
            Phase::Joining { until } | Phase::Gathering { until } | Phase::Ending { until, .. } => *until,
            Phase::Running => {
                let unfinished =
                    self.namespaces.values().filter(|ns| !ns.is_over()).filter_map(|ns| ns.unfinished_since);
                match unfinished.min() {
                    Some(since) => since + LEFT_TIME,
                    None => return,
                }
            }
            Phase::Flushing { .. } | Phase::Over => return,
        };
        if self.wake_at.is_none_or(|before| next < before) {
            self.wake_at = Some(next);
            actions.push(RootAction::WakeAt(next));
        }
    }
}

#[cfg(test)]
#[path = "root_tests.rs"]
mod tests;
