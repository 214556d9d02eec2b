//! Acts as the drivers of the root and the agents: from the start of an agent to its exit.

use std::time::Duration;

use nla::core::limits::{SILENCE_TOLD, STOP_TIME};
use nla::core::{
    Action, AgentId, Down, Input, LossReason, NotStartedReason, Notice, ReleaseContent, RootAction, RootInput, Update,
};
use pmi::Answer;

use crate::events::EventKind;
use crate::faults::{Fault, TimedFault};
use crate::links::Link;
use crate::oracle::{ExpectedEnd, Violation};
use crate::report::MemberKind;
use crate::world::{NS, State, World};

/// The bound on the time, in nanoseconds, in which an agent that lost its parent kills its ranks and exits. There is
/// no grace period in that case.
const EXIT_WITHOUT_PARENT_MAX: u64 = 1_000_000_000;
/// The bound on the time from the last fault to the end of the session, in nanoseconds.
const END_AFTER_FAULT_MAX: u64 = 600_000_000_000;

impl World {
    /// Starts all agents, one after another. Each joins once it has booted and its parent has joined.
    pub(crate) fn start_agents(&mut self) {
        let costs = &self.setup.costs;
        let hello = 4 * costs.latency + 2 * costs.hello;
        let mut joined = vec![0; self.members.len()];
        // When each place finishes the last handshake that it accepted so far.
        let mut accepted = vec![0; self.members.len()];
        for agent in 1..self.members.len() {
            let parent = self.links[agent].parent as usize;
            let up = costs.agent_launch * agent as u64 + costs.agent_boot;
            let at: u64 = up.max(joined[parent]).max(accepted[parent]);
            accepted[parent] = at + costs.hello;
            joined[agent] = at + hello;
            self.queue.push(joined[agent], agent as u32, EventKind::Join);
        }
        for (number, timed) in self.setup.faults.faults.iter().enumerate() {
            self.queue.push(timed.at, 0, EventKind::Fault(number as u32));
        }
        self.members[0].streams_open = self.members[0].children.len() as u32;
    }

    /// An agent joins its parent, if both are still running.
    pub(crate) fn join(&mut self, here: usize, at: u64) {
        let parent = self.links[here].parent as usize;
        if self.members[here].state != State::Absent || self.members[parent].state != State::Joined {
            return;
        }
        self.members[here].state = State::Joined;
        self.links[here].open();
        // The agent's own output.
        self.members[here].streams_open += 1;
        if parent != 0 {
            self.members[parent].streams_open += 1;
            self.on_processor(parent, at, |world, clock| {
                world.input(parent, clock, Input::ChildJoined(AgentId(here as u32)));
            });
        }
        // A leaf reports that it is ready at once.
        self.on_processor(here, at, |world, clock| world.input(here, clock, Input::Timeout));
    }

