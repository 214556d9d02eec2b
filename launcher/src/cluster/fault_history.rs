//! Stores which hosts sessions have lost or could not reach, in a file of the user on the launcher's machine.
//!
//! The history only serves later placements: a session that cannot read or write it goes on.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nla::sys::{self, Rewrite};
use placement::faults::History;
use placement::limits::{FAULT_BYTES_MAX, FAULT_READ_BYTES_MAX};

use crate::cluster::node_list::HostOptions;

/// How often, and after which time, a launcher tries to lock the history: half a second in total.
const LOCK_TRIES: u32 = 50;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// Returns the file: the typed one, else `scela/faults` in `$XDG_STATE_HOME`, else in `$HOME/.local/state`. Returns
/// `None` if these are no absolute paths.
pub fn path(options: &HostOptions, variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    if let Some(typed) = &options.fault_history {
        return Some(typed.clone());
    }
    let directory = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = directory("XDG_STATE_HOME").or_else(|| Some(directory("HOME")?.join(".local/state")))?;
    Some(state.join("scela").join("faults"))
}

/// Returns the seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Reads a history. A file that does not exist is an empty one. Events that have no room are dropped, as of `now_s`.
pub fn read(path: &Path, now_s: u64) -> io::Result<History> {
    let file = match sys::open_regular(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(History::default()),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(FAULT_READ_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    if bytes.len() > FAULT_READ_BYTES_MAX {
        return Err(io::Error::other(format!("it is longer than {} MiB", FAULT_BYTES_MAX >> 20)));
    }
    History::parse(&String::from_utf8_lossy(&bytes), now_s)
        .ok_or_else(|| io::Error::other("it is no history of faults"))
}

/// Adds an event of these hosts, which happens now. Follows a link to the file. Two launchers that end at once both add theirs:
/// a lock beside the file orders them.
pub fn record(path: &Path, now_s: u64, hosts: &BTreeSet<String>) -> io::Result<()> {
    if hosts.is_empty() {
        return Ok(());
    }
    let path = &sys::output_path(path)?;
    let mut beside = path.as_os_str().to_owned();
    beside.push(".lock");
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let lock =
        OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).custom_flags(flags).open(&beside);
    let _lock = lock.and_then(locked).map_err(|error| of_lock(Path::new(&beside), error))?;
    let mut history = read(path, now_s)?;
    history.add(now_s, hosts.iter().map(String::as_str));
    Rewrite::open(path)?.write(|out| out.write_all(history.text().as_bytes()))
}

/// Locks a file. Another launcher holds the lock while it rewrites one small file; if another process never releases the lock,
/// only this event is lost.
fn locked(mut file: File) -> io::Result<Flock<File>> {
    for _ in 1..LOCK_TRIES {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => return Ok(lock),
            Err((unlocked, Errno::EWOULDBLOCK)) => file = unlocked,
            Err((_, errno)) => return Err(errno.into()),
        }
        std::thread::sleep(LOCK_PAUSE);
    }
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Returns the error of a lock file, with its name.
fn of_lock(lock: &Path, error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::other(format!("another launcher has locked '{}'", lock.display())),
        _ => io::Error::new(error.kind(), format!("the lock file '{}': {error}", lock.display())),
    }
}

