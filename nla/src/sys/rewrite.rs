//! Files that the user names and that are rewritten as a whole at the end: the old contents survive a failure.

use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::new_file::{Beside, keeps_mode};
use super::output_file::{Opened, OutputMode, open};

/// The launcher gives up on a FIFO whose reader reads nothing for this time.
const READER_TIME: Duration = Duration::from_secs(5);
/// A pipe that is writable has room for so many bytes (PIPE_BUF).
const PIECE_BYTES_MAX: usize = 4096;

/// A file that is open, and keeps its contents until others have been written.
#[derive(Debug)]
pub struct Rewrite(Opened);

impl Rewrite {
    /// Opens a file, or makes it. This changes no contents. Opens devices and FIFOs, and follows links, unless another user put
    /// them into a sticky directory. Never waits for the reader of a FIFO: one without a reader is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        open(path, OutputMode::Report, false).map(Self)
    }

    /// Replaces the contents. A regular file of this user is replaced by one with the same mode and group that was written beside
    /// it and stored: readers find the old contents or the new ones. Other files are written in place. A file that is this process's
    /// standard output or error keeps what it has: the contents follow. Waits for the reader of a FIFO for at most 5 s without
    /// progress.
    pub fn write(self, contents: impl FnOnce(&mut BufWriter<Destination>) -> io::Result<()>) -> io::Result<()> {
        let Opened { file, walk, name } = self.0;
        let found = file.metadata()?;
        let is_regular = found.is_file();
        let reader_time = (!is_regular).then_some(READER_TIME);
        if let Some(stream) = own_stream(&found).filter(|_| is_regular) {
            return written(Destination::new(stream, reader_time), contents).map(drop);
        }
        // Another name of the file would go on naming the old one.
        let may_replace = is_regular && found.nlink() == 1 && keeps_mode(&found);
        let beside = walk.filter(|_| may_replace).map(|walk| {
            let beside = Beside::create(walk, &name, Some(&found))?;
            beside.take_group(&found)?;
            Ok(beside)
        });
        match beside {
            Some(Ok(beside)) => beside.finish(|file| written(Destination::new(file, reader_time), contents)),
            // In place, the old contents would be lost.
            Some(Err(error)) if !may_write_in_place(&error) => Err(error),
            // A directory that the user may not write to, or a path that only the kernel can follow.
            Some(Err(_)) | None => {
                if is_regular {
                    file.set_len(0)?;
                }
                written(Destination::new(file, reader_time), contents).map(drop)
            }
        }
    }
}

/// Returns the standard stream that is this file. It has the position at which others write it, too.
fn own_stream(found: &Metadata) -> Option<File> {
    let is_this = |stream: &File| {
        stream.metadata().is_ok_and(|stream| (stream.dev(), stream.ino()) == (found.dev(), found.ino()))
    };
    let (out, err) = (io::stdout(), io::stderr());
    let streams = [out.as_fd(), err.as_fd()].into_iter().filter_map(|stream| stream.try_clone_to_owned().ok());
    streams.map(File::from).find(is_this)
}

