//! A file for a report about the session: its statistics or its trace.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use nla::sys::{OutputMode, open_output};

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
    pub(super) fn write(self, report: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), String> {
        let mut out = BufWriter::new(self.file);
        report(&mut out).and_then(|()| out.flush()).map_err(|error| cannot(self.report, &self.path, &error))
    }
}

fn cannot(report: &str, path: &Path, error: &io::Error) -> String {
    format!("{report} cannot be written to '{}': {error}", path.display())
}
