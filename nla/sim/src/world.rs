//! The world: a root, its agents, their ranks, and the time that passes between them.
//!
//! Whatever happens is an event at one place of the tree. The place's processor takes events one after
//! another; handling one costs time, and what comes of it, messages above all, are events of later.
//! Cores are the real ones: they are handed the inputs that the drivers would hand them, and this acts
//! as the drivers do.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use nla::core::{
    Action, Agent, AgentId, CachePolicy, DriverCounts, Input, LossReason, NamespaceId, NotStartedReason, Outcome, Root,
    RootAction, RootInput, Subtree,
};
use pmi::{Board, Rank, Ranks};

use crate::costs::Costs;
use crate::events::{Queue, Slab, What};
use crate::faults::{Faults, Mutation};
use crate::links::{Link, ShellLinks};
use crate::oracle::{Doom, Violation, Watch};
use crate::processors::Processors;
use crate::program::Program;
use crate::random::Random;
use crate::ranks::Locals;
use crate::report::Tally;

/// The namespace of all ranks.
pub(crate) const NS: NamespaceId = NamespaceId::FIRST;
/// No time of waking is set.
const NEVER: u64 = u64::MAX;

/// All that a run begins with.
pub(crate) struct Setup {
    pub(crate) agents: u32,
    pub(crate) fanout: u32,
    /// Ranks by agent; in order.
    pub(crate) placement: Vec<(AgentId, Ranks)>,
    pub(crate) cache: CachePolicy,
    pub(crate) program: Program,
    pub(crate) costs: Costs,
    /// Ranks read the board themselves, where it is whole.
    pub(crate) segment: bool,
    /// All places share so many cores; else each has its own.
    pub(crate) cores: Option<u32>,
    pub(crate) seed: u64,
    pub(crate) faults: Faults,
    /// Ranks that a mere TERM does not end.
    pub(crate) stubborn: Ranks,
    pub(crate) mutation: Option<Mutation>,
    /// Agents tell at the end what they have counted.
    pub(crate) stats: bool,
    /// Check invariants after each step, send messages through their encoding, and hold each get's
    /// answer against what it has to be.
    pub(crate) checked: bool,
}

/// How far an agent is.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// It has not said hello to its parent.
    Absent,
    /// It is a part of the tree.
    Joined,
    /// It has left as it should, or was told to by who started it.
    Left,
    /// Its process was killed.
    Crashed,
}

/// A place in the tree: the root, or an agent.
pub(crate) struct Place {
    /// None for the root, and for an agent that is gone.
    pub(crate) core: Option<Agent>,
    pub(crate) state: State,
    pub(crate) parent: u32,
    pub(crate) depth: u32,
    pub(crate) children: Vec<u32>,
    /// The way out is busy until then with control messages, and with all.
    pub(crate) nic: [u64; 2],
    pub(crate) wake: u64,
    /// The link to the parent.
    pub(crate) link: Link,
    /// Links to children, this place's own output counted as one more, on which output may still come.
    pub(crate) streams_open: u32,
    pub(crate) locals: Locals,
    pub(crate) board: Option<Board>,
    /// When it heard that its parent is gone.
    pub(crate) orphaned: Option<u64>,
    /// Fence messages sent up since the last release.
    pub(crate) told_up: u32,
    /// What a driver counts.
    pub(crate) counted: DriverCounts,
}

/// See the module.
pub(crate) struct World {
    pub(crate) costs: Costs,
    pub(crate) cache: CachePolicy,
    pub(crate) program: Rc<Program>,
    pub(crate) segment: bool,
    pub(crate) checked: bool,
    pub(crate) delay: u64,
    pub(crate) faults: Faults,
    pub(crate) stubborn: Ranks,
    pub(crate) mutation: Option<Mutation>,
    /// How often what the mutation changes has been done right.
    pub(crate) mutable: u32,
    pub(crate) random: Random,
    pub(crate) queue: Queue,
    pub(crate) messages: Slab<ShellLinks>,
    pub(crate) places: Vec<Place>,
    pub(crate) processors: Processors,
    pub(crate) root: Root,
    pub(crate) outcome: Option<(u64, Outcome)>,
    /// Whether the job can still end well.
    pub(crate) doom: Doom,
    /// The root knows that all ranks have ended.
    pub(crate) ranks_ended: bool,
    pub(crate) watch: Watch,
    pub(crate) tally: Tally,
    /// A rank's get is being handed to its core.
    pub(crate) asking: Option<(usize, Rank)>,
    /// What that was answered at once.
    pub(crate) answered: Option<Option<Bytes>>,
    /// Room for actions, one for each input that is handed in while others are acted on.
    actions: Vec<Vec<Action>>,
    root_actions: Vec<RootAction>,
}

/// More events than any run of a drawn scenario has: it goes round in circles.
const EVENTS_MAX_CHECKED: u64 = 20_000_000;

