//! Brings files of ranks back once they have ended.

use tokio::sync::oneshot;

use super::AgentDriver;
use crate::core::CollectPlan;
use crate::driver::collector;
use crate::driver::startup::{Startup, rank_places};

impl AgentDriver {
    /// Returns which files of ranks are brought back, if any are.
    pub(in crate::driver) fn collects(&self) -> Option<&CollectPlan> {
        self.startup.as_ref().map(|startup| &startup.session().collect).filter(|plan| !plan.is_empty())
    }

    /// Begins to send the files of ranks that are brought back. `None` if none are.
    pub(in crate::driver) fn collect(&self) -> Option<oneshot::Receiver<()>> {
        let plan = self.collects()?.clone();
        // That of the last start. Ranks that others have spawned have no directory that the user knows.
        let started = self.namespaces.iter().filter(|(_, local)| local.plan().spawner.is_none());
        let (_, last) = started.max_by_key(|(id, _)| **id)?;
        let stage = self.startup.as_ref().and_then(Startup::stage_directory);
        let (agent, tasks) = (self.here.head(), &self.links.tasks);
        Some(collector::begin(plan, agent, rank_places(last.plan(), agent), stage, self.parent.clone(), tasks))
    }
}
