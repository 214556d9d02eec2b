//! Comma-separated values.

use std::fmt::{Display, Write};

/// Rows under one line of heads.
#[derive(Debug)]
pub struct Csv {
    text: String,
    columns: usize,
}

impl Csv {
    /// No rows yet.
    #[must_use]
    pub fn new(heads: &[&str]) -> Self {
        Self { text: heads.join(",") + "\n", columns: heads.len() }
    }

    /// Adds a row. Names of policies and numbers need no quotes.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        debug_assert_eq!(cells.len(), self.columns, "a row has a cell for each head");
        for (index, cell) in cells.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(self.text, "{comma}{cell}");
        }
        self.text.push('\n');
    }

    /// All of it.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_under_their_heads() {
        let mut csv = Csv::new(&["policy", "np", "s"]);
        csv.row(&[&"hcs", &64, &0.25]);
        assert_eq!(csv.text(), "policy,np,s\nhcs,64,0.25\n");
    }
}
