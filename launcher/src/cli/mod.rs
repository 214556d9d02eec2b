//! The command line: words in, typed values out.
//!
//! [`parse`] turns the words of a command line into a typed [`Request`] and does nothing else: it
//! reads no environment, no terminal and no file (the caller passes a function that reads a
//! configfile), so the same words mean the same everywhere. Only to refuse a report in the place of a
//! file that is read, it looks which files and links the typed names lead to. The plan decides what the
//! words mean on this machine, for example the number of ranks if none was typed.
//!
//! # The role of clap
//!
//! clap renders the help text from the table of options, describes the command line for man pages and
//! completions ([`command`]), and finds similar words for "did you mean" ([`crate::suggest`]). It does not
//! parse the words:
//!
//! - Long options have one dash (`-np 4`, `-hosts LIST`), as in Hydra and Open MPI. clap reads `-np` as the
//!   short options `-n p`. Rewriting `-np` to `--np` beforehand requires the number of values of every
//!   option before it (`-env X -np` sets X to `-np`), and a scanner that knows this has parsed the line.
//! - `:` separates commands, each with its own `-np`, `-wdir` and `-env`; it is a plain argument to clap.
//! - Words after the program belong to the program. clap stops there only with `trailing_var_arg`, and a
//!   program whose arguments begin with a dash then needs `allow_hyphen_values`, by which clap takes an
//!   unknown option for the program.
//! - `-env NAME VALUE` and `-env NAME=VALUE` are the same option with two values or one.
//! - `--stats` takes the next word only if it ends with `.json`.
//! - `--trace` takes the next word only if it ends with `.json`: Intel MPI's `-trace` takes none, so the word may be the program.
//! - `-n4` and `-np4` glue a number to a name of any length.
//! - Errors in a configfile name the line and column.
//!
//! # Rules
//!
//! - A name may have one dash or two, a value may follow as the next word or after `=`. Numbers may
//!   also be glued to a name with one dash, `-n4`.
//! - Options end at the first word that does not begin with a dash, or after `--`. That word is the
//!   program, and everything after it is the program's own, until a lone `:` begins the next
//!   command. A lone `:` is never a value either, nor is the name of an option, except as the value
//!   of a variable; `-env IFS=:` and `-wdir=-l` say so. In a configfile, a quoted `:` is a word.
//! - `-np`, `-wdir` and the `-env` family belong to the command they are typed in; each other option
//!   is about the session, in whichever command's options it is typed.
//! - Of an option given twice, the last wins; changes of environment add up, in the order typed, and
//!   so do hosts. `-v` and `-q` undo each other.
//! - Contradicting options are an error in either order, as far as the words show the contradiction.
//! - The file of `--stats` is optional: the next word is the file if it ends with `.json` and does not
//!   begin with a dash.
//! - With `-configfile`, the programs come from the file only. Options on the command line win over
//!   those in the file; hosts named on the command line replace the file's.
//! - `-help` and `-version` win over everything typed after them.
//! - Variables of Hydra stand for options that are not typed ([`apply_variables`], which the caller calls).

mod accelerator_values;
mod binding_values;
mod configfile;
mod conflicts;
mod error;
mod foreign;
mod help;
mod host_values;
mod limits;
mod log_filter;
mod options;
mod profile_values;
mod request;
mod scan;
mod simulation;
mod stage_values;
mod text;
mod values;
mod variables;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::Duration;

pub use self::error::UsageError;
pub use self::help::{ENVIRONMENT, EXAMPLES, command};
pub use self::limits::{
    AGENTS_PER_NODE_MAX, BATCH_MAX, CONFIGFILE_BYTES_MAX, ENV_NAMES_MAX, FANOUT_MAX, FANOUT_MIN, FANOUTS_MAX,
    IFACE_BYTES_MAX, KILL_GRACE_MAX, LABEL_BYTES_MAX, START_TIMEOUT_MAX, TIMEOUT_MAX,
};
pub use self::log_filter::check_log_filter;
pub use self::variables::apply_variables;

use self::scan::Stop;
use crate::forecast::simulate::Simulation;
use crate::plan::request::{Options, Request};
use crate::refusal::Refusal;

/// The meaning of a command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Typed {
    /// Runs a session.
    Run(Box<Request>),
    /// Simulates a job.
    Simulate(Box<Simulation>),
    /// Measures the constants of the model of start-up times on the hosts of these options, and stores them.
    /// [`HostOptions::sources`](crate::cluster::node_list::HostOptions::sources) has at least one list.
    Calibrate(Box<Options>),
    /// Prints this help text.
    Help(String),
    /// Prints this text, name and version.
    Version(String),
}

/// Reads a configfile for [`parse`]. It need not return more than [`CONFIGFILE_BYTES_MAX`] + 1
/// bytes.
pub type ReadFile<'a> = &'a dyn Fn(&Path) -> io::Result<Vec<u8>>;

/// Parses the words after the program's name.
///
/// `argv0` is the name that scela-run was called by (`mpiexec` if it is a symbolic link of that name). Only help
/// and hints depend on it. `read_file` is called at most once, for
/// `-configfile`.
pub fn parse(argv0: &OsStr, args: Vec<OsString>, read_file: ReadFile<'_>) -> Result<Typed, UsageError> {
    let called = called_name(argv0);
    let typed = match scan::command_line(args) {
        Ok(segments) => request::build(segments, read_file),
        Err(Stop::Help(length)) => return Ok(Typed::Help(help::text(&called, length))),
        Err(Stop::Version) => return Ok(Typed::Version(help::VERSION.to_owned())),
        Err(Stop::Error(error)) => Err(error),
    };
    typed.map_err(|error| error.for_call(&called))
}

/// Returns the last part of `argv0`, fit for printing.
fn called_name(argv0: &OsStr) -> String {
    match Path::new(argv0).file_name() {
        Some(name) => text::shown(name),
        None => "scela-run".to_owned(),
    }
}

/// Parses a time, as `--timeout` does: more than zero.
pub fn time(text: &str) -> Result<Duration, Refusal> {
    values::timeout(OsStr::new(text))
}

#[cfg(test)]
mod tests;
