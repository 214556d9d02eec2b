//! The agent: one place in the tree, between its parent, its children and its own ranks.
//!
//! An `Agent` belongs to one session. It decides nothing that concerns others: it starts what it
//! is told to start, serves its ranks, merges what goes up, passes on what goes down, and reports
//! facts. Only when it has lost its parent does it act by itself: it kills its ranks and leaves, so
//! that no cut of the network leaves a process behind.

mod ending;
mod fences;
mod gets;
mod inquiries;
mod ranks;
mod stats;

use std::collections::BTreeMap;
use std::time::Duration;

use pmi::{Answer, Board, Epoch, Rank, Ranks, Request};
use serde::{Deserialize, Serialize, Serializer};

use super::cache::CachePolicy;
use super::cause::{Cause, Exit, Failure, bounded};
use super::ids::{AgentId, NamespaceId, Time};
use super::lookup::{Peer, ReplyTo};
use super::message::{Down, Requester, Up};
use super::namespace::{Namespace, Stage};
use super::plan::{NamespacePlan, SessionPlan};
use super::stats::{DriverCounts, Stats};
use super::timing::AgentTimes;
use super::topology::Subtree;

/// Signal numbers that the core speaks of; the same on all Linux machines.
const SIGKILL: i32 = 9;
const SIGCONT: i32 = 18;
const SIGSTOP: i32 = 19;

/// What has happened. It can be encoded for recordings, not for peers.
#[derive(Debug, Serialize, Deserialize)]
pub enum Input {
    /// A message from the parent.
    FromParent(Down),
    /// The link to the parent is gone.
    ParentLost {
        /// How that was noticed.
        why: String,
    },
    /// A child has proved who it is, and its link is up.
    ChildJoined(AgentId),
    /// A message from a child.
    FromChild(AgentId, Up),
    /// The link to a child is gone.
    ChildLost(AgentId, String),
    /// A child that this agent has started did not come into the tree.
    ChildFailed(AgentId, String),
    /// The guardian is gone.
    GuardianLost,
    /// Ranks were started.
    Started(NamespaceId, Ranks),
    /// Ranks could not be started, or were not because [`Action::CancelStarts`] came first.
    NotStarted(NamespaceId, Ranks, String),
    /// A rank asks something.
    FromRank(NamespaceId, Rank, Request),
    /// A rank's process has ended, and all that it asked before has been handed in.
    RankEnded(NamespaceId, Rank, Exit),
    /// [`Action::LookUp`] is done.
    LookedUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Vec<u8>,
        /// Who asked.
        requester: Requester,
        /// What the board has.
        value: Option<Vec<u8>>,
    },
    /// [`Action::Sweep`] is done: no descendant is left. Output may still be on its way.
    Swept {
        /// Processes that had outlived their ranks.
        leftovers: u64,
    },
    /// All output of the subtree has been written to the parent's link, its end too. On no link
    /// anything follows but last words.
    Drained {
        /// What the driver has counted up to here.
        counted: Box<DriverCounts>,
    },
    /// The time of the last [`Action::WakeAt`] has come. Harmless when it is stale.
    Timeout,
}

impl Input {
    /// Whether it asks for an entry of the board, or brings one.
    fn is_question(&self) -> bool {
        matches!(
            self,
            Self::FromChild(_, Up::Get { .. } | Up::Got { .. })
                | Self::FromParent(Down::Get { .. } | Down::Got { .. })
                | Self::FromRank(_, _, Request::Get { .. })
        )
    }
}

