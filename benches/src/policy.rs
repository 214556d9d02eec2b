//! The cache policies of scela-run, and its options for a policy over a tree of agents that count as nodes.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

/// How agents cache the bulletin board.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Hierarchical caching, simple.
    Hcs,
    /// Hierarchical caching with message aggregation.
    Hcma,
    /// Hierarchical caching with message aggregation and broadcast.
    Hcmab,
    /// The same, with a bound on the number of values in an agent's cache.
    HcmabLru(Bound),
}

/// The bound on values of other ranks in an agent's cache under HCMAB-LRU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The default of scela-run.
    Own,
    /// One value for each rank of the job.
    Ranks,
    /// One value for each group of this many ranks.
    RanksBy(u32),
}

/// The cache options of scela-run: a policy, over a tree with one agent for each [`RANKS_PER_AGENT`] ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caching {
    /// The cache policy.
    pub policy: Policy,
    /// The most children of an agent.
    pub fanout: u32,
    /// The file for scela-run's statistics.
    pub stats: PathBuf,
}

impl Policy {
    /// Returns the name in scela-run's options.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Hcs => "hcs",
            Self::Hcma => "hcma",
            Self::Hcmab => "hcmab",
            Self::HcmabLru(_) => "hcmab-lru",
        }
    }

    /// Returns the bound for a job of `np` ranks, if it is set explicitly.
    #[must_use]
    pub fn entries(self, np: u32) -> Option<u32> {
        match self {
            Self::HcmabLru(Bound::Ranks) => Some(np),
            Self::HcmabLru(Bound::RanksBy(divisor)) => Some((np / divisor).max(1)),
            Self::HcmabLru(Bound::Own) | Self::Hcs | Self::Hcma | Self::Hcmab => None,
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::HcmabLru(Bound::Ranks) => f.write_str(" p"),
            Self::HcmabLru(Bound::RanksBy(divisor)) => write!(f, " p/{divisor}"),
            Self::HcmabLru(Bound::Own) | Self::Hcs | Self::Hcma | Self::Hcmab => Ok(()),
        }
    }
}

impl Caching {
    /// Returns scela-run's options for a job of `np` ranks.
    #[must_use]
    pub fn options(&self, np: u32) -> Vec<OsString> {
        let (agents, fanout) = (agents(np).to_string(), self.fanout.to_string());
        let tree = ["--agents-as-nodes", "--agents-per-node", &agents, "--fanout", &fanout];
        let mut options: Vec<OsString> = tree.map(Into::into).into();
        options.extend(["--cache".into(), self.policy.name().into()]);
        if let Some(entries) = self.policy.entries(np) {
            options.extend(["--cache-entries".into(), entries.to_string().into()]);
        }
        let mut stats = OsString::from("--stats=");
        stats.push(&self.stats);
        options.push(stats);
        options
    }
}

/// Returns the number of agents for `np` ranks.
#[must_use]
pub fn agents(np: u32) -> u32 {
    np.div_ceil(RANKS_PER_AGENT)
}

/// Small, so that 512 ranks have a tree of 64 agents.
pub const RANKS_PER_AGENT: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_depends_on_the_number_of_ranks() {
        let entries = |bound| Policy::HcmabLru(bound).entries(256);
        assert_eq!([Bound::Own, Bound::Ranks, Bound::RanksBy(8)].map(entries), [None, Some(256), Some(32)]);
        assert_eq!(Policy::HcmabLru(Bound::RanksBy(8)).entries(4), Some(1));
        assert_eq!(Policy::HcmabLru(Bound::RanksBy(8)).to_string(), "hcmab-lru p/8");
    }

    #[test]
    fn the_options_set_agents_policy_and_statistics() {
        let policy = Policy::HcmabLru(Bound::RanksBy(8));
        let caching = Caching { policy, fanout: 4, stats: PathBuf::from("/s/stats") };
        let words = "--agents-as-nodes --agents-per-node 16 --fanout 4 --cache hcmab-lru --cache-entries 16 \
                     --stats=/s/stats";
        assert_eq!(caching.options(128), words.split(' ').collect::<Vec<_>>());
        assert_eq!([1, 8, 9].map(agents), [1, 1, 2]);
    }
}
