//! The pool of a session.

use std::process::{Command, Stdio};

use tests::{Run, scela_run};

/// The variable with the directory of pools.
const DIRECTORY: &str = "SCELA_POOL_DIR";

/// Starts a pool with so many slots for this run, and for no other. Returns the run, in the pool.
pub(crate) fn start(run: Run, slots: u32) -> Result<Run, String> {
    let directory = run.world().file("pools");
    let run = run.env(DIRECTORY, directory);
    succeed(&run, &["start", "--slots", &slots.to_string()]).map(|()| run)
}

/// Stops it at once.
pub(crate) fn stop(run: &Run) -> Result<(), String> {
    succeed(run, &["stop", "--kill"])
}

fn succeed(run: &Run, words: &[&str]) -> Result<(), String> {
    let mut command = Command::new(scela_run().with_file_name("scela"));
    run.set_environment(&mut command);
    let output = command.arg("pool").args(words).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    if output.status.success() { Ok(()) } else { Err(format!("  {command:?}: {output:?}")) }
}