impl World {
    /// Everything before the first thing happens.
    pub(crate) fn new(setup: Setup) -> Self {
        let tree = Subtree::whole(setup.agents, setup.fanout);
        let root = Root::new(crate::setup::root_settings(&setup, tree));
        let ranks = setup.placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
        let mut places = crate::setup::places(tree);
        places[0].state = State::Joined;
        let depth = places.iter().map(|place| place.depth).max().unwrap_or(0);
        let mut world = Self {
            tally: Tally::new(depth),
            watch: Watch::new(ranks),
            costs: setup.costs,
            cache: setup.cache,
            program: Rc::new(setup.program),
            segment: setup.segment,
            checked: setup.checked,
            delay: setup.faults.delay,
            faults: setup.faults,
            stubborn: setup.stubborn,
            mutation: setup.mutation,
            mutable: 0,
            random: Random::new(setup.seed),
            queue: Queue::new(),
            messages: Slab::new(),
            processors: Processors::new(places.len(), setup.cores),
            places,
            root,
            outcome: None,
            doom: Doom::No,
            ranks_ended: false,
            asking: None,
            answered: None,
            actions: Vec::new(),
            root_actions: Vec::new(),
        };
        world.invite();
        world
    }

    /// Lets everything happen, until nothing is left.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let mut clock = 0;
        self.root_input(&mut clock, RootInput::Timeout);
        while let Some(event) = self.queue.pop() {
            self.tally.events += 1;
            self.happen(event.to, event.at, event.what);
            if let Some(violation) = self.watch.violation.take() {
                return Err(violation);
            }
            if self.checked && self.tally.events > EVENTS_MAX_CHECKED {
                return Err(Violation::new(self.queue.now(), "it goes round in circles"));
            }
        }
        self.conclude()
    }

    fn happen(&mut self, to: u32, at: u64, what: What) {
        let here = to as usize;
        match what {
            What::Message(slot) => return self.arrive(here, at, slot),
            What::Step(rank) => return self.step(here, rank, at),
            What::Timer if self.places[here].wake != at => return,
            What::Timer => self.places[here].wake = NEVER,
            What::Fault(number) => return self.strike(at, number as usize),
            What::ChildLost(child) if !self.child_is_lost(here, child) => return,
            What::ParentLost if !std::mem::take(&mut self.places[here].link.child_listens) => return,
            _ => {}
        }
        let began = self.processors.begin(here, at);
        let mut clock = began;
        match what {
            What::Join => return self.join(here, at),
            What::StartRanks => self.start_ranks(here, &mut clock),
            What::Ended(rank) => self.on_rank_ended(here, rank, &mut clock),
            What::Swept => self.on_swept(here, &mut clock),
            What::Drained => self.on_stream_end(here, &mut clock),
            What::Told => {
                let counted = Box::new(self.places[here].counted);
                self.input(here, &mut clock, Input::Drained { counted });
            }
            What::Timer if here == 0 => self.root_input(&mut clock, RootInput::Timeout),
            What::Timer => self.input(here, &mut clock, Input::Timeout),
            What::ChildLost(child) if here == 0 => {
                self.root_input(&mut clock, RootInput::ChildLost(AgentId(child), LossReason::Closed));
            }
            What::ChildLost(child) => {
                self.input(here, &mut clock, Input::ChildLost(AgentId(child), LossReason::Closed));
            }
            What::ParentLost => {
                self.places[here].orphaned = Some(clock);
                self.input(here, &mut clock, Input::ParentLost { why: LossReason::Closed });
            }
            What::NeverJoined(agent) => {
                let why = NotStartedReason::Reported("it ended before it had joined".to_owned());
                self.root_input(&mut clock, RootInput::AgentFailed(AgentId(agent), why));
            }
            What::Message(_) | What::Step(_) | What::Fault(_) => {}
        }
        self.processors.done(here, began, clock);
    }

    /// Hands an agent's core an input, and does what it wants done. `clock` is the agent's time, which
    /// passes with what is done.
    pub(crate) fn input(&mut self, here: usize, clock: &mut u64, input: Input) {
        let Some(core) = &mut self.places[here].core else { return };
        let mut actions = self.actions.pop().unwrap_or_default();
        core.handle(Duration::from_nanos(*clock), input, &mut actions);
        if self.checked {
            core.check_invariants();
        }
        for action in actions.drain(..) {
            self.act(here, clock, action);
        }
        self.actions.push(actions);
    }

    /// As [`World::input`], for the root.
    pub(crate) fn root_input(&mut self, clock: &mut u64, input: RootInput) {
        if self.outcome.is_some() {
            return;
        }
        let mut actions = std::mem::take(&mut self.root_actions);
        self.root.handle(Duration::from_nanos(*clock), input, &mut actions);
        if self.checked {
            self.root.check_invariants();
        }
        // The work comes before the notice of it.
        *clock += self.work_of(&actions);
        for action in actions.drain(..) {
            self.root_act(clock, action);
        }
        self.root_actions = actions;
    }

    /// Hands in a [`What::Timer`] at that time; a later call replaces it.
    pub(crate) fn wake_at(&mut self, here: usize, at: Duration) {
        let at = at.as_nanos() as u64;
        self.places[here].wake = at.max(self.queue.now());
        self.queue.push(at, here as u32, What::Timer);
    }
}
