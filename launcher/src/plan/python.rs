//! Finds the MPI library that a Python program uses: the interpreter's file does not name it, but mpi4py's extension module
//! does.
//!
//! mpi4py is searched where the interpreter would: beside the script, in PYTHONPATH, in the user's packages, and below the
//! prefixes of the interpreter. mpi4py's wheel has a module for each ABI. Without MPI4PY_MPIABI, it loads the first MPI library
//! that MPI4PY_LIBMPI names, else one beside the interpreter, then by the loader, and chooses the module for it. A mpi4py
//! that was built on the machine, such as Debian's, has one module. Path files (`*.pth`) are not looked at.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::plan::elf::{self, Needs};

/// The most entries of a directory that are looked at.
const ENTRIES_MAX: usize = 1024;
/// The variable with which users choose the library for mpi4py's wheel.
const CHOICE: &str = "MPI4PY_MPIABI";
/// The variable with which users name the library for it: files, or directories of libraries, with `:` between them.
const LIBRARY: &str = "MPI4PY_LIBMPI";
/// The names of MPI libraries in the order of the wheel's search.
const NAMES: [&str; 3] = ["libmpi.so", "libmpi.so.12", "libmpi.so.40"];
/// Open MPI's library, whose file may have further numbers.
const OPEN_MPI: &str = "libmpi.so.40";
/// The file that makes a directory a virtual environment.
const ENVIRONMENT_FILE: &str = "pyvenv.cfg";
/// The most files that are tried of those that MPI4PY_LIBMPI names.
const LIBRARIES_MAX: usize = 64;
/// The most bytes that are read of a file of settings.
const SETTINGS_BYTES_MAX: u64 = 64 * 1024;
/// How scripts of pyenv name it. Each calls it to start the chosen version of a program.
const PYENV: &str = "pyenv";
/// The prefix of the system's own interpreter, which also has packages in `/usr/local`.
const SYSTEM: &str = "/usr";

/// Finds a library as the loader does, if the program names no directory.
type Locate<'a> = &'a dyn Fn(&str) -> Option<PathBuf>;

/// Returns whether a program of this name is a Python interpreter.
pub(super) fn is_interpreter(name: &str) -> bool {
    name.starts_with("python")
}

/// A Python interpreter as a command starts it.
pub(super) struct Python<'a> {
    /// The interpreter's file. Not resolved: the interpreter of a virtual environment is a link to another one.
    pub(super) interpreter: &'a Path,
    /// The program that it runs, if that is a file.
    pub(super) script: Option<&'a Path>,
    /// The working directory.
    pub(super) wdir: &'a Path,
    /// Returns variables of the ranks' environment.
    pub(super) variable: &'a dyn Fn(&str) -> Option<&'a OsStr>,
}

