//! `cargo bench -p benches --bench launch`: scela-run, the kernel's floor and the launchers installed here.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Launch)
}
