//! What cargo knows: where its output is, and how scela-run is built.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use thiserror::Error;

/// Why there is no scela-run to time.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The bench was not started from where cargo puts benches.
    #[error("cannot tell the target directory from where the bench lies: {0}")]
    Lost(PathBuf),
    /// The bench does not know where it lies.
    #[error("cannot tell where the bench lies")]
    Nowhere(#[source] io::Error),
    /// Cargo could not be started.
    #[error("cannot start cargo to build scela-run (or name one that is built: SCELA_RUN=PATH)")]
    NoCargo(#[source] io::Error),
    /// Cargo could not build it.
    #[error("cannot build scela-run: cargo ended with {0} (to time the others alone: --without scela-run)")]
    Failed(ExitStatus),
    /// The environment names one that is not there.
    #[error("SCELA_RUN names {0}, which is not there")]
    Missing(PathBuf),
}

/// The target directory: benches lie in `target/release/deps`.
///
/// # Errors
/// Where the bench lies elsewhere.
pub fn target_directory() -> Result<PathBuf, BuildError> {
    let bench = env::current_exe().map_err(BuildError::Nowhere)?;
    match bench.ancestors().nth(3) {
        Some(target) => Ok(target.to_owned()),
        None => Err(BuildError::Lost(bench)),
    }
}

/// The scela-run to time: the one that `SCELA_RUN` names, else one built now.
///
/// # Errors
/// Where it cannot be built, or is not where `SCELA_RUN` says.
pub fn scela_run(target: &Path) -> Result<PathBuf, BuildError> {
    if let Some(path) = env::var_os("SCELA_RUN").map(PathBuf::from) {
        return path.canonicalize().map_err(|_| BuildError::Missing(path));
    }
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--release", "-p", "scela-run", "--target-dir"])
        .arg(target)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .map_err(BuildError::NoCargo)?;
    if status.success() { Ok(target.join("release/scela-run")) } else { Err(BuildError::Failed(status)) }
}

/// Whether a variable of the environment is cargo's or an outer launcher's, and not the user's: launchers should
/// start as they do from a shell.
#[must_use]
pub fn is_foreign(variable: &str) -> bool {
    ["CARGO", "RUST", "PMI_", "PMIX_", "HYDI_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// The user's own part of a library path to which cargo has added its directories.
#[must_use]
pub fn own_library_path(path: &str, target: &Path) -> String {
    let is_own = |directory: &&str| !Path::new(directory).starts_with(target) && !directory.contains("rustlib");
    let is_own = |directory: &&str| is_own(directory) && !directory.contains("/toolchains/");
    path.split(':').filter(is_own).collect::<Vec<_>>().join(":")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_s_directories_leave_the_library_path() {
        let path = "/t/release/deps:/home/u/.rustup/toolchains/x/lib:/opt/mpi/lib";
        assert_eq!(own_library_path(path, Path::new("/t")), "/opt/mpi/lib");
    }

    #[test]
    fn the_user_s_variables_stay() {
        assert!(is_foreign("CARGO_PKG_NAME") && is_foreign("PMI_RANK"));
        assert!(!is_foreign("PATH") && !is_foreign("OMP_NUM_THREADS"));
    }
}
