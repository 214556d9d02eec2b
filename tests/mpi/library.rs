//! The MPI libraries, and the programs built with them.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tempfile::TempDir;
use tests::{Outcome, Program, Run, scela, scela_run, skip};

/// Ranks of MPICH wait by spinning. With more ranks than cores, a collective operation is slow on a machine that
/// has other work.
const DEADLINE: Duration = Duration::from_secs(180);

/// Names the virtual environment with PyPI's mpich and mpi4py, which `tests/run` creates. It also sets this variable.
const WHEELS: &str = "TESTS_VENV";
/// The same for Intel MPI, which installs files with the same names.
const INTEL_WHEELS: &str = "TESTS_VENV_INTEL";

/// An MPI library with its compiler.
pub(crate) struct Library {
    name: &'static str,
    compiler: PathBuf,
    environment: &'static [(&'static str, &'static str)],
    /// The installation directory that is passed to the compiler.
    root: Option<PathBuf>,
    /// A directory for files that a library leaves behind when its ranks are killed.
    shared_memory: Option<TempDir>,
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

/// All libraries.
pub(crate) const ALL: [fn() -> Option<Library>; 4] = [debian_mpich, pypi_mpich, open_mpi, intel];

fn wheels() -> PathBuf {
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
            Some(Library { name, compiler, environment, root: None, shared_memory: None, _alone: alone })
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

    /// Returns a C program of `programs/` with its arguments. Compiles it if it is missing or out of date.
    #[track_caller]
    pub(crate) fn c(&self, program: &str, arguments: &[&str]) -> Program {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name.replace(' ', "-"));
        fs::create_dir_all(&place).expect("cargo's directory for tests can be written");
        let (source, built) = (self::program(&format!("{program}.c")), place.join(program));
        let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        if time(&built) < time(&source) {
            let mut compiler = Command::new(&self.compiler);
            // Intel's compiler requires this variable. The others ignore it.
            compiler.envs(self.root.iter().map(|root| ("I_MPI_ROOT", root)));
            let compiled = compiler.args(["-O1", "-Wall", "-o"]).arg(&built).arg(&source).output();
            let compiled = compiled.expect("the compiler was there a moment ago");
            assert!(compiled.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&compiled.stderr));
        }
        words(built.as_os_str(), arguments)
    }
}

/// Returns a command that runs Python with mpi4py and these arguments.
pub(crate) fn python(arguments: &[&str]) -> Program {
    words(wheels().join("bin/python").as_os_str(), arguments)
}

/// Returns a command that runs a Python program of `programs/` with these arguments.
pub(crate) fn script(name: &str, arguments: &[&str]) -> Program {
    let path = program(name);
    let mut words = python(&[]);
    words.push(path.into());
    words.extend(arguments.iter().map(Into::into));
    words
}

fn program(name: &str) -> PathBuf {
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
