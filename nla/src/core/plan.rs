//! What is to be started, where: the values that the launcher makes and agents get their share of.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use pmi::{Mapping, Ranks};
use serde::{Deserialize, Serialize};

use super::ids::{AgentId, NamespaceId};
use super::topology::Subtree;

/// A name and its value in an environment, as bytes: neither has to be UTF-8.
pub type Variable = (Vec<u8>, Vec<u8>);

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
}

/// Environments hold secrets; a log shows how many variables there are.
impl fmt::Debug for SessionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionPlan")
            .field("variables", &self.environment.len())
            .field("hold_lines", &self.hold_lines)
            .field("pmi_port", &self.pmi_port)
            .field("kill_grace", &self.kill_grace)
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
    /// It was spawned by a rank.
    pub spawned: bool,
    /// Its programs.
    pub commands: Vec<CommandPlan>,
    /// Which ranks share a node.
    pub mapping: Mapping,
    /// Which agents start which ranks, by agent.
    pub placement: Vec<(AgentId, Ranks)>,
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

    /// Whether ranks of `subtree` take standard input.
    pub fn takes_input(&self, subtree: Subtree) -> bool {
        !self.ranks_of(subtree).is_disjoint(&self.stdin)
    }

    /// The share of `subtree`; nothing if no rank is placed there.
    pub fn share_of(&self, subtree: Subtree) -> Option<Self> {
        let placement: Vec<_> = self.placement.iter().filter(|(agent, _)| subtree.contains(*agent)).cloned().collect();
        (!placement.is_empty()).then(|| Self { placement, ..self.clone() })
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
    }
}
