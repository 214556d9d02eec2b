//! The session's key is in one page per process, which no core dump contains.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::geteuid;
use tempfile::TempDir;
use tests::{Process, Run, Running, scela, sh, skip};

const KEY_BYTES: usize = 32;
/// The unprivileged user of these tests (nobody).
const USER: &str = "65534";

/// A mapping of a process.
struct Mapping {
    start: u64,
    end: u64,
    /// No core dump contains it (MADV_DONTDUMP).
    is_left_out: bool,
    is_private_memory: bool,
    is_writable: bool,
}

/// Returns the readable mappings of a process.
fn mappings(process: &Process) -> Vec<Mapping> {
    let text = fs::read_to_string(process.file("smaps")).expect("the process runs");
    let mut all: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let first = words.next().unwrap_or_default();
        let address = |text: &str| u64::from_str_radix(text, 16).ok();
        if first == "VmFlags:" {
            let is_left_out = words.any(|flag| flag == "dd");
            all.last_mut().expect("flags follow their mapping").is_left_out = is_left_out;
        } else if let Some((Some(start), Some(end))) = first.split_once('-').map(|(a, b)| (address(a), address(b))) {
            let access = words.next().unwrap_or_default();
            let is_private_memory = access == "rw-p" && words.count() == 3;
            all.push(Mapping {
                start,
                end,
                is_left_out: false,
                is_private_memory,
                is_writable: access.starts_with("rw"),
            });
        }
    }
    all
}

/// Returns the key: the secret in the one private page of the process that core dumps leave out.
fn key_of(process: &Process) -> [u8; KEY_BYTES] {
    let pages: Vec<_> =
        mappings(process).into_iter().filter(|mapping| mapping.is_left_out && mapping.is_private_memory).collect();
    assert_eq!(pages.len(), 1, "{process:?} has one page that core dumps leave out");
    let mut key = [0; KEY_BYTES];
    let memory = File::open(process.file("mem")).expect("root may read the memory of any process");
    memory.read_exact_at(&mut key, pages[0].start).expect("the page is readable");
    assert_ne!(key, [0; KEY_BYTES], "{process:?} has a key");
    key
}

/// Returns the key as bytes, and as MessagePack encodes it in a boot order.
fn forms(key: [u8; KEY_BYTES]) -> [Vec<u8>; 2] {
    [key.to_vec(), nla::wire::encode(&key)]
}

/// Returns how often a form of the key is in `bytes`. Half of a form counts: a freed copy may be partly overwritten.
fn copies(bytes: &[u8], forms: &[Vec<u8>]) -> usize {
    let halves = forms.iter().flat_map(|form| form.chunks(16)).filter(|half| half.len() == 16);
    halves.map(|half| memmem(bytes, half)).sum()
}

fn memmem(bytes: &[u8], word: &[u8]) -> usize {
    let (mut count, mut rest) = (0, bytes);
    // Jumping from one first byte to the next is fast enough for an unoptimized build.
    while let Some(at) = rest.iter().position(|byte| *byte == word[0]) {
        count += usize::from(rest[at..].starts_with(word));
        rest = &rest[at + 1..];
    }
    count
}

/// Counts the copies of the key in all memory of a process that is not left out of core dumps.
fn copies_in_memory(process: &Process, forms: &[Vec<u8>]) -> usize {
    let memory = File::open(process.file("mem")).expect("root may read the memory of any process");
    // Other mappings are files. The largest is the address space reserved for the launcher's log.
    let is_searched = |it: &Mapping| it.is_writable && !it.is_left_out && it.end - it.start < 1 << 28;
    let dumped = mappings(process).into_iter().filter(is_searched);
    let content = dumped.map(|mapping| {
        let mut bytes = vec![0; (mapping.end - mapping.start) as usize];
        // [vsyscall] and reserved address space cannot be read.
        let length = memory.read_at(&mut bytes, mapping.start).unwrap_or(0);
        copies(&bytes[..length], forms)
    });
    content.sum()
}

/// Returns a run with a tree of three agents, one of them another's child. Its ranks stay until the job is ended.
fn run() -> Run {
    scela().np(3).agents(3).fanout(2).program(sh("echo here; exec sleep 600"))
}

/// Returns a copy of the program that any user may execute, and a prelude that starts it as [`USER`].
pub(crate) fn as_user() -> (TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("scela-run").display().to_string();
    let prelude = format!(
        "cp \"$1\" {copy} && chmod 755 {copy} && shift\n\
         cd / && set -- setpriv --reuid {USER} --regid {USER} --clear-groups {copy} \"$@\""
    );
    (directory, prelude)
}

