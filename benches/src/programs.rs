//! The timed programs: C sources, compiled when the bench starts.

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
        "cc cannot compile {program}.c statically (is the static C library there? Debian: libc6-dev, Fedora: \
         glibc-static):\n{output}"
    )]
    Refused {
        /// Which program.
        program: &'static str,
        /// What the compiler said.
        output: String,
    },
}

impl Programs {
    /// Compiles all programs into `directory`.
    ///
    /// # Errors
    /// Where there is no C compiler, or no static library.
    pub fn compile(directory: &Path) -> Result<Self, CompileError> {
        Ok(Self {
            empty: compile("empty", directory)?,
            pmi: compile("pmi", directory)?,
            floor: compile("floor", directory)?,
        })
    }
}

fn compile(program: &'static str, directory: &Path) -> Result<PathBuf, CompileError> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(program).with_extension("c");
    let binary = directory.join(program);
    let output = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-static", "-pthread", "-o"])
        .arg(&binary)
        .arg(source)
        .output()
        .map_err(CompileError::NoCompiler)?;
    if output.status.success() {
        Ok(binary)
    } else {
        Err(CompileError::Refused { program, output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned() })
    }
}
