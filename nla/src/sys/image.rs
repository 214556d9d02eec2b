//! A command as exec wants it: checked on this node once, started many times.
//!
//! What can be said about a program before it runs is said here, in the user's words: that it is
//! missing, is not executable, that its working directory is not there.

use std::ffi::{CStr, CString, OsStr};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{AccessFlags, faccessat};

/// Where programs are looked for if the environment has no PATH.
const PATH_DEFAULT: &[u8] = b"/usr/local/bin:/bin:/usr/bin";

/// How much of a program is looked at to tell a script without `#!` from a foreign binary.
const SNIFF_BYTES: u64 = 128;

/// One command as exec wants it, checked once and started many times.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) path: CString,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) wdir: CString,
    /// Reads like a text: a script for /bin/sh if the kernel does not know the format.
    pub(super) script: bool,
}

/// Why a command cannot be started on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// There is no such program.
    #[error("program '{program}' was not found {place}; {}", hint_found(program))]
    NotFound {
        /// As the user wrote it.
        program: String,
        /// Where it was looked for, in words.
        place: String,
    },
    /// It is there, but is not ours to run.
    #[error(
        "program '{program}' is not executable; try chmod +x, or another file system if this one is mounted noexec"
    )]
    NotExecutable {
        /// As the user wrote it.
        program: String,
    },
    /// It is a script whose first line ends with CR LF.
    #[error("program '{program}' is a script whose line 1 ends with CR; try dos2unix")]
    CarriageReturn {
        /// As the user wrote it.
        program: String,
    },
    /// It is a directory.
    #[error("program '{program}' is a directory; name the file in it")]
    IsDirectory {
        /// As the user wrote it.
        program: String,
    },
    /// The node cannot say: an error of its file system.
    #[error("program '{program}' cannot be looked at: {}", Errno::from_raw(*errno).desc())]
    Unreadable {
        /// As the user wrote it.
        program: String,
        /// The error of the last system call.
        errno: i32,
    },
    /// The working directory is not there.
    #[error(
        "working directory '{wdir}' does not exist on this node; give one that does with -wdir, or put it on a shared file system"
    )]
    WdirMissing {
        /// As the user wrote it.
        wdir: String,
    },
    /// The working directory is a file.
    #[error("working directory '{wdir}' is not a directory; give one with -wdir")]
    WdirNotDirectory {
        /// As the user wrote it.
        wdir: String,
    },
    /// The working directory may not be entered, or cannot.
    #[error("working directory '{wdir}' cannot be entered on this node: {}; give another one with -wdir", Errno::from_raw(*errno).desc())]
    WdirRefused {
        /// As the user wrote it.
        wdir: String,
        /// The error of the last system call.
        errno: i32,
    },
    /// A text for the kernel has a NUL byte in it.
    #[error("the {what} contains a NUL byte, which no program can be given")]
    Nul {
        /// Which one, in words.
        what: &'static str,
    },
}

fn hint_found(program: &str) -> &'static str {
    if program.contains('/') {
        "check the path, and that this node has it too"
    } else {
        "give its path (./name for one in the working directory), or set PATH"
    }
}

impl Image {
    /// Checks the command on this node and prepares it.
    ///
    /// `argv` begins with the name (an empty one is given the program's). `env` is what all ranks
    /// of the command share; a rank's own variables come with
    /// [`Spawner::spawn`](super::spawn::Spawner::spawn). `wdir` must be an existing directory,
    /// relative to ours if not absolute; an empty one means ours. The program is found as execvp
    /// does it, relative to `wdir` and by the PATH of `env`, not ours.
    pub fn prepare(
        program: &[u8],
        argv: &[Vec<u8>],
        env: &[(Vec<u8>, Vec<u8>)],
        wdir: &[u8],
    ) -> Result<Self, ImageError> {
        let text = |bytes: &[u8], what| CString::new(bytes).map_err(|_| ImageError::Nul { what });
        let wdir = text(if wdir.is_empty() { b"." } else { wdir }, "working directory")?;
        let at = enter(&wdir)?;
        let search = env.iter().find(|(name, _)| name == b"PATH");
        let search = search.map_or(PATH_DEFAULT, |(_, value)| value);
        let path = find(&at, program, search, &wdir)?;
        let start = start_of(&at, &path);
        if start.as_deref().is_some_and(ends_interpreter_with_cr) {
            return Err(ImageError::CarriageReturn { program: shown(program) });
        }
        // execvp gives whatever the kernel does not know to /bin/sh; a binary of another machine would then complain
        // about its "syntax". A program that may be run but not read is no script either.
        let script = start.is_some_and(|start| !start.contains(&0));
        let mut argv: Vec<CString> =
            argv.iter().map(|argument| text(argument, "command line")).collect::<Result<_, _>>()?;
        if argv.is_empty() {
            argv.push(text(program, "program's name")?);
        }
        let entry = |(name, value): &(Vec<u8>, Vec<u8>)| text(&[name.as_slice(), b"=", value].concat(), "environment");
        let env = env.iter().map(entry).collect::<Result<_, _>>()?;
        Ok(Self { path, argv, env, wdir, script })
    }

