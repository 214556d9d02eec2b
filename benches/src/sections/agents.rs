//! The processes of a job whose ranks wait for the bench: agents and ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use nix::unistd::Pid;

use crate::family;
use crate::smaps;

/// The descendants of a launcher.
pub(super) struct JobProcesses {
    /// All that are not ranks, with their names: scela-run's agents and guardians, Hydra's proxies.
    pub(super) agents: Vec<(Pid, String)>,
    /// The processes that run the ranks' program.
    pub(super) ranks: Vec<Pid>,
}

impl JobProcesses {
    /// Lists the processes.
    ///
    /// The bench runs one launcher at a time, so all other descendants of the bench belong to the launcher, except
    /// `services`.
    pub(super) fn of(launcher: Pid, rank_program: &Path, services: &BTreeSet<Pid>) -> Self {
        let mut processes = Self { agents: Vec::new(), ranks: Vec::new() };
        for pid in family::others(services).into_iter().filter(|pid| *pid != launcher) {
            let command_line = family::command_line(pid);
            let Some(first) = command_line.first() else {
                continue;
            };
            if Path::new(first) == rank_program {
                processes.ranks.push(pid);
            } else {
                processes.agents.push((pid, family::name(pid)));
            }
        }
        processes
    }

    /// Returns the memory of all agents together.
    pub(super) fn agents_mb(&self) -> f64 {
        self.agents.iter().map(|(pid, _)| pss_mb(*pid)).sum()
    }

    /// Lists the agents' names with the number of processes of each.
    pub(super) fn agent_names(&self) -> String {
        let mut names: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, name) in &self.agents {
            *names.entry(name).or_default() += 1;
        }
        names.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
    }
}

/// Returns a process's proportional set size; NaN if it cannot be read.
pub(super) fn pss_mb(pid: Pid) -> f64 {
    smaps::pss_kib(pid).map_or(f64::NAN, megabytes)
}

pub(super) fn megabytes(kib: u64) -> f64 {
    kib as f64 * 1024.0 / 1e6
}
