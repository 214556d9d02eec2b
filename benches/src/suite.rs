//! The three benches and their differences.

use std::ops::RangeInclusive;

use crate::sections::Section;

/// A bench: a program that cargo starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Launchers: the time to start, serve and end a job.
    Launch,
    /// PMI: the time to exchange entries, over the wire and through libpmi.so.
    Pmi,
    /// Cache policies: the time to exchange entries over trees of many agents.
    Caches,
}

impl Suite {
    /// Returns its sections in the order of the output.
    #[must_use]
    pub fn sections(self) -> &'static [Section] {
        match self {
            Self::Launch => {
                &[Section::Empty, Section::Hello, Section::OneToTwo, Section::OneToAll, Section::Fence, Section::Memory]
            }
            Self::Pmi => &[Section::OneToTwo, Section::OneToAll, Section::Get, Section::PrivateMemory],
            Self::Caches => {
                &[Section::CachedOneToTwo, Section::CachedOneToAll, Section::CachedMemory, Section::Simulated]
            }
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

    /// Returns its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Pmi => "pmi",
            Self::Caches => "caches",
        }
    }

    /// Returns the sizes of values in bytes.
    #[must_use]
    pub fn value_bytes(self) -> RangeInclusive<u32> {
        match self {
            // The size of an MPI business card with shared memory and one network address.
            Self::Launch | Self::Caches => 64..=64,
            // The largest that fits into a PMI-1 line of 1024 bytes.
            Self::Pmi => 1..=1000,
        }
    }
}

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
