//! The plan of a session: what is started, and where. The launcher makes it, and each agent gets its share.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use pmi::{JobDescription, Mapping, ProgramDescription, Rank, Ranks};
use serde::{Deserialize, Serialize};

use super::accelerators::AcceleratorPlan;
use super::binding::BindingPolicy;
use super::cache::CachePolicy;
use super::collect::CollectPlan;
use super::failure_policy::FailurePolicy;
use super::ids::{AgentId, NamespaceId};
use super::leftovers::CleanShm;
use super::limits::{ORPHAN_MARGIN, REJOIN_MARGIN};
use super::pieces::PieceBytes;
use super::stage::StagePlan;
use super::topology::Subtree;
use super::trace::TraceScope;

/// A name and its value in an environment, as bytes: neither need be UTF-8.
pub type Variable = (Vec<u8>, Vec<u8>);

/// Whether a variable describes the machine or login on which it was set, so that its value must not travel to other
/// nodes with the launcher's environment. On another node the agent's own value, if it has one, is right.
///
/// These are the names of the host itself, sockets and terminals of a login (another node has none of that name, or
/// another user's), and what a resource manager says about one node of a job. All other variables travel, as users of
/// MPI launchers expect: `TERM`, `PATH`, `LANG`, and also `TMPDIR`, which on most clusters is the same path on all nodes
/// of a job and names the directory that the user has chosen for large files. To set one of these names on all nodes,
/// users have `-genv` and `-x`, to which this does not apply.
///
/// The list is between two others: Hydra leaves behind only `DISPLAY`, PRRTE the whole environment.
pub fn is_bound_to_host(name: &[u8]) -> bool {
    const PREFIXES: [&str; 4] = ["SSH_", "DBUS_", "XDG_SESSION_", "TMUX"];
    const NAMES: [&str; 36] = [
        // Names of the host.
        "HOSTNAME",
        "HOST",
        "HOSTTYPE",
        // Screens, terminals and agents of a login.
        "DISPLAY",
        "WAYLAND_DISPLAY",
        "XAUTHORITY",
        "WINDOWID",
        "STY",
        "XDG_RUNTIME_DIR",
        "XDG_SEAT",
        "XDG_SEAT_PATH",
        "XDG_VTNR",
        "GPG_AGENT_INFO",
        "GPG_TTY",
        "KRB5CCNAME",
        // Set by systemd for one process.
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "NOTIFY_SOCKET",
        "SYSTEMD_EXEC_PID",
        // Set by a resource manager for one node of a job, or for its own processes there.
        "SLURMD_NODENAME",
        "SLURM_CPUS_ON_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_JOB_GPUS",
        "SLURM_STEP_GPUS",
        "SLURM_TOPOLOGY_ADDR",
        "PBS_NODENUM",
        "PBS_TASKNUM",
        "PBS_VNODENUM",
        "PBS_MOMPORT",
        "LSB_JOBPID",
        "LSB_JOBRES_PID",
        "LS_JOBPID",
        "SGE_JOB_SPOOL_DIR",
        "FLUX_URI",
        "FLUX_JOB_TMPDIR",
        "FLUX_TERMINUS_SESSION",
    ];
    PREFIXES.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
        || NAMES.iter().any(|known| name == known.as_bytes())
}

/// Variables with which a resource manager lists the job's accelerators. Their numbers may differ from node to node.
const DEVICES: [&str; 4] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"];

/// The kinds of the launcher's output streams to which an agent writes the output of ranks itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DirectOutput {
    /// None: the launcher changes the output, or writes it elsewhere.
    Never,
    /// Files that need no reader. A write of whole lines to a pipe with little room is cut, so that lines of several agents would mix.
    WithoutReader,
    /// Pipes, too: no other agent writes.
    WithPipe,
}

impl DirectOutput {
    /// Returns how `agents` agents use a stream to which the launcher writes all output unchanged.
    pub fn of_agents(agents: u32) -> Self {
        if agents == 1 { Self::WithPipe } else { Self::WithoutReader }
    }

