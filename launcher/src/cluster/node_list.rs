//! The node list: the nodes that a session may use, from typed lists, files and allocations.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::cluster::allocation::{self, Allocation};
use crate::cluster::hosts::{self, HOSTS_MAX, TEXT_BYTES_MAX};
use crate::cluster::manager::ManagerChoice;
use crate::cluster::node::merged;
pub use crate::cluster::node::{Node, OwnNames};
use crate::cluster::placement::MapBy;
use crate::cluster::placement::talk::Talk;
use crate::cluster::system::System;
use crate::refusal::Refusal;
use nla::core::Resources;

/// A source of host names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostSource {
    /// `-hosts`: the list itself.
    List(OsString),
    /// `-f`: a file; `-` is standard input. Never empty.
    File(PathBuf),
    /// The text of a file, which a pool has written.
    Text(String),
    /// A variable that stands for `-f`, and its value.
    Variable(&'static str, PathBuf),
}

impl HostSource {
    /// Whether the hosts are read from standard input.
    pub fn is_standard_input(&self) -> bool {
        matches!(self, Self::File(path) | Self::Variable(_, path) if path.as_os_str() == "-")
    }
}

/// The hosts that a session may use, and the placement of its ranks on them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HostOptions {
    /// `-hosts` and `-f`, in the order typed.
    pub sources: Vec<HostSource>,
    /// `--exclude`: hosts to leave out.
    pub exclude: Option<OsString>,
    /// `--select`: the positions of the hosts to take from the list.
    pub select: Option<OsString>,
    /// `--rm`.
    pub manager: ManagerChoice,
    /// `--map-by`.
    pub map_by: MapBy,
    /// `-rankmap`: the node of each rank, as typed; the plan parses it.
    pub rankmap: Option<OsString>,
    /// `--comm-matrix`: the file of what ranks send to each other, or the names that Open MPI's files begin with.
    pub comm_matrix: Option<PathBuf>,
    /// `--topology`: words or a file that describe the network.
    pub topology: Option<OsString>,
    /// `--save-rankmap`: the file for the node of each rank. Never empty.
    pub save_rankmap: Option<PathBuf>,
    /// `--fault-history`: the file of hosts that were lost. The user's own if it is `None`.
    pub fault_history: Option<PathBuf>,
    /// `--avoid-faults`: whether hosts that were lost lately are used last.
    pub avoid_faults: bool,
    /// The contents of `comm_matrix` and `topology`, once the node list is known.
    pub talk: Option<Talk>,
}

/// The nodes that a session may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeList {
    /// This machine, without any network.
    Local {
        /// The ranks that it should run; `None` if unknown.
        slots: Option<u32>,
        /// The most ranks that it may run.
        max_slots: Option<u32>,
        /// The accelerators and other devices that it offers, as far as they were written.
        gres: Resources,
    },
    /// Nodes by their names. This machine may be one of them, and is then reached like the others.
    Named {
        /// In the order in which they are used. Never empty, each name once.
        nodes: Vec<Node>,
        /// The job of a resource manager that all of them belong to.
        allocation: Option<Allocation>,
    },
}

impl NodeList {
    /// This machine, with an unknown number of slots.
    pub const HERE: Self = Self::Local { slots: None, max_slots: None, gres: Resources::NONE };

    /// Returns the nodes that are this machine, as indices: by its own name, by an address of its interfaces, or by a name of
    /// the loopback interface. Nodes of an allocation, and nodes with a user, do not count.
    ///
    /// So `-hosts $(hostname)` needs no ssh server, as with Hydra.
    pub fn here(&self, own: &OwnNames) -> BTreeSet<usize> {
        let nodes = if self.allocation().is_some() { &[] } else { self.nodes() };
        let is_here = |node: &Node| node.is_here() || node.is(own);
        nodes.iter().enumerate().filter(|(_, node)| is_here(node)).map(|(at, _)| at).collect()
    }

