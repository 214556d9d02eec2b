//! Slurm's `topology.conf`, for the plugins tree and block, and what `scontrol show topology` prints.
//!
//! `scontrol` names the hosts of a switch again in all switches above it; a host belongs to the lowest one.

use std::collections::{HashMap, HashSet};

use super::{Topology, TopologyError, TreeBuilder};
use crate::limits::PLACES_MAX;

/// Expands a list of hosts such as `n[1-4]`, or says why it cannot.
pub type Expand<'a> = &'a dyn Fn(&str) -> Result<Vec<String>, String>;

/// A switch, as a file names it.
#[derive(Debug, Default)]
pub(super) struct Switch {
    pub(super) name: String,
    pub(super) hosts: Vec<String>,
    pub(super) switches: Vec<String>,
}

/// The switches and blocks of a file.
#[derive(Debug, Default)]
pub(super) struct Network {
    pub(super) switches: Vec<Switch>,
    pub(super) blocks: Vec<Switch>,
    /// The sizes of aggregated blocks, in hosts, from the base block on.
    pub(super) block_sizes: Vec<u32>,
    names: usize,
}

impl Network {
    /// Expands a list, and counts its names: a file must not make them without bound.
    pub(super) fn expand(&mut self, list: &str, expand: Expand<'_>) -> Result<Vec<String>, String> {
        let names = expand(list)?;
        self.names += names.len();
        // All levels of scontrol's output name all hosts.
        if self.names > 4 * PLACES_MAX as usize {
            return Err("the file names too many hosts".to_owned());
        }
        Ok(names)
    }

    pub(super) fn into_topology(self, text: &str) -> Result<Topology, TopologyError> {
        let Self { switches, blocks, block_sizes, .. } = self;
        if switches.is_empty() { of_blocks(&blocks, &block_sizes, text) } else { of_switches(&switches, text) }
    }
}

pub(super) fn parse(text: &str, expand: Expand<'_>) -> Result<Topology, TopologyError> {
    let mut network = Network::default();
    let mut continued = String::new();
    let count = text.lines().count();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim_end();
        if let Some(part) = line.strip_suffix('\\') {
            continued.push_str(part);
            if number + 1 < count {
                continue;
            }
        } else {
            continued.push_str(line);
        }
        let whole = std::mem::take(&mut continued);
        if !whole.trim().is_empty() {
            let added = add_line(&mut network, &whole, expand);
            added.map_err(|reason| TopologyError::Line { line: number + 1, reason })?;
        }
    }
    network.into_topology("of Slurm")
}

/// The subject of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Switch,
    Block,
    /// Blocks that `scontrol` of Slurm 24.11 and later shows together, with the hosts of all of them.
    Aggregated,
}

fn add_line(network: &mut Network, line: &str, expand: Expand<'_>) -> Result<(), String> {
    const BEGIN: &str = "a line must begin with SwitchName= or BlockName=";
    let mut switch = Switch::default();
    let (mut kind, mut size) = (None, None);
    for word in line.split_ascii_whitespace() {
        let (key, value) = word.split_once('=').unwrap_or((word, ""));
        match key.to_ascii_lowercase().as_str() {
            "switchname" => (kind, switch.name) = (Some(Kind::Switch), value.to_owned()),
            "blockname" => (kind, switch.name) = (Some(Kind::Block), value.to_owned()),
            "aggregatedblock" => kind = Some(Kind::Aggregated),
            "blocksize" if kind.is_some() => size = value.parse::<u32>().ok(),
            // The blocks of an aggregated one have named them.
            "nodes" if kind == Some(Kind::Aggregated) => {}
            "nodes" if !value.is_empty() && value != "(null)" => switch.hosts = network.expand(value, expand)?,
            "switches" if !value.is_empty() && value != "(null)" => switch.switches = network.expand(value, expand)?,
            "blocksizes" => {
                let sizes: Result<Vec<u32>, _> = value.split(',').map(str::parse).collect();
                network.block_sizes = sizes.map_err(|_| "BlockSizes needs numbers".to_owned())?;
                return Ok(());
            }
            // Slurm has LinkSpeed, Level and BlockIndex, and may get more.
            _ if kind.is_some() => {}
            _ => return Err(BEGIN.to_owned()),
        }
    }
    match kind.ok_or(BEGIN)? {
        Kind::Block => network.blocks.push(switch),
        Kind::Switch => network.switches.push(switch),
        Kind::Aggregated => {}
    }
    if let Some(size) = size
        && !network.block_sizes.contains(&size)
    {
        // The base block comes first, and each larger one after those that it holds.
        network.block_sizes.push(size);
    }
    Ok(())
}