    /// Returns whether an agent writes to a stream that it has inherited.
    pub fn permits(self, needs_no_reader: bool) -> bool {
        match self {
            Self::Never => false,
            Self::WithoutReader => needs_no_reader,
            Self::WithPipe => true,
        }
    }
}

/// The part of the plan that is the same for all ranks of a session. Each agent gets it once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// The launcher's environment, without the variables that must not reach ranks.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub environment: Vec<Variable>,
    /// The limits, umask and signal state of the user's shell, as the module `sys` encodes them; opaque here.
    pub shell: Bytes,
    /// A line is shown when its newline arrives. Otherwise it is also shown after a short time without output.
    pub hold_lines: bool,
    /// How agents that have inherited the launcher's standard output and standard error use each.
    pub direct: [DirectOutput; 2],
    /// Ranks get PMI_PORT and PMI_ID instead of an inherited socket.
    pub pmi_port: bool,
    /// The time between the first signal to ranks and SIGKILL when the session ends.
    pub kill_grace: Duration,
    /// The cache policy of the bulletin boards.
    pub cache: CachePolicy,
    /// The files of killed ranks in /dev/shm that agents remove.
    pub clean_shm: CleanShm,
    /// The action after the failure of a rank or an agent.
    pub on_failure: FailurePolicy,
    /// How long a link may be silent before it counts as lost.
    pub dead_time: Duration,
    /// Agents listen for other agents, so that one whose parent is lost can join an ancestor.
    pub has_ports: bool,
    /// The ranks that lead sessions of their own. The others lead only process groups.
    pub rank_sessions: RankSessions,
    /// Each agent reports its statistics at the end.
    pub stats: bool,
    /// Agents trace their steps, and report them at the end.
    pub trace: Option<TraceScope>,
    /// Set if ranks are served by PMIx, too.
    pub pmix: Option<PmixPlan>,
    /// How ranks are bound to processors and memory.
    pub binding: BindingPolicy,
    /// The accelerators and other devices of the ranks.
    pub accelerators: AcceleratorPlan,
    /// Longer epochs travel in pieces of this length, and longer contributions to a fence go up before it is complete.
    pub piece_bytes: PieceBytes,
    /// The files that every node gets before the first rank starts.
    pub stage: StagePlan,
    /// Ranks report what they have sent to each other, and agents pass it on at the end.
    pub profile: bool,
    /// The files of ranks that are brought back at the end.
    pub collect: CollectPlan,
    /// When the launcher sent this, in session time.
    pub sent: Duration,
}

/// How ranks are served by PMIx.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixPlan {
    /// The path of libpmix, or its file name if the dynamic loader is to find it.
    #[serde(with = "serde_bytes")]
    pub library: Vec<u8>,
    /// 128 random bits in hexadecimal. PMIx has no authentication: a process that knows the name of a namespace can speak for its ranks.
    pub secret: String,
    /// The names of all nodes, by their numbers. No two are equal.
    pub hosts: Vec<String>,
}

impl PmixPlan {
    /// The name that a namespace has for PMIx.
    pub fn name_of(&self, kvsname: &str) -> String {
        format!("{}.{kvsname}", self.secret)
    }

    /// The kvsname of the namespace of this name; `None` if it is of another session.
    pub fn job_of<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(&self.secret)?.strip_prefix('.')
    }
}

/// The secret stays out of logs.
impl fmt::Debug for PmixPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let library = String::from_utf8_lossy(&self.library);
        f.debug_struct("PmixPlan").field("library", &library).finish_non_exhaustive()
    }
}

/// The ranks that lead sessions of their own.
///
/// The kernel shares the processor out among sessions (sched_autogroup), so beside other load a session for each rank gives
/// each the share of one program. But a rank that calls sched_yield while it waits lets only tasks of its own session run. Open
/// MPI's ranks do that if they are told that they share processors.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum RankSessions {
    /// All.
    All,
    /// Those of agents that have a processor for each of their ranks.
    Unshared,
    /// None.
    None,
}

