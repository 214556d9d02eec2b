//! The MPI libraries, and the programs built with them.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tests::{Outcome, Program, Run, scela};

/// Ranks of MPICH wait by spinning: with more of them than cores, on a machine that does something
/// else as well, a collective operation takes its time.
const DEADLINE: Duration = Duration::from_secs(180);

/// Set by `tests/run`: what cannot run is a failure.
const STRICT: &str = "TESTS_STRICT";
/// Names the virtual environment with PyPI's mpich and mpi4py; `tests/run` makes it and says so.
const WHEELS: &str = "TESTS_VENV";

/// An MPI library with its compiler.
pub(crate) struct Library {
    name: &'static str,
    compiler: PathBuf,
    environment: &'static [(&'static str, &'static str)],
    /// Spinning ranks of two tests would get in each other's way.
    _alone: MutexGuard<'static, ()>,
}

/// Debian's, or `None` if it is not here, which is said.
pub(crate) fn debian() -> Option<Library> {
    library("mpich of Debian", PathBuf::from("mpicc.mpich"), &[])
}

/// PyPI's.
pub(crate) fn wheel() -> Option<Library> {
    // Its UCX cannot connect processes that do not share a world.
    library("mpich of PyPI", wheels().join("bin/mpicc"), &[("MPIR_CVAR_CH4_NETMOD", "ofi")])
}

/// Both.
pub(crate) const ALL: [fn() -> Option<Library>; 2] = [debian, wheel];

fn wheels() -> PathBuf {
    match std::env::var_os(WHEELS) {
        Some(place) => PathBuf::from(place),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-venv"),
    }
}

fn library(
    name: &'static str,
    compiler: PathBuf,
    environment: &'static [(&'static str, &'static str)],
) -> Option<Library> {
    static ALONE: Mutex<()> = Mutex::new(());
    match Command::new(&compiler).arg("-show").output() {
        Ok(shown) if shown.status.success() => {
            // A test that failed meanwhile has left nothing half done.
            let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
            Some(Library { name, compiler, environment, _alone: alone })
        }
        problem => {
            let why =
                format!("{name} is not here ({} -show: {problem:?}); ./tests/run installs it", compiler.display());
            assert!(std::env::var_os(STRICT).is_none(), "{why}");
            // Not by eprintln!, which is shown for failures only.
            let _ = writeln!(io::stderr(), "skipped: {why}");
            None
        }
    }
}

impl Library {
    /// Begins a run with this library's environment.
    pub(crate) fn scela(&self) -> Run {
        self.environment.iter().fold(scela().deadline(DEADLINE), |run, (name, value)| run.env(name, value))
    }

    /// A C program of `programs/` with its arguments; built when first needed.
    #[track_caller]
    pub(crate) fn c(&self, program: &str, arguments: &[&str]) -> Program {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join(self.name.replace(' ', "-"));
        fs::create_dir_all(&place).expect("cargo's directory for tests can be written");
        let (source, built) = (self::program(&format!("{program}.c")), place.join(program));
        let time = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
        if time(&built) < time(&source) {
            let compiled = Command::new(&self.compiler).args(["-O1", "-Wall", "-o"]).arg(&built).arg(&source).output();
            let compiled = compiled.expect("the compiler was there a moment ago");
            assert!(compiled.status.success(), "{}: {}", self.name, String::from_utf8_lossy(&compiled.stderr));
        }
        words(built.as_os_str(), arguments)
    }
}

/// Python with mpi4py, and its arguments.
pub(crate) fn python(arguments: &[&str]) -> Program {
    words(wheels().join("bin/python").as_os_str(), arguments)
}

/// A Python program of `programs/` with its arguments.
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

/// What a run wrote is exactly this, in any order of lines, and it succeeded without a word on
/// standard error.
#[track_caller]
pub(crate) fn succeeded<T: ToString>(outcome: &Outcome, lines: impl IntoIterator<Item = T>) {
    outcome.is_quiet_success().wrote_lines(lines);
}
