//! Tables in plain text: right-aligned cells, and columns in groups with titles.

use std::fmt;

/// Rows of text under groups of columns.
#[derive(Clone, Debug, Default)]
pub struct Table {
    groups: Vec<Group>,
    rows: Vec<Vec<String>>,
}

#[derive(Clone, Debug)]
struct Group {
    title: String,
    heads: Vec<String>,
}

impl Table {
    /// Adds a group of columns on the right.
    pub fn group(&mut self, title: impl Into<String>, heads: &[&str]) {
        let heads = heads.iter().map(|head| (*head).to_owned()).collect();
        self.groups.push(Group { title: title.into(), heads });
    }

    /// Adds a row, which has as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Returns the width of each column; the last column of a group is widened for the title.
    fn widths(&self) -> Vec<usize> {
        let heads: Vec<&String> = self.groups.iter().flat_map(|group| &group.heads).collect();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain([heads[column]]).map(|text| text.chars().count()).max().unwrap_or(0)
        };
        let mut widths: Vec<usize> = (0..heads.len()).map(width).collect();
        let mut end = 0;
        for group in &self.groups {
            let columns = end..end + group.heads.len();
            end = columns.end;
            let taken = span(&widths[columns]);
            widths[end - 1] += group.title.chars().count().saturating_sub(taken);
        }
        widths
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let widths = self.widths();
        let mut titles = String::new();
        let mut heads = String::new();
        let mut column = 0;
        for group in &self.groups {
            let columns = &widths[column..column + group.heads.len()];
            titles += &format!("{GROUP_GAP}{:<width$}", group.title, width = span(columns));
            for (index, (head, width)) in group.heads.iter().zip(columns).enumerate() {
                heads += &format!("{}{head:>width$}", gap(index));
            }
            column += group.heads.len();
        }
        if self.groups.iter().any(|group| !group.title.is_empty()) {
            writeln!(f, "{}", titles.trim_end())?;
        }
        writeln!(f, "{heads}")?;
        for row in &self.rows {
            let mut cells = row.iter().zip(&widths);
            let mut line = String::new();
            for group in &self.groups {
                for (index, (cell, width)) in cells.by_ref().take(group.heads.len()).enumerate() {
                    line += &format!("{}{cell:>width$}", gap(index));
                }
            }
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Returns the width of a group.
fn span(columns: &[usize]) -> usize {
    columns.iter().sum::<usize>() + COLUMN_GAP.len() * (columns.len() - 1)
}

fn gap(index_in_group: usize) -> &'static str {
    if index_in_group == 0 { GROUP_GAP } else { COLUMN_GAP }
}

const GROUP_GAP: &str = "    ";
const COLUMN_GAP: &str = "  ";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_right_aligned_and_titles_left_aligned() {
        let mut table = Table::default();
        table.group("", &["np"]);
        table.group("floor", &["s"]);
        table.group("hydra 4.0.2", &["s", "x"]);
        table.row(["64", "0.021", "0.055", "2.6"].map(str::to_owned).to_vec());
        table.row(["1024", "0.350", "hung", "-"].map(str::to_owned).to_vec());
        let expected = [
            "            floor    hydra 4.0.2",
            "      np        s        s     x",
            "      64    0.021    0.055   2.6",
            "    1024    0.350     hung     -",
            "",
        ];
        assert_eq!(table.to_string(), expected.join("\n"));
    }
}
