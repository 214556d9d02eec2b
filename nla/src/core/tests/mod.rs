//! Tests of whole trees, and what the core's tests share.

mod boards;
mod deaths;
mod forgetting;
mod groups;
mod moves;
mod nodes;
mod processes;
mod revivals;
mod rings;
mod stats;
mod surveys;
mod takeovers;
mod tree;

use pmi::{Mapping, Ranks};

pub(super) use self::deaths::Random;
use super::ids::{AgentId, NamespaceId, Time};
use super::message::OpenFence;
use super::plan::{CommandPlan, Inherit, NamespacePlan};

pub(super) const T: Time = Time::ZERO;
pub(super) const NS: NamespaceId = NamespaceId::FIRST;

pub(super) fn at(ms: u64) -> Time {
    Time::from_millis(ms)
}

pub(super) fn ranks(text: &str) -> Ranks {
    text.parse().unwrap()
}

/// The open fences with these numbers, of whose epochs nothing has arrived.
pub(super) fn open(fences: &[(NamespaceId, u32)]) -> Vec<OpenFence> {
    fences.iter().map(|&(namespace, number)| OpenFence { namespace, number, received: 0 }).collect()
}

/// The plan of the first namespace: `size` ranks on one node. Each agent owns the attributes for its ranks.
pub(super) fn plan(size: u32, placement: &[(u32, &str)]) -> NamespacePlan {
    plan_of(size, placement.iter().map(|(agent, set)| (AgentId(*agent), ranks(set))).collect())
}

/// Like [`plan`], with numbered agents and sets of ranks.
pub(super) fn plan_of(size: u32, placement: Vec<(AgentId, Ranks)>) -> NamespacePlan {
    NamespacePlan {
        id: NS,
        kvsname: "scela-77_0".into(),
        size,
        universe: 1,
        spawner: None,
        commands: vec![CommandPlan {
            nprocs: size,
            program: b"p".to_vec(),
            staged: None,
            args: Vec::new(),
            inherit: Inherit::All,
            set: Vec::new(),
            wdir: b"/home".to_vec(),
        }],
        mapping: Mapping::from_nodes(std::iter::repeat_n(0, size as usize)),
        placement,
        owners: Vec::new(),
        preputs: Vec::new(),
        stdin: Ranks::new(),
    }
}
