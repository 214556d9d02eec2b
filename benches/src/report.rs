//! Where results go: tables to stdout, single runs to a file, progress to a terminal.

use std::error::Error;
use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::Path;

use crate::bench::BenchError;
use crate::launcher::{Kind, Launcher};
use crate::machine::Machine;
use crate::sections::Section;
use crate::table::Table;

/// The one place that prints.
#[derive(Debug)]
pub struct Report {
    csv: Option<BufWriter<File>>,
    shows_progress: bool,
}

/// One single run, for the file.
#[derive(Debug)]
pub struct Record<'a> {
    /// What was asked.
    pub section: Section,
    /// How many ranks.
    pub np: u32,
    /// Who started them.
    pub launcher: &'a Launcher,
    /// Which round, from 1.
    pub round: u32,
    /// Names and values of what was measured, or why it does not count.
    pub result: Result<Vec<(&'static str, f64)>, String>,
}

impl Report {
    /// Opens the file of the single runs, where one is asked for.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn open(csv: Option<&Path>) -> Result<Self, BenchError> {
        let csv = csv.map(|path| {
            let file = File::create(path).map_err(|source| BenchError::Csv { path: path.to_owned(), source })?;
            let mut file = BufWriter::new(file);
            writeln!(file, "section,np,launcher,round,quantity,value")?;
            Ok::<_, BenchError>(file)
        });
        Ok(Self { csv: csv.transpose()?, shows_progress: io::stderr().is_terminal() })
    }

    /// Prints what all tables have in common.
    ///
    /// # Errors
    /// Where stdout does not take it.
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
                (Kind::Floor, _) => format!("posix_spawn from {} processes, nothing served", machine.cores),
                (_, Some(library)) => format!("{} with {}", launcher.path.display(), library.display()),
                (Kind::Scela | Kind::Hydra | Kind::Srun | Kind::OpenMpi, None) => launcher.path.display().to_string(),
            };
            writeln!(out, "{}: {what}", launcher.label())?;
        }
        for why in absent {
            writeln!(out, "{why}")?;
        }
        writeln!(out, "medians of {runs}; launchers take turns, a ratio is the median of the ratios within rounds")
    }

    /// Prints a section: its title, its table, and what there is to say about single launchers.
    ///
    /// # Errors
    /// Where stdout or the file does not take it.
    pub fn section(&mut self, title: &str, table: &Table, notes: &[String]) -> io::Result<()> {
        self.clear_progress();
        let mut out = io::stdout().lock();
        write!(out, "\n{}", section_text(title, table, notes))?;
        out.flush()?;
        self.csv.as_mut().map_or(Ok(()), BufWriter::flush)
    }

    /// Keeps a single run, and shows on a terminal how far things are.
    ///
    /// # Errors
    /// Where the file does not take it.
    pub fn record(&mut self, record: &Record<'_>) -> io::Result<()> {
        let Record { section, np, launcher, round, result } = record;
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
            // A terminal that is gone needs no clearing.
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// A section in plain text.
#[must_use]
pub fn section_text(title: &str, table: &Table, notes: &[String]) -> String {
    let notes: String = notes.iter().map(|note| format!("  {note}\n")).collect();
    format!("{title}\n\n{table}\n{notes}")
}

/// Prints why nothing can be measured, with all reasons behind it.
pub fn complain(error: &BenchError) {
    let mut chain = error.to_string();
    let mut source = error.source();
    while let Some(reason) = source {
        chain += &format!(": {reason}");
        source = reason.source();
    }
    // Where stderr is gone too, the exit code is all that can be said.
    let _ = writeln!(io::stderr(), "error: {chain}");
}
