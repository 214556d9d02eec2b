//! Finds the files by which a command may load an MPI library: the program, or the programs that it may start, if it is a
//! script of a shell or a program such as `env` that starts its arguments.
//!
//! A script is not evaluated. Each of its words counts that names a file: relative to the working directory, in PATH, or beside
//! the script, if its path begins with a variable or a command (`"$HERE/prog"`, `$(dirname "$0")/prog`). A word may begin with `~`,
//! `$HOME` or `$PWD`, and may be a list with `:`. If a word names a directory, later words are looked up there too, because the
//! script may change to it or add it to PATH.
//!
//! The files of a script may be in a file system that does not answer, and the job may not need them. So a thread looks at them, which
//! is left behind when its time is over.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::FileType;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nla::core::{CommandPlan, SessionPlan};

use crate::plan::elf;
use crate::plan::mpi;
use crate::plan::mpi_user::MpiUser;
use crate::plan::python::{self, Python};

/// The most bytes of a script that are read.
const SCRIPT_BYTES_MAX: u64 = 64 * 1024;
/// The bytes that tell most programs from scripts.
const SNIFF_BYTES: u64 = 32;
/// The most words of a script, or of a command line, that are looked at.
const WORDS_MAX: usize = 1024;
/// The most files that are looked at for one command.
const FILES_MAX: usize = 256;
/// The most scripts that start each other.
const DEPTH_MAX: u32 = 4;
/// The most paths that are looked up for one command. In a slow file system, each takes up to a millisecond.
const LOOKUPS_MAX: usize = 4096;
/// How long the search for what a script may start takes at most.
pub(crate) const SEARCH_TIME: Duration = Duration::from_secs(4);
/// The most directories that words name and in which further words are looked up.
const PLACES_MAX: usize = 16;

/// Shells.
const SHELLS: [&str; 10] = ["sh", "ash", "bash", "busybox", "csh", "dash", "fish", "ksh", "tcsh", "zsh"];
/// Programs that start the program that their arguments name.
const LAUNCH_PROGRAMS: [&str; 47] = [
    "advixe-cl",
    "catchsegv",
    "chroot",
    "chrt",
    "env",
    "fakeroot",
    "flock",
    "gdb",
    "gdbserver",
    "heaptrack",
    "hpcrun",
    "hwloc-bind",
    "ionice",
    "likwid-pin",
    "linux64",
    "ltrace",
    "ncu",
    "nice",
    "nohup",
    "nsenter",
    "nsys",
    "numactl",
    "perf",
    "perl",
    "prlimit",
    "rocprof",
    "rocprofv3",
    "rr",
    "runuser",
    "scorep",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "stdbuf",
    "strace",
    "sudo",
    "systemd-run",
    "taskset",
    "tau_exec",
    "time",
    "timeout",
    "unshare",
    "valgrind",
    "vtune",
    "xargs",
    "xvfb-run",
];

/// Returns the files by which a command's ranks may load an MPI library. Empty for a program that is not on this machine. `None` if
/// the search for what a script may start has not ended within `limit`; with a limit of zero there is no such search.
pub(crate) fn mpi_users(session: &SessionPlan, command: &CommandPlan, limit: Duration) -> Option<Vec<MpiUser>> {
    let Ok(program) = elf::file_of(session, command) else { return Some(Vec::new()) };
    let name = name_of(program.as_os_str().as_bytes());
    let search = Search::new(session, command);
    let is_other = |needs| match search.user(&program, &needs, 0) {
        Some(user) => Some(vec![user]),
        None => matches!(search.kind(name, &program), Kind::Other).then(Vec::new),
    };
    if let Some(users) = elf::needs(&program).and_then(is_other) {
        return Some(users);
    }
    if limit.is_zero() {
        return Some(Vec::new());
    }
    let (session, command) = (session.clone(), command.clone());
    found_within(limit, move || {
        let mut search = Search::new(&session, &command);
        let arguments: Vec<&[u8]> = command.args.iter().map(Vec::as_slice).collect();
        search.visit(&program, &arguments, 0);
        search.users
    })
}

/// Returns what `search` returns in a thread; `None` if that takes longer than `limit`. The thread then goes on.
fn found_within<T: Send + 'static>(limit: Duration, search: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, found) = mpsc::channel();
    let started = thread::Builder::new().name("mpi-search".to_owned()).spawn(move || {
        // The receiver may have timed out.
        let _ = sender.send(search());
    });
    let found = found.recv_timeout(limit).ok()?;
    // The launcher forks agents only while it has one thread.
    let _ = started.ok()?.join();
    Some(found)
}

