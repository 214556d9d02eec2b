//! All that a section needs: what was typed, the machine, the launchers, the programs, and where results go.

use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::cargo::{self, BuildError};
use crate::family;
use crate::launcher::{Client, Kind, LIBRARY, Launcher};
use crate::machine::{self, Machine};
use crate::options::Options;
use crate::policy::{Bound, Caching, Policy};
use crate::programs::{CompileError, Programs};
use crate::report::Report;
use crate::results::ResultsError;
use crate::scratch::Scratch;
use crate::suite::Suite;

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
    /// There is no scela-run, or no library.
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
    /// Results cannot be kept.
    #[error(transparent)]
    Results(#[from] ResultsError),
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
        let is_wanted = |launcher: &Launcher| !options.without.iter().any(|name| launcher.is_called(name));
        let own = own(&options, &target, &scratch)?;
        let programs = Programs::compile(scratch.programs(), own.iter().find_map(Launcher::library))?;

        let (rivals, absent) = Launcher::rivals(&target, options.suite);
        let mut launchers: Vec<Launcher> = own.into_iter().chain(rivals).filter(is_wanted).collect();
        if options.suite == Suite::Launch {
            // Whatever is left out: every ratio stands on it.
            launchers.insert(0, Launcher::floor(programs.floor.clone()));
        }

        // Asking a launcher for its version may have left something, too.
        let _ended = family::settle();

        let machine = Machine::ask()?;
        let mut report = Report::open(options.csv.as_deref())?;
        report.introduce(&machine, &launchers, &absent, options.runs)?;
        Ok(Self { options, machine, target, programs, launchers, report, scratch })
    }

    /// The program by which a launcher's ranks speak PMI.
    #[must_use]
    pub fn pmi_program(&self, launcher: &Launcher) -> &Path {
        match (&launcher.client, &self.programs.library) {
            (Client::Library(_), Some(program)) => program,
            (Client::Library(_), None) | (Client::Wire, _) => &self.programs.pmi,
        }
    }

    /// How many bytes the values of entries have.
    #[must_use]
    pub fn value_bytes(&self, launcher: &Launcher) -> RangeInclusive<u32> {
        let (least, most) = self.options.suite.value_bytes().into_inner();
        least..=launcher.value_bytes_max().map_or(most, |max| max.min(most))
    }

    /// The numbers of ranks: those typed, else the section's own.
    #[must_use]
    pub fn sizes(&self, own: &[u32]) -> Vec<u32> {
        self.options.np.clone().unwrap_or_else(|| own.to_vec())
    }
}

/// scela-run, once for each client or policy, as far as wanted: nothing is built that is not.
fn own(options: &Options, target: &Path, scratch: &Scratch) -> Result<Vec<Launcher>, BuildError> {
    let is_unwanted = |is_called: &dyn Fn(&str) -> bool| options.without.iter().any(|name| is_called(name));
    if is_unwanted(&|name| Kind::Scela.is_called(name)) {
        return Ok(Vec::new());
    }
    let path = cargo::SCELA_RUN.find(target)?;
    let caching = |policy| Caching { policy, fanout: FANOUT, stats: scratch.programs().join("stats.json") };
    let mut own: Vec<Launcher> = match options.suite {
        Suite::Launch | Suite::Pmi => vec![Launcher::scela(path.clone(), Client::Wire, None)],
        Suite::Caches => {
            POLICIES.map(|policy| Launcher::scela(path.clone(), Client::Wire, Some(caching(policy)))).into()
        }
    };
    if options.suite != Suite::Launch && !is_unwanted(&|name| name.eq_ignore_ascii_case(LIBRARY)) {
        let client = Client::Library(cargo::LIBPMI.find(target)?);
        // Under the other policies the library asks its agent as any other client does.
        let caching = (options.suite == Suite::Caches).then(|| caching(Policy::Hcmab));
        own.push(Launcher::scela(path, client, caching));
    }
    Ok(own)
}

/// What each section picks from: a bound that lets nothing go, one that does, and one for each rank.
const POLICIES: [Policy; 6] = [
    Policy::Hcs,
    Policy::Hcma,
    Policy::Hcmab,
    Policy::HcmabLru(Bound::Own),
    Policy::HcmabLru(Bound::RanksBy(8)),
    Policy::HcmabLru(Bound::Ranks),
];
/// As scela-run takes it where it is not asked for another.
const FANOUT: u32 = 32;
