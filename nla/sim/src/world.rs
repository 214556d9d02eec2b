//! The world: the root, its agents, their ranks, and virtual time.
//!
//! Every event happens at one place. The place's processor handles one event after another. Handling an
//! event costs time, and its results, mostly messages, are later events. The cores are the real ones: this module
//! gives them the inputs that the drivers would give them, and carries out their actions as the drivers do.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use nla::core::{
    Action, Agent, AgentId, CachePolicy, DriverCounts, FailurePolicy, Input, LossReason, NamespaceId, NotStartedReason,
    Outcome, PieceBytes, Root, RootAction, RootInput, Subtree,
};
use pmi::{Board, Rank, Ranks};

use crate::casualties::Casualties;
use crate::costs::Costs;
use crate::events::{EventKind, Queue, Slab};
use crate::faults::{Faults, Mutation};
use crate::links::{InFlight, Link};
use crate::oracle::{ExpectedEnd, Oracle, Violation};
use crate::processors::Processors;
use crate::program::Program;
use crate::random::Random;
use crate::ranks::LocalRanks;
use crate::rejoining::Search;
use crate::report::Counts;

/// The namespace of all ranks.
pub(crate) const NS: NamespaceId = NamespaceId::FIRST;
/// The wake-up time of a place without a timer.
pub(crate) const NEVER: u64 = u64::MAX;

/// The parameters of a run.
pub(crate) struct Setup {
    pub(crate) agents: u32,
    pub(crate) fanout: u32,
    /// The ranks of each agent, in the order of the agents.
    pub(crate) placement: Vec<(AgentId, Ranks)>,
    pub(crate) cache: CachePolicy,
    pub(crate) on_failure: FailurePolicy,
    /// The dead time of links.
    pub(crate) dead_time: Duration,
    pub(crate) program: Rc<Program>,
    pub(crate) costs: Costs,
    /// The length of the pieces of long epochs.
    pub(crate) piece_bytes: PieceBytes,
    /// Pieces travel packed, where that makes them shorter.
    pub(crate) packs: bool,
    /// Ranks read a whole board themselves, in the shared segment.
    pub(crate) segment: bool,
    /// The number of cores that all places share. If `None`, each place has one of its own.
    pub(crate) cores: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// Ranks that ignore SIGTERM.
    pub(crate) ignoring_term: Ranks,
    pub(crate) mutation: Option<Mutation>,
    /// Agents report their statistics at the end.
    pub(crate) stats: bool,
    /// Check invariants after each step, encode and decode each message, and compare the answer to each get with the
    /// expected value.
    pub(crate) checked: bool,
}

/// The state of an agent's process.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It has not yet joined its parent.
    Absent,
    /// It is part of the tree.
    Joined,
    /// It left at the end of the session, or the launcher ordered it to exit.
    Left,
    /// Its process was killed.
    Crashed,
}

/// A place in the tree: the root (number 0) or an agent.
pub(crate) struct Member {
    /// `None` for the root, and for an agent that has left or crashed.
    pub(crate) core: Option<Agent>,
    pub(crate) state: State,
    pub(crate) depth: u32,
    /// All agents that were ever children.
    pub(crate) children: Vec<u32>,
    /// When the network interface has sent the last control message, and the last message of any lane.
    pub(crate) nic: [u64; 2],
    /// When the core's timer expires, or [`NEVER`].
    pub(crate) wake: u64,
    /// The number of the link to the parent.
    pub(crate) link: u32,
    /// The number of output streams that have not ended: one per child, and the place's own.
    pub(crate) streams_open: u32,
    pub(crate) ranks: LocalRanks,
    pub(crate) board: Option<Board>,
    /// The ancestor for which the agent looks, if it has lost its parent.
    pub(crate) search: Option<Search>,
    /// Subtrees whose agents may join here although they are no children in the tree.
    pub(crate) orphans: Vec<Subtree>,
    /// The agents of these subtrees that have joined.
    pub(crate) adopted: BTreeSet<u32>,
    /// Until when no other place can be reached.
    pub(crate) cut_until: u64,
    /// The agent has the session's plan.
    pub(crate) is_configured: bool,
    /// The end of the subtree's output was reported.
    pub(crate) has_output_ended: bool,
    /// When the agent learned that it had lost its parent for good.
    pub(crate) parent_lost_at: Option<u64>,
    /// The number of fence messages sent up since the last release.
    pub(crate) fence_messages_up: u32,
    /// The statistics that the driver would count.
    pub(crate) driver_counts: DriverCounts,
}