impl RankSessions {
    /// Returns the same for ranks that yield while they wait.
    #[must_use]
    pub fn of_yielding_ranks(self) -> Self {
        if self == Self::All { Self::Unshared } else { self }
    }

    /// Whether each of an agent's `ranks` on `cores` processors leads a session.
    pub fn are_led(self, ranks: u64, cores: usize) -> bool {
        match self {
            Self::All => true,
            Self::Unshared => ranks <= cores as u64,
            Self::None => false,
        }
    }
}

impl SessionPlan {
    /// How long an agent whose parent was lost tries to join an ancestor before it kills its ranks. Two dead times: the
    /// ancestor accepts it only when it has noticed the loss too.
    pub(super) fn rejoin_time(&self) -> Duration {
        2 * self.dead_time + REJOIN_MARGIN
    }

    /// How long an ancestor waits for that agent. Afterwards the agent has given up and killed its ranks, even if it
    /// noticed the loss a dead time later.
    pub(super) fn adoption_time(&self) -> Duration {
        self.rejoin_time() + self.dead_time + ORPHAN_MARGIN
    }

    /// Whether agents report once more when their output has ended.
    pub(super) fn has_last_reports(&self) -> bool {
        self.stats || self.trace.is_some()
    }

    /// Whether the ranks of a lost agent start on another one, while the others go on.
    pub(super) fn moves_ranks(&self) -> bool {
        self.on_failure == FailurePolicy::RestartRank && self.has_ports
    }

    /// The plan for ranks on another node than the launcher's: without the variables that are bound to its host.
    #[must_use]
    pub fn for_other_node(mut self) -> Self {
        self.environment.retain(|(name, _)| !is_bound_to_host(name));
        self
    }

    /// Returns the plan for ranks of a resource manager's step: with the devices that the step has on their node, as
    /// `own` returns them by name, instead of those of the launcher's node.
    #[must_use]
    pub fn with_devices(mut self, own: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        self.environment.retain(|(name, _)| !DEVICES.iter().any(|known| name == known.as_bytes()));
        let set = DEVICES.iter().filter_map(|name| Some((name.as_bytes().to_vec(), own(name)?)));
        self.environment.extend(set);
        self
    }
}

/// Environments contain secrets: a log shows only the number of variables.
impl fmt::Debug for SessionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionPlan")
            .field("variables", &self.environment.len())
            .field("hold_lines", &self.hold_lines)
            .field("direct", &self.direct)
            .field("pmi_port", &self.pmi_port)
            .field("kill_grace", &self.kill_grace)
            .field("cache", &self.cache)
            .field("clean_shm", &self.clean_shm)
            .field("on_failure", &self.on_failure)
            .field("dead_time", &self.dead_time)
            .field("has_ports", &self.has_ports)
            .field("stats", &self.stats)
            .field("trace", &self.trace)
            .field("pmix", &self.pmix)
            .field("binding", &self.binding)
            .field("accelerators", &self.accelerators)
            .field("staged", &(self.stage.files().len() + self.stage.trees().len()))
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// The part of [`SessionPlan::environment`] that a command's ranks inherit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inherit {
    /// All variables.
    All,
    /// No variable.
    Nothing,
    /// The variables with these names.
    Names(#[serde(with = "pmi::wire::byte_strings")] Vec<Vec<u8>>),
}

/// One program of a namespace and the ranks that run it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPlan {
    /// The number of ranks that run it. Ranks are numbered through the commands in order.
    pub nprocs: u32,
    /// The program as the user named it: a path, or a name that is searched in the rank's PATH.
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// The path of the staged program that is executed in its place, relative to the directory of the staged files.
    #[serde(with = "serde_bytes")]
    pub staged: Option<Vec<u8>>,
    /// The arguments after the program's name.
    #[serde(with = "pmi::wire::byte_strings")]
    pub args: Vec<Vec<u8>>,
    /// The variables that it inherits from the session's environment.
    pub inherit: Inherit,
    /// The variables that are set on top of these; the last one of a name counts.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub set: Vec<Variable>,
    /// The working directory.
    #[serde(with = "serde_bytes")]
    pub wdir: Vec<u8>,
}

