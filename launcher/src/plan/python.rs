//! Finds the MPI library that a Python program uses: the interpreter's file does not name it.
//!
//! mpi4py's wheel looks for the library at run time: first what MPI4PY_MPIABI and MPI4PY_LIBMPI name, then what is installed
//! beside the interpreter, as the wheels of MPI libraries install it. This follows the second rule, for virtual environments.

use std::fs;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf::{self, Needs};

/// The most versions of Python in one virtual environment that are looked at.
const VERSIONS_MAX: usize = 64;
/// The variable with which users choose the library for mpi4py's wheel.
const CHOICE: &str = "MPI4PY_MPIABI";

/// Returns Open MPI's main library, and what it needs, if the command's program is a Python interpreter whose mpi4py would
/// load it.
pub(super) fn open_mpi(session: &SessionPlan, command: &CommandPlan) -> Option<(PathBuf, Needs)> {
    let program = elf::program_of(session, command).ok()?;
    let choice = elf::variable(session, command, CHOICE).map(|choice| choice.to_string_lossy().into_owned());
    let library = library_beside(&program, choice.as_deref())?;
    let needs = elf::needs(&library)?;
    Some((library, needs))
}

/// Returns the Open MPI beside an interpreter, if mpi4py would choose it.
fn library_beside(program: &Path, choice: Option<&str>) -> Option<PathBuf> {
    let name = program.file_name()?.to_str()?;
    if !name.starts_with("python") {
        return None;
    }
    // Not resolved: the interpreter of a virtual environment is a link to another one.
    let lib = program.parent()?.parent()?.join("lib");
    let versions = fs::read_dir(&lib).ok()?.take(VERSIONS_MAX).flatten();
    let has_mpi4py = versions.map(|version| version.path().join("site-packages/mpi4py")).any(|path| path.is_dir());
    let library = lib.join("libmpi.so.40");
    let is_chosen = match choice {
        Some(choice) => choice == "openmpi",
        // mpi4py prefers MPICH's and Intel's library.
        None => !lib.join("libmpi.so.12").exists(),
    };
    (has_mpi4py && is_chosen && library.exists()).then_some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_beside_the_interpreter_is_found() {
        let environment = tempfile::tempdir().unwrap();
        let lib = environment.path().join("lib");
        fs::create_dir_all(lib.join("python3.11/site-packages/mpi4py")).unwrap();
        let python = environment.path().join("bin/python3");
        assert_eq!(library_beside(&python, None), None, "no library is installed");
        fs::write(lib.join("libmpi.so.40"), "").unwrap();
        let found = Some(lib.join("libmpi.so.40"));
        assert_eq!(library_beside(&python, None), found);
        assert_eq!(library_beside(&environment.path().join("bin/bash"), None), None);
        assert_eq!(library_beside(&python, Some("mpich")), None);
        fs::write(lib.join("libmpi.so.12"), "").unwrap();
        assert_eq!(library_beside(&python, None), None, "MPICH comes first");
        assert_eq!(library_beside(&python, Some("openmpi")), found);
        fs::remove_dir(lib.join("python3.11/site-packages/mpi4py")).unwrap();
        assert_eq!(library_beside(&python, Some("openmpi")), None, "mpi4py is not installed");
    }
}