fn started(run: Run) -> Running {
    let running = run.spawn();
    running.wait_for_times("here", 3);
    running
}

fn end(running: Running) {
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// Asserts that launcher and agents each have the key in one page, and that no process has a copy elsewhere.
fn assert_no_copies(running: &Running) {
    let (launcher, agents) = (running.launcher(), running.world().agents());
    let key = key_of(&launcher);
    let forms = forms(key);
    assert_eq!(agents.len(), 3);
    for agent in &agents {
        assert_eq!(key_of(agent), key, "{agent:?}");
    }
    for process in agents.iter().chain([&launcher]).chain(&running.world().guardians()) {
        assert_eq!(copies_in_memory(process, &forms), 0, "copies of the key in the memory of {process:?}");
    }
}

#[test]
fn one_page_of_each_process_contains_the_key_and_no_other_memory() {
    if !geteuid().is_root() {
        return skip("only root may read the memory of agents");
    }
    let running = started(run());
    assert_no_copies(&running);
    end(running);
}

/// Returns whether [`USER`] may open the memory of a process, which the kernel permits only to a process that may
/// attach to it by ptrace.
fn user_may_attach(process: &Process) -> bool {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--regid", USER, "--clear-groups", "sh", "-c", "exec 3<\"$1\"", "sh"]);
    command.arg(process.file("mem")).output().expect("setpriv is installed").status.success()
}

#[test]
fn an_unprivileged_user_may_debug_the_launcher_and_no_agent() {
    if !geteuid().is_root() {
        return skip("only root may start a program as another user");
    }
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !matches!(scope.trim(), "" | "0") {
        return skip("Yama permits no process to attach to another one (kernel.yama.ptrace_scope)");
    }
    let (_program, prelude) = as_user();
    let running = started(run().shell(&prelude));
    assert_no_copies(&running);
    assert!(user_may_attach(&running.launcher()), "a debugger attaches to the launcher");
    for process in running.world().agents().iter().chain(&running.world().guardians()) {
        assert!(!user_may_attach(process), "no debugger attaches to {process:?}");
    }
    end(running);
}

/// Ignores PR_SET_DUMPABLE, so that agents leave cores too.
const DUMPABLE: &str = "
#define _GNU_SOURCE
#include <linux/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int prctl(int op, unsigned long a, unsigned long b, unsigned long c, unsigned long d) {
    return op == PR_SET_DUMPABLE ? 0 : (int)syscall(SYS_prctl, op, a, b, c, d);
}
";

/// Compiles [`DUMPABLE`] into a library to preload. `None` without a compiler.
fn dumpable_library(directory: &Path) -> Option<String> {
    let (source, library) = (directory.join("dumpable.c"), directory.join("dumpable.so"));
    fs::write(&source, DUMPABLE).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source).status();
    assert!(compiled.ok()?.success(), "the library compiles");
    Some(library.display().to_string())
}

/// Aborts the process that `choose` returns, and looks for the key in its core.
fn assert_core_without_key(choose: impl Fn(&Running) -> Process) {
    let directory = tempfile::tempdir().unwrap();
    let Some(library) = dumpable_library(directory.path()) else { return skip("there is no C compiler") };
    let run = run().shell("ulimit -c unlimited").env("LD_PRELOAD", library).directory(directory.path());
    let running = started(run);
    let process = choose(&running);
    let forms = forms(key_of(&process));
    let label = running.world().label().to_owned();
    process.signal(Signal::SIGABRT);
    if process.pid == running.launcher().pid {
        running.finish_killed();
    } else {
        running.finish().has_code(252);
    }
    let mut files = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
    let core = files.find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"core")));
    let core = fs::read(core.expect("the process left a core")).unwrap();
    assert_ne!(memmem(&core, label.as_bytes()), 0, "the core contains the memory of the process");
    assert_eq!(copies(&core, &forms), 0, "copies of the key in the core of {process:?}");
}

/// Returns whether the kernel writes cores into the working directory. Otherwise says why the test is skipped.
fn writes_cores() -> bool {
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    let is_here = pattern.starts_with("core");
    if !geteuid().is_root() {
        skip("only root may read the memory of agents");
    } else if !is_here {
        skip("the kernel writes cores elsewhere (kernel.core_pattern)");
    }
    is_here && geteuid().is_root()
}

#[test]
fn a_core_of_the_launcher_does_not_contain_the_key() {
    if writes_cores() {
        assert_core_without_key(Running::launcher);
    }
}

#[test]
fn a_core_of_an_agent_that_was_made_dumpable_does_not_contain_the_key() {
    if writes_cores() {
        assert_core_without_key(|running| running.world().agents().remove(0));
    }
}
