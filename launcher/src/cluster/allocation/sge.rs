//! Sun, Univa, Altair and Open Grid Engine: `PE_HOSTFILE`, whose lines are a host, its slots, a queue and
//! processors.
//!
//! `JOB_ID` alone does not indicate Grid Engine: the name is too common, and a job without a parallel environment
//! has one node and no file.

use std::path::{Path, PathBuf};

use super::{Allocation, count, file_of, id, missing, nodes_of, unreadable};
use crate::cluster::hosts::{self, HOSTS_MAX};
use crate::cluster::manager::Manager;
use crate::cluster::node::Node;
use crate::cluster::system::System;
use crate::refusal::{Refusal, shown};

pub(super) const SIGN: &str = "PE_HOSTFILE";

const JOB: &str = "JOB_ID";
const WANTED: &str = "a host and its slots";
const SHOWN_CHARS_MAX: usize = 64;

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    let Some(path) = system.variable(SIGN).map(PathBuf::from) else { return Ok(None) };
    let job = system.variable(JOB);
    let job = job.ok_or_else(|| missing(Manager::Sge, SIGN, JOB))?;
    let bytes = file_of(SIGN, &path, system)?;
    let text = String::from_utf8_lossy(&bytes);
    let lines = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()).take(HOSTS_MAX);
    // A host has a line for each queue that contributes slots.
    let read = |(line, number)| host(line).ok_or_else(|| wrong(&path, number, line));
    let entries: Vec<Node> = lines.map(read).collect::<Result<_, _>>()?;
    if entries.is_empty() {
        return Err(wrong(&path, 1, ""));
    }
    Ok(Some(Allocation { manager: Manager::Sge, id: id(job), nodes: nodes_of(entries), ranks: None, found_by: SIGN }))
}

fn host(line: &str) -> Option<Node> {
    let mut words = line.split_ascii_whitespace();
    let [name] = <[String; 1]>::try_from(hosts::expand(words.next()?.as_bytes()).ok()?).ok()?;
    Some(Node::named(name).with_slots(count(words.next()?)?))
}

fn wrong(path: &Path, line: usize, text: &str) -> Refusal {
    let (path, text) = (path.display(), shown(text, SHOWN_CHARS_MAX));
    unreadable(format!("{SIGN} names {path}, whose line {line} is '{text}' and not {WANTED}"))
}
