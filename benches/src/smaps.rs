//! The memory of a process, from `/proc/PID/smaps` and `/proc/PID/smaps_rollup`.

use std::fs;

use nix::unistd::Pid;

/// One mapping of a file, or all mappings of one file together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The inode of the file.
    pub inode: u64,
    /// The resident part.
    pub rss_kib: u64,
    /// The part that no other process maps.
    pub private_kib: u64,
}

/// Returns a process's proportional set size; `None` if it has exited or cannot be read.
#[must_use]
pub fn pss_kib(pid: Pid) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    rollup.lines().find_map(|line| kib_of(line, "Pss:"))
}

/// Returns a process's mappings of files whose names begin with `name`, one entry per file; `None` if
/// it cannot be read.
#[must_use]
pub fn mappings(pid: Pid, name: &str) -> Option<Vec<Mapping>> {
    Some(parse(&fs::read_to_string(format!("/proc/{pid}/smaps")).ok()?, name))
}

fn parse(smaps: &str, name: &str) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    // The mapping that the current lines describe.
    let mut current = None;
    for line in smaps.lines() {
        if let Some((inode, path)) = head(line) {
            current = path.starts_with(name).then(|| {
                found.iter().position(|mapping| mapping.inode == inode).unwrap_or_else(|| {
                    found.push(Mapping { inode, ..Mapping::default() });
                    found.len() - 1
                })
            });
        } else if let Some(mapping) = current.and_then(|at| found.get_mut(at)) {
            mapping.rss_kib += kib_of(line, "Rss:").unwrap_or(0);
            mapping.private_kib += kib_of(line, "Private_Clean:").or(kib_of(line, "Private_Dirty:")).unwrap_or(0);
        }
    }
    found
}

/// Parses inode and path of `start-end rwxp offset device inode path`.
fn head(line: &str) -> Option<(u64, &str)> {
    let mut rest = line;
    let mut word = || {
        let (word, after) = rest.trim_start().split_once(' ').unwrap_or((rest, ""));
        rest = after;
        word
    };
    if !word().contains('-') {
        return None;
    }
    let inode = [(); 4].map(|()| word())[3].parse().ok()?;
    Some((inode, rest.trim_start()))
}

fn kib_of(line: &str, name: &str) -> Option<u64> {
    line.strip_prefix(name)?.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_proportional_set_size() {
        assert!(pss_kib(nix::unistd::getpid()).unwrap() > 0);
    }

    #[test]
    fn mappings_of_one_file_are_added_up() {
        let smaps = "\
7f00-7f01 r--s 00000000 00:01 77                         /memfd:board (deleted)
Size:                  4 kB
Rss:                   4 kB
Pss:                   2 kB
Pss_Dirty:             9 kB
Private_Clean:         0 kB
7f01-7f02 r--s 00001000 00:01 77                         /memfd:board (deleted)
Rss:                   8 kB
Private_Dirty:         8 kB
7f02-7f03 rw-p 00000000 00:00 0
Rss:                  99 kB
7f03-7f04 r--s 00000000 00:01 78                         /memfd:board (deleted)
VmFlags: rd sh
";
        let both = [Mapping { inode: 77, rss_kib: 12, private_kib: 8 }, Mapping { inode: 78, ..Mapping::default() }];
        assert_eq!(parse(smaps, "/memfd:board"), both);
        assert_eq!(parse(smaps, "/memfd:other"), []);
    }
}
