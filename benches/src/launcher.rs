//! The launchers: scela-run, the floor and the rivals, and the command line of each.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::options::Options;
use crate::policy::Caching;
use crate::services::{Service, Services};
use crate::suite::Suite;

/// A launcher installed on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// The kind of launcher.
    pub kind: Kind,
    /// Its version; empty for the programs of this repository.
    pub version: String,
    /// The path of its program.
    pub path: PathBuf,
    /// How its ranks speak PMI.
    pub client: Client,
    /// The cache policy, if the bench sets one.
    pub caching: Option<Caching>,
    /// Further options of scela-run.
    pub options: Vec<OsString>,
    /// The service that it needs, if the bench has started one.
    pub service: Service,
}

/// How a rank speaks PMI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// In lines over its socket, without a library.
    Wire,
    /// Through the functions of this libpmi.so.
    Library(PathBuf),
}

/// The kinds of launchers, which differ in their options and features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// posix_spawn from one process per core: no launcher, but the minimum that every launcher needs.
    Floor,
    /// A server of PMI without a tree, which starts ranks as the floor does: the minimum of a job that speaks PMI.
    Server,
    /// scela-run.
    Scela,
    /// MPICH's mpiexec.hydra.
    Hydra,
    /// Slurm's srun, with its daemons running.
    Srun,
    /// Flux's `flux run`, in a running instance.
    Flux,
    /// Open MPI's mpirun.
    OpenMpi,
}

impl Launcher {
    /// Returns the floor, which is a program of this crate.
    #[must_use]
    pub fn floor(path: PathBuf) -> Self {
        rival(Kind::Floor, "", path)
    }

    /// Returns the PMI server, which is a program of this crate.
    #[must_use]
    pub fn server(path: PathBuf) -> Self {
        rival(Kind::Server, "", path)
    }

    /// Returns scela-run.
    #[must_use]
    pub fn scela(path: PathBuf, client: Client, caching: Option<Caching>) -> Self {
        Self { client, caching, ..rival(Kind::Scela, "", path) }
    }

    /// Sets the fan-out of the tree, if the bench sets a cache policy.
    #[must_use]
    pub fn with_fanout(mut self, fanout: u32) -> Self {
        if let Some(caching) = &mut self.caching {
            caching.fanout = fanout;
        }
        self
    }

    /// Adds options.
    #[must_use]
    pub fn with_options(mut self, options: impl IntoIterator<Item = OsString>) -> Self {
        self.options.extend(options);
        self
    }

    /// Returns the installed launchers that can take part in a suite, and why others cannot. Starts the services that
    /// launchers need, except for those that `--without` leaves out.
    #[must_use]
    pub fn rivals(target: &Path, options: &Options, services: &mut Services) -> (Vec<Self>, Vec<String>) {
        let mut present = Vec::new();
        let mut absent = Vec::new();
        if matches!(options.suite, Suite::Caches | Suite::Scale) {
            return (present, absent);
        }
        let mut note = |found: Result<Self, String>| match found {
            Ok(rival) => present.push(rival),
            Err(why) => absent.push(why),
        };
        let hydras = hydras(target);
        if hydras.is_empty() {
            note(Err("hydra: no mpiexec.hydra in PATH".to_owned()));
        }
        for path in hydras {
            note(hydra(path));
        }
        let is_wanted = |kind: Kind| !options.without.iter().any(|name| kind.is_called(name));
        if is_wanted(Kind::Srun) {
            note(srun(services));
        }
        if is_wanted(Kind::Flux) {
            note(flux(services));
        }
        if options.suite == Suite::Launch {
            note(open_mpi());
        }
        (present, absent)
    }

    /// Returns whether `--without` means this launcher: by kind, by full name, or by client.
    #[must_use]
    pub fn is_called(&self, name: &str) -> bool {
        let by_client = match self.client {
            Client::Library(_) => name.eq_ignore_ascii_case(LIBRARY),
            Client::Wire => self.kind == Kind::Scela && name.eq_ignore_ascii_case(WIRE),
        };
        by_client || self.kind.is_called(name) || self.label().eq_ignore_ascii_case(name)
    }

    /// Returns the name among launchers with the same tree: name and version, or policy; and client.
    #[must_use]
    pub fn label(&self) -> String {
        let mut label = match (&self.caching, self.kind) {
            (Some(caching), _) => caching.policy.to_string(),
            // There is one of each, with the version of the repository.
            (None, Kind::Floor | Kind::Server | Kind::Scela) => self.kind.name().to_owned(),
            (None, Kind::Hydra | Kind::Srun | Kind::Flux | Kind::OpenMpi) => {
                format!("{} {}", self.kind.name(), self.version)
            }
        };
        if let Client::Library(_) = self.client {
            label += " with ";
            label += LIBRARY;
        }
        label
    }

