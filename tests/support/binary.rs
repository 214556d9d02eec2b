//! Paths of programs: the one under test, and those of the system.

use std::path::PathBuf;
use std::sync::OnceLock;

/// Returns the path of the `scela-run` under test: the value of `SCELA_RUN`, else the file in the target directory
/// that this test was built into.
pub fn scela_run() -> &'static PathBuf {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("SCELA_RUN") {
        Some(path) => std::path::absolute(path).expect("a working directory"),
        None => beside_this_test(),
    })
}

fn beside_this_test() -> PathBuf {
    // <target directory>/<profile>/deps/<test>
    let test = std::env::current_exe().expect("the path of the test program");
    let target = test.ancestors().nth(3).expect("a test lies in a target directory");
    let candidates = ["release", "debug"].map(|profile| target.join(profile).join("scela-run"));
    match candidates.iter().find(|candidate| candidate.is_file()) {
        Some(found) => found.clone(),
        None => panic!(
            "{} does not exist: run 'cargo build --release' first, or name a program in SCELA_RUN",
            candidates[0].display()
        ),
    }
}

/// Returns the path of a system program. Also searches the directories of daemons, which are not in every user's PATH.
pub(crate) fn found(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/sbin"].map(PathBuf::from));
    places.map(|place| place.join(program)).find(|candidate| candidate.is_file())
}
