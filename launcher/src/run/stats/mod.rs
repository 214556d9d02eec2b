//! The statistics of a session as a table or a JSON file. docs/statistics.md describes each number.

mod json;
mod table;

use std::io;

use nla::core::{CachePolicy, Stats};

use super::report_file::{FifoReport, ReportFile};
use crate::plan::request::StatsTo;

/// The statistics of a session, and its parameters.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The policy of the bulletin board's caches.
    pub policy: CachePolicy,
    /// The number of ranks of the first namespace.
    pub ranks: u32,
    /// The number of agents.
    pub agents: u32,
    /// The most children of an agent.
    pub fanout: u32,
    /// The numbers of each level; the launcher is the first level.
    pub stats: Stats,
}

impl Statistics {
    /// Returns the number of agents that reported their statistics.
    fn reported(&self) -> u64 {
        self.stats.members().saturating_sub(1)
    }

    /// Returns a line about the session, and tables with a row for each level.
    pub fn table(&self) -> String {
        table::table(self)
    }

    /// Returns a JSON document with the schema of docs/statistics.md.
    pub fn json(&self) -> String {
        json::json(self)
    }
}

/// The destination of the statistics.
#[derive(Debug)]
pub enum Sink {
    /// A table on standard error.
    Table,
    /// A JSON file.
    File(ReportFile),
}

impl Sink {
    /// Creates the file, if one was asked for. This happens before anything starts, so that an error ends scela-run
    /// early.
    pub fn open(to: &StatsTo) -> io::Result<Self> {
        match to {
            StatsTo::Table => Ok(Self::Table),
            StatsTo::File(path) => Ok(Self::File(ReportFile::open("the statistics", path)?)),
        }
    }

    /// Writes the file, or returns the table for the caller to print, or what a FIFO is to get. An error is a sentence for the user.
    pub fn take(self, statistics: &Statistics) -> Result<(Option<String>, Option<FifoReport>), String> {
        match self {
            Self::Table => Ok((Some(statistics.table()), None)),
            Self::File(file) => file.write(|out| out.write_all(statistics.json().as_bytes())).map(|fifo| (None, fifo)),
        }
    }
}

#[cfg(test)]
mod tests;
