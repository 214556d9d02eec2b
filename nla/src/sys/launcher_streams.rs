//! The launcher's standard output and error, for agents that are forked from it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::stat::{SFlag, fstat, makedev};

use super::descriptors::{self, LOW_MAX};
use super::shell::stdout_was_closed;

static KEPT: Mutex<[Option<OwnedFd>; 2]> = Mutex::new([None, None]);

fn kept() -> MutexGuard<'static, [Option<OwnedFd>; 2]> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a write to this file waits for no reader: it is a regular file, or /dev/null.
pub fn needs_no_reader(file: BorrowedFd<'_>) -> bool {
    fstat(file).is_ok_and(|status| match SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => true,
        SFlag::S_IFCHR => status.st_rdev == makedev(1, 3),
        _ => false,
    })
}

/// Keeps standard output and standard error of this process for [`take_launcher_streams`], each if it needs no reader. To be called
/// in a fork of the launcher, before it gets other streams.
pub(super) fn keep() {
    let keep = |stream: BorrowedFd<'_>| {
        // Without one, the agent sends the output to the launcher.
        needs_no_reader(stream).then(|| descriptors::duplicate_above(stream, LOW_MAX + 1).ok()).flatten()
    };
    // Rust's runtime has opened /dev/null in place of a closed standard output. The launcher reports the output of ranks as lost.
    let output = if stdout_was_closed() { None } else { keep(io::stdout().as_fd()) };
    *kept() = [output, keep(io::stderr().as_fd())];
}

/// Returns the numbers of the descriptors that are kept.
pub(super) fn kept_descriptors() -> Vec<RawFd> {
    kept().iter().flatten().map(AsRawFd::as_raw_fd).collect()
}

/// Returns the launcher's standard output and standard error in an agent that was forked from it, each if it needs no reader and is
/// not taken yet. The position in the file is the launcher's, too.
pub fn take_launcher_streams() -> [Option<File>; 2] {
    std::mem::take(&mut *kept()).map(|stream| stream.map(File::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_and_the_null_device_need_no_reader() {
        let file = |path: &str| File::options().read(true).open(path).expect("it exists");
        assert!(needs_no_reader(tempfile::tempfile().expect("a file").as_fd()));
        assert!(needs_no_reader(file("/dev/null").as_fd()));
        let (reader, writer) = io::pipe().expect("a pipe");
        for other in [file("/dev/zero").as_fd(), file("/").as_fd(), reader.as_fd(), writer.as_fd()] {
            assert!(!needs_no_reader(other));
        }
    }
}