/// What is to be done. It can be encoded for recordings, not for peers.
#[derive(Debug, PartialEq, Serialize)]
pub enum Action {
    /// Send to the parent.
    ToParent(Up),
    /// Send to a child.
    ToChild(AgentId, Down),
    /// Close the link to a child that broke the rules; [`Input::ChildLost`] need not follow.
    CloseChild(AgentId, String),
    /// Keep this: later starts need it.
    Configure(Box<SessionPlan>),
    /// Start these of the agent's own ranks, maybe none; standard input goes to where the plan
    /// says. The board is what they see at first.
    Start(Box<NamespacePlan>, Ranks, #[serde(serialize_with = "wholeness")] Board),
    /// Forget what was to be started and has not been.
    CancelStarts,
    /// Make an epoch's entries visible to the namespace's ranks here.
    Publish(NamespaceId, Epoch),
    /// Answer these ranks [`Answer::Released`].
    Release(NamespaceId, Ranks),
    /// Answer a rank.
    Answer(NamespaceId, Rank, Answer),
    /// Look up an entry on the namespace's board here, and hand in [`Input::LookedUp`].
    LookUp {
        /// The namespace.
        namespace: NamespaceId,
        /// The key.
        key: Vec<u8>,
        /// Who asked; for the input.
        requester: Requester,
    },
    /// Send a signal to the process groups of these ranks.
    Signal(NamespaceId, Ranks, i32),
    /// While suspended, silence of the parent is no sign of loss.
    Suspended(bool),
    /// Kill all descendants that are left, and hand in [`Input::Swept`]. When their output has been
    /// read to its end, and that of the children too, the parent is told so on the lanes that carry
    /// it; then hand in [`Input::Drained`].
    Sweep,
    /// Hand in [`Input::Timeout`] at this time. A later one replaces it.
    WakeAt(Time),
    /// The end: close everything and leave with this code. Of several the first counts.
    Leave(u8),
}

/// All there is to be said of a board that is empty yet.
fn wholeness<S: Serializer>(board: &Board, serializer: S) -> Result<S::Ok, S::Error> {
    board.is_whole().serialize(serializer)
}

#[derive(Debug, Default)]
struct Child {
    joined: bool,
    ready: bool,
    ended: bool,
    leftovers: u64,
    /// Nothing more comes from it.
    gone: bool,
    stats: Option<Box<Stats>>,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// Agents join, ranks are started and served.
    Serving,
    /// The ranks are being ended; KILL follows at the time.
    Ending { kill_at: Option<Time> },
    /// Own ranks are all gone; what they left behind is being swept up.
    Sweeping,
    /// Nothing of our own is left.
    Swept,
    /// `Ended` was sent, or there is no one to send it to.
    Over,
}

/// See the module.
#[derive(Debug)]
pub struct Agent {
    here: Subtree,
    phase: Phase,
    children: BTreeMap<AgentId, Child>,
    namespaces: BTreeMap<NamespaceId, Namespace>,
    ready_told: bool,
    parent_lost: bool,
    suspended: bool,
    failures_told: u32,
    failures_more: u64,
    leftovers: u64,
    wake_at: Option<Time>,
    cache: CachePolicy,
    /// The parent is to be told what was counted.
    tells_stats: bool,
    counted: Option<Box<DriverCounts>>,
    /// When the launcher sent what is the same for all.
    sent: Time,
    times: AgentTimes,
}

impl Agent {
    /// The agent at the head of `here`.
    pub fn new(here: Subtree) -> Self {
        Self {
            here,
            phase: Phase::Serving,
            children: here.children().map(|child| (child.head(), Child::default())).collect(),
            namespaces: BTreeMap::new(),
            ready_told: false,
            parent_lost: false,
            suspended: false,
            failures_told: 0,
            failures_more: 0,
            leftovers: 0,
            wake_at: None,
            cache: CachePolicy::default(),
            tells_stats: false,
            counted: None,
            sent: Time::ZERO,
            times: AgentTimes::of(here.head()),
        }
    }