    /// Carries out an action of an agent's core.
    pub(crate) fn act(&mut self, here: usize, clock: &mut u64, action: Action) {
        match action {
            Action::ToParent(message) => self.send_up(here, clock, message),
            Action::ToChild(child, message) => self.send_down(here, child.0, clock, message),
            Action::Answer(_, rank, answer) => self.on_answer(here, rank, clock, answer),
            Action::CloseChild(child, why) => self.on_child_closed(here, *clock, child, &why),
            // Simulated ranks spawn none.
            Action::Configure(_) => self.members[here].is_configured = true,
            Action::Suspended(_) | Action::Forget(_) => {}
            Action::Inspect(number, _) => self.input(here, clock, Input::Inspected(number, Vec::new())),
            Action::Start(_, ranks, board) => {
                if !ranks.is_empty() || self.setup.on_failure.starts_again() {
                    self.members[here].board = Some(board);
                }
                if !ranks.is_empty() {
                    self.members[here].ranks.enqueue(&ranks, &self.setup.ignoring_term);
                    self.queue.push(*clock, here as u32, EventKind::StartRanks);
                }
            }
            Action::Restart(_, rank, start) => self.restart_rank(here, clock, rank, start),
            // A lost agent of a simulation leaves no process.
            Action::EndNeighbour(..) => {}
            // No simulated policy ends all ranks and starts them again.
            Action::Clear => self.input(here, clock, Input::Cleared { leftovers: 0 }),
            Action::Rejoin(until) => self.begin_search(here, *clock, until),
            Action::Adopt(orphans) => self.members[here].orphans = orphans,
            Action::CancelStarts => {
                let cancelled = self.members[here].ranks.cancel();
                if !cancelled.is_empty() {
                    self.input(here, clock, Input::NotStarted(NS, cancelled, NotStartedReason::Cancelled));
                }
            }
            Action::Publish(_, epoch) => {
                if let Some(board) = &mut self.members[here].board {
                    board.publish(epoch);
                }
            }
            Action::Release(_, ranks) => self.release(here, clock, &ranks, false),
            Action::FailFence(_, ranks) => self.release(here, clock, &ranks, true),
            Action::ShowDead(_, dead) => {
                if let Some(board) = &mut self.members[here].board {
                    board.set_dead(&dead);
                }
            }
            Action::LookUp { namespace, key, requester } => {
                self.input(here, clock, Input::LookedUp { namespace, key, requester, value: None });
            }
            // No simulated rank speaks PMIx.
            Action::Modex { requester, .. } => self.input(here, clock, Input::Modexed(requester, None)),
            Action::Signal(_, ranks, signal) => self.signal(here, *clock, &ranks, signal),
            Action::EndLeft => {}
            Action::Sweep | Action::Linger => {
                self.queue.push(*clock + self.setup.costs.sweep, here as u32, EventKind::Swept)
            }
            Action::WakeAt(at) => self.wake_at(here, at),
            Action::Leave(code) => self.leave(here, *clock, code),
        }
    }

    /// Closes the link to a child because its parent's core said so. Only a fault that ends the session justifies that, or
    /// that the child was away while others made fences that do not wait for it.
    fn on_child_closed(&mut self, here: usize, clock: u64, child: AgentId, why: &LossReason) {
        if let LossReason::Violation(nla::core::Violation::Behind(_)) = why {
            self.counts.given_up += 1;
            self.hit(child.0 as usize);
        } else if self.setup.checked
            && self.expected_end <= ExpectedEnd::Survived
            && !self.casualties.has_agent(child.0)
        {
            let why = format!("agent {here} closed the link to agent {child}: {why}");
            self.oracle.fail(Violation::new(clock, why));
        }
        self.close_child(here, child.0, clock);
    }

    /// An agent has no descendant process left. Soon it will have read its output to the end.
    pub(crate) fn on_swept(&mut self, here: usize, clock: &mut u64) {
        self.input(here, clock, Input::Swept { leftovers: 0 });
        self.queue.push(*clock + self.setup.costs.local, here as u32, EventKind::OutputRead);
    }

    fn leave(&mut self, here: usize, clock: u64, code: u8) {
        if code != 0 {
            self.on_given_up(here, clock);
        }
        self.note_agent(here);
        let member = &mut self.members[here];
        if member.state != State::Joined {
            return;
        }
        member.state = State::Left;
        member.core = None;
        member.board = None;
        let alone = member.parent_lost_at.map_or(0, |since| clock.saturating_sub(since));
        let is_stall = |timed: &TimedFault| matches!(timed.fault, Fault::Stall { .. } | Fault::Pause { .. });
        let stalled = self.setup.faults.faults.iter().any(is_stall);
        if self.setup.checked && alone > EXIT_WITHOUT_PARENT_MAX && !stalled {
            let why = format!("agent {here} exited only {} ms after it had lost its parent", alone / 1_000_000);
            self.oracle.fail(Violation::new(clock, why));
        }
        self.close_links(here, clock);
    }