/// Returns whether a file is written in place after this failure to make one beside it.
fn may_write_in_place(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Writes to a file, and returns it.
fn written(
    destination: Destination,
    contents: impl FnOnce(&mut BufWriter<Destination>) -> io::Result<()>,
) -> io::Result<File> {
    let mut out = BufWriter::new(destination);
    let written = contents(&mut out).and_then(|()| out.flush());
    // Dropping the buffer after a failure would try to write the rest, and wait again.
    let (destination, _) = out.into_parts();
    written.map(|()| destination.file)
}

/// A file that is being written.
#[derive(Debug)]
pub struct Destination {
    file: File,
    /// The longest time for which a reader may read nothing, if the file may have one.
    reader_time: Option<Duration>,
    /// When the reader has last made room. Signals that interrupt the wait give it no more time.
    last_read: Instant,
}

impl Destination {
    fn new(file: File, reader_time: Option<Duration>) -> Self {
        Self { file, reader_time, last_read: Instant::now() }
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(time) = self.reader_time else { return self.file.write(bytes) };
        let left = (self.last_read + time).saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)], timeout) {
            Ok(0) => Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("its reader has read nothing for {} s", time.as_secs_f64()),
            )),
            Ok(_) => {
                let written = self.file.write(&bytes[..bytes.len().min(PIECE_BYTES_MAX)]);
                self.last_read = Instant::now();
                written
            }
            Err(Errno::EINTR) => Err(io::ErrorKind::Interrupted.into()),
            Err(error) => Err(error.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;
    use crate::sys::users::{as_user, is_root};

    static LONG: [u8; 1 << 20] = [b'x'; 1 << 20];

    fn names(place: &Path) -> Vec<String> {
        let name = |entry: io::Result<fs::DirEntry>| entry.unwrap().file_name().into_string().unwrap();
        let mut names: Vec<_> = fs::read_dir(place).unwrap().map(name).collect();
        names.sort();
        names
    }

    fn write(path: &Path, contents: &str) -> io::Result<()> {
        Rewrite::open(path)?.write(|out| out.write_all(contents.as_bytes()))
    }

    #[test]
    fn the_old_contents_survive_a_failure() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("stats");
        write(&path, "old, and longer").unwrap();
        let opened = Rewrite::open(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old, and longer", "it is opened");
        let full = opened.write(|out| {
            out.write_all(&LONG)?;
            Err(io::ErrorKind::StorageFull.into())
        });
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "old, and longer");
        write(&path, "new").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(names(place.path()), ["stats"]);
    }

    #[test]
    fn the_mode_and_the_links_of_the_old_file_are_kept() {
        let place = tempfile::tempdir().unwrap();
        let (path, link) = (place.path().join("file"), place.path().join("link"));
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, "new").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().mode() & 0o7777),
            ("new", 0o640)
        );
        let other = place.path().join("other");
        fs::hard_link(&path, &other).unwrap();
        write(&path, "newer").unwrap();
        assert_eq!(fs::read_to_string(&other).unwrap(), "newer", "a second name is one of the same file");
        assert_eq!(names(place.path()), ["file", "link", "other"]);
    }

    #[test]
    fn devices_and_open_files_are_written_in_place() {
        assert_eq!(write(Path::new("/dev/full"), "x").unwrap_err().kind(), io::ErrorKind::StorageFull);
        write(Path::new("/dev/null"), "x").unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        let descriptor = file.as_file().as_raw_fd();
        write(Path::new(&format!("/proc/self/fd/{descriptor}")), "through").unwrap();
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "through");
    }

    #[test]
    fn the_group_of_the_old_file_is_kept() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = place.path().join("file");
        for (user, group) in [(0, 65_503), (65_501, 65_503)] {
            fs::write(&path, "old").unwrap();
            chown(&path, Some(user), Some(group)).unwrap();
            // Only root may give a file to a group that is not its own: the other user's file is written in place.
            as_user(user, || write(&path, "new").unwrap());
            let found = fs::metadata(&path).unwrap();
            assert_eq!((found.uid(), found.gid(), found.len()), (user, group, 3));
            assert_eq!(names(place.path()), ["file"]);
        }
    }

    #[test]
    fn a_file_is_written_in_a_directory_where_no_other_can_be_made() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = place.path().join("file");
        fs::write(&path, "old, and longer").unwrap();
        chown(&path, Some(65_501), None).unwrap();
        as_user(65_501, || write(&path, "new").unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn signals_give_a_reader_no_more_time() {
        let (_read, write) = nix::unistd::pipe().unwrap();
        let mut destination = Destination::new(write.into(), Some(Duration::from_secs(60)));
        destination.write_all(&LONG[..65_536]).unwrap();
        // As after a wait that signals have cut into pieces.
        destination.last_read -= Duration::from_secs(60);
        assert_eq!(destination.write(&LONG).unwrap_err().kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_reader_that_does_not_read_delays_the_end_for_some_time_only() {
        let (_read, write) = nix::unistd::pipe().unwrap();
        let mut destination = Destination::new(write.into(), Some(Duration::from_millis(20)));
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
        let mut destination = Destination::new(write.into(), Some(Duration::from_secs(60)));
        destination.write_all(&LONG).unwrap();
        drop(destination);
        assert!(reader.join().unwrap().unwrap() == LONG);
    }
}