    /// Takes what happened at `now` and appends what is to be done to `actions`. Never fails,
    /// never blocks.
    pub fn handle(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        // There may be millions of questions: unless one breaks the rules, it changes nothing that has to
        // be looked after, and before its time nothing else does.
        let is_question = input.is_question() && self.wake_at.is_none_or(|at| now < at);
        let before = actions.len();
        match input {
            Input::FromParent(message) => self.on_down(now, message, actions),
            Input::ParentLost { .. } => self.on_parent_lost(now, actions),
            Input::ChildJoined(child) => {
                if let Some(child) = self.children.get_mut(&child) {
                    child.joined = true;
                }
            }
            Input::FromChild(child, message) => self.on_up(now, child, message, actions),
            Input::ChildLost(child, why) => self.on_child_lost(now, child, why, actions),
            Input::ChildFailed(child, why) => {
                self.on_child_gone(now, child, Cause::NotStarted { why: bounded(why) }, actions);
            }
            Input::GuardianLost => {
                // Without its guardian nothing would clean up after this agent.
                let why = "its guardian process is gone; was it killed?".to_owned();
                self.fail(
                    Failure {
                        at: now,
                        agent: self.id(),
                        namespace: NamespaceId::FIRST,
                        ranks: Ranks::new(),
                        cause: Cause::Lost { why },
                    },
                    actions,
                );
            }
            Input::Started(namespace, ranks) => self.on_started(now, namespace, &ranks, actions),
            Input::NotStarted(namespace, ranks, why) => self.on_not_started(now, namespace, ranks, why, actions),
            Input::FromRank(namespace, rank, request) => self.on_request(now, namespace, rank, request, actions),
            Input::RankEnded(namespace, rank, exit) => self.on_rank_ended(now, namespace, rank, exit, actions),
            Input::LookedUp { namespace, key, requester, value } => {
                self.on_looked_up(namespace, &key, requester, value, actions);
            }
            Input::Swept { leftovers } => {
                if self.phase == Phase::Sweeping {
                    self.phase = Phase::Swept;
                    self.leftovers = leftovers;
                    self.times.on_swept(now);
                }
            }
            Input::Drained { counted } => self.counted = Some(counted),
            Input::Timeout => self.wake_at = None,
        }
        if is_question && !actions[before..].iter().any(|action| matches!(action, Action::CloseChild(..))) {
            return;
        }
        self.on_time(now, actions);
        self.settle(actions);
        self.set_timer(actions);
    }

    fn id(&self) -> AgentId {
        self.here.head()
    }

    fn is_serving(&self) -> bool {
        self.phase == Phase::Serving
    }

    // ---- from above ----

