//! Finds the files by which a command may load an MPI library: the program, or the programs that it may start, if it is a
//! script of a shell or a program such as `env` that starts its arguments.
//!
//! A script is not evaluated. Each of its words counts that names a file: relative to the working directory, in PATH, or beside
//! the script, if its path begins with a variable or a command (`"$HERE/prog"`, `$(dirname "$0")/prog`).

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nla::core::{CommandPlan, SessionPlan};
use nla::sys::open_regular;

use crate::plan::elf;
use crate::plan::mpi;
use crate::plan::mpi_user::MpiUser;
use crate::plan::python::{self, Python};

/// The most bytes of a script that are read.
const SCRIPT_BYTES_MAX: u64 = 64 * 1024;
/// The most words of a script, or of a command line, that are looked at.
const WORDS_MAX: usize = 1024;
/// The most files that are looked at for one command.
const FILES_MAX: usize = 256;
/// The most scripts that start each other.
const DEPTH_MAX: u32 = 4;

/// Shells.
const SHELLS: [&str; 10] = ["sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "tcsh", "zsh"];
/// Programs that start the program that follows their own arguments.
const LAUNCH_PROGRAMS: [&str; 27] = [
    "catchsegv",
    "chrt",
    "env",
    "gdb",
    "gdbserver",
    "ionice",
    "likwid-pin",
    "ltrace",
    "ncu",
    "nice",
    "nohup",
    "nsys",
    "numactl",
    "perf",
    "prlimit",
    "rocprof",
    "rocprofv3",
    "scorep",
    "setarch",
    "setsid",
    "stdbuf",
    "strace",
    "taskset",
    "tau_exec",
    "time",
    "timeout",
    "valgrind",
];

/// Returns the files by which a command's ranks may load an MPI library. None for a program that is not on this machine.
pub(crate) fn mpi_users(session: &SessionPlan, command: &CommandPlan) -> Vec<MpiUser> {
    let Ok(program) = elf::file_of(session, command) else { return Vec::new() };
    let mut search = Search::new(session, command);
    let arguments: Vec<&[u8]> = command.args.iter().map(Vec::as_slice).collect();
    search.visit(&program, &arguments, 0);
    search.users
}

struct Search<'a> {
    session: &'a SessionPlan,
    command: &'a CommandPlan,
    seen: BTreeSet<PathBuf>,
    users: Vec<MpiUser>,
}

/// What a file is, besides a program that may call MPI.
enum Kind {
    Shell,
    LaunchProgram,
    Python(PathBuf),
    Other,
}

impl<'a> Search<'a> {
    fn new(session: &'a SessionPlan, command: &'a CommandPlan) -> Self {
        Self { session, command, seen: BTreeSet::new(), users: Vec::new() }
    }

