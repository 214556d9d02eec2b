//! Copies the output files of a job to this process's streams, in a thread: a reader that stops must not delay signals.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::panic::resume_unwind;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::unistd::{Whence, lseek, pipe2};
use nla::sys;

use crate::run::output;

/// Bytes that are read from a file at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// The time between two looks at files that inotify does not watch.
const LOOK_TIME: Duration = Duration::from_millis(200);

/// The reason for which not everything was copied.
#[derive(Debug)]
pub(super) enum Cut {
    /// The reader of standard output has closed it.
    NoReader,
    /// Standard output cannot be written.
    Unwritten(io::Error),
    /// A file cannot be read.
    Unread(io::Error),
}

/// A thread that copies the files of a job's standard output and error to those of this process, as long as they grow.
pub(super) struct Copying {
    /// Dropped once the files do not grow any more.
    growing: Option<OwnedFd>,
    /// Its other end is closed when the thread ends.
    end: OwnedFd,
    thread: JoinHandle<Result<u64, Cut>>,
}

impl Copying {
    /// Starts the thread. Signals that are blocked stay so in it.
    pub(super) fn start(files: [OwnedFd; 2]) -> io::Result<Self> {
        let files = files.map(File::from);
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        let growth = Growth::of(inotify, files.each_ref())?;
        let (grown, growing) = pipe2(OFlag::O_CLOEXEC)?;
        let (end, open) = pipe2(OFlag::O_CLOEXEC)?;
        let thread = thread::Builder::new().name("output".to_owned()).spawn(move || {
            let _open = open;
            copy_all(files.map(Followed::new), &growth, &grown)
        })?;
        Ok(Self { growing: Some(growing), end, thread })
    }

    /// Lets the thread end when it has copied what is in the files now.
    pub(super) fn finish(&mut self) {
        self.growing = None;
    }

    /// Returns a descriptor that is readable once the thread has ended.
    pub(super) fn end(&self) -> BorrowedFd<'_> {
        self.end.as_fd()
    }

    /// Waits until the thread has ended. Returns how many bytes were freed before they were copied.
    pub(super) fn result(self) -> Result<u64, Cut> {
        self.thread.join().unwrap_or_else(|panic| resume_unwind(panic))
    }
}

/// Copies the files until `grown` says that they do not grow any more. Returns how many bytes were freed before.
fn copy_all([mut output, mut errors]: [Followed; 2], growth: &Growth, grown: &OwnedFd) -> Result<u64, Cut> {
    let mut has_errors = true;
    loop {
        // Before the copy, which then has everything.
        let is_last = is_readable(grown);
        output.copy(|bytes| match sys::stdout_was_closed() {
            // Rust's runtime has opened /dev/null in its place.
            true => Err(Errno::EBADF.into()),
            false => output::write_all(&io::stdout(), bytes),
        })?;
        // As without a pool, a lost standard error cuts only itself.
        has_errors = has_errors && errors.copy(|bytes| output::write_all(&io::stderr(), bytes)).is_ok();
        if is_last {
            return Ok(output.freed + errors.freed);
        }
        growth.wait(grown.as_fd());
    }
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut one = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
    poll(&mut one, PollTimeout::ZERO) == Ok(1)
}

/// A file that grows, and whose beginning may be freed.
struct Followed {
    file: File,
    /// The position behind the bytes that were copied or freed.
    at: u64,
    /// How many bytes were freed before they were copied.
    freed: u64,
}

impl Followed {
    fn new(file: File) -> Self {
        Self { file, at: 0, freed: 0 }
    }

    /// Copies what the file has now.
    fn copy(&mut self, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), Cut> {
        let mut piece = vec![0; PIECE_BYTES];
        let end = self.file.metadata().map_err(Cut::Unread)?.len();
        while let Some(data) = self.next_data().map_err(Cut::Unread)?.filter(|data| *data < end) {
            self.freed += data - self.at;
            self.at = data;
            let length = self.file.read_at(&mut piece, data).map_err(Cut::Unread)?;
            if length == 0 {
                // It was cut meanwhile.
                return Ok(());
            }
            // Bytes that are freed meanwhile read as zeros. The next data are behind them.
            if self.next_data().map_err(Cut::Unread)? != Some(data) {
                continue;
            }
            write(&piece[..length]).map_err(|error| match error.kind() {
                io::ErrorKind::BrokenPipe => Cut::NoReader,
                _ => Cut::Unwritten(error),
            })?;
            self.at += length as u64;
        }
        Ok(())
    }

