//! Finds the MPI library that a Python program uses: the interpreter's file does not name it, but mpi4py's extension module
//! does.
//!
//! mpi4py's wheel has a module for each ABI, and chooses at run time: by MPI4PY_MPIABI, else MPICH's if its library is found
//! beside the interpreter or by the loader, else Open MPI's. A mpi4py that was built on the machine, such as Debian's, has one
//! module.

use std::fs;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf::{self, Needs};

/// The most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1024;
/// The variable with which users choose the library for mpi4py's wheel.
const CHOICE: &str = "MPI4PY_MPIABI";
/// The wheel's ABIs in the order of its search, and the library of each.
const ABIS: [(&str, &str); 2] = [("mpich", "libmpi.so.12"), ("openmpi", "libmpi.so.40")];

/// Returns the extension module that mpi4py would load, and what it needs, if the command's program is a Python interpreter
/// with mpi4py, or a script for one. Whether the script imports mpi4py is not known.
pub(super) fn mpi4py(session: &SessionPlan, command: &CommandPlan) -> Option<(PathBuf, Needs)> {
    let program = elf::program_of(session, command).ok()?;
    let choice = elf::variable(session, command, CHOICE).map(|choice| choice.to_string_lossy().into_owned());
    let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
    let finds = |library: &str, module: &Path, needs: &Needs| elf::find(library, module, needs, library_path).is_some();
    module_of(&program, choice.as_deref(), &finds)
}

/// Looks for a library as the loader would do it for a module.
type Finds<'a> = &'a dyn Fn(&str, &Path, &Needs) -> bool;

fn module_of(python: &Path, choice: Option<&str>, finds: Finds<'_>) -> Option<(PathBuf, Needs)> {
    if !python.file_name()?.to_str()?.starts_with("python") {
        return None;
    }
    // Not resolved: the interpreter of a virtual environment is a link to another one.
    let lib = python.parent()?.parent()?.join("lib");
    let versions = entries(&lib).into_iter().filter(|entry| name(entry).starts_with("python"));
    let packages = versions.flat_map(|version| ["site-packages", "dist-packages"].map(|place| version.join(place)));
    let modules: Vec<_> =
        packages.flat_map(|place| entries(&place.join("mpi4py"))).filter(|file| is_module(file)).collect();
    let of_abi = |abi: &str| {
        let module = modules.iter().find(|module| name(module).starts_with(&format!("MPI.{abi}.")))?;
        let mut needs = elf::needs(module)?;
        // mpi4py looks there first.
        needs.runpath = Some(lib.to_string_lossy().into_owned());
        Some((module.clone(), needs))
    };
    let is_of_wheel = |module: &PathBuf| ABIS.iter().any(|(abi, _)| name(module).starts_with(&format!("MPI.{abi}.")));
    if let Some(module) = modules.iter().find(|module| !is_of_wheel(module)) {
        return Some((module.clone(), elf::needs(module)?));
    }
    if let Some(choice) = choice {
        return of_abi(choice);
    }
    ABIS.iter().find_map(|(abi, library)| of_abi(abi).filter(|(module, needs)| finds(library, module, needs)))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).into_iter().flatten().take(ENTRIES_MAX).flatten().map(|entry| entry.path()).collect()
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_module(path: &Path) -> bool {
    let name = name(path);
    name.starts_with("MPI.") && name.ends_with(".so")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An interpreter's place with these modules of mpi4py below `packages`. Each module is an ELF file.
    fn place(packages: &str, modules: &[&str]) -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        let mpi4py = place.path().join("lib").join(packages).join("mpi4py");
        fs::create_dir_all(&mpi4py).unwrap();
        for module in modules {
            fs::copy("/proc/self/exe", mpi4py.join(module)).unwrap();
        }
        place
    }

    /// The name of the module that is found if the loader finds these libraries.
    fn found(place: &Path, interpreter: &str, choice: Option<&str>, libraries: &[&str]) -> Option<String> {
        let finds = |library: &str, _: &Path, needs: &Needs| {
            assert!(needs.runpath.as_ref().is_some_and(|runpath| runpath.ends_with("/lib")));
            libraries.contains(&library)
        };
        module_of(&place.join("bin").join(interpreter), choice, &finds).map(|(module, _)| name(&module))
    }

    #[test]
    fn the_wheel_chooses_by_the_variable_and_then_by_what_is_installed() {
        let modules = ["MPI.mpich.cpython-311.so", "MPI.openmpi.cpython-311.so"];
        let [mpich, open_mpi] = modules.map(|module| Some(module.to_owned()));
        let place = place("python3.11/site-packages", &modules);
        let found = |choice, libraries: &[&str]| found(place.path(), "python3", choice, libraries);
        assert_eq!(found(None, &[]), None, "no library is installed");
        assert_eq!(found(None, &["libmpi.so.40"]), open_mpi);
        assert_eq!(found(None, &["libmpi.so.40", "libmpi.so.12"]), mpich);
        assert_eq!(found(Some("openmpi"), &["libmpi.so.40", "libmpi.so.12"]), open_mpi);
        assert_eq!(found(Some("other"), &["libmpi.so.40"]), None);
    }

    #[test]
    fn a_module_that_was_built_here_is_the_one() {
        let place = place("python3/dist-packages", &["MPI.cpython-311-x86_64-linux-gnu.so"]);
        let module = Some("MPI.cpython-311-x86_64-linux-gnu.so".to_owned());
        assert_eq!(found(place.path(), "python3.11", None, &[]), module);
        assert_eq!(found(place.path(), "bash", None, &[]), None);
    }

    #[test]
    fn a_python_without_mpi4py_uses_no_library() {
        let place = place("python3.11/site-packages", &[]);
        assert_eq!(found(place.path(), "python", None, &["libmpi.so.40"]), None);
    }
}
