//! The job of a resource manager that the launcher runs in, read from environment variables.
//!
//! Each manager has a file that parses its variables. Variables that are incomplete or cannot be parsed are an
//! error that names the variable: a user who logs in to a node of a finished job, or copies its variables to
//! another machine, gets this error and not the wrong nodes.

mod flux;
mod lsf;
mod pbs;
mod sge;
mod slurm;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::Path;

use crate::cluster::hosts::{self, TEXT_BYTES_MAX};
use crate::cluster::manager::{Manager, ManagerChoice};
use crate::cluster::node::{Node, merged};
use crate::cluster::system::System;
use crate::refusal::{Refusal, shown};
use nla::core::Resources;
use nla::core::limits::RANKS_MAX;

/// The most characters of a job's number in messages.
const ID_CHARS_MAX: usize = 64;

/// A job of a resource manager and its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// The resource manager of the job.
    pub manager: Manager,
    /// The job's number, fit for messages; empty if unknown.
    pub id: String,
    /// Its nodes, each once, in the manager's order. Never empty.
    pub nodes: Vec<Node>,
    /// The number of ranks that the user gave the manager.
    pub ranks: Option<u32>,
    /// The variable that named the nodes.
    pub found_by: &'static str,
}

impl Allocation {
    /// Returns the job's name in messages.
    pub fn job(&self) -> String {
        match (self.manager, self.id.as_str()) {
            (Manager::Flux, "") => "this Flux instance".to_owned(),
            (manager, id) => format!("{} job {id}", manager.name()),
        }
    }

    /// Returns the source of the nodes, a sentence without a full stop.
    pub fn words(&self) -> String {
        format!("the nodes are those of {} ({})", self.job(), self.found_by)
    }

    /// Returns the devices that each of its nodes has for the job, if the manager says so; else none.
    pub fn devices_of_each(&self, system: &dyn System) -> Resources {
        match self.manager {
            Manager::Slurm => slurm::devices_of_each(system),
            Manager::Flux | Manager::Pbs | Manager::Lsf | Manager::Sge => Resources::NONE,
        }
    }
}

/// Returns the refusal of a job whose variables or files do not tell its nodes.
fn unreadable(text: String) -> Refusal {
    const HINT: &str = "these variables may be left from a job that is over or on another machine: start a new shell, \
                        or use --rm none to leave them aside";
    Refusal::new(text, HINT).of_system()
}

/// Returns the refusal of a job without one of its variables. `sign` is the variable that is set.
fn missing(manager: Manager, sign: &str, variable: &str) -> Refusal {
    unreadable(format!("{sign} is set, as in a job of {}, but {variable} is not", manager.name()))
}

/// A manager, the variable that every job of it has, and the function that finds the job.
type Finder = (Manager, &'static str, fn(&dyn System) -> Result<Option<Allocation>, Refusal>);

/// Flux comes first: it is the only manager that runs inside a job of another one.
const FINDERS: [Finder; 5] = [
    (Manager::Flux, flux::SIGN, flux::find),
    (Manager::Slurm, slurm::SIGN, slurm::find),
    (Manager::Pbs, pbs::SIGN, pbs::find),
    (Manager::Lsf, lsf::SIGN, lsf::find),
    (Manager::Sge, sge::SIGN, sge::find),
];

/// Finds the job that the launcher runs in; `None` outside a job, or if the user wants none.
pub fn find(choice: ManagerChoice, system: &dyn System) -> Result<Option<Allocation>, Refusal> {
    let is_chosen = |manager| match choice {
        ManagerChoice::None => false,
        ManagerChoice::Only(only) => manager == only,
        ManagerChoice::Auto => true,
    };
    for (manager, sign, find) in FINDERS.into_iter().filter(|(manager, ..)| is_chosen(*manager)) {
        match find(system)? {
            Some(allocation) => return Ok(Some(allocation)),
            None if choice == ManagerChoice::Auto => {}
            None => {
                let text = format!("scela-run was not started in a job of {}: {sign} is not set", manager.name());
                let hint = "start it inside of a job, or name the nodes with -hosts or -f";
                return Err(Refusal::new(text, hint).of_system());
            }
        }
    }
    Ok(None)
}

/// Returns a job's number, fit for messages.
fn id(value: OsString) -> String {
    shown(&value.to_string_lossy(), ID_CHARS_MAX)
}

/// Returns the refusal of an unexpected value.
fn not(variable: &str, value: &str, wanted: &str) -> Refusal {
    unreadable(format!("{variable} is '{}', which is not {wanted}", shown(value, ID_CHARS_MAX)))
}

/// Parses a number of ranks or slots: at least 1.
fn count(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|count| (1..=RANKS_MAX).contains(count))
}

/// Parses the number in a variable, if that is set.
fn count_in(variable: &str, system: &dyn System) -> Result<Option<u32>, Refusal> {
    let Some(value) = system.variable(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    count(&value).map(Some).ok_or_else(|| not(variable, &value, "a number above 0"))
}

/// Reads the file that a variable names.
fn file_of(variable: &str, path: &Path, system: &dyn System) -> Result<Vec<u8>, Refusal> {
    let read = system.file(path, TEXT_BYTES_MAX);
    read.map_err(|error| unreadable(format!("{variable} names {}, which cannot be read: {error}", path.display())))
}

/// Reads the hosts of a file that a variable names.
fn hosts_of_file(variable: &str, path: &Path, system: &dyn System) -> Result<Vec<Node>, Refusal> {
    let hosts = hosts::parse_file(&file_of(variable, path, system)?);
    hosts.map_err(|error| unreadable(format!("{variable} names {}", error.after(&path.display().to_string()))))
}

/// Parses the names of hosts in a variable.
fn names_in(variable: &str, text: &[u8]) -> Result<Vec<String>, Refusal> {
    hosts::expand(text).map_err(|error| unreadable(error.after(variable).to_string()))
}

/// Returns the nodes of entries without users, each once.
fn nodes_of(entries: Vec<Node>) -> Vec<Node> {
    // Managers name no users, so no host has two users.
    merged(entries).unwrap_or_default()
}
