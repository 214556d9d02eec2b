//! Surveys of whole trees.

use litemap::LiteMap;
use pmi::{Puts, Ranks, Request};

use super::NS;
use super::tree::{BUSY, Tree, placements, shapes};
use crate::core::ids::AgentId;
use crate::core::survey::Group;

#[test]
fn a_survey_finds_the_ranks_that_others_wait_for() {
    for (agents, fanout) in shapes(7) {
        for (number, placement) in placements(agents).into_iter().enumerate() {
            let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
            let nodes: LiteMap<_, _> = (1..=agents).map(|agent| (AgentId(agent), 0)).collect();
            let mut tree = Tree::started(agents, fanout, placement, &nodes, number as u64);
            let (arrived, missing): (Vec<_>, Vec<_>) = Ranks::range(0..size).iter().partition(|rank| rank.0 % 3 == 1);
            for rank in &arrived {
                tree.ask(NS, rank.0, Request::Fence { puts: Puts::new(), in_segment: false });
            }
            // The fence's messages may still be under way.
            let survey = tree.survey();
            let [found] = &survey.namespaces[..] else { panic!("{survey:?}") };
            assert_eq!((found.fence, found.arrived), (0, arrived.len() as u64), "{agents} agents, fan-out {fanout}");
            assert_eq!(found.missing, [Group { activity: BUSY, ranks: missing.into_iter().collect(), more: 0 }]);
            assert_eq!(survey.has_open_fence(), !arrived.is_empty());
            assert_eq!(survey.silent, []);
        }
    }
}
