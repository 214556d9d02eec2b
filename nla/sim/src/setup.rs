//! The tree and the plan that a run begins with.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use nla::core::{
    Agent, AgentId, CommandPlan, DriverCounts, Inherit, NamespacePlan, RootSettings, SessionPlan, Subtree,
};
use pmi::{Mapping, Ranks};

use crate::links::Link;
use crate::ranks::Locals;
use crate::world::{NS, Place, Setup, State};

/// Variables of an environment such as people have, and how long each is.
const VARIABLES: usize = 40;
const VARIABLE_BYTES: usize = 50;

/// What the root begins with. Each agent is a node of its own.
pub(crate) fn root_settings(setup: &Setup, tree: Subtree) -> RootSettings {
    let size = setup.placement.iter().map(|(_, ranks)| ranks.len() as u32).sum();
    let variable = |number: usize| (format!("VARIABLE_{number}").into_bytes(), vec![b'x'; VARIABLE_BYTES]);
    let session = SessionPlan {
        environment: (0..VARIABLES).map(variable).collect(),
        shell: Bytes::new(),
        hold_lines: true,
        pmi_port: false,
        kill_grace: std::time::Duration::from_secs(5),
        cache: setup.cache,
        stats: setup.stats,
        sent: std::time::Duration::ZERO,
    };
    let command = CommandPlan {
        nprocs: size,
        program: b"/usr/local/bin/program".to_vec(),
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
    let nodes = (1..=setup.agents).map(|agent| (AgentId(agent), agent - 1)).collect::<BTreeMap<_, _>>();
    RootSettings { tree, session, first, nodes }
}

/// Nodes in the order of their first ranks.
fn mapping(size: u32, placement: &[(AgentId, Ranks)]) -> Mapping {
    let mut homes = vec![0; size as usize];
    for (agent, ranks) in placement {
        ranks.iter().for_each(|rank| homes[rank.0 as usize] = agent.0);
    }
    let mut numbers = HashMap::new();
    Mapping::from_nodes(homes.into_iter().map(|agent| {
        let next = numbers.len() as u32;
        *numbers.entry(agent).or_insert(next)
    }))
}

/// The places of a tree, by their numbers.
pub(crate) fn places(tree: Subtree) -> Vec<Place> {
    let mut places = Vec::with_capacity(tree.size() as usize);
    let mut left = vec![(tree, 0, 0)];
    // In pre-order, as they are numbered.
    while let Some((here, parent, depth)) = left.pop() {
        let below: Vec<_> = here.children().collect();
        places.push(Place {
            core: (here.head() != AgentId::ROOT).then(|| Agent::new(here)),
            state: State::Absent,
            parent,
            depth,
            children: below.iter().map(|child| child.head().0).collect(),
            nic: [0; 2],
            wake: u64::MAX,
            link: Link::default(),
            streams_open: 0,
            locals: Locals::default(),
            board: None,
            orphaned: None,
            told_up: 0,
            counted: DriverCounts::default(),
        });
        left.extend(below.into_iter().rev().map(|child| (child, here.head().0, depth + 1)));
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_where_the_topology_says() {
        let tree = Subtree::whole(100, 3);
        let places = places(tree);
        assert_eq!(places.len(), 101);
        for agent in 1..=100 {
            let place = &places[agent as usize];
            assert_eq!(tree.parent_of(AgentId(agent)), Some(AgentId(place.parent)));
            assert_eq!(places[place.parent as usize].depth + 1, place.depth);
            assert!(places[place.parent as usize].children.contains(&agent));
        }
    }
}
