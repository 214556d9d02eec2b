//! PBS Professional, OpenPBS and Torque: `PBS_JOBID`, and `PBS_NODEFILE` with a line for each slot.

use std::path::Path;

use super::{Allocation, count_in, hosts_of_file, id, missing, nodes_of};
use crate::cluster::manager::Manager;
use crate::cluster::node::Node;
use crate::cluster::system::System;
use crate::refusal::Refusal;

pub(super) const SIGN: &str = "PBS_JOBID";

/// A file that exists on the job's first node only.
const FILE: &str = "PBS_NODEFILE";
/// Torque's number of processors of each node. Its file repeats each node as often, unless the site lists each
/// node once; PBS Professional does not set the variable.
const SLOTS: &str = "PBS_NUM_PPN";

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    let Some(job) = system.variable(SIGN) else { return Ok(None) };
    let path = system.variable(FILE).ok_or_else(|| missing(Manager::Pbs, SIGN, FILE))?;
    let entries = hosts_of_file(FILE, Path::new(&path), system)?;
    let lines = entries.len();
    // Each line is one slot.
    let one = |entry: Node| Node::named(entry.name).with_slots(1);
    let mut nodes = nodes_of(entries.into_iter().map(one).collect());
    if nodes.len() == lines
        && let Some(slots) = count_in(SLOTS, system)?
    {
        nodes = nodes.into_iter().map(|node| node.with_slots(slots)).collect();
    }
    Ok(Some(Allocation { manager: Manager::Pbs, id: id(job), nodes, ranks: None, found_by: FILE }))
}
