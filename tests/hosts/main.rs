//! The hosts tier: sessions over several hosts, which are namespaces of this machine.
//!
//! | file | about |
//! |---|---|
//! | `cluster` | that the hosts of tests are hosts, and leave nothing |
//! | `explain` | what is told of a launch before and behind it, and what a calibration keeps |
//! | `launch` | agents that come by ssh, flat and in trees; programs that are sent; hosts that fail |
//! | `managers` | agents in jobs of PBS, LSF, Grid Engine and Flux, by the mock commands or by ssh |
//! | `mocks` | that mock commands of PBS, LSF, SGE and Flux start what they are told where they are told |
//! | `mpich` | MPICH over ssh, with nothing installed on the hosts, and without those that fail |
//! | `no_ports` | links over the sessions that started the agents, where nothing but ssh gets through |
//! | `readme` | that what README.md says of clusters is so, command by command |
//! | `slurm` | that the Slurm of tests gives nodes, and starts ranks on them |
//! | `slurm_launch` | agents that come by one step of Slurm, on nodes of this machine and on hosts |
//! | `startup` | how long starts take beside what the model says |

#![expect(clippy::unwrap_used, reason = "a test may fail in any of its parts")]

mod cluster;
mod explain;
mod launch;
mod managers;
mod mocks;
mod mpich;
mod no_ports;
mod readme;
mod slurm;
mod slurm_launch;
mod startup;

use std::process::Output;

use tests::{Broken, Cluster, Outcome, Program, scela_run};

/// What a command wrote that succeeded.
#[track_caller]
fn out(output: Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Breaks the five hosts behind the first, each in a way of its own.
fn break_five(cluster: &Cluster) {
    let ways = [Broken::NameUnknown, Broken::Refused, Broken::NoLogin, Broken::NoExec, Broken::Silent];
    for (host, way) in cluster.hosts()[1..].iter().zip(ways) {
        host.break_as(way);
        host.hide(scela_run());
    }
}

/// Such five are named, of so many, with their reasons.
#[track_caller]
fn tells_of_five(outcome: &Outcome, hosts: usize) {
    outcome
        .says(&format!("5 of {hosts} hosts could not be started"))
        .says("node002: Name or service not known")
        .says("node003: Connection refused")
        .says("node004: Permission denied")
        .says("node005: no place: there is no ")
        .says("and neither perl nor python can take it into memory")
        .says("node006: no answer in time (--start-timeout)");
}

/// The rank program with its arguments.
fn rank<'a>(words: impl IntoIterator<Item = &'a str>) -> Program {
    std::iter::once(env!("CARGO_BIN_EXE_rank")).chain(words).map(Into::into).collect()
}
