//! Output: tables to stdout, single runs to a file, progress to a terminal.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use crate::error::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::machine::Machine;
use crate::suite::Section;
use crate::table::Table;

/// All output of the benches.
#[derive(Debug)]
pub struct Report {
    csv: Option<BufWriter<File>>,
    shows_progress: bool,
}

impl Report {
    /// Opens the CSV file, if one is requested.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn open(csv: Option<&Path>) -> Result<Self, BenchError> {
        let csv = csv.map(|path| {
            let failure = format!("cannot write {}", path.display());
            let mut file = BufWriter::new(File::create(path).map_err(BenchError::because(failure))?);
            writeln!(file, "section,np,launcher,round,quantity,value")?;
            Ok::<_, BenchError>(file)
        });
        Ok(Self { csv: csv.transpose()?, shows_progress: io::stderr().is_terminal() })
    }

    /// Prints the machine, the launchers and the method, which all tables share.
    ///
    /// # Errors
    /// If stdout cannot be written.
    pub fn introduce(
        &mut self,
        machine: &Machine,
        launchers: &[Launcher],
        absent: &[String],
        runs: u32,
    ) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "machine: {machine}")?;
        for launcher in launchers {
            let what = match (launcher.kind, launcher.library()) {
                (Kind::Floor, _) => format!("posix_spawn from {} processes, without PMI", machine.cores),
                (Kind::Server, _) => {
                    format!("one process that serves PMI, and {} that call posix_spawn", machine.cores)
                }
                (_, Some(library)) => format!("{} with {}", launcher.path.display(), library.display()),
                (_, None) if launcher.service.description.is_empty() => launcher.path.display().to_string(),
                (_, None) => format!("{}, {}", launcher.path.display(), launcher.service.description),
            };
            writeln!(out, "{}: {what}", launcher.label())?;
        }
        for why in absent {
            writeln!(out, "{why}")?;
        }
        writeln!(
            out,
            "medians of {runs} rounds; launchers take turns; a ratio is the median of the ratios within rounds"
        )
    }

    /// Prints a section: its title, its table, and notes about single launchers.
    ///
    /// # Errors
    /// If stdout or the file cannot be written.
    pub fn section(&mut self, title: &str, table: &Table, notes: &[String]) -> io::Result<()> {
        self.clear_progress();
        let mut out = io::stdout().lock();
        write!(out, "\n{}", section_text(title, table, notes))?;
        out.flush()?;
        self.csv.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// Writes a single run to the CSV file, and shows progress on a terminal. Rounds count from 1. The result is the
    /// measured quantities with their names, or why the run does not count.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record(
        &mut self,
        section: Section,
        np: u32,
        launcher: &Launcher,
        round: u32,
        result: Result<Vec<(&'static str, f64)>, String>,
    ) -> io::Result<()> {
        self.clear_progress();
        if self.shows_progress {
            write!(io::stderr(), "{section}: np {np}, round {round}, {launcher} done")?;
        }
        let Some(csv) = &mut self.csv else {
            return Ok(());
        };
        let start = format!("{section},{np},{launcher},{round}");
        match result {
            Ok(values) => values.iter().try_for_each(|(name, value)| writeln!(csv, "{start},{name},{value:.9}")),
            Err(why) => writeln!(csv, "{start},void,\"{}\"", why.replace('"', "'").replace('\n', " ")),
        }
    }

    fn clear_progress(&self) {
        if self.shows_progress {
            // A closed terminal needs no clearing.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// Formats a section as plain text.
#[must_use]
pub fn section_text(title: &str, table: &Table, notes: &[String]) -> String {
    let notes: String = notes.iter().map(|note| format!("  {note}\n")).collect();
    format!("{title}\n\n{table}\n{notes}")
}

/// Prints why the bench cannot run.
pub fn complain(error: &BenchError) {
    // If stderr cannot be written either, the exit code remains.
    let _ = writeln!(io::stderr(), "error: {error}");
}
