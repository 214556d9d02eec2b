//! Who is there while ranks wait for the bench: the agents, and the ranks.

use std::collections::BTreeMap;
use std::path::Path;

use nix::unistd::{Pid, getpid};

use crate::family;
use crate::smaps;

/// The processes below a launcher.
pub(super) struct Household {
    /// What is not a rank: scela-run's agents and guardians, Hydra's proxies. With their names.
    pub(super) agents: Vec<(Pid, String)>,
    /// What runs the ranks' program.
    pub(super) ranks: Vec<Pid>,
}

impl Household {
    /// Looks who is there.
    ///
    /// The bench runs one launcher at a time, so whatever descends from the bench is the launcher's.
    pub(super) fn of(launcher: Pid, rank_program: &Path) -> Self {
        let mut household = Self { agents: Vec::new(), ranks: Vec::new() };
        for pid in family::descendants(getpid()).into_iter().filter(|pid| *pid != launcher) {
            let command_line = family::command_line(pid);
            let Some(first) = command_line.first() else {
                continue;
            };
            if Path::new(first) == rank_program {
                household.ranks.push(pid);
            } else {
                household.agents.push((pid, family::name(pid)));
            }
        }
        household
    }

    /// What all agents have of memory together.
    pub(super) fn agents_mb(&self) -> f64 {
        self.agents.iter().map(|(pid, _)| pss_mb(*pid)).sum()
    }

    /// How many processes of each name the agents are, in words.
    pub(super) fn agent_names(&self) -> String {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, name) in &self.agents {
            *names.entry(name).or_default() += 1;
        }
        names.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

/// A process's proportional share of memory.
pub(super) fn pss_mb(pid: Pid) -> f64 {
    smaps::pss_kib(pid).map_or(f64::NAN, megabytes)
}

pub(super) fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}
