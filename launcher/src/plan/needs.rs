//! The needs of a job on this machine: open files, processes and threads, memory, by its number of agents. The choice of that
//! number, refusals and advice all use these sums.

use nla::core::limits::unauthenticated_max;
use nla::driver::{ORDERS_MAX, spawner_threads};
use nla::sys;

/// The open files of an agent without ranks. Measured with Linux 6.18: 40 are too few for a job of one rank; 40 plus the rank's own
/// suffice. Some options need further files: staged files, recordings, PMIx, the port of `--pmi-port`, a pool.
const AGENT_FILES: u64 = 50;
/// The open files of an agent for a rank that runs: standard output, standard error, PMI.
const FILES_PER_RANK: u64 = 3;
/// The open files of the launcher beside its agents: 14 while ranks run, up to 28 before.
const LAUNCHER_FILES: u64 = 28;
/// The pipes to an agent and from it.
const LAUNCHER_FILES_PER_AGENT: u64 = 2;

/// A guardian, the agent's thread that serves ranks, and the one that reads their output. Those that start ranks are counted beside
/// these.
const TASKS_PER_AGENT: u64 = 3;
/// The launcher's threads: its first, those of standard input, output and error, and the one that ends what lost agents have left.
const LAUNCHER_TASKS: u64 = 5;

/// The least memory of a rank. An idle static program of 20 lines has 125 KiB (Linux 6.18, x86-64: page tables 42, kernel stack 16,
/// slabs 28, and its own pages). A real MPI program has a hundred times as much.
pub(super) const RANK_BYTES_MIN: u64 = 96 << 10;
/// The memory of an agent and its guardian without ranks, and of the launcher (PSS; docs/results/scale.md).
const AGENT_BYTES: u64 = 512 << 10;
const LAUNCHER_BYTES: u64 = 3 << 20;

/// A job whose agents all run on this machine.
#[derive(Copy, Clone, Debug)]
pub(crate) struct LocalJob {
    /// The number of ranks, at least 1.
    pub(crate) ranks: u32,
    /// The number of ranks that get standard input.
    pub(crate) readers: u32,
    /// The most agents that the launcher has links to.
    pub(crate) fanout: u32,
    /// The cores that the job may use.
    pub(crate) cores: u32,
    /// The number of ranks that are placed together: agents get blocks of them in turn.
    pub(crate) block: u32,
    /// The number of agents without ranks.
    pub(crate) spares: u32,
}

impl LocalJob {
    /// Returns the most ranks that one of `agents` agents has.
    fn ranks_of_agent(&self, agents: u32) -> u64 {
        let used = agents.saturating_sub(self.spares).max(1);
        let blocks = self.ranks.div_ceil(self.block).div_ceil(used);
        u64::from(blocks.saturating_mul(self.block).min(self.ranks))
    }

    /// Returns the limit on open files with which each of `agents` agents can start its ranks.
    pub(crate) fn agent_files(&self, agents: u32) -> u64 {
        let ranks = self.ranks_of_agent(agents);
        let readers = ranks.min(u64::from(self.readers));
        // The agent also has the ranks' ends of the pipes until the ranks have started.
        let starting = |files: u64| files.min(ORDERS_MAX as u64);
        let of_ranks = (ranks + starting(ranks)) * FILES_PER_RANK + readers + starting(readers);
        self.with_port(agents, AGENT_FILES + of_ranks)
    }

    /// Returns the limit on open files with which the launcher can start so many agents.
    pub(crate) fn launcher_files(&self, agents: u32) -> u64 {
        self.with_port(agents, u64::from(agents) * LAUNCHER_FILES_PER_AGENT + LAUNCHER_FILES)
    }

    /// Returns the limit on open files that launcher and agents need.
    pub(super) fn files(&self, agents: u32) -> u64 {
        self.agent_files(agents).max(self.launcher_files(agents))
    }

    /// Returns the limit for a process that opens `files` files, if it also has a port: the links to its children, and the
    /// connections of strangers, whose number follows from the limit. Only trees of several levels have ports.
    fn with_port(&self, agents: u32, files: u64) -> u64 {
        if agents <= self.fanout {
            return files;
        }
        let own = files + u64::from(self.fanout);
        // The least limit that leaves `own`: strangers get a sixteenth of it, within bounds.
        let guess = own + unauthenticated_max(own + own / 15) as u64;
        (guess.saturating_sub(2)..).find(|limit| limit - unauthenticated_max(*limit) as u64 >= own).unwrap_or(guess)
    }

