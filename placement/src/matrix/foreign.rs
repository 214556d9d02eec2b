//! Matrices of others: Open MPI's `pml_monitoring`, and plain numbers.

use std::io::BufRead;

use super::lines::{Lines, whole};
use super::{Collector, Matrix, MatrixError, Reason, Traffic};
use crate::limits::MATRIX_RANKS_MAX;

/// Whether the first line of a file is one of Open MPI's.
pub(super) fn is_monitoring(line: &str) -> bool {
    line.starts_with("# POINT TO POINT") || line.starts_with("E\t") || line.starts_with("I\t")
}

/// Reads the lines that count messages. Open MPI 4 and 5 write the same form (`mca_common_monitoring_output`); the
/// sections `D`, `O2A`, `A2O` and `A2A` count collectives a second time.
pub(super) fn read_monitoring(mut lines: Lines<impl BufRead>, into: &mut Collector) -> Result<(), MatrixError> {
    while let Some(line) = lines.next()? {
        let mut words = line.split_ascii_whitespace();
        let is_read = match words.next() {
            Some("E" | "I" | "S") => false,
            Some("R") => true,
            _ => continue,
        };
        let mut number = || words.next().and_then(whole);
        let [from, to, bytes] = [number(), number(), number()];
        let unit = words.next();
        let messages = words.next().and_then(whole);
        let pair = (from, to, bytes, messages);
        let added = match pair {
            (Some(from), Some(to), Some(bytes), Some(messages)) if unit == Some("bytes") => {
                let rank = |rank: u64| u32::try_from(rank).map_err(|_| Reason::ManyRanks);
                // A read moves bytes to the rank that asked.
                let (from, to) = if is_read { (to, from) } else { (from, to) };
                rank(from).and_then(|from| into.add(from, rank(to)?, Traffic { bytes, messages }))
            }
            _ => Err(Reason::Monitoring),
        };
        added.map_err(|reason| lines.error(reason))?;
    }
    Ok(())
}

/// Reads a plain matrix. Only after its end is it known whether a matrix with lines of 3 or 4 numbers is full, so the
/// first lines are kept until there are too many for that.
pub(super) fn read_plain(mut lines: Lines<impl BufRead>) -> Result<Matrix, MatrixError> {
    let mut collector = Collector::default();
    let mut columns = 0;
    let mut rows = 0;
    let mut kept: Vec<(u64, Vec<u64>)> = Vec::new();
    while let Some(line) = lines.next()? {
        if line.starts_with(['#', '%']) || line.trim().is_empty() {
            continue;
        }
        let words = line.split([' ', '\t', ',']).filter(|word| !word.is_empty());
        let numbers: Option<Vec<u64>> = words.map(whole).collect();
        let number = lines.number();
        let refuse = |reason| MatrixError::Line { line: number, reason };
        let numbers = numbers.ok_or_else(|| refuse(Reason::Number))?;
        if rows == 0 {
            columns = numbers.len();
        }
        if numbers.len() != columns {
            return Err(refuse(Reason::Columns { found: numbers.len(), expected: columns }));
        }
        if columns > MATRIX_RANKS_MAX as usize {
            return Err(refuse(Reason::ManyRanks));
        }
        if !(3..=4).contains(&columns) {
            if rows >= columns {
                return Err(refuse(Reason::Square { rows: rows + 1, columns }));
            }
            add_row(&mut collector, rows, &numbers).map_err(refuse)?;
        } else if rows < columns {
            kept.push((number, numbers));
        } else {
            add_kept(&mut collector, &mut kept)?;
            add_pair(&mut collector, &numbers).map_err(refuse)?;
        }
        rows += 1;
    }
    if rows == 0 {
        return Err(MatrixError::Empty);
    }
    if kept.len() == columns {
        // As pairs, one of the lines would have no bytes or no messages.
        if kept.iter().enumerate().any(|(row, (_, numbers))| numbers[row] != 0) {
            return Err(lines.error(Reason::Ambiguous(columns)));
        }
        for (row, (line, numbers)) in kept.iter().enumerate() {
            add_row(&mut collector, row, numbers).map_err(|reason| MatrixError::Line { line: *line, reason })?;
        }
    } else if (3..=4).contains(&columns) {
        add_kept(&mut collector, &mut kept)?;
    } else if rows != columns {
        return Err(lines.error(Reason::Square { rows, columns }));
    }
    Ok(collector.finish())
}

/// Adds a row of a full matrix.
fn add_row(collector: &mut Collector, row: usize, numbers: &[u64]) -> Result<(), Reason> {
    let rank = |rank: usize| u32::try_from(rank).map_err(|_| Reason::ManyRanks);
    for (column, &bytes) in numbers.iter().enumerate() {
        let messages = u64::from(bytes > 0);
        collector.add(rank(row)?, rank(column)?, Traffic { bytes, messages })?;
    }
    Ok(())
}

/// Adds a line `FROM TO BYTES` or `FROM TO BYTES MESSAGES`.
fn add_pair(collector: &mut Collector, numbers: &[u64]) -> Result<(), Reason> {
    let rank = |rank: u64| u32::try_from(rank).map_err(|_| Reason::ManyRanks);
    let messages = numbers.get(3).copied().unwrap_or(u64::from(numbers[2] > 0));
    collector.add(rank(numbers[0])?, rank(numbers[1])?, Traffic { bytes: numbers[2], messages })
}

fn add_kept(collector: &mut Collector, kept: &mut Vec<(u64, Vec<u64>)>) -> Result<(), MatrixError> {
    for (line, numbers) in kept.drain(..) {
        add_pair(collector, &numbers).map_err(|reason| MatrixError::Line { line, reason })?;
    }
    Ok(())
}