/// Like a [`SessionPlan`]'s environment, arguments may be secret: a log shows only their number.
impl fmt::Debug for CommandPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandPlan")
            .field("nprocs", &self.nprocs)
            .field("program", &String::from_utf8_lossy(&self.program))
            .field("arguments", &self.args.len())
            .field("set", &self.set.len())
            .finish_non_exhaustive()
    }
}

/// The plan of a namespace, or a subtree's share of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespacePlan {
    /// Its number.
    pub id: NamespaceId,
    /// Its name on the PMI wire: unique among sessions, short, without blanks.
    pub kvsname: String,
    /// The number of its ranks, in the whole session.
    pub size: u32,
    /// The universe size, as PMI calls it.
    pub universe: i32,
    /// The rank that spawned it: the name of its namespace, and its number.
    pub spawner: Option<(String, Rank)>,
    /// Its programs.
    pub commands: Vec<CommandPlan>,
    /// The node of each rank.
    pub mapping: Mapping,
    /// The ranks that each agent starts, sorted by agent. Spare agents that may take over ranks start none.
    pub placement: Vec<(AgentId, Ranks)>,
    /// For each agent that does not own the attributes of its node, the agent that does: the node's first agent that has
    /// ranks of the namespace. Made by [`owners`](super::owners).
    pub owners: Vec<(AgentId, AgentId)>,
    /// Entries that are on the board from the beginning.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub preputs: Vec<Variable>,
    /// The ranks that get the launcher's standard input.
    pub stdin: Ranks,
}

/// Returns the entry of `agent` in a list that is sorted by agent.
pub(super) fn find<T>(list: &[(AgentId, T)], agent: AgentId) -> Option<&T> {
    list.binary_search_by_key(&agent, |(agent, _)| *agent).ok().map(|at| &list[at].1)
}

/// Looks up in [`NamespacePlan::owners`] which agent owns the attributes of the node of `agent`.
pub(super) fn owner_of(owners: &[(AgentId, AgentId)], agent: AgentId) -> AgentId {
    find(owners, agent).copied().unwrap_or(agent)
}

impl NamespacePlan {
    /// Describes the job to ranks that speak PMIx.
    pub fn describe(&self) -> JobDescription {
        let program = |command: &CommandPlan| {
            let argv = std::iter::once(&command.program).chain(&command.args).cloned().collect();
            ProgramDescription { nprocs: command.nprocs, argv, wdir: command.wdir.clone() }
        };
        JobDescription {
            kvsname: self.kvsname.clone(),
            size: self.size,
            universe: self.universe,
            spawner: self.spawner.clone(),
            mapping: self.mapping.clone(),
            programs: self.commands.iter().map(program).collect(),
        }
    }

    /// The ranks of `subtree` in this plan.
    pub fn ranks_of(&self, subtree: Subtree) -> Ranks {
        let mut ranks = Ranks::new();
        for (_, some) in self.placement.iter().filter(|(agent, _)| subtree.contains(*agent)) {
            ranks.union_with(some);
        }
        ranks
    }

    /// The ranks that `agent` starts; `None` if it has none.
    pub fn ranks_at(&self, agent: AgentId) -> Option<&Ranks> {
        find(&self.placement, agent)
    }

    /// Whether ranks of `subtree` take standard input.
    pub fn takes_input(&self, subtree: Subtree) -> bool {
        !self.ranks_of(subtree).is_disjoint(&self.stdin)
    }

    /// The share of `subtree`; `None` if the plan names none of its agents.
    pub fn share_of(&self, subtree: Subtree) -> Option<Self> {
        let placement: Vec<_> = self.placement.iter().filter(|(agent, _)| subtree.contains(*agent)).cloned().collect();
        let owners = self.owners.iter().filter(|(agent, _)| subtree.contains(*agent)).copied().collect();
        (!placement.is_empty()).then(|| Self { placement, owners, ..self.clone() })
    }

