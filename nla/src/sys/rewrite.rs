//! Files that the user names and that are rewritten as a whole at the end: the old contents survive a failure.

use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstatat;
use nix::unistd::{UnlinkatFlags, unlinkat};
use tokio::time::timeout;

use super::descriptors::set_nonblocking;
use super::new_file::{Beside, keeps_mode};
use super::output_file::{Opened, OutputMode, READER_TIME, open};
use super::path_walk::Walk;
use super::readiness::{Watched, watch};

/// A pipe that is writable has room for so many bytes (PIPE_BUF).
const PIECE_BYTES_MAX: usize = 4096;

/// A file that is open, and keeps its contents until others have been written. A file that was made is removed again if nothing
/// is written.
#[derive(Debug)]
pub struct Rewrite {
    /// Dropped before `opened`: an open file's inode number is not reused, so `Made::drop` recognises its own file.
    made: Option<Made>,
    opened: Opened,
}

impl Rewrite {
    /// Opens a file, or makes it. This changes no contents. Opens devices and FIFOs, and follows links, unless another user put
    /// them into a sticky directory. Never waits for the reader of a FIFO: one without a reader is refused.
    pub fn open(path: &Path) -> io::Result<Self> {
        let opened = open(path, OutputMode::Report, false)?;
        let made = opened.walk.as_ref().filter(|_| opened.is_new).map(|walk| Made::of(&opened, walk));
        Ok(Self { made: made.transpose()?, opened })
    }

    /// Returns whether the file was made when it was opened.
    pub fn is_new(&self) -> bool {
        self.made.is_some()
    }

    /// Returns the FIFO that the file is, or the file itself if it is something else. Call it inside a tokio runtime.
    pub fn into_fifo(self) -> io::Result<Result<Fifo, Self>> {
        if !self.opened.file.metadata()?.file_type().is_fifo() {
            return Ok(Err(self));
        }
        set_nonblocking(self.opened.file.as_fd())?;
        Ok(Ok(Fifo(watch(self.opened.file.into())?)))
    }

