//! Agents that have lost their parents: each looks for an ancestor that accepts it, as the driver does.

use std::time::Duration;

use nla::core::{AgentId, Input, RootInput};

use crate::events::EventKind;
use crate::links::Link;
use crate::world::{State, World};

/// The pause between two rounds, in nanoseconds.
const PAUSE: u64 = 50_000_000;
/// Later rounds pause for longer.
const PAUSE_MAX: u64 = 500_000_000;
/// An ancestor that does not answer in this time is passed over.
const ATTEMPT_MAX: u64 = 2_000_000_000;

/// The search of an orphaned agent.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Search {
    until: u64,
    pause: u64,
}

impl World {
    /// An agent begins to look for an ancestor.
    pub(crate) fn begin_search(&mut self, here: usize, clock: u64, until: Duration) {
        let member = &mut self.members[here];
        member.parent_lost_at = None;
        member.search = Some(Search { until: until.as_nanos() as u64, pause: PAUSE });
        self.queue.push(clock, here as u32, EventKind::Search);
    }

    /// An orphaned agent asks its ancestors in turn, the nearest first.
    pub(crate) fn search(&mut self, here: usize, at: u64) {
        let awake_at = self.processors.begin(here, at);
        if awake_at >= at + ATTEMPT_MAX {
            return self.queue.push(awake_at, here as u32, EventKind::Search);
        }
        let member = &mut self.members[here];
        let Some(search) = &mut member.search else { return };
        let again = at + search.pause;
        search.pause = (2 * search.pause).min(PAUSE_MAX);
        let is_late = again >= search.until;
        if member.core.is_none() {
            member.search = None;
        } else if let Some(above) = self.accepting_ancestor(here, at) {
            self.rejoin(here, above, at);
        } else if is_late || self.outcome.is_some() {
            self.give_up(here, at);
        } else {
            self.queue.push(again, here as u32, EventKind::Search);
        }
    }

    /// The nearest ancestor that can be reached, if it accepts an orphaned agent now.
    fn accepting_ancestor(&self, here: usize, at: u64) -> Option<usize> {
        let lost = self.links[self.members[here].link as usize].parent;
        let above = std::iter::successors(self.tree.parent_of(AgentId(lost)), |above| self.tree.parent_of(*above));
        let answers = |above: &usize| {
            let member = &self.members[*above];
            let is_reached = at >= member.cut_until && at >= self.members[here].cut_until;
            is_reached && member.state == State::Joined && self.processors.begin(*above, at) <= at + ATTEMPT_MAX
        };
        let accepts = |above: &usize| {
            let (member, here) = (&self.members[*above], here as u32);
            member.orphans.iter().any(|orphan| orphan.contains(AgentId(here))) && !member.adopted.contains(&here)
        };
        above.map(|above| above.0 as usize).find(answers).filter(accepts)
    }

    /// An orphaned agent joins an ancestor.
    fn rejoin(&mut self, here: usize, above: usize, at: u64) {
        self.casualties.add_rejoined(here as u32);
        self.oracle.finished.extend(self.members[here].ranks.finished());
        self.members[here].search = None;
        self.members[here].link = self.links.len() as u32;
        let mut link = Link::new(above as u32, here as u32);
        link.open();
        self.links.push(link);
        let ancestor = &mut self.members[above];
        ancestor.adopted.insert(here as u32);
        ancestor.orphans.retain(|orphan| !orphan.contains(AgentId(here as u32)));
        ancestor.children.push(here as u32);
        ancestor.streams_open += 1;
        self.counts.rejoined += 1;
        let hello = self.setup.costs.hello;
        let child = AgentId(here as u32);
        self.on_processor(above, at, |world, clock| {
            *clock += hello;
            match above {
                0 => world.root_input(clock, RootInput::ChildJoined(child)),
                above => world.input(above, clock, Input::ChildJoined(child)),
            }
        });
        let answered = at + 2 * self.setup.costs.latency;
        self.on_processor(here, answered, |world, clock| {
            *clock += hello;
            world.input(here, clock, Input::Rejoined);
        });
    }

    /// An agent, or the root, finds that it was stopped for the dead time or longer.
    pub(crate) fn on_stopped(&mut self, here: usize, clock: &mut u64, time: Duration) {
        if here == 0 {
            return self.root_input(clock, RootInput::Stopped(time));
        }
        if self.members[here].search.is_some() {
            self.give_up(here, *clock);
        }
        self.input(here, clock, Input::Stopped(time));
    }

    /// No ancestor accepts an orphaned agent: it ends its ranks and leaves.
    fn give_up(&mut self, here: usize, at: u64) {
        self.members[here].search = None;
        self.on_processor(here, at, |world, clock| {
            world.on_given_up(here, *clock);
            world.members[here].parent_lost_at = Some(*clock);
            world.input(here, clock, Input::NotRejoined);
        });
    }
}
