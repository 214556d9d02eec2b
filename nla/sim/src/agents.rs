//! What drivers do for their cores: the life of an agent from its hello to its leave, and the root's.

use std::time::Duration;

use nla::core::{
    Action, AgentId, Down, Input, NotStartedReason, Notice, ReleaseContent, RootAction, RootInput, Update,
};
use pmi::Answer;

use crate::events::What;
use crate::faults::{Fault, Timed};
use crate::oracle::{Doom, Violation};
use crate::report::Which;
use crate::world::{NS, State, World};

/// How long an agent takes at most to kill its ranks and to leave, once it has heard that its parent is
/// gone: no grace is due.
const LINGERED_MAX: u64 = 1_000_000_000;

impl World {
    /// Starts all agents, one after another; each says hello when it is up and its parent is.
    pub(crate) fn invite(&mut self) {
        let hello = 4 * self.costs.latency + 2 * self.costs.hello;
        let mut joined = vec![0; self.places.len()];
        // When each place has let in the last who knocked.
        let mut door = vec![0; self.places.len()];
        for agent in 1..self.places.len() {
            let parent = self.places[agent].parent as usize;
            let up = self.costs.agent_launch * agent as u64 + self.costs.agent_boot;
            let at: u64 = up.max(joined[parent]).max(door[parent]);
            door[parent] = at + self.costs.hello;
            joined[agent] = at + hello;
            self.queue.push(joined[agent], agent as u32, What::Join);
        }
        for (number, timed) in self.faults.faults.iter().enumerate() {
            self.queue.push(timed.at, 0, What::Fault(number as u32));
        }
        self.places[0].streams_open = self.places[0].children.len() as u32;
    }

    /// An agent has said hello to its parent, if both are there.
    pub(crate) fn join(&mut self, here: usize, at: u64) {
        let parent = self.places[here].parent as usize;
        if self.places[here].state != State::Absent || self.places[parent].state != State::Joined {
            return;
        }
        let place = &mut self.places[here];
        place.state = State::Joined;
        place.link.parent_listens = true;
        place.link.child_listens = true;
        place.link.stream_open = true;
        // Its own output.
        place.streams_open += 1;
        let began = self.processors.begin(parent, at);
        let mut clock = began;
        if parent != 0 {
            self.places[parent].streams_open += 1;
            self.input(parent, &mut clock, Input::ChildJoined(AgentId(here as u32)));
            self.processors.done(parent, began, clock);
        }
        let began = self.processors.begin(here, at);
        let mut clock = began;
        // A leaf is ready at once.
        self.input(here, &mut clock, Input::Timeout);
        self.processors.done(here, began, clock);
    }

    /// Does what an agent's core wants done.
    pub(crate) fn act(&mut self, here: usize, clock: &mut u64, action: Action) {
        match action {
            Action::ToParent(message) => self.send_up(here, clock, message),
            Action::ToChild(child, message) => self.send_down(here, child.0, clock, message),
            Action::Answer(_, rank, answer) => self.on_answer(here, rank, clock, answer),
            Action::CloseChild(child, why) => {
                if self.checked && self.doom == Doom::No {
                    self.watch.fail(Violation::new(*clock, format!("agent {here} cut off agent {child}: {why}")));
                }
                self.close_child(child.0, *clock);
            }
            Action::Configure(_) | Action::Suspended(_) => {}
            Action::Start(_, ranks, board) => {
                if !ranks.is_empty() {
                    self.places[here].board = Some(board);
                    self.places[here].locals.enqueue(&ranks, &self.stubborn);
                    self.queue.push(*clock, here as u32, What::StartRanks);
                }
            }
            Action::CancelStarts => {
                let cancelled = self.places[here].locals.cancel();
                if !cancelled.is_empty() {
                    self.input(here, clock, Input::NotStarted(NS, cancelled, NotStartedReason::Cancelled));
                }
            }
            Action::Publish(_, epoch) => {
                if let Some(board) = &mut self.places[here].board {
                    board.publish(epoch);
                }
            }
            Action::Release(_, ranks) => self.release(here, clock, &ranks),
            Action::LookUp { namespace, key, requester } => {
                self.input(here, clock, Input::LookedUp { namespace, key, requester, value: None });
            }
            Action::Signal(_, ranks, signal) => self.signal(here, *clock, &ranks, signal),
            Action::Sweep => self.queue.push(*clock + self.costs.sweep, here as u32, What::Swept),
            Action::WakeAt(at) => self.wake_at(here, at),
            Action::Leave(_) => self.leave(here, *clock),
        }
    }

