//! The tree and the plan with which a run begins.

use std::collections::{BTreeSet, HashMap};

use bytes::Bytes;
use nla::core::{
    AcceleratorPlan, Agent, AgentId, BindingPolicy, CollectPlan, CommandPlan, DirectOutput, DriverCounts, Inherit,
    NamespacePlan, RankSessions, RootSettings, SessionPlan, StagePlan, Subtree, TraceScope,
};
use pmi::{Mapping, Ranks};

use crate::links::Link;
use crate::ranks::LocalRanks;
use crate::world::{Member, NEVER, NS, Setup, State};

/// The number of variables in the simulated environment, and the length of each value: a typical size.
const VARIABLES: usize = 40;
const VARIABLE_BYTES: usize = 50;
/// How often ranks may start again, under a policy that lets them: more often than any scenario has faults.
const RESTARTS_MAX: u32 = 1000;

/// Returns the root's settings. Each agent is on a node of its own.
pub(crate) fn root_settings(setup: &Setup, tree: Subtree) -> RootSettings {
    let size = setup.placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
    let variable = |number: usize| (format!("VARIABLE_{number}").into_bytes(), vec![b'x'; VARIABLE_BYTES]);
    let session = SessionPlan {
        environment: (0..VARIABLES).map(variable).collect(),
        shell: Bytes::new(),
        hold_lines: true,
        direct: [DirectOutput::Never; 2],
        pmi_port: false,
        kill_grace: std::time::Duration::from_secs(5),
        cache: setup.cache,
        clean_shm: nla::core::CleanShm::default(),
        on_failure: setup.on_failure,
        dead_time: setup.dead_time,
        has_ports: true,
        rank_sessions: RankSessions::All,
        stats: setup.stats,
        trace: (setup.checked && setup.stats).then(|| TraceScope::of(tree.size() - 1)),
        pmix: None,
        binding: BindingPolicy::default(),
        accelerators: AcceleratorPlan::default(),
        piece_bytes: setup.piece_bytes,
        stage: StagePlan::default(),
        profile: false,
        collect: CollectPlan::default(),
        sent: std::time::Duration::ZERO,
    };
    let command = CommandPlan {
        nprocs: size,
        program: b"/usr/local/bin/program".to_vec(),
        staged: None,
        args: Vec::new(),
        inherit: Inherit::All,
        set: Vec::new(),
        wdir: b"/home/somebody".to_vec(),
    };
    let first = NamespacePlan {
        id: NS,
        kvsname: "scela-1234567_0".to_owned(),
        size,
        universe: -1,
        spawner: None,
        commands: vec![command],
        mapping: mapping(size, &setup.placement),
        placement: setup.placement.clone(),
        owners: Vec::new(),
        preputs: Vec::new(),
        stdin: Ranks::new(),
    };
    let nodes = (1..=setup.agents).map(|agent| (AgentId(agent), agent - 1)).collect();
    RootSettings {
        tree,
        session,
        first,
        nodes,
        stuck_after: None,
        exit_timeout: None,
        expects_pmi: false,
        max_restarts: RESTARTS_MAX,
        packs: setup.packs,
    }
}

/// Maps ranks to nodes. Nodes are numbered in the order of their first ranks.
fn mapping(size: u32, placement: &[(AgentId, Ranks)]) -> Mapping {
    let mut agents = vec![0; size as usize];
    for (agent, ranks) in placement {
        ranks.iter().for_each(|rank| agents[rank.0 as usize] = agent.0);
    }
    let mut numbers = HashMap::new();
    Mapping::from_nodes(agents.into_iter().map(|agent| {
        let next = numbers.len() as u32;
        *numbers.entry(agent).or_insert(next)
    }))
}

/// Creates the places of a tree and the links to their parents, both in the order of their numbers.
pub(crate) fn members(tree: Subtree) -> (Vec<Member>, Vec<Link>) {
    let mut members = Vec::with_capacity(tree.size() as usize);
    let mut links = Vec::with_capacity(tree.size() as usize);
    let mut stack = vec![(tree, 0, 0)];
    // Agents are numbered in pre-order.
    while let Some((subtree, parent, depth)) = stack.pop() {
        let children: Vec<_> = subtree.children().collect();
        members.push(Member {
            core: (subtree.head() != AgentId::ROOT).then(|| Agent::new(subtree)),
            state: State::Absent,
            depth,
            children: children.iter().map(|child| child.head().0).collect(),
            nic: [0; 2],
            wake: NEVER,
            link: links.len() as u32,
            streams_open: 0,
            ranks: LocalRanks::default(),
            board: None,
            search: None,
            orphans: Vec::new(),
            adopted: BTreeSet::new(),
            cut_until: 0,
            is_configured: false,
            has_output_ended: false,
            parent_lost_at: None,
            fence_messages_up: 0,
            driver_counts: DriverCounts::default(),
        });
        links.push(Link::new(parent, subtree.head().0));
        stack.extend(children.into_iter().rev().map(|child| (child, subtree.head().0, depth + 1)));
    }
    (members, links)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_have_the_parents_and_depths_of_the_topology() {
        let tree = Subtree::whole(100, 3);
        let (members, links) = members(tree);
        assert_eq!(members.len(), 101);
        for agent in 1..=100 {
            let member = &members[agent as usize];
            let Link { parent, child, .. } = links[member.link as usize];
            assert_eq!((child, tree.parent_of(AgentId(agent))), (agent, Some(AgentId(parent))));
            assert_eq!(members[parent as usize].depth + 1, member.depth);
            assert!(members[parent as usize].children.contains(&agent));
        }
    }
}
