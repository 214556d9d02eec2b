//! Failures that the session survives: ranks that start again, and the expectations that follow from a fault.

use nla::core::limits::STOP_TIME;
use nla::core::{Agent, AgentId, FailurePolicy, Input};
use pmi::Rank;

use crate::events::EventKind;
use crate::faults::Fault;
use crate::oracle::{ExpectedEnd, Violation};
use crate::world::{Member, NS, State, World};

impl World {
    /// Starts a rank again whose process has ended, or whose agent was lost.
    pub(crate) fn restart_rank(&mut self, here: usize, clock: &mut u64, rank: Rank, start: u32) {
        if let Some(other) = self.elsewhere(here, rank) {
            let why = format!("rank {rank} starts on agent {here} and still runs on agent {other}");
            self.oracle.fail(Violation::new(*clock, why));
        }
        let ignores_term = self.setup.ignoring_term.contains(rank);
        let index = self.members[here].ranks.restart(rank, start, ignores_term);
        *clock += self.setup.costs.rank_start;
        self.counts.restarted += 1;
        let boot = self.setup.costs.rank_boot + self.random_delay();
        self.queue.push(*clock + boot, here as u32, EventKind::RankStep(index as u32, start));
        self.input(here, clock, Input::Started(NS, std::iter::once(rank).collect()));
    }

    /// Another agent on which this rank runs. An agent that is stopped cannot end its ranks.
    fn elsewhere(&self, here: usize, rank: Rank) -> Option<usize> {
        let runs = |number: usize| {
            let member = &self.members[number];
            member.state == State::Joined && member.ranks.runs(rank) && !self.is_stopped_for_long(number)
        };
        (1..self.members.len()).find(|number| *number != here && runs(*number))
    }

    fn is_stopped_for_long(&self, agent: usize) -> bool {
        self.setup.faults.faults.iter().any(|timed| match timed.fault {
            Fault::Stall { agent: stopped, .. } | Fault::Pause { agent: stopped, .. } => {
                stopped as usize == agent && self.is_noticed(timed.fault)
            }
            _ => false,
        })
    }

    /// Whether links count as lost after the silence that this fault causes.
    pub(crate) fn is_noticed(&self, fault: Fault) -> bool {
        let (nanoseconds, limit) = match fault {
            Fault::Stall { nanoseconds, .. } => (nanoseconds, STOP_TIME),
            Fault::Pause { nanoseconds, .. } | Fault::Cut { nanoseconds, .. } => (nanoseconds, self.setup.dead_time),
            Fault::Crash { .. } | Fault::Kill { .. } | Fault::Interrupt => return true,
        };
        self.setup.on_failure.adopts() && nanoseconds >= limit.as_nanos() as u64
    }

    /// A rank fails by itself, or it exits early with code 0.
    pub(crate) fn on_rank_fails(&mut self, here: usize, rank: u32, early: bool) {
        let expected = match self.setup.on_failure {
            FailurePolicy::RestartRank if !early => return,
            _ if self.casualties.has_agent(here as u32) => ExpectedEnd::Either,
            FailurePolicy::Continue => ExpectedEnd::Survived,
            FailurePolicy::Abort | FailurePolicy::Restart | FailurePolicy::RestartRank => ExpectedEnd::Failure,
        };
        self.casualties.add_rank(rank);
        self.expect(here, expected);
    }

    /// Raises the expected end of the session to `end`, because of a rank of agent `here`. If that agent is lost before
    /// others hear of it, the session need not end like this.
    pub(crate) fn expect(&mut self, here: usize, end: ExpectedEnd) {
        if end > self.expected_end {
            self.expected_end = end;
            self.expected_by = Some(here);
        }
    }

    /// A process has ended. Some of its entries may be known elsewhere.
    pub(crate) fn note_unfinished(&mut self, here: usize, rank: u32, number: u32) {
        let left = self.members[here].ranks.take_unfinished(rank);
        self.oracle.ledger.leave(rank, here as u32, number, left);
    }

