//! Statistics as the user reads them: a table, or a file of JSON. docs/statistics.md tells what each
//! number means.

mod json;
mod table;

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use nla::core::{CachePolicy, Stats};

use crate::plan::request::StatsTo;

/// What a session has counted, and what session it was.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// The policy of its caches.
    pub policy: CachePolicy,
    /// How many ranks its first namespace had.
    pub ranks: u32,
    /// How many agents it had.
    pub agents: u32,
    /// How many children an agent had at most.
    pub fanout: u32,
    /// The numbers, the launcher's own first.
    pub stats: Stats,
}

impl Statistics {
    /// How many agents have told theirs.
    fn reported(&self) -> u64 {
        self.stats.members().saturating_sub(1)
    }

    /// For people: a line about the session, and tables with a row for each level.
    pub fn table(&self) -> String {
        table::table(self)
    }

    /// For programs, by the schema of docs/statistics.md.
    pub fn json(&self) -> String {
        json::json(self)
    }
}

/// Where statistics go.
#[derive(Debug)]
pub enum Sink {
    /// To whoever reads standard error.
    Table,
    /// Into a file, which is there already.
    File(PathBuf, File),
}

impl Sink {
    /// Makes the file, if there is to be one: that it cannot be is found before anything is started.
    pub fn open(to: &StatsTo) -> io::Result<Self> {
        match to {
            StatsTo::Table => Ok(Self::Table),
            StatsTo::File(path) => match File::create(path) {
                Ok(file) => Ok(Self::File(path.clone(), file)),
                Err(error) => Err(io::Error::new(error.kind(), cannot(path, &error))),
            },
        }
    }

    /// Writes the file, if there is to be one. Otherwise the table is returned, to be said. An error
    /// is a sentence.
    pub fn take(self, statistics: &Statistics) -> Result<Option<String>, String> {
        match self {
            Self::Table => Ok(Some(statistics.table())),
            Self::File(path, mut file) => {
                file.write_all(statistics.json().as_bytes()).map_err(|error| cannot(&path, &error))?;
                Ok(None)
            }
        }
    }
}

fn cannot(path: &Path, error: &io::Error) -> String {
    format!("the statistics cannot be written to '{}': {error}", path.display())
}

#[cfg(test)]
mod tests;
