//! IBM Spectrum LSF: `LSB_JOBID`, and the hosts in one of three forms: a file with a line for each slot,
//! `h1 4 h2 4`, or `h1 h1 h2`.

use std::path::Path;

use super::{Allocation, count, hosts_of_file, id, missing, names_in, nodes_of, not};
use crate::cluster::hosts::HOSTS_MAX;
use crate::cluster::manager::Manager;
use crate::cluster::node::Node;
use crate::cluster::system::System;
use crate::refusal::Refusal;

pub(super) const SIGN: &str = "LSB_JOBID";

/// A file that LSF updates when a job is resized, unlike the variables.
const FILE: &str = "LSB_DJOB_HOSTFILE";
/// Hosts and numbers in turn.
const PAIRS: &str = "LSB_MCPU_HOSTS";
/// A host for each slot. LSF does not set it if it would be too long.
const HOSTS: &str = "LSB_HOSTS";

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    let Some(job) = system.variable(SIGN) else { return Ok(None) };
    let text = |variable| Some(system.variable(variable)?.to_string_lossy().into_owned());
    let (found_by, entries) = if let Some(path) = system.variable(FILE) {
        let hosts = hosts_of_file(FILE, Path::new(&path), system)?;
        (FILE, hosts.into_iter().map(|each| Node::named(each.name).with_slots(1)).collect())
    } else if let Some(pairs) = text(PAIRS) {
        (PAIRS, in_pairs(&pairs)?)
    } else if let Some(hosts) = text(HOSTS) {
        (HOSTS, in_words(&hosts)?)
    } else {
        return Err(missing(Manager::Lsf, SIGN, PAIRS));
    };
    Ok(Some(Allocation { manager: Manager::Lsf, id: id(job), nodes: nodes_of(entries), ranks: None, found_by }))
}

fn in_pairs(text: &str) -> Result<Vec<Node>, Refusal> {
    const WANTED: &str = "hosts and numbers of slots in turn";
    let words: Vec<&str> = text.split_ascii_whitespace().take(2 * HOSTS_MAX).collect();
    let pair = |pair: &[&str]| match pair {
        [name, slots] => host(PAIRS, name, || count(slots).ok_or_else(|| not(PAIRS, text, WANTED))),
        _ => Err(not(PAIRS, text, WANTED)),
    };
    some(PAIRS, text, words.chunks(2).map(pair).collect::<Result<_, _>>()?)
}

fn in_words(text: &str) -> Result<Vec<Node>, Refusal> {
    let words = text.split_ascii_whitespace().take(HOSTS_MAX);
    some(HOSTS, text, words.map(|name| host(HOSTS, name, || Ok(1))).collect::<Result<_, _>>()?)
}

fn some(variable: &str, text: &str, nodes: Vec<Node>) -> Result<Vec<Node>, Refusal> {
    if nodes.is_empty() { Err(not(variable, text, "a list of hosts")) } else { Ok(nodes) }
}

/// Parses one name of a host.
fn host(variable: &str, text: &str, slots: impl Fn() -> Result<u32, Refusal>) -> Result<Node, Refusal> {
    match <[String; 1]>::try_from(names_in(variable, text.as_bytes())?) {
        Ok([name]) => Ok(Node::named(name).with_slots(slots()?)),
        Err(_) => Err(not(variable, text, "the name of one host")),
    }
}
