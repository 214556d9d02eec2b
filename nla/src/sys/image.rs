//! A command, prepared for exec: checked on this node once, started many times.
//!
//! The check finds the errors that can be found before the program runs: a missing program, one that is not
//! executable, a missing working directory. The messages use the words of the user's command.

use std::ffi::{CStr, CString, OsStr};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{Mode, SFlag, fstatat};
use nix::unistd::{AccessFlags, faccessat};

use super::attributes::attribute;

/// The search path if the environment has no PATH.
pub const PATH_DEFAULT: &[u8] = b"/usr/local/bin:/bin:/usr/bin";

/// The attribute of a file with its capabilities.
const CAPABILITIES: &CStr = c"security.capability";

/// How many bytes of a program are read to distinguish a script without `#!` from a foreign binary.
const SNIFF_BYTES: u64 = 128;

/// A command, prepared for exec.
#[derive(Clone, Debug)]
pub struct Image {
    pub(super) path: CString,
    pub(super) argv: Vec<CString>,
    pub(super) env: Vec<CString>,
    pub(super) wdir: CString,
    /// The file looks like text: /bin/sh runs it if the kernel does not know the format.
    pub(super) script: bool,
}

/// The reason why a command cannot be started on this node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// The program does not exist.
    #[error("program '{program}' was not found {searched}; {}", hint_not_found(program))]
    NotFound {
        /// The name as the user typed it.
        program: String,
        /// The places that were searched for the program, in words.
        searched: String,
    },
    /// The program exists, but this user may not execute it.
    #[error(
        "program '{program}' is not executable; try chmod +x, or another file system if this one is mounted noexec"
    )]
    NotExecutable {
        /// The name as the user typed it.
        program: String,
    },
    /// The program is a script whose first line ends with CR LF.
    #[error("program '{program}' is a script whose line 1 ends with CR; try dos2unix")]
    CarriageReturn {
        /// The name as the user typed it.
        program: String,
    },
    /// The program is a directory.
    #[error("program '{program}' is a directory; name the file in it")]
    IsDirectory {
        /// The name as the user typed it.
        program: String,
    },
    /// The file system returned another error.
    #[error("program '{program}' cannot be checked: {}", Errno::from_raw(*errno).desc())]
    Unreadable {
        /// The name as the user typed it.
        program: String,
        /// The error of the last system call.
        errno: i32,
    },
    /// The working directory does not exist.
    #[error(
        "working directory '{wdir}' does not exist on this node; give one that does with -wdir, or put it on a shared file system"
    )]
    WdirMissing {
        /// The name as the user typed it.
        wdir: String,
    },
    /// The working directory is a file.
    #[error("working directory '{wdir}' is not a directory; give one with -wdir")]
    WdirNotDirectory {
        /// The name as the user typed it.
        wdir: String,
    },
    /// The working directory cannot be entered.
    #[error("working directory '{wdir}' cannot be entered on this node: {}; give another one with -wdir", Errno::from_raw(*errno).desc())]
    WdirRefused {
        /// The name as the user typed it.
        wdir: String,
        /// The error of the last system call.
        errno: i32,
    },
    /// A string for the kernel contains a NUL byte.
    #[error("the {what} contains a NUL byte, which cannot be passed to a program")]
    Nul {
        /// The name of the string, in words.
        what: &'static str,
    },
}

fn hint_not_found(program: &str) -> &'static str {
    if program.contains('/') {
        "check the path, and that this node has it too"
    } else {
        "give its path (./name for one in the working directory), or set PATH"
    }
}

impl Image {
    /// Checks the command on this node and prepares it.
    ///
    /// `argv` begins with the program's name, which is added if `argv` is empty. `env` is the environment that all
    /// ranks of the command share; [`Spawner::spawn`](super::spawn::Spawner::spawn) adds a rank's own variables.
    /// `wdir` must be an existing directory. It may be relative to the current one; if empty, it is the current one.
    /// The program is found as by execvp, but relative to `wdir` and with the PATH of `env`.
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
        // execvp gives every file of an unknown format to /bin/sh, which would report a "syntax error" in a binary of
        // another machine. A file that is executable but not readable is no script either.
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

