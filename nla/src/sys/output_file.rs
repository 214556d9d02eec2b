//! Opens the files that the user names for output, without following what another user put in their places.
//!
//! In a directory like /tmp every user may create files, and the sticky bit keeps others from replacing them. Another
//! user may therefore create the output file first: as a link to a file of the victim's, or as a file that this other
//! user can read. The kernel refuses to open it if `fs.protected_symlinks`, `fs.protected_regular` and
//! `fs.protected_fifos` are set. This module applies the same rule on every system: in a sticky directory that others
//! may write to, it opens only files that belong to this user or to the directory's owner. `Walk` applies it to each
//! link on the way there.
//!
//! A directory without the sticky bit is not checked. It may belong to another user, others may write to it, and another user
//! may have made it in /tmp. A user who names a file there trusts the directory's owner and everyone whom this owner lets
//! write. The directories of projects work like this.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::Mode;

use super::path_walk::{Walk, is, refused};

/// The longest time for which a FIFO may have no reader, or one that reads nothing.
pub(super) const READER_TIME: Duration = Duration::from_secs(5);
/// The pause between two attempts to open such a FIFO: the kernel does not report its first reader.
const READER_PAUSE: Duration = Duration::from_millis(20);

/// How an output file is opened.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OutputMode {
    /// Replaces the contents of a regular file, and then adds output at the end. Waits for the reader of a FIFO for at most 5 s.
    Replace,
    /// Replaces them, too, and refuses a FIFO that has no reader.
    Report,
    /// Adds output at the end, and refuses a FIFO that has no reader.
    Append,
    /// Adds output at the end, and reads what is there.
    Continue,
    /// Replaces the contents of the file, which must be a regular one of this user. Only this user may then read it.
    Private,
}

/// Opens the output file `path`, or makes it: with the mode 0666 less the umask, or 0600 if it is private. Opens devices
/// and FIFOs, and follows links, unless another user put them into a sticky directory. Refuses a FIFO that has no reader; `mode` says
/// how long this function waits for one.
pub fn open_output(path: &Path, mode: OutputMode) -> io::Result<File> {
    open(path, mode, true).map(|opened| opened.file)
}

