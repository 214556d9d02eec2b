//! The launcher's standard output and error, for agents that are forked from it.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::stat::{FileStat, SFlag, fstat, makedev};

use super::descriptors::{self, LOW_MAX};
use super::shell::stdout_was_closed;

static KEPT: Mutex<[Option<OwnedFd>; 2]> = Mutex::new([None, None]);

fn kept() -> MutexGuard<'static, [Option<OwnedFd>; 2]> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether a write to this file waits for no reader: it is a regular file, or /dev/null.
pub fn needs_no_reader(file: BorrowedFd<'_>) -> bool {
    fstat(file).is_ok_and(|status| writes_without_reader(&status))
}

fn writes_without_reader(status: &FileStat) -> bool {
    match kind(status) {
        SFlag::S_IFREG => true,
        SFlag::S_IFCHR => status.st_rdev == makedev(1, 3),
        _ => false,
    }
}

fn kind(status: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(status.st_mode) & SFlag::S_IFMT
}

/// Returns whether this is a pipe or FIFO.
pub fn is_pipe(file: BorrowedFd<'_>) -> bool {
    fstat(file).is_ok_and(|status| kind(&status) == SFlag::S_IFIFO)
}

/// Opens a pipe or FIFO again for writing. Writes to the new file never wait, and nothing changes for those that share the old one.
///
/// # Errors
///
/// The file is no pipe, the pipe belongs to another user, its reader has closed it, or /proc is not mounted.
pub fn open_pipe_again(pipe: &File) -> io::Result<File> {
    if !is_pipe(pipe.as_fd()) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Returns whether both are ends of one pipe or FIFO.
pub fn is_same_pipe(one: impl AsFd, other: impl AsFd) -> bool {
    let (Ok(one), Ok(other)) = (fstat(one.as_fd()), fstat(other.as_fd())) else { return false };
    kind(&one) == SFlag::S_IFIFO && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Keeps standard output and standard error of this process for [`take_launcher_streams`], each if it is a pipe or needs no reader. To
/// be called in a fork of the launcher, before it gets other streams.
pub(super) fn keep() {
    let keep = |stream: BorrowedFd<'_>| {
        // Without one, the agent sends the output to the launcher.
        fstat(stream)
            .is_ok_and(|status| kind(&status) == SFlag::S_IFIFO || writes_without_reader(&status))
            .then(|| descriptors::duplicate_above(stream, LOW_MAX + 1).ok())
            .flatten()
    };
    // Rust's runtime has opened /dev/null in place of a closed standard output. The launcher reports the output of ranks as lost.
    let output = if stdout_was_closed() { None } else { keep(io::stdout().as_fd()) };
    *kept() = [output, keep(io::stderr().as_fd())];
}

/// Returns the numbers of the descriptors that are kept.
pub(super) fn kept_descriptors() -> Vec<RawFd> {
    kept().iter().flatten().map(AsRawFd::as_raw_fd).collect()
}

/// Returns the launcher's standard output and standard error in an agent that was forked from it, each if it is a pipe or needs no
/// reader, and is not taken yet. The position in a file is the launcher's, too.
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

    #[test]
    fn a_pipe_that_is_opened_again_is_full_where_the_first_writer_would_wait() {
        let (_reader, writer) = io::pipe().expect("a pipe");
        let writer = File::from(OwnedFd::from(writer));
        let mut again = open_pipe_again(&writer).expect("it is ours");
        let full = loop {
            if let Err(error) = io::Write::write(&mut again, &[0; 4096]) {
                break error.kind();
            }
        };
        assert_eq!(full, io::ErrorKind::WouldBlock);
        let flags = nix::fcntl::fcntl(&writer, nix::fcntl::FcntlArg::F_GETFL).expect("it is open");
        assert_eq!(flags & libc::O_NONBLOCK, 0, "those that share the first file are unaffected");
        assert!(open_pipe_again(&tempfile::tempfile().expect("a file")).is_err());
    }

    #[test]
    fn only_ends_of_one_pipe_are_the_same() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let (_, other) = io::pipe().expect("a pipe");
        assert!(is_same_pipe(&reader, &writer));
        assert!(!is_same_pipe(&writer, &other));
        let file = tempfile::tempfile().expect("a file");
        assert!(!is_same_pipe(&file, &file), "a file has a position");
    }
}
