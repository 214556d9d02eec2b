//! Tables that compare scela-run with the kernel's floor and with every other launcher on this machine,
//! its PMI over the wire and through libpmi.so, and its cache policies. Four benches use this crate:
//! see [`suite`].
//!
//! One run is one launcher starting one job. Its ranks are small C programs (`programs/`) that check
//! their environment, mark themselves in a shared page and store their times there; a run with a
//! missing mark does not count. Launchers take turns within a round, and every ratio is the median of
//! the ratios within rounds, because the machine itself drifts by more than launchers differ. The
//! benches measure and print, and assert no time.
//!
//! From the command line to the tables: [`options`] → [`launcher`] (which are installed) and
//! [`programs`] (what they start) → [`sections`] (what is measured), each made of [`rounds`] of single
//! [`run`]s, which communicate through a [`page`] → [`table`] and [`report`]. [`policy`] holds
//! scela-run's cache options, [`stats`] reads the counters of a run, and [`results`] writes files.
//! [`overview`] writes the tables of README.md. [`services`] starts Slurm and [`flux`] for launchers that need them.
//! [`family`] finds and kills processes that a run left behind.

#![deny(unsafe_code)]

pub mod arguments;
pub mod bench;
pub mod cargo;
pub mod error;
pub mod family;
pub mod flux;
pub mod launcher;
pub mod machine;
pub mod mark;
pub mod options;
pub mod overview;
pub mod page;
pub mod policy;
pub mod programs;
pub mod report;
pub mod results;
pub mod rounds;
pub mod run;
pub mod scratch;
pub mod sections;
pub mod services;
pub mod slow_link;
pub mod smaps;
pub mod stats;
pub mod suite;
pub mod switches;
pub mod table;
pub mod torus;

use std::process::ExitCode;

use bench::Bench;
use error::BenchError;
use options::Options;
use overview::Overview;
use suite::Suite;

/// Runs the bench; prints an error with its causes if it cannot run.
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
        sections::run(&mut bench, section)?;
    }
    Overview::write(&bench)
}
