//! Fits a job into the limits of this machine: chooses the number of agents, or refuses the job and says which limits to raise.

use std::ops::RangeInclusive;

use nla::sys::TaskLimit;

use super::machine::Machine;
use super::needs::{LocalJob, RANK_BYTES_MIN};
use super::process_limits::MemoryLimit;
use crate::refusal::{Refusal, counted};

/// The highest number of agents that a refusal suggests.
const AGENTS_ADVISED_MAX: u32 = 1 << 17;

/// The wanted number of agents.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Wish {
    /// This number is the fastest. Others will do.
    Fastest(u32),
    /// The job has this number, as its options say.
    Fixed(u32),
}

/// The limits that a job must fit into.
#[derive(Clone, Debug)]
struct Limits {
    /// The hard limit on open files, to which launcher and agents raise their own.
    files: u64,
    tasks: Vec<TaskLimit>,
    memory: Vec<MemoryLimit>,
}

/// A limit that is too low for a job with some number of agents.
#[derive(Debug)]
enum Shortage<'a> {
    Files,
    Tasks(&'a TaskLimit),
    Memory(&'a MemoryLimit),
}

/// Returns the number of agents with which the job fits into the limits of `machine`: the wanted one, or else the nearest.
pub(super) fn fitting_agents(job: &LocalJob, wish: Wish, machine: &Machine) -> Result<u32, Refusal> {
    let (Wish::Fastest(wanted) | Wish::Fixed(wanted)) = wish;
    let files = super::agent_layout::open_files_max(&machine.shell);
    // Too few open files may take more agents than wanted, up to one for each rank.
    let most = if job.files(wanted) <= files { wanted } else { wanted.max(*numbers(job).end()) };
    let tasks = job.tasks(most);
    let limits = Limits { files, tasks: (machine.task_limits)(tasks), memory: (machine.memory_limits)(tasks) };
    limits.choose(job, wish).ok_or_else(|| limits.refusal(job, wish))
}

impl Limits {
    fn shortages<'a>(&'a self, job: &LocalJob, agents: u32) -> impl Iterator<Item = Shortage<'a>> {
        let (tasks, memory) = (job.tasks(agents), job.memory(agents));
        let files = (job.files(agents) > self.files).then_some(Shortage::Files);
        let tasks = self.tasks.iter().filter(move |limit| tasks > limit.left()).map(Shortage::Tasks);
        let memory = self.memory.iter().filter(move |limit| memory > limit.left).map(Shortage::Memory);
        files.into_iter().chain(tasks).chain(memory)
    }

    fn fits(&self, job: &LocalJob, agents: u32) -> bool {
        self.shortages(job, agents).next().is_none()
    }

    /// Returns the number of agents; `None` if the job does not fit with any.
    fn choose(&self, job: &LocalJob, wish: Wish) -> Option<u32> {
        match wish {
            Wish::Fixed(agents) => self.fits(job, agents).then_some(agents),
            Wish::Fastest(agents) => {
                let more = agents..=*numbers(job).end();
                let fewer = (1..agents).rev();
                // More agents have fewer open files each. Beyond the launcher's own limit, fewer are left.
                let more = more.take_while(|agents| job.launcher_files(*agents) <= self.files);
                more.chain(fewer).find(|agents| self.fits(job, *agents))
            }
        }
    }

    /// Returns why the job does not fit, and what would let it.
    fn refusal(&self, job: &LocalJob, wish: Wish) -> Refusal {
        let agents = match wish {
            Wish::Fixed(agents) => agents,
            // Prefer the number of agents that needs the fewest raised limits, then the lowest limit on open files.
            Wish::Fastest(wanted) => numbers(job)
                .min_by_key(|agents| {
                    let files = job.files(*agents);
                    let raised = if files > self.files { files } else { 0 };
                    (self.shortages(job, *agents).count(), raised, job.tasks(*agents))
                })
                .unwrap_or(wanted),
        };
        let (why, mut raises): (Vec<String>, Vec<Option<String>>) =
            self.shortages(job, agents).map(|shortage| self.describe(job, agents, &shortage)).unzip();
        let text = format!(
            "{} and {} do not fit on this machine:{}",
            counted(u64::from(job.ranks), "rank", "ranks"),
            counted(u64::from(agents), "agent", "agents"),
            match why.as_slice() {
                [one] => format!(" {one}"),
                all => format!("\n  {}", all.join("\n  ")),
            }
        );
        let fewer = "start fewer ranks with -np, or name other hosts with -hosts or -f";
        let mut hint = String::new();
        if raises.iter().all(Option::is_some) {
            let takes = self.raised(job, agents).choose(job, wish).unwrap_or(agents);
            let raises: Vec<String> = raises.drain(..).flatten().collect();
            let takes = counted(u64::from(takes), "agent", "agents");
            hint = match raises.as_slice() {
                [one] => format!("{one} lets it start, with {takes}; or "),
                all => format!("together, these let it start, with {takes}:\n    {}\n  or ", all.join("\n    ")),
            };
        }
        if let Wish::Fixed(_) = wish
            && let Some(other) = self.choose(job, Wish::Fastest(1))
        {
            let other = counted(u64::from(other), "agent", "agents");
            hint.push_str(&format!("leave --agents-per-node out: it fits with {other}; or "));
        }
        Refusal::new(text, hint + fewer)
    }

    /// Returns the limits after the user has followed the advice for a job with so many agents.
    fn raised(&self, job: &LocalJob, agents: u32) -> Self {
        let tasks = self.tasks.iter().map(|limit| {
            let max = limit.max.max(job.tasks(agents) + limit.others);
            TaskLimit { max, ..limit.clone() }
        });
        let memory = self.memory.iter().map(|limit| {
            let left = limit.left.max(job.memory(agents));
            MemoryLimit { left, ..limit.clone() }
        });
        Self { files: self.files.max(job.files(agents)), tasks: tasks.collect(), memory: memory.collect() }
    }

    /// Returns why `shortage` keeps a job with so many agents from starting, and what to do about it.
    fn describe(&self, job: &LocalJob, agents: u32, shortage: &Shortage<'_>) -> (String, Option<String>) {
        match shortage {
            Shortage::Files => {
                let needed = job.files(agents);
                let process = if job.agent_files(agents) == needed { "an agent" } else { "scela-run" };
                let limit = self.files;
                (
                    format!("{process} needs {needed} open files, and the hard limit (ulimit -Hn) allows {limit}"),
                    Some(format!("'ulimit -n {needed}' (a hard limit: as root, or by limits.conf)")),
                )
            }
            Shortage::Tasks(limit) => {
                let needed = job.tasks(agents);
                let others = match limit.others {
                    0 => String::new(),
                    1 => ", of which 1 is in use or reserved".to_owned(),
                    others => format!(", of which {others} are in use or reserved"),
                };
                let (name, max) = (limit.name(), limit.max);
                let text = format!(
                    "the job needs {needed} processes and threads, with those of agents and guardians, and {name} allows {max}"
                );
                (text + &others, limit.raise(needed))
            }
            Shortage::Memory(MemoryLimit { name, left, is_of_cgroup }) => {
                let needed = job.memory(agents).div_ceil(1 << 20);
                let text = format!(
                    "even the smallest programs need {needed} MiB of memory, {} KiB each, and {name} leaves {} MiB",
                    RANK_BYTES_MIN >> 10,
                    left >> 20
                );
                let short = needed - (left >> 20);
                let raise = if *is_of_cgroup {
                    format!("a limit higher by {short} MiB in {name} (MemoryMax= in the systemd unit)")
                } else {
                    format!("{short} MiB more free memory")
                };
                (text, Some(raise))
            }
        }
    }
}

