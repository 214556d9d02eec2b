//! Cargo's target directory, and builds of scela-run and libpmi.so.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::BenchError;
use crate::launcher::LIBRARY;

/// A program or library of this repository that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Product {
    /// The name for `--without`.
    name: &'static str,
    /// The environment variable that names an existing build.
    variable: &'static str,
    package: &'static str,
    file: &'static str,
}

/// The launcher.
pub const SCELA_RUN: Product =
    Product { name: "scela-run", variable: "SCELA_RUN", package: "scela-run", file: "scela-run" };

/// The program of pools. It must be of the same build as [`SCELA_RUN`].
pub const SCELA: Product = Product { name: "scela", variable: "SCELA", package: "scela-run", file: "scela" };

/// The PMI-1 client library.
pub const LIBPMI: Product =
    Product { name: LIBRARY, variable: "SCELA_PMI_LIBRARY", package: "libpmi-c", file: "libpmi.so" };

/// Returns the target directory; benches are in `target/release/deps`.
///
/// # Errors
/// If the bench's program is elsewhere.
pub fn target_directory() -> Result<PathBuf, BenchError> {
    let bench = env::current_exe().map_err(BenchError::because("cannot find the path of the bench"))?;
    let lost = "cannot find the target directory from the path of the bench";
    bench.ancestors().nth(3).map(Path::to_owned).ok_or_else(|| BenchError::because(lost)(bench.display()))
}

impl Product {
    /// Returns the file to measure: the one that its variable names, or else a new build.
    ///
    /// # Errors
    /// If the build fails, or the variable names a missing file.
    pub fn find(self, target: &Path) -> Result<PathBuf, BenchError> {
        let Self { name, variable, package, file } = self;
        if let Some(path) = env::var_os(variable).map(PathBuf::from) {
            let missing = || format!("{variable} names {}, which does not exist", path.display());
            return path.canonicalize().map_err(|_| BenchError::new(missing()));
        }
        let no_cargo = format!("cannot start cargo to build {name} (or use an existing one: {variable}=PATH)");
        let status = command()
            .args(["build", "--quiet", "--release", "-p", package, "--target-dir"])
            .arg(target)
            .status()
            .map_err(BenchError::because(no_cargo))?;
        if status.success() {
            installed(&target.join("release").join(file), &target.join("installed"))
        } else {
            Err(BenchError::new(format!(
                "cannot build {name}: cargo ended with {status} (to use an existing one: {variable}=PATH; to leave it \
                 out: --without {name})"
            )))
        }
    }
}

/// Returns a command that runs cargo in this package.
#[must_use]
pub fn command() -> Command {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    command
}

/// Copies a file, as an installation does. The linker writes through a mapping, which leaves the page cache with small pages: the
/// program would start a fifth slower.
fn installed(file: &Path, directory: &Path) -> Result<PathBuf, BenchError> {
    let copy = directory.join(file.file_name().unwrap_or_default());
    let copied = fs::create_dir_all(directory)
        // A running program cannot be overwritten.
        .and_then(|()| {
            fs::remove_file(&copy).or_else(|error| match error.kind() {
                io::ErrorKind::NotFound => Ok(()),
                _ => Err(error),
            })
        })
        .and_then(|()| fs::copy(file, &copy));
    copied.map_err(BenchError::because(format!("cannot copy {} to {}", file.display(), copy.display())))?;
    Ok(copy)
}

/// Returns whether cargo or an outer launcher, not the user, has set an environment variable. Launchers
/// run without such variables, as from a shell.
#[must_use]
pub fn is_foreign(variable: &str) -> bool {
    ["CARGO", "RUST", "PMI_", "PMIX_", "HYDI_"].iter().any(|prefix| variable.starts_with(prefix))
}

/// Removes the variables from a command's environment that [are foreign](is_foreign).
pub fn without_foreign_variables(command: &mut Command) {
    let names = env::vars_os().map(|(name, _)| name);
    names.filter(|name| is_foreign(&name.to_string_lossy())).for_each(|name| {
        command.env_remove(name);
    });
}

/// Removes the directories that cargo has added to a library path.
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
    fn directories_of_cargo_are_removed_from_the_library_path() {
        let path = "/t/release/deps:/home/u/.rustup/toolchains/x/lib:/opt/mpi/lib";
        assert_eq!(own_library_path(path, Path::new("/t")), "/opt/mpi/lib");
    }

    #[test]
    fn variables_of_the_user_are_kept() {
        assert!(is_foreign("CARGO_PKG_NAME") && is_foreign("PMI_RANK"));
        assert!(!is_foreign("PATH") && !is_foreign("OMP_NUM_THREADS"));
    }
}