    /// Closes all links of a place.
    fn close_links(&mut self, here: usize, clock: u64) {
        let children = std::mem::take(&mut self.members[here].children);
        for child in &children {
            self.close_child(here, *child, clock);
        }
        self.members[here].children = children;
        if here != 0 {
            self.close_parent(here, clock);
        }
    }

    // ---- the root ----

    /// Returns the processor time that the root spent before these actions: to merge the puts, and to hash and
    /// pack an epoch that it cuts into pieces.
    pub(crate) fn work_of(&self, actions: &[RootAction]) -> u64 {
        let costs = &self.setup.costs;
        let work = |action: &RootAction| match action {
            RootAction::Notice(Notice::Released { entries, bytes, .. }) => {
                let is_cut = self.setup.piece_bytes.is_some_and(|piece| *bytes > piece.get() as usize);
                let cut = if is_cut { *bytes as u64 } else { 0 };
                let packed = if self.setup.packs { costs.board.byte_packed_ps } else { 0 };
                *entries as u64 * costs.board.entry_merged + cut * (costs.board.byte_hashed_ps + packed) / 1000
            }
            _ => 0,
        };
        actions.iter().map(work).sum()
    }

    /// Returns the processor time to check a message from the parent.
    pub(crate) fn checking(&self, message: &Down) -> u64 {
        match message {
            Down::Release { content: ReleaseContent::Update(Update::Epoch(epoch)), .. } => {
                epoch.len() as u64 * self.setup.costs.entry_checked
            }
            Down::Piece { piece, .. } => {
                let board = &self.setup.costs.board;
                let unpacked = if piece.is_packed() { board.byte_unpacked_ps } else { 0 };
                u64::from(piece.length()) * (board.byte_hashed_ps + board.byte_copied_ps + unpacked) / 1000
            }
            _ => 0,
        }
    }

    /// Carries out an action of the root's core.
    pub(crate) fn root_act(&mut self, clock: &mut u64, action: RootAction) {
        match action {
            RootAction::ToChild(child, message) => self.send_down(0, child.0, clock, message),
            RootAction::CloseChild(child, why) => self.on_child_closed(0, *clock, child, &why),
            RootAction::Adopt(orphans) => self.members[0].orphans = orphans,
            RootAction::EndGuardian(_) => {}
            RootAction::Notice(notice) => self.on_notice(*clock, notice),
            RootAction::WakeAt(at) => self.wake_at(0, at),
            RootAction::Over(outcome) => {
                self.outcome = Some((*clock, outcome));
                self.members[0].state = State::Left;
                self.close_links(0, *clock);
                // The launcher tells agents that have not joined to exit.
                for member in self.members.iter_mut().filter(|member| member.state == State::Absent) {
                    member.state = State::Left;
                    member.core = None;
                }
            }
        }
    }

    fn on_notice(&mut self, clock: u64, notice: Notice) {
        match notice {
            Notice::Joined => self.counts.joined = clock,
            Notice::Started(..) => self.counts.started = clock,
            Notice::Released { entries, bytes, number, .. } => {
                self.oracle.on_root_released(number, clock, &self.casualties);
                self.counts.on_merged(number, entries as u64, bytes as u64);
                self.counts.fences.note(Duration::from_nanos(entries as u64 * self.setup.costs.board.entry_merged));
            }
            Notice::RanksEnded => self.on_ranks_ended(),
            Notice::NoSpare => self.on_no_spare(clock),
            Notice::Contact(_)
            | Notice::Staged
            | Notice::Failure(_)
            | Notice::NoRestartLeft(_)
            | Notice::GoesOn(_)
            | Notice::WentOn(_)
            | Notice::Ending(..)
            | Notice::OutputDropped(..)
            | Notice::Restarting { .. }
            | Notice::Restarted(_)
            | Notice::Reviving { .. }
            | Notice::Moved(_)
            | Notice::FilesLeft(..)
            | Notice::Busy(..)
            | Notice::SecondJoiner(..)
            | Notice::Bound(..)
            | Notice::LowLimits(_)
            | Notice::Stopped(..)
            | Notice::Silent(_)
            | Notice::Killed(_)
            | Notice::Leftovers(..)
            | Notice::RanksLeft { .. }
            | Notice::Surveyed(..) => {}
        }
    }

