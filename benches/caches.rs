//! `cargo bench -p benches --bench caches`: the cost of each cache policy over trees of many agents.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Caches)
}
