//! A file for a report about the session: its statistics or its trace.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nla::sys::{OutputMode, open_output};

/// How long the reader of a FIFO may take no byte of a report: the end of the session waits meanwhile.
const READER_TIME: Duration = Duration::from_secs(5);
/// A pipe that is writable has room for so many bytes (PIPE_BUF).
const PIECE_BYTES_MAX: usize = 4096;

/// A file that is open for writing, and the name of its report in messages.
#[derive(Debug)]
pub struct ReportFile {
    report: &'static str,
    path: PathBuf,
    file: File,
}

impl ReportFile {
    /// Creates the file. This happens before anything starts, so that an error ends scela-run early.
    pub(super) fn open(report: &'static str, path: &Path) -> io::Result<Self> {
        match open_output(path, OutputMode::Report) {
            Ok(file) => Ok(Self { report, path: path.to_owned(), file }),
            Err(error) => Err(io::Error::new(error.kind(), cannot(report, path, &error))),
        }
    }

    /// Writes the file. An error is a sentence for the user.
    pub(super) fn write(
        self,
        report: impl FnOnce(&mut BufWriter<Destination>) -> io::Result<()>,
    ) -> Result<(), String> {
        let is_regular = self.file.metadata().is_ok_and(|file| file.is_file());
        let reader_time = (!is_regular).then_some(READER_TIME);
        let mut out = BufWriter::new(Destination { file: self.file, reader_time });
        let written = report(&mut out).and_then(|()| out.flush());
        // Dropping the buffer would try to write the rest, and wait again.
        let _ = out.into_parts();
        written.map_err(|error| cannot(self.report, &self.path, &error))
    }
}

/// A file to which a report is written.
#[derive(Debug)]
pub(super) struct Destination {
    file: File,
    /// How long a reader may take no byte, if the file may have one.
    reader_time: Option<Duration>,
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(time) = self.reader_time else { return self.file.write(bytes) };
        let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)], timeout) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("its reader has read nothing for {} s", time.as_secs_f64()),
            )),
            Ok(_) => self.file.write(&bytes[..bytes.len().min(PIECE_BYTES_MAX)]),
            Err(Errno::EINTR) => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn cannot(report: &str, path: &Path, error: &io::Error) -> String {
    format!("{report} cannot be written to '{}': {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;

    use super::*;

    static LONG: [u8; 1 << 20] = [b'x'; 1 << 20];

    #[test]
    fn a_reader_that_does_not_read_delays_the_end_for_some_time_only() {
        let (_read, write) = nix::unistd::pipe().unwrap();
        let mut destination = Destination { file: write.into(), reader_time: Some(Duration::from_millis(20)) };
        let error = destination.write_all(&LONG).unwrap_err();
        assert_eq!(error.to_string(), "its reader has read nothing for 0.02 s");
    }

    #[test]
    fn a_reader_gets_all_of_a_long_report() {
        let (read, write) = nix::unistd::pipe().unwrap();
        let reader = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            File::from(read).read_to_end(&mut bytes).map(|_| bytes)
        });
        let mut destination = Destination { file: write.into(), reader_time: Some(Duration::from_secs(60)) };
        destination.write_all(&LONG).unwrap();
        drop(destination);
        assert!(reader.join().unwrap().unwrap() == LONG);
    }

    #[test]
    fn a_regular_file_has_no_reader() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let report = ReportFile::open("the trace", file.path()).unwrap();
        report.write(|out| out.write_all(&LONG)).unwrap();
        assert!(fs::read(file.path()).unwrap() == LONG);
    }
}