    /// Returns this machine's node list if all nodes are [this machine](Self::here).
    pub fn or_local(self, own: &OwnNames) -> Self {
        let count = self.here(own).len();
        match self {
            Self::Named { nodes, .. } if nodes.len() == count => here(&nodes),
            other => other,
        }
    }

    /// Returns its nodes; none for this machine.
    pub fn nodes(&self) -> &[Node] {
        match self {
            Self::Local { .. } => &[],
            Self::Named { nodes, .. } => nodes,
        }
    }

    /// Returns the names of its nodes, and what each offers. This machine has one entry.
    pub fn offers(&self) -> Vec<(&str, &Resources)> {
        match self {
            Self::Local { gres, .. } => vec![("this machine", gres)],
            Self::Named { nodes, .. } => nodes.iter().map(|node| (node.name.as_str(), &node.gres)).collect(),
        }
    }

    /// Returns the resource manager's job that it is a part of.
    pub fn allocation(&self) -> Option<&Allocation> {
        match self {
            Self::Local { .. } => None,
            Self::Named { allocation, .. } => allocation.as_ref(),
        }
    }

    /// Returns the list without the nodes of these indices; it may be empty. This machine cannot be
    /// left out.
    pub fn without(&self, bad: &BTreeSet<usize>) -> Self {
        match self {
            Self::Local { .. } => self.clone(),
            Self::Named { nodes, allocation } => {
                let good = nodes.iter().enumerate().filter(|(at, _)| !bad.contains(at)).map(|(_, node)| node.clone());
                Self::Named { nodes: good.collect(), allocation: allocation.clone() }
            }
        }
    }
}

/// Finds the node list of a session with these options. Typed hosts take precedence over the hosts of a resource
/// manager's job; inside a job they choose from its nodes. Adds lines about harmless oddities to `remarks`.
pub fn find(options: &HostOptions, system: &dyn System, remarks: &mut Vec<String>) -> Result<NodeList, Refusal> {
    let typed = typed(&options.sources, system)?;
    let (nodes, allocation) = match typed {
        // localhost means this machine, also inside a job.
        Some(nodes) if nodes.iter().all(Node::is_here) => (nodes, None),
        Some(nodes) => match allocation::find(options.manager, system)? {
            Some(allocation) => (chosen_from(&allocation, nodes)?, Some(allocation)),
            None => (nodes, None),
        },
        None => match allocation::find(options.manager, system)? {
            Some(allocation) => (allocation.nodes.clone(), Some(allocation)),
            None if options.select.is_some() => {
                return Err(Refusal::new(
                    "--select chooses from a list of hosts, and there is none",
                    "add -hosts or -f",
                ));
            }
            None => return Ok(NodeList::HERE),
        },
    };
    let nodes = selected(options, nodes, remarks)?;
    let allocation = allocation.map(|allocation| {
        // The job's number of ranks does not apply to a part of its nodes.
        let ranks = allocation.ranks.filter(|_| allocation.nodes == nodes);
        Allocation { ranks, ..allocation }
    });
    Ok(if nodes.iter().all(Node::is_here) { here(&nodes) } else { NodeList::Named { nodes, allocation } })
}

/// Returns the nodes of typed lists and files; `None` if none were typed.
fn typed(sources: &[HostSource], system: &dyn System) -> Result<Option<Vec<Node>>, Refusal> {
    let mut entries: Vec<Node> = Vec::new();
    for source in sources {
        entries.extend(match source {
            HostSource::List(list) => {
                hosts::parse_list(list.as_encoded_bytes()).map_err(|error| error.after("-hosts"))?
            }
            HostSource::File(path) => from_file(path, None, system)?,
            HostSource::Text(text) => {
                hosts::parse_file(text.as_bytes()).map_err(|error| error.after("the hosts of the pool"))?
            }
            HostSource::Variable(name, path) => from_file(path, Some(name), system)?,
        });
        if entries.len() > HOSTS_MAX {
            return Err(Refusal::new(format!("there are more than {HOSTS_MAX} hosts"), "name fewer"));
        }
    }
    Ok(if sources.is_empty() { None } else { Some(merged(entries)?) })
}