/// See the module's documentation.
pub(crate) struct World {
    pub(crate) setup: Setup,
    pub(crate) tree: Subtree,
    /// The number of times the operation that the mutation changes was done correctly.
    pub(crate) mutation_passed: u32,
    pub(crate) random: Random,
    pub(crate) queue: Queue,
    pub(crate) messages: Slab<InFlight>,
    pub(crate) members: Vec<Member>,
    /// All links that ever were. Those of the tree have the numbers of the children.
    pub(crate) links: Vec<Link>,
    pub(crate) processors: Processors,
    pub(crate) root: Root,
    pub(crate) outcome: Option<(u64, Outcome)>,
    pub(crate) expected_end: ExpectedEnd,
    /// The agent whose rank has made it so.
    pub(crate) expected_by: Option<usize>,
    pub(crate) casualties: Casualties,
    /// The root knows that all ranks have ended.
    pub(crate) ranks_ended: bool,
    pub(crate) oracle: Oracle,
    pub(crate) counts: Counts,
    /// The place and rank whose get is being handed to the core.
    pub(crate) pending_get: Option<(usize, Rank)>,
    /// The answer to that get, if the core answered at once.
    pub(crate) immediate_answer: Option<Option<Bytes>>,
    /// Buffers for actions: handling an action can hand another input to a core.
    actions: Vec<Vec<Action>>,
    root_actions: Vec<RootAction>,
}

/// The bound on events of a checked run. A run with more of them is in an endless loop.
const EVENTS_MAX_CHECKED: u64 = 20_000_000;

impl World {
    /// Creates a world in which all agents are about to be started.
    pub(crate) fn new(setup: Setup) -> Self {
        let tree = Subtree::whole(setup.agents, setup.fanout);
        let ranks = setup.placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
        let (mut members, links) = crate::setup::members(tree);
        members[0].state = State::Joined;
        let depth = members.iter().map(|member| member.depth).max().unwrap_or(0);
        let mut world = Self {
            counts: Counts::new(depth),
            oracle: Oracle::new(ranks, &setup),
            mutation_passed: 0,
            random: Random::new(setup.seed),
            queue: Queue::new(),
            messages: Slab::new(),
            processors: Processors::new(members.len(), setup.cores),
            members,
            links,
            root: Root::new(crate::setup::root_settings(&setup, tree)),
            setup,
            tree,
            outcome: None,
            expected_end: ExpectedEnd::Success,
            expected_by: None,
            casualties: Casualties::default(),
            ranks_ended: false,
            pending_get: None,
            immediate_answer: None,
            actions: Vec::new(),
            root_actions: Vec::new(),
        };
        world.start_agents();
        world
    }

