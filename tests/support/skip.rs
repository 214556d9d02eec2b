//! What becomes of a test that lacks something on this machine.

use std::io::{self, Write as _};

/// Set by `tests/run`: what cannot run is a failure.
const STRICT: &str = "TESTS_STRICT";

/// Says that a test does not run, and why; a failure where every test must.
#[track_caller]
pub fn skip(why: &str) {
    assert!(std::env::var_os(STRICT).is_none(), "{why}");
    // Not by eprintln!, which is shown for failures only.
    let _ = writeln!(io::stderr(), "skipped: {why}");
}
