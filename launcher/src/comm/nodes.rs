//! The node of each rank, and the traffic between nodes.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use placement::matrix::{Matrix, Traffic};

use crate::cluster::hosts::parse_list;
use crate::cluster::placement::{RankMap, Rule, place};
use crate::cluster::system::Process;
use crate::plan::placing::SavedMap;
use crate::refusal::Refusal;

/// The beginning of the remark with the nodes of a profiled job.
const REMARK: &str = "mapping: ";

/// The node of each rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeMap {
    node_of: Vec<u32>,
    names: Vec<String>,
    /// The origin of the placement, as a clause.
    pub(super) source: &'static str,
}

/// The traffic between two nodes, from the first to the second.
pub(super) type NodePair = (u32, u32, Traffic);

impl NodeMap {
    /// Returns the placement that the user has typed, or that of the job by the matrix's file; `None` if neither says any.
    pub(super) fn of(matrix: &Matrix, rankmap: Option<&str>, hosts: Option<&OsStr>) -> Result<Option<Self>, Refusal> {
        let listed = |list: &[u8]| parse_list(list).map_err(|error| error.problem().clone());
        let hosts = hosts.map(|list| listed(list.as_bytes())).transpose()?;
        let saved = match rankmap.and_then(|text| text.strip_prefix('@')) {
            Some(file) => Some(SavedMap::read(Path::new(file), "--rankmap", &Process { environment: &[] })?),
            None => None,
        };
        let rankmap = saved.as_ref().map_or(rankmap, |saved| Some(saved.map.as_str()));
        // Host names in the file are comments: ignore them if they are not a host list.
        let remarked = saved.as_ref().and_then(|saved| listed(saved.hosts.as_ref()?.as_bytes()).ok());
        let names: Vec<String> =
            hosts.iter().chain(&remarked).next().into_iter().flatten().map(|host| host.name.clone()).collect();
        let (node_of, source) = match (rankmap, &hosts) {
            (Some(text), _) => (of_map(&RankMap::parse(text)?), "by --rankmap"),
            (None, Some(hosts)) => {
                let placed = place(matrix.ranks(), hosts, &Rule::Block { per_node: None })?;
                let runs = placed.runs().iter().map(|run| (run.node as u32, run.ranks));
                (expanded(runs), "by --hosts")
            }
            (None, None) => {
                // A remark is a text for people: one that is no mapping means nothing.
                let remark = matrix.remarks().iter().find_map(|remark| remark.strip_prefix(REMARK));
                let Some(map) = remark.and_then(|text| RankMap::parse(text).ok()) else { return Ok(None) };
                if map.size() != matrix.ranks() {
                    return Ok(None);
                }
                (of_map(&map), "where the job ran")
            }
        };
        if node_of.len() != matrix.ranks() as usize {
            let text = format!("the rank map has {} ranks, and the profile {}", node_of.len(), matrix.ranks());
            return Err(Refusal::new(text, "write the node of each rank"));
        }
        let most = node_of.iter().copied().max().unwrap_or(0);
        if hosts.is_some() && most as usize >= names.len() {
            let text = format!("the rank map names node {most}, and --hosts has {} hosts", names.len());
            return Err(Refusal::new(text, "name more hosts; nodes are counted from 0"));
        }
        Ok(Some(Self { node_of, names, source }))
    }

    /// Returns the number of nodes that have ranks.
    pub(super) fn nodes(&self) -> usize {
        let mut nodes = self.node_of.clone();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.len()
    }

    /// Returns the name of a node.
    pub(super) fn name(&self, node: u32) -> String {
        self.names.get(node as usize).cloned().unwrap_or_else(|| format!("node {node}"))
    }

    /// Returns the ranks that are on another node than the rank before.
    pub(super) fn borders(&self) -> Vec<u32> {
        let pairs = self.node_of.windows(2).zip(1..);
        pairs.filter(|(pair, _)| pair[0] != pair[1]).map(|(_, rank)| rank).collect()
    }

    /// Returns the traffic between ranks of one node, and between each two nodes.
    pub(super) fn traffic(&self, matrix: &Matrix) -> (Traffic, Vec<NodePair>) {
        let mut inside = Traffic::default();
        let mut between: HashMap<(u32, u32), Traffic> = HashMap::new();
        for pair in matrix.pairs() {
            let at = |rank: u32| self.node_of.get(rank as usize).copied().unwrap_or(0);
            match (at(pair.from), at(pair.to)) {
                (from, to) if from == to => inside.add(pair.traffic),
                nodes => between.entry(nodes).or_default().add(pair.traffic),
            }
        }
        let mut between: Vec<NodePair> = between.into_iter().map(|((from, to), sum)| (from, to, sum)).collect();
        between.sort_unstable_by_key(|(from, to, _)| (*from, *to));
        (inside, between)
    }
}

fn of_map(map: &RankMap) -> Vec<u32> {
    expanded(map.runs())
}

fn expanded(runs: impl Iterator<Item = (u32, u32)>) -> Vec<u32> {
    runs.flat_map(|(node, ranks)| std::iter::repeat_n(node, ranks as usize)).collect()
}
