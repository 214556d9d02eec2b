//! All that a section needs: what was typed, the machine, the launchers, the programs, and where results go.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::cargo::{self, BuildError};
use crate::family;
use crate::launcher::{Kind, Launcher};
use crate::machine::{self, Machine};
use crate::options::Options;
use crate::programs::{CompileError, Programs};
use crate::report::Report;
use crate::scratch::Scratch;

/// The bench once it stands.
#[derive(Debug)]
pub struct Bench {
    /// What was typed.
    pub options: Options,
    /// Where it runs.
    pub machine: Machine,
    /// The target directory.
    pub target: PathBuf,
    /// The compiled programs.
    pub programs: Programs,
    /// The floor, scela-run, then the rivals: the order of the turns.
    pub launchers: Vec<Launcher>,
    /// Where results go.
    pub report: Report,
    /// Removed with the bench.
    pub scratch: Scratch,
}

/// Why nothing can be measured.
#[derive(Debug, Error)]
pub enum BenchError {
    /// The programs cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// There is no scela-run.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The kernel refuses what the bench arranges before it starts.
    #[error("cannot prepare this process: {0}")]
    Kernel(#[from] nix::Error),
    /// The scratch directories cannot be made.
    #[error("cannot make scratch directories in the target directory and /dev/shm")]
    Scratch(#[source] io::Error),
    /// The file of the single runs cannot be made.
    #[error("cannot write {}", path.display())]
    Csv {
        /// What was typed.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// What was measured cannot be printed.
    #[error("cannot print the results")]
    Print(#[from] io::Error),
}

impl Bench {
    /// Finds and builds everything, and prints what the tables are about.
    ///
    /// # Errors
    /// Where something that every section needs is missing.
    pub fn set_up(options: Options) -> Result<Self, BenchError> {
        let target = cargo::target_directory()?;
        let scratch = Scratch::create(&target).map_err(BenchError::Scratch)?;
        machine::clean_up_on_signals(scratch.paths())?;
        let programs = Programs::compile(scratch.programs())?;
        let unwanted = |is_called: &dyn Fn(&str) -> bool| options.without.iter().any(|name| is_called(name));

        // The floor stays: every ratio stands on it.
        let mut launchers = vec![Launcher::floor(programs.floor.clone())];
        if !unwanted(&|name| Kind::Scela.is_called(name)) {
            launchers.push(Launcher::scela(cargo::scela_run(&target)?));
        }
        let (rivals, absent) = Launcher::rivals(&target);
        launchers.extend(rivals.into_iter().filter(|rival| !unwanted(&|name| rival.is_called(name))));

        // Asking a launcher for its version may have left something, too.
        let _ended = family::settle();

        let machine = Machine::ask()?;
        let mut report = Report::open(options.csv.as_deref())?;
        report.introduce(&machine, &launchers, &absent, options.runs)?;
        Ok(Self { options, machine, target, programs, launchers, report, scratch })
    }

    /// The numbers of ranks: those typed, else the section's own.
    #[must_use]
    pub fn sizes(&self, own: &[u32]) -> Vec<u32> {
        self.options.np.clone().unwrap_or_else(|| own.to_vec())
    }
}
