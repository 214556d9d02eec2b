//! Limits of ranks that are lower than in the user's shell, merged on their way to the launcher.
//!
//! An agent cannot give its ranks more than its own hard limits. Each agent that starts ranks reports once which soft limits of
//! the user's shell it cannot reach. A subtree has at most one entry for each kind of limit, so the report's size depends on the
//! shape of the set of agents and not on their number.

use pmi::{Rank, Ranks};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::ids::AgentId;
use super::topology::Subtree;

/// The number of kinds of limits (`RLIMIT_*`) of Linux. They are numbered from 0.
const KINDS: u32 = 16;

const RSS: u32 = 5;
const NPROC: u32 = 6;
const LOCKS: u32 = 10;
const SIGPENDING: u32 = 11;
const NICE: u32 = 13;
const RTPRIO: u32 = 14;
const RTTIME: u32 = 15;

/// Unless an administrator sets it, RLIMIT_NPROC is one process for 256 KiB of the node's memory: this many for 1 GiB. A node
/// with less memory than the user's node is not worth a warning.
const NPROC_OF_MEMORY: u64 = 4096;

/// Returns whether the user is told that ranks have `granted` of a limit, which is less than in the shell.
///
/// The kernel ignores RLIMIT_RSS and RLIMIT_LOCKS, and derives RLIMIT_SIGPENDING from the node's memory. The limits on priorities are
/// often raised for the user of a desktop, and ranks seldom ask for priorities.
pub fn is_worth_telling(kind: u32, granted: u64) -> bool {
    match kind {
        RSS | LOCKS | SIGPENDING | NICE | RTPRIO | RTTIME => false,
        NPROC => granted < NPROC_OF_MEMORY,
        _ => kind < KINDS,
    }
}

/// A kind of limit that is lower for the ranks of some agents than in the user's shell.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LowLimit {
    /// The kind: the number of `RLIMIT_*`.
    pub kind: u32,
    /// The lowest of these agents' limits ...
    pub least: u64,
    /// ... and the highest.
    pub most: u64,
    /// The numbers of the agents.
    pub agents: Ranks,
}

/// The low limits of a subtree: at most one entry for each kind, in the order of the kinds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<LowLimit>")]
pub struct LowLimits(Vec<LowLimit>);

/// A list from a peer has an unknown kind, a kind twice, or a lowest limit above the highest one.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the list of low limits is out of order at kind {0}")]
pub struct LowLimitsError(u32);

impl TryFrom<Vec<LowLimit>> for LowLimits {
    type Error = LowLimitsError;

    fn try_from(limits: Vec<LowLimit>) -> Result<Self, LowLimitsError> {
        let mut free_from = 0;
        for limit in &limits {
            if limit.kind < free_from || limit.kind >= KINDS || limit.least > limit.most {
                return Err(LowLimitsError(limit.kind));
            }
            free_from = limit.kind + 1;
        }
        Ok(Self(limits))
    }
}

impl LowLimits {
    /// The limits that one agent grants, as pairs of kind and limit. Unknown kinds are left out.
    pub(super) fn of_agent(agent: AgentId, granted: &[(u32, u64)]) -> Self {
        let agents: Ranks = std::iter::once(Rank(agent.0)).collect();
        let mut limits = Self::default();
        for &(kind, limit) in granted.iter().filter(|(kind, _)| *kind < KINDS) {
            limits.insert(LowLimit { kind, least: limit, most: limit, agents: agents.clone() });
        }
        limits
    }

    fn insert(&mut self, new: LowLimit) {
        match self.0.binary_search_by_key(&new.kind, |limit| limit.kind) {
            Ok(at) => {
                let known = &mut self.0[at];
                known.least = known.least.min(new.least);
                known.most = known.most.max(new.most);
                known.agents.union_with(&new.agents);
            }
            Err(at) => self.0.insert(at, new),
        }
    }

    /// Adds the limits of other agents.
    pub fn merge(&mut self, other: Self) {
        other.0.into_iter().for_each(|limit| self.insert(limit));
    }

    /// Leaves out the agents that are not in `subtree`.
    pub(super) fn within(mut self, subtree: Subtree) -> Self {
        let first = subtree.head().0;
        let agents = Ranks::range(first..first.saturating_add(subtree.size()));
        for limit in &mut self.0 {
            limit.agents = limit.agents.intersection(&agents);
        }
        self.0.retain(|limit| !limit.agents.is_empty());
        self
    }

    /// Whether no limit is low.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the entries in the order of their kinds.
    pub fn iter(&self) -> impl Iterator<Item = &LowLimit> {
        self.0.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{decode, encode};

    const NOFILE: u32 = 7;

    fn entry(kind: u32, (least, most): (u64, u64), agents: &str) -> LowLimit {
        LowLimit { kind, least, most, agents: agents.parse().unwrap() }
    }

    #[test]
    fn a_subtree_has_one_entry_for_each_kind() {
        let mut limits = LowLimits::default();
        for agent in (1..=1000).rev() {
            let files = if agent == 7 { 100 } else { 500 };
            limits.merge(LowLimits::of_agent(AgentId(agent), &[(NOFILE, files), (3, 8192), (99, 1)]));
        }
        limits.merge(LowLimits::of_agent(AgentId(2000), &[(NOFILE, 600)]));
        let expected = [entry(3, (8192, 8192), "1-1000"), entry(NOFILE, (100, 600), "1-1000,2000")];
        assert!(limits.iter().eq(&expected), "{limits:?}");
        assert_eq!(decode::<LowLimits>(&encode(&limits)).unwrap(), limits);
    }

    #[test]
    fn a_child_reports_only_agents_of_its_subtree() {
        let limits = LowLimits(vec![entry(3, (1, 1), "1-2"), entry(NOFILE, (1, 2), "2-9")]);
        let child = Subtree::whole(6, 2).children().last().unwrap();
        assert_eq!((child.head(), child.size()), (AgentId(4), 3));
        assert_eq!(limits.within(child), LowLimits(vec![entry(NOFILE, (1, 2), "4-6")]));
    }

    #[test]
    fn a_list_out_of_order_is_refused() {
        let check = |list: Vec<LowLimit>, kind| {
            assert_eq!(LowLimits::try_from(list.clone()), Err(LowLimitsError(kind)));
            assert!(decode::<LowLimits>(&encode(&list)).is_err());
        };
        let ok = || entry(NOFILE, (1, 2), "1");
        check(vec![ok(), ok()], NOFILE);
        check(vec![ok(), entry(3, (1, 1), "1")], 3);
        check(vec![entry(KINDS, (1, 1), "1")], KINDS);
        check(vec![entry(4, (2, 1), "1")], 4);
        assert!(LowLimits::try_from(vec![entry(KINDS - 1, (1, 1), "1")]).is_ok());
    }

    #[test]
    fn limits_that_follow_the_memory_of_a_node_or_concern_priorities_are_not_told() {
        assert!(is_worth_telling(NOFILE, 500) && is_worth_telling(8, 0) && !is_worth_telling(KINDS, 0));
        assert!(is_worth_telling(NPROC, NPROC_OF_MEMORY - 1) && !is_worth_telling(NPROC, NPROC_OF_MEMORY));
        assert!([RSS, LOCKS, SIGPENDING, NICE, RTPRIO, RTTIME].iter().all(|kind| !is_worth_telling(*kind, 0)));
    }
}