    fn variable(&self, name: &str) -> Option<&'a OsStr> {
        elf::variable(self.session, self.command, name)
    }

    fn wdir(&self) -> &'a Path {
        Path::new(OsStr::from_bytes(&self.command.wdir))
    }

    /// Looks at a file. `arguments` are those of the command, if its program is this file.
    fn visit(&mut self, file: &Path, arguments: &[&[u8]], depth: u32) {
        if depth > DEPTH_MAX || self.seen.len() == FILES_MAX || !self.seen.insert(file.to_owned()) {
            return;
        }
        let name = name_of(file.as_os_str().as_bytes());
        let (kind, text) = match elf::needs(file) {
            Some(needs) => {
                let user = MpiUser::of(file, &needs, self.variable("LD_LIBRARY_PATH"), depth == 0);
                let uses_mpi = user.libraries.iter().any(|library| mpi::is_mpi(&library.name));
                // Other launchers load PMIx or parts of Open MPI too.
                if uses_mpi || user.library(mpi::LIBPMI).is_some() || depth == 0 && !user.libraries.is_empty() {
                    self.users.push(user);
                    return;
                }
                (self.kind(name, file), Vec::new())
            }
            None => {
                let text = text_of(file);
                if text.is_empty() {
                    return;
                }
                // A file without `#!` is run by /bin/sh.
                let interpreter = elf::interpreter(text.split(|byte| *byte == b'\n').next().unwrap_or_default());
                let interpreter = interpreter.unwrap_or_else(|| b"/bin/sh".to_vec());
                let path = self.find(&interpreter, None).unwrap_or_default();
                (self.kind(name_of(&interpreter), &path), text)
            }
        };
        match kind {
            Kind::Python(python) => {
                let typed = arguments.iter().find(|argument| !argument.starts_with(b"-"));
                let typed = typed.map(|script| self.wdir().join(OsStr::from_bytes(script)));
                let script = if text.is_empty() { typed.as_deref() } else { Some(file) };
                self.users.extend(self.mpi4py(&python, script));
            }
            Kind::LaunchProgram | Kind::Shell => {
                let beside = file.parent().unwrap_or(Path::new("."));
                for argument in arguments.iter().take(WORDS_MAX) {
                    // The argument of `sh -c` is a script.
                    let is_text = matches!(kind, Kind::Shell) && argument.iter().any(u8::is_ascii_whitespace);
                    let words = if is_text { words(argument) } else { vec![*argument] };
                    words.into_iter().for_each(|word| self.look_up(word, beside, depth));
                }
                for word in words(&text) {
                    self.look_up(word, beside, depth);
                }
            }
            Kind::Other => {}
        }
    }

    fn kind(&self, name: &str, path: &Path) -> Kind {
        match name {
            _ if python::is_interpreter(name) => Kind::Python(path.to_owned()),
            _ if SHELLS.contains(&name) => Kind::Shell,
            _ if LAUNCH_PROGRAMS.contains(&name) => Kind::LaunchProgram,
            _ => Kind::Other,
        }
    }

    /// Finds mpi4py's module for an interpreter that runs `script`.
    fn mpi4py(&self, interpreter: &Path, script: Option<&Path>) -> Option<MpiUser> {
        let variable = |name: &str| self.variable(name);
        let library_path = self.variable("LD_LIBRARY_PATH");
        let python = Python { interpreter, script, wdir: self.wdir(), variable: &variable };
        let locate = |library: &str| Some(elf::find(library, interpreter, &elf::Needs::default(), library_path)?.0);
        let (module, needs) = python.mpi4py(&locate)?;
        Some(MpiUser::of(&module, &needs, library_path, false))
    }

    /// Looks at the file that a word names.
    fn look_up(&mut self, word: &[u8], beside: &Path, depth: u32) {
        if let Some(file) = self.find(word, Some(beside)) {
            self.visit(&file, &[], depth + 1);
        }
    }

    /// Finds the file that a word names. `beside` is the directory of the script that has the word.
    fn find(&self, word: &[u8], beside: Option<&Path>) -> Option<PathBuf> {
        let (wdir, last) = (self.wdir(), word.rsplit(|byte| *byte == b'/').next().unwrap_or_default());
        if last.is_empty() || last.starts_with(b"-") || last.contains(&b'$') || word.contains(&0) {
            return None;
        }
        let typed = (!word.contains(&b'$')).then(|| wdir.join(OsStr::from_bytes(word)));
        let last = OsStr::from_bytes(last);
        let search: Vec<PathBuf> = match word.contains(&b'/') {
            true => beside.into_iter().chain([wdir]).map(|place| place.join(last)).collect(),
            false => {
                let path = self.variable("PATH").unwrap_or(OsStr::from_bytes(nla::sys::image::PATH_DEFAULT));
                std::env::split_paths(path).map(|place| wdir.join(place).join(last)).collect()
            }
        };
        typed.into_iter().chain(search).find(|file| file.is_file())
    }
}

/// Returns the last part of a path.
fn name_of(path: &[u8]) -> &str {
    std::str::from_utf8(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).unwrap_or_default()
}

/// Returns the first bytes of a text file; nothing for another file.
fn text_of(file: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    // An unreadable file has no words.
    let _ = open_regular(file).and_then(|file| file.take(SCRIPT_BYTES_MAX).read_to_end(&mut text));
    if text.contains(&0) { Vec::new() } else { text }
}

/// Returns the words of a script that may name files, each once, without its lines of comments.
fn words(text: &[u8]) -> Vec<&[u8]> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii_start().starts_with(b"#"));
    let ends_word = |byte: &u8| byte.is_ascii_whitespace() || b"\"'`()<>|&;=,".contains(byte);
    let mut known = BTreeSet::new();
    let words = lines.flat_map(|line| line.split(ends_word)).filter(|word| !word.is_empty());
    words.filter(|word| known.insert(*word)).take(WORDS_MAX).collect()
}

#[cfg(test)]
#[path = "wrapper_tests.rs"]
mod tests;
