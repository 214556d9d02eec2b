//! The libraries, and the programs built with them.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use tests::{scela_run, skip};

/// Debian's directory for Slurm's headers.
const SLURM_HEADERS: &str = "/usr/include/slurm";

/// One of the two interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Api {
    Pmi,
    Pmi2,
}

impl Api {
    pub(crate) const ALL: [Self; 2] = [Self::Pmi, Self::Pmi2];

    /// Returns the name as it occurs in file names.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Pmi => "pmi",
            Self::Pmi2 => "pmi2",
        }
    }

    pub(crate) fn soname(self) -> String {
        format!("lib{}.so.0", self.name())
    }

    pub(crate) fn header(self) -> String {
        format!("{}.h", self.name())
    }
}

/// A library that programs may be linked with.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub(crate) api: Api,
    /// "ours" or "slurms".
    pub(crate) owner: &'static str,
    /// The directory of the headers.
    pub(crate) headers: PathBuf,
    /// The path of the shared library.
    pub(crate) file: PathBuf,
}

/// ScELA's libraries, which are in the same directory as the tested `scela-run`.
pub(crate) struct Ours;

impl Ours {
    #[track_caller]
    pub(crate) fn pmi() -> Library {
        Self::of(Api::Pmi)
    }

    #[track_caller]
    pub(crate) fn of(api: Api) -> Library {
        let file = scela_run().with_file_name(format!("lib{}.so", api.name()));
        assert!(file.is_file(), "{} does not exist: run 'cargo build --release --workspace' first", file.display());
        Library { api, owner: "ours", headers: repository().join("libpmi-c/include"), file }
    }
}

/// Returns Debian's library; `None`, with a notice, if it is not installed.
#[track_caller]
pub(crate) fn slurms(api: Api) -> Option<Library> {
    let headers = PathBuf::from(SLURM_HEADERS);
    let soname = api.soname();
    // gcc prints the bare name if it finds no such file.
    let found = Command::new("gcc").arg(format!("-print-file-name={soname}")).output();
    let found = found.map_or_else(|_| String::new(), |found| String::from_utf8_lossy(&found.stdout).trim().to_owned());
    let file = PathBuf::from(found);
    if headers.join(api.header()).is_file() && file.is_absolute() {
        return Some(Library { api, owner: "slurms", headers, file });
    }
    skip(&format!(
        "Slurm's {soname} and its headers are not installed; Debian has them in libpmi0-dev and libpmi2-0-dev, \
             ./tests/run installs them"
    ));
    None
}

impl Library {
    /// Builds a C program of `programs/` or `libpmi-c/tests` with this library. The program loads no
    /// other one, whatever its environment says.
    #[track_caller]
    pub(crate) fn compiled(&self, program: &str) -> PathBuf {
        self.compiled_with(program, &[])
    }

    /// Like [`Library::compiled`], with further compiler flags.
    #[track_caller]
    pub(crate) fn compiled_with(&self, program: &str, flags: &[&str]) -> PathBuf {
        static BUILT: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("abi").join(self.owner);
        let path = directory.join(format!("{program}-{}{}", self.api.name(), flags.concat()));
        // A test that panicked has left the set consistent.
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if built.insert(path.clone()) {
            let place = self.place(&directory);
            // Rename the complete file: another run of the tests may be executing the old one.
            let new = path.with_extension(std::process::id().to_string());
            self.compile(&source(program), &place, &new, flags);
            fs::rename(&new, &path).expect("failed to rename the program");
        }
        path
    }

    /// Creates a directory with links to this library under all its names.
    #[track_caller]
    fn place(&self, directory: &Path) -> PathBuf {
        let place = directory.join("lib").join(self.api.name());
        fs::create_dir_all(&place).expect("failed to create a directory in cargo's directory for tests");
        for name in [format!("lib{}.so", self.api.name()), self.api.soname()] {
            let link = place.join(name);
            if fs::read_link(&link).ok().as_ref() != Some(&self.file) {
                let _ = fs::remove_file(&link);
                symlink(&self.file, &link).expect("failed to create a symbolic link");
            }
        }
        place
    }

    #[track_caller]
    fn compile(&self, source: &Path, place: &Path, path: &Path, flags: &[&str]) {
        let mut compiler = Command::new("gcc");
        // No optimisation: it would lose variables when a walk jumps out of a call with siglongjmp.
        compiler.args(["-std=gnu99", "-O0", "-g", "-pthread", "-Wall", "-Wextra", "-Werror"]);
        compiler.args(flags).args(["-Wno-unused-function", &format!("-DAPI={}", self.api as u32 + 1)]);
        compiler.arg("-I").arg(&self.headers).arg("-I").arg(repository().join("libpmi-c/tests"));
        compiler.arg("-o").arg(path).arg(source);
        compiler.arg("-L").arg(place).arg(format!("-l{}", self.api.name()));
        compiler.arg("-Wl,--disable-new-dtags").arg(format!("-Wl,-rpath,{}", place.display()));
        let compiled = compiler.output().expect("gcc cannot be started; ./tests/run installs it");
        let errors = String::from_utf8_lossy(&compiled.stderr);
        assert!(compiled.status.success(), "{} with {} headers: {errors}", source.display(), self.owner);
    }
}

/// Returns the path of a program's source.
fn source(program: &str) -> PathBuf {
    let file = format!("{program}.c");
    let places = [repository().join("tests/abi/programs"), repository().join("libpmi-c/tests")];
    let found = places.iter().map(|place| place.join(&file)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("{file} is in none of {places:?}"))
}

pub(crate) fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}