    /// No descendant of an agent is left; its output is read to the end soon.
    pub(crate) fn on_swept(&mut self, here: usize, clock: &mut u64) {
        self.input(here, clock, Input::Swept { leftovers: 0 });
        self.queue.push(*clock + self.costs.local, here as u32, What::Drained);
    }

    fn leave(&mut self, here: usize, clock: u64) {
        self.note_agent(here);
        let place = &mut self.places[here];
        if place.state != State::Joined {
            return;
        }
        place.state = State::Left;
        place.core = None;
        place.board = None;
        let lingered = place.orphaned.map_or(0, |since| clock.saturating_sub(since));
        let stalled = self.faults.faults.iter().any(|timed| matches!(timed.fault, Fault::Stall { .. }));
        if self.checked && lingered > LINGERED_MAX && !stalled {
            let why = format!("agent {here} was without its parent for {} ms", lingered / 1_000_000);
            self.watch.fail(Violation::new(clock, why));
        }
        self.part(here, clock);
    }

    /// Closes all links of a place.
    fn part(&mut self, here: usize, clock: u64) {
        let children = std::mem::take(&mut self.places[here].children);
        for child in &children {
            self.close_child(*child, clock);
        }
        self.places[here].children = children;
        if here != 0 {
            self.close_parent(here, clock);
        }
    }

    // ---- the root ----

    /// The processor's time for what the root has decided.
    pub(crate) fn work_of(&self, actions: &[RootAction]) -> u64 {
        let work = |action: &RootAction| match action {
            RootAction::Notice(Notice::Released { entries, .. }) => *entries as u64 * self.costs.entry_merged,
            _ => 0,
        };
        actions.iter().map(work).sum()
    }

    /// The processor's time for checking what came from above.
    pub(crate) fn checking(&self, message: &Down) -> u64 {
        match message {
            Down::Release { content: ReleaseContent::Update(Update::Epoch(epoch)), .. } => {
                epoch.len() as u64 * self.costs.entry_checked
            }
            _ => 0,
        }
    }

    /// Does what the root's core wants done.
    pub(crate) fn root_act(&mut self, clock: &mut u64, action: RootAction) {
        match action {
            RootAction::ToChild(child, message) => self.send_down(0, child.0, clock, message),
            RootAction::CloseChild(child, why) => {
                if self.checked && self.doom == Doom::No {
                    self.watch.fail(Violation::new(*clock, format!("the root cut off agent {child}: {why}")));
                }
                self.close_child(child.0, *clock);
            }
            RootAction::Notice(notice) => self.on_notice(*clock, notice),
            RootAction::WakeAt(at) => self.wake_at(0, at),
            RootAction::Over(outcome) => {
                self.outcome = Some((*clock, outcome));
                self.places[0].state = State::Left;
                self.part(0, *clock);
                // Who has not joined is told to end by who started it.
                for place in self.places.iter_mut().filter(|place| place.state == State::Absent) {
                    place.state = State::Left;
                    place.core = None;
                }
            }
        }
    }

    fn on_notice(&mut self, clock: u64, notice: Notice) {
        match notice {
            Notice::Joined => self.tally.joined = clock,
            Notice::Started(..) => self.tally.started = clock,
            Notice::Released { entries, bytes, number, .. } => {
                self.tally.on_merged(number, entries as u64, bytes as u64);
                self.tally.fences.note(Duration::from_nanos(entries as u64 * self.costs.entry_merged));
            }
            Notice::RanksEnded => self.ranks_ended = true,
            Notice::Contact(_) | Notice::Failure(_) | Notice::Ending(..) | Notice::Leftovers(_) => {}
        }
    }

    // ---- what goes wrong ----

