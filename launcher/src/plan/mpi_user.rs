//! The files by which a command may load an MPI library, and the libraries of MPI and PMI that each would load: its program,
//! mpi4py's module of a Python interpreter, or a program that a script names.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::plan::elf::{self, Needs};
use crate::plan::mpi;
use crate::refusal::Refusal;

/// The most libraries that are followed. MPI libraries have fewer than ten parts.
const LIBRARIES_MAX: usize = 64;

/// A library of MPI, or one by which an MPI library finds its launcher.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Library {
    /// The name by which it is needed.
    pub(crate) name: String,
    /// The file that the loader would load; `None` if it is not on this machine.
    pub(crate) file: Option<PathBuf>,
    /// The libraries that the file needs, and where it looks for them.
    pub(crate) needs: Needs,
}

/// A file that may call MPI.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct MpiUser {
    /// The program, or the module of Python.
    pub(crate) file: PathBuf,
    /// Whether the ranks run this file. A script may not start the programs that it names, nor a Python program use mpi4py.
    pub(crate) is_certain: bool,
    /// Whether it is mpi4py's module and neither the command nor its script names mpi4py: the ranks probably do not use it.
    pub(crate) is_unlikely: bool,
    /// Its libraries of MPI and PMI in the order in which the loader loads them.
    pub(crate) libraries: Vec<Library>,
}

impl MpiUser {
    /// Follows the libraries of a file. `library_path` is LD_LIBRARY_PATH in the ranks' environment.
    pub(super) fn of(file: &Path, needs: &Needs, library_path: Option<&OsStr>, is_certain: bool) -> Self {
        Self {
            file: file.to_owned(),
            is_certain,
            is_unlikely: false,
            libraries: libraries(file, needs, &|library, file, needs| elf::find(library, file, needs, library_path)),
        }
    }

    /// Returns a remark: the job is started although this file would be refused, because the command may not use it.
    pub(super) fn left_out(&self, refusal: &Refusal) -> String {
        format!("if the command uses '{}', it will not find scela-run: {}", self.file.display(), refusal.with_hint())
    }

    /// Returns whether a library belongs to MPI. Other launchers load PMI or PMIx too.
    pub(crate) fn uses_mpi(&self) -> bool {
        self.libraries.iter().any(|library| mpi::is_mpi(&library.name))
    }

    /// Returns the first library whose name begins with `prefix`.
    pub(super) fn library(&self, prefix: &str) -> Option<&Library> {
        self.libraries.iter().find(|library| library.name.starts_with(prefix))
    }
}

/// Finds a library that a file needs.
type Find<'a> = &'a dyn Fn(&str, &Path, &Needs) -> Option<(PathBuf, Needs)>;

fn libraries(file: &Path, needs: &Needs, find: Find<'_>) -> Vec<Library> {
    let mut found: Vec<Library> = Vec::new();
    let mut left = VecDeque::from([(file.to_owned(), needs.clone())]);
    while let Some((file, needs)) = left.pop_front() {
        for name in needs.libraries.iter().filter(|name| is_followed(name)) {
            // The loader loads each name once.
            if found.len() == LIBRARIES_MAX || found.iter().any(|library| library.name == *name) {
                continue;
            }
            let mut library = Library { name: name.clone(), ..Library::default() };
            if let Some((path, needs)) = find(name, &file, &needs) {
                left.push_back((path.clone(), needs.clone()));
                (library.file, library.needs) = (Some(path), needs);
            }
            found.push(library);
        }
    }
    found
}

/// Returns whether a library matters, or may need one that does: those of MPI, PMI and PMIx, Open MPI's parts, and Cray's.
fn is_followed(name: &str) -> bool {
    mpi::is_mpi(name)
        || ["libpmi", "libopen-rte.so", "libopen-pal.so", "libcray"].iter().any(|known| name.starts_with(known))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(libraries: &[&str]) -> Needs {
        Needs { libraries: libraries.iter().map(|name| (*name).to_owned()).collect(), ..Needs::default() }
    }

    /// The names of the libraries of a program that needs `own`, among these libraries.
    fn names(own: &[&str], known: &[(&str, &[&str])]) -> Vec<String> {
        let find = |name: &str, _: &Path, _: &Needs| {
            let (name, below) = known.iter().find(|(known, _)| *known == name)?;
            Some((Path::new("/lib").join(name), needs(below)))
        };
        libraries(Path::new("/bin/a"), &needs(own), &find).into_iter().map(|library| library.name).collect()
    }

    #[test]
    fn each_library_below_a_program_is_followed_once() {
        let known: &[(&str, &[&str])] = &[
            ("libmpifort.so.12", &["libmpi.so.12", "libgfortran.so.5"]),
            ("libmpi.so.12", &["libpmi.so.0", "libmpifort.so.12", "libc.so.6"]),
            ("libpmi.so.0", &["libslurm_pmi.so"]),
            ("libc.so.6", &["libpmix.so.2"]),
        ];
        let expected = ["libmpifort.so.12", "libmpi.so.12", "libpmi.so.0"];
        assert_eq!(names(&["libm.so.6", "libmpifort.so.12", "libmpi.so.12"], known), expected);
        assert_eq!(names(&["libmpi.so.40"], known), ["libmpi.so.40"], "it is not on this machine");
        assert_eq!(names(&["libc.so.6"], known), [""; 0]);
    }

    #[test]
    fn the_number_of_libraries_is_bounded() {
        let many: Vec<String> = (0..=LIBRARIES_MAX).map(|number| format!("libmpi{number}.so")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert_eq!(names(&many, &[]).len(), LIBRARIES_MAX);
    }
}
