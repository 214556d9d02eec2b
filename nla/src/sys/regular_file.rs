//! Opens files whose names come from somewhere else, such as a program's search path, or from the user.

use std::fs::{File, OpenOptions};
use std::io::{self, Cursor, Read};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// The longest time for which a FIFO may have no writer.
const WRITER_TIME: Duration = Duration::from_secs(5);

/// Opens a regular file for reading. Follows links. Never blocks: a FIFO without a writer would block an ordinary open.
///
/// # Errors
///
/// It cannot be opened, or it is a FIFO, a device, a directory or a socket.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

/// Opens a file of any type that the user has named for reading. Waits for the writer of a FIFO for at most 5 s.
///
/// # Errors
///
/// It cannot be opened, or it is a FIFO that has had no writer meanwhile.
pub fn open_input(path: &Path) -> io::Result<impl Read + use<>> {
    open_input_within(WRITER_TIME, path)
}

fn open_input_within(time: Duration, path: &Path) -> io::Result<impl Read + use<>> {
    let mut file = open(path)?;
    let mut first = Vec::new();
    if file.metadata()?.file_type().is_fifo() {
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        if poll(&mut [PollFd::new(file.as_fd(), PollFlags::POLLIN)], timeout)? == 0 {
            // A writer that has written nothing yet is waited for; without a writer, the FIFO is at its end.
            let mut byte = [0];
            match file.read(&mut byte) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::TimedOut, "it is a FIFO that nothing writes to")),
                Ok(_) => first.extend(byte),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
    fcntl(&file, FcntlArg::F_SETFL(OFlag::empty()))?;
    Ok(Cursor::new(first).chain(file))
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link, fifo) = (directory.path().join("f"), directory.path().join("l"), directory.path().join("p"));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert!(open_regular(&file).is_ok() && open_regular(&link).is_ok());
        for other in [&fifo, Path::new("/dev/zero"), directory.path()] {
            assert_eq!(open_regular(other).unwrap_err().to_string(), "it is not a regular file");
        }
        assert_eq!(open_regular(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    #[test]
    fn a_fifo_is_read_if_it_has_a_writer() {
        let directory = tempfile::tempdir().unwrap();
        let (file, fifo) = (directory.path().join("f"), directory.path().join("p"));
        let read = |mut input: Box<dyn Read>| {
            let mut text = String::new();
            input.read_to_string(&mut text).map(|_| text)
        };
        let open = |path: &Path| open_input_within(Duration::from_millis(10), path).map(|input| Box::new(input) as _);
        fs::write(&file, "regular").unwrap();
        assert_eq!(read(open(&file).unwrap()).unwrap(), "regular");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(open(&fifo).err().unwrap().to_string(), "it is a FIFO that nothing writes to");
        // Opened for both directions, so that it is opened before it has a reader.
        let mut writer = OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        let input = open(&fifo).unwrap();
        writer.write_all(b"late").unwrap();
        drop(writer);
        assert_eq!(read(input).unwrap(), "late");
        assert_eq!(open_input(Path::new("/nonexistent")).err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