/// Returns the hosts of a file, which a variable may have named.
fn from_file(path: &Path, variable: Option<&str>, system: &dyn System) -> Result<Vec<Node>, Refusal> {
    let (file, read) = if path.as_os_str() == "-" {
        ("standard input".to_owned(), system.standard_input(TEXT_BYTES_MAX))
    } else {
        (path.display().to_string(), system.file(path, TEXT_BYTES_MAX))
    };
    let named = variable.map_or(file.clone(), |name| format!("{file} ({name})"));
    let bytes = read.map_err(|error| {
        let hint = "name a file with a host on each line, or - for standard input";
        let hint = variable.map_or(hint.to_owned(), |name| format!("{hint}, or unset {name}"));
        Refusal::new(format!("the hosts cannot be read from {named}: {error}"), hint)
    })?;
    hosts::parse_file(&bytes).map_err(|error| error.after(&named))
}

/// Returns the typed nodes with the job's slots.
fn chosen_from(allocation: &Allocation, typed: Vec<Node>) -> Result<Vec<Node>, Refusal> {
    let known: HashMap<&str, &Node> = allocation.nodes.iter().map(|node| (node.name.as_str(), node)).collect();
    let strangers: Vec<&str> =
        typed.iter().map(|node| node.name.as_str()).filter(|name| !known.contains_key(name)).collect();
    if !strangers.is_empty() {
        let verb = if strangers.len() == 1 { "is" } else { "are" };
        let text = format!("{} {verb} not among the nodes of {}", hosts::fold(strangers), allocation.job());
        let hint = "write names as the resource manager does, or use --rm none to leave its job aside";
        return Err(Refusal::new(text, hint));
    }
    let with_slots = |node: Node| {
        let given = known.get(node.name.as_str()).and_then(|given| given.slots);
        // A typed maximum without slots bounds the job's slots.
        let slots = node.slots.or(given.map(|given| given.min(node.max_slots.unwrap_or(given))));
        Node { slots, ..node }
    };
    Ok(typed.into_iter().map(with_slots).collect())
}

/// Returns the nodes that `--select` takes and `--exclude` leaves.
fn selected(options: &HostOptions, nodes: Vec<Node>, remarks: &mut Vec<String>) -> Result<Vec<Node>, Refusal> {
    let mut nodes = nodes;
    if let Some(indices) = &options.select {
        nodes = hosts::select(&nodes, indices.as_encoded_bytes()).map_err(|error| error.after("--select"))?;
    }
    if let Some(names) = &options.exclude {
        let excluded = hosts::exclude(nodes, names.as_encoded_bytes()).map_err(|error| error.after("--exclude"))?;
        // A list of bad nodes is often older than the job and names nodes outside it: no error.
        if !excluded.unmatched.is_empty() {
            remarks.push(format!("--exclude: {} is not in the host list", hosts::fold(&excluded.unmatched)));
        }
        nodes = excluded.kept;
    }
    if nodes.is_empty() {
        return Err(Refusal::new("--exclude leaves no host to run on", "exclude fewer"));
    }
    Ok(nodes)
}

/// Returns this machine's node list, with the slots of all its entries.
fn here(nodes: &[Node]) -> NodeList {
    let slots = nodes.iter().map(|node| node.slots).try_fold(0u32, |sum, slots| Some(sum.saturating_add(slots?)));
    let max_slots = nodes.iter().filter_map(|node| node.max_slots).min();
    // Its entries are names of one machine: the first one that says what it offers counts.
    let gres = nodes.iter().map(|node| &node.gres).find(|gres| !gres.is_empty()).cloned().unwrap_or_default();
    NodeList::Local { slots: slots.map(|slots| slots.min(max_slots.unwrap_or(slots))), max_slots, gres }
}

#[cfg(test)]
#[path = "node_list_tests.rs"]
mod tests;
