//! The launch of namespaces, and agents that could not be started.

use super::namespace::Namespace;
use super::{Phase, Root, Turn};
use crate::core::cause::{Cause, Failure};
use crate::core::exchange::Exchange;
use crate::core::ids::AgentId;
use crate::core::message::Requester;
use crate::core::parent::Parent;
use crate::core::plan::NamespacePlan;
use crate::core::reason::NotStartedReason;

impl Root {
    /// Launches a namespace. `requester` is the rank that spawned it, and is answered once all its ranks were started.
    pub(super) fn launch(&mut self, plan: NamespacePlan, requester: Option<Requester>, turn: &mut Turn<'_>) {
        self.launch_below(&plan, turn);
        let exchange = Exchange::new(&plan, self.tree, self.session.cache);
        self.namespaces.insert(plan.id, Namespace::new(plan, exchange, requester));
    }

    /// An agent could not be started. Ignored unless agents are still joining.
    pub(super) fn on_agent_failed(&mut self, agent: AgentId, why: NotStartedReason, turn: &mut Turn<'_>) {
        if let Phase::Joining { .. } = self.phase {
            self.judge(Failure::of_agent(turn.now, agent, Cause::NotStarted { why }), turn);
        }
    }
}