struct Search<'a> {
    session: &'a SessionPlan,
    command: &'a CommandPlan,
    seen: BTreeSet<PathBuf>,
    /// Directories that words name.
    places: Vec<PathBuf>,
    /// How many more paths may be looked up.
    lookups_left: usize,
    users: Vec<MpiUser>,
}

/// The kind of a file that does not load MPI itself.
enum Kind {
    Shell,
    LaunchProgram,
    Python(PathBuf),
    Other,
}

impl<'a> Search<'a> {
    fn new(session: &'a SessionPlan, command: &'a CommandPlan) -> Self {
        Self {
            session,
            command,
            seen: BTreeSet::new(),
            places: Vec::new(),
            lookups_left: LOOKUPS_MAX,
            users: Vec::new(),
        }
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
                if let Some(user) = self.user(file, &needs, depth) {
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
                if let Some(python) = python::of_pyenv(file, &text, self.wdir(), &|name| self.variable(name)) {
                    return self.visit(&python, arguments, depth);
                }
                // A file without `#!` is run by /bin/sh.
                let interpreter = elf::interpreter(text.split(|byte| *byte == b'\n').next().unwrap_or_default());
                let interpreter = interpreter.unwrap_or_else(|| b"/bin/sh".to_vec());
                let path = match interpreter.contains(&b'/') {
                    true => self.wdir().join(OsStr::from_bytes(&interpreter)),
                    false => self.find_in_path(&interpreter).unwrap_or_default(),
                };
                (self.kind(name_of(&interpreter), &path), text)
            }
        };
        match kind {
            Kind::Python(python) => {
                let typed = arguments.iter().find(|argument| !argument.starts_with(b"-"));
                let typed = typed.map(|script| self.wdir().join(OsStr::from_bytes(script)));
                let script = if text.is_empty() { typed.as_deref() } else { Some(file) };
                let is_unlikely = !names_mpi4py(arguments, script);
                self.users.extend(self.mpi4py(&python, script).map(|user| MpiUser { is_unlikely, ..user }));
            }
            Kind::LaunchProgram | Kind::Shell => {
                // An argument may be a script (`sh -c`), or a variable (`env`), or the name of a file.
                let parts = arguments.iter().flat_map(|argument| std::iter::once(*argument).chain(words(argument)));
                let mut known = BTreeSet::new();
                let all = parts.take(WORDS_MAX).chain(words(&text)).filter(|word| known.insert(*word)).collect();
                self.look_up(all, file.parent().unwrap_or(Path::new(".")), depth);
            }
            Kind::Other => {}
        }
    }

    /// Returns a program that needs these libraries, if they are of MPI.
    fn user(&self, file: &Path, needs: &elf::Needs, depth: u32) -> Option<MpiUser> {
        let name = name_of(file.as_os_str().as_bytes());
        // A script names the library itself in MPI4PY_LIBMPI or LD_PRELOAD.
        let of_library = (depth > 0 && mpi::is_mpi(name)).then(|| elf::Needs::of_one(file, name));
        let needs = of_library.as_ref().unwrap_or(needs);
        let user = MpiUser::of(file, needs, self.variable("LD_LIBRARY_PATH"), depth == 0);
        // Other launchers load PMIx or parts of Open MPI too.
        let is_user =
            user.uses_mpi() || user.library(mpi::LIBPMI).is_some() || depth == 0 && !user.libraries.is_empty();
        is_user.then_some(user)
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

    /// Looks at the files that words name. `beside` is the directory of the script that has them.
    fn look_up(&mut self, words: Vec<&[u8]>, beside: &Path, depth: u32) {
        // A word of several parts is a list such as PATH, or, rarely, one name.
        let lists = words.into_iter().flat_map(|word| {
            let parts = word.split(|byte| *byte == b':').filter(|part| part.len() < word.len());
            std::iter::once(word).chain(parts)
        });
        let mut names: Vec<Name> = lists.filter_map(|word| Name::of(self.expanded(word))).collect();
        for name in &mut names {
            let mut paths = name.path.iter().map(|path| self.wdir().join(path)).collect::<Vec<_>>();
            if name.is_path {
                paths.extend([beside, self.wdir()].map(|place| place.join(&name.last)));
            }
            name.is_found = paths.into_iter().any(|path| self.looks_at(path, depth));
        }
        for name in &names {
            if !name.is_path
                && !name.is_found
                && let Some(file) = self.find_in_path(name.last.as_bytes())
            {
                self.visit_next(&file, depth);
            }
            let path = match &name.path {
                Some(path) if path.is_absolute() && (name.is_found || self.places.contains(path)) => continue,
                _ if name.last == ".." => continue,
                // The words of `"$HOME"/bin/prog` are `$HOME` and `/bin/prog`.
                Some(path) => path.strip_prefix("/").unwrap_or(path),
                None => Path::new(&name.last),
            };
            let mut at = 0;
            while at < self.places.len() {
                let path = self.places[at].join(path);
                self.looks_at(path, depth);
                at += 1;
            }
        }
    }

    /// Looks at a path that a word names. Returns whether it is a file.
    fn looks_at(&mut self, path: PathBuf, depth: u32) -> bool {
        let Some(kind) = self.file_type(&path) else { return false };
        if kind.is_dir() && self.places.len() < PLACES_MAX && path != self.wdir() && !self.places.contains(&path) {
            self.places.push(path);
        } else if kind.is_file() {
            self.visit_next(&path, depth);
        }
        kind.is_file()
    }

    /// Visits a file that a word names. It may use half of the lookups, so that long scripts leave some to the one that starts them.
    fn visit_next(&mut self, file: &Path, depth: u32) {
        let kept = self.lookups_left.div_ceil(2);
        self.lookups_left -= kept;
        self.visit(file, &[], depth + 1);
        self.lookups_left += kept;
    }

    /// Returns the type of a file, if it exists and not too many were looked up before.
    fn file_type(&mut self, path: &Path) -> Option<FileType> {
        self.lookups_left = self.lookups_left.checked_sub(1)?;
        std::fs::metadata(path).ok().map(|file| file.file_type())
    }

    /// Finds a program in PATH.
    fn find_in_path(&mut self, name: &[u8]) -> Option<PathBuf> {
        let path = self.variable("PATH").unwrap_or(OsStr::from_bytes(nla::sys::image::PATH_DEFAULT));
        let wdir = self.wdir();
        let mut files = std::env::split_paths(path).map(|place| wdir.join(place).join(OsStr::from_bytes(name)));
        files.find(|file| self.file_type(file).is_some_and(|kind| kind.is_file()))
    }

    /// Returns a word with the value of `~`, `$HOME` or `$PWD` at its beginning.
    fn expanded(&self, word: &[u8]) -> Vec<u8> {
        let (home, wdir) = (self.variable("HOME").map(OsStr::as_bytes), Some(self.wdir().as_os_str().as_bytes()));
        let values = [("~", home), ("$HOME", home), ("${HOME}", home), ("$PWD", wdir), ("${PWD}", wdir)];
        let mut values =
            values.into_iter().filter_map(|(name, value)| Some((word.strip_prefix(name.as_bytes())?, value?)));
        match values.find(|(rest, _)| rest.is_empty() || rest.starts_with(b"/")) {
            Some((rest, value)) => [value, rest].concat(),
            None => word.to_vec(),
        }
    }
}

