//! PBS Professional, OpenPBS and Torque: `PBS_JOBID`, and `PBS_NODEFILE` with a line for each slot.

use std::path::PathBuf;

use super::{Allocation, AllocationError, count_in, file_of, id, nodes_of};
use crate::cluster::hosts::{self, HostEntry};
use crate::cluster::manager::Manager;
use crate::cluster::system::System;

pub(super) const SIGN: &str = "PBS_JOBID";

/// A file that exists on the job's first node only.
const FILE: &str = "PBS_NODEFILE";
/// Torque's number of processors of each node. Its file repeats each node as often, unless the site lists each
/// node once; PBS Professional does not set the variable.
const SLOTS: &str = "PBS_NUM_PPN";

pub(super) fn find(system: &dyn System) -> Result<Option<Allocation>, AllocationError> {
    let Some(job) = system.variable(SIGN) else { return Ok(None) };
    let missing = || AllocationError::Missing { manager: Manager::Pbs, job: SIGN, variable: FILE };
    let path = PathBuf::from(system.variable(FILE).ok_or_else(missing)?);
    let bytes = file_of(FILE, &path, system)?;
    let entries =
        hosts::parse_file(&bytes).map_err(|error| AllocationError::FileNames { variable: FILE, path, error })?;
    let lines = entries.len();
    // Each line is one slot.
    let one = |entry: HostEntry| HostEntry { user: None, slots: Some(1), max_slots: None, ..entry };
    let mut nodes = nodes_of(entries.into_iter().map(one).collect());
    if nodes.len() == lines
        && let Some(slots) = count_in(SLOTS, system)?
    {
        nodes = nodes.into_iter().map(|node| node.with_slots(slots)).collect();
    }
    Ok(Some(Allocation { manager: Manager::Pbs, id: id(job), nodes, ranks: None, found_by: FILE }))
}
