//! What is to be started, where: the values that the launcher makes and agents get their share of.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use pmi::{Mapping, Ranks};
use serde::{Deserialize, Serialize};

use super::cache::CachePolicy;
use super::ids::{AgentId, NamespaceId};
use super::topology::Subtree;

/// A name and its value in an environment, as bytes: neither has to be UTF-8.
pub type Variable = (Vec<u8>, Vec<u8>);

/// Whether a variable is about the machine or login on which it was set, so that its value must not
/// travel to other nodes with the launcher's environment. There the agent's own, if it has any, is the
/// right one.
///
/// They are the names of the host itself, sockets and terminals of a login (another node has none of
/// that name, or somebody else's), and what a resource manager says of one node of a job. All else
/// travels, as users of MPI launchers expect: `TERM`, `PATH`, `LANG`, and `TMPDIR` too, which on most
/// clusters is the same path on all nodes of a job and names the place that a user has chosen for large
/// files. Who wants one of these names everywhere sets it with `-genv` or `-x`, which this is not about.
///
/// More than Hydra's `DISPLAY`, and less than what PRRTE leaves behind, which is all.
pub fn is_bound_to_host(name: &[u8]) -> bool {
    const PREFIXES: [&str; 4] = ["SSH_", "DBUS_", "XDG_SESSION_", "TMUX"];
    const NAMES: [&str; 35] = [
        // The host.
        "HOSTNAME",
        "HOST",
        "HOSTTYPE",
        // Its screen, its seat, its agents.
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
        // The service manager's words to one process.
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "NOTIFY_SOCKET",
        "SYSTEMD_EXEC_PID",
        // One node of a job, and processes of the manager on it.
        "SLURMD_NODENAME",
        "SLURM_CPUS_ON_NODE",
        "SLURM_GPUS_ON_NODE",
        "SLURM_JOB_GPUS",
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

/// Variables by which a resource manager says which accelerators are the job's. Their numbers may be others on
/// each node.
const DEVICES: [&str; 4] = ["CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK"];

/// What is the same for all ranks of a session; each agent gets it once.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionPlan {
    /// The launcher's environment, without what must not reach ranks.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub environment: Vec<Variable>,
    /// The shell's limits, umask and signal state as `sys` encodes them; opaque here.
    pub shell: Bytes,
    /// Lines without their newline are held back (else shown after a short quiet).
    pub hold_lines: bool,
    /// Ranks get PMI_PORT and PMI_ID in place of an inherited socket.
    pub pmi_port: bool,
    /// How long ranks have between the first signal and KILL when the session ends.
    pub kill_grace: Duration,
    /// What agents keep of the bulletin boards.
    pub cache: CachePolicy,
    /// Each agent tells at the end what it has counted.
    pub stats: bool,
    /// When the launcher sent this, by the session's time.
    pub sent: Duration,
}

impl SessionPlan {
    /// The same for ranks on another node than the launcher's: without variables that mean something on
    /// that node only.
    #[must_use]
    pub fn for_other_node(mut self) -> Self {
        self.environment.retain(|(name, _)| !is_bound_to_host(name));
        self
    }

    /// The same for ranks of a step: with the devices that a resource manager has content to the step on their
    /// node, `own` of their names, in place of those on the launcher's.
    #[must_use]
    pub fn with_devices(mut self, own: impl Fn(&str) -> Option<Vec<u8>>) -> Self {
        self.environment.retain(|(name, _)| !DEVICES.iter().any(|known| name == known.as_bytes()));
        let set = DEVICES.iter().filter_map(|name| Some((name.as_bytes().to_vec(), own(name)?)));
        self.environment.extend(set);
        self
    }
}

/// Environments hold secrets; a log shows how many variables there are.
impl fmt::Debug for SessionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionPlan")
            .field("variables", &self.environment.len())
            .field("hold_lines", &self.hold_lines)
            .field("pmi_port", &self.pmi_port)
            .field("kill_grace", &self.kill_grace)
            .field("cache", &self.cache)
            .field("stats", &self.stats)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

/// Which part of [`SessionPlan::environment`] a command's ranks inherit.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Inherit {
    /// All of it.
    All,
    /// Nothing of it.
    Nothing,
    /// These names.
    Names(#[serde(with = "pmi::wire::byte_strings")] Vec<Vec<u8>>),
}

/// One program of a namespace and the ranks that run it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandPlan {
    /// How many ranks run it. Ranks are numbered through the commands in order.
    pub nprocs: u32,
    /// The program as the user named it: a path, or a name to be found in the rank's PATH.
    #[serde(with = "serde_bytes")]
    pub program: Vec<u8>,
    /// The arguments after the program's name.
    #[serde(with = "pmi::wire::byte_strings")]
    pub args: Vec<Vec<u8>>,
    /// What it inherits from the session's environment.
    pub inherit: Inherit,
    /// What is set on top of that; later ones win.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub set: Vec<Variable>,
    /// The working directory.
    #[serde(with = "serde_bytes")]
    pub wdir: Vec<u8>,
}

