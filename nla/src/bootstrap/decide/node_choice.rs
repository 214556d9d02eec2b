//! Chooses the nodes of the node list that a launch uses when some of them fail.
//!
//! Nodes are numbered by their index in the node list. The plan is made for the nodes that are not left out, so its
//! node numbers count only those.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

/// The nodes of a launch, its spares among them, and the targets on them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeChoice {
    /// The length of the node list.
    pub nodes: usize,
    /// The node of each target, from target 1 on. The targets of a node are adjacent.
    pub targets: Vec<usize>,
    /// The nodes that may be used: those of the targets, and spares that are started only if others fail.
    pub pool: BTreeSet<usize>,
    /// The nodes without targets that the plan passes over, as a rank map may do. They stay in the list for which the plan is
    /// made again, so that the map's numbers keep their meaning.
    pub passed_over: BTreeSet<usize>,
    /// The launch fails with fewer nodes than this.
    pub min: usize,
    /// The job uses at most this many nodes.
    pub max: usize,
    /// Remote shells and links form one tree, in which each agent has the number of its target (`--no-ports` with
    /// `--launch tree`). A failed node cannot be replaced in it: all agents are started again without that node.
    pub is_one_tree: bool,
}

impl NodeChoice {
    /// Returns the nodes to leave out because these targets failed, and those that are not needed; `None` if too few nodes
    /// remain.
    pub fn left_out(&self, failed: impl IntoIterator<Item = u32>) -> Option<BTreeSet<usize>> {
        let bad = self.nodes_of(failed);
        let good = self.pool.difference(&bad).copied();
        let used: BTreeSet<usize> = good.take(self.max).collect();
        let stays = |node: &usize| used.contains(node) || self.passed_over.contains(node);
        (used.len() >= self.min).then(|| (0..self.nodes).filter(|node| !stays(node)).collect())
    }

    /// Returns how long the next attempt may take if `left` remains until the deadline. Half of it is reserved if a
    /// failure would start all agents again.
    pub fn timeout(&self, left: Duration) -> Duration {
        let used: BTreeSet<usize> = self.targets.iter().copied().collect();
        let may_restart = self.is_one_tree && (self.pool.len() > used.len() || self.min < used.len());
        if may_restart { left / 2 } else { left }
    }

    /// Prepares to start all agents again. `node_of_agent` is a plan's, made without the nodes in `left_out`; the
    /// nodes of the `failed` targets are not used any more.
    pub fn restart(
        &mut self,
        node_of_agent: &[usize],
        left_out: &BTreeSet<usize>,
        failed: impl IntoIterator<Item = u32>,
    ) {
        self.exclude(failed);
        let kept = self.kept(left_out);
        self.targets = node_of_agent.iter().filter_map(|node| kept.get(*node).copied()).collect();
    }

    /// Excludes the nodes of these targets from this and all later launches.
    pub fn exclude(&mut self, failed: impl IntoIterator<Item = u32>) {
        let bad = self.nodes_of(failed);
        self.pool.retain(|node| !bad.contains(node));
    }

    /// Removes the targets on nodes that were [excluded](Self::exclude), to start agents on all others. For one tree, see
    /// [`restart`](Self::restart).
    pub fn retarget(&mut self) {
        self.targets.retain(|node| self.pool.contains(node));
    }

    /// Returns the target of each agent, in the order of agents. `node_of_agent` is a plan's, made without the nodes
    /// in `left_out`. `None` if the plan has more agents on a node than were started there.
    pub fn target_of_agent(&self, node_of_agent: &[usize], left_out: &BTreeSet<usize>) -> Option<Vec<u32>> {
        let kept = self.kept(left_out);
        let mut free = vec![VecDeque::new(); self.nodes];
        for (target, node) in (1..).zip(&self.targets) {
            free.get_mut(*node)?.push_back(target);
        }
        node_of_agent.iter().map(|node| free.get_mut(*kept.get(*node)?)?.pop_front()).collect()
    }

    /// Returns the targets on spare nodes: those on which no target is `used`, and none has `failed`.
    pub fn spares(&self, used: &[u32], failed: impl IntoIterator<Item = u32>) -> Vec<u32> {
        let mut taken = self.nodes_of(used.iter().copied());
        taken.append(&mut self.nodes_of(failed));
        let is_spare = |node: &usize| self.pool.contains(node) && !taken.contains(node);
        (1..).zip(&self.targets).filter(|(_, node)| is_spare(node)).map(|(target, _)| target).collect()
    }

    /// Returns the node of a target, if there is such a target.
    pub fn node_of(&self, target: u32) -> Option<usize> {
        self.targets.get((target as usize).checked_sub(1)?).copied()
    }

    fn nodes_of(&self, targets: impl IntoIterator<Item = u32>) -> BTreeSet<usize> {
        targets.into_iter().filter_map(|target| self.node_of(target)).collect()
    }