impl Python<'_> {
    /// Returns the extension module that mpi4py would load, and what it needs. Whether the program imports mpi4py is not known.
    pub(super) fn mpi4py(&self, locate: Locate<'_>) -> Option<(PathBuf, Needs)> {
        let modules = self.packages().into_iter().find_map(|place| {
            let modules: Vec<_> = entries(&place.join("mpi4py")).into_iter().filter(|file| is_module(file)).collect();
            (!modules.is_empty()).then_some(modules)
        })?;
        let choice = (self.variable)(CHOICE).map(|choice| choice.to_string_lossy().into_owned());
        let beside = self.prefix()?.join("lib");
        module_of(&modules, &beside, choice.as_deref(), self.named_library(locate).as_deref(), locate)
    }

    /// Returns the library that the user names for mpi4py's wheel.
    fn named_library(&self, locate: Locate<'_>) -> Option<PathBuf> {
        let files = std::env::split_paths((self.variable)(LIBRARY)?).flat_map(|path| {
            let file = self.wdir.join(&path);
            match path.to_str().filter(|name| !name.contains('/')).and_then(locate) {
                Some(file) => vec![file],
                None if file.is_dir() => NAMES.map(|name| file.join(name)).to_vec(),
                None => vec![file],
            }
        });
        files.take(LIBRARIES_MAX).find(|file| file.is_file())
    }

    /// The directory of the virtual environment, else of the interpreter's installation.
    fn prefix(&self) -> Option<PathBuf> {
        let prefix = |file: &Path| file.parent()?.parent().map(Path::to_owned);
        let typed = prefix(self.interpreter)?;
        if typed.join(ENVIRONMENT_FILE).is_file() {
            return Some(typed);
        }
        self.interpreter.canonicalize().ok().and_then(|file| prefix(&file)).or(Some(typed))
    }

    /// Returns the directories of packages in the interpreter's order, except those of its own library.
    fn packages(&self) -> Vec<PathBuf> {
        let set = |name: &str| (self.variable)(name).filter(|value| !value.is_empty());
        let beside = self.script.and_then(Path::parent).unwrap_or(self.wdir).to_owned();
        let named = set("PYTHONPATH").into_iter().flat_map(std::env::split_paths).map(|place| self.wdir.join(place));
        let mut found: Vec<PathBuf> = std::iter::once(beside).chain(named).collect();
        let Some(prefix) = self.prefix() else { return found };
        let environment = Some(prefix.join(ENVIRONMENT_FILE)).filter(|file| file.is_file()).map(|file| settings(&file));
        let field = |name: &str| {
            let mut fields = environment.as_deref()?.lines().filter_map(|line| line.split_once('='));
            fields.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
        };
        let sees_system = environment.is_none() || field("include-system-site-packages") == Some("true");
        if sees_system && set("PYTHONNOUSERSITE").is_none() {
            let base = set("PYTHONUSERBASE").map(PathBuf::from);
            let base = base.or_else(|| Some(Path::new(set("HOME")?).join(".local")));
            found.extend(base.iter().flat_map(|base| self.below(base)));
        }
        let home = field("home").and_then(|home| Path::new(home).parent());
        let system = home.filter(|_| sees_system).map(Path::to_owned);
        if environment.is_some() {
            found.extend(self.below(&prefix));
        }
        for prefix in system.into_iter().chain(environment.is_none().then_some(prefix)) {
            if prefix == Path::new(SYSTEM) {
                found.extend(self.below(&prefix.join("local")));
            }
            found.extend(self.below(&prefix));
        }
        found
    }

    /// The directories of packages below a prefix for this version of Python; for each version there, if it is unknown.
    fn below(&self, prefix: &Path) -> Vec<PathBuf> {
        let file = self.interpreter.canonicalize().map(|file| name(&file)).unwrap_or_default();
        // `python3.11`; Debian's packages for all versions are in `python3`.
        let is_of_version = |version: &str| !file.contains('.') || version == file || version == "python3";
        let versions = ["lib64", "lib"].into_iter().flat_map(|lib| {
            let mut versions: Vec<_> =
                entries(&prefix.join(lib)).into_iter().map(|version| (name(&version), version)).collect();
            versions.retain(|(version, _)| is_interpreter(version) && is_of_version(version));
            versions.sort();
            versions
        });
        versions.flat_map(|(_, version)| ["site-packages", "dist-packages"].map(|place| version.join(place))).collect()
    }
}

/// Chooses among mpi4py's modules. `lib` is the directory of libraries beside the interpreter, `named` the library that the user
/// names.
fn module_of(
    modules: &[PathBuf],
    lib: &Path,
    choice: Option<&str>,
    named: Option<&Path>,
    locate: Locate<'_>,
) -> Option<(PathBuf, Needs)> {
    let lib = named.and_then(Path::parent).unwrap_or(lib);
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
    let named = named.and_then(|file| numbered(file.to_owned()));
    let first = named.or_else(|| NAMES.iter().find_map(|name| numbered(lib.join(name))));
    let library = first.or_else(|| NAMES.iter().find_map(|name| numbered(locate(name)?)))?;
    of_abi(if library.starts_with(OPEN_MPI) { "openmpi" } else { "mpich" })
}

