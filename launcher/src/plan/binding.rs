//! Decides what ranks are bound to, from what was typed and where the nodes come from. Each agent then chooses the
//! processors on its node.

use nla::core::{BindTo, BindingPolicy, Level, MapWithin};
use pmi::{Mapping, Rank};

use crate::cluster::manager::Manager;
use crate::cluster::node_list::NodeList;
use crate::cluster::placement::talk::{Talk, Talked};
use crate::plan::request::BindingOptions;
use crate::refusal::Refusal;

/// Returns the policy of a session on these nodes.
///
/// If no option about binding is typed, ranks get even shares of the nodes of a Slurm job. An agent applies this
/// only if the job has all processors that the agent may use. Other managers do not say so, and on a machine without a
/// manager another session may run on the same processors.
pub(crate) fn policy(options: &BindingOptions, node_list: &NodeList) -> BindingPolicy {
    let cpus_per_rank = options.cpus_per_rank.or(options.elements);
    let is_of_slurm = node_list.allocation().is_some_and(|allocation| allocation.manager == Manager::Slurm);
    let bind_to = match (&options.bind_to, options.map_within) {
        (Some(typed), _) => typed.clone(),
        (None, _) if cpus_per_rank.is_some() => BindTo::Parts(Level::Core, 1),
        (None, Some(MapWithin::Each(level) | MapWithin::Filled(_, level))) => BindTo::Parts(level, 1),
        (None, None) if is_of_slurm => BindTo::Share,
        (None, None) => BindTo::Nothing,
    };
    BindingPolicy {
        bind_to,
        map_within: options.map_within,
        cpus_per_rank,
        overloads: options.overloads,
        memory: options.memory.clone(),
        reports: options.reports,
        is_one_machine: matches!(node_list, NodeList::Local { .. }),
        order: Vec::new(),
    }
}

/// Returns whether ranks are bound to processors that may be given to them in another order.
pub(crate) fn has_order(policy: &BindingPolicy) -> bool {
    matches!(policy.bind_to, BindTo::Share | BindTo::Parts(..))
}

/// Orders the bound ranks of each node onto its processors by what they send to each other. `mapping` has the node of each
/// rank.
pub(crate) fn order(
    policy: &mut BindingPolicy,
    talk: &Talk,
    mapping: &Mapping,
    talked: &mut Option<Talked>,
) -> Result<(), Refusal> {
    let node = |rank| if policy.is_one_machine { 0 } else { mapping.node_of(Rank(rank)).unwrap_or_default() };
    let node_of: Vec<u32> = (0..mapping.size()).map(node).collect();
    let (order, line) = talk.ordered(&node_of)?;
    policy.order = order;
    talked.get_or_insert_default().lines.push(line);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::allocation::Allocation;
    use crate::cluster::node::Node;

    fn named(manager: Option<Manager>) -> NodeList {
        let nodes = vec![Node::named("n1")];
        let allocation = manager.map(|manager| Allocation {
            manager,
            id: "7".to_owned(),
            nodes: nodes.clone(),
            ranks: None,
            found_by: "X",
        });
        NodeList::Named { nodes, allocation }
    }

    #[test]
    fn only_nodes_of_slurm_are_shared_out_unasked() {
        let default = |list: &NodeList| policy(&BindingOptions::default(), list).bind_to;
        assert_eq!(default(&named(Some(Manager::Slurm))), BindTo::Share);
        assert_eq!(default(&named(Some(Manager::Pbs))), BindTo::Nothing);
        assert_eq!(default(&named(None)), BindTo::Nothing);
        let local = NodeList::HERE;
        assert_eq!(default(&local), BindTo::Nothing);
        assert!(policy(&BindingOptions::default(), &local).is_one_machine);
        let none = BindingOptions { bind_to: Some(BindTo::Nothing), ..BindingOptions::default() };
        assert_eq!(policy(&none, &named(Some(Manager::Slurm))).bind_to, BindTo::Nothing);
    }

    #[test]
    fn a_mapping_or_a_number_of_cores_says_what_ranks_are_bound_to() {
        let of = |options: &BindingOptions| policy(options, &named(None));
        let numa = BindingOptions { map_within: Some(MapWithin::Each(Level::Numa)), ..BindingOptions::default() };
        assert_eq!(of(&numa).bind_to, BindTo::Parts(Level::Numa, 1));
        let wide = BindingOptions { elements: Some(3), ..numa.clone() };
        assert_eq!((of(&wide).bind_to, of(&wide).cpus_per_rank), (BindTo::Parts(Level::Core, 1), Some(3)));
        let both = BindingOptions { cpus_per_rank: Some(2), ..BindingOptions::default() };
        assert_eq!(of(&both).cpus_per_rank, Some(2));
        let typed = BindingOptions { bind_to: Some(BindTo::Parts(Level::L3, 1)), ..wide };
        assert_eq!(of(&typed).bind_to, BindTo::Parts(Level::L3, 1));
    }
}
