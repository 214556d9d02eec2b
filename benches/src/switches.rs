//! The context switches of a process, from `/proc/PID/task/TID/status`.

use std::fs;

use nix::unistd::Pid;

/// Returns the voluntary and involuntary context switches of all threads of a process since their starts; 0 if it has
/// exited.
#[must_use]
pub fn context_switches(pid: Pid) -> u64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let texts = threads.filter_map(|thread| fs::read_to_string(thread.path().join("status")).ok());
    texts.map(|status| parse(&status)).sum()
}

fn parse(status: &str) -> u64 {
    let count = |line: &str| line.split_once("ctxt_switches:")?.1.trim().parse::<u64>().ok();
    status.lines().filter_map(count).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_switches_count() {
        let status = "Name:\tscela-agent\nSpeculation_Store_Bypass:\tvulnerable\nvoluntary_ctxt_switches:\t29\n\
                      nonvoluntary_ctxt_switches:\t4\n";
        assert_eq!(parse(status), 33);
        assert!(context_switches(nix::unistd::getpid()) > 0);
    }
}
