//! Guardians below a process that kills everything below it: those of the jobs of a pool, whose keepers are ranks, and those of
//! launchers that ranks have started.
//!
//! A killed guardian removes no files. So this process kills the agent instead, and gives the guardian time to end what
//! the agent has started and to remove its files.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::reap;
use super::survivors::{ProcessId, descendants};

const GUARDIAN: &str = "scela-guard";
const AGENT: &str = "scela-agent";
/// How long a nested guardian may take to exit.
const EXIT_TIME: Duration = Duration::from_secs(5);

/// The nested guardians of this process.
#[derive(Debug, Default)]
pub struct NestedGuardians {
    /// When each one may be killed.
    until: BTreeMap<u32, Instant>,
}

impl NestedGuardians {
    /// Signals all children except `spared`. For a child that is a guardian, kills its agent first,
    /// then the guardian if it does not exit. Returns how many children were signalled, and how many guardians may
    /// take more time.
    ///
    /// The children are listed once: a guardian that becomes a child meanwhile is found by the next call.
    pub fn kill_children_but(&mut self, signal: i32, spared: &BTreeSet<u32>) -> (usize, usize) {
        let (mut signalled, mut awaited) = (0, 0);
        for child in reap::children().unwrap_or_default().into_iter().filter(|pid| *pid > 1) {
            let pid = child.unsigned_abs();
            if spared.contains(&pid) {
                continue;
            }
            let guardian =
                ProcessId::of(pid).filter(|child| child.is_named(GUARDIAN) && child.is_own() && child.is_alive());
            let until = guardian.map(|guardian| {
                *self.until.entry(pid).or_insert_with(|| {
                    end_agent(guardian);
                    Instant::now() + EXIT_TIME
                })
            });
            if until.is_some_and(|until| Instant::now() < until) {
                awaited += 1;
            } else if reap::kill(child, signal).is_ok() {
                signalled += 1;
            }
        }
        (signalled, awaited)
    }
}

/// Returns whether there are guardians below this process.
pub(super) fn has_guardians_below() -> bool {
    let own = ProcessId::of(std::process::id());
    own.is_some_and(|own| descendants(&[own]).iter().any(|one| one.is_named(GUARDIAN) && one.is_alive()))
}

/// Kills the agent of a guardian, which may be stopped.
fn end_agent(guardian: ProcessId) {
    let agents = descendants(&[guardian]).into_iter().filter(|one| one.is_named(AGENT));
    agents.for_each(|agent| agent.signal(libc::SIGKILL));
    guardian.signal(libc::SIGCONT);
}
