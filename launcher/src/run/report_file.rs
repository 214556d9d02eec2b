//! A file for a report about the session: its statistics or its trace.

use std::future::pending;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use nla::sys::{Fifo, Rewrite, signal_name};

use super::signals::{Asked, Signals};

/// A file that is open for writing, and the name of its report in messages.
#[derive(Debug)]
pub struct ReportFile {
    report: &'static str,
    path: PathBuf,
    file: Rewrite,
}

impl ReportFile {
    /// Opens the file, whose old contents stay until [`ReportFile::write`]. This happens before anything starts, so that an error
    /// ends scela-run early.
    pub(super) fn open(report: &'static str, path: &Path) -> io::Result<Self> {
        match Rewrite::open(path) {
            Ok(file) => Ok(Self { report, path: path.to_owned(), file }),
            Err(error) => Err(io::Error::new(error.kind(), cannot(report, path, &error))),
        }
    }

    /// Returns the name of the file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether the file was made when it was opened.
    pub(super) fn is_new(&self) -> bool {
        self.file.is_new()
    }

    /// Writes the file. An error is a sentence for the user. If it is a FIFO, returns what its reader is to get: a signal may end that
    /// wait.
    pub(super) fn write(
        self,
        report: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<Option<FifoReport>, String> {
        let Self { report: name, path, file } = self;
        let written = match file.into_fifo() {
            Ok(Ok(fifo)) => {
                let mut bytes = Vec::new();
                report(&mut bytes).map(|()| Some((fifo, bytes)))
            }
            Ok(Err(file)) => file.write(|out| report(out)).map(|()| None),
            Err(error) => Err(error),
        };
        match written {
            Ok(fifo) => Ok(fifo.map(|(fifo, bytes)| FifoReport { report: name, path, fifo, bytes })),
            Err(error) => Err(cannot(name, &path, &error)),
        }
    }
}

/// A report that the reader of a FIFO is to get.
#[derive(Debug)]
#[must_use]
pub struct FifoReport {
    report: &'static str,
    path: PathBuf,
    fifo: Fifo,
    bytes: Vec<u8>,
}

/// A report is missing.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Unwritten {
    /// The reason, as a sentence for the user.
    pub text: String,
    /// The signal that has ended the wait for the reader.
    pub signal: Option<i32>,
}

impl FifoReport {
    /// Writes the report to its reader, until a signal asks for the end.
    pub(super) async fn write(self, signals: &mut Signals) -> Result<(), Unwritten> {
        let ended = async {
            loop {
                match signals.next().await {
                    Some(Asked::End(signal)) => return signal,
                    // As at the end of a session.
                    Some(Asked::PoolLost) => return Signal::SIGTERM as i32,
                    // No rank is left.
                    Some(Asked::Forward(_) | Asked::Survey | Asked::Stop | Asked::Continue) => {}
                    None => pending::<()>().await,
                }
            }
        };
        let (error, signal) = tokio::select! {
            biased;
            written = self.fifo.write(&self.bytes) => match written {
                Ok(()) => return Ok(()),
                Err(error) => (error, None),
            },
            signal = ended => {
                let name = signal_name(signal);
                (io::Error::other(format!("signal {signal} ({name}) has ended the wait for its reader")), Some(signal))
            }
        };
        Err(Unwritten { text: cannot(self.report, &self.path, &error), signal })
    }
}

fn cannot(report: &str, path: &Path, error: &io::Error) -> String {
    format!("{report} cannot be written to '{}': {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;

    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    use nix::libc;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn a_report_that_cannot_be_written_leaves_the_old_one() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("trace.json");
        fs::write(&path, "old").unwrap();
        let open = || ReportFile::open("the trace", &path).unwrap();
        let full = open().write(|out| {
            out.write_all(&[b'x'; 100_000])?;
            Err(io::ErrorKind::StorageFull.into())
        });
        let text = format!("the trace cannot be written to '{}': no storage space", path.display());
        assert_eq!((full.unwrap_err(), fs::read_to_string(&path).unwrap()), (text, "old".to_owned()));
        assert!(open().write(|out| out.write_all(b"new")).unwrap().is_none());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    /// The reader of the FIFO in this directory, and a report of so many bytes to it.
    fn to_fifo(place: &Path, length: usize) -> (fs::File, FifoReport) {
        let path = place.join("fifo");
        mkfifo(&path, Mode::S_IRWXU).unwrap();
        let reader = fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path).unwrap();
        let file = ReportFile::open("the trace", &path).unwrap();
        (reader, file.write(|out| out.write_all(&vec![b'x'; length])).unwrap().unwrap())
    }

    #[tokio::test]
    async fn a_signal_ends_the_wait_for_the_reader_of_a_fifo() {
        let place = tempfile::tempdir().unwrap();
        // More than a pipe has room for.
        let (_reader, report) = to_fifo(place.path(), 1 << 20);
        let mut signals = Signals::of([Asked::Forward(10), Asked::Stop, Asked::Continue, Asked::End(2)]);
        let text = format!(
            "the trace cannot be written to '{}': signal 2 (INT) has ended the wait for its reader",
            place.path().join("fifo").display()
        );
        assert_eq!(report.write(&mut signals).await, Err(Unwritten { text, signal: Some(2) }));
    }

    #[tokio::test]
    async fn a_fifo_with_a_reader_gets_the_whole_report() {
        let place = tempfile::tempdir().unwrap();
        let (reader, report) = to_fifo(place.path(), 1 << 20);
        let reads = std::thread::spawn(move || {
            set_blocking(&reader);
            let mut bytes = Vec::new();
            (&reader).read_to_end(&mut bytes).map(|_| bytes.len())
        });
        assert_eq!(report.write(&mut Signals::of([])).await, Ok(()));
        assert_eq!(reads.join().unwrap().unwrap(), 1 << 20);
    }

    fn set_blocking(file: &fs::File) {
        fcntl(file, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
    }
}
