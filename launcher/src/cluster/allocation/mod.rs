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
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cluster::hosts::{HostEntry, HostsError, TEXT_BYTES_MAX};
use crate::cluster::manager::{Manager, ManagerChoice};
use crate::cluster::node::{Node, merged};
use crate::cluster::system::System;
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
}

/// Why the nodes of a job are not known.
#[derive(Debug, Error)]
pub enum AllocationError {
    /// The user named a manager, but this is not in a job of it.
    #[error("this is not inside of a job of {}: {variable} is not set", manager.name())]
    NotThere {
        /// The manager.
        manager: Manager,
        /// The variable that a job has.
        variable: &'static str,
    },
    /// A variable of the job is missing.
    #[error("{job} is set, as in a job of {}, but {variable} is not", manager.name())]
    Missing {
        /// The manager.
        manager: Manager,
        /// The variable that is set.
        job: &'static str,
        /// The missing variable.
        variable: &'static str,
    },
    /// The names of the nodes cannot be read.
    #[error("{}", error.after(variable))]
    Names {
        /// The variable.
        variable: &'static str,
        /// The problem.
        error: HostsError,
    },
    /// A variable has an unexpected value.
    #[error("{variable} is '{value}', which is not {wanted}")]
    Value {
        /// The variable.
        variable: &'static str,
        /// The value, fit for printing.
        value: String,
        /// The expected value.
        wanted: &'static str,
    },
    /// Two variables are about different numbers of nodes.
    #[error("{variable} is about {nodes} {}, and {names} names {named}", if *nodes == 1 { "node" } else { "nodes" })]
    Disagree {
        /// The first variable.
        variable: &'static str,
        /// Its nodes.
        nodes: usize,
        /// The second variable.
        names: &'static str,
        /// Its nodes.
        named: usize,
    },
    /// A file that a variable names cannot be read.
    #[error("{variable} names {}, which cannot be read: {error}", path.display())]
    File {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// A file that a variable names has an unexpected value.
    #[error("{variable} names {}, whose line {line} is '{text}' and not {wanted}", path.display())]
    Line {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The value, fit for printing.
        text: String,
        /// The expected value.
        wanted: &'static str,
    },
    /// The names in a file that a variable names cannot be read.
    #[error("{variable} names {}", error.after(&path.display().to_string()))]
    FileNames {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// The problem.
        error: HostsError,
    },
    /// The manager's command fails.
    #[error("{variable} is set, but '{command}' gives no answer: {error}")]
    NoAnswer {
        /// The variable that makes the launcher run it.
        variable: &'static str,
        /// The command.
        command: String,
        /// The error.
        error: io::Error,
    },
    /// The manager's command prints something unexpected.
    #[error("{variable} is set, but the answer of '{command}' cannot be read: {reason}")]
    Answer {
        /// The variable that makes the launcher run it.
        variable: &'static str,
        /// The command.
        command: String,
        /// The problem.
        reason: String,
    },
}

impl AllocationError {
    /// Returns the next step to try, a fragment without full stop.
    pub fn hint(&self) -> String {
        match self {
            Self::NotThere { .. } => "start it inside of a job, or name the nodes with -hosts or -f",
            _ => {
                "these variables may be left from a job that is over or on another machine: start a new shell, or \
                 use --rm none to leave them aside"
            }
        }
        .into()
    }
}

/// Finds the job that the launcher runs in; `None` outside a job, or if the user wants none.
///
/// Flux comes first: it is the only manager that runs inside a job of another one.
pub fn find(choice: ManagerChoice, system: &dyn System) -> Result<Option<Allocation>, AllocationError> {
    match choice {
        ManagerChoice::None => Ok(None),
        ManagerChoice::Only(manager) => match of(manager, system)? {
            Some(allocation) => Ok(Some(allocation)),
            None => Err(AllocationError::NotThere { manager, variable: sign(manager) }),
        },
        ManagerChoice::Auto => {
            for manager in [Manager::Flux, Manager::Slurm, Manager::Pbs, Manager::Lsf, Manager::Sge] {
                if let Some(allocation) = of(manager, system)? {
                    return Ok(Some(allocation));
                }
            }
            Ok(None)
        }
    }
}

fn of(manager: Manager, system: &dyn System) -> Result<Option<Allocation>, AllocationError> {
    match manager {
        Manager::Slurm => slurm::find(system),
        Manager::Pbs => pbs::find(system),
        Manager::Lsf => lsf::find(system),
        Manager::Sge => sge::find(system),
        Manager::Flux => flux::find(system),
    }
}

/// Returns the variable that every job of a manager has.
fn sign(manager: Manager) -> &'static str {
    match manager {
        Manager::Slurm => slurm::SIGN,
        Manager::Pbs => pbs::SIGN,
        Manager::Lsf => lsf::SIGN,
        Manager::Sge => sge::SIGN,
        Manager::Flux => flux::SIGN,
    }
}

/// Returns a job's number, fit for messages.
fn id(value: OsString) -> String {
    shown(&value.to_string_lossy(), ID_CHARS_MAX)
}

/// Returns the beginning of a value, fit for messages.
fn shown(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the error for an unexpected value.
fn not(variable: &'static str, value: &str, wanted: &'static str) -> AllocationError {
    AllocationError::Value { variable, value: shown(value, ID_CHARS_MAX), wanted }
}

/// Parses a number of ranks or slots: at least 1.
fn count(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|count| (1..=RANKS_MAX).contains(count))
}

/// Parses the number in a variable, if that is set.
fn count_in(variable: &'static str, system: &dyn System) -> Result<Option<u32>, AllocationError> {
    let Some(value) = system.variable(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    count(&value).map(Some).ok_or_else(|| not(variable, &value, "a number above 0"))
}

/// Reads the file that a variable names.
fn file_of(variable: &'static str, path: &Path, system: &dyn System) -> Result<Vec<u8>, AllocationError> {
    let read = system.file(path, TEXT_BYTES_MAX);
    read.map_err(|error| AllocationError::File { variable, path: path.to_path_buf(), error })
}

/// Returns the nodes of entries without users, each once.
fn nodes_of(entries: Vec<HostEntry>) -> Vec<Node> {
    // Managers name no users, so TwoUsers cannot happen.
    merged(entries).unwrap_or_default()
}

/// Returns an entry of a manager's list.
fn entry(name: String, slots: u32) -> HostEntry {
    HostEntry { user: None, name, slots: Some(slots), max_slots: None }
}
