//! `cargo bench -p benches --bench pmi`: the cost of PMI for ranks, over the wire and through libpmi.so.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Pmi)
}