    /// The file that will be executed, as exec will be given it: relative to the working
    /// directory if the user's path was.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Opens the working directory, and checks that chdir would succeed.
fn enter(wdir: &CStr) -> Result<OwnedFd, ImageError> {
    let refused = |error| {
        let wdir = shown(wdir.to_bytes());
        match error {
            Errno::ENOENT => ImageError::WdirMissing { wdir },
            Errno::ENOTDIR => ImageError::WdirNotDirectory { wdir },
            error => ImageError::WdirRefused { wdir, errno: error as i32 },
        }
    };
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let at = nix::fcntl::open(wdir, flags, Mode::empty()).map_err(refused)?;
    faccessat(&at, ".", AccessFlags::X_OK, AtFlags::AT_EACCESS).map_err(refused)?;
    Ok(at)
}

/// The path for exec, found as execvp does.
fn find(at: &OwnedFd, program: &[u8], search: &[u8], wdir: &CStr) -> Result<CString, ImageError> {
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| ImageError::Nul { what: "program's name or PATH" });
    let name = || shown(program);
    let in_wdir = || format!("from working directory '{}'", shown(wdir.to_bytes()));
    if program.is_empty() {
        return Err(ImageError::NotFound { program: name(), place: in_wdir() });
    }
    if program.contains(&b'/') {
        let path = text(program.to_vec())?;
        return match look(at, &path) {
            Ok(()) => Ok(path),
            Err(Obstacle::Absent) => Err(ImageError::NotFound { program: name(), place: in_wdir() }),
            Err(obstacle) => Err(obstacle.blame(name())),
        };
    }
    let mut worst: Option<Obstacle> = None;
    for folder in search.split(|&byte| byte == b':') {
        // "./name", not "name": /bin/sh would take a name with a leading dash for an option.
        let folder = if folder.is_empty() { b"." } else { folder };
        let path = text([folder, b"/", program].concat())?;
        match look(at, &path) {
            Ok(()) => return Ok(path),
            Err(Obstacle::Absent) => {}
            Err(obstacle) => worst = worst.or(Some(obstacle)),
        }
    }
    match worst {
        Some(obstacle) => Err(obstacle.blame(name())),
        None => Err(ImageError::NotFound { program: name(), place: "in PATH".to_owned() }),
    }
}

/// What stands between us and a program at some path.
enum Obstacle {
    Absent,
    Directory,
    Permission,
    Other(Errno),
}

impl Obstacle {
    fn blame(self, program: String) -> ImageError {
        match self {
            Self::Absent => ImageError::Unreadable { program, errno: libc::ENOENT },
            Self::Directory => ImageError::IsDirectory { program },
            Self::Permission => ImageError::NotExecutable { program },
            Self::Other(error) => ImageError::Unreadable { program, errno: error as i32 },
        }
    }
}

fn look(at: &OwnedFd, path: &CStr) -> Result<(), Obstacle> {
    let obstacle = |error| match error {
        Errno::ENOENT | Errno::ENOTDIR => Obstacle::Absent,
        Errno::EACCES | Errno::EPERM => Obstacle::Permission,
        error => Obstacle::Other(error),
    };
    let stat = fstatat(at, path, AtFlags::empty()).map_err(obstacle)?;
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {}
        SFlag::S_IFDIR => return Err(Obstacle::Directory),
        _ => return Err(Obstacle::Permission),
    }
    faccessat(at, path, AccessFlags::X_OK, AtFlags::AT_EACCESS).map_err(obstacle)
}

/// Reads the first bytes of a file; `None` if it cannot be read.
fn start_of(at: &OwnedFd, path: &CStr) -> Option<Vec<u8>> {
    let flags = OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = openat(at, path, flags, Mode::empty()).ok()?;
    let mut start = Vec::new();
    std::fs::File::from(file).take(SNIFF_BYTES).read_to_end(&mut start).ok()?;
    Some(start)
}

/// Returns whether a script's first line names its interpreter and ends with CR LF: the kernel would take the CR for
/// a part of the interpreter's name.
fn ends_interpreter_with_cr(start: &[u8]) -> bool {
    let line = start.split(|byte| *byte == b'\n').next().unwrap_or_default();
    line.starts_with(b"#!") && line.ends_with(b"\r")
}