/// Returns the numbers of agents that a job can have.
fn numbers(job: &LocalJob) -> RangeInclusive<u32> {
    1..=job.ranks.clamp(1, AGENTS_ADVISED_MAX)
}

#[cfg(test)]
mod tests {
    use nla::sys::TaskLimitPlace;

    use super::*;

    const JOB: LocalJob = LocalJob { ranks: 64, readers: 1, fanout: 32, cores: 2, block: 1, spares: 0 };

    fn limits(files: u64, tasks: u64) -> Limits {
        let user = TaskLimit { place: TaskLimitPlace::User { hard: u64::MAX }, max: tasks + 7, others: 7 };
        Limits { files, tasks: vec![user], memory: Vec::new() }
    }

    #[test]
    fn the_number_of_agents_is_the_nearest_that_fits() {
        let choose = |files, tasks| limits(files, tasks).choose(&JOB, Wish::Fastest(2));
        assert_eq!(choose(1000, 1000), Some(2));
        assert_eq!(choose(100, 1000), Some(8), "fewer open files each");
        assert_eq!(choose(1000, 74), Some(1), "fewer processes");
        assert_eq!(choose(100, 74), None);
        assert_eq!(choose(60, 1000), None, "the launcher has too few");
        assert_eq!(limits(100, 1000).choose(&JOB, Wish::Fixed(2)), None);
    }

