//! The hosts tier: sessions over several hosts, which are namespaces of this machine.
//!
//! | file | about |
//! |---|---|
//! | `boards` | boards that are long enough to travel in pieces |
//! | `charm` | charm4py over ssh |
//! | `cluster` | the tests' hosts behave as hosts and leave nothing behind |
//! | `explain` | reports before and after a launch, and what a calibration stores |
//! | `launch` | agents started by ssh, flat and in trees; sending the program; hosts that fail |
//! | `managers` | agents in jobs of PBS, LSF, Grid Engine and Flux, by the mock commands or by ssh |
//! | `mocks` | the mock commands of PBS, LSF, SGE and Flux start the given command on the given host |
//! | `mpich` | MPICH over ssh, with nothing installed on the hosts, and without hosts that fail |
//! | `no_ports` | links over the remote shells that started the agents, where only ssh gets through |
//! | `open_mpi` | Open MPI 5, which PMIx serves, over ssh and in a Slurm job |
//! | `readme` | the cluster commands of README.md do what README.md says |
//! | `slurm` | the tests' Slurm provides nodes and starts ranks on them |
//! | `slurm_launch` | agents started by one Slurm step, on nodes of this machine and on hosts |
//! | `survivals` | `--on-failure continue`: a lost host takes only its own ranks with it |
//! | `staging` | programs and files that hosts do not see are staged there |
//! | `stops` | processes that are stopped on hosts that answer, and hosts that do not answer |
//! | `startup` | measured start times beside the model's predictions |

#![expect(clippy::unwrap_used, reason = "a test may fail in any of its parts")]

mod boards;
mod charm;
mod cluster;
mod explain;
mod launch;
mod limits;
mod managers;
mod mocks;
mod mpich;
mod no_ports;
mod open_mpi;
mod pool_kills;
mod pools;
mod readme;
mod slurm;
mod slurm_launch;
mod staging;
mod startup;
mod stops;
mod strangers;
mod survivals;

use std::process::Output;

use tests::{Broken, Cluster, Outcome, Program, scela_run};

/// Asserts that a command succeeded, and returns its standard output.
#[track_caller]
fn out(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Breaks the five hosts after the first, each in a different way.
fn break_five(cluster: &Cluster) {
    let ways = [Broken::NameUnknown, Broken::Refused, Broken::NoLogin, Broken::NoExec, Broken::Silent];
    for (host, way) in cluster.hosts()[1..].iter().zip(ways) {
        host.break_as(way);
        host.hide(scela_run());
    }
}

/// Asserts that the five hosts broken by [`break_five`] are reported with their reasons.
#[track_caller]
fn reports_five(outcome: &Outcome, hosts: usize) {
    outcome
        .says(&format!("5 of {hosts} hosts could not be started"))
        .says("node002: Name or service not known")
        .says("node003: Connection refused")
        .says("node004: Permission denied")
        .says("node005: no place: there is no ")
        .says("and neither perl nor python can take it into memory")
        .says("node006: no answer in time (--start-timeout)");
}

/// Returns the command that runs the rank program with these arguments.
fn rank<'a>(words: impl IntoIterator<Item = &'a str>) -> Program {
    std::iter::once(env!("CARGO_BIN_EXE_rank")).chain(words).map(Into::into).collect()
}
