//! `scela pool map`: runs a list of commands over a pool, as many at a time as fit, as GNU parallel does.
//!
//! One process submits all jobs. `plan` decides which command starts when, what is printed when, and the exit code. `actor` carries
//! that out. It has a task for each command that runs (`attempt`) and a thread that prints (`printer`). Outputs wait in
//! files without names (`spool`). [`list`] and [`journal`] are the formats of the two files that the user names.

mod actor;
mod attempt;
pub mod journal;
mod journal_file;
pub mod list;
mod plan;
mod printer;
mod spool;
mod summary;
mod waits;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use nla::core::printable;
use nla::sys;

use self::actor::Setup;
use self::journal_file::JournalFile;
use self::list::{LIST_BYTES_MAX, List};
use self::plan::Rules;
use super::states;
use super::status::PoolReport;
use crate::refusal::Refusal;
use crate::run::stderr::{self, Kind};

/// The most times that a command is run again.
pub const RETRIES_MAX: u32 = 1000;
/// The descriptors that a command takes while it is submitted.
const DESCRIPTORS_PER_COMMAND: u64 = 8;
/// The descriptors that are left for everything else.
const DESCRIPTORS_LEFT: u64 = 64;

/// The options of `scela pool map`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The pool's name, which was checked.
    pub pool: String,
    /// The file with the commands; `-` is standard input.
    pub list: PathBuf,
    /// How many ranks each command has. At least 1.
    pub ranks: u32,
    /// How many commands run at a time; as many as the pool has slots for if `None`. At least 1.
    pub at_once: Option<u32>,
    /// How often a command that fails is run again.
    pub retries: u32,
    /// Print outputs in the order in which commands end.
    pub unordered: bool,
    /// Start no more commands once one has failed.
    pub halts: bool,
    /// Report progress also if standard error is not a terminal.
    pub progress: bool,
    /// The file that gets a row for each command that has ended.
    pub journal: Option<PathBuf>,
    /// Skip the commands that have succeeded by the journal.
    pub resumes: bool,
}

/// Runs the commands of a list. Returns the exit code.
pub fn run(options: &Options) -> Result<u8, Refusal> {
    let list = read_list(&options.list)?;
    let journal = options.journal.as_deref().map(|path| JournalFile::open(path, options.resumes, &list)).transpose()?;
    let (journal, skipped) = journal.map_or((None, vec![false; list.len()]), |(file, skipped)| (Some(file), skipped));
    let PoolReport { pool, .. } = states::state(&options.pool)?;
    let descriptors = sys::raise_limit().unwrap_or_else(|_| sys::open_files_limit());
    let (at_once, warning) = at_once(options.at_once, pool.slots, options.ranks, descriptors);
    if let Some(warning) = warning {
        stderr::line(Kind::Report, &format!("scela: warning: {warning}"));
    }
    let rules = Rules {
        at_once: at_once as usize,
        retries: options.retries,
        in_order: !options.unordered,
        halts: options.halts,
    };
    let (pool, ranks, progress) = (options.pool.clone(), options.ranks, options.progress);
    actor::run(Setup { pool, list, skipped, rules, ranks, progress, journal })
        .map_err(|error| Refusal::new(format!("the commands cannot be run: {error}"), "").of_system())
}

/// Returns how many commands run at a time: as many as were asked for, else as many as have slots. Fewer if this limit on open files
/// is too low; the warning says so.
fn at_once(asked: Option<u32>, slots: u32, ranks: u32, open_files: u64) -> (u32, Option<String>) {
    let wanted = asked.unwrap_or(slots / ranks).max(1);
    let most = (open_files.saturating_sub(DESCRIPTORS_LEFT) / DESCRIPTORS_PER_COMMAND).max(1);
    let most = u32::try_from(most).unwrap_or(u32::MAX);
    let text =
        || format!("{most} commands run at a time, not {wanted}, because of the limit on open files (ulimit -Hn)");
    (wanted.min(most), (wanted > most).then(text))
}

fn read_list(path: &Path) -> Result<List, Refusal> {
    let refused = |done: &str, why: &dyn std::fmt::Display| {
        let name = if path.as_os_str() == "-" { "in standard input".into() } else { path.to_string_lossy() };
        Refusal::new(format!("the list of commands {} cannot be {done}: {why}", printable(&name)), "").of_system()
    };
    let read = |source: &mut dyn Read| {
        let mut bytes = Vec::new();
        source.take(LIST_BYTES_MAX as u64 + 1).read_to_end(&mut bytes).map(|_| bytes)
    };
    let bytes = if path.as_os_str() == "-" {
        read(&mut io::stdin().lock())
    } else {
        sys::open_input(path).and_then(|mut file| read(&mut file))
    };
    let bytes = bytes.map_err(|error| refused("read", &error))?;
    List::parse(bytes).map_err(|error| refused("run", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_run_as_slots_the_user_and_open_files_allow() {
        let ten = DESCRIPTORS_LEFT + 10 * DESCRIPTORS_PER_COMMAND;
        assert_eq!(at_once(None, 9, 2, ten), (4, None));
        assert_eq!(at_once(None, 2, 3, ten), (1, None), "a command with more ranks than slots");
        assert_eq!(at_once(Some(10), 9, 2, ten), (10, None));
        let text = "10 commands run at a time, not 11, because of the limit on open files (ulimit -Hn)";
        assert_eq!(at_once(Some(11), 9, 2, ten), (10, Some(text.to_owned())));
        assert_eq!(at_once(None, 9, 2, 0).0, 1);
    }
}
