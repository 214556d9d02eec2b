//! The measured programs: C sources, compiled when the bench starts.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::BenchError;

/// The compiled programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Marks its rank and exits.
    pub empty: PathBuf,
    /// Writes to standard output.
    pub output: PathBuf,
    /// Speaks PMI, in one of several modes.
    pub pmi: PathBuf,
    /// The same through libpmi.so, if the bench measures it.
    pub library: Option<PathBuf>,
    /// Starts `empty` or `output` as fast as the kernel can.
    pub floor: PathBuf,
    /// Starts `pmi` or `wakes` as fast as the kernel can, and serves it without a tree.
    pub server: PathBuf,
    /// The least exchange through shared memory.
    pub wakes: PathBuf,
}

impl Programs {
    /// Compiles all programs into `directory`, one of them with `library`, a libpmi.so.
    ///
    /// # Errors
    /// If there is no C compiler, or no static C library.
    pub fn compile(directory: &Path, library: Option<&Path>) -> Result<Self, BenchError> {
        Ok(Self {
            empty: compile_static("empty", directory.join("empty"))?,
            output: compile_static("output", directory.join("output"))?,
            pmi: compile_static("pmi", directory.join("pmi"))?,
            library: library.map(|library| compile_for(library, directory.join("library"))).transpose()?,
            floor: compile_static("floor", directory.join("floor"))?,
            server: compile_static("server", directory.join("server"))?,
            wakes: compile_static("wakes", directory.join("wakes"))?,
        })
    }
}

/// Compiles `programs/PROGRAM.c` into the static program `binary`.
///
/// # Errors
/// As [`Programs::compile`].
pub fn compile_static(program: &str, binary: PathBuf) -> Result<PathBuf, BenchError> {
    compile(program, binary, &STATIC)
}

/// Compiles the program that loads `library` when it initialises PMI.
fn compile_for(library: &Path, binary: PathBuf) -> Result<PathBuf, BenchError> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libpmi-c/include");
    // Resolve its symbols at start, so that lazy binding does not happen between two readings of its
    // memory.
    let flags = [
        OsString::from("-Wl,-z,now"),
        // In the syntax of a C string.
        format!("-DPMI_LIBRARY={library:?}").into(),
        OsString::from("-I"),
        include.into(),
    ];
    compile("pmi", binary, &flags)
}

fn compile(program: &str, binary: PathBuf, flags: &[impl AsRef<OsStr>]) -> Result<PathBuf, BenchError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(program).with_extension("c");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&binary)
        .arg(source)
        // For C libraries with a separate libdl.
        .arg("-ldl")
        .output()
        .map_err(BenchError::because(NO_COMPILER))?;
    if output.status.success() {
        Ok(binary)
    } else {
        let complaint = String::from_utf8_lossy(&output.stderr);
        Err(BenchError::new(format!(
            "cc cannot compile {program}.c (is the static C library there? Debian: libc6-dev, Fedora: glibc-static):\n\
             {}",
            complaint.trim_end()
        )))
    }
}

const STATIC: [&str; 1] = ["-static"];
const NO_COMPILER: &str =
    "no C compiler: install one with its static C library (Debian: gcc libc6-dev, Fedora: gcc glibc-static)";
