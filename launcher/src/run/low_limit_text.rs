//! The warnings about limits of ranks that are lower than in the user's shell.

use std::collections::BTreeSet;

use nla::core::{AgentId, LowLimit, LowLimits};
use nla::sys::limit_name;

use crate::cluster::hosts::fold_within;

/// The longest list of hosts in a warning, in bytes.
const HOSTS_BYTES_MAX: usize = 256;

/// The low limits that agents have reported. Each kind of limit is warned of once in a session.
#[derive(Debug, Default)]
pub(crate) struct LowLimitWarnings {
    reported: LowLimits,
    /// The kinds that the user was warned of.
    told: BTreeSet<u32>,
}

impl LowLimitWarnings {
    /// Adds a report.
    pub(crate) fn add(&mut self, limits: &LowLimits) {
        self.reported.merge(limits.clone());
    }

    /// Returns the warnings that are due. `limits` are those of the user's shell: resource, soft limit and hard limit.
    pub(crate) fn take<'a>(
        &mut self,
        limits: &[(u32, u64, u64)],
        place: Place,
        host: impl Fn(AgentId) -> &'a str,
    ) -> Vec<String> {
        let mut warnings = Vec::new();
        for limit in std::mem::take(&mut self.reported).iter() {
            let wanted = limits.iter().find(|(kind, ..)| *kind == limit.kind).map(|(_, soft, _)| *soft);
            // A report that contradicts the user's limits is not one of a cut.
            if let Some(wanted) = wanted.filter(|wanted| limit.most < *wanted)
                && self.told.insert(limit.kind)
            {
                let hosts: BTreeSet<&str> = limit.agents.iter().map(|agent| host(AgentId(agent.0))).collect();
                warnings.push(text(limit, wanted, &fold_within(&hosts, HOSTS_BYTES_MAX), place));
            }
        }
        warnings
    }
}

/// The process from which agents have their limits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// A pool that has started them on its own host.
    Pool,
    /// The remote shells that have started them, or a resource manager.
    Hosts,
}

fn text(limit: &LowLimit, wanted: u64, hosts: &str, place: Place) -> String {
    let Unit { option, bytes_per_unit, noun } = Unit::of(limit.kind);
    let name = limit_name(limit.kind);
    let number = |limit: u64| (limit / bytes_per_unit).to_string();
    let granted = match limit.least == limit.most {
        true => number(limit.most),
        false => format!("{} to {}", number(limit.least), number(limit.most)),
    };
    let (has, least) = match wanted {
        u64::MAX => ("no limit".to_owned(), "unlimited".to_owned()),
        wanted => (number(wanted), number(wanted)),
    };
    let or_more = if wanted == u64::MAX { "" } else { " or more" };
    let hint = match place {
        Place::Pool => format!("start the pool from a shell in which 'ulimit -H{option}' prints {least}{or_more}"),
        Place::Hosts => {
            format!("raise the hard limit there, until 'ulimit -H{option}' in a remote shell prints {least}{or_more}")
        }
    };
    format!("warning: ranks on {hosts} have at most {granted} {noun} ({name}); your shell has {has}\n  hint: {hint}")
}

/// The meaning of a limit's number, as the `ulimit` of bash prints it.
struct Unit {
    option: char,
    bytes_per_unit: u64,
    noun: &'static str,
}

impl Unit {
    /// Returns the unit of a kind of limit (`RLIMIT_*`).
    fn of(kind: u32) -> Self {
        let (option, bytes_per_unit, noun) = match kind {
            0 => ('t', 1, "s of processor time"),
            1 => ('f', 1024, "KiB in a file"),
            2 => ('d', 1024, "KiB of data"),
            3 => ('s', 1024, "KiB of stack"),
            4 => ('c', 1024, "KiB in a core dump"),
            6 => ('u', 1, "processes and threads"),
            7 => ('n', 1, "open files"),
            8 => ('l', 1024, "KiB of locked memory"),
            9 => ('v', 1024, "KiB of address space"),
            12 => ('q', 1, "bytes in message queues"),
            _ => ('a', 1, "as a limit"),
        };
        Self { option, bytes_per_unit, noun }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOFILE: u32 = 7;
    const MEMLOCK: u32 = 8;
    const SHELL: [(u32, u64, u64); 2] = [(NOFILE, 20_000, 50_000), (MEMLOCK, u64::MAX, u64::MAX)];

    fn low(kind: u32, (least, most): (u64, u64), agents: &str) -> LowLimits {
        vec![LowLimit { kind, least, most, agents: agents.parse().unwrap() }].try_into().unwrap()
    }

    fn taken(warnings: &mut LowLimitWarnings, place: Place) -> Vec<String> {
        let names = ["n1", "n2", "n2", "n3"];
        warnings.take(&SHELL, place, |agent| names[agent.0 as usize - 1])
    }

    #[test]
    fn each_kind_is_warned_of_once_with_all_hosts() {
        let mut warnings = LowLimitWarnings::default();
        assert_eq!(taken(&mut warnings, Place::Hosts), [""; 0]);
        warnings.add(&low(MEMLOCK, (65_536, 65_536), "4"));
        warnings.add(&low(NOFILE, (500, 500), "1"));
        warnings.add(&low(NOFILE, (500, 500), "2-3"));
        let expected = [
            "warning: ranks on n[1-2] have at most 500 open files (nofile); your shell has 20000\n  \
             hint: raise the hard limit there, until 'ulimit -Hn' in a remote shell prints 20000 or more",
            "warning: ranks on n3 have at most 64 KiB of locked memory (memlock); your shell has no limit\n  \
             hint: raise the hard limit there, until 'ulimit -Hl' in a remote shell prints unlimited",
        ];
        assert_eq!(taken(&mut warnings, Place::Hosts), expected);
        warnings.add(&low(NOFILE, (400, 400), "4"));
        assert_eq!(taken(&mut warnings, Place::Hosts), [""; 0], "the user knows");
    }

    #[test]
    fn different_limits_share_a_warning_and_a_pool_has_another_hint() {
        let mut warnings = LowLimitWarnings::default();
        warnings.add(&low(NOFILE, (500, 500), "1"));
        warnings.add(&low(NOFILE, (1000, 1000), "4"));
        let expected = "warning: ranks on n[1,3] have at most 500 to 1000 open files (nofile); your shell has 20000\n  \
                        hint: start the pool from a shell in which 'ulimit -Hn' prints 20000 or more";
        assert_eq!(taken(&mut warnings, Place::Pool), [expected]);
    }

    #[test]
    fn a_limit_that_is_not_lower_is_no_warning() {
        let mut warnings = LowLimitWarnings::default();
        warnings.add(&low(NOFILE, (500, 20_000), "1"));
        warnings.add(&low(3, (1, 1), "1"));
        assert_eq!(taken(&mut warnings, Place::Hosts), [""; 0]);
    }
}
