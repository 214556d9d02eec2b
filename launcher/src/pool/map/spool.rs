//! The outputs of commands until they are printed.
//!
//! Each command that runs writes to two unlinked files of its own, in `TMPDIR` or /tmp. A file in memory would need a bound, at which
//! a command fails or waits for commands before it in the list; a disk is larger, and the page cache keeps what is short. Commands
//! that have ended out of turn would keep their files open, which `ulimit -n` bounds. So what they have written is copied into
//! one file, and that is emptied whenever nothing in it is needed any more.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

/// How many names are tried for a file where one without a name cannot be made.
const TRIES: u32 = 1000;

/// The files that a command writes.
#[derive(Debug)]
pub(super) struct Spool {
    /// Standard output, then standard error.
    files: [File; 2],
}

/// A part of a file.
#[derive(Clone, Debug)]
pub(super) struct Part {
    file: Arc<File>,
    start: u64,
    /// In bytes.
    pub(super) length: u64,
}

/// The output of a command that has ended: standard output, then standard error.
pub(super) type Output = [Part; 2];

impl Spool {
    /// Makes the files in `directory`.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        Ok(Self { files: [unnamed(directory)?, unnamed(directory)?] })
    }

    /// Returns the descriptors for standard output and standard error.
    pub(super) fn streams(&self) -> [BorrowedFd<'_>; 2] {
        self.files.each_ref().map(File::as_fd)
    }

    /// Appends a line to standard error.
    pub(super) fn complain(&mut self, text: &str) -> io::Result<()> {
        let errors = &mut self.files[1];
        let end = errors.seek(SeekFrom::End(0))?;
        errors.write_all_at(format!("{text}\n").as_bytes(), end)
    }

    /// Returns the output.
    pub(super) fn into_output(self) -> io::Result<Output> {
        let [out, err] = self.files.map(|file| -> io::Result<Part> {
            let length = file.metadata()?.len();
            Ok(Part { file: Arc::new(file), start: 0, length })
        });
        Ok([out?, err?])
    }
}

impl Part {
    /// Reads the bytes from `at` on into `bytes`, and returns how many there were; 0 at the end of the part.
    pub(super) fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let most = usize::try_from(self.length.saturating_sub(at)).unwrap_or(usize::MAX).min(bytes.len());
        self.file.read_at(&mut bytes[..most], self.start + at)
    }
}

/// Outputs that wait until those before them are printed, in one file.
#[derive(Debug, Default)]
pub(super) struct Held {
    file: Option<Arc<File>>,
    bytes: u64,
    /// Outputs that are needed.
    outputs: usize,
}

impl Held {
    /// Moves an output into the file, which is made in `directory`.
    pub(super) fn hold(&mut self, output: Output, directory: &Path) -> io::Result<Output> {
        let [out, err] = output.map(|part| self.append(&part, directory));
        self.outputs += 1;
        Ok([out?, err?])
    }

    fn append(&mut self, part: &Part, directory: &Path) -> io::Result<Part> {
        let file = match &self.file {
            Some(file) => Arc::clone(file),
            None => Arc::clone(self.file.insert(Arc::new(unnamed(directory)?))),
        };
        let start = self.bytes;
        if part.length > 0 {
            (&*file).seek(SeekFrom::Start(start))?;
            (&*part.file).seek(SeekFrom::Start(part.start))?;
            // In the kernel, where the file systems can do that.
            let copied = io::copy(&mut (&*part.file).take(part.length), &mut &*file)?;
            if copied < part.length {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.bytes += copied;
        }
        Ok(Part { file, start, length: part.length })
    }

    /// Forgets an output that was held.
    pub(super) fn release(&mut self) -> io::Result<()> {
        self.outputs = self.outputs.saturating_sub(1);
        if self.outputs == 0 && self.bytes > 0 {
            self.bytes = 0;
            self.file.as_ref().map_or(Ok(()), |file| file.set_len(0))?;
        }
        Ok(())
    }
}

/// Makes a file without a name.
fn unnamed(directory: &Path) -> io::Result<File> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    match open(directory, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
        // NFS, among others.
        Err(Errno::EOPNOTSUPP | Errno::EISDIR) => removed(directory),
        made => Ok(made?.into()),
    }
}

/// Makes a file and removes its name.
fn removed(directory: &Path) -> io::Result<File> {
    for number in 0..TRIES {
        let path = directory.join(format!("scela-map-{}-{number}", std::process::id()));
        match OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => {
                let file = made?;
                std::fs::remove_file(&path)?;
                return Ok(file);
            }
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn text(part: &Part) -> String {
        let mut bytes = vec![0; 3];
        let mut text = Vec::new();
        loop {
            match part.read_at(&mut bytes, text.len() as u64).unwrap() {
                0 => return String::from_utf8(text).unwrap(),
                count => text.extend_from_slice(&bytes[..count]),
            }
        }
    }

    fn written(directory: &Path, out: &str, err: &str) -> Spool {
        let mut spool = Spool::new(directory).unwrap();
        spool.files[0].write_all(out.as_bytes()).unwrap();
        spool.files[1].write_all(err.as_bytes()).unwrap();
        spool
    }

    #[test]
    fn a_file_that_cannot_be_made_says_why() {
        assert_eq!(removed(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn outputs_that_are_held_stay_as_they_are() {
        let directory = tempfile::tempdir().unwrap();
        let mut held = Held::default();
        let mut complains = written(directory.path(), "", "e");
        complains.complain("f").unwrap();
        let spools = [written(directory.path(), "first", "1"), written(directory.path(), "", ""), complains];
        let outputs = spools.map(|spool| held.hold(spool.into_output().unwrap(), directory.path()).unwrap());
        let texts: Vec<_> = outputs.iter().map(|output| output.each_ref().map(text)).collect();
        assert_eq!(texts, [["first", "1"], ["", ""], ["", "ef\n"]]);
        let file = Arc::clone(held.file.as_ref().unwrap());
        let length = || file.metadata().unwrap().len();
        held.release().unwrap();
        held.release().unwrap();
        assert_eq!(length(), 9);
        held.release().unwrap();
        assert_eq!(length(), 0, "nothing in it is needed");
        let again = held.hold(written(directory.path(), "again", "").into_output().unwrap(), directory.path()).unwrap();
        assert_eq!(text(&again[0]), "again");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "no file has a name");
    }

    #[test]
    fn a_file_system_without_unnamed_files_does_as_well() {
        let directory = tempfile::tempdir().unwrap();
        let mut file = removed(directory.path()).unwrap();
        file.write_all(b"a").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        assert!(unnamed(&directory.path().join("missing")).is_err());
    }
}