/// As for [`SessionPlan`]; arguments may be secret too.
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

/// A namespace, or the share of it that concerns a subtree.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamespacePlan {
    /// Its number.
    pub id: NamespaceId,
    /// Its name on the PMI wire: unique among sessions, short, without blanks.
    pub kvsname: String,
    /// How many ranks it has in all.
    pub size: u32,
    /// What PMI calls the universe size.
    pub universe: i32,
    /// The name of the namespace whose rank spawned it.
    pub spawner: Option<String>,
    /// Its programs.
    pub commands: Vec<CommandPlan>,
    /// Which ranks share a node.
    pub mapping: Mapping,
    /// Which agents start which ranks, by agent.
    pub placement: Vec<(AgentId, Ranks)>,
    /// Agents that do not own the attributes of their node, and who does: the node's first agent
    /// that has ranks of the namespace. Made by [`owners`](super::owners).
    pub owners: Vec<(AgentId, AgentId)>,
    /// Entries that are on the board from the beginning.
    #[serde(with = "pmi::wire::byte_pairs")]
    pub preputs: Vec<Variable>,
    /// The ranks that get the launcher's standard input.
    pub stdin: Ranks,
}

impl NamespacePlan {
    /// The ranks of `subtree` in this plan.
    pub fn ranks_of(&self, subtree: Subtree) -> Ranks {
        let mut ranks = Ranks::new();
        for (_, some) in self.placement.iter().filter(|(agent, _)| subtree.contains(*agent)) {
            ranks.union_with(some);
        }
        ranks
    }

    /// The agent that owns the attributes of the node of `agent`.
    pub fn owner_of(&self, agent: AgentId) -> AgentId {
        let at = self.owners.binary_search_by_key(&agent, |(agent, _)| *agent);
        at.map_or(agent, |at| self.owners[at].1)
    }

    /// Whether ranks of `subtree` take standard input.
    pub fn takes_input(&self, subtree: Subtree) -> bool {
        !self.ranks_of(subtree).is_disjoint(&self.stdin)
    }

    /// The share of `subtree`; nothing if no rank is placed there.
    pub fn share_of(&self, subtree: Subtree) -> Option<Self> {
        let placement: Vec<_> = self.placement.iter().filter(|(agent, _)| subtree.contains(*agent)).cloned().collect();
        let owners = self.owners.iter().filter(|(agent, _)| subtree.contains(*agent)).copied().collect();
        (!placement.is_empty()).then(|| Self { placement, owners, ..self.clone() })
    }

    /// The index of the command that `rank` runs, and the command.
    pub fn command_of(&self, rank: pmi::Rank) -> Option<(usize, &CommandPlan)> {
        let mut before = 0u32;
        for (index, command) in self.commands.iter().enumerate() {
            before = before.saturating_add(command.nprocs);
            if rank.0 < before {
                return Some((index, command));
            }
        }
        None
    }

