//! Guardians below a process that is about to kill everything below it: those of the jobs of a pool, whose keepers are ranks, and
//! those of launchers that ranks have started.
//!
//! A guardian that is killed leaves the files of its agent. So its agent is killed instead, and the guardian gets some time to end what the
//! agent has started and to remove its files.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::reap;
use super::survivors::{ProcessId, descendants};

/// How long nested guardians may take to exit.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// The nested guardians of this process.
#[derive(Debug, Default)]
pub struct NestedGuardians {
    /// When they may be killed. `None` until they were looked for.
    until: Option<Instant>,
    left: Vec<ProcessId>,
}

impl NestedGuardians {
    /// Returns the nested guardians that must not be killed yet. The first call kills their agents. Neither `spared` children nor the
    /// processes below these are looked at.
    pub fn left(&mut self, spared: &BTreeSet<u32>) -> BTreeSet<u32> {
        let until = *self.until.get_or_insert_with(|| {
            self.left = end_agents(spared);
            Instant::now() + EXIT_TIME
        });
        self.left.retain(|guardian| Instant::now() < until && guardian.is_alive());
        self.left.iter().map(|guardian| guardian.pid).collect()
    }
}

/// Kills the agents of all guardians below this process, and returns the guardians.
fn end_agents(spared: &BTreeSet<u32>) -> Vec<ProcessId> {
    let children = reap::children().unwrap_or_default().into_iter().map(i32::unsigned_abs);
    let mut all: Vec<ProcessId> = children.filter(|pid| !spared.contains(pid)).filter_map(ProcessId::of).collect();
    all.extend(descendants(&all));
    let guardians: Vec<ProcessId> =
        all.into_iter().filter(|one| one.is_named("scela-guard") && one.is_own() && one.is_alive()).collect();
    for guardian in &guardians {
        let agents = descendants(std::slice::from_ref(guardian)).into_iter().filter(|one| one.is_named("scela-agent"));
        agents.for_each(|agent| agent.signal(libc::SIGKILL));
        // It may be stopped.
        guardian.signal(libc::SIGCONT);
    }
    guardians
}
