//! `cargo bench -p benches --bench readme -- --write`: the benches `launch` and `pmi`, which write the tables of README.md.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use benches::cargo;
use benches::error::BenchError;
use benches::options::Options;
use benches::report::complain;
use benches::suite::Suite;

fn main() -> ExitCode {
    // Both command lines are parsed before the first bench starts, which takes long.
    let both = Suite::OF_README.map(|suite| (suite, Options::from_command_line(suite)));
    let words: Vec<OsString> = env::args_os().skip(1).filter(|word| word != "--bench").collect();
    match run(&both, &words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(&error);
            ExitCode::FAILURE
        }
    }
}

/// Runs one bench after the other with the same `words`.
fn run(benches: &[(Suite, Options)], words: &[OsString]) -> Result<(), BenchError> {
    if benches.iter().any(|(_, options)| options.csv.is_some()) {
        return Err(BenchError::new("each of the two benches would write the file of --csv; run them one by one"));
    }
    let target = cargo::target_directory()?;
    for (suite, _) in benches {
        let name = suite.name();
        let mut bench = cargo::command();
        bench.args(["bench", "--quiet", "-p", "benches", "--bench", name, "--target-dir"]).arg(&target);
        bench.arg("--").args(words);
        let status = bench.status().map_err(BenchError::because(format!("cannot start cargo for the bench {name}")))?;
        if !status.success() {
            return Err(BenchError::new(format!("the bench {name} has failed; cargo ended with {status}")));
        }
    }
    Ok(())
}
