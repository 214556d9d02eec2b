//! The four benches, their sections and their differences.

use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

/// A bench: a program that cargo starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Launchers: the time to start, serve and end a job.
    Launch,
    /// PMI: the time to exchange entries, over the wire and through libpmi.so.
    Pmi,
    /// Cache policies: the time to exchange entries over trees of many agents.
    Caches,
    /// scela-run alone: how its costs grow with the number of ranks.
    Scale,
}

/// One measurement and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// The time to start and end the empty program.
    Empty,
    /// The same with the least PMI that an MPI program needs.
    Hello,
    /// Each rank puts one entry and gets those of its two neighbours.
    OneToTwo,
    /// Each rank puts one entry and gets those of all ranks.
    OneToAll,
    /// The time of a fence, with and without a flood of output.
    Fence,
    /// The time and processor time to pass on the output of ranks.
    Output,
    /// The memory of agents.
    Memory,
    /// The context switches of agents while ranks sleep.
    Quiet,
    /// The time, memory and messages of jobs of more and more ranks.
    Scale,
    /// A picture of the trace of a start.
    Trace,
    /// The time of a get.
    Get,
    /// The memory that PMI adds to a rank.
    PrivateMemory,
    /// [`Section::OneToTwo`] under each cache policy.
    CachedOneToTwo,
    /// [`Section::OneToAll`] under each cache policy.
    CachedOneToAll,
    /// The memory of the board under each cache policy.
    CachedMemory,
    /// The simulated times of the exchanges under each cache policy.
    Simulated,
}

impl Suite {
    /// The suites that write a table of README.md, in the order of the tables.
    pub const OF_README: [Self; 2] = [Self::Launch, Self::Pmi];

    /// Returns its sections in the order of the output.
    #[must_use]
    pub fn sections(self) -> &'static [Section] {
        match self {
            Self::Launch => &[
                Section::Empty,
                Section::Hello,
                Section::OneToTwo,
                Section::OneToAll,
                Section::Fence,
                Section::Output,
                Section::Memory,
                Section::Quiet,
            ],
            Self::Pmi => &[Section::OneToTwo, Section::OneToAll, Section::Get, Section::PrivateMemory],
            Self::Caches => {
                &[Section::CachedOneToTwo, Section::CachedOneToAll, Section::CachedMemory, Section::Simulated]
            }
            Self::Scale => &[Section::Scale, Section::Trace],
        }
    }

    /// Returns the section of this name.
    ///
    /// # Errors
    /// If there is none; the message lists the names.
    pub fn parse_section(self, name: &str) -> Result<Section, String> {
        let named = |section: &&Section| section.to_string() == name;
        let found = self.sections().iter().find(named);
        found.copied().ok_or_else(|| format!("the sections are {}", self.section_names()))
    }

    /// Returns the names of its sections, separated by commas.
    #[must_use]
    pub fn section_names(self) -> String {
        self.sections().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether `--write` writes a table of README.md.
    #[must_use]
    pub fn has_overview(self) -> bool {
        Self::OF_README.contains(&self)
    }

    /// Returns the time of a run above which it is not repeated: a slow rival must not make a bench take an hour.
    #[must_use]
    pub fn repeated_up_to(self) -> Option<Duration> {
        self.has_overview().then_some(REPEATED_UP_TO)
    }

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Pmi => "pmi",
            Self::Caches => "caches",
            Self::Scale => "scale",
        }
    }

    /// Returns the sizes of values in bytes.
    #[must_use]
    pub fn value_bytes(self) -> RangeInclusive<u32> {
        match self {
            // The size of an MPI business card with shared memory and one network address.
            Self::Launch | Self::Caches | Self::Scale => 64..=64,
            // The largest that fits into a PMI-1 line of 1024 bytes.
            Self::Pmi => 1..=1000,
        }
    }
}

impl Section {
    /// Returns whether the section has a row in README.md's tables.
    #[must_use]
    pub fn is_in_overview(self) -> bool {
        self != Self::Quiet
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Empty => "empty",
            Self::Hello => "hello",
            // Sections of different suites may have the same name.
            Self::OneToTwo | Self::CachedOneToTwo => "1:2",
            Self::OneToAll | Self::CachedOneToAll => "1:p",
            Self::Fence => "fence",
            Self::Output => "output",
            Self::Quiet => "quiet",
            Self::Scale => "scale",
            Self::Trace => "trace",
            Self::Get => "get",
            Self::Memory | Self::PrivateMemory | Self::CachedMemory => "memory",
            Self::Simulated => "simulated",
        })
    }
}

/// See [`Suite::repeated_up_to`].
pub const REPEATED_UP_TO: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn section_names_are_those_of_the_suite() {
        assert_eq!(Suite::Launch.parse_section("memory"), Ok(Section::Memory));
        assert_eq!(Suite::Pmi.parse_section("memory"), Ok(Section::PrivateMemory));
        assert_eq!(Suite::Caches.parse_section("memory"), Ok(Section::CachedMemory));
        assert_eq!(Suite::Pmi.parse_section("flood"), Err("the sections are 1:2, 1:p, get, memory".to_owned()));
    }
}
