//! The arithmetic of the tree's shape.
//!
//! Agents are numbered in pre-order, so a subtree is one interval of numbers, and its first number is its head. The
//! interval and the fan-out determine the whole subtree: its shape is never sent.

use serde::Serialize;

use super::ids::AgentId;

/// A subtree: an agent (its head) and all of its descendants.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Subtree {
    head: u32,
    size: u32,
    fanout: u32,
}

impl Subtree {
    /// The whole tree: the launcher with `agents` agents below it. A fan-out below 1 counts as 1.
    pub fn whole(agents: u32, fanout: u32) -> Self {
        Self { head: 0, size: agents.saturating_add(1), fanout: fanout.max(1) }
    }

    /// The agent at the top of this subtree.
    pub fn head(&self) -> AgentId {
        AgentId(self.head)
    }

    /// The number of agents in it, with the head.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether `agent` is in it.
    pub fn contains(&self, agent: AgentId) -> bool {
        agent.0.wrapping_sub(self.head) < self.size
    }

    /// The subtrees of the head's children: at most `fanout`, in order. Their sizes differ by at most one.
    pub fn children(&self) -> impl Iterator<Item = Self> + use<> {
        let (first, rest) = (u64::from(self.head) + 1, u64::from(self.size) - 1);
        let count = rest.min(u64::from(self.fanout));
        let fanout = self.fanout;
        (0..count).map(move |i| {
            let (from, to) = (rest * i / count, rest * (i + 1) / count);
            Self { head: (first + from) as u32, size: (to - from) as u32, fanout }
        })
    }

    /// The child subtree that contains `agent`; `None` if `agent` is the head or outside.
    pub fn toward(&self, agent: AgentId) -> Option<Self> {
        self.children().find(|child| child.contains(agent))
    }

    /// The subtree with `agent` at its head, if it is in this one.
    pub fn of(&self, agent: AgentId) -> Option<Self> {
        self.path_to(agent).last()
    }

    /// The parent of `agent`, if it is in this subtree too.
    pub fn parent_of(&self, agent: AgentId) -> Option<AgentId> {
        self.path_to(agent).take_while(|here| here.head() != agent).last().map(|here| here.head())
    }

    /// Returns the subtrees that contain `agent`, from this one to the one that it heads.
    fn path_to(&self, agent: AgentId) -> impl Iterator<Item = Self> {
        std::iter::successors(self.contains(agent).then_some(*self), move |here| here.toward(agent))
    }

    /// The head without its descendants.
    pub fn head_alone(&self) -> Self {
        Self { size: 1, ..*self }
    }

    /// The number of links between the head and the agent farthest from it.
    pub fn depth(&self) -> u32 {
        // The largest child is as deep as any other: depth never falls with size. A loop, because a chain of 2^20 agents
        // is that deep.
        let (mut rest, mut depth) = (self.size - 1, 0);
        while rest > 0 {
            rest = rest.div_ceil(self.fanout.min(rest)) - 1;
            depth += 1;
        }
        depth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::limits::AGENTS_MAX;

    fn walk(tree: Subtree, seen: &mut Vec<u32>, fanout: u32) {
        seen.push(tree.head().0);
        let children: Vec<_> = tree.children().collect();
        assert!(children.len() <= fanout as usize);
        let sizes: Vec<_> = children.iter().map(Subtree::size).collect();
        if let (Some(least), Some(most)) = (sizes.iter().min(), sizes.iter().max()) {
            assert!(most - least <= 1, "{sizes:?}");
        }
        for child in children {
            walk(child, seen, fanout);
        }
    }

    #[test]
    fn every_agent_is_reached_once_and_in_order() {
        for agents in (0..70).chain([255, 1000, 4096]) {
            for fanout in [1, 2, 3, 8, 32, 5000] {
                if fanout == 1 && agents > 255 {
                    continue; // a chain: as deep as it has agents
                }
                let tree = Subtree::whole(agents, fanout);
                let mut seen = Vec::new();
                walk(tree, &mut seen, fanout);
                assert_eq!(seen, (0..=agents).collect::<Vec<_>>(), "{agents} agents, fan-out {fanout}");
            }
        }
    }

    #[test]
    fn parents_and_paths_agree() {
        let tree = Subtree::whole(100, 3);
        assert_eq!(tree.parent_of(AgentId(0)), None);
        assert_eq!(tree.parent_of(AgentId(101)), None);
        for agent in (1..=100).map(AgentId) {
            let parent = tree.parent_of(agent).expect("each agent has a parent");
            let above = tree.of(parent).expect("the parent is in the tree");
            assert!(above.children().any(|child| child.head() == agent));
        }
    }

    #[test]
    fn depth_is_logarithmic() {
        assert_eq!(Subtree::whole(0, 2).depth(), 0);
        assert_eq!(Subtree::whole(2, 2).depth(), 1);
        assert_eq!(Subtree::whole(64, 2).depth(), 6);
        assert_eq!(Subtree::whole(16_384, 32).depth(), 3);
        assert_eq!(Subtree::whole(5, 1).depth(), 5);
    }

    #[test]
    fn depth_is_that_of_the_deepest_child() {
        for (size, fanout) in (1..300).flat_map(|size| [1, 2, 3, 7, 32].map(|fanout| (size, fanout))) {
            let tree = Subtree { head: 0, size, fanout };
            let deepest = tree.children().map(|child| child.depth() + 1).max().unwrap_or(0);
            assert_eq!(tree.depth(), deepest, "{size} agents, fan-out {fanout}");
        }
    }

    #[test]
    fn the_depth_of_the_longest_chain_needs_little_stack() {
        let depth = || Subtree::whole(AGENTS_MAX, 1).depth();
        let thread = std::thread::Builder::new().stack_size(64 * 1024).spawn(depth).unwrap();
        assert_eq!(thread.join().unwrap(), AGENTS_MAX);
    }

    #[test]
    fn a_head_alone_has_no_children() {
        let head = Subtree::whole(4, 2).of(AgentId(1)).unwrap().head_alone();
        assert_eq!((head.head(), head.size(), head.children().count()), (AgentId(1), 1, 0));
    }
}
