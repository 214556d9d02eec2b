//! `cargo bench -p benches --bench scale`: how the costs of scela-run grow with the number of ranks.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Scale)
}