    /// Returns the libpmi.so that its ranks use.
    #[must_use]
    pub fn library(&self) -> Option<&Path> {
        match &self.client {
            Client::Wire => None,
            Client::Library(path) => Some(path),
        }
    }

    /// Returns whether it serves the PMI wire protocol.
    #[must_use]
    pub fn serves_pmi(&self) -> bool {
        matches!(self.kind, Kind::Scela | Kind::Hydra | Kind::Srun | Kind::Flux)
    }

    /// Returns the maximal size of a value in bytes if it is not the 1,023 of its `get_maxes`.
    ///
    /// Slurm's mpi/pmi2 plugin reads PMI-1 lines of up to 1,024 bytes including command, names and key.
    /// It reads a longer line as two, and the rank waits for ever.
    #[must_use]
    pub fn value_bytes_max(&self) -> Option<u32> {
        (self.kind == Kind::Srun).then_some(960)
    }

    /// Returns whether the processes that serve its ranks are its descendants rather than those of a
    /// daemon.
    #[must_use]
    pub fn owns_agents(&self) -> bool {
        matches!(self.kind, Kind::Scela | Kind::Hydra)
    }

    /// Returns the command that starts `program` with `args` as `np` ranks.
    ///
    /// The floor and the PMI server have other arguments: see [`crate::run`].
    #[must_use]
    pub fn command(&self, np: u32, program: &Path) -> Command {
        let mut command = Command::new(&self.path);
        command.envs(self.service.environment.iter().map(|(name, value)| (name, value)));
        let nodes = self.service.nodes_for(np).map(|nodes| format!("--nodes={nodes}"));
        match self.kind {
            Kind::Floor | Kind::Server => {}
            Kind::Scela | Kind::Hydra => {
                command.args(["-n", &np.to_string()]);
                command.args(self.caching.iter().flat_map(|caching| caching.options(np)));
                command.args(&self.options);
            }
            Kind::Srun => {
                command.args(["-n", &np.to_string(), "--mpi=pmi2", "--overcommit", "--quiet"]).args(nodes);
            }
            Kind::Flux => {
                // Many ranks share the cores of this machine: no rank is bound to one. Ranks of a flood end one by one,
                // and Flux would end the job 30 s after the first.
                command
                    .args(["run", "-n", &np.to_string(), "-o", "cpu-affinity=off", "-o", "exit-timeout=none"])
                    .args(nodes);
            }
            Kind::OpenMpi => {
                command.args(["-n", &np.to_string(), "--map-by", "slot:OVERSUBSCRIBE", "--bind-to", "none"]);
                if nix::unistd::geteuid().is_root() {
                    command.arg("--allow-run-as-root");
                }
            }
        }
        command.arg(program);
        command
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.label())?;
        if let Some(caching) = &self.caching {
            write!(f, " fan-out {}", caching.fanout)?;
        }
        self.options.iter().try_for_each(|option| write!(f, " {}", option.display()))
    }
}

impl Kind {
    /// Returns whether `--without` means all launchers of this kind.
    #[must_use]
    pub fn is_called(self, name: &str) -> bool {
        self.name().eq_ignore_ascii_case(name) || (self == Self::Scela && name.eq_ignore_ascii_case("scela"))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Server => "server",
            Self::Scela => "scela-run",
            Self::Hydra => "hydra",
            Self::Srun => "srun",
            Self::Flux => "flux",
            Self::OpenMpi => "open mpi",
        }
    }
}

/// Returns the mpiexec.hydra in PATH, the one in SCELA_BENCH_HYDRA, and those of virtual environments
/// in the target directory.
fn hydras(target: &Path) -> Vec<PathBuf> {
    let in_venvs = fs::read_dir(target).into_iter().flatten().flatten();
    let in_venvs = in_venvs.map(|entry| entry.path().join("bin").join(HYDRA));
    let named = env::var_os("SCELA_BENCH_HYDRA").map(PathBuf::from);
    let mut found: Vec<PathBuf> = Vec::new();
    for path in in_path(HYDRA).into_iter().chain(named).chain(in_venvs) {
        let Ok(path) = path.canonicalize() else {
            continue;
        };
        if !found.contains(&path) {
            found.push(path);
        }
    }
    found
}

fn rival(kind: Kind, version: &str, path: PathBuf) -> Launcher {
    Launcher {
        kind,
        version: version.trim().to_owned(),
        path,
        client: Client::Wire,
        caching: None,
        options: Vec::new(),
        service: Service::default(),
    }
}

