//! What was typed.
//!
//! [`parse`] turns the words of a command line into a typed [`Request`] and does nothing else: it
//! reads no environment, no terminal and no file (a configfile comes through a function that the
//! caller gives), so the same words mean the same everywhere. What they mean on this machine, the
//! number of ranks where none was typed for example, is the plan's to say.
//!
//! The rules, beside the table of options in `options.rs`:
//!
//! - A name may have one dash or two, a value may follow as the next word or after `=`. Numbers may
//!   also be glued to a name with one dash, `-n4`.
//! - Options end at the first word that does not begin with a dash, or after `--`. That word is the
//!   program, and everything behind it is the program's own, until a lone `:` begins the next
//!   command. A lone `:` is never a value either, nor is the name of an option, except as the value
//!   of a variable; `-env IFS=:` and `-wdir=-l` say so. In a configfile, a quoted `:` is a word.
//! - `-np`, `-wdir` and the `-env` family belong to the command they are typed in; each other option
//!   is about the session, in whichever command's options it is typed.
//! - Of an option given twice, the last wins; changes of environment add up, in the order typed, and
//!   so do hosts. `-v` and `-q` undo each other.
//! - Options that cannot both hold are an error, whichever is typed first, as far as words can tell.
//! - The file of `--stats` may be left out: the next word is one if it ends with `.json` and does not
//!   begin with a dash.
//! - With `-configfile`, the programs come from the file only. Options on the command line win over
//!   those in the file; hosts named on the command line replace the file's.
//! - `-help` and `-version` win over everything typed behind them.

mod assemble;
mod configfile;
mod conflicts;
mod error;
mod foreign;
mod help;
mod host_values;
mod options;
mod scan;
mod simulation;
mod value_problem;
mod values;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

pub use self::configfile::CONFIGFILE_BYTES_MAX;
pub use self::error::{Problem, UsageError};
pub use self::help::{ENVIRONMENT, EXAMPLES, command};
pub use self::host_values::{IFACE_BYTES_MAX, START_TIMEOUT_MAX};
pub use self::options::{AGENTS_PER_NODE_MAX, BATCH_MAX, FANOUT_MAX, FANOUT_MIN};
pub use self::simulation::FANOUTS_MAX;
pub use self::value_problem::ValueProblem;
pub use self::values::{ENV_NAMES_MAX, KILL_GRACE_MAX, LABEL_BYTES_MAX, TIMEOUT_MAX};

use self::scan::Scanned;
use crate::forecast::simulate::Simulation;
use crate::plan::request::{Options, Request};

/// What the command line asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// Run a session.
    Run(Box<Request>),
    /// Simulate a job.
    Simulate(Box<Simulation>),
    /// Measure what the model of start-up times needs, on the hosts of these options, and keep it.
    /// [`HostOptions::sources`] has at least one list.
    Calibrate(Box<Options>),
    /// Print this text, the help, on stdout and exit with 0.
    Help(String),
    /// Print this text, name and version, on stdout and exit with 0.
    Version(String),
}

/// Reads a configfile for [`parse`]. It need not return more than [`CONFIGFILE_BYTES_MAX`] + 1
/// bytes.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Parses the words after the program's name.
///
/// `argv0` is the name that scela-run was called by (`mpiexec`, where it is a symbolic link); help
/// and hints say it, nothing else depends on it. `read_file` is called at most once, for
/// `-configfile`.
pub fn parse(argv0: &OsStr, args: Vec<OsString>, read_file: ReadFile<'_>) -> Result<Typed, UsageError> {
    let called = called_name(argv0);
    let scanned = scan::command_line(args).and_then(|scanned| match scanned {
        Scanned::Help => Ok(Typed::Help(help::text(&called))),
        Scanned::Version => Ok(Typed::Version(help::VERSION.to_owned())),
        Scanned::Segments(segments) => assemble::assemble(segments, read_file),
    });
    scanned.map_err(|fault| fault.into_usage_error(&called))
}

/// The last part of `argv0`, fit for printing.
fn called_name(argv0: &OsStr) -> String {
    match Path::new(argv0).file_name() {
        Some(name) => error::shown(name),
        None => "scela-run".to_owned(),
    }
}

#[cfg(test)]
mod tests;