    fn on_down(&mut self, now: Time, message: Down, actions: &mut Vec<Action>) {
        match message {
            Down::Session(plan) => {
                self.to_children(&Down::Session(plan.clone()), actions);
                self.cache = plan.cache;
                self.tells_stats = plan.stats;
                self.sent = plan.sent;
                actions.push(Action::Configure(plan));
            }
            Down::Launch(plan) => self.on_launch(now, plan, actions),
            Down::Undo { namespace } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.undone = true;
                    actions.push(Action::Signal(namespace, ns.at(Stage::Running), SIGKILL));
                    let children: Vec<_> = ns.children.keys().copied().collect();
                    actions.extend(children.into_iter().map(|child| Action::ToChild(child, Down::Undo { namespace })));
                }
            }
            Down::Release { namespace, number, content } => self.on_release(now, namespace, number, content, actions),
            Down::Get { namespace, key } => self.on_get(namespace, ReplyTo::Parent, &key, actions),
            Down::Got { namespace, result } => self.on_got(namespace, Peer::Parent, None, result, actions),
            Down::Inquire(inquiry) => self.on_inquiry_from_above(inquiry, actions),
            Down::Reply { requester, reply } => self.on_reply_from_above(requester, reply, actions),
            Down::Signal { signal } => {
                self.to_children(&Down::Signal { signal }, actions);
                self.signal_all(signal, actions);
            }
            Down::Suspend => {
                self.suspended = true;
                actions.push(Action::Suspended(true));
                self.to_children(&Down::Suspend, actions);
                self.signal_all(SIGSTOP, actions);
            }
            Down::Resume => {
                self.suspended = false;
                actions.push(Action::Suspended(false));
                self.to_children(&Down::Resume, actions);
                self.signal_all(SIGCONT, actions);
            }
            Down::End { signal, grace } => {
                self.to_children(&Down::End { signal, grace }, actions);
                self.end(now, signal, grace, actions);
            }
            Down::Leave => {
                self.to_children(&Down::Leave, actions);
                self.phase = Phase::Over;
                self.tells_stats = false;
                actions.push(Action::Leave(0));
            }
        }
    }

    fn on_launch(&mut self, now: Time, plan: Box<NamespacePlan>, actions: &mut Vec<Action>) {
        if !self.is_serving() {
            return;
        }
        if !plan.is_consistent() || !plan.is_within(self.here) || self.namespaces.contains_key(&plan.id) {
            let cause = Cause::NotStarted { why: "its plan contradicts itself; that is a bug of ScELA".to_owned() };
            let failure = Failure { at: now, agent: self.id(), namespace: plan.id, ranks: Ranks::new(), cause };
            return self.fail(failure, actions);
        }
        for child in self.here.children() {
            if let Some(share) = plan.share_of(child) {
                actions.push(Action::ToChild(child.head(), Down::Launch(Box::new(share))));
            }
        }
        if plan.id == NamespaceId::FIRST {
            self.times.on_described(now, self.sent);
        }
        let namespace = Namespace::new(&plan, self.here, self.cache);
        actions.push(Action::Start(plan, namespace.own().clone(), namespace.cache.board()));
        self.namespaces.insert(namespace.id, namespace);
    }

    fn on_parent_lost(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.parent_lost = true;
        if self.phase == Phase::Over {
            // All is told and done; who would have said Leave is gone.
            actions.push(Action::Leave(252));
            return;
        }
        self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, actions);
        self.end(now, SIGKILL, Duration::ZERO, actions);
    }

    // ---- from below ----

    fn on_up(&mut self, now: Time, from: AgentId, message: Up, actions: &mut Vec<Action>) {
        let Some(child) = self.children.get_mut(&from) else { return };
        match message {
            Up::Ready => child.ready = true,
            Up::Ended { leftovers, timing } => self.on_ended(now, from, leftovers, &timing, actions),
            Up::Started { namespace } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace)
                    && ns.on_part_started()
                {
                    actions.push(Action::ToParent(Up::Started { namespace }));
                }
            }
            Up::Contact { namespace } => {
                if self.namespaces.get_mut(&namespace).is_some_and(Namespace::on_contact) {
                    actions.push(Action::ToParent(Up::Contact { namespace }));
                }
            }
            Up::Gathered { namespace, number, ranks, contribution } => {
                self.on_gathered(now, from, (namespace, number), ranks, contribution, actions);
            }
            Up::Put { namespace, number, puts } => self.on_put_below(now, from, (namespace, number), puts, actions),
            Up::Get { namespace, key } => self.on_get_below(now, from, namespace, &key, actions),
            Up::Got { namespace, number, result } => {
                self.on_got(namespace, Peer::Child(from), Some(number), result, actions);
            }
            Up::Waiting { namespace, number } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    actions.extend(ns.tell_waiting(number).map(Action::ToParent));
                }
            }
            Up::Exited { namespace, fences, unfinished, ranks } => {
                if let Some(ns) = self.namespaces.get_mut(&namespace) {
                    ns.note_exit(now, fences, unfinished, &ranks);
                }
            }
            Up::Failed(failure) => self.fail(failure, actions),
            Up::FailedMore { count } => self.failures_more = self.failures_more.saturating_add(count),
            message @ Up::Ask { .. } => actions.push(Action::ToParent(message)),
            Up::Inquire(inquiry) => self.on_inquiry_from_below(now, from, inquiry, actions),
            Up::Reply { requester, reply } => self.on_reply_from_below(now, from, requester, reply, actions),
            Up::Stats(stats) => self.on_stats(now, from, stats, actions),
        }
    }

    /// A child broke the rules: its link is closed, and with that it is lost.
    fn cut_off(&mut self, now: Time, child: AgentId, why: String, actions: &mut Vec<Action>) {
        let why = format!("it broke the protocol: {why}");
        actions.push(Action::CloseChild(child, why.clone()));
        self.on_child_lost(now, child, why, actions);
    }

    fn on_child_lost(&mut self, now: Time, child: AgentId, why: String, actions: &mut Vec<Action>) {
        self.on_child_gone(now, child, Cause::Lost { why: bounded(why) }, actions);
    }

    /// Nothing more comes from a child.
    fn on_child_gone(&mut self, now: Time, child: AgentId, cause: Cause, actions: &mut Vec<Action>) {
        let Some(state) = self.children.get_mut(&child) else { return };
        state.gone = true;
        if std::mem::replace(&mut state.ended, true) {
            return;
        }
        self.fail(
            Failure { at: now, agent: child, namespace: NamespaceId::FIRST, ranks: Ranks::new(), cause },
            actions,
        );
    }

    fn to_children(&self, message: &Down, actions: &mut Vec<Action>) {
        let present = self.children.iter().filter(|(_, child)| child.joined);
        actions.extend(present.map(|(id, _)| Action::ToChild(*id, message.clone())));
    }

    fn on_time(&mut self, now: Time, actions: &mut Vec<Action>) {
        let all = !self.is_serving();
        for ns in self.namespaces.values_mut() {
            let all = all || ns.is_exited();
            actions.extend(ns.due(now, all).into_iter().map(Action::ToParent));
        }
        if self.failures_more > 0 && all {
            let count = std::mem::take(&mut self.failures_more);
            actions.push(Action::ToParent(Up::FailedMore { count }));
        }
        if let Phase::Ending { kill_at: Some(at) } = self.phase
            && now >= at
        {
            self.signal_all(SIGKILL, actions);
            self.phase = Phase::Ending { kill_at: None };
        }
    }

    fn settle(&mut self, actions: &mut Vec<Action>) {
        if !self.ready_told && self.children.values().all(|child| child.ready) {
            self.ready_told = true;
            actions.push(Action::ToParent(Up::Ready));
        }
        if matches!(self.phase, Phase::Ending { .. }) && self.namespaces.values().all(|ns| ns.live() == 0) {
            self.phase = Phase::Sweeping;
            actions.push(Action::Sweep);
        }
        let children_over = self.children.values().all(|child| child.ended || !child.joined);
        if self.phase == Phase::Swept && (self.parent_lost || children_over) {
            self.phase = Phase::Over;
            if self.parent_lost {
                actions.push(Action::Leave(252));
            } else {
                let leftovers = self.leftovers + self.children.values().map(|child| child.leftovers).sum::<u64>();
                actions.push(Action::ToParent(Up::Ended { leftovers, timing: Box::new(self.times.told()) }));
            }
        }
        self.tell_stats(actions);
    }

    fn set_timer(&mut self, actions: &mut Vec<Action>) {
        let kill_at = match self.phase {
            Phase::Ending { kill_at } => kill_at,
            _ => None,
        };
        let next = self.namespaces.values().filter_map(Namespace::deadline).chain(kill_at).min();
        if let Some(at) = next
            && self.wake_at.is_none_or(|before| at < before)
        {
            self.wake_at = Some(at);
            actions.push(Action::WakeAt(at));
        }
    }

    /// What must hold between two inputs; the simulator calls it after each.
    pub fn check_invariants(&self) {
        for ns in self.namespaces.values() {
            ns.check_invariants();
        }
        if matches!(self.phase, Phase::Sweeping | Phase::Swept | Phase::Over) && !self.parent_lost {
            assert!(
                self.namespaces.values().all(|ns| ns.live() == 0) || self.phase == Phase::Over,
                "swept with ranks alive"
            );
        }
    }
}

#[cfg(test)]
mod tests;