    fn kept(&self, left_out: &BTreeSet<usize>) -> Vec<usize> {
        (0..self.nodes).filter(|node| !left_out.contains(node)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(nodes: usize, targets: Vec<usize>, min: usize, max: usize) -> NodeChoice {
        let pool: BTreeSet<usize> = targets.iter().copied().collect();
        NodeChoice { nodes, pool, targets, passed_over: BTreeSet::new(), min, max, is_one_tree: false }
    }

    fn one_tree(pool: std::ops::Range<usize>, min: usize) -> NodeChoice {
        NodeChoice { pool: pool.collect(), is_one_tree: true, ..choice(5, vec![0, 1, 2], min, 3) }
    }

    #[test]
    fn failed_nodes_are_left_out_if_enough_remain() {
        // Five nodes, of which the plan uses three with two agents each; one more is a spare.
        let choice = choice(5, vec![0, 0, 1, 1, 2, 2, 3, 3], 3, 3);
        assert_eq!(choice.left_out([]), Some([3, 4].into()), "the spare is not needed");
        assert_eq!(choice.left_out([4]), Some([1, 4].into()), "one failed target fails its whole node");
        assert_eq!(choice.left_out([1, 8]), None, "two failed nodes, one spare");
        assert_eq!(
            (choice.node_of(0), choice.node_of(1), choice.node_of(8), choice.node_of(9)),
            (None, Some(0), Some(3), None)
        );
    }

    #[test]
    fn fewer_nodes_are_enough_if_the_user_said_so() {
        let choice = choice(3, vec![0, 1, 2], 2, 3);
        assert_eq!(choice.left_out([2]), Some([1].into()));
        assert_eq!(choice.left_out([2, 3]), None);
    }

    #[test]
    fn a_spare_takes_the_targets_of_a_failed_node() {
        // Two agents on each of the nodes 0 and 1; node 2 is a spare.
        let choice = choice(3, vec![0, 0, 1, 1, 2, 2], 2, 2);
        let left_out = choice.left_out([2]).unwrap();
        assert_eq!(left_out, [0].into());
        // The plan counts the nodes that are left: 0 is node 1 of the list, 1 is node 2.
        assert_eq!(choice.target_of_agent(&[0, 0, 1, 1], &left_out), Some(vec![3, 4, 5, 6]));
        assert_eq!(choice.target_of_agent(&[0, 0, 0, 1], &left_out), None, "three agents where two were started");
    }

    #[test]
    fn a_plan_may_pass_over_nodes() {
        // Ranks are on the nodes 1 and 3; node 4 is not needed, node 5 is a spare.
        let mut choice = choice(6, vec![1, 3, 5], 2, 2);
        choice.passed_over = [0, 2].into();
        let left_out = choice.left_out([]).unwrap();
        assert_eq!(left_out, [4, 5].into());
        assert_eq!(choice.target_of_agent(&[1, 3], &left_out), Some(vec![1, 2]));
        let left_out = choice.left_out([1]).unwrap();
        assert_eq!(left_out, [1, 4].into());
        // The plan counts the nodes 0, 2, 3 and 5 of the list.
        assert_eq!(choice.target_of_agent(&[3, 2], &left_out), Some(vec![3, 2]));
        assert_eq!(choice.target_of_agent(&[1], &left_out), None, "no agent was started there");
        choice.restart(&[2, 3], &left_out, [1]);
        assert_eq!(choice.targets, [3, 5]);
    }

    #[test]
    fn the_targets_on_unused_nodes_without_failures_are_spares() {
        // Two agents on each of five nodes.
        let choice = choice(5, vec![0, 0, 1, 1, 2, 2, 3, 3, 4, 4], 2, 2);
        assert_eq!(choice.spares(&[1, 2, 5, 6], [4]), [7, 8, 9, 10]);
        assert_eq!(choice.spares(&[1, 3, 5, 7, 9], []), [], "a node that is used in part is no spare");
    }

    #[test]
    fn a_second_launch_uses_no_node_that_has_failed() {
        // Two agents on each of four nodes, of which the job needs two.
        let mut choice = choice(4, vec![0, 0, 1, 1, 2, 2, 3, 3], 2, 2);
        choice.exclude([3]);
        choice.retarget();
        assert_eq!(choice.targets, [0, 0, 2, 2, 3, 3], "a spare is started again, too");
        assert_eq!(choice.left_out([]), Some([1, 3].into()));
        assert_eq!(choice.left_out([1]), Some([0, 1].into()));
        assert_eq!(choice.left_out([1, 3]), None);
    }

    #[test]
    fn a_launch_that_may_start_again_reserves_half_of_its_time() {
        let s = Duration::from_secs;
        assert_eq!(one_tree(0..3, 3).timeout(s(30)), s(30), "all nodes are needed");
        assert_eq!(one_tree(0..3, 2).timeout(s(30)), s(15), "fewer nodes are enough");
        assert_eq!(one_tree(0..5, 3).timeout(s(30)), s(15), "there are spares");
        assert_eq!(NodeChoice { is_one_tree: false, ..one_tree(0..5, 2) }.timeout(s(30)), s(30));
    }

    #[test]
    fn a_restart_replaces_failed_nodes_and_never_tries_them_again() {
        let mut choice = one_tree(0..5, 3);
        let left_out = choice.left_out([2]).unwrap();
        assert_eq!(left_out, [1, 4].into(), "a spare takes the position although it was not started");
        choice.restart(&[0, 1, 2], &left_out, [2]);
        assert_eq!((choice.targets.clone(), choice.pool.clone()), (vec![0, 2, 3], [0, 2, 3, 4].into()));
        // The second target is now on node 2.
        assert_eq!(choice.left_out([2]), Some([1, 2].into()), "the last spare replaces it; node 1 stays out");
        choice.restart(&[0, 1, 2], &[1, 2].into(), [2]);
        assert_eq!(choice.left_out([1]), None, "no spare is left");
    }
}
