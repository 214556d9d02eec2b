//! The services that the bench starts for launchers that need one: Slurm's daemons and an instance of Flux.
//!
//! They stand before the first run and until the end of the bench, as on a cluster. So no run waits for their start, and
//! their processes are none of a run's.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ::tests::Slurm;
use nix::unistd::{Pid, getpid};

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
    /// The number of nodes that this machine is for the service, if the bench has started it.
    pub nodes: Option<u32>,
}

impl Service {
    /// Returns the number of nodes for a job: one for few ranks, and more for more, as on a cluster.
    #[must_use]
    pub fn nodes_for(&self, np: u32) -> Option<u32> {
        self.nodes.map(|nodes| np.div_ceil(NODE_RANKS).min(nodes))
    }
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
        let slurm = Slurm::for_measurements(self.directory.join("slurm"), NODES as usize);
        // Further lines are logs.
        let slurm = slurm.map_err(|why| why.lines().next().unwrap_or_default().to_owned())?;
        let service = Service {
            environment: vec![("SLURM_CONF".into(), slurm.configuration_file().into_os_string())],
            description: format!("in a Slurm of {NODES} slurmd, started by the bench on this machine"),
            nodes: Some(NODES),
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
        let flux = Flux::start(flux, &self.directory.join("flux"), NODES)?;
        let description = format!("in an instance of {NODES} brokers, started by the bench on this machine");
        let service = Service { environment: flux.environment(), description, nodes: Some(NODES) };
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

impl Drop for Services {
    fn drop(&mut self) {
        drop((self.slurm.take(), self.flux.take()));
        // Adopted processes of services are reaped, and those that are left are killed.
        let _ended = family::settle(&BTreeSet::new());
    }
}

/// The number of nodes of a service. It divides a job of 4,096 ranks into 256 on each.
const NODES: u32 = 16;
/// The number of ranks that a node gets before the job extends to another one.
const NODE_RANKS: u32 = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_extends_to_all_nodes_but_not_for_few_ranks() {
        let service = Service { nodes: Some(16), ..Service::default() };
        assert_eq!([1, 128, 129, 1024, 4096].map(|np| service.nodes_for(np)), [1, 1, 2, 8, 16].map(Some));
        assert_eq!(Service::default().nodes_for(1024), None);
    }
}