    /// A fault has hit an agent: it and its ranks are lost to the session.
    pub(crate) fn hit(&mut self, agent: usize) {
        if self.casualties.has_agent(agent as u32) {
            return;
        }
        let living: Vec<_> = self.members[agent].ranks.living().collect();
        for (rank, number) in living {
            if self.setup.checked {
                self.note_unfinished(agent, rank, number);
            }
            self.casualties.add_rank(rank);
        }
        // Count placed ranks that the agent had not started yet as well.
        let placed = self.setup.placement.iter().find(|(at, _)| at.0 as usize == agent);
        let unfinished = placed.map(|(_, ranks)| ranks.difference(&self.oracle.finished)).unwrap_or_default();
        unfinished.iter().for_each(|rank| self.casualties.add_rank(rank.0));
        self.casualties.add_agent(agent as u32);
        if self.expected_by == Some(agent) && self.expected_end == ExpectedEnd::Failure {
            self.expected_end = ExpectedEnd::Either;
        }
    }

    /// An agent has lost a child. If it has no plan of the session yet, no ancestor can adopt the agents below: the session
    /// cannot begin.
    pub(crate) fn on_child_loss(&mut self, here: usize, child: u32) {
        if here > 0 && !self.members[here].is_configured && !self.casualties.has_agent(here as u32) {
            let below = self.tree.of(AgentId(child)).map_or(0, |below| below.size());
            (child..child + below).for_each(|agent| self.hit(agent as usize));
            // The report may be lost with an agent above.
            self.expected_end = self.expected_end.max(ExpectedEnd::Either);
        }
    }

    /// An orphaned agent gives up. Only an agent that was hit may do that, or one that no ancestor can know of.
    pub(crate) fn on_given_up(&mut self, here: usize, clock: u64) {
        if self.casualties.has_agent(here as u32) || self.outcome.is_some() || self.root.is_ending() {
            return;
        }
        let is_excused = !self.members[here].is_configured || self.expected_end > ExpectedEnd::Survived;
        if self.setup.checked && !is_excused {
            let why = format!("agent {here} was not hit, but no ancestor has accepted it in time");
            self.oracle.fail(Violation::new(clock, why));
        }
        self.counts.given_up += 1;
        self.hit(here);
    }

    /// How the session must end after this fault, which strikes now.
    pub(crate) fn expectation(&self, fault: Fault) -> ExpectedEnd {
        match (self.setup.on_failure, fault) {
            (_, Fault::Stall { .. } | Fault::Pause { .. }) if !self.is_noticed(fault) => ExpectedEnd::Success,
            (_, Fault::Cut { .. }) if self.setup.on_failure.adopts() && !self.is_noticed(fault) => ExpectedEnd::Success,
            _ if self.ranks_ended => ExpectedEnd::Either,
            (FailurePolicy::Abort | FailurePolicy::Restart, _) | (_, Fault::Interrupt) => ExpectedEnd::Failure,
            _ if self.counts.joined == 0 => ExpectedEnd::Either,
            (FailurePolicy::Continue, _) => ExpectedEnd::Survived,
            (FailurePolicy::RestartRank, Fault::Kill { .. }) => ExpectedEnd::Success,
            (
                FailurePolicy::RestartRank,
                Fault::Crash { agent }
                | Fault::Cut { agent, .. }
                | Fault::Stall { agent, .. }
                | Fault::Pause { agent, .. },
            ) => {
                let ranks = &self.members[agent as usize].ranks;
                let has_output = ranks.len() > 0 && ranks.living().count() < ranks.len();
                if has_output { ExpectedEnd::Either } else { ExpectedEnd::Success }
            }
        }
    }

    /// The root knows that all ranks have ended. If agents have not reached an ancestor yet, their last output may be lost.
    pub(crate) fn on_ranks_ended(&mut self) {
        self.ranks_ended = true;
        let awaits = |member: &Member| member.core.as_ref().is_some_and(Agent::awaits_agents);
        if self.root.awaits_agents() || self.members.iter().any(awaits) {
            self.expected_end = self.expected_end.max(ExpectedEnd::Either);
        }
    }

    /// The root has no agent left on which ranks of a lost one could start.
    pub(crate) fn on_no_spare(&mut self, clock: u64) {
        if self.setup.checked && self.casualties.agents() <= self.spares() {
            let why = format!("no spare was left after the loss of {} agents", self.casualties.agents());
            self.oracle.fail(Violation::new(clock, why));
        }
        self.expected_end = ExpectedEnd::Failure;
    }

    /// The number of agents that had no ranks at first.
    fn spares(&self) -> u32 {
        self.setup.agents - self.setup.placement.len() as u32
    }
}