fn hydra(path: PathBuf) -> Result<Launcher, String> {
    let output = output_of(&path, &["--version"]);
    let version = output.lines().find_map(|line| line.trim().strip_prefix("Version:"));
    match version {
        Some(version) => Ok(rival(Kind::Hydra, version, path)),
        None => Err(format!("hydra: {} prints no version", path.display())),
    }
}

fn srun(services: &mut Services) -> Result<Launcher, String> {
    let path = in_path("srun").ok_or("srun: not installed")?;
    // scontrol asks each controller once and prints `UP` for one that replies.
    let is_running = output_of(Path::new("timeout"), &["10", "scontrol", "ping"]).contains(" is UP");
    let service = if is_running {
        Service { description: "in the Slurm of this machine".to_owned(), ..Service::default() }
    } else {
        services.slurm().map_err(|why| format!("srun: no controller replies, and the bench cannot start one: {why}"))?
    };
    // srun refuses to say its version without a configuration.
    let asked = Command::new(&path).arg("--version").envs(service.environment.iter().cloned()).output();
    let version = asked.map(|asked| String::from_utf8_lossy(&asked.stdout).into_owned()).unwrap_or_default();
    // `slurm 23.11.4`, or the name of a distribution's package: `slurm-wlm 22.05.8`.
    Ok(Launcher { service, ..rival(Kind::Srun, version.split_whitespace().last().unwrap_or_default(), path) })
}

/// Returns Flux from SCELA_BENCH_FLUX or else from PATH.
fn flux(services: &mut Services) -> Result<Launcher, String> {
    let named = env::var_os("SCELA_BENCH_FLUX").map(PathBuf::from);
    let path = named.or_else(|| in_path("flux")).ok_or("flux: not in PATH, and SCELA_BENCH_FLUX is not set")?;
    let output = output_of(&path, &["version"]);
    let version = output.lines().find_map(|line| line.trim().strip_prefix("commands:"));
    let version = version.ok_or_else(|| format!("flux: {} prints no version", path.display()))?;
    let service = services.flux(&path).map_err(|why| format!("flux: {why}"))?;
    Ok(Launcher { service, ..rival(Kind::Flux, version, path) })
}

fn open_mpi() -> Result<Launcher, String> {
    let path = in_path("mpirun").ok_or("open mpi: no mpirun in PATH")?;
    let output = output_of(&path, &["--version"]);
    match output.lines().next().and_then(|line| line.strip_prefix("mpirun (Open MPI) ")) {
        Some(version) => Ok(rival(Kind::OpenMpi, version, path)),
        None => Err("open mpi: mpirun belongs to another MPI".to_owned()),
    }
}

/// Returns the first program of this name in PATH.
#[must_use]
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| candidate.is_file())
}

fn output_of(program: &Path, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

const HYDRA: &str = "mpiexec.hydra";
/// Part of the name of launchers whose ranks use the library.
pub const LIBRARY: &str = "libpmi";
/// The name by which `--without` leaves out scela-run with ranks that use no library.
const WIRE: &str = "wire";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{Bound, Policy};

    #[test]
    fn a_kind_matches_all_versions_and_a_version_only_one() {
        let hydra = |version: &str| rival(Kind::Hydra, version, PathBuf::new());
        assert!(hydra("4.0.2").is_called("hydra") && hydra("5.0.2").is_called("Hydra"));
        assert!(Kind::Scela.is_called("scela") && Kind::Scela.is_called("scela-run"));
        assert!(hydra("4.0.2").is_called("hydra 4.0.2") && !hydra("5.0.2").is_called("hydra 4.0.2"));
    }

    #[test]
    fn the_library_is_left_out_alone_or_with_its_launcher() {
        let wire = Launcher::scela(PathBuf::new(), Client::Wire, None);
        let library = Launcher::scela(PathBuf::new(), Client::Library(PathBuf::new()), None);
        assert_eq!(library.to_string(), "scela-run with libpmi");
        assert!(library.is_called("libpmi") && library.is_called("scela-run with libpmi"));
        assert!(library.is_called("scela-run") && wire.is_called("scela-run") && !wire.is_called("libpmi"));
        assert!(wire.is_called("wire") && !library.is_called("wire"));
    }

    #[test]
    fn a_policy_is_left_out_over_every_tree() {
        let policy = Policy::HcmabLru(Bound::RanksBy(8));
        let caching = Some(Caching { policy, fanout: 32, stats: PathBuf::new() });
        let launcher = Launcher::scela(PathBuf::new(), Client::Wire, caching).with_fanout(4);
        assert_eq!(launcher.to_string(), "hcmab-lru p/8 fan-out 4");
        assert!(launcher.is_called("hcmab-lru p/8") && launcher.is_called("wire") && !launcher.is_called("hcmab-lru"));
    }
}