    /// Takes the limits that the refusal names, and checks that they are enough and that one less is not.
    #[test]
    fn advice_is_enough_and_not_too_much() {
        let number = |hint: &str, option: &str| -> Option<u64> {
            let rest = hint.split_once(&format!("'ulimit {option} "))?.1;
            rest.split_once('\'')?.0.parse().ok()
        };
        for ranks in [1, 2, 5, 33, 64, 200, 1000, 5000] {
            let job = LocalJob { ranks, ..JOB };
            for files in [30, 57, 64, 100, 256, 1024, 20_000] {
                for tasks in [5, 50, 100, 300, 1100, 100_000] {
                    for wish in [Wish::Fastest(ranks.div_ceil(128)), Wish::Fixed(ranks.min(3))] {
                        let before = limits(files, tasks);
                        if before.choose(&job, wish).is_some() {
                            continue;
                        }
                        let hint = before.refusal(&job, wish).hint().to_owned();
                        let (n, u) = (number(&hint, "-n"), number(&hint, "-u"));
                        assert!(n.is_some() || u.is_some(), "{hint}");
                        let raised = |less_n: u64, less_u: u64| {
                            limits(n.map_or(files, |n| n - less_n), u.map_or(tasks, |u| u - 7 - less_u))
                                .choose(&job, wish)
                        };
                        let takes = raised(0, 0).unwrap_or_else(|| panic!("{job:?} {files} {tasks} {wish:?}: {hint}"));
                        assert!(hint.contains(&format!("with {takes} agent")), "{takes}: {hint}");
                        assert!(n.is_none() || raised(1, 0).is_none(), "{job:?} {files} {tasks}: {hint}");
                        assert!(u.is_none() || raised(0, 1).is_none(), "{job:?} {files} {tasks}: {hint}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_refusal_names_needs_limits_and_advice() {
        let error = limits(70, 70).refusal(&JOB, Wish::Fastest(2));
        let (text, hint) = (error.to_string(), error.hint());
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "64 ranks and 22 agents do not fit on this machine:");
        assert_eq!(lines[1], "  scela-run needs 72 open files, and the hard limit (ulimit -Hn) allows 70");
        let tasks = " processes and threads, with those of agents and guardians, and ulimit -u allows 77, of which 7 are in use or reserved";
        assert!(lines.len() == 3 && lines[2].starts_with("  the job needs ") && lines[2].ends_with(tasks), "{text}");
        let lines: Vec<_> = hint.lines().collect();
        assert!(lines[0].starts_with("together, these let it start, with "), "{hint}");
        assert!(lines[1].starts_with("    'ulimit -n ") && lines[2].starts_with("    'ulimit -u "), "{hint}");
        assert_eq!(lines[3..], ["  or start fewer ranks with -np, or name other hosts with -hosts or -f"]);
        let fixed = limits(200, 1000).refusal(&JOB, Wish::Fixed(2));
        assert!(fixed.hint().contains("; or leave --agents-per-node out: it fits with "), "{}", fixed.hint());
    }

    #[test]
    fn memory_is_described_by_what_is_missing() {
        let memory = |is_of_cgroup| MemoryLimit { name: "/c/memory.max".into(), left: 5 << 20, is_of_cgroup };
        let limits = Limits { memory: vec![memory(true)], ..limits(1000, 1000) };
        let error = limits.refusal(&JOB, Wish::Fastest(1));
        let text = "64 ranks and 1 agent do not fit on this machine: even the smallest programs need 10 MiB of memory, 96 KiB each, \
                    and /c/memory.max leaves 5 MiB";
        assert_eq!(error.to_string(), text);
        let hint = "a limit higher by 5 MiB in /c/memory.max (MemoryMax= in the systemd unit) lets it start, with 1 agent; or ";
        assert!(error.hint().starts_with(hint), "{}", error.hint());
    }
}