    // ---- faults ----

    /// Injects a fault of the scenario.
    pub(crate) fn inject(&mut self, at: u64, number: usize) {
        if self.outcome.is_some() {
            return;
        }
        let TimedFault { fault, detected_after, .. } = self.setup.faults.faults[number];
        let expected = self.expectation(fault);
        let struck = match fault {
            Fault::Crash { agent } => self.crash(at, agent as usize, detected_after),
            Fault::Cut { agent, nanoseconds } => self.cut(at, agent as usize, nanoseconds, detected_after),
            Fault::Stall { agent, nanoseconds } => {
                self.stall(at, agent as usize, nanoseconds, STOP_TIME, detected_after)
            }
            Fault::Pause { agent, nanoseconds } => {
                self.stall(at, agent as usize, nanoseconds, self.setup.dead_time, detected_after)
            }
            Fault::Kill { rank } => self.kill(at, rank),
            Fault::Interrupt => {
                self.on_processor(0, at, |world, clock| world.root_input(clock, RootInput::Interrupt(2)));
                true
            }
        };
        if struck {
            self.expected_end = self.expected_end.max(expected);
        }
        self.counts.struck += u32::from(struck);
    }

    fn crash(&mut self, at: u64, agent: usize, [above, below]: [u64; 2]) -> bool {
        if matches!(self.members[agent].state, State::Absent | State::Joined) {
            self.hit(agent);
        }
        let member = &mut self.members[agent];
        let before = std::mem::replace(&mut member.state, State::Crashed);
        if matches!(before, State::Left | State::Crashed) {
            member.state = before;
            return false;
        }
        member.core = None;
        member.ranks.end_all();
        let number = member.link;
        let children = member.children.clone();
        let link = &mut self.links[number as usize];
        link.child_listens = false;
        if before == State::Absent {
            self.queue.push(at + above, 0, EventKind::NeverJoined(agent as u32));
            return true;
        }
        self.queue.push(at + above, link.parent, EventKind::ChildLost(number));
        for child in children {
            let number = self.members[child as usize].link;
            let link = &mut self.links[number as usize];
            if link.parent as usize == agent {
                link.parent_listens = false;
                self.queue.push(at + below, child, EventKind::ParentLost(number));
            }
        }
        true
    }

    fn cut(&mut self, at: u64, agent: usize, nanoseconds: u64, [above, below]: [u64; 2]) -> bool {
        let is_noticed =
            !self.setup.on_failure.adopts() || self.is_noticed(Fault::Cut { agent: agent as u32, nanoseconds });
        let Link { parent, parent_listens, child_listens, cut, .. } = self.links[self.members[agent].link as usize];
        let runs = |member: usize| self.members[member].state == State::Joined;
        let has_link = runs(agent) && runs(parent as usize) && parent_listens && child_listens && !cut;
        if has_link && is_noticed {
            self.hit(agent);
        }
        let member = &self.members[agent];
        let link = &mut self.links[member.link as usize];
        if has_link && !is_noticed {
            link.hold(at + nanoseconds);
            return true;
        }
        if !has_link {
            return false;
        }
        link.cut = true;
        self.members[agent].cut_until = at.saturating_add(nanoseconds);
        let (member, link) = (&self.members[agent], &self.links[self.members[agent].link as usize]);
        self.queue.push(at + above, link.parent, EventKind::ChildLost(member.link));
        self.queue.push(at + below, link.child, EventKind::ParentLost(member.link));
        true
    }

