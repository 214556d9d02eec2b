//! The timed programs: C sources, compiled when the bench starts.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use thiserror::Error;

/// The compiled programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Marks its rank and leaves.
    pub empty: PathBuf,
    /// Speaks PMI, in one of several modes.
    pub pmi: PathBuf,
    /// The same through libpmi.so, where there is one.
    pub library: Option<PathBuf>,
    /// Starts `empty` as fast as the kernel can.
    pub floor: PathBuf,
}

/// Why there are no programs to time.
#[derive(Debug, Error)]
pub enum CompileError {
    /// There is no compiler.
    #[error("no C compiler: install one with its static C library (Debian: gcc libc6-dev, Fedora: gcc glibc-static)")]
    NoCompiler(#[source] io::Error),
    /// The compiler did not like the source, or lacks the static library.
    #[error(
        "cc cannot compile {program}.c (is the static C library there? Debian: libc6-dev, Fedora: glibc-static):\n\
         {output}"
    )]
    Refused {
        /// Which program.
        program: &'static str,
        /// What the compiler said.
        output: String,
    },
}

impl Programs {
    /// Compiles all programs into `directory`; `library` is the libpmi.so of one of them.
    ///
    /// # Errors
    /// Where there is no C compiler, or no static library.
    pub fn compile(directory: &Path, library: Option<&Path>) -> Result<Self, CompileError> {
        Ok(Self {
            empty: compile("empty", directory.join("empty"), &STATIC)?,
            pmi: compile("pmi", directory.join("pmi"), &STATIC)?,
            library: library.map(|library| compile_for(library, directory.join("library"))).transpose()?,
            floor: compile("floor", directory.join("floor"), &STATIC)?,
        })
    }
}

/// The program that loads `library` when it begins to speak PMI.
fn compile_for(library: &Path, binary: PathBuf) -> Result<PathBuf, CompileError> {
    let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("../libpmi-c/include");
    // Its own references are resolved when it starts, so that none is while it looks at its memory.
    let flags = [
        OsString::from("-Wl,-z,now"),
        // As a string of C.
        format!("-DPMI_LIBRARY={library:?}").into(),
        OsString::from("-I"),
        include.into(),
    ];
    compile("pmi", binary, &flags)
}

fn compile(program: &'static str, binary: PathBuf, flags: &[impl AsRef<OsStr>]) -> Result<PathBuf, CompileError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(program).with_extension("c");
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&binary)
        .arg(source)
        // Where dlopen is not in the C library itself.
        .arg("-ldl")
        .output()
        .map_err(CompileError::NoCompiler)?;
    if output.status.success() {
        Ok(binary)
    } else {
        Err(CompileError::Refused { program, output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned() })
    }
}

const STATIC: [&str; 1] = ["-static"];
