//! The tables: scela-run against the kernel's floor and against every other launcher on this machine, and its PMI over
//! the wire and through libpmi.so, and under each of its cache policies. Three benches are made of this crate: [`suite`]
//! says which asks what.
//!
//! One run is one launcher starting one job. Its ranks are small C programs (`programs/`) which check what they
//! were given, mark themselves in a shared page and leave their times there; a run with a mark missing does not count.
//! Launchers take turns within a round, and every ratio is the median of the ratios within rounds, because the machine
//! itself drifts by more than launchers differ. Nothing here asserts a time: it measures and prints.
//!
//! From what was typed to the tables:
//! [`options`] → [`launcher`] (who is here) and [`programs`] (what they start) → [`sections`] (what is asked), each
//! made of [`rounds`] of single [`run`]s, told through a [`page`] → [`table`] and [`report`].
//! [`policy`] is how scela-run is asked to cache, [`stats`] what it counted then, and [`results`] what is kept of that.
//! [`family`] finds and ends the processes that a run left behind.

#![deny(unsafe_code)]

pub mod bench;
pub mod cargo;
pub mod family;
pub mod launcher;
pub mod machine;
pub mod mark;
pub mod options;
pub mod page;
pub mod policy;
pub mod programs;
pub mod report;
pub mod results;
pub mod rounds;
pub mod run;
pub mod scratch;
pub mod sections;
pub mod smaps;
pub mod stats;
pub mod suite;
pub mod table;

use std::process::ExitCode;

use bench::{Bench, BenchError};
use options::Options;
use suite::Suite;

/// Does what the command line asks, and says in one chain why it could not.
#[must_use]
pub fn main(suite: Suite) -> ExitCode {
    match start(suite) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::complain(&error);
            ExitCode::FAILURE
        }
    }
}

fn start(suite: Suite) -> Result<(), BenchError> {
    let options = Options::from_command_line(suite);
    machine::isolate()?;
    let mut bench = Bench::set_up(options)?;
    for section in bench.options.only.clone() {
        section.run(&mut bench)?;
    }
    Ok(())
}