    /// Whether the numbers fit each other: what comes from a peer is checked with this before it
    /// is acted on.
    pub fn is_consistent(&self) -> bool {
        let total: u64 = self.commands.iter().map(|command| u64::from(command.nprocs)).sum();
        let mut seen = Ranks::new();
        let disjoint = self.placement.iter().all(|(_, ranks)| {
            let fresh = seen.is_disjoint(ranks) && !ranks.is_empty();
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
        let first_rank = |agent: AgentId| {
            let at = self.placement.binary_search_by_key(&agent, |(agent, _)| *agent).ok()?;
            self.placement[at].1.first()
        };
        let owns_not = |agent: AgentId| self.owners.binary_search_by_key(&agent, |(agent, _)| *agent).is_ok();
        let one_node = |a: pmi::Rank, b: pmi::Rank| self.mapping.node_of(a) == self.mapping.node_of(b);
        self.owners.is_sorted_by(|(before, _), (after, _)| before < after)
            && self.owners.iter().all(|&(agent, owner)| {
                // The owner may be outside the subtree that a share is of.
                let ranks = (first_rank(agent), first_rank(owner));
                owner != AgentId::ROOT
                    && owner < agent
                    && !owns_not(owner)
                    && ranks.0.is_some_and(|rank| ranks.1.is_none_or(|other| one_node(rank, other)))
            })
    }

    /// Whether all that it places is in `subtree`: what comes from a parent is checked with this
    /// too. With it owners, who come before who asks them, are agents of the tree.
    pub fn is_within(&self, subtree: Subtree) -> bool {
        let placed = |agent: AgentId| self.placement.binary_search_by_key(&agent, |(agent, _)| *agent).is_ok();
        self.placement.iter().all(|(agent, _)| subtree.contains(*agent))
            && self.owners.iter().all(|(_, owner)| !subtree.contains(*owner) || placed(*owner))
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
    fn what_is_of_one_host_does_not_travel() {
        let bound =
            ["HOSTNAME", "SSH_AUTH_SOCK", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DISPLAY", "FLUX_URI", "TMUX_PANE"];
        let free = ["TERM", "PATH", "LD_LIBRARY_PATH", "TMPDIR", "XDG_CONFIG_HOME", "HOME", "SLURM_JOB_ID", "SSHFS"];
        assert_eq!(bound.map(|name| (name, is_bound_to_host(name.as_bytes()))), bound.map(|name| (name, true)));
        assert_eq!(free.map(|name| (name, is_bound_to_host(name.as_bytes()))), free.map(|name| (name, false)));
    }

    #[test]
    fn owners_come_first_and_own_what_others_do_not() {
        assert!(owned(&[]).is_consistent());
        assert!(owned(&[(2, 1), (4, 1)]).is_consistent());
        // As in a share: an owner outside of it has no placement there.
        assert!(owned(&[(4, 3)]).is_consistent());
        for (owners, why) in [
            (&[(4, 1), (2, 1)][..], "not in order"),
            (&[(2, 1), (2, 1)], "told twice"),
            (&[(3, 1)], "who has no ranks owns nothing, nor does another for it"),
            (&[(2, 4)], "the first agent owns"),
            (&[(2, 2)], "who owns is not listed"),
            (&[(2, 1), (4, 2)], "who owns not cannot own for others"),
            (&[(2, 0)], "the launcher has no ranks"),
        ] {
            assert!(!owned(owners).is_consistent(), "{why}");
        }
        let mapping = Mapping::from_nodes([0, 0, 1, 1, 0, 0]);
        assert!(NamespacePlan { mapping: mapping.clone(), ..owned(&[(4, 1)]) }.is_consistent());
        assert!(!NamespacePlan { mapping, ..owned(&[(2, 1)]) }.is_consistent(), "on another node");
    }

    #[test]
    fn shares_have_their_subtrees_owners() {
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
}
