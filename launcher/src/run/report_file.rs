//! A file for a report about the session: its statistics or its trace.

use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};

use nla::sys::{Destination, Rewrite};

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

    /// Writes the file. An error is a sentence for the user.
    pub(super) fn write(
        self,
        report: impl FnOnce(&mut BufWriter<Destination>) -> io::Result<()>,
    ) -> Result<(), String> {
        self.file.write(report).map_err(|error| cannot(self.report, &self.path, &error))
    }
}

fn cannot(report: &str, path: &Path, error: &io::Error) -> String {
    format!("{report} cannot be written to '{}': {error}", path.display())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write as _;

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
        assert_eq!((full, fs::read_to_string(&path).unwrap()), (Err(text), "old".to_owned()));
        open().write(|out| out.write_all(b"new")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }
}