    /// Returns the path that exec gets. It is relative to the working directory if the user's path was.
    pub fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.path.to_bytes()))
    }

    /// Returns the working directory.
    pub fn wdir(&self) -> &Path {
        Path::new(OsStr::from_bytes(self.wdir.to_bytes()))
    }
}

fn shown(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Opens the working directory and checks that chdir would succeed.
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

/// Finds the path for exec, as execvp does.
fn find(at: &OwnedFd, program: &[u8], search: &[u8], wdir: &CStr) -> Result<CString, ImageError> {
    // Use "./name": /bin/sh would take a name with a leading dash for an option.
    let folder = |folder: &[u8]| [if folder.is_empty() { b"." } else { folder }, b"/", program].concat();
    let is_path = program.is_empty() || program.contains(&b'/');
    let paths = match is_path {
        true => vec![program.to_vec()],
        false => search.split(|&byte| byte == b':').map(folder).collect(),
    };
    let mut failure = None;
    for path in paths {
        let path = CString::new(path).map_err(|_| ImageError::Nul { what: "program's name or PATH" })?;
        match is_executable(at, &path, program) {
            Ok(true) => return Ok(path),
            Ok(false) => {}
            Err(error) => drop(failure.get_or_insert(error)),
        }
    }
    Err(failure.unwrap_or_else(|| ImageError::NotFound {
        program: shown(program),
        searched: match is_path {
            true => format!("from working directory '{}'", shown(wdir.to_bytes())),
            false => "in PATH".to_owned(),
        },
    }))
}

/// Returns whether there is a file at this path, or why it cannot be executed.
fn is_executable(at: &OwnedFd, path: &CStr, program: &[u8]) -> Result<bool, ImageError> {
    let program = || shown(program);
    let failure = |error| match error {
        Errno::ENOENT | Errno::ENOTDIR => Ok(false),
        Errno::EACCES | Errno::EPERM => Err(ImageError::NotExecutable { program: program() }),
        error => Err(ImageError::Unreadable { program: program(), errno: error as i32 }),
    };
    let stat = match fstatat(at, path, AtFlags::empty()) {
        Ok(stat) => stat,
        Err(error) => return failure(error),
    };
    match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
        SFlag::S_IFREG => {
            faccessat(at, path, AccessFlags::X_OK, AtFlags::AT_EACCESS).map_or_else(failure, |()| Ok(true))
        }
        SFlag::S_IFDIR => Err(ImageError::IsDirectory { program: program() }),
        _ => failure(Errno::EACCES),
    }
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

/// Returns whether a program has file capabilities. The dynamic loader ignores LD_PRELOAD in such a program, unless root runs it.
pub fn has_capabilities(program: &Path) -> bool {
    attribute(program, CAPABILITIES, &mut []).is_some_and(|length| length > 0)
}

#[cfg(test)]
mod tests {
    use super::super::attributes::set_attribute;
    use super::*;

    #[test]
    fn file_capabilities_are_found() {
        let place = tempfile::tempdir().unwrap();
        let (plain, capable) = (place.path().join("plain"), place.path().join("capable"));
        for file in [&plain, &capable] {
            std::fs::write(file, "x").unwrap();
        }
        assert!(!has_capabilities(&plain) && !has_capabilities(&place.path().join("missing")));
        // Version 2 of the attribute, effective, with CAP_NET_BIND_SERVICE.
        let value: Vec<u8> = [0x0200_0001u32, 1 << 10, 0, 0, 0].into_iter().flat_map(u32::to_le_bytes).collect();
        if !set_attribute(&capable, CAPABILITIES, &value) {
            return; // no right to set it, or a file system without attributes
        }
        assert!(has_capabilities(&capable));
    }
}
