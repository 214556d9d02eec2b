//! The files of a suite's results: a page with tables, the numbers as comma-separated values, and plots.
//!
//! The bench writes only between the two markers of a section on the page; the rest of the page is
//! written by hand.

pub mod bars;
pub mod csv;
pub(crate) mod document;
pub mod plot;
pub mod timeline;

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::Path;

use crate::bench::Bench;
use crate::error::BenchError;
use crate::report;
use crate::suite::{Section, Suite};
use crate::table::Table;
use csv::Csv;
use plot::Plot;

/// The results of one section so far.
#[derive(Debug)]
pub struct Findings {
    section: Section,
    tables: Vec<String>,
    plots: Vec<(&'static str, Plot)>,
    numbers: Vec<(&'static str, Csv)>,
    /// SVG texts with their titles.
    drawings: Vec<(&'static str, String, String)>,
}

impl Findings {
    /// Creates an empty collection.
    #[must_use]
    pub fn new(section: Section) -> Self {
        Self { section, tables: Vec::new(), plots: Vec::new(), numbers: Vec::new(), drawings: Vec::new() }
    }

    /// Prints and stores a table.
    ///
    /// # Errors
    /// If stdout or the CSV file of single runs cannot be written.
    pub fn table(&mut self, bench: &mut Bench, title: &str, table: &Table, notes: &[String]) -> io::Result<()> {
        bench.report.section(title, table, notes)?;
        self.tables.push(report::section_text(title, table, notes).trim_end().to_owned());
        Ok(())
    }

    /// Stores a plot; `what` becomes part of its file name.
    pub fn plot(&mut self, what: &'static str, plot: Plot) {
        self.plots.push((what, plot));
    }

    /// Stores a picture; `what` becomes part of its file name.
    pub fn drawing(&mut self, what: &'static str, title: String, svg: String) {
        self.drawings.push((what, title, svg));
    }

    /// Stores numbers; `what` becomes part of their file name.
    pub fn numbers(&mut self, what: &'static str, numbers: Csv) {
        self.numbers.push((what, numbers));
    }

    /// Writes all results if `--write` is given.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(self, bench: &Bench) -> Result<(), BenchError> {
        let conditions = format!("Machine: {}. Medians of {} rounds.", bench.machine, bench.options.runs);
        match &bench.options.write {
            Some(directory) => self.write_to(directory, bench.options.suite, &conditions),
            None => Ok(()),
        }
    }

    fn write_to(self, directory: &Path, suite: Suite, conditions: &str) -> Result<(), BenchError> {
        let suite_name = suite.name();
        let stem = stem(suite, self.section);
        let mut block = format!("{conditions}\n\n```text\n{}\n```\n", self.tables.join("\n\n"));
        for (what, plot) in self.plots {
            let name = format!("{stem}-{what}.svg");
            let drawn = plot.draw().map_err(BenchError::because(format!("cannot draw {name}")))?;
            write(&directory.join(&name), &drawn)?;
            block += &format!("\n![{}]({name})\n", plot.title);
        }
        for (what, title, svg) in self.drawings {
            let name = format!("{stem}-{what}.svg");
            write(&directory.join(&name), &svg)?;
            block += &format!("\n![{title}]({name})\n");
        }
        for (what, numbers) in self.numbers {
            let name = numbers_name(suite, self.section, what);
            write(&directory.join(&name), numbers.text())?;
            block += &format!("\nNumbers: [{name}]({name})\n");
        }
        let page = directory.join(suite_name).with_extension("md");
        replace(&page, || document::blank(suite), self.section, &block)
    }
}

/// Writes `block` between the markers of `place` on a page. A page that does not exist begins as `blank`.
pub(crate) fn replace(
    page: &Path,
    blank: impl FnOnce() -> String,
    place: impl Display + Copy,
    block: &str,
) -> Result<(), BenchError> {
    let text = match fs::read_to_string(page) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => blank(),
        Err(error) => return Err(cannot_write(page)(error)),
    };
    let no_marker = |marker| BenchError::new(format!("{} has no line {marker}", page.display()));
    write(page, &document::filled(&text, place, block).map_err(no_marker)?)
}

/// Writes a table between its markers on a page that was written by hand.
///
/// # Errors
/// If the page cannot be written or has no markers.
pub fn replace_table(page: &Path, place: &str, block: &str) -> Result<(), BenchError> {
    replace(page, || document::blank_overview(place), place, block)
}

/// Returns the first part of the names of a section's files.
fn stem(suite: Suite, section: Section) -> String {
    format!("{}-{}", suite.name(), section.to_string().replace(':', "-"))
}

/// Returns the name of a section's file of numbers.
#[must_use]
pub fn numbers_name(suite: Suite, section: Section, what: &str) -> String {
    format!("{}-{what}.csv", stem(suite, section))
}

fn write(path: &Path, text: &str) -> Result<(), BenchError> {
    let directory = path.parent().map_or(Ok(()), fs::create_dir_all);
    directory.and_then(|()| fs::write(path, text)).map_err(cannot_write(path))
}

fn cannot_write(path: &Path) -> impl FnOnce(io::Error) -> BenchError {
    BenchError::because(format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Findings {
        let mut findings = Findings::new(Section::CachedMemory);
        findings.tables.extend(["first".to_owned(), "second".to_owned()]);
        findings.plot("held", Plot { title: "Memory".to_owned(), x: "n", y: "kB", panels: Vec::new() });
        findings.numbers("runs", Csv::new("n,kB"));
        findings
    }

    #[test]
    fn the_page_links_to_the_other_files() {
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
    fn a_page_without_markers_is_not_changed() {
        let scratch = tempfile::tempdir().unwrap();
        let page = scratch.path().join("caches.md");
        fs::write(&page, "by hand").unwrap();
        let error = findings().write_to(scratch.path(), Suite::Caches, "").unwrap_err().to_string();
        assert!(error.ends_with("caches.md has no line <!-- memory: written by the bench -->"), "{error}");
        assert_eq!(fs::read_to_string(page).unwrap(), "by hand");
    }
}
