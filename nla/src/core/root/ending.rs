//! From a failure, a signal or the last exit to the end of the session.

use std::time::Duration;

use pmi::Ranks;

use super::{Notice, Phase, Root, RootAction, SIGINT, SIGKILL, SIGTERM, Turn};
use crate::core::cause::{Cause, Failure, Outcome, elect};
use crate::core::ids::{AgentId, GuardianAt, NamespaceId, Time};
use crate::core::limits::{END_MARGIN, FAILURES_SINGLE_MAX, GATHER_WINDOW, NEIGHBOURS_MAX, REJOIN_MARGIN};
use crate::core::message::{Down, NO_SIGNAL, Reply};
use crate::core::parent::Parent;
use crate::core::reason::LossReason;
use crate::core::survey::SurveyCause;

impl Root {
    /// Takes a failure. The first one opens the window in which others can arrive before the first cause is elected.
    pub(super) fn judge(&mut self, failure: Failure, turn: &mut Turn<'_>) {
        if failure.namespace != NamespaceId::FIRST && self.is_forgotten(failure.namespace) {
            // Several agents may report that a spawn has failed. Failures of agents name the first namespace.
            return;
        }
        if let Cause::NotStarted { why } = &failure.cause
            && self.namespaces.get(&failure.namespace).is_some_and(|ns| ns.plan.spawner.is_some())
        {
            // A spawn that fails concerns only the rank that asked for it.
            return self.undo(failure.namespace, why.to_string(), turn);
        }
        let is_loss = matches!(failure.cause, Cause::Lost { .. });
        if self.adopts() && (self.failures.contains(&failure) || is_loss && self.lost.contains(&failure.agent)) {
            // An agent that has joined again repeats it, or the loss was noticed at both ends of a link.
            return;
        }
        let is_restarting = matches!(self.phase, Phase::Restarting { .. });
        let leads_to_restart = self.session.on_failure.restarts(&failure.cause, self.session.has_ports);
        if is_restarting && leads_to_restart && !is_loss {
            // A consequence of the failure that all ranks are being ended for.
            return;
        }
        // The user knows only one job, however often it has started.
        let namespace = if failure.namespace == self.job { NamespaceId::FIRST } else { failure.namespace };
        let failure = Failure { namespace, ..failure };
        let survives = self.session.on_failure.survives(&failure.cause);
        if self.revive(&failure, turn) {
            return;
        }
        if is_loss {
            self.tell_stop(turn);
        }
        turn.push(RootAction::Notice(Notice::Failure(failure.clone())));
        let lost = failure.agent;
        if is_loss {
            self.note_lost(&failure, turn);
            let can_do_without = leads_to_restart || self.session.moves_ranks();
            if can_do_without && self.first.is_none() && self.is_spare(lost) {
                return;
            }
        }
        let goes_on = matches!(self.phase, Phase::Running) && survives;
        if self.failures.len() < FAILURES_SINGLE_MAX as usize {
            if goes_on && self.has_others_than(&failure) {
                turn.push(RootAction::Notice(Notice::GoesOn(failure.clone())));
            }
            self.failures.push(failure);
        } else {
            self.failures_more = self.failures_more.saturating_add(1);
        }
        if is_loss {
            // All ranks may have succeeded, but what the agent had still to pass on is lost.
            let outcome = self.reached();
            self.spoil_success(&outcome, "an agent was lost before the end");
        }
        if goes_on {
            return;
        }
        let begins_to_gather = match self.phase {
            Phase::Joining { .. } | Phase::Staging | Phase::Running => true,
            Phase::Restarting { .. } => !leads_to_restart,
            _ => false,
        };
        if begins_to_gather {
            self.enter(Phase::Gathering { until: turn.now + GATHER_WINDOW }, "a failure was reported");
        }
    }

    /// Whether ranks run that this failure does not concern.
    fn has_others_than(&self, failure: &Failure) -> bool {
        self.namespaces.iter().any(|(id, ns)| {
            let lost = ns.plan.ranks_at(failure.agent).filter(|_| failure.is_loss());
            let mut others = ns.not_gone(&Ranks::range(0..ns.plan.size)).difference(lost.unwrap_or(&Ranks::new()));
            if *id == failure.namespace {
                others = others.difference(&failure.ranks);
            }
            !others.is_empty()
        })
    }

