//! MPI_Comm_spawn: makes the plan of a new namespace from a rank's request.

use litemap::LiteMap;
use pmi::{MEMORY_ALLOC_KINDS, Mapping, Rank, Ranks, SpawnRequest};

use super::ids::{AgentId, NamespaceId};
use super::limits::RANKS_MAX;
use super::placement::{owners, place};
use super::plan::{CommandPlan, NamespacePlan};

/// Makes the plan of namespace `id`, which a rank of `parent` that runs `parent_command` requested. The new ranks
/// inherit this command's environment and working directory. `nodes` has the agents that can start ranks, and the
/// number of each one's node. The error is sent to the requesting rank.
pub(super) fn plan(
    id: NamespaceId,
    request: SpawnRequest,
    (parent, spawner): (&NamespacePlan, Rank),
    parent_command: &CommandPlan,
    nodes: &LiteMap<AgentId, u32>,
) -> Result<NamespacePlan, String> {
    let size: u64 = request.commands.iter().map(|command| u64::from(command.nprocs)).sum();
    let size = u32::try_from(size)
        .ok()
        .filter(|&size| size > 0 && size <= RANKS_MAX)
        .ok_or("number_of_ranks_out_of_bounds")?;
    let agents: Vec<_> = nodes.keys().copied().collect();
    if agents.is_empty() {
        return Err("no_agent_left_to_start_ranks".to_owned());
    }
    let commands = request.commands.into_iter().filter(|command| command.nprocs > 0);
    let commands = commands
        .map(|command| {
            let info =
                |key: &[u8]| command.info.iter().rev().find(|(name, _)| name == key).map(|(_, value)| value.clone());
            let mut set = parent_command.set.clone();
            if let Some(path) = info(b"path") {
                // MPI's "path" info key: the directories in which to look for the program.
                set.push((b"PATH".to_vec(), path));
            }
            // Variables that PMIx sets for the ranks: `NAME=VALUE`.
            for (_, variable) in command.info.iter().filter(|(name, _)| name == b"env") {
                if let Some(at) = variable.iter().position(|byte| *byte == b'=') {
                    set.push((variable[..at].to_vec(), variable[at + 1..].to_vec()));
                }
            }
            CommandPlan {
                nprocs: command.nprocs,
                wdir: info(b"wdir").unwrap_or_else(|| parent_command.wdir.clone()),
                inherit: parent_command.inherit.clone(),
                set,
                program: command.program,
                staged: None,
                args: command.args,
            }
        })
        .collect();
    // A namespace inherits the kinds of memory from the one that spawns it.
    let inherited = parent.preputs.iter().filter(|(key, _)| key == MEMORY_ALLOC_KINDS).cloned();
    let placement = place(size, &agents);
    let nodes_of_ranks = placement.iter().flat_map(|(agent, ranks)| {
        let node = nodes.get(agent).copied().unwrap_or_default();
        std::iter::repeat_n(node, ranks.len() as usize)
    });
    Ok(NamespacePlan {
        id,
        // The session's name is in the first namespace's, so that no two are equal anywhere.
        kvsname: format!("{}_{id}", parent.kvsname.split('_').next().unwrap_or_default()),
        size,
        universe: parent.universe,
        spawner: Some((parent.kvsname.clone(), spawner)),
        commands,
        mapping: Mapping::from_nodes(nodes_of_ranks),
        owners: owners(&placement, nodes),
        placement,
        preputs: inherited.chain(request.preputs).collect(),
        stdin: Ranks::new(),
    })
}

#[cfg(test)]
mod tests {
    use pmi::SpawnCommand;

    use super::*;

    #[test]
    fn the_kinds_of_memory_are_inherited_and_other_preputs_are_not() {
        let pair = |key: &[u8], value: &str| (key.to_vec(), value.as_bytes().to_vec());
        let mut parent = super::super::tests::plan(2, &[(1, "0-1")]);
        parent.preputs = vec![pair(MEMORY_ALLOC_KINDS, "mpi"), pair(b"port", "a")];
        let command = SpawnCommand { program: b"c".to_vec(), args: Vec::new(), nprocs: 1, info: Vec::new() };
        let request = SpawnRequest { commands: vec![command], preputs: vec![pair(b"port", "b")] };
        let agents = [(AgentId(1), 0)].into_iter().collect();
        let child =
            plan(NamespaceId(1), request, (&parent, Rank(1)), &parent.commands[0], &agents).expect("it is valid");
        assert_eq!(child.spawner, Some((parent.kvsname.clone(), Rank(1))));
        assert_eq!(child.preputs, [pair(MEMORY_ALLOC_KINDS, "mpi"), pair(b"port", "b")]);
    }
}