    /// Whether agents of `subtree` have ranks, or are spares that may get some.
    pub fn names_agents_of(&self, subtree: Subtree) -> bool {
        self.placement.iter().any(|(agent, _)| subtree.contains(*agent))
    }

    /// Removes ranks of a lost agent from the plan. Returns those that were placed there.
    pub(super) fn move_out(&mut self, agent: AgentId, ranks: &Ranks) -> Ranks {
        let Ok(at) = self.placement.binary_search_by_key(&agent, |(agent, _)| *agent) else { return Ranks::new() };
        let placed = &mut self.placement[at].1;
        let moved = placed.intersection(ranks);
        *placed = placed.difference(&moved);
        if placed.is_empty() {
            self.placement.remove(at);
        }
        // Attributes of a node stay with the agent that owned them, also if it is lost.
        moved
    }

    /// Places ranks of a lost agent on another one. Returns false if they were placed there before.
    pub(super) fn move_in(&mut self, agent: AgentId, ranks: &Ranks) -> bool {
        match self.placement.binary_search_by_key(&agent, |(agent, _)| *agent) {
            Ok(at) if self.placement[at].1.contains_all(ranks) => return false,
            Ok(at) => self.placement[at].1.union_with(ranks),
            Err(at) => self.placement.insert(at, (agent, ranks.clone())),
        }
        true
    }

    /// The ranks of these that each agent has.
    pub(super) fn by_agent(&self, ranks: &Ranks) -> Vec<(AgentId, Ranks)> {
        let shares = self.placement.iter().map(|(agent, placed)| (*agent, placed.intersection(ranks)));
        shares.filter(|(_, ranks)| !ranks.is_empty()).collect()
    }

    /// The index of the command that `rank` runs, and the command.
    pub fn command_of(&self, rank: pmi::Rank) -> Option<(usize, &CommandPlan)> {
        let mut before = 0u32;
        self.commands.iter().enumerate().find(|(_, command)| {
            before = before.saturating_add(command.nprocs);
            rank.0 < before
        })
    }

    /// Whether the plan is consistent. Plans from peers are checked with it before anything is done.
    pub fn is_consistent(&self) -> bool {
        let total: u64 = self.commands.iter().map(|command| u64::from(command.nprocs)).sum();
        let mut seen = Ranks::new();
        let disjoint = self.placement.iter().all(|(_, ranks)| {
            let fresh = seen.is_disjoint(ranks);
            seen.union_with(ranks);
            fresh
        });
        disjoint
            && total == u64::from(self.size)
            && self.mapping.size() == self.size
            && seen.last().is_none_or(|last| last.0 < self.size)
            && self.placement.is_sorted_by_key(|(agent, _)| *agent)
            && self.owners_are_consistent()
    }

    fn owners_are_consistent(&self) -> bool {
        let first_rank = |agent: AgentId| self.ranks_at(agent)?.first();
        let one_node = |a: pmi::Rank, b: pmi::Rank| self.mapping.node_of(a) == self.mapping.node_of(b);
        self.owners.is_sorted_by(|(before, _), (after, _)| before < after)
            && self.owners.iter().all(|&(agent, owner)| {
                // In a subtree's share, the owner may be outside the subtree.
                let ranks = (first_rank(agent), first_rank(owner));
                owner != AgentId::ROOT
                    && owner < agent
                    && owner_of(&self.owners, owner) == owner
                    && ranks.0.is_some_and(|rank| ranks.1.is_none_or(|other| one_node(rank, other)))
            })
    }

