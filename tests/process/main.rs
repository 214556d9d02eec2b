//! The process tier: `scela-run` with real agents and small programs that behave, or do not.
//!
//! Each test asserts the exit code, what the user reads, and that nothing is left.
//!
//! | file | about |
//! |---|---|
//! | `codes` | how sessions end, and with which code |
//! | `losses` | agents, guardians and launchers that die or are stopped |
//! | `board` | put, get, fence: patterns, shapes of the tree, values |
//! | `silence` | programs that do not speak PMI, and those that should |
//! | `commands` | the rest of PMI-1: names, sizes, indexes, port mode |
//! | `spawns` | MPI_Comm_spawn |
//! | `panics` | tasks that panic, in agents and in the launcher |
//! | `malformed` | what no client should send |
//! | `output`, `input` | streams: whole, in order, bounded |
//! | `signals` | signals and the terminal |
//! | `environment` | what a rank is started with |
//! | `descriptors` | what the launcher inherits, and who does not |
//! | `invocation` | names, files of programs, defaults, verbosity |
//! | `tree` | that the tree is one |
//! | `stats` | what was counted, against the kernel's counts |
//! | `recordings` | that a core replays what an agent recorded |
//! | `simulated` | that the simulation counts what a real run counts |
//! | `security` | that links are closed to strangers and unreadable |

#![expect(clippy::unwrap_used, reason = "a test may fail in any of its parts")]

mod board;
mod codes;
mod commands;
mod descriptors;
mod environment;
mod input;
mod invocation;
mod losses;
mod malformed;
mod output;
mod panics;
mod recordings;
mod security;
mod signals;
mod silence;
mod simulated;
mod spawns;
mod stats;
mod tree;

use tests::Program;

/// The rank program with its arguments.
fn rank<'a>(words: impl IntoIterator<Item = &'a str>) -> Program {
    std::iter::once(env!("CARGO_BIN_EXE_rank")).chain(words).map(Into::into).collect()
}

/// The rank program with a script.
fn script<'a>(steps: impl IntoIterator<Item = &'a str>) -> Program {
    rank(std::iter::once("script").chain(steps))
}

/// This host, as reports call it.
fn host() -> String {
    nla::sys::host_name()
}
