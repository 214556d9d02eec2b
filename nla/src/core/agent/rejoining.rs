//! The loss of the parent in a session that goes on: the agent joins an ancestor, and repeats its reports there.
//!
//! Messages that the lost parent had passed on are repeated too: reports of facts change nothing the second time, and
//! contributions to fences and requests are numbered.

use super::{Action, Agent, Phase, SIGKILL, Turn};
use crate::core::heritage::{Heritage, forgotten, missed};
use crate::core::ids::Time;
use crate::core::message::{Down, InquiryKind, NO_SIGNAL, OpenFence, Up};
use crate::core::parent::Parent;
use crate::core::reason::LossReason;
use crate::core::topology::Subtree;

impl Agent {
    /// The link to the parent was lost: looks for an ancestor, if the session goes on.
    pub(super) fn on_parent_link_lost(&mut self, why: &LossReason, turn: &mut Turn<'_>) {
        tracing::debug!(agent = self.id().0, %why, "the parent was lost");
        match (&self.plan, self.heritage(turn.now)) {
            (Some(plan), _) if self.stopped_at.is_some_and(|at| turn.now < at + plan.dead_time) => {
                // The parent has not been lost: it has given this agent up, and others may start its ranks.
                self.on_parent_lost(turn);
            }
            (Some(plan), Heritage::Adopted { .. }) => {
                turn.push(Action::Rejoin(turn.now + plan.rejoin_time()));
                self.is_orphaned = true;
            }
            _ => self.on_parent_lost(turn),
        }
    }

    /// The link to an ancestor is up: repeats all reports that it may lack.
    pub(super) fn on_rejoined_parent(&mut self, turn: &mut Turn<'_>) {
        if !std::mem::take(&mut self.is_orphaned) {
            return;
        }
        let fences = self.namespaces.iter().map(|(id, ns)| ns.exchange.open_fence(*id)).collect();
        let mut messages = vec![Up::Rejoined { has_plan: self.plan.is_some(), fences }];
        if self.ready_reported {
            messages.push(Up::Ready);
        }
        if self.is_start_reported && !self.low_limits.is_empty() {
            messages.push(Up::LowLimits(self.low_limits.clone()));
        }
        messages.extend(self.failures.iter().cloned().map(Up::Failed));
        for ns in self.namespaces.values().filter(|ns| !ns.undone) {
            messages.extend(ns.repeated());
        }
        messages.extend(self.requests.values().cloned());
        turn.extend(messages.into_iter().map(Action::ToParent));
    }

    /// Stores a request that is passed on, until it is answered.
    pub(super) fn note_request(&mut self, message: &Up) {
        let requester = match message {
            Up::Ask { requester, .. } => requester,
            Up::Inquire(inquiry) => &inquiry.requester,
            _ => return,
        };
        let key = (requester.agent, requester.namespace, requester.rank);
        if let Up::Inquire(inquiry) = message
            && matches!(inquiry.kind, InquiryKind::NodeForget)
        {
            self.requests.remove(&key);
        } else if self.adopts() {
            self.requests.insert(key, message.clone());
        }
    }

    /// Returns the messages that `child`'s head missed before it joined again.
    pub(super) fn missed_by(&self, now: Time, child: Subtree, has_plan: bool, fences: &[OpenFence]) -> Vec<Down> {
        let mut messages = Vec::new();
        if !has_plan {
            messages.extend(self.plan.clone().map(Down::Session));
        }
        if let Some(clearing) = &self.clearing {
            // Its ranks are to end, and none is to start.
            messages.extend(clearing.order_for(child.head()));
            return messages;
        }
        messages.extend(forgotten(fences, |id| self.namespaces.contains_key(&id)));
        for ns in self.namespaces.values() {
            let plan = ns.plan.as_deref();
            messages.extend(
                plan.into_iter().flat_map(|plan| missed(plan, &ns.exchange, &ns.dead, ns.undone, child, fences)),
            );
        }
        messages.push(match self.phase {
            Phase::Serving if self.suspended => Down::Suspend,
            Phase::Serving => Down::Resume,
            Phase::Ending { signal, kill_at: Some(at) } => Down::End { signal, grace: at.saturating_sub(now) },
            Phase::Lingering { until, signalled: false, .. } => {
                Down::End { signal: NO_SIGNAL, grace: until.saturating_sub(now) }
            }
            Phase::Ending { kill_at: None, .. } | Phase::Lingering { .. } | Phase::Sweeping | Phase::Swept => {
                Down::End { signal: SIGKILL, grace: Time::ZERO }
            }
            Phase::Over => Down::Leave,
        });
        messages
    }
}