/// Returns a path that is the same for all paths of one file, also if the file does not exist yet: [`output_path`], or the absolute
/// path if there is none.
pub fn true_path(path: &Path) -> PathBuf {
    output_path(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

/// Returns whether two [true paths](true_path) lead to one file: they are equal, or hard links. A path to a descriptor in /proc is
/// compared as a path only.
pub fn is_one_file(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| {
        let found = fs::metadata(path).ok().filter(|found| found.is_file() && !path.starts_with("/proc"));
        found.map(|found| (found.dev(), found.ino()))
    };
    one == other || identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// Returns the path of the file that [`open_output`] opens or makes, through links that it follows.
pub fn output_path(path: &Path) -> io::Result<PathBuf> {
    let mut walk = Walk::of(path)?;
    let mut name = walk.last()?;
    loop {
        let look = match walk.look(&name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            look => look?,
        };
        let found = look.metadata()?;
        walk.check(&found)?;
        if !found.is_symlink() || walk.is_in_proc()? {
            break;
        }
        walk.follow(&name, &look)?;
        name = walk.last()?;
    }
    Ok(fs::read_link(format!("/proc/self/fd/{}", walk.directory().as_raw_fd()))?.join(name))
}

/// An output file, and its place.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) file: File,
    /// Its directory; `None` if only the kernel can follow the way there.
    pub(super) walk: Option<Walk>,
    /// Its name in the directory.
    pub(super) name: OsString,
    /// Whether it was made.
    pub(super) is_new: bool,
}

/// The same. Without `truncates`, a file keeps its contents, whatever the mode says.
pub(super) fn open(path: &Path, mode: OutputMode, truncates: bool) -> io::Result<Opened> {
    open_within(READER_TIME, path, mode, truncates)
}

fn open_within(reader_time: Duration, path: &Path, mode: OutputMode, truncates: bool) -> io::Result<Opened> {
    let until = Instant::now() + reader_time;
    let mut walk = Walk::of(path)?;
    let mut name = walk.last()?;
    loop {
        let look = match walk.look(&name) {
            Ok(look) => look,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // O_EXCL follows no link.
                match walk.open(&name, flags(mode) | OFlag::O_CREAT | OFlag::O_EXCL, mode_of_new(mode)) {
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                        walk.count()?;
                        continue;
                    }
                    made => return made.map(|file| Opened { file, walk: Some(walk), name, is_new: true }),
                }
            }
            Err(error) => return Err(error),
        };
        let found = look.metadata()?;
        walk.check(&found)?;
        if found.is_symlink() {
            if mode == OutputMode::Private {
                return Err(refused("it is a link, which is not allowed for a file that will contain secrets"));
            }
            if walk.is_in_proc()? {
                let truncate = if truncates && matches!(mode, OutputMode::Replace | OutputMode::Report) {
                    OFlag::O_TRUNC
                } else {
                    OFlag::empty()
                };
                let file = walk.open(&name, flags(mode) | truncate, Mode::empty())?;
                return Ok(Opened { file, walk: None, name, is_new: false });
            }
            walk.follow(&name, &look)?;
            name = walk.last()?;
            continue;
        }
        // Without O_NONBLOCK, a FIFO without a reader would block the open.
        let file = match walk.open(&name, flags(mode) | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK, Mode::empty()) {
            Err(error) if is(&error, Errno::ELOOP) || error.kind() == io::ErrorKind::NotFound => {
                walk.count()?;
                continue;
            }
            Err(error) if is(&error, Errno::ENXIO) && mode == OutputMode::Replace && Instant::now() < until => {
                sleep(READER_PAUSE);
                continue;
            }
            Err(error) if is(&error, Errno::ENXIO) => {
                return Err(refused("it is a FIFO or a device that nothing reads"));
            }
            opened => opened?,
        };
        // The name may have been replaced before the file was opened.
        let opened = file.metadata()?;
        walk.check(&opened)?;
        if mode == OutputMode::Private {
            if !opened.is_file() || opened.uid() != nix::unistd::geteuid().as_raw() {
                return Err(refused("it must be a regular file of this user, because it will have secrets"));
            }
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
        if truncates && opened.is_file() && !matches!(mode, OutputMode::Append | OutputMode::Continue) {
            file.set_len(0)?;
        }
        if mode != OutputMode::Private {
            fcntl(&file, FcntlArg::F_SETFL(flags(mode)))?;
        }
        return Ok(Opened { file, walk: Some(walk), name, is_new: false });
    }
}

fn flags(mode: OutputMode) -> OFlag {
    match mode {
        OutputMode::Report | OutputMode::Private => OFlag::O_WRONLY,
        OutputMode::Replace | OutputMode::Append => OFlag::O_WRONLY | OFlag::O_APPEND,
        OutputMode::Continue => OFlag::O_RDWR | OFlag::O_APPEND,
    }
}

/// Returns the mode of a file that is made, before the umask.
fn mode_of_new(mode: OutputMode) -> Mode {
    Mode::from_bits_truncate(if mode == OutputMode::Private { 0o600 } else { 0o666 })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::sys::users::{as_user, is_root};

    const VICTIM: u32 = 65_501;
    const ATTACKER: u32 = 65_502;

    /// Makes a directory in which all users may make and replace names.
    fn open_to_all() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
        place
    }

    #[test]
    fn all_paths_of_a_file_are_one() {
        let place = tempfile::tempdir().unwrap();
        let [one, other, loops] = ["one", "other", "loops"].map(|name| place.path().join(name));
        symlink("one", &other).unwrap();
        symlink("loops", &loops).unwrap();
        symlink(".", place.path().join("here")).unwrap();
        for path in [&one, &other, &place.path().join("here/./other")] {
            assert_eq!(true_path(path), place.path().canonicalize().unwrap().join("one"));
            assert_eq!(output_path(path).unwrap(), true_path(path));
        }
        assert_eq!(true_path(&loops).file_name(), loops.file_name());
        assert_eq!(true_path(Path::new("/proc/self/fd/1")).file_name(), Some("1".as_ref()));
        assert_eq!(true_path(Path::new("/")), Path::new("/"));
    }

    #[test]
    fn what_another_user_put_into_a_shared_directory_is_refused() {
        if !is_root() {
            return;
        }
        let (place, home) = (shared(), open_to_all());
        let mine = home.path().join("mine");
        as_user(VICTIM, || fs::write(&mine, "mine").unwrap());
        let [link, dangling, file, fifo] = ["link", "dangling", "file", "fifo"].map(|name| place.path().join(name));
        as_user(ATTACKER, || {
            symlink(&mine, &link).unwrap();
            symlink(home.path().join("made"), &dangling).unwrap();
            fs::write(&file, "").unwrap();
            nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
            for planted in [&file, &fifo] {
                fs::set_permissions(planted, fs::Permissions::from_mode(0o666)).unwrap();
            }
        });
        as_user(VICTIM, || output_path(&dangling)).unwrap_err();
        let indirect = home.path().join("indirect");
        as_user(VICTIM, || symlink(&link, &indirect).unwrap());
        for victim in [VICTIM, 0] {
            for (path, what) in
                [(&link, "link"), (&dangling, "link"), (&file, "file"), (&fifo, "FIFO"), (&indirect, "link")]
            {
                for mode in [OutputMode::Replace, OutputMode::Append] {
                    let error = as_user(victim, || open_output(path, mode)).unwrap_err().to_string();
                    assert!(error.starts_with(&format!("it is a {what} of another user (uid {ATTACKER})")), "{error}");
                }
                as_user(victim, || open_output(path, OutputMode::Private)).unwrap_err();
            }
        }
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert!(!home.path().join("made").exists());
        // In a directory that only its owner writes to, that owner is trusted.
        let own = tempfile::tempdir().unwrap();
        fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let open = own.path().join("open");
        fs::write(&open, "").unwrap();
        fs::set_permissions(&open, fs::Permissions::from_mode(0o666)).unwrap();
        as_user(VICTIM, || write(&open, OutputMode::Replace, "as before"));
        as_user(VICTIM, || open_output(&open, OutputMode::Private)).unwrap_err();
    }

    #[test]
    fn another_users_link_is_refused_wherever_it_is_in_the_path() {
        if !is_root() {
            return;
        }
        let (place, home) = (shared(), open_to_all());
        let mine = home.path().join("project/mine");
        as_user(VICTIM, || {
            fs::create_dir(mine.parent().unwrap()).unwrap();
            fs::write(&mine, "mine").unwrap();
        });
        let planted = place.path().join("planted");
        as_user(ATTACKER, || symlink(home.path(), &planted).unwrap());
        // The victim's own link leads through the attacker's.
        let indirect = home.path().join("indirect");
        as_user(VICTIM, || symlink(planted.join("project"), &indirect).unwrap());
        for victim in [VICTIM, 0] {
            for directory in [planted.join("project"), planted.join("./project/../project"), indirect.clone()] {
                for (name, mode) in
                    [("mine", OutputMode::Replace), ("mine", OutputMode::Append), ("new", OutputMode::Private)]
                {
                    let opened = as_user(victim, || open_output(&directory.join(name), mode));
                    let error = opened.map(drop).unwrap_err().to_string();
                    assert!(error.starts_with(&format!("it is a link of another user (uid {ATTACKER})")), "{error}");
                }
            }
        }
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
        assert!(!home.path().join("project/new").exists());
        // The user's own link and that of the directory's owner are followed.
        for owner in [VICTIM, 0] {
            let link = place.path().join(format!("link-of-{owner}"));
            as_user(owner, || symlink(home.path(), &link).unwrap());
            as_user(VICTIM, || write(&link.join("project/mine"), OutputMode::Append, " too"));
        }
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine too too");
    }

    #[test]
    fn directories_of_others_without_the_sticky_bit_are_trusted() {
        if !is_root() {
            return;
        }
        let (place, home) = (shared(), open_to_all());
        let project = place.path().join("project");
        as_user(ATTACKER, || {
            fs::create_dir(&project).unwrap();
            fs::set_permissions(&project, fs::Permissions::from_mode(0o777)).unwrap();
            symlink(home.path(), project.join("link")).unwrap();
        });
        as_user(VICTIM, || write(&project.join("link/out"), OutputMode::Replace, "there"));
        assert_eq!(fs::read_to_string(home.path().join("out")).unwrap(), "there");
    }

    #[test]
    fn an_attacker_who_exchanges_the_name_gains_nothing() {
        if !is_root() {
            return;
        }
        const TURNS: u32 = 500;
        let (place, home) = (shared(), open_to_all());
        let (name, mine) = (place.path().join("out"), home.path().join("mine"));
        as_user(VICTIM, || fs::write(&mine, "mine").unwrap());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                as_user(ATTACKER, || {
                    // Bounded, so that a victim that panics does not leave this thread running.
                    for _ in 0..100 * TURNS {
                        if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                            return;
                        }
                        let _ = symlink(&mine, &name);
                        let _ = fs::remove_file(&name);
                        let _ = fs::write(&name, "");
                        let _ = fs::remove_file(&name);
                    }
                });
            });
            as_user(VICTIM, || {
                for _ in 0..TURNS {
                    if let Ok(mut file) = open_output(&name, OutputMode::Replace) {
                        assert_eq!(file.metadata().unwrap().uid(), VICTIM);
                        file.write_all(b"output").unwrap();
                        fs::remove_file(&name).unwrap();
                    }
                }
            });
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine");
    }

    fn write(path: &Path, mode: OutputMode, text: &str) {
        open_output(path, mode).unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn mode_of(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    /// Makes a directory like /tmp.
    fn shared() -> tempfile::TempDir {
        let place = tempfile::tempdir().unwrap();
        fs::set_permissions(place.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        place
    }

    #[test]
    fn the_users_own_files_and_links_are_opened_as_before() {
        for place in [shared(), tempfile::tempdir().unwrap()] {
            let (path, link) = (place.path().join("out"), place.path().join("link"));
            symlink("out", &link).unwrap();
            write(&link, OutputMode::Replace, "a long line\n");
            write(&path, OutputMode::Replace, "a\n");
            write(&link, OutputMode::Append, "b\n");
            assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n");
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        }
        write(Path::new("/dev/null"), OutputMode::Replace, "nothing");
        let file = tempfile::NamedTempFile::new().unwrap();
        let descriptor = format!("/dev/fd/{}", std::os::fd::AsRawFd::as_raw_fd(file.as_file()));
        write(Path::new(&descriptor), OutputMode::Replace, "by its number");
        assert_eq!(fs::read_to_string(file.path()).unwrap(), "by its number");
    }

    #[test]
    fn a_fifo_that_nothing_reads_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let modes = [OutputMode::Report, OutputMode::Append, OutputMode::Replace];
        for mode in modes {
            let error = open_within(Duration::from_millis(50), &path, mode, true).unwrap_err();
            assert!(error.to_string().contains("it is a FIFO or a device that nothing reads"), "{error}");
        }
        let _reader = fs::OpenOptions::new().read(true).write(true).open(&path).unwrap();
        for mode in modes {
            let file = open_output(&path, mode).unwrap();
            let flags = OFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GETFL).unwrap());
            assert!(!flags.contains(OFlag::O_NONBLOCK), "a long text is written whole");
        }
    }

    #[test]
    fn a_fifo_is_opened_once_it_has_a_reader() {
        let place = shared();
        let path = place.path().join("fifo");
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        std::thread::scope(|threads| {
            let reader = threads.spawn(|| fs::read_to_string(&path));
            write(&path, OutputMode::Replace, "through it");
            assert_eq!(reader.join().unwrap().unwrap(), "through it");
        });
        assert!(open_output(&path, OutputMode::Private).is_err(), "and does not wait for a reader");
    }

    #[test]
    fn a_private_file_is_a_regular_file_with_the_mode_0600() {
        let place = tempfile::tempdir().unwrap();
        let (made, found, link) = (place.path().join("made"), place.path().join("found"), place.path().join("link"));
        fs::write(&found, "before, and longer").unwrap();
        fs::set_permissions(&found, fs::Permissions::from_mode(0o644)).unwrap();
        for path in [&made, &found] {
            write(path, OutputMode::Private, "secret");
            assert_eq!((mode_of(path), fs::read_to_string(path).unwrap().as_str()), (0o600, "secret"));
        }
        symlink("made", &link).unwrap();
        for path in [link.as_path(), Path::new("/dev/null"), place.path()] {
            assert!(open_output(path, OutputMode::Private).is_err(), "{}", path.display());
        }
        assert_eq!(fs::read_to_string(&made).unwrap(), "secret");
    }

    #[test]
    fn paths_that_cannot_be_written_have_the_systems_errors() {
        let place = tempfile::tempdir().unwrap();
        let (first, second) = (place.path().join("first"), place.path().join("second"));
        symlink("second", &first).unwrap();
        symlink("first", &second).unwrap();
        let errno = |path: &Path| open_output(path, OutputMode::Replace).unwrap_err().raw_os_error();
        assert_eq!(errno(&first), Some(Errno::ELOOP as i32));
        assert_eq!(errno(place.path()), Some(Errno::EISDIR as i32));
        assert_eq!(errno(&place.path().join("none/out")), Some(Errno::ENOENT as i32));
        assert_eq!(errno(Path::new("")), Some(Errno::ENOENT as i32));
    }

    #[test]
    fn a_second_name_of_a_file_is_refused_in_a_shared_directory() {
        let (place, home) = (shared(), tempfile::tempdir().unwrap());
        let (mine, planted) = (home.path().join("mine"), place.path().join("out"));
        fs::write(&mine, "mine").unwrap();
        fs::hard_link(&mine, &planted).unwrap();
        assert!(open_output(&planted, OutputMode::Replace).is_err());
        write(&mine, OutputMode::Append, " still");
        assert_eq!(fs::read_to_string(&mine).unwrap(), "mine still");
    }
}
