//! The job of a resource manager that the launcher runs in, as its environment tells it.
//!
//! Each manager has a file that knows what it sets and what that means. What is there only in part, or
//! cannot be read, is an error that names the variable: who logs in to a node of a job that is over,
//! or carries its variables to another machine, is told so, and not given the wrong nodes.

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
use crate::cluster::node_list::behind;
use crate::cluster::system::System;
use nla::core::limits::RANKS_MAX;

/// Characters of a job's number that are kept: it is for messages only.
const ID_CHARS_MAX: usize = 64;

/// A job of a resource manager and its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Whose job it is.
    pub manager: Manager,
    /// What the manager calls it; empty where nobody said. For messages only, and fit for those.
    pub id: String,
    /// Its nodes, each once, in the manager's order. Never empty.
    pub nodes: Vec<Node>,
    /// How many ranks the user told the manager to expect.
    pub ranks: Option<u32>,
    /// The variable that named the nodes.
    pub found_by: &'static str,
}

impl Allocation {
    /// The job, as messages name it.
    pub fn job(&self) -> String {
        match (self.manager, self.id.as_str()) {
            (Manager::Flux, "") => "this Flux instance".to_owned(),
            (manager, id) => format!("{} job {id}", manager.name()),
        }
    }

    /// Where the nodes are known from, a sentence without its full stop.
    pub fn words(&self) -> String {
        format!("the nodes are those of {} ({})", self.job(), self.found_by)
    }
}

/// Why the nodes of a job are not known.
#[derive(Debug, Error)]
pub enum AllocationError {
    /// The user named a manager, and there is no job of it.
    #[error("this is not inside of a job of {}: {variable} is not set", manager.name())]
    NotThere {
        /// The manager.
        manager: Manager,
        /// What it would have set.
        variable: &'static str,
    },
    /// There is a job, and not what belongs to it.
    #[error("{job} is set, as in a job of {}, but {variable} is not", manager.name())]
    Missing {
        /// The manager.
        manager: Manager,
        /// What is set.
        job: &'static str,
        /// What is not.
        variable: &'static str,
    },
    /// The names of the nodes cannot be read.
    #[error("{}", behind(variable, error))]
    Names {
        /// Who has them.
        variable: &'static str,
        /// What is wrong with them.
        error: HostsError,
    },
    /// Something else cannot be read.
    #[error("{variable} is '{value}', which is not {wanted}")]
    Value {
        /// Who has it.
        variable: &'static str,
        /// What it has, fit for printing.
        value: String,
        /// What it should have.
        wanted: &'static str,
    },
    /// Two variables are about different numbers of nodes.
    #[error("{variable} is about {nodes} {}, and {names} names {named}", if *nodes == 1 { "node" } else { "nodes" })]
    Disagree {
        /// The one.
        variable: &'static str,
        /// Its nodes.
        nodes: usize,
        /// The other.
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
        /// Why.
        error: io::Error,
    },
    /// A file that a variable names does not say what it should.
    #[error("{variable} names {}, whose line {line} is '{text}' and not {wanted}", path.display())]
    Line {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// Which line, counted from 1.
        line: usize,
        /// What it has, fit for printing.
        text: String,
        /// What it should have.
        wanted: &'static str,
    },
    /// The names in a file that a variable names cannot be read.
    #[error("{variable} names {}", behind(&path.display().to_string(), error))]
    FileNames {
        /// The variable.
        variable: &'static str,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: HostsError,
    },
    /// The manager's command gives no answer.
    #[error("{variable} is set, but '{command}' gives no answer: {error}")]
    NoAnswer {
        /// What makes us ask.
        variable: &'static str,
        /// The command.
        command: String,
        /// Why.
        error: io::Error,
    },
    /// The manager's command answers something else.
    #[error("{variable} is set, but the answer of '{command}' cannot be read: {reason}")]
    Answer {
        /// What makes us ask.
        variable: &'static str,
        /// The command.
        command: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl AllocationError {
    /// The next step to try, a fragment without full stop.
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

/// The job that the launcher runs in; none if there is none, or none is wanted.
///
/// A manager inside of another one's job is asked first, and that is Flux: the others do not nest.
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

/// The variable without which there is no job of a manager.
fn sign(manager: Manager) -> &'static str {
    match manager {
        Manager::Slurm => slurm::SIGN,
        Manager::Pbs => pbs::SIGN,
        Manager::Lsf => lsf::SIGN,
        Manager::Sge => sge::SIGN,
        Manager::Flux => flux::SIGN,
    }
}

/// What a manager calls a job, fit for messages.
fn id(value: OsString) -> String {
    shown(&value.to_string_lossy(), ID_CHARS_MAX)
}

/// The beginning of a value, fit for messages.
fn shown(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

/// The error for a value that is not what it should be.
fn not(variable: &'static str, value: &str, wanted: &'static str) -> AllocationError {
    AllocationError::Value { variable, value: shown(value, ID_CHARS_MAX), wanted }
}

/// A number of ranks or slots: at least 1.
fn count(text: &str) -> Option<u32> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().ok()).flatten().filter(|count| (1..=RANKS_MAX).contains(count))
}

/// The number in a variable, if that is set.
fn count_in(variable: &'static str, system: &dyn System) -> Result<Option<u32>, AllocationError> {
    let Some(value) = system.variable(variable) else { return Ok(None) };
    let value = value.to_string_lossy();
    count(&value).map(Some).ok_or_else(|| not(variable, &value, "a number above 0"))
}

/// The file that a variable names.
fn file_of(variable: &'static str, path: &Path, system: &dyn System) -> Result<Vec<u8>, AllocationError> {
    let read = system.file(path, TEXT_BYTES_MAX);
    read.map_err(|error| AllocationError::File { variable, path: path.to_path_buf(), error })
}

/// The nodes of entries without users, each once.
fn nodes_of(entries: Vec<HostEntry>) -> Vec<Node> {
    // No manager names users, so that no two can differ.
    merged(entries).unwrap_or_default()
}

/// An entry of a manager's list.
fn entry(name: String, slots: u32) -> HostEntry {
    HostEntry { user: None, name, slots: Some(slots), max_slots: None }
}
