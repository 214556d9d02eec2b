//! The process tier: `scela-run` with real agents and with small programs that behave well or badly.
//!
//! Each test asserts the exit code, the messages to the user, and that nothing is left behind.
//!
//! | file | about |
//! |---|---|
//! | `accelerators` | accelerators and other devices of ranks |
//! | `cgroups` | cgroups that are delegated to the user |
//! | `batches` | `scela simulate-batch`, with SimGrid and without |
//! | `bindings` | processors and memory of ranks |
//! | `codes` | how sessions end, and with which exit code |
//! | `losses` | agents, guardians and launchers that die, agents and guardians that stop alone |
//! | `stops` | processes that are stopped or starved, and go on; the dead time |
//! | `leftovers` | files that killed ranks leave in /dev/shm |
//! | `board` | put, get, fence: patterns, shapes of the tree, values |
//! | `without_pmi` | programs that do not use PMI, and MPI programs that should |
//! | `commands` | the rest of PMI-1: names, sizes, indexes, port mode |
//! | `spawns` | MPI_Comm_spawn |
//! | `staged_directories` | staged directories, caches of nodes, files of ranks that are brought back |
//! | `staging` | staged programs and files: ranks run the copies, and nothing of them is left |
//! | `stalls` | programs on a file system that does not answer |
//! | `panics` | tasks that panic, in agents and in the launcher |
//! | `limits` | limits on open files and processes: advice that is enough when it is followed |
//! | `malformed` | input that no PMI client should send |
//! | `output`, `input` | standard streams: complete, in order, in bounded memory |
//! | `signals` | signals and the terminal |
//! | `environment` | the environment in which a rank starts |
//! | `descriptors` | the launcher does not pass on descriptors that it inherits |
//! | `invocation` | the program's names, files of programs, defaults, verbosity |
//! | `pool_users` | pools and clients of several users do not meet |
//! | `pools` | standing pools: jobs, queues, kills |
//! | `last_lines` | the last lines of the rank that failed first, and the file of `--report` |
//! | `maps` | lists of commands over a pool |
//! | `tree` | the processes and links form the planned tree |
//! | `traces` | traces of sessions: their spans, their bounds |
//! | `profiles` | `--profile-comm`: rows of ranks, written by scripts |
//! | `stats` | the statistics, compared with the kernel's counts |
//! | `restarts` | `--on-failure restart`: all ranks start again after a failure |
//! | `survivals` | `--on-failure continue`: the other ranks go on when one dies |
//! | `survivors` | what a lost agent leaves ends before its ranks start again |
//! | `surveys` | SIGQUIT, Ctrl-C and --stuck-after name the ranks that others wait for |
//! | `terminal` | a terminal that is not read |
//! | `recordings` | a core replays an agent's recording |
//! | `resources` | cgroups that limit processor time and memory |
//! | `simulated` | the simulation counts the same as a real run |
//! | `security` | links refuse strangers and are encrypted |
//! | `key` | the session's key is in one page that core dumps leave out |
//! | `foreign_words` | words of remote hosts are printed without control characters |
//! | `two_users` | what another user cannot do to sessions and pools |
//! | `output_files` | files that another user put into a shared directory are not written |

#![expect(clippy::unwrap_used, reason = "a test may fail in any of its parts")]

mod accelerators;
mod batches;
mod bindings;
mod board;
mod cgroups;
mod codes;
mod commands;
mod descriptors;
mod detached;
mod environment;
mod foreign_words;
mod full_disks;
mod input;
mod invocation;
mod key;
mod last_lines;
mod leftovers;
mod limits;
mod losses;
mod malformed;
mod maps;
mod output;
mod output_files;
mod panics;
mod placements;
mod pool_nodes;
mod pool_users;
mod pools;
mod profiles;
mod recordings;
mod resources;
mod restarts;
mod security;
mod signals;
mod simulated;
mod spawns;
mod staged_directories;
mod staging;
mod stalls;
mod standing;
mod stats;
mod stops;
mod surveys;
mod survivals;
mod survivors;
mod terminal;
mod traces;
mod tree;
mod two_users;
mod without_pmi;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tests::{Program, Run};

/// The dead time in seconds of sessions that lose an agent: longer than a busy machine keeps a process waiting.
const DEAD_TIME: &str = "4";

/// Returns the command that runs the rank program with these arguments.
fn rank<'a>(words: impl IntoIterator<Item = &'a str>) -> Program {
    std::iter::once(env!("CARGO_BIN_EXE_rank")).chain(words).map(Into::into).collect()
}

/// Returns the command that runs the rank program with a script.
fn script<'a>(steps: impl IntoIterator<Item = &'a str>) -> Program {
    rank(std::iter::once("script").chain(steps))
}

/// Returns this host's name as reports show it.
fn host() -> String {
    nla::sys::host_name()
}

/// Gives a run a pipe for standard error that is full before the session starts. Returns the pipe, from which reads do not block.
fn with_full_error_pipe(run: Run) -> (Run, File) {
    let path = run.world().file("pipe");
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    let mut open = OpenOptions::new();
    let mut pipe = open.read(true).write(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
    while pipe.write(&[b'.'; 4096]).is_ok() {}
    (run.shell(&format!("exec 2>'{}'", path.display())), pipe)
}