    /// An agent, or the root, stops. It finds that out when it goes on. If that takes longer than `limit`, its peers give it up.
    fn stall(&mut self, at: u64, agent: usize, nanoseconds: u64, limit: Duration, [above, below]: [u64; 2]) -> bool {
        self.processors.stall(agent, at, nanoseconds);
        let adopts = self.setup.on_failure.adopts();
        if !adopts || nanoseconds < self.setup.dead_time.as_nanos() as u64 || self.members[agent].state != State::Joined
        {
            return true;
        }
        self.queue.push(at + nanoseconds, agent as u32, EventKind::Stopped(nanoseconds));
        let silent_from = at + self.setup.dead_time.as_nanos() as u64 + above;
        for now in
            (silent_from..at + nanoseconds.min(limit.as_nanos() as u64)).step_by(SILENCE_TOLD.as_nanos() as usize)
        {
            for (number, link) in (0..).zip(&self.links).filter(|(_, link)| link.child as usize == agent) {
                self.queue.push(now, link.parent, EventKind::ChildSilent(number));
            }
        }
        if nanoseconds < limit.as_nanos() as u64 {
            return true;
        }
        self.hit(agent);
        let dead = at + limit.as_nanos() as u64;
        for (number, link) in (0..).zip(&self.links).filter(|(_, link)| link.parent_listens || link.child_listens) {
            // Heartbeats are more frequent than losses: silence is noticed soon after the dead time.
            let noticed = dead + if link.child as usize == agent { above } else { below } / 8;
            if link.child as usize == agent || link.parent as usize == agent {
                self.queue.push(noticed, link.parent, EventKind::ChildLost(number));
                self.queue.push(noticed, link.child, EventKind::ParentLost(number));
            }
        }
        true
    }

    // ---- the end ----

    /// Checks that no agent, rank or message is left once no event is left, and that the session ended as expected.
    pub(crate) fn check_end(&mut self) -> Result<(), Violation> {
        let now = self.queue.now();
        let fail = |why: String| Err(Violation::new(now, why));
        let Some((over, outcome)) = self.outcome.clone() else {
            return fail(format!("no event is left, but the session has not ended: {}", self.oracle.state()));
        };
        for (number, member) in self.members.iter().enumerate() {
            if !matches!(member.state, State::Left | State::Crashed) {
                return fail(format!("agent {number} has not exited: {:?}", member.state));
            }
            if let Some(rank) = member.ranks.alive() {
                return fail(format!("rank {rank} of agent {number} is still running"));
            }
        }
        if self.messages.len() > 0 {
            return fail(format!("{} messages were never delivered", self.messages.len()));
        }
        self.oracle.check_end(over, &outcome, self.expected_end, &self.casualties)?;
        let last_fault = self.setup.faults.faults.last();
        let last = last_fault.map_or(0, |timed| {
            let is_lost_late = matches!(timed.fault, Fault::Stall { .. }) && self.is_noticed(timed.fault);
            let limit = if is_lost_late { STOP_TIME.as_nanos() as u64 } else { 0 };
            timed.at + limit + timed.detected_after[0].max(timed.detected_after[1])
        });
        if self.setup.checked && over > last + END_AFTER_FAULT_MAX {
            let late = (over - last) / 1_000_000_000;
            return fail(format!("the session ended only {late} s after the last fault"));
        }
        self.counts.over = over;
        self.counts.note_member(MemberKind::Root, 0, self.root.cache_peaks(), self.root.gets());
        Ok(())
    }

    /// Records the cache peaks and the get counts of an agent that is about to exit.
    fn note_agent(&mut self, here: usize) {
        let member = &self.members[here];
        if let Some(core) = &member.core {
            let kind = if member.children.is_empty() { MemberKind::Leaf } else { MemberKind::Inner };
            self.counts.note_member(kind, member.depth, core.cache_peaks(), core.gets());
        }
    }

    /// Records an answer to a request that no simulated rank makes.
    pub(crate) fn unexpected(&mut self, clock: u64, answer: &Answer) {
        self.oracle.fail(Violation::new(clock, format!("a rank got an answer without a request: {answer:?}")));
    }
}
