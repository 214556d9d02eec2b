//! The environment of all sections: options, machine, launchers, programs, and the destination of results.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::cargo;
use crate::error::BenchError;
use crate::family;
use crate::launcher::{Client, Kind, LIBRARY, Launcher};
use crate::machine::{self, Machine};
use crate::options::Options;
use crate::overview::Overview;
use crate::policy::{Bound, Caching, Policy};
use crate::programs::Programs;
use crate::report::Report;
use crate::scratch::Scratch;
use crate::services::Services;
use crate::suite::Suite;

/// A bench that is ready to run.
#[derive(Debug)]
pub struct Bench {
    /// The parsed command line.
    pub options: Options,
    /// The machine that it runs on.
    pub machine: Machine,
    /// The target directory.
    pub target: PathBuf,
    /// The compiled programs.
    pub programs: Programs,
    /// The floor, scela-run and then the rivals, in the order of their turns.
    pub launchers: Vec<Launcher>,
    /// The services of the rivals. They end before their files are removed.
    pub services: Services,
    /// The destination of results.
    pub report: Report,
    /// The rows of the README's table so far.
    pub overview: Overview,
    /// Temporary directories, removed on drop.
    pub scratch: Scratch,
}

impl Bench {
    /// Finds and builds everything, and prints the machine and the launchers.
    ///
    /// # Errors
    /// If something that every section needs is missing.
    pub fn set_up(options: Options) -> Result<Self, BenchError> {
        let target = cargo::target_directory()?;
        let no_scratch = "cannot create scratch directories in the target directory and /dev/shm";
        let scratch = Scratch::create(&target).map_err(BenchError::because(no_scratch))?;
        machine::clean_up_on_signals(scratch.paths())?;
        let is_wanted = |launcher: &Launcher| !options.without.iter().any(|name| launcher.is_called(name));
        let own = own(&options, &target, &scratch)?;
        let programs = Programs::compile(scratch.programs(), own.iter().find_map(Launcher::library))?;

        let mut services = Services::new(scratch.programs());
        let (rivals, absent) = Launcher::rivals(&target, &options, &mut services);
        let mut launchers: Vec<Launcher> = own.into_iter().chain(rivals).filter(is_wanted).collect();
        if matches!(options.suite, Suite::Launch | Suite::Scale) {
            // `--without` does not apply: every ratio is relative to the floor.
            launchers.insert(0, Launcher::floor(programs.floor.clone()));
        }
        if options.suite == Suite::Scale {
            launchers.insert(1, Launcher::server(programs.server.clone()));
        }

        // Launchers that were asked for their version may have left processes.
        let _ended = family::settle(services.processes());

        let machine = Machine::ask()?;
        let mut report = Report::open(options.csv.as_deref())?;
        report.introduce(&machine, &launchers, &absent, options.runs)?;
        Ok(Self {
            options,
            machine,
            target,
            programs,
            launchers,
            services,
            report,
            overview: Overview::default(),
            scratch,
        })
    }

    /// Returns the program with which a launcher's ranks speak PMI.
    #[must_use]
    pub fn pmi_program(&self, launcher: &Launcher) -> &Path {
        match (&launcher.client, &self.programs.library) {
            (Client::Library(_), Some(program)) => program,
            (Client::Library(_), None) | (Client::Wire, _) => &self.programs.pmi,
        }
    }

    /// Returns the sizes of values that ranks put.
    #[must_use]
    pub fn value_bytes(&self, launcher: &Launcher) -> RangeInclusive<u32> {
        let (least, most) = self.options.suite.value_bytes().into_inner();
        least..=launcher.value_bytes_max().map_or(most, |max| max.min(most))
    }

    /// Returns the numbers of ranks: those of the command line, or else the section's own.
    #[must_use]
    pub fn sizes(&self, own: &[u32]) -> Vec<u32> {
        self.options.np.clone().unwrap_or_else(|| own.to_vec())
    }
}

/// Returns scela-run once for each client or policy that is wanted; builds nothing else.
fn own(options: &Options, target: &Path, scratch: &Scratch) -> Result<Vec<Launcher>, BenchError> {
    let is_unwanted = |is_called: &dyn Fn(&str) -> bool| options.without.iter().any(|name| is_called(name));
    if is_unwanted(&|name| Kind::Scela.is_called(name)) {
        return Ok(Vec::new());
    }
    let path = cargo::SCELA_RUN.find(target)?;
    let caching = |policy| Caching { policy, fanout: FANOUT, stats: scratch.programs().join("stats.json") };
    let mut own: Vec<Launcher> = match options.suite {
        Suite::Launch | Suite::Pmi | Suite::Scale => vec![Launcher::scela(path.clone(), Client::Wire, None)],
        Suite::Caches => {
            POLICIES.map(|policy| Launcher::scela(path.clone(), Client::Wire, Some(caching(policy)))).into()
        }
    };
    if options.suite != Suite::Launch && !is_unwanted(&|name| name.eq_ignore_ascii_case(LIBRARY)) {
        let client = Client::Library(cargo::LIBPMI.find(target)?);
        // Under the other policies there is no segment, and the library asks its agent like any other
        // client.
        let caching = (options.suite == Suite::Caches).then(|| caching(Policy::Hcmab));
        own.push(Launcher::scela(path, client, caching));
    }
    Ok(own)
}

/// The policies. The bounds of HCMAB-LRU: one without evictions, one with, and one value per rank.
const POLICIES: [Policy; 6] = [
    Policy::Hcs,
    Policy::Hcma,
    Policy::Hcmab,
    Policy::HcmabLru(Bound::Own),
    Policy::HcmabLru(Bound::RanksBy(8)),
    Policy::HcmabLru(Bound::Ranks),
];
/// The default of scela-run.
const FANOUT: u32 = 32;
