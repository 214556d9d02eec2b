//! Tests that lack something on this machine.

use std::io::{self, Write as _};

/// Set by `tests/run`: a test that cannot run fails.
const STRICT: &str = "TESTS_STRICT";

/// Prints that a test is skipped, and why. Panics if `TESTS_STRICT` is set.
#[track_caller]
pub fn skip(why: &str) {
    assert!(std::env::var_os(STRICT).is_none(), "{why}");
    // Not `eprintln!`: the test harness shows its output for failed tests only.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}
