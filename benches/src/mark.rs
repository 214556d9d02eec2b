//! What a rank says about how it was started: one byte, as `programs/page.h` defines it.

use std::fmt;

/// The mark of one rank, or the union of several ranks' faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u8);

impl Mark {
    /// The mark that a rank left in the page.
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// Whether the rank was there at all.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0 & HERE != 0
    }

    /// What was wrong, without the presence.
    #[must_use]
    pub fn faults(self) -> Self {
        Self(self.0 & !HERE)
    }

    /// Those faults that mean that the job was not done: its time says nothing about any launcher.
    #[must_use]
    pub fn spoils(self) -> Self {
        Self(self.0 & (WRONG_VALUE | PROTOCOL | WRONG_SIZE))
    }

    /// Whether there is no fault.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self.faults().0 == 0
    }

    /// The faults of either.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = FAULTS.iter().filter(|(bit, _)| self.0 & bit != 0).map(|(_, words)| *words).collect();
        f.write_str(&words.join("; "))
    }
}

const HERE: u8 = 0x80;
const WRONG_VALUE: u8 = 0x10;
const PROTOCOL: u8 = 0x20;
const WRONG_SIZE: u8 = 0x40;

const FAULTS: [(u8, &str); 7] = [
    (0x01, "PMI_FD is not a live socket"),
    (0x02, "descriptors besides 0, 1, 2 and PMI_FD are open"),
    (0x04, "ranks do not lead a process group of their own"),
    (0x08, "the limit of open files is not the shell's"),
    (WRONG_VALUE, "a get answered another value than was put"),
    (PROTOCOL, "PMI broke off or answered out of turn"),
    (WRONG_SIZE, "PMI_SIZE is not the number of ranks asked for"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_mark_is_not_a_clean_one_that_is_here() {
        assert!(!Mark::from_byte(0).is_here());
        assert!(Mark::from_byte(HERE).is_here() && Mark::from_byte(HERE).is_clean());
    }

    #[test]
    fn faults_are_told_in_words() {
        let mark = Mark::from_byte(HERE | 0x04 | WRONG_VALUE);
        assert_eq!(
            mark.faults().to_string(),
            "ranks do not lead a process group of their own; a get answered another value than was put"
        );
        assert_eq!(mark.spoils(), Mark(WRONG_VALUE));
    }
}