/// Returns the interpreter that pyenv's program of this name and text starts; `None` for any other program.
pub(super) fn of_pyenv<'a>(
    shim: &Path,
    text: &[u8],
    wdir: &Path,
    variable: &dyn Fn(&str) -> Option<&'a OsStr>,
) -> Option<PathBuf> {
    let root = shim.parent().filter(|directory| directory.ends_with("shims"))?.parent()?;
    if !is_interpreter(&name(shim)) || !text.windows(PYENV.len()).any(|part| part == PYENV.as_bytes()) {
        return None;
    }
    let typed = variable("PYENV_VERSION").map(|version| version.to_string_lossy().into_owned());
    let mut files = wdir.ancestors().map(|directory| directory.join(".python-version")).chain([root.join("version")]);
    let versions = typed
        .filter(|typed| !typed.is_empty())
        .or_else(|| files.find(|file| file.is_file()).map(|file| settings(&file)))?;
    // The first of several versions. `system` is no directory.
    let version = versions.split([':', '\n', ' ']).next()?.trim();
    let python = root.join("versions").join(version).join("bin").join(name(shim));
    python.is_file().then_some(python)
}

/// Returns the beginning of a file of settings. Empty for a file that cannot be read.
fn settings(file: &Path) -> String {
    String::from_utf8_lossy(&elf::beginning(file, SETTINGS_BYTES_MAX)).into_owned()
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
        let interpreter = place.join("bin").join(interpreter);
        let variable = |name: &str| choice.filter(|_| name == CHOICE).map(OsStr::new);
        let python = Python { interpreter: &interpreter, script: None, wdir: Path::new("/"), variable: &variable };
        python.mpi4py(&locate).map(|(module, _)| name(&module))
    }

    /// Makes a directory with a module of mpi4py below `place`.
    fn install(place: &Path, packages: &str) -> PathBuf {
        let mpi4py = place.join(packages).join("mpi4py");
        fs::create_dir_all(&mpi4py).unwrap();
        fs::copy("/proc/self/exe", mpi4py.join("MPI.cpython.so")).unwrap();
        mpi4py.join("MPI.cpython.so")
    }

    /// Removes what is found, one after the other: each must be the next.
    #[test]
    fn packages_are_searched_in_the_interpreters_order() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("venv/bin")).unwrap();
        fs::create_dir_all(at("opt/bin")).unwrap();
        fs::write(at("opt/bin/python3.11"), "").unwrap();
        std::os::unix::fs::symlink(at("opt/bin/python3.11"), at("venv/bin/python")).unwrap();
        let settings =
            |system: bool| format!("home = {}\ninclude-system-site-packages = {system}\n", at("opt/bin").display());
        fs::write(at("venv/pyvenv.cfg"), settings(true)).unwrap();
        let expected = [
            "job",
            "named",
            "also",
            "home/.local/lib/python3.11/site-packages",
            "venv/lib64/python3.11/site-packages",
            "venv/lib/python3.11/site-packages",
            "opt/lib/python3/dist-packages",
            "opt/lib/python3.11/site-packages",
        ]
        .map(|packages| install(root.path(), packages));
        install(root.path(), "venv/lib/python3.9/site-packages");
        let python_path = std::env::join_paths([at("named"), "also".into()]).unwrap();
        let home = at("home");
        let variable = |name: &str| match name {
            "PYTHONPATH" => Some(python_path.as_os_str()),
            "HOME" => Some(home.as_os_str()),
            _ => None,
        };
        let (interpreter, script) = (at("venv/bin/python"), at("job/prog.py"));
        let find = || {
            let python =
                Python { interpreter: &interpreter, script: Some(&script), wdir: root.path(), variable: &variable };
            python.mpi4py(&|_| None).map(|(module, _)| module)
        };
        for (at, module) in expected.iter().enumerate() {
            assert_eq!(find().as_ref(), Some(module));
            fs::remove_file(module).unwrap();
            if at == 2 {
                fs::write(root.path().join("venv/pyvenv.cfg"), settings(false)).unwrap();
                assert_eq!(find().as_ref(), Some(&expected[4]), "the environment hides the user's packages");
                fs::write(root.path().join("venv/pyvenv.cfg"), settings(true)).unwrap();
            }
        }
        assert_eq!(find(), None, "the module of another version");
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
    fn the_library_that_the_user_names_comes_first() {
        let modules = ["MPI.mpich.cpython-311.so", "MPI.openmpi.cpython-311.so"];
        let place = place("python3.11/site-packages", &modules);
        let at = |name: &str| place.path().join(name);
        fs::create_dir(at("named")).unwrap();
        for name in ["lib/libmpi.so.12", "named/libmpi.so.40", "named/libmpi.so.12"] {
            fs::write(at(name), "").unwrap();
        }
        let found = |list: &str, located: Option<&str>| {
            let variable = |name: &str| Some(OsStr::new(list)).filter(|_| name == LIBRARY && !list.is_empty());
            let interpreter = at("bin/python3");
            let python = Python { interpreter: &interpreter, script: None, wdir: place.path(), variable: &variable };
            let locate = |name: &str| Some(at("named").join(name)).filter(|_| located == Some(name));
            python.mpi4py(&locate).map(|(module, needs)| (name(&module), needs.rpath.unwrap()))
        };
        let [beside, named] = ["lib", "named"].map(|name| at(name).display().to_string());
        let [mpich, open_mpi] = modules.map(str::to_owned);
        assert_eq!(found("", None), Some((mpich.clone(), beside)));
        let absolute = at("named/libmpi.so.40").display().to_string();
        for list in [&*absolute, "none:named/libmpi.so.40"] {
            assert_eq!(found(list, None), Some((open_mpi.clone(), named.clone())), "{list}");
        }
        assert_eq!(found("libmpi.so.40", Some("libmpi.so.40")), Some((open_mpi, named.clone())), "by the loader");
        assert_eq!(found("named", None), Some((mpich, named)), "a directory");
    }

    #[test]
    fn a_script_of_pyenv_starts_the_chosen_version() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        for directory in ["shims", "versions/3.10.1/bin", "versions/3.11.2/bin", "job/below"] {
            fs::create_dir_all(at(directory)).unwrap();
        }
        for version in ["3.10.1", "3.11.2"] {
            fs::write(at("versions").join(version).join("bin/python3"), "").unwrap();
        }
        let text =
            format!("#!/usr/bin/env bash\nexec \"{}/libexec/pyenv\" exec \"$program\" \"$@\"\n", root.path().display());
        let python = |shim: &str, typed: Option<&str>| {
            let variable = |name: &str| typed.filter(|_| name == "PYENV_VERSION").map(OsStr::new);
            of_pyenv(&at(shim), text.as_bytes(), &at("job/below"), &variable)
        };
        let [old, new] = ["3.10.1", "3.11.2"].map(|version| Some(at("versions").join(version).join("bin/python3")));
        assert_eq!(python("shims/python3", None), None, "none is chosen");
        fs::write(at("version"), "3.10.1\n").unwrap();
        assert_eq!(python("shims/python3", None), old);
        fs::write(at("job/.python-version"), "3.11.2\n3.10.1\n").unwrap();
        assert_eq!(python("shims/python3", None), new);
        assert_eq!(python("shims/python3", Some("3.10.1:3.11.2")), old);
        assert_eq!(python("shims/python3", Some("system")), None);
        assert_eq!(python("bin/python3", None), None, "it is elsewhere");
        assert_eq!(python("shims/pip", None), None);
        assert_eq!(of_pyenv(&at("shims/python3"), b"#!/bin/sh\n", &at("job"), &|_| None), None);
    }

    #[test]
    fn a_module_that_was_built_here_is_the_one() {
        let place = place("python3/dist-packages", &["MPI.cpython-311-x86_64-linux-gnu.so"]);
        let module = Some("MPI.cpython-311-x86_64-linux-gnu.so".to_owned());
        assert_eq!(found(place.path(), "python3.11", None, None), module);
        assert!(is_interpreter("python3.11") && !is_interpreter("bash"));
    }

    #[test]
    fn a_python_without_mpi4py_uses_no_library() {
        let place = place("python3.11/site-packages", &[]);
        assert_eq!(found(place.path(), "python", None, Some(Path::new("/lib/libmpi.so.40"))), None);
    }
}