fn of_switches(switches: &[Switch], text: &str) -> Result<Topology, TopologyError> {
    let index: HashMap<&str, usize> = switches.iter().map(|switch| switch.name.as_str()).zip(0..).collect();
    // Leaf switches first: the others name the same hosts again.
    let mut owner: HashMap<&str, usize> = HashMap::new();
    let leaves_first =
        |is_leaf: bool| (0..switches.len()).filter(move |at| switches[*at].switches.is_empty() == is_leaf);
    for at in leaves_first(true).chain(leaves_first(false)) {
        for host in &switches[at].hosts {
            owner.entry(host).or_insert(at);
        }
    }
    let mut is_child = vec![false; switches.len()];
    let mut children: Vec<Vec<usize>> = Vec::with_capacity(switches.len());
    for (at, switch) in switches.iter().enumerate() {
        let below = switch.switches.iter().filter_map(|name| index.get(name.as_str()).copied());
        let below: Vec<usize> =
            below.filter(|child| *child != at && !std::mem::replace(&mut is_child[*child], true)).collect();
        children.push(below);
    }
    let mut tree = TreeBuilder::default();
    let mut names = Vec::new();
    let mut seen = HashSet::new();
    let roots: Vec<usize> = (0..switches.len()).filter(|at| !is_child[*at]).collect();
    // Separate trees can reach each other somehow, else no job would have both: through one switch.
    let top = if roots.len() == 1 { None } else { Some(tree.switch(None, 1)?) };
    let mut open: Vec<(usize, Option<u32>)> = roots.into_iter().rev().map(|root| (root, top)).collect();
    while let Some((at, parent)) = open.pop() {
        let vertex = tree.switch(parent, 1)?;
        tree.name(vertex, &switches[at].name);
        for host in &switches[at].hosts {
            if owner[host.as_str()] == at && seen.insert(host.as_str()) {
                tree.host(vertex)?;
                names.push(host.clone());
            }
        }
        open.extend(children[at].iter().rev().map(|child| (*child, Some(vertex))));
    }
    if let Some(lost) = owner.keys().find(|host| !seen.contains(*host)) {
        return Err(TopologyError::Deep(switches[owner[lost]].name.clone()));
    }
    let text = format!("tree {text}: {} {}", switches.len(), if switches.len() == 1 { "switch" } else { "switches" });
    Ok(Topology::named(tree.finish()?, names, text))
}

/// Makes a tree: blocks at the bottom, above them the aggregated blocks of each size.
fn of_blocks(blocks: &[Switch], sizes: &[u32], text: &str) -> Result<Topology, TopologyError> {
    let mut tree = TreeBuilder::default();
    let top = tree.switch(None, 1)?;
    let mut names: Vec<String> = Vec::new();
    let mut seen = HashSet::new();
    let base = sizes.first().copied().filter(|base| *base > 0);
    // How many blocks each aggregated size has, the largest first.
    let mut spans: Vec<usize> = match base {
        Some(base) => sizes.iter().skip(1).map(|size| (size / base) as usize).filter(|span| *span > 1).collect(),
        None => Vec::new(),
    };
    spans.sort_unstable();
    spans.dedup();
    spans.reverse();
    let mut above: Vec<u32> = vec![top; spans.len() + 1];
    for (at, block) in blocks.iter().enumerate() {
        for (level, span) in spans.iter().enumerate() {
            if at % span == 0 {
                above[level + 1] = tree.switch(Some(above[level]), 1)?;
            }
        }
        let vertex = tree.switch(Some(above[spans.len()]), 1)?;
        tree.name(vertex, &block.name);
        for host in &block.hosts {
            if seen.insert(host.as_str()) {
                tree.host(vertex)?;
                names.push(host.clone());
            }
        }
    }
    let text = format!("blocks {text}: {} {}", blocks.len(), if blocks.len() == 1 { "block" } else { "blocks" });
    Ok(Topology::named(tree.finish()?, names, text))
}