/// Adds an event to the user's history. Logs a failure, or returns it as a note if the user has named the file.
#[must_use]
pub(crate) fn remember(options: &HostOptions, hosts: &BTreeSet<String>) -> Option<String> {
    let path = path(options, |name| std::env::var_os(name))?;
    // A typing error in the option makes no directories.
    let directory = path.parent().filter(|_| options.fault_history.is_none() && !hosts.is_empty());
    let made = directory.map_or(Ok(()), fs::create_dir_all);
    let error = made.and_then(|()| record(&path, now_s(), hosts)).err()?;
    if options.fault_history.is_none() {
        tracing::info!(path = %path.display(), %error, "the history of faults was not written");
        return None;
    }
    Some(format!("option '--fault-history': '{}' was not written: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_typed_or_the_users() {
        let variables = |name: &str| match name {
            "HOME" => Some("/home/ada".into()),
            _ => None,
        };
        let options = HostOptions::default();
        assert_eq!(path(&options, variables), Some("/home/ada/.local/state/scela/faults".into()));
        assert_eq!(path(&options, |_| Some("relative".into())), None);
        let typed = HostOptions { fault_history: Some("f".into()), ..options };
        assert_eq!(path(&typed, variables), Some("f".into()));
    }

    #[test]
    fn a_file_that_is_a_little_too_long_is_shortened() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("faults");
        let names = |each: &str| (0..256).map(|at| format!(" {each}{at:03}")).collect::<String>();
        let line = format!("5{}\n", names("node-of-rack-"));
        let mut text = "scela-faults 1\n".to_owned();
        while text.len() <= FAULT_BYTES_MAX {
            text.push_str(&line);
        }
        fs::write(&file, &text).unwrap();
        record(&file, 7, &BTreeSet::from(["n1".to_owned()])).unwrap();
        let written = fs::read_to_string(&file).unwrap();
        assert!(written.len() <= FAULT_BYTES_MAX && written.ends_with("\n7 n1\n"));
        fs::write(&file, text + &line.repeat(20)).unwrap();
        assert_eq!(read(&file, 7).unwrap_err().to_string(), "it is longer than 4 MiB");
    }

    #[test]
    fn a_lock_that_is_taken_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().canonicalize().unwrap().join("faults.lock");
        let _held = locked(File::create(&lock).unwrap()).unwrap();
        let error = record(&directory.path().join("faults"), 5, &BTreeSet::from(["n1".to_owned()])).unwrap_err();
        assert_eq!(error.to_string(), format!("another launcher has locked '{}'", lock.display()));
        let denied = of_lock(Path::new("h.lock"), Errno::EACCES.into()).to_string();
        assert_eq!(denied, "the lock file 'h.lock': Permission denied (os error 13)");
    }

    #[test]
    fn events_are_added_and_hostile_files_are_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("faults");
        let hosts = BTreeSet::from(["n1".to_owned(), "n2".to_owned()]);
        record(&file, 5, &hosts).unwrap();
        record(&file, 7, &BTreeSet::from(["n3".to_owned()])).unwrap();
        record(&file, 9, &BTreeSet::new()).unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "scela-faults 1\n5 n1 n2\n7 n3\n");
        let other = directory.path().join("other");
        std::os::unix::fs::symlink("faults", &other).unwrap();
        record(&other, 8, &BTreeSet::from(["n4".to_owned()])).unwrap();
        assert!(fs::symlink_metadata(&other).unwrap().is_symlink() && !directory.path().join("other.lock").exists());
        assert!(fs::read_to_string(&file).unwrap().ends_with("7 n3\n8 n4\n"));
        fs::write(&file, "precious").unwrap();
        assert_eq!(record(&file, 9, &hosts).unwrap_err().to_string(), "it is no history of faults");
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        let fifo = directory.path().join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
        assert_eq!(read(&fifo, 9).unwrap_err().to_string(), "it is not a regular file");
        let link = directory.path().join("link.lock");
        std::os::unix::fs::symlink("/etc/passwd", link).unwrap();
        let error = record(&directory.path().join("link"), 9, &hosts).unwrap_err().to_string();
        assert!(error.contains("link.lock': Too many levels of symbolic links"), "{error}");
        let typed = HostOptions { fault_history: Some(fifo.clone()), ..HostOptions::default() };
        let note = format!("option '--fault-history': '{}' was not written: it is not a regular file", fifo.display());
        assert_eq!(remember(&typed, &hosts), Some(note));
        assert_eq!(remember(&typed, &BTreeSet::new()), None);
        let missing = directory.path().join("missing");
        let typed = HostOptions { fault_history: Some(missing.join("faults")), ..HostOptions::default() };
        assert!(remember(&typed, &hosts).is_some_and(|note| note.contains("No such file or directory")));
        assert!(!missing.exists());
    }
}
