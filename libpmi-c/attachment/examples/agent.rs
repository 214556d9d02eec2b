//! Runs a program as the ranks of an agent without a launcher, for measurements and for valgrind.
//!
//! ```text
//! agent [-n RANKS] [-e ENTRIES] [-v VALUE_BYTES] [-c] [-w] PROGRAM ARGUMENTS...
//! ```
//!
//! `-e` fills the board with `key-0`, `key-1`, ... before the program starts; `-c` closes the log, so
//! that ranks have a segment that answers no get; `-w` shares no segment.

use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode};

use pmi::{Epoch, segment};

#[path = "../tests/agent/mod.rs"]
mod agent;

use agent::Agent;

fn main() -> ExitCode {
    let (mut ranks, mut entries, mut value_bytes, mut has_segment, mut is_closed) = (1, 0_u32, 1000, true, false);
    let mut arguments = std::env::args().skip(1).peekable();
    while let Some(option) = arguments.next_if(|argument| argument.starts_with('-')) {
        let mut number = || arguments.next().and_then(|number| number.parse().ok()).expect("a number");
        match option.as_str() {
            "-n" => ranks = number(),
            "-e" => entries = number(),
            "-v" => value_bytes = number() as usize,
            "-c" => is_closed = true,
            "-w" => has_segment = false,
            _ => panic!("no such option: {option}"),
        }
    }
    let agent = Agent::new(ranks, has_segment);
    let filled: Vec<_> = (0..entries).map(|number| (format!("key-{number}"), value(number, value_bytes))).collect();
    agent.publish(Epoch::from_entries(filled.iter().map(|(key, value)| (key.as_bytes(), value.as_bytes()))));
    if is_closed {
        agent.close_log();
    }
    let program = arguments.next().expect("a program");
    let words: Vec<String> = arguments.collect();
    let start = |rank: u32| -> Child {
        let socket = agent.serve(rank);
        let inode = std::fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd()));
        let inode = std::os::unix::fs::MetadataExt::ino(&inode.expect("the socket has no inode"));
        let mut command = Command::new(&program);
        command.args(&words).env("PMI_FD", "10").env("PMI_RANK", rank.to_string()).env("PMI_SIZE", ranks.to_string());
        if has_segment {
            command.env(segment::VARIABLE, segment::announcement(inode));
        }
        let descriptor = socket.as_raw_fd();
        // SAFETY: dup2 is async-signal-safe, and is the only call between fork and exec.
        unsafe { command.pre_exec(move || (libc::dup2(descriptor, 10) == 10).then_some(()).ok_or_else(failed)) };
        command.spawn().expect("the program cannot be started")
    };
    let children: Vec<Child> = (0..ranks).map(start).collect();
    let mut code = 0;
    for mut child in children {
        code = code.max(child.wait().expect("wait failed").code().unwrap_or(255));
    }
    let state = agent.state();
    for line in &state.requests {
        eprintln!("agent: {line}");
    }
    if state.open_groups() > 0 {
        eprintln!("agent: {} fences of groups were still open at the end", state.open_groups());
    }
    if state.arrived() > 0 {
        eprintln!("agent: {} of {ranks} ranks were still in a fence at the end", state.arrived());
    }
    drop(state);
    ExitCode::from(code as u8)
}

fn value(number: u32, bytes: usize) -> String {
    // Lengths vary, up to the longest.
    let text = format!("value-{number}-");
    text.chars().cycle().take(bytes - (number as usize * 7) % (bytes / 4 + 1)).collect()
}

fn failed() -> std::io::Error {
    std::io::Error::last_os_error()
}
