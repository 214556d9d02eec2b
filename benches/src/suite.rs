//! The three benches, and in what they differ.

use std::ops::RangeInclusive;

use crate::sections::Section;

/// One bench: a program that cargo starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Launchers: what it takes to start, serve and end a job.
    Launch,
    /// PMI: what exchanging entries takes, over the wire and through libpmi.so.
    Pmi,
    /// Cache policies: what exchanging entries takes over trees of many agents, under each of them.
    Caches,
}

impl Suite {
    /// Its sections, in the order in which they are printed.
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

    /// The section of that name.
    ///
    /// # Errors
    /// Where there is none, with the names that there are.
    pub fn parse_section(self, name: &str) -> Result<Section, String> {
        let named = |section: &&Section| section.to_string() == name;
        let found = self.sections().iter().find(named);
        found.copied().ok_or_else(|| format!("there are {}", self.section_names()))
    }

    /// The names of its sections, in words.
    #[must_use]
    pub fn section_names(self) -> String {
        self.sections().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    }

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Launch => "launch",
            Self::Pmi => "pmi",
            Self::Caches => "caches",
        }
    }

    /// How many bytes the values of entries have.
    #[must_use]
    pub fn value_bytes(self) -> RangeInclusive<u32> {
        match self {
            // As long as a business card of shared memory and one network address.
            Self::Launch | Self::Caches => 64..=64,
            // All that a PMI-1 line of 1024 bytes has room for.
            Self::Pmi => 1..=1000,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_the_section_of_its_own_suite() {
        assert_eq!(Suite::Launch.parse_section("memory"), Ok(Section::Memory));
        assert_eq!(Suite::Pmi.parse_section("memory"), Ok(Section::PrivateMemory));
        assert_eq!(Suite::Caches.parse_section("memory"), Ok(Section::CachedMemory));
        assert_eq!(Suite::Pmi.parse_section("flood"), Err("there are 1:2, 1:p, get, memory".to_owned()));
    }
}
