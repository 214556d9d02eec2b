//! [`Rank`]: the number of one process in its namespace.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of one process in its namespace, from 0 to the namespace's size minus one.
///
/// Displays as the bare number (`3`).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_displays_as_a_number_with_padding() {
        assert_eq!(Rank(3).to_string(), "3");
        assert_eq!(format!("{:>4}", Rank(12)), "  12");
    }
}