/// A word that may name a file.
struct Name {
    /// The place of the file; `None` if a variable or a command says so.
    path: Option<PathBuf>,
    /// The last part of the path.
    last: OsString,
    /// Whether it has a `/`. Otherwise it may be a program in PATH.
    is_path: bool,
    /// Whether a file was found.
    is_found: bool,
}

impl Name {
    fn of(word: Vec<u8>) -> Option<Self> {
        let is_path = word.contains(&b'/');
        let end = word.iter().rposition(|byte| *byte != b'/')? + 1;
        let path = &word[..end];
        let last = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if last == b"." || last.starts_with(b"-") || last.contains(&b'$') || path.contains(&0) {
            return None;
        }
        let known = (!path.contains(&b'$')).then(|| PathBuf::from(OsStr::from_bytes(path)));
        Some(Self { path: known, last: OsStr::from_bytes(last).to_owned(), is_path, is_found: false })
    }
}

/// Returns whether the arguments of an interpreter, or its script, name mpi4py.
fn names_mpi4py(arguments: &[&[u8]], script: Option<&Path>) -> bool {
    let names = |text: &[u8]| memchr::memmem::find(text, b"mpi4py").is_some();
    arguments.iter().any(|argument| names(argument)) || script.is_some_and(|script| names(&text_of(script)))
}

/// Returns the last part of a path.
fn name_of(path: &[u8]) -> &str {
    std::str::from_utf8(path.rsplit(|byte| *byte == b'/').next().unwrap_or_default()).unwrap_or_default()
}

/// Returns the first bytes of a text file; nothing for another file.
fn text_of(file: &Path) -> Vec<u8> {
    // A program has a zero in its first bytes, so the rest need not be read.
    [SNIFF_BYTES, SCRIPT_BYTES_MAX]
        .into_iter()
        .try_fold(Vec::new(), |_, bytes_max| {
            let text = elf::beginning(file, bytes_max);
            (!text.contains(&0)).then_some(text)
        })
        .unwrap_or_default()
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