    /// Notes the loss of an agent, and of those below it if they can join no ancestor.
    pub(super) fn note_lost(&mut self, loss: &Failure, turn: &mut Turn<'_>) {
        let agent = loss.agent;
        let adopts = self.adopts();
        // If the session ends, such an agent ends its ranks itself, gives them their grace, and may be lost afterwards.
        let ends_itself = !adopts && matches!(&loss.cause, Cause::Lost { why } if why.is_of_guardian());
        let takes_others = !self.session.has_ports && !ends_itself;
        let below = self.tree.of(agent).filter(|_| takes_others).map_or(0, |below| below.size() - 1);
        for agent in (agent.0..=agent.0 + below).map(AgentId) {
            let is_new = self.lost.insert(agent);
            if ends_itself && is_new {
                self.ends_later.push((turn.now + self.session.kill_grace + END_MARGIN, agent));
            }
            if !ends_itself && self.without_guardian.insert(agent) {
                turn.push(RootAction::EndGuardian(agent));
                if adopts && self.session.has_ports {
                    self.ends_later.push((turn.now + self.session.rejoin_time(), agent));
                }
            }
        }
        self.restarts.on_loss(agent, turn.now + self.time_to_end(loss.agent, Some(loss)));
        if let Phase::Restarting { until, .. } = &mut self.phase {
            // Agents wait for the children of the lost one before they answer.
            *until = (*until).max(self.restarts.not_before() + self.session.kill_grace + END_MARGIN);
        }
    }

    /// Tells the other agents on the machine of a lost one to end its guardian: it may be stopped like the agent itself.
    pub(super) fn on_neighbours(
        &mut self,
        lost: AgentId,
        guardian: GuardianAt,
        neighbours: &[AgentId],
        turn: &mut Turn<'_>,
    ) {
        let left = neighbours.iter().copied().filter(|agent| !self.lost.contains(agent));
        for agent in left.take(NEIGHBOURS_MAX) {
            let child = self.children.toward(agent);
            turn.extend(child.map(|child| Self::send(child, Down::EndNeighbour { agent, lost, guardian })));
        }
    }

    /// Returns how long the ranks of the lost `agent`, which cannot be reached, may run on after this loss.
    pub(super) fn time_to_end(&self, agent: AgentId, loss: Option<&Failure>) -> Duration {
        if self.without_processes.contains(&agent) {
            return Duration::ZERO;
        }
        let time = self.session.adoption_time();
        // The agent above it may look for an ancestor first, before the agent itself does.
        let is_below_lost = |loss: &Failure| matches!(loss.cause, Cause::Lost { why: LossReason::LostBy(_) });
        if loss.is_some_and(is_below_lost) { 2 * time } else { time }
    }

    /// All processes of an agent have ended. If it is lost, nothing waits for its ranks any more.
    pub(super) fn on_agent_ended(&mut self, agent: AgentId, now: Time) {
        self.without_processes.insert(agent);
        self.restarts.on_agent_ended(agent, now);
    }

    /// Gives up the orphaned children whose processes have ended: they will not join.
    pub(super) fn lose_ended_orphans(&mut self, turn: &mut Turn<'_>) {
        while let Some(child) = self.without_processes.iter().copied().find(|agent| self.children.is_orphaned(*agent)) {
            self.on_child_lost(child, Cause::Lost { why: LossReason::ProcessesEnded }, turn);
        }
    }

    /// Undoes a spawn that failed, and forgets its namespace.
    fn undo(&mut self, namespace: NamespaceId, why: String, turn: &mut Turn<'_>) {
        let requester = self.namespaces.get_mut(&namespace).and_then(|ns| ns.requester.take());
        let children = self.forget(namespace);
        turn.extend(children.into_iter().map(|child| RootAction::ToChild(child, Down::Undo { namespace })));
        if let Some(requester) = requester {
            self.reply(requester, Reply::Spawned(Err(why)), turn);
        }
    }