    /// Replaces the contents. A regular file of this user is replaced by one with the same mode and group that was written beside
    /// it and stored: readers find the old contents or the new ones. So is a file that was removed or replaced meanwhile; if the user
    /// may not give the new one the old group, its own group has no rights to it. Other files
    /// are written in place, and so are those with extended attributes, such as an access control list, and those that are mounted on
    /// their name. Appends if the file is this process's standard output or error. Waits for the reader of a FIFO for at most 5 s
    /// without progress.
    pub fn write(self, contents: impl FnOnce(&mut BufWriter<Destination>) -> io::Result<()>) -> io::Result<()> {
        // Dropping `_made` removes a new file that is still empty.
        let Self { opened: Opened { file, walk, name, .. }, made: _made } = self;
        let found = file.metadata()?;
        let is_regular = found.is_file();
        let reader_time = (!is_regular).then_some(READER_TIME);
        if let Some(stream) = own_stream(&found).filter(|_| is_regular) {
            return written(Destination::new(stream, reader_time), contents).map(drop);
        }
        // The file has no name any more: contents written in place would be lost.
        let is_removed = is_regular && found.nlink() == 0;
        let keeps_mode = keeps_mode(&found);
        // Another name of the file would go on naming the old one.
        let is_alone = is_regular && found.nlink() == 1;
        let may_replace = is_removed || is_alone && keeps_mode && !has_attributes(&file);
        let beside = walk.filter(|walk| may_replace && !is_mounted(&file, walk)).map(|walk| {
            let old = keeps_mode.then_some(&found);
            let beside = Beside::create(walk, &name, old)?;
            match old {
                // There is no other place for the contents.
                Some(old) if is_removed => beside.take_group_or_none(old)?,
                Some(old) => beside.take_group(old)?,
                None => {}
            }
            Ok::<_, io::Error>(beside)
        });
        match beside {
            Some(Ok(beside)) => beside.finish(|file| written(Destination::new(file, reader_time), contents)),
            Some(Err(error)) if is_removed => {
                let text = format!("the file was removed meanwhile, and a new one cannot be made: {error}");
                Err(io::Error::new(error.kind(), text))
            }
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

/// A FIFO that is open for writing.
#[derive(Debug)]
pub struct Fifo(Watched);

impl Fifo {
    /// Writes bytes. Waits for the reader for at most 5 s without progress, as [`Rewrite::write`] does. Dropping the future leaves
    /// the rest unwritten.
    pub async fn write(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = timeout(READER_TIME, self.0.writable()).await.map_err(|_| not_read(READER_TIME))??;
            match nix::unistd::write(&self.0, bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::EAGAIN) => ready.clear_ready(),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// A file that was made, and its place. Dropping this removes the file if it is still there and empty.
#[derive(Debug)]
struct Made {
    directory: File,
    name: OsString,
    /// The device and the inode.
    file: (u64, u64),
}

impl Made {
    fn of(opened: &Opened, walk: &Walk) -> io::Result<Self> {
        let made = opened.file.metadata()?;
        let directory = walk.directory().try_clone()?;
        Ok(Self { directory, name: opened.name.clone(), file: (made.dev(), made.ino()) })
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        let there = fstatat(&self.directory, self.name.as_os_str(), AtFlags::AT_SYMLINK_NOFOLLOW);
        if there.is_ok_and(|there| (there.st_dev, there.st_ino) == self.file && there.st_size == 0) {
            // The file is empty, so it is harmless if it stays.
            let _ = unlinkat(&self.directory, self.name.as_os_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// Returns whether a file has extended attributes that a new file would not have: an access control list, or some of the user's.
/// Those of security modules come from the system.
fn has_attributes(file: &File) -> bool {
    let mut names = [0u8; 4096];
    // SAFETY: the kernel writes at most `names.len()` bytes.
    let length = unsafe { libc::flistxattr(file.as_raw_fd(), names.as_mut_ptr().cast(), names.len()) };
    match usize::try_from(length) {
        Ok(length) => {
            names[..length].split(|byte| *byte == 0).any(|name| !name.is_empty() && !name.starts_with(b"security."))
        }
        // More names than have room.
        Err(_) => io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE),
    }
}

/// Returns whether a file is mounted on its name in a directory, so that no other file can take the name.
fn is_mounted(file: &File, walk: &Walk) -> bool {
    let mount = |file: &File| {
        let text = fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).ok()?;
        text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse::<u64>().ok())
    };
    matches!((mount(file), mount(walk.directory())), (Some(one), Some(other)) if one != other)
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

/// Returns the error of a wait for a reader that reads nothing.
fn not_read(time: Duration) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("its reader has read nothing for {} s", time.as_secs_f64()))
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
            Ok(0) => Err(not_read(time)),
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
        fs::remove_file(file.path()).unwrap();
        let path = format!("/proc/self/fd/{descriptor}");
        write(Path::new(&path), "without a name").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "without a name");
    }

    #[test]
    fn a_file_that_was_removed_or_replaced_is_written_under_its_name() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let write_after = |change: &dyn Fn(), contents: &str| {
            let opened = Rewrite::open(&path).unwrap();
            change();
            opened.write(|out| out.write_all(contents.as_bytes())).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), contents);
        };
        let remove = || fs::remove_file(&path).unwrap();
        write_after(&remove, "it was made");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        write_after(&remove, "it was there");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o640);
        let replace = || {
            remove();
            fs::write(&path, "theirs, and longer").unwrap();
        };
        write_after(&replace, "ours");
        assert_eq!(names(place.path()), ["file"]);
    }

    #[test]
    fn who_writes_nothing_removes_no_report_of_others() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let open = || Rewrite::open(&path).unwrap();
        let written = || fs::read_to_string(&path).unwrap();
        let (one, other) = (open(), open());
        drop(one);
        assert!(!path.exists());
        other.write(|out| out.write_all(b"after")).unwrap();
        assert_eq!(written(), "after");
        fs::remove_file(&path).unwrap();
        let (one, other) = (open(), open());
        other.write(|out| out.write_all(b"before")).unwrap();
        drop(one);
        assert_eq!(written(), "before");
        fs::remove_file(&path).unwrap();
        let one = open();
        fs::remove_file(&path).unwrap();
        let other = open();
        drop(one);
        assert!(other.is_new() && path.exists(), "it is the other's");
        drop(other);
        assert!(names(place.path()).is_empty());
    }

    #[test]
    fn a_file_that_was_removed_is_made_by_who_may() {
        if !is_root() {
            return;
        }
        const OTHER: u32 = 65_501;
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = place.path().join("file");
        let opened_by = |user: u32| {
            fs::write(&path, "old").unwrap();
            chown(&path, Some(OTHER), None).unwrap();
            let opened = as_user(user, || Rewrite::open(&path).unwrap());
            fs::remove_file(&path).unwrap();
            opened
        };
        let opened = opened_by(OTHER);
        let error = as_user(OTHER, || opened.write(|out| out.write_all(b"new"))).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        let text = "the file was removed meanwhile, and a new one cannot be made: Permission denied";
        assert!(error.to_string().starts_with(text), "{error}");
        assert!(!path.exists());
        opened_by(0).write(|out| out.write_all(b"new")).unwrap();
        assert_eq!((fs::read_to_string(&path).unwrap().as_str(), fs::metadata(&path).unwrap().uid()), ("new", 0));
    }

    #[test]
    fn a_file_that_was_made_is_removed_if_nothing_is_written() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let opened = Rewrite::open(&path).unwrap();
        assert!(opened.is_new() && path.exists());
        drop(opened);
        let full = Rewrite::open(&path).unwrap().write(|_| Err(io::ErrorKind::StorageFull.into()));
        assert_eq!(full.unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(names(place.path()).is_empty());
        // Others have written meanwhile.
        let opened = Rewrite::open(&path).unwrap();
        fs::write(&path, "theirs").unwrap();
        drop(opened);
        assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
        fs::write(&path, "").unwrap();
        drop(Rewrite::open(&path).unwrap());
        assert!(path.exists(), "it was there before");
        fs::remove_file(&path).unwrap();
        write(&path, "").unwrap();
        assert_eq!(names(place.path()), ["file"], "an empty report is one");
    }

    #[test]
    fn a_file_with_attributes_and_a_mounted_one_stay_the_same_file() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        fs::write(&path, "old").unwrap();
        let inode = || fs::metadata(&path).unwrap().ino();
        let file = File::open(&path).unwrap();
        assert!(!has_attributes(&file));
        // SAFETY: the name ends with 0, and the value has one byte.
        if unsafe { libc::fsetxattr(file.as_raw_fd(), c"user.note".as_ptr(), b"x".as_ptr().cast(), 1, 0) } == 0 {
            let before = inode();
            write(&path, "new").unwrap();
            assert_eq!((inode(), fs::read_to_string(&path).unwrap().as_str()), (before, "new"));
        }
        let walk = |path: &Path| {
            let mut walk = Walk::of(path).unwrap();
            walk.last().unwrap();
            walk
        };
        assert!(!is_mounted(&file, &walk(&path)));
        assert!(
            is_mounted(&file, &walk(Path::new("/proc/version"))),
            "the file is on another mount than this directory"
        );
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
    fn a_removed_file_of_a_foreign_group_is_written_without_rights_of_a_group() {
        if !is_root() {
            return;
        }
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let path = place.path().join("file");
        fs::write(&path, "old").unwrap();
        chown(&path, Some(65_501), Some(65_503)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o664)).unwrap();
        as_user(65_501, || {
            let opened = Rewrite::open(&path).unwrap();
            fs::remove_file(&path).unwrap();
            opened.write(|out| out.write_all(b"new")).unwrap();
        });
        let found = fs::metadata(&path).unwrap();
        assert_eq!((found.gid(), found.mode() & 0o7777), (65_501, 0o604));
        assert_eq!(
            (fs::read_to_string(&path).unwrap().as_str(), names(place.path())),
            ("new", vec!["file".to_owned()])
        );
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
