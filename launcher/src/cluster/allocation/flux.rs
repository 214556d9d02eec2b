//! Flux: `FLUX_URI` names an instance, which describes its resources as in RFC 20.
//!
//! No variable lists the nodes, so the launcher runs a command of Flux: about the job if the launcher is a task of
//! one (`FLUX_JOB_ID`), else about the instance, which in a batch job has exactly the job's nodes.
//! `FLUX_JOB_ID` alone does not indicate Flux: other launchers, scela-run too, set it for ranks of Open MPI.

use std::collections::BTreeMap;

use pmi::Ranks;
use serde::Deserialize;

use super::{Allocation, id, nodes_of, unreadable};
use crate::cluster::hosts::{self, HOSTS_MAX, TEXT_BYTES_MAX};
use crate::cluster::manager::Manager;
use crate::cluster::node::Node;
use crate::cluster::system::System;
use crate::refusal::{Refusal, shown};
use nla::core::limits::RANKS_MAX;

pub(super) const SIGN: &str = "FLUX_URI";

const JOB: &str = "FLUX_JOB_ID";

/// The part of the resources of an instance or job (RFC 20) that is needed here.
#[derive(Debug, Deserialize)]
struct Resources {
    version: u32,
    execution: Execution,
}

#[derive(Debug, Deserialize)]
struct Execution {
    #[serde(rename = "R_lite")]
    shares: Vec<Share>,
    #[serde(rename = "nodelist")]
    names: Vec<String>,
}

/// Nodes with the same children, by the instance's numbers, which may have gaps.
#[derive(Debug, Deserialize)]
struct Share {
    #[serde(rename = "rank")]
    numbers: String,
    children: Children,
}

#[derive(Debug, Deserialize)]
struct Children {
    core: String,
}

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    if system.variable(SIGN).is_none() {
        return Ok(None);
    }
    let job = system.variable(JOB).map(|job| job.to_string_lossy().into_owned());
    let (found_by, command, id) = match &job {
        Some(job) => (JOB, vec!["flux", "job", "info", job, "R"], id(job.into())),
        None => (SIGN, vec!["flux", "kvs", "get", "resource.R"], String::new()),
    };
    let answer = system.answer(&command, TEXT_BYTES_MAX);
    let command = command.join(" ");
    let answer =
        answer.map_err(|error| unreadable(format!("{found_by} is set, but '{command}' gives no answer: {error}")))?;
    let nodes = nodes(&answer).map_err(|reason| {
        unreadable(format!("{found_by} is set, but the answer of '{command}' cannot be read: {reason}"))
    })?;
    Ok(Some(Allocation { manager: Manager::Flux, id, nodes, ranks: None, found_by }))
}

/// Parses the nodes of an answer, with a slot for each core. The error describes the problem.
fn nodes(answer: &[u8]) -> Result<Vec<Node>, String> {
    if answer.len() > TEXT_BYTES_MAX {
        return Err(format!("it is larger than {} MiB", TEXT_BYTES_MAX >> 20));
    }
    let resources: Resources = serde_json::from_slice(answer).map_err(|error| error.to_string())?;
    if resources.version != 1 {
        return Err(format!("its version is {}; only version 1 is supported", resources.version));
    }
    let names = resources.execution.names.join(",");
    let names = hosts::expand(names.as_bytes()).map_err(|error| error.to_string())?;
    let cores = cores(&resources.execution.shares)?;
    if cores.len() != names.len() {
        return Err(format!("it has the cores of {} nodes and the names of {}", cores.len(), names.len()));
    }
    // Names are in the order of node numbers, not of shares.
    Ok(nodes_of(
        names.into_iter().zip(cores.into_values()).map(|(name, cores)| Node::named(name).with_slots(cores)).collect(),
    ))
}

/// Returns the cores of each node, by its number.
fn cores(shares: &[Share]) -> Result<BTreeMap<u32, u32>, String> {
    let mut cores = BTreeMap::new();
    for share in shares {
        let count = set(&share.children.core)?.len().clamp(1, u64::from(RANKS_MAX)) as u32;
        let numbers = set(&share.numbers)?;
        if numbers.len() > (HOSTS_MAX - cores.len()) as u64 {
            return Err(format!("it has more than {HOSTS_MAX} nodes"));
        }
        cores.extend(numbers.iter().map(|number| (number.0, count)));
    }
    Ok(cores)
}

/// Parses a set of numbers as in RFC 22, `0-3,7` or `[0-3,7]`: the same as a set of ranks.
fn set(text: &str) -> Result<Ranks, String> {
    let inside = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    inside.parse().map_err(|_| format!("'{}' is not a set of numbers", shown(text, 40)))
}
