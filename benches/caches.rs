//! `cargo bench -p benches --bench caches`: what the four cache policies cost over trees of many agents.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Caches)
}