    /// Whether all placed ranks are in `subtree`, and all owners are agents of the tree. Plans from the parent are
    /// checked with it too.
    pub fn is_within(&self, subtree: Subtree) -> bool {
        self.placement.iter().all(|(agent, _)| subtree.contains(*agent))
            && self.owners.iter().all(|(_, owner)| !subtree.contains(*owner) || self.ranks_at(*owner).is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::tests::plan;

    fn owned(owners: &[(u32, u32)]) -> NamespacePlan {
        let owners = owners.iter().map(|(agent, owner)| (AgentId(*agent), AgentId(*owner))).collect();
        NamespacePlan { owners, ..plan(6, &[(1, "0-1"), (2, "2-3"), (4, "4-5")]) }
    }

    #[test]
    fn variables_bound_to_a_host_do_not_travel() {
        let bound =
            ["HOSTNAME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DISPLAY", "FLUX_URI", "TMUX_PANE"];
        let free = ["TERM", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_CONFIG_HOME", "HOME", "SLURM_JOB_ID", "SSHFS"];
        assert_eq!(bound.map(|name| (name, is_bound_to_host(name.as_bytes()))), bound.map(|name| (name, true)));
        assert_eq!(free.map(|name| (name, is_bound_to_host(name.as_bytes()))), free.map(|name| (name, false)));
    }

    #[test]
    fn inconsistent_owners_are_refused() {
        assert!(owned(&[]).is_consistent());
        assert!(owned(&[(2, 1), (4, 1)]).is_consistent());
        // In a share, an owner outside the subtree has no placement.
        assert!(owned(&[(4, 3)]).is_consistent());
        for (owners, why) in [
            (&[(4, 1), (2, 1)][..], "not in order"),
            (&[(2, 1), (2, 1)], "listed twice"),
            (&[(3, 1)], "an agent without ranks is not listed"),
            (&[(2, 4)], "the first agent owns"),
            (&[(2, 2)], "an owner is not listed"),
            (&[(2, 1), (4, 2)], "an agent that is no owner cannot own for others"),
            (&[(2, 0)], "the launcher has no ranks"),
        ] {
            assert!(!owned(owners).is_consistent(), "{why}");
        }
        let mapping = Mapping::from_nodes([0, 0, 1, 1, 0, 0]);
        assert!(NamespacePlan { mapping: mapping.clone(), ..owned(&[(4, 1)]) }.is_consistent());
        assert!(!NamespacePlan { mapping, ..owned(&[(2, 1)]) }.is_consistent(), "on another node");
    }

    #[test]
    fn a_share_has_the_owners_of_its_subtree() {
        let tree = Subtree::whole(4, 2); // 1 - 2, 3 - 4
        let plan = owned(&[(2, 1), (4, 1)]);
        assert!(plan.is_within(tree));
        for (child, owners) in [(1, (2, 1)), (3, (4, 1))] {
            let below = tree.of(AgentId(child)).unwrap();
            let share = plan.share_of(below).unwrap();
            assert_eq!(share.owners, [(AgentId(owners.0), AgentId(owners.1))]);
            assert!(share.is_consistent() && share.is_within(below));
            assert!(!plan.is_within(below));
        }
        let phantom = owned(&[(4, 3)]);
        assert!(phantom.is_consistent() && !phantom.is_within(tree), "3 has no ranks");
    }

    fn session(environment: &[(&str, &str)]) -> SessionPlan {
        let pair = |(name, value): &(&str, &str)| (name.as_bytes().to_vec(), value.as_bytes().to_vec());
        SessionPlan {
            environment: environment.iter().map(pair).collect(),
            shell: Bytes::new(),
            hold_lines: true,
            direct: [DirectOutput::Never; 2],
            pmi_port: false,
            kill_grace: Duration::ZERO,
            cache: CachePolicy::default(),
            clean_shm: CleanShm::default(),
            on_failure: FailurePolicy::default(),
            dead_time: Duration::from_secs(5),
            has_ports: true,
            rank_sessions: RankSessions::All,
            stats: false,
            trace: None,
            pmix: None,
            binding: BindingPolicy::default(),
            accelerators: AcceleratorPlan::default(),
            piece_bytes: None,
            stage: StagePlan::default(),
            profile: false,
            collect: CollectPlan::default(),
            sent: Duration::ZERO,
        }
    }

    #[test]
    fn ranks_that_yield_to_each_other_share_a_session() {
        let leads = |sessions: RankSessions| [(2, 2), (3, 2)].map(|(ranks, cores)| sessions.are_led(ranks, cores));
        assert_eq!(leads(RankSessions::All), [true, true]);
        assert_eq!(leads(RankSessions::All.of_yielding_ranks()), [true, false]);
        assert_eq!(leads(RankSessions::None), [false, false]);
        assert_eq!(leads(RankSessions::None.of_yielding_ranks()), [false, false]);
    }

    #[test]
    fn another_node_gets_no_variable_that_is_bound_to_the_host() {
        let plan = session(&[("DISPLAY", ":0"), ("PATH", "/bin")]).for_other_node();
        assert_eq!(plan.environment, session(&[("PATH", "/bin")]).environment);
    }

    #[test]
    fn the_devices_of_a_step_replace_those_of_the_launchers_node() {
        let plan = session(&[("CUDA_VISIBLE_DEVICES", "0"), ("GPU_DEVICE_ORDINAL", "0"), ("PATH", "/bin")]);
        let plan = plan.with_devices(|name| (name == "CUDA_VISIBLE_DEVICES").then(|| b"3".to_vec()));
        assert_eq!(plan.environment, session(&[("PATH", "/bin"), ("CUDA_VISIBLE_DEVICES", "3")]).environment);
        let names = "GPU-5b8a3c9e-7b1d,MIG-1a2b3c4d-5e6f";
        let plan = plan.with_devices(|name| (name == "CUDA_VISIBLE_DEVICES").then(|| names.into()));
        assert_eq!(plan.environment, session(&[("PATH", "/bin"), ("CUDA_VISIBLE_DEVICES", names)]).environment);
    }

    #[test]
    fn a_subtree_takes_input_if_one_of_its_ranks_does() {
        let tree = Subtree::whole(4, 2); // 1 - 2, 3 - 4
        let plan = NamespacePlan { stdin: "0".parse().unwrap(), ..owned(&[]) };
        let takes_input = |agent| plan.takes_input(tree.of(AgentId(agent)).unwrap());
        assert_eq!([1, 2, 3, 4].map(takes_input), [true, false, false, false]);
    }

    #[test]
    fn a_plan_names_agents_with_ranks_and_spare_ones() {
        let tree = Subtree::whole(6, 1); // 1 - 2 - 3 - 4 - 5 - 6
        let mut plan = owned(&[]);
        assert!(plan.names_agents_of(tree.of(AgentId(4)).unwrap()));
        let below = tree.of(AgentId(5)).unwrap();
        assert!(!plan.names_agents_of(below));
        assert!(plan.move_in(AgentId(6), &Ranks::new()));
        assert!(plan.names_agents_of(below));
    }

    #[test]
    fn ranks_that_have_moved_move_once() {
        let mut plan = owned(&[]);
        let ranks = plan.move_out(AgentId(2), &"2-3".parse().unwrap());
        assert!(plan.move_in(AgentId(1), &ranks));
        assert_eq!(plan.ranks_at(AgentId(1)), Some(&"0-3".parse().unwrap()));
        assert!(!plan.move_in(AgentId(1), &ranks), "the order is a repeated one");
    }

    #[test]
    fn each_rank_runs_the_command_that_counts_it() {
        let command = owned(&[]).commands.remove(0);
        let commands = [2, 0, 4].map(|nprocs| CommandPlan { nprocs, ..command.clone() }).to_vec();
        let plan = NamespacePlan { commands, ..owned(&[]) };
        let at = |rank| plan.command_of(pmi::Rank(rank)).map(|(at, _)| at);
        assert_eq!([0, 1, 2, 5, 6].map(at), [Some(0), Some(0), Some(2), Some(2), None]);
    }

    #[test]
    fn an_agent_gives_up_before_the_ancestor_that_waits_for_it() {
        let plan = session(&[]);
        assert!(plan.rejoin_time() > 2 * plan.dead_time, "the ancestor may notice the loss a dead time later");
        assert!(plan.adoption_time() > plan.rejoin_time() + plan.dead_time);
    }
}