    /// Returns where the next bytes are that were written and not freed; `None` if there are none.
    fn next_data(&self) -> io::Result<Option<u64>> {
        match lseek(&self.file, self.at.cast_signed(), Whence::SeekData) {
            Ok(data) => Ok(Some(data.cast_unsigned())),
            Err(Errno::ENXIO) => Ok(None),
            // The file system frees nothing.
            Err(Errno::EINVAL) => Ok((self.file.metadata()?.len() > self.at).then_some(self.at)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Watches files that grow. `None` if the user has no inotify instance left (the kernel allows 128 by default). The thread then checks
/// the files every [`LOOK_TIME`].
struct Growth(Option<Inotify>);

impl Growth {
    /// Watches these files by `inotify`, which the kernel may have refused.
    fn of(inotify: nix::Result<Inotify>, files: [&File; 2]) -> io::Result<Self> {
        let watched = inotify.and_then(|inotify| {
            for file in files {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY)?;
            }
            Ok(inotify)
        });
        match watched {
            Ok(inotify) => Ok(Self(Some(inotify))),
            // The bounds of a user's instances and watches, and of all open files.
            Err(Errno::EMFILE | Errno::ENOSPC | Errno::ENFILE) => Ok(Self(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the files may have grown, or `end` can be read.
    fn wait(&self, end: BorrowedFd<'_>) {
        let inotify = self.0.as_ref().map(AsFd::as_fd);
        let waited = std::iter::once(end).chain(inotify);
        let mut waited: Vec<PollFd<'_>> = waited.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut waited, self.pause());
        let _ = self.0.as_ref().map(Inotify::read_events);
    }

    fn pause(&self) -> PollTimeout {
        let looks = || PollTimeout::try_from(LOOK_TIME).unwrap_or(PollTimeout::MAX);
        self.0.as_ref().map_or_else(looks, |_| PollTimeout::NONE)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_job_is_followed_without_inotify() {
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let of = |inotify| Growth::of(inotify, [&first, &second]);
        let told = of(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)).unwrap();
        assert_eq!(
            told.pause(),
            told.0.as_ref().map_or(PollTimeout::try_from(LOOK_TIME).unwrap(), |_| PollTimeout::NONE)
        );
        for error in [Errno::EMFILE, Errno::ENOSPC] {
            let looks = of(Err(error)).unwrap();
            assert_eq!(looks.pause(), PollTimeout::try_from(LOOK_TIME).unwrap());
            let (silent, _open) = nix::unistd::pipe().unwrap();
            // It returns, though nothing tells that a file has grown.
            looks.wait(silent.as_fd());
        }
        assert!(of(Err(Errno::EPERM)).is_err());
    }

    #[test]
    fn a_copy_ends_at_the_end_of_the_file_also_of_a_device_and_goes_on_there() {
        let mut device = Followed::new(File::open("/dev/null").unwrap());
        device.copy(|_| panic!("it has nothing")).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        // It has a position of its own.
        let (mut followed, mut copied) = (Followed::new(file.reopen().unwrap()), Vec::new());
        for text in ["first\n", "second\n"] {
            file.write_all(text.as_bytes()).unwrap();
            copied.clear();
            followed.copy(|bytes| copied.write_all(bytes)).unwrap();
            assert_eq!(copied, text.as_bytes());
        }
        // More arrives while the first piece is written: that is for the next time.
        file.write_all(b"third\n").unwrap();
        let mut writes = 0;
        followed
            .copy(|_| {
                writes += 1;
                file.write_all(b"more\n")
            })
            .unwrap();
        assert_eq!(writes, 1);
    }

    #[test]
    fn a_write_that_fails_says_whether_there_is_a_reader() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"text").unwrap();
        let mut followed = Followed::new(file);
        assert!(matches!(followed.copy(|_| Err(Errno::EPIPE.into())), Err(Cut::NoReader)));
        assert!(matches!(followed.copy(|_| Err(Errno::ENOSPC.into())), Err(Cut::Unwritten(_))));
        assert_eq!(followed.at, 0, "nothing was copied");
    }
}
