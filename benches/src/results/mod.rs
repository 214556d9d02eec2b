//! What is kept of a suite: a page with its tables, the numbers as comma-separated values, and plots of them.
//!
//! Of the page, only what stands between a section's two markers is written by the bench; the rest is written by hand.

pub mod csv;
mod document;
pub mod plot;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::bench::Bench;
use crate::report;
use crate::sections::Section;
use crate::suite::Suite;
use crate::table::Table;
use csv::Csv;
use plot::{Plot, PlotError};

/// Why results cannot be kept.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// A file cannot be read or written.
    #[error("cannot write {}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The page has no place for a section's tables.
    #[error("{} has no line {marker}", path.display())]
    NoMarker {
        /// The page.
        path: PathBuf,
        /// What it should have.
        marker: String,
    },
    /// A plot cannot be drawn.
    #[error("cannot draw {name}")]
    Plot {
        /// Which plot.
        name: String,
        /// What went wrong.
        source: Box<PlotError>,
    },
}

/// What one section has found so far.
#[derive(Debug)]
pub struct Findings {
    section: Section,
    tables: Vec<String>,
    plots: Vec<(&'static str, Plot)>,
    numbers: Vec<(&'static str, Csv)>,
}

impl Findings {
    /// Nothing yet.
    #[must_use]
    pub fn new(section: Section) -> Self {
        Self { section, tables: Vec::new(), plots: Vec::new(), numbers: Vec::new() }
    }

    /// Prints a table, and keeps it.
    ///
    /// # Errors
    /// Where stdout or the file of single runs does not take it.
    pub fn table(&mut self, bench: &mut Bench, title: &str, table: &Table, notes: &[String]) -> io::Result<()> {
        bench.report.section(title, table, notes)?;
        self.tables.push(report::section_text(title, table, notes).trim_end().to_owned());
        Ok(())
    }

    /// Keeps a plot; `what` it is of is a part of its name.
    pub fn plot(&mut self, what: &'static str, plot: Plot) {
        self.plots.push((what, plot));
    }

    /// Keeps numbers; `what` they are is a part of their name.
    pub fn numbers(&mut self, what: &'static str, numbers: Csv) {
        self.numbers.push((what, numbers));
    }

    /// Writes all that was kept, where the bench is asked to.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn write(self, bench: &Bench) -> Result<(), ResultsError> {
        let conditions = format!("Machine: {}. Medians of {}.", bench.machine, bench.options.runs);
        match &bench.options.write {
            Some(directory) => self.write_to(directory, bench.options.suite, &conditions),
            None => Ok(()),
        }
    }

    fn write_to(self, directory: &Path, suite: Suite, conditions: &str) -> Result<(), ResultsError> {
        let suite_name = suite.name();
        let stem = stem(suite, self.section);
        let mut block = format!("{conditions}\n\n```text\n{}\n```\n", self.tables.join("\n\n"));
        for (what, plot) in self.plots {
            let name = format!("{stem}-{what}.svg");
            match plot.draw() {
                Ok(drawn) => write(&directory.join(&name), &drawn)?,
                Err(source) => return Err(ResultsError::Plot { name, source: Box::new(source) }),
            }
            block += &format!("\n![{}]({name})\n", plot.title);
        }
        for (what, numbers) in self.numbers {
            let name = numbers_name(suite, self.section, what);
            write(&directory.join(&name), numbers.text())?;
            block += &format!("\nNumbers: [{name}]({name})\n");
        }
        let page = directory.join(suite_name).with_extension("md");
        let text = match fs::read_to_string(&page) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => document::blank(suite),
            Err(source) => return Err(ResultsError::File { path: page, source }),
        };
        match document::filled(&text, self.section, &block) {
            Ok(text) => write(&page, &text),
            Err(marker) => Err(ResultsError::NoMarker { path: page, marker }),
        }
    }
}

/// How the names of a section's files begin.
fn stem(suite: Suite, section: Section) -> String {
    format!("{}-{}", suite.name(), section.to_string().replace(':', "-"))
}

/// The name of a file of numbers: `what` they are of a section.
#[must_use]
pub fn numbers_name(suite: Suite, section: Section, what: &str) -> String {
    format!("{}-{what}.csv", stem(suite, section))
}

fn write(path: &Path, text: &str) -> Result<(), ResultsError> {
    let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
    directory
        .and_then(|()| fs::write(path, text))
        .map_err(|source| ResultsError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::new(Section::CachedMemory);
        findings.tables.extend(["first".to_owned(), "second".to_owned()]);
        findings.plot("held", Plot { title: "Memory".to_owned(), x: "n", y: "kB", panels: Vec::new() });
        findings.numbers("runs", Csv::new(&["n", "kB"]));
        findings
    }

    #[test]
    fn the_page_names_what_lies_beside_it() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("results");
        for _ in 0..2 {
            findings().write_to(&directory, Suite::Caches, "Here and now.").unwrap();
        }
        let page = fs::read_to_string(directory.join("caches.md")).unwrap();
        let block = "Here and now.\n\n```text\nfirst\n\nsecond\n```\n\n![Memory](caches-memory-held.svg)\n\n\
                     Numbers: [caches-memory-runs.csv](caches-memory-runs.csv)\n";
        assert_eq!(page.matches(block).count(), 1);
        assert!(directory.join("caches-memory-held.svg").exists());
        assert_eq!(fs::read_to_string(directory.join("caches-memory-runs.csv")).unwrap(), "n,kB\n");
    }

    #[test]
    fn a_page_by_hand_alone_is_not_touched() {
        let scratch = tempfile::tempdir().unwrap();
        let page = scratch.path().join("caches.md");
        fs::write(&page, "by hand").unwrap();
        let error = findings().write_to(scratch.path(), Suite::Caches, "").unwrap_err().to_string();
        assert!(error.ends_with("caches.md has no line <!-- memory: written by the bench -->"), "{error}");
        assert_eq!(fs::read_to_string(page).unwrap(), "by hand");
    }
}
