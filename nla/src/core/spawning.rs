//! MPI_Comm_spawn: from what a rank asks to the plan of a new namespace.

use std::collections::BTreeMap;

use pmi::{Mapping, Ranks, SpawnRequest};

use super::ids::{AgentId, NamespaceId};
use super::limits::RANKS_MAX;
use super::placement::{owners, place};
use super::plan::{CommandPlan, NamespacePlan};

/// What the root knows about the session when a rank spawns.
pub(super) struct SpawnContext<'a> {
    /// The namespace of the rank that spawns.
    pub(super) parent: &'a NamespacePlan,
    /// The command that it runs: the children inherit its environment and directory.
    pub(super) command: &'a CommandPlan,
    /// Agents that can start ranks, and the number of the node of each.
    pub(super) nodes: &'a BTreeMap<AgentId, u32>,
}

/// Makes the plan of namespace `id`. The error is for the rank that asked.
pub(super) fn plan(id: NamespaceId, order: SpawnRequest, around: &SpawnContext<'_>) -> Result<NamespacePlan, String> {
    let size: u64 = order.commands.iter().map(|command| u64::from(command.nprocs)).sum();
    let size = u32::try_from(size)
        .ok()
        .filter(|&size| size > 0 && size <= RANKS_MAX)
        .ok_or("number_of_ranks_out_of_bounds")?;
    let agents: Vec<_> = around.nodes.keys().copied().collect();
    if agents.is_empty() {
        return Err("no_agent_left_to_start_ranks".to_owned());
    }
    let commands = order.commands.into_iter().filter(|command| command.nprocs > 0);
    let commands = commands
        .map(|command| {
            let info =
                |key: &[u8]| command.info.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.clone());
            let mut set = around.command.set.clone();
            if let Some(path) = info(b"path") {
                // MPI's "path" info key: where to look for the program.
                set.push((b"PATH".to_vec(), path));
            }
            CommandPlan {
                nprocs: command.nprocs,
                wdir: info(b"wdir").unwrap_or_else(|| around.command.wdir.clone()),
                inherit: around.command.inherit.clone(),
                set,
                program: command.program,
                args: command.args,
            }
        })
        .collect();
    let placement = place(size, &agents);
    let nodes = placement.iter().flat_map(|(agent, ranks)| {
        let node = around.nodes.get(agent).copied().unwrap_or_default();
        std::iter::repeat_n(node, ranks.len() as usize)
    });
    Ok(NamespacePlan {
        id,
        // The session's name is in the first namespace's, so that no two are equal anywhere.
        kvsname: format!("{}_{id}", around.parent.kvsname.split('_').next().unwrap_or_default()),
        size,
        universe: around.parent.universe,
        spawner: Some(around.parent.kvsname.clone()),
        commands,
        mapping: Mapping::from_nodes(nodes),
        owners: owners(&placement, around.nodes),
        placement,
        preputs: order.preputs,
        stdin: Ranks::new(),
    })
}
