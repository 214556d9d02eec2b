//! `cargo bench -p benches --bench pmi`: what ranks pay for PMI, over the wire and through libpmi.so.

use std::process::ExitCode;

use benches::suite::Suite;

fn main() -> ExitCode {
    benches::main(Suite::Pmi)
}
