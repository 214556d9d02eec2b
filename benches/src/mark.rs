//! The mark of a rank: one byte about how it was started, as defined in `programs/page.h`.

use std::fmt;

/// The mark of one rank, or the union of the faults of several ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mark(u8);

impl Mark {
    /// Returns the mark that a rank has written to the page.
    #[must_use]
    pub fn from_byte(byte: u8) -> Self {
        Self(byte)
    }

    /// Returns whether the rank has written a mark.
    #[must_use]
    pub fn is_here(self) -> bool {
        self.0 & HERE != 0
    }

    /// Returns the faults alone.
    #[must_use]
    pub fn faults(self) -> Self {
        Self(self.0 & !HERE)
    }

    /// Returns the faults with which the job was not done, so that its time means nothing.
    #[must_use]
    pub fn spoils(self) -> Self {
        Self(self.0 & (WRONG_VALUE | PROTOCOL | WRONG_SIZE))
    }

    /// Returns whether the mark has no fault.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self.faults().0 == 0
    }

    /// Returns the faults of either mark.
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
    (0x02, "descriptors besides 0 to 2, PMI_FD and that of the topology are open"),
    (0x04, "ranks are not leaders of process groups of their own"),
    (0x08, "the limit of open files is not that of the shell"),
    (WRONG_VALUE, "a get returned a value other than the one put"),
    (PROTOCOL, "the PMI connection broke or a reply was out of order"),
    (WRONG_SIZE, "PMI_SIZE is not the requested number of ranks"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_mark_differs_from_one_without_faults() {
        assert!(!Mark::from_byte(0).is_here());
        assert!(Mark::from_byte(HERE).is_here() && Mark::from_byte(HERE).is_clean());
    }

    #[test]
    fn faults_are_displayed_as_text() {
        let mark = Mark::from_byte(HERE | 0x04 | WRONG_VALUE);
        assert_eq!(
            mark.faults().to_string(),
            "ranks are not leaders of process groups of their own; a get returned a value other than the one put"
        );
        assert_eq!(mark.spoils(), Mark(WRONG_VALUE));
    }
}
