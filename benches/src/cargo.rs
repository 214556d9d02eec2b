//! What cargo knows: where its output is, and how scela-run and libpmi.so are built.

use std::env;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};

use thiserror::Error;

use crate::launcher::LIBRARY;

/// Why there is nothing of ours to time.
#[derive(Debug, Error)]
pub enum BuildError {
    /// The bench was not started from where cargo puts benches.
    #[error("cannot tell the target directory from where the bench lies: {0}")]
    Lost(PathBuf),
    /// The bench does not know where it lies.
    #[error("cannot tell where the bench lies")]
    Nowhere(#[source] io::Error),
    /// Cargo could not be started.
    #[error("cannot start cargo to build {} (or name one that is built: {}=PATH)", .0.name, .0.variable)]
    NoCargo(Product, #[source] io::Error),
    /// Cargo could not build it.
    #[error(
        "cannot build {}: cargo ended with {status} (to name one that is built: {}=PATH; to time the others alone: \
         --without {})", .product.name, .product.variable, .product.name
    )]
    Failed {
        /// What was to be built.
        product: Product,
        /// How cargo ended.
        status: ExitStatus,
    },
    /// The environment names one that is not there.
    #[error("{} names {}, which is not there", .product.variable, .path.display())]
    Missing {
        /// What was named.
        product: Product,
        /// Where it should be.
        path: PathBuf,
    },
}

/// Something of this repository that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// What `--without` calls it.
    name: &'static str,
    /// The variable that names one that is built.
    variable: &'static str,
    package: &'static str,
    file: &'static str,
}

/// The launcher.
pub const SCELA_RUN: Product =
    Product { name: "scela-run", variable: "SCELA_RUN", package: "scela-run", file: "scela-run" };

/// The library by which ranks ask it.
pub const LIBPMI: Product =
    Product { name: LIBRARY, variable: "SCELA_PMI_LIBRARY", package: "libpmi-c", file: "libpmi.so" };

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

impl Product {
    /// The one to time: that which its variable names, else one built now.
    ///
    /// # Errors
    /// Where it cannot be built, or is not where the variable says.
    pub fn find(self, target: &Path) -> Result<PathBuf, BuildError> {
        if let Some(path) = env::var_os(self.variable).map(PathBuf::from) {
            return path.canonicalize().map_err(|_| BuildError::Missing { product: self, path });
        }
        let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let status = Command::new(cargo)
            .args(["build", "--quiet", "--release", "-p", self.package, "--target-dir"])
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .map_err(|source| BuildError::NoCargo(self, source))?;
        if status.success() {
            Ok(target.join("release").join(self.file))
        } else {
            Err(BuildError::Failed { product: self, status })
        }
    }
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
