//! A file system that does not answer: FUSE, served by a thread of the test over /dev/fuse.
//!
//! It has one file, `program`, a script that prints `ran`. A process that reaches the chosen [`Call`] waits until the test
//! calls [`StallingFiles::answer`]. The kernel has passed the request on, so the wait is uninterruptible: SIGKILL does
//! not end the process before the answer.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use tempfile::TempDir;

const PROGRAM: &[u8] = b"#!/bin/sh\necho ran\n";
const ROOT: u64 = 1;
const FILE: u64 = 2;

// Of linux/fuse.h.
const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const RELEASEDIR: u32 = 29;
const ACCESS: u32 = 34;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;
/// The flag of an open that execve(2) makes.
const OPEN_FOR_EXEC: u32 = 0x20;

/// The call that is not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Call {
    /// execve(2) of the program.
    Exec,
    /// The agent's look-up of the program, before its start.
    LookUp,
    /// The launcher's open(2) of the program, which it reads while it makes the plan.
    Plan,
    /// chdir(2) of a rank to the directory, before its exec.
    Directory,
}

/// The mounted file system. Dropping it answers all calls and unmounts it.
pub struct StallingFiles {
    directory: TempDir,
    gate: Arc<(Mutex<bool>, Condvar)>,
}

impl StallingFiles {
    /// Mounts the file system. Fails with the reason if this machine does not permit it.
    pub fn mount(call: Call) -> Result<Self, String> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
        let device = device.map_err(|error| format!("/dev/fuse cannot be opened: {error}"))?;
        let directory = TempDir::new().map_err(|error| error.to_string())?;
        let of_mount = device.try_clone().map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=40000,user_id=0,group_id=0,allow_other", "stalling"]);
        let mounted = mount.arg(directory.path()).stdin(of_mount).output().map_err(|error| error.to_string())?;
        if !mounted.status.success() {
            return Err(format!("FUSE cannot be mounted: {}", String::from_utf8_lossy(&mounted.stderr)));
        }
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let of_thread = Arc::clone(&gate);
        thread::spawn(move || serve(device, call, &of_thread));
        Ok(Self { directory, gate })
    }

    /// The path of the directory.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The path of the program.
    pub fn program(&self) -> PathBuf {
        self.directory.path().join("program")
    }

    /// Answers the call, and all calls from now on.
    pub fn answer(&self) {
        *self.gate.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.gate.1.notify_all();
    }
}

impl Drop for StallingFiles {
    fn drop(&mut self) {
        self.answer();
        let _ = Command::new("umount").arg("--lazy").arg(self.directory.path()).status();
    }
}

/// Answers requests until the file system is unmounted.
fn serve(mut device: File, stalled: Call, gate: &(Mutex<bool>, Condvar)) {
    let mut request = vec![0; 1 << 20];
    while let Ok(count @ 40..) = device.read(&mut request) {
        let body = &request[40..count];
        let word = |bytes: &[u8], at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let long = |bytes: &[u8], at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (opcode, unique, node) = (word(&request, 4), long(&request, 8), long(&request, 16));
        let call = match opcode {
            OPEN if word(body, 0) & OPEN_FOR_EXEC != 0 => Some(Call::Exec),
            OPEN if is_of_launcher(word(&request, 32)) => Some(Call::Plan),
            LOOKUP if is_of_spawner(word(&request, 32)) => Some(Call::LookUp),
            ACCESS if is_of_starting_rank(word(&request, 32)) => Some(Call::Directory),
            _ => None,
        };
        if call == Some(stalled) {
            let is_open = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(gate.1.wait_while(is_open, |is_open| !*is_open));
        }
        let answer: Result<Vec<u8>, i32> = match opcode {
            FORGET | BATCH_FORGET | INTERRUPT => continue,
            // Version 7.31, no flags; a reply of the length of that version.
            INIT => Ok([[7u32, 31, 4096, 0, 0, 4096, 1, 0].map(u32::to_ne_bytes).concat(), vec![0; 32]].concat()),
            LOOKUP if body == b"program\0" => {
                Ok([[FILE, 0, 0, 0].map(u64::to_ne_bytes).concat(), vec![0; 8], attributes(FILE)].concat())
            }
            LOOKUP => Err(libc::ENOENT),
            GETATTR => Ok([vec![0; 16], attributes(node)].concat()),
            OPEN | OPENDIR => Ok(vec![0; 16]),
            READ => {
                let start = usize::try_from(long(body, 8)).unwrap_or(usize::MAX).min(PROGRAM.len());
                Ok(PROGRAM[start..].to_vec())
            }
            RELEASE | RELEASEDIR | FLUSH | ACCESS => Ok(Vec::new()),
            _ => Err(libc::ENOSYS),
        };
        let (error, payload) = answer.map_or_else(|error| (-error, Vec::new()), |payload| (0, payload));
        let length = 16 + payload.len() as u32;
        let head = [length.to_ne_bytes().to_vec(), error.to_ne_bytes().to_vec(), unique.to_ne_bytes().to_vec()];
        // The kernel may have given up the request.
        let _ = device.write(&[head.concat(), payload].concat());
    }
}

/// Returns whether this is an agent's thread that starts ranks. The launcher looks for the program too.
fn is_of_spawner(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/comm")).is_ok_and(|name| name == "spawner\n")
}

/// Returns whether this is a launcher's main thread, or the one that looks at the files of a script.
fn is_of_launcher(thread: u32) -> bool {
    let name = fs::read_to_string(format!("/proc/{thread}/comm")).unwrap_or_default();
    ["scela-run\n", "mpi-search\n"].contains(&&*name)
}

/// Returns whether this is a rank that the thread starts, which has its name until exec, and not the thread itself.
fn is_of_starting_rank(process: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    is_of_spawner(process) && status.lines().any(|line| line == format!("Tgid:\t{process}"))
}

/// Returns a struct fuse_attr.
fn attributes(node: u64) -> Vec<u8> {
    let (mode, size) = if node == ROOT { (0o040_755, 0) } else { (0o100_755, PROGRAM.len() as u64) };
    let longs = [node, size, 1, 0, 0, 0].map(u64::to_ne_bytes).concat();
    // Three times in nanoseconds, mode, links, user, group, device, block size, flags.
    let words = [0, 0, 0, mode, 1, 0, 0, 0, 4096, 0u32].map(u32::to_ne_bytes).concat();
    [longs, words].concat()
}