    /// Reports ranks that ended with code 0 where others still need them.
    pub(super) fn report_early_exits(&mut self, turn: &mut Turn<'_>) {
        let early: Vec<_> = self
            .namespaces
            .values()
            .filter_map(|ns| ns.exited_early(turn.now).map(|(ranks, in_fence)| (ns.plan.id, ranks, in_fence)))
            .collect();
        for (namespace, ranks, in_fence) in early {
            let agent = self.agent_of(namespace, ranks.first());
            let cause = Cause::ExitedEarly { in_fence };
            if let Some(ns) = self.namespaces.get_mut(&namespace) {
                ns.on_early_reported();
            }
            self.judge(Failure { at: turn.now, agent, namespace, ranks: ranks.clone(), cause }, turn);
            if self.goes_on() {
                self.on_dead(namespace, ranks, turn);
            }
        }
    }

    pub(super) fn on_interrupt(&mut self, signal: i32, turn: &mut Turn<'_>) {
        match &self.phase {
            // Only output is left, and the user does not want it.
            Phase::Flushing { outcome: Outcome::Success | Outcome::Survived { .. } } => {
                self.over(Outcome::Interrupted { signal }, "the user interrupted the output", turn);
            }
            // Only processes that ranks have left run, and the user does not want to wait for them.
            Phase::Ending { outcome: Outcome::Success, .. } => self.end_left(turn),
            // Resource managers and scripts repeat SIGTERM and SIGHUP: the ranks keep their grace, and their last words.
            Phase::Flushing { .. } | Phase::Ending { .. } if signal != SIGINT => {}
            Phase::Flushing { outcome } => self.over(outcome.clone(), "the user interrupted the output", turn),
            Phase::Ending { interrupted: false, .. } => self.note_interrupted(None),
            Phase::Ending { interrupted: true, .. } => {
                // The second Ctrl-C ends the grace.
                self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, turn);
                self.note_interrupted(Some(turn.now + END_MARGIN));
            }
            Phase::Joining { .. }
            | Phase::Staging
            | Phase::Running
            | Phase::Gathering { .. }
            | Phase::Restarting { .. }
            | Phase::Over => {
                // Before the launch, agents may have failed because the same Ctrl-C reached them.
                let is_failing = matches!(self.phase, Phase::Gathering { .. }) && self.first.is_none();
                let outcome = if is_failing { self.elected() } else { Outcome::Interrupted { signal } };
                // Asked before the ranks are signalled, so the answers are about the time before.
                if self.namespaces.values().any(|ns| ns.waiting_since().is_some()) {
                    self.begin_survey(SurveyCause::Asked, turn);
                }
                self.end(outcome, signal, "the user interrupted the session", turn);
                if signal == SIGINT {
                    self.note_interrupted(None);
                }
            }
        }
    }

    /// Ends the processes that ranks have left at once, if all ranks have ended well.
    pub(super) fn end_left(&mut self, turn: &mut Turn<'_>) {
        if let Phase::Ending { outcome: Outcome::Success, .. } = self.phase {
            self.to_children(&Down::End { signal: SIGKILL, grace: Duration::ZERO }, turn);
        }
    }

    /// Notes a Ctrl-C while the session ends. `new_until` replaces the deadline of the end.
    fn note_interrupted(&mut self, new_until: Option<Time>) {
        if let Phase::Ending { outcome, until, .. } = &self.phase {
            let (outcome, until) = (outcome.clone(), new_until.unwrap_or(*until));
            self.enter(Phase::Ending { outcome, until, interrupted: true }, "the user interrupted the session");
        }
    }

    /// Ends the session with `outcome`: all ranks get `signal` first, SIGKILL after the grace. With [`NO_SIGNAL`] none is left.
    pub(super) fn end(&mut self, outcome: Outcome, signal: i32, why: &'static str, turn: &mut Turn<'_>) {
        if self.is_ending() {
            return;
        }
        let is_told = match &outcome {
            Outcome::Interrupted { .. } => signal == SIGTERM,
            Outcome::Failed { first, .. } => matches!(first.cause, Cause::Terminated { .. }),
            _ => false,
        };
        let grace = self.kill_wait.filter(|_| is_told).unwrap_or(self.session.kill_grace);
        if !matches!(outcome, Outcome::Success | Outcome::Failed { .. })
            && let went_on @ Outcome::Survived { .. } = self.reached()
        {
            turn.push(RootAction::Notice(Notice::WentOn(went_on)));
        }
        if outcome != Outcome::Success {
            turn.push(RootAction::Notice(Notice::Ending(outcome.clone(), signal, grace)));
        }
        if self.first.is_some() {
            // No rank was started: an agent that has joined leaves when its link closes.
            self.over(outcome, why, turn);
            return;
        }
        self.to_children(&Down::End { signal, grace }, turn);
        self.children.hurry(turn.now + self.session.dead_time + REJOIN_MARGIN);
        let graces = if signal == NO_SIGNAL { grace.saturating_mul(2) } else { grace };
        let until = turn.now.saturating_add(graces).saturating_add(self.end_margin(&outcome));
        self.enter(Phase::Ending { outcome, until, interrupted: false }, why);
    }

    /// Ends the session because its output cannot be written. If it is ending already, it is no success any more.
    pub(super) fn on_output_lost(&mut self, lost: Outcome, turn: &mut Turn<'_>) {
        const WHY: &str = "the output cannot be written, or the input cannot be read";
        if !self.spoil_success(&lost, WHY) {
            self.end(lost, SIGTERM, WHY, turn);
        }
    }

    /// Replaces the outcome of a session that is ending in success. Returns whether it was.
    fn spoil_success(&mut self, outcome: &Outcome, why: &'static str) -> bool {
        let outcome = outcome.clone();
        match &self.phase {
            &Phase::Ending { outcome: Outcome::Success, until, interrupted } => {
                self.enter(Phase::Ending { outcome, until, interrupted }, why);
            }
            Phase::Flushing { outcome: Outcome::Success } => self.enter(Phase::Flushing { outcome }, why),
            _ => return false,
        }
        true
    }

    /// Elects the first cause, and ends or restarts the session.
    pub(super) fn end_gathering(&mut self, turn: &mut Turn<'_>) {
        let outcome = self.elected();
        if !self.begin_restart(&outcome, turn) {
            self.end(outcome, SIGTERM, "the first cause is elected", turn);
        }
    }

    pub(super) fn over(&mut self, outcome: Outcome, why: &'static str, turn: &mut Turn<'_>) {
        self.to_children(&Down::Leave, turn);
        turn.extend(self.killed.drain(..).map(|killed| RootAction::Notice(Notice::Killed(killed))));
        if self.leftovers > 0 {
            let (left, grace) = (std::mem::take(&mut self.left), self.session.kill_grace);
            turn.push(RootAction::Notice(Notice::Leftovers(self.leftovers, left, grace)));
        }
        self.enter(Phase::Over, why);
        turn.push(RootAction::Over(outcome));
    }

    /// The outcome of a session whose ranks have all ended by themselves.
    pub(super) fn reached(&self) -> Outcome {
        match self.elected() {
            Outcome::Failed { first, others } if self.goes_on() => {
                let dead = self.namespaces.get(&NamespaceId::FIRST).map(|ns| ns.dead().clone()).unwrap_or_default();
                Outcome::Survived { first, others, dead }
            }
            outcome => outcome,
        }
    }

    /// Returns the agents of the other failures with which ranks did not start for the same reason as in `first`: an agent for
    /// each failure. The agents of failures that were only counted are not known.
    pub fn failed_alike(&self, first: &Failure) -> Vec<AgentId> {
        if !matches!(first.cause, Cause::NotStarted { .. } | Cause::NotStaged { .. }) {
            return Vec::new();
        }
        let alike = self.failures.iter().filter(|failure| *failure != first && failure.cause == first.cause);
        alike.map(|failure| failure.agent).collect()
    }

    /// The outcome that the reported failures make. Where the session went on, the first cause is among the failures
    /// of the earliest one's time.
    pub(super) fn elected(&self) -> Outcome {
        let earliest = self.failures.iter().map(|failure| failure.at).min().unwrap_or_default();
        let is_early = |failure: &&Failure| !self.goes_on() || failure.at <= earliest + GATHER_WINDOW;
        match elect(self.failures.iter().filter(is_early)) {
            Some(first) => {
                let others = (self.failures.len() as u64 - 1).saturating_add(self.failures_more);
                Outcome::Failed { first: first.clone(), others }
            }
            None => Outcome::Success,
        }
    }
}