    /// Handles events until none is left, then checks the end of the run.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let mut clock = 0;
        self.root_input(&mut clock, RootInput::Timeout);
        while let Some(event) = self.queue.pop() {
            self.counts.events += 1;
            self.handle_event(event.member as usize, event.at, event.kind);
            if let Some(violation) = self.oracle.violation.take() {
                return Err(violation);
            }
            if self.setup.checked && self.counts.events > EVENTS_MAX_CHECKED {
                return Err(Violation::new(self.queue.now(), "the run is in an endless loop"));
            }
        }
        self.check_end()
    }

    fn handle_event(&mut self, here: usize, at: u64, kind: EventKind) {
        match kind {
            EventKind::Join => return self.join(here, at),
            EventKind::Search => return self.search(here, at),
            EventKind::Message(slot) => return self.receive(here, at, slot),
            EventKind::Fault(number) => return self.inject(at, number as usize),
            EventKind::Timer if self.members[here].wake != at => return,
            EventKind::Timer => self.members[here].wake = NEVER,
            EventKind::ChildLost(link) if !self.child_is_lost(here, link) => return,
            EventKind::ChildSilent(link) if !self.links[link as usize].parent_listens => return,
            EventKind::ParentLost(link) if !std::mem::take(&mut self.links[link as usize].child_listens) => return,
            _ => {}
        }
        self.on_processor(here, at, |world, clock| world.handle_on_processor(here, kind, clock));
    }

    fn handle_on_processor(&mut self, here: usize, kind: EventKind, clock: &mut u64) {
        match kind {
            EventKind::RankStep(rank, start) => self.step(here, rank, start, clock),
            EventKind::StartRanks => self.start_ranks(here, clock),
            EventKind::RankEnded(rank, start) => self.on_rank_ended(here, rank, start, clock),
            EventKind::Swept => self.on_swept(here, clock),
            EventKind::OutputRead => self.on_stream_end(here, clock),
            EventKind::OutputEndSent => {
                let counted = Box::new(self.members[here].driver_counts);
                self.input(here, clock, Input::Drained { counted, spans: Vec::new() });
            }
            EventKind::Stopped(time) => self.on_stopped(here, clock, Duration::from_nanos(time)),
            EventKind::Timer if here == 0 => self.root_input(clock, RootInput::Timeout),
            EventKind::Timer => self.input(here, clock, Input::Timeout),
            EventKind::ChildLost(link) => {
                self.on_child_loss(here, self.links[link as usize].child);
                let child = AgentId(self.links[link as usize].child);
                match here {
                    0 => self.root_input(clock, RootInput::ChildLost(child, LossReason::Closed)),
                    here => self.input(here, clock, Input::ChildLost(child, LossReason::Closed)),
                }
            }
            EventKind::ChildSilent(link) => {
                let (child, time) = (AgentId(self.links[link as usize].child), self.setup.dead_time);
                match here {
                    0 => self.root_input(clock, RootInput::ChildSilent(child, time)),
                    here => self.input(here, clock, Input::ChildSilent(child, time)),
                }
            }
            EventKind::ParentLost(_) => {
                self.members[here].parent_lost_at = Some(*clock);
                self.input(here, clock, Input::ParentLost { why: LossReason::Closed });
            }
            EventKind::NeverJoined(agent) => {
                let why = NotStartedReason::Reported("it ended before it had joined".to_owned());
                self.root_input(clock, RootInput::AgentFailed(AgentId(agent), why));
            }
            EventKind::Join | EventKind::Search | EventKind::Message(_) | EventKind::Fault(_) => {}
        }
    }

    /// Runs `work` on a place's processor, at `at` or as soon as it is free. `work` advances the clock that it is
    /// given; the processor is busy until then.
    pub(crate) fn on_processor(&mut self, here: usize, at: u64, work: impl FnOnce(&mut Self, &mut u64)) {
        let began = self.processors.begin(here, at);
        let mut clock = began;
        work(self, &mut clock);
        self.processors.done(here, began, clock);
    }

    /// Hands an input to an agent's core and carries out its actions. `clock` is the agent's time; actions advance
    /// it.
    pub(crate) fn input(&mut self, here: usize, clock: &mut u64, input: Input) {
        let Some(core) = &mut self.members[here].core else { return };
        let mut actions = self.actions.pop().unwrap_or_default();
        core.handle(Duration::from_nanos(*clock), input, &mut actions);
        if self.setup.checked {
            core.check_invariants();
        }
        for action in actions.drain(..) {
            self.act(here, clock, action);
        }
        self.actions.push(actions);
        self.end_output(here, clock);
    }

    /// Hands an input to the root's core, as [`World::input`] does to an agent's.
    pub(crate) fn root_input(&mut self, clock: &mut u64, input: RootInput) {
        if self.outcome.is_some() {
            return;
        }
        let mut actions = std::mem::take(&mut self.root_actions);
        self.root.handle(Duration::from_nanos(*clock), input, &mut actions);
        if self.setup.checked {
            self.root.check_invariants();
        }
        // The root merges the puts before it reports the release.
        *clock += self.work_of(&actions);
        for action in actions.drain(..) {
            self.root_act(clock, action);
        }
        self.root_actions = actions;
        self.end_output(0, clock);
    }

    /// Sets a place's timer. A later call replaces it.
    pub(crate) fn wake_at(&mut self, here: usize, at: Duration) {
        let at = at.as_nanos() as u64;
        self.members[here].wake = at.max(self.queue.now());
        self.queue.push(at, here as u32, EventKind::Timer);
    }
}