    /// A fault of the scenario strikes.
    pub(crate) fn strike(&mut self, at: u64, number: usize) {
        if self.outcome.is_some() {
            return;
        }
        let Timed { fault, noticed, .. } = self.faults.faults[number];
        let struck = match fault {
            Fault::Crash { agent } => self.crash(at, agent as usize, noticed),
            Fault::Cut { agent } => self.cut(at, agent as usize, noticed),
            Fault::Stall { agent, nanoseconds } => {
                self.processors.stall(agent as usize, at, nanoseconds);
                true
            }
            Fault::Kill { rank } => self.kill(at, rank),
            Fault::Interrupt => {
                let began = self.processors.begin(0, at);
                let mut clock = began;
                self.root_input(&mut clock, RootInput::Interrupt(2));
                self.processors.done(0, began, clock);
                true
            }
        };
        if struck && fault.is_fatal() {
            self.doom = self.doom.max(if self.ranks_ended { Doom::Maybe } else { Doom::Yes });
        }
        self.tally.struck += u32::from(struck);
    }

    fn crash(&mut self, at: u64, agent: usize, [above, below]: [u64; 2]) -> bool {
        let place = &mut self.places[agent];
        let before = std::mem::replace(&mut place.state, State::Crashed);
        if matches!(before, State::Left | State::Crashed) {
            place.state = before;
            return false;
        }
        place.core = None;
        place.locals.end_all();
        place.link.child_listens = false;
        if before == State::Absent {
            self.queue.push(at + above, 0, What::NeverJoined(agent as u32));
            return true;
        }
        let parent = place.parent;
        self.queue.push(at + above, parent, What::ChildLost(agent as u32));
        let children = place.children.clone();
        for child in children {
            self.places[child as usize].link.parent_listens = false;
            self.queue.push(at + below, child, What::ParentLost);
        }
        true
    }

    fn cut(&mut self, at: u64, agent: usize, [above, below]: [u64; 2]) -> bool {
        let place = &mut self.places[agent];
        if place.state != State::Joined || std::mem::replace(&mut place.link.cut, true) {
            return false;
        }
        let parent = place.parent;
        self.queue.push(at + above, parent, What::ChildLost(agent as u32));
        self.queue.push(at + below, agent as u32, What::ParentLost);
        true
    }

    // ---- the end ----

    /// When nothing is left to happen, nothing may be left at all.
    pub(crate) fn conclude(&mut self) -> Result<(), Violation> {
        let now = self.queue.now();
        let fail = |why: String| Err(Violation::new(now, why));
        let Some((over, outcome)) = self.outcome.clone() else {
            return fail(format!("nothing is left to happen, and the session is not over: {}", self.watch.state()));
        };
        for (number, place) in self.places.iter().enumerate() {
            if !matches!(place.state, State::Left | State::Crashed) {
                return fail(format!("agent {number} has not left: {:?}", place.state));
            }
            if let Some(rank) = place.locals.alive() {
                return fail(format!("rank {rank} of agent {number} is alive"));
            }
        }
        if self.messages.len() > 0 {
            return fail(format!("{} messages are still on their way", self.messages.len()));
        }
        self.watch.conclude(over, &outcome, self.doom)?;
        let last = self.faults.faults.last().map_or(0, |timed| timed.at + timed.noticed[0].max(timed.noticed[1]));
        let patience = Duration::from_secs(120).as_nanos() as u64;
        if self.checked && over > last + patience {
            return fail(format!("the session was over only {} s after the last fault", (over - last) / 1_000_000_000));
        }
        self.tally.over = over;
        self.tally.note_place(Which::Root, 0, self.root.cache_peaks(), self.root.gets());
        Ok(())
    }

    /// Notes what an agent has held of the board, and how it has answered gets.
    fn note_agent(&mut self, here: usize) {
        let place = &self.places[here];
        if let Some(core) = &place.core {
            let which = if place.children.is_empty() { Which::Leaf } else { Which::Inner };
            self.tally.note_place(which, place.depth, core.cache_peaks(), core.gets());
        }
    }

    /// The answer to a question that nobody in this simulation asks.
    pub(crate) fn unexpected(&mut self, clock: u64, answer: &Answer) {
        self.watch.fail(Violation::new(clock, format!("a rank was answered what it did not ask: {answer:?}")));
    }
}