    /// Returns the number of processes and threads: launcher, guardians, agents, and one for each rank.
    pub(super) fn tasks(&self, agents: u32) -> u64 {
        let starters = spawner_threads(self.ranks_of_agent(agents) as usize, self.cores as usize) as u64;
        u64::from(self.ranks) + u64::from(agents) * (TASKS_PER_AGENT + starters) + LAUNCHER_TASKS
    }

    /// Returns the bytes of memory that even the smallest programs need.
    pub(super) fn memory(&self, agents: u32) -> u64 {
        u64::from(self.ranks) * RANK_BYTES_MIN + u64::from(agents) * AGENT_BYTES + LAUNCHER_BYTES
    }
}

/// Returns the number of processes and threads of a job with so many agents, all of which run on this machine.
pub(crate) fn tasks(ranks: u32, agents: u32) -> u64 {
    LocalJob { ranks, readers: 1, fanout: agents, cores: sys::usable_cores() as u32, block: 1, spares: 0 }.tasks(agents)
}

/// Returns the limit on open files with which an agent can start so many ranks, all of which get standard input.
pub(crate) fn agent_files(ranks: u32) -> u64 {
    LocalJob { ranks, readers: ranks, fanout: 1, cores: 1, block: 1, spares: 0 }.agent_files(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: LocalJob = LocalJob { ranks: 64, readers: 1, fanout: 32, cores: 2, block: 1, spares: 0 };

    /// The figures were measured as the least limits with which jobs of `sleep` ran: 48, 54, 90, 235, 317 and, with `-stdin all`, 393.
    #[test]
    fn open_files_are_a_little_more_than_measured() {
        let files = |ranks: u32| LocalJob { ranks, ..JOB }.agent_files(1);
        assert_eq!([1, 2, 8, 32, 64].map(files), [58, 64, 100, 244, 340]);
        assert_eq!(LocalJob { readers: 64, ..JOB }.agent_files(1), 434);
        assert_eq!(agent_files(64), 434);
    }

    #[test]
    fn more_agents_need_fewer_files_each_and_the_launcher_more() {
        assert_eq!([1, 2, 8, 32].map(|agents| JOB.agent_files(agents)), [340, 244, 100, 64]);
        assert_eq!([1, 2, 8, 32].map(|agents| JOB.launcher_files(agents)), [30, 32, 44, 92]);
        assert_eq!(JOB.files(8), 100);
        assert_eq!(JOB.files(32), 92);
    }

    #[test]
    fn blocks_and_spares_leave_more_ranks_to_an_agent() {
        let ranks = |block: u32, spares: u32| LocalJob { ranks: 150, block, spares, ..JOB }.ranks_of_agent(3);
        assert_eq!([ranks(1, 0), ranks(100, 0), ranks(1, 1), ranks(200, 0)], [50, 100, 75, 150]);
    }

    #[test]
    fn a_tree_of_several_levels_has_room_for_strangers() {
        assert_eq!(JOB.launcher_files(33), 28 + 66 + 32 + 16);
        assert_eq!(JOB.agent_files(33), 64 + 32 + 16);
        for own in 50..6000 {
            let limit = JOB.with_port(33, own);
            let leaves = |limit: u64| limit - unauthenticated_max(limit) as u64 >= own + 32;
            assert!(leaves(limit) && !leaves(limit - 1), "{own} {limit}");
        }
    }

    /// The figures were measured as the least `ulimit -u` with which jobs of `sleep` ran: 7, 9, 22, 51, 57 and 75.
    #[test]
    fn processes_and_threads_are_a_little_more_than_measured() {
        let tasks = |ranks: u32, agents: u32| LocalJob { ranks, ..JOB }.tasks(agents);
        assert_eq!([tasks(1, 1), tasks(4, 1), tasks(16, 1)], [10, 13, 26]);
        assert_eq!([tasks(40, 2), tasks(40, 4), tasks(40, 8)], [55, 61, 77]);
    }

    #[test]
    fn memory_is_at_least_that_of_the_smallest_programs() {
        assert_eq!(LocalJob { ranks: 1024, ..JOB }.memory(4), (96 << 20) + (2 << 20) + (3 << 20));
    }
}
