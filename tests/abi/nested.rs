//! Launchers that ranks run, with system(3) and through shells: neither conversation disturbs the other.

use std::path::Path;

use tests::{Program, Run, scela, scela_run, skip};

use crate::libraries::{Api, Ours};

/// The ranks of a nested job.
const INNER: u32 = 2;

/// The command lines that start the nested job.
#[track_caller]
fn commands(program: &Path) -> Vec<String> {
    let (scela, program) = (scela_run().display(), program.display());
    let mut commands = vec![
        format!("{scela} -np {INNER} {program} inner"),
        format!("sh -c 'cd /; {scela} -np {INNER} --pmi-port {program} inner; exit $?'"),
    ];
    match std::process::Command::new("mpiexec.hydra").arg("-info").output() {
        Ok(_) => commands.push(format!("mpiexec.hydra -n {INNER} {program} inner")),
        Err(_) => skip("mpiexec.hydra is not installed; Debian has it in mpich, ./tests/run installs it"),
    }
    commands
}

/// Runs two ranks, each of which runs the `command` before, between and after its PMI calls.
#[track_caller]
fn nests(run: Run, program: &Path, command: &str) {
    const RANKS: u32 = 2;
    /// How often a rank runs the command: around init, twice in each of two exchanges, and after finalize.
    const LAUNCHES: u32 = 7;
    let words: Program = vec![program.into(), command.into()];
    let outcome = run.np(RANKS).program(words).run();
    let inner = (0..RANKS * LAUNCHES).flat_map(|_| (0..INNER).map(|rank| format!("inner {rank} of {INNER}")));
    let outer = (0..RANKS).map(|rank| format!("{rank} of {RANKS}: went on"));
    outcome.is_quiet_success().wrote_lines(inner.chain(outer));
}

#[test]
fn a_launcher_in_a_rank_does_not_disturb_the_ranks_conversation() {
    for api in Api::ALL {
        let program = Ours::of(api).compiled("nested");
        for command in commands(&program) {
            nests(scela().agents(2), &program, &command);
            nests(scela().arg("--pmi-port"), &program, &command);
        }
    }
}
