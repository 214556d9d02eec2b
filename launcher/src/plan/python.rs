//! Finds the MPI library that a Python program uses: the interpreter's file does not name it, but mpi4py's extension module
//! does.
//!
//! mpi4py's wheel has a module for each ABI. Without MPI4PY_MPIABI, it loads the first MPI library that it finds beside the
//! interpreter, then by the loader, and chooses the module for it. A mpi4py that was built on the machine, such as Debian's, has
//! one module. mpi4py in other places than below the interpreter's prefix, and MPI4PY_LIBMPI, are not looked at.

use std::fs;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf::{self, Needs};

/// The most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1024;
/// The variable with which users choose the library for mpi4py's wheel.
const CHOICE: &str = "MPI4PY_MPIABI";
/// The names of MPI libraries in the order of the wheel's search.
const NAMES: [&str; 3] = ["libmpi.so", "libmpi.so.12", "libmpi.so.40"];
/// Open MPI's library, whose file may have further numbers.
const OPEN_MPI: &str = "libmpi.so.40";

/// Returns the extension module that mpi4py would load, and what it needs, if the command's program is a Python interpreter
/// with mpi4py, or a script for one. Whether the script imports mpi4py is not known.
pub(super) fn mpi4py(session: &SessionPlan, command: &CommandPlan) -> Option<(PathBuf, Needs)> {
    let program = elf::program_of(session, command).ok()?;
    let choice = elf::variable(session, command, CHOICE).map(|choice| choice.to_string_lossy().into_owned());
    let library_path = elf::variable(session, command, "LD_LIBRARY_PATH");
    let locate = |library: &str| elf::find(library, &program, &Needs::default(), library_path).map(|(path, _)| path);
    module_of(&program, choice.as_deref(), &locate)
}

/// Finds a library as the loader does, if the program names no directory.
type Locate<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

fn module_of(python: &Path, choice: Option<&str>, locate: Locate<'_>) -> Option<(PathBuf, Needs)> {
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
        // mpi4py looks there before the loader does.
        (needs.rpath, needs.runpath) = (Some(lib.to_string_lossy().into_owned()), None);
        Some((module.clone(), needs))
    };
    // MPI.ABI.TAG.so; others are MPI.TAG.so.
    let is_of_wheel = |module: &PathBuf| name(module).matches('.').count() > 2;
    if let Some(module) = modules.iter().find(|module| !is_of_wheel(module)) {
        return Some((module.clone(), elf::needs(module)?));
    }
    if let Some(choice) = choice {
        // mpi4py allows these in its value, and impi for MPICH's ABI.
        let choice = choice.to_ascii_lowercase().replace([' ', '-', '_'], "");
        return of_abi(if choice == "impi" { "mpich" } else { &choice });
    }
    // The number is that of the ABI. In a wheel, libmpi.so is a text for the linker, and no link.
    let numbered = |path: PathBuf| path.canonicalize().ok().map(|file| name(&file)).filter(|name| name != NAMES[0]);
    let beside = NAMES.iter().find_map(|name| numbered(lib.join(name)));
    let library = beside.or_else(|| NAMES.iter().find_map(|name| numbered(locate(name)?)))?;
    of_abi(if library.starts_with(OPEN_MPI) { "openmpi" } else { "mpich" })
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

    /// The name of the module that is found if the loader finds this library.
    fn found(place: &Path, interpreter: &str, choice: Option<&str>, library: Option<&Path>) -> Option<String> {
        let locate = |name: &str| library.filter(|path| path.ends_with(name)).map(Path::to_owned);
        module_of(&place.join("bin").join(interpreter), choice, &locate).map(|(module, _)| name(&module))
    }

    #[test]
    fn the_wheel_chooses_by_the_variable_and_then_by_what_is_installed() {
        let modules = ["MPI.mpich.cpython-311.so", "MPI.openmpi.cpython-311.so", "MPI.mpiabi.cpython-311.so"];
        let [mpich, open_mpi, _] = modules.map(|module| Some(module.to_owned()));
        let place = place("python3.11/site-packages", &modules);
        let elsewhere = tempfile::tempdir().unwrap();
        let library = |name: &str| {
            fs::write(elsewhere.path().join(name), "").unwrap();
            elsewhere.path().join(name)
        };
        let (of_mpich, of_open_mpi) = (library("libmpi.so.12"), library("libmpi.so.40"));
        let found = |choice, library: Option<&Path>| found(place.path(), "python3", choice, library);
        assert_eq!(found(None, None), None, "no library is installed");
        assert_eq!(found(None, Some(&of_open_mpi)), open_mpi);
        assert_eq!(found(None, Some(&of_mpich)), mpich);
        assert_eq!(found(Some("OpenMPI"), Some(&of_mpich)), open_mpi);
        assert_eq!(found(Some("impi"), Some(&of_open_mpi)), mpich);
        assert_eq!(found(Some("other"), Some(&of_open_mpi)), None);
        // A library beside the interpreter comes before one that the loader finds.
        fs::write(place.path().join("lib/libmpi.so"), "").unwrap();
        fs::write(place.path().join("lib/libmpi.so.40"), "").unwrap();
        assert_eq!(found(None, Some(&of_mpich)), open_mpi);
    }

    #[test]
    fn a_module_that_was_built_here_is_the_one() {
        let place = place("python3/dist-packages", &["MPI.cpython-311-x86_64-linux-gnu.so"]);
        let module = Some("MPI.cpython-311-x86_64-linux-gnu.so".to_owned());
        assert_eq!(found(place.path(), "python3.11", None, None), module);
        assert_eq!(found(place.path(), "bash", None, None), None);
    }

    #[test]
    fn a_python_without_mpi4py_uses_no_library() {
        let place = place("python3.11/site-packages", &[]);
        assert_eq!(found(place.path(), "python", None, Some(Path::new("/lib/libmpi.so.40"))), None);
    }
}
