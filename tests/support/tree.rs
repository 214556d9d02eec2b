//! The shape of a run's tree of agents, computed from its specification: which agents are inner ones, which are leaves,
//! and which process is which agent.

use nla::core::{AgentId, Subtree};

use crate::process::Process;
use crate::world::World;

/// The tree of a run of known shape.
#[derive(Copy, Clone, Debug)]
pub struct Tree(Subtree);

impl Tree {
    /// Returns the tree of this number of agents.
    pub fn new(agents: u32, fanout: u32) -> Self {
        Self(Subtree::whole(agents, fanout))
    }

    /// Returns an agent with a parent agent and with children.
    pub fn inner(&self) -> u32 {
        self.find(|children, _| children > 0)
    }

    /// Returns an agent without children whose parent is an agent.
    pub fn leaf(&self) -> u32 {
        self.find(|children, parent| children == 0 && parent != AgentId::ROOT)
    }

    /// Returns the parent of `agent`; 0 is the launcher.
    pub fn parent(&self, agent: u32) -> u32 {
        self.0.parent_of(AgentId(agent)).unwrap_or(AgentId::ROOT).0
    }

    /// Returns how many links an agent has, to its children and to its parent. The launcher is agent 0.
    pub fn links(&self, agent: u32) -> usize {
        self.children(agent) + usize::from(agent != 0)
    }

    fn children(&self, agent: u32) -> usize {
        (1..self.0.size()).filter(|child| self.0.parent_of(AgentId(*child)) == Some(AgentId(agent))).count()
    }

    fn find(&self, fits: impl Fn(usize, AgentId) -> bool) -> u32 {
        let parent = |agent| self.0.parent_of(AgentId(agent)).unwrap_or(AgentId::ROOT);
        let found = (1..self.0.size()).find(|agent| fits(self.children(*agent), parent(*agent)));
        found.expect("the tree is large enough to have one")
    }

    /// Returns the process of `agent` in a run with as many ranks as agents: the parent of the rank with the same place
    /// in the order. Waits until all ranks have executed their programs.
    #[track_caller]
    pub fn process(&self, world: &World, agent: u32) -> Process {
        let parent = world.all_ranks(self.0.size() - 1)[agent as usize - 1].parent;
        Process::of(parent).expect("the agent of a living rank lives")
    }
}
