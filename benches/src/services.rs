//! The services that the bench starts for launchers that need one: Slurm's daemons and an instance of Flux.
//!
//! They stand before the first run and until the end of the bench, as on a cluster. So no run waits for their start, and
//! their processes are none of a run's.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use nix::unistd::{Pid, getpid};
use tests::Slurm;

use crate::family;
use crate::flux::Flux;

/// The services of one bench, which end when it is dropped.
#[derive(Debug)]
pub struct Services {
    directory: PathBuf,
    slurm: Option<Slurm>,
    flux: Option<Flux>,
    processes: BTreeSet<Pid>,
}

/// How a launcher reaches its service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Service {
    /// The variables to add to the launcher's environment.
    pub environment: Vec<(OsString, OsString)>,
    /// A description of the service; empty if there is none.
    pub description: String,
}

impl Services {
    /// Creates an empty collection. The files of services will be in `directory`.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self { directory: directory.to_owned(), slurm: None, flux: None, processes: BTreeSet::new() }
    }

    /// Starts Slurm.
    ///
    /// # Errors
    /// If that fails; the text is the reason.
    pub fn slurm(&mut self) -> Result<Service, String> {
        let slurm = Slurm::for_measurements(self.directory.join("slurm"), SLURM_NODES);
        // Further lines are logs.
        let slurm = slurm.map_err(|why| why.lines().next().unwrap_or_default().to_owned())?;
        let service = Service {
            environment: vec![("SLURM_CONF".into(), slurm.configuration_file().into_os_string())],
            description: format!("Slurm with {SLURM_NODES} slurmd, started by the bench on this machine"),
        };
        self.slurm = Some(slurm);
        self.take_over();
        Ok(service)
    }

    /// Starts an instance of Flux.
    ///
    /// # Errors
    /// If that fails; the text is the reason.
    pub fn flux(&mut self, flux: &Path) -> Result<Service, String> {
        let flux = Flux::start(flux, &self.directory.join("flux"))?;
        let description = "in a Flux instance of one broker, started by the bench on this machine".to_owned();
        let service = Service { environment: flux.environment(), description };
        self.flux = Some(flux);
        self.take_over();
        Ok(service)
    }

    /// Returns the processes of all services.
    #[must_use]
    pub fn processes(&self) -> &BTreeSet<Pid> {
        &self.processes
    }

    /// Counts all present processes as those of services. No launcher may be running.
    fn take_over(&mut self) {
        self.processes.extend(family::descendants(getpid()));
    }
}

/// Each slurmd starts 512 ranks of a job of 4,096.
const SLURM_NODES: usize = 8;
