//! Opens files whose names come from somewhere else, such as a program's search path.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading. Follows links. Never blocks: a FIFO without a writer would block an ordinary open.
///
/// # Errors
///
/// It cannot be opened, or it is a FIFO, a device, a directory or a socket.
pub fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::other("it is not a regular file")),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
}
