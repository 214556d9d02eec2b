//! Comma-separated values.

use std::fmt::{Display, Write};

/// A header line and rows.
#[derive(Debug)]
pub struct Csv {
    text: String,
    columns: usize,
}

impl Csv {
    /// Creates a table without rows; `heads` is its header line.
    #[must_use]
    pub fn new(heads: &str) -> Self {
        Self { text: format!("{heads}\n"), columns: heads.split(',').count() }
    }

    /// Adds a row. Policy names and numbers need no quotes.
    pub fn row(&mut self, cells: &[&dyn Display]) {
        debug_assert_eq!(cells.len(), self.columns, "a row must have a cell for each column");
        for (index, cell) in cells.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            let _ = write!(self.text, "{comma}{cell}");
        }
        self.text.push('\n');
    }

    /// Returns the whole text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_follow_the_header() {
        let mut csv = Csv::new("policy,np,s");
        csv.row(&[&"hcs", &64, &0.25]);
        assert_eq!(csv.text(), "policy,np,s\nhcs,64,0.25\n");
    }
}
