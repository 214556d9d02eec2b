//! Files of /proc, /sys and /dev. The kernel tells no length of them.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Room for nearly all such files.
const ROOM: usize = 4096;

/// Reads a file of /proc or /sys. Most of them take two calls: `fs::read_to_string` begins with 32 bytes, and doubles them.
pub(super) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut text = String::with_capacity(ROOM);
    // With a bound, nobody asks for the file's length.
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// Opens the kernel's source of random bytes. Its error names the file.
pub fn random_source() -> io::Result<File> {
    open_named("/dev/urandom")
}

fn open_named(path: &str) -> io::Result<File> {
    File::open(path).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn files_of_any_length_are_read() {
        assert_eq!(read_text("/proc/self/cgroup").unwrap(), fs::read_to_string("/proc/self/cgroup").unwrap());
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("long");
        for length in [0, ROOM - 1, ROOM, ROOM + 1, 10 * ROOM] {
            fs::write(&path, "x".repeat(length)).unwrap();
            assert_eq!(read_text(&path).unwrap().len(), length);
        }
        assert_eq!(
            open_named("/dev/none").unwrap_err().to_string(),
            "/dev/none: No such file or directory (os error 2)"
        );
        assert_eq!(read_text("/proc/none").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
