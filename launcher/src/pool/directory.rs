//! The directory with the sockets of a user's pools.
//!
//! It is `SCELA_POOL_DIR` if that is set. Otherwise it is `scela` in `XDG_RUNTIME_DIR` for users who linger, and
//! `/tmp/scela-UID` for all others: systemd deletes `XDG_RUNTIME_DIR` when they log out, and a pool may outlive that. The last
//! one is `.scela-pools-HOST` in `HOME`, whose name no other user can take. A client looks for a pool in each of them.
//!
//! The directory belongs to the user and has mode 0700, so no other user reaches the sockets. One that another user has made first
//! is passed over, with a note, if there is another one. One of the user's own that others can reach is refused.

use std::ffi::OsString;
use std::fmt::Display;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::{User, geteuid};
use nla::core::printable;
use nla::sys::{PacketListener, Packets, host_name};

use crate::plan::pool_name::{POOL_DEFAULT, check_pool_name};
use crate::refusal::Refusal;
use crate::run::stderr::{self, Kind};

/// The variable that names the directory.
pub const VARIABLE: &str = "SCELA_POOL_DIR";
/// How often a name is tried to be taken while files are removed.
const TRIES_MAX: u32 = 50;
/// The most bytes of a pid in a lock.
const PID_BYTES_MAX: u64 = 16;
/// The bits of a mode that let others do something.
const OTHERS: u32 = 0o077;
/// The bits of a directory's mode that let others make files there, and the one that keeps them from removing files of the user.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
/// The most bytes of the path of a socket: those of `sockaddr_un` without the last zero.
const SOCKET_BYTES_MAX: usize = 107;

/// Returns the directories in which pools may be, the one for new pools first.
pub fn directories(variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    // The controller works in another directory.
    let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
    let path = |name: &str| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from).map(absolute);
    if let Some(directory) = path(VARIABLE) {
        return vec![directory];
    }
    let temporary = PathBuf::from(format!("/tmp/scela-{}", geteuid()));
    // A client without the variable, in a job of cron for example, looks there as well.
    let usual = || PathBuf::from(format!("/run/user/{}", geteuid()));
    let runtime = path("XDG_RUNTIME_DIR").unwrap_or_else(usual).join("scela");
    let home = path("HOME").map(|home| home.join(format!(".scela-pools-{}", host_name())));
    let usual = if lingers() { [runtime, temporary] } else { [temporary, runtime] };
    usual.into_iter().chain(home).collect()
}

/// Returns whether the user's services outlive the user's logins.
fn lingers() -> bool {
    let user = User::from_uid(geteuid()).ok().flatten();
    user.is_some_and(|user| Path::new("/var/lib/systemd/linger").join(user.name).exists())
}

/// The reason for which a directory is not used.
#[derive(Debug, PartialEq, Eq)]
enum Unfit {
    /// The directory does not exist, or the one above it cannot be entered.
    Missing,
    /// It was removed or replaced while it was checked: a pool that ends removes it, and one that starts makes it again.
    Replaced,
    /// It belongs to this other user, or is in a directory of theirs.
    Foreign(u32),
    /// Others may reach what is in it, or it cannot be opened.
    Refused(String),
}

impl From<io::Error> for Unfit {
    fn from(error: io::Error) -> Self {
        Self::Refused(error.to_string())
    }
}

/// Checks that only this user can reach what is in the directory. Returns which one it is.
fn check(directory: &Path) -> Result<FileId, Unfit> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_DIRECTORY;
    match OpenOptions::new().read(true).custom_flags(flags.bits()).open(directory) {
        Ok(opened) => judge(directory, &opened),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Unfit::Missing),
        Err(error) => Err(match fs::symlink_metadata(directory).map_err(|error| error.kind()) {
            Err(io::ErrorKind::NotFound) => Unfit::Replaced,
            // The directory above it cannot be entered, as a HOME of another user.
            Err(io::ErrorKind::PermissionDenied) => Unfit::Missing,
            _ => owner_if_foreign(directory).map_or_else(|| error.into(), Unfit::Foreign),
        }),
    }
}

/// Returns the owner of what has this name, or else of the directory above it, if that is another user, but not root.
fn owner_if_foreign(path: &Path) -> Option<u32> {
    let found = [Some(path), path.parent()].into_iter().flatten().find_map(|path| fs::symlink_metadata(path).ok());
    found.map(|found| found.uid()).filter(|owner| ![0, geteuid().as_raw()].contains(owner))
}

/// The same for a directory that was opened.
fn judge(directory: &Path, opened: &File) -> Result<FileId, Unfit> {
    let own = geteuid().as_raw();
    let found = opened.metadata()?;
    let replaceable = judge_above(directory);
    if !is_at(directory, Some(id(&found))) {
        return Err(Unfit::Replaced);
    }
    if found.uid() != own {
        return Err(Unfit::Foreign(found.uid()));
    }
    if found.mode() & OTHERS != 0 {
        let text = format!("its mode is {:o}, so other users can reach it", found.mode() & 0o777);
        return Err(Unfit::Refused(text));
    }
    replaceable.map(|()| id(&found))
}

/// Fails if other users can replace what is in the directory above this one.
fn judge_above(directory: &Path) -> Result<(), Unfit> {
    let above = directory.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let above = match fs::metadata(above) {
        Err(error) if [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied].contains(&error.kind()) => {
            return Err(Unfit::Missing);
        }
        found => found?,
    };
    if ![0, geteuid().as_raw()].contains(&above.uid()) {
        return Err(Unfit::Foreign(above.uid()));
    }
    let is_safe = above.mode() & OTHERS_WRITE == 0 || above.mode() & STICKY != 0;
    if is_safe { Ok(()) } else { Err(Unfit::Refused("other users can replace it".to_owned())) }
}

/// Repeats `attempt` while the directory is replaced meanwhile.
fn while_replaced<T>(mut attempt: impl FnMut() -> Result<T, Unfit>) -> Result<T, Unfit> {
    for _ in 0..TRIES_MAX {
        match attempt() {
            Err(Unfit::Replaced) => {}
            ended => return ended,
        }
    }
    Err(Unfit::Refused("it is removed and made again and again".to_owned()))
}

/// Makes the first of these directories that can be made and is not another user's, checks it, and takes the name in it.
/// Returns `None` if a process of a pool of that name lives, in any of them.
pub fn take(directories: &[PathBuf], name: &str) -> Result<Option<Place>, Refusal> {
    if directories.iter().any(|directory| is_held(directory, name)) {
        return Ok(None);
    }
    let mut first = None;
    for directory in directories {
        check_length(directory, name)?;
        match prepare(directory) {
            Ok(_) => return take_in(directory, name),
            Err(unfit) => {
                let refusal = refused(directory, "cannot be used", &unfit);
                first.get_or_insert(passed_over(directory, &unfit, directories.len(), refusal)?);
            }
        }
    }
    Err(first.unwrap_or_else(|| failed(name, "there is no directory for it")))
}

/// Returns the refusal of a directory again if there are others and it is another user's, which is noted once, or cannot be made.
/// Fails with the refusal otherwise.
fn passed_over(directory: &Path, unfit: &Unfit, directories: usize, refusal: Refusal) -> Result<Refusal, Refusal> {
    static NOTED: Once = Once::new();
    match unfit {
        Unfit::Missing | Unfit::Foreign(_) if directories == 1 => return Err(refusal),
        Unfit::Missing => return Ok(refusal),
        Unfit::Foreign(_) => {}
        Unfit::Replaced | Unfit::Refused(_) => return Err(refusal),
    }
    NOTED.call_once(|| {
        let text = format!("scela: note: {}", refused(directory, "is not used", unfit));
        stderr::line(Kind::Report, &text);
    });
    Ok(refusal)
}

/// Returns whether a process of a pool of this name lives that has its files in this directory.
fn is_held(directory: &Path, name: &str) -> bool {
    let lock = || File::open(directory.join(format!("{name}.lock"))).ok();
    let is_own = while_replaced(|| check(directory)).is_ok();
    is_own && lock().is_some_and(|lock| Flock::lock(lock, FlockArg::LockSharedNonblock).is_err())
}

/// The same in this directory.
fn take_in(directory: &Path, name: &str) -> Result<Option<Place>, Refusal> {
    let mut tries = 1..;
    loop {
        let checked = prepare(directory).map_err(|unfit| refused(directory, "cannot be used", &unfit))?;
        match Place::take(directory, name) {
            // Its files may be in a directory that was not checked.
            Ok(place) if is_at(directory, Some(checked)) => return Ok(Some(place)),
            Err(Taken::Held) => return Ok(None),
            // A pool that ends at this time removes its files and the directory.
            Ok(_) | Err(Taken::Removed) if tries.next() < Some(TRIES_MAX) => {}
            Ok(_) | Err(Taken::Removed) => return Err(failed(name, "its files are removed again and again")),
            Err(Taken::Refused(refusal)) => return Err(refusal),
        }
    }
}

fn failed(name: &str, why: impl Display) -> Refusal {
    Refusal::new(format!("the pool '{name}' cannot be started: {why}"), "").of_system()
}

/// Refuses a path for the socket that the system does not take.
fn check_length(directory: &Path, name: &str) -> Result<(), Refusal> {
    let path = socket(directory, name);
    let length = path.as_os_str().len();
    if length <= SOCKET_BYTES_MAX {
        return Ok(());
    }
    let path = shown(&path);
    let why = format!("the path of its socket has {length} bytes, and {SOCKET_BYTES_MAX} are allowed: {path}");
    let text = format!("the pool '{name}' cannot be started: {why}");
    Err(Refusal::new(text, format!("{VARIABLE} names a directory with a shorter path")).of_system())
}

/// Makes the directory for new pools, if it does not exist, and checks it. Returns which one it is.
fn prepare(directory: &Path) -> Result<FileId, Unfit> {
    while_replaced(|| {
        match check(directory) {
            Err(Unfit::Missing) => judge_above(directory)?,
            checked => return checked,
        }
        match DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
            _ => {}
        }
        // The directory was removed meanwhile. The next attempt makes it again.
        check(directory).map_err(|unfit| if unfit == Unfit::Missing { Unfit::Replaced } else { unfit })
    })
}

/// Returns the refusal of a directory.
fn refused(directory: &Path, what: &str, unfit: &Unfit) -> Refusal {
    let why = match unfit {
        Unfit::Missing => "the directory above it does not exist or cannot be entered",
        Unfit::Replaced => "it was replaced",
        Unfit::Foreign(owner) => &format!("it belongs to user {owner}"),
        Unfit::Refused(why) => why,
    };
    let text = format!("the directory of pools, {}, {what}: {why}", shown(directory));
    Refusal::new(text, format!("{VARIABLE} names another directory")).of_system()
}

fn shown(path: &Path) -> String {
    printable(&path.to_string_lossy()).to_string()
}

/// A pool's place among others. It is taken as long as one of the pool's processes lives.
#[derive(Debug)]
pub struct Place {
    /// Accepts clients.
    listener: PacketListener,
    files: PoolFiles,
}

/// The files of a pool.
#[derive(Debug)]
pub struct PoolFiles {
    directory: PathBuf,
    name: String,
    lock: Flock<File>,
    /// The file of the socket.
    socket: FileId,
}

/// The device and the number of a file.
type FileId = (u64, u64);

fn id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// Why a name cannot be taken.
enum Taken {
    /// Its files were removed meanwhile.
    Removed,
    /// A process of a pool has it.
    Held,
    Refused(Refusal),
}

impl Place {
    fn take(directory: &Path, name: &str) -> Result<Self, Taken> {
        let failed = |what: &str, error: &io::Error| match error.kind() {
            io::ErrorKind::NotFound => Taken::Removed,
            _ => Taken::Refused(failed(name, format_args!("{what}: {error}"))),
        };
        let lock_path = directory.join(format!("{name}.lock"));
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(OFlag::O_NOFOLLOW.bits())
            .open(&lock_path)
            .map_err(|error| failed("its lock", &error))?;
        let Ok(lock) = Flock::lock(lock, FlockArg::LockExclusiveNonblock) else {
            return Err(Taken::Held);
        };
        if !is_at(&lock_path, lock.metadata().map(|found| id(&found)).ok()) {
            return Err(Taken::Removed);
        }
        let path = socket(directory, name);
        // The former controller was killed: its lock is free.
        let _ = fs::remove_file(&path);
        let listener = PacketListener::bind(&path).map_err(|error| {
            if is_at(&lock_path, lock.metadata().map(|found| id(&found)).ok()) {
                let _ = fs::remove_file(&lock_path);
            }
            // Fails while other pools are in it.
            let _ = fs::remove_dir(directory);
            failed(&format!("its socket {}", shown(&path)), &error)
        })?;
        let socket = fs::symlink_metadata(&path).map_err(|error| failed("its socket", &error))?;
        let files = PoolFiles { directory: directory.to_owned(), name: name.to_owned(), lock, socket: id(&socket) };
        let _ = fs::remove_dir_all(files.jobs());
        Ok(Self { listener, files })
    }

    /// Returns the files, and the listener.
    pub fn listen(self) -> (PoolFiles, PacketListener) {
        (self.files, self.listener)
    }

    /// Closes the listener in this process. The lock stays open, without an owner: unlocking it would unlock it in all processes
    /// that have inherited it.
    pub fn leave(self) {
        let Self { listener, files: PoolFiles { lock, .. } } = self;
        drop(listener);
        std::mem::forget(lock);
    }

    /// Opens the pool's log, empty.
    pub fn log(&self) -> io::Result<File> {
        let path = self.files.path("log");
        let _ = fs::remove_file(&path);
        OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)
    }
}

impl PoolFiles {
    fn path(&self, ending: &str) -> PathBuf {
        self.directory.join(format!("{}.{ending}", self.name))
    }

    /// Notes that this process is the controller. Commands look at it if it does not answer.
    pub fn note_controller(&self) {
        // If it cannot be written, commands only say that there is no answer.
        let _ = self.lock.set_len(0);
        let _ = (&*self.lock).write_all(std::process::id().to_string().as_bytes());
    }

    /// Returns the directory with the output of jobs that have no client. It exists once there is one.
    pub fn jobs(&self) -> PathBuf {
        self.path("jobs")
    }

    /// Returns the pool's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether clients find this pool: its socket and its lock are in their places.
    pub fn are_in_place(&self) -> bool {
        self.has_lock() && self.has_socket()
    }

    fn has_lock(&self) -> bool {
        is_at(&self.path("lock"), self.lock.metadata().map(|found| id(&found)).ok())
    }

    fn has_socket(&self) -> bool {
        is_at(&self.path("sock"), Some(self.socket))
    }

    /// Removes the pool's files; the log only if `with_log`, and only if it is empty. If its lock was removed before, files that have
    /// their names now belong to another pool.
    pub fn remove(&self, with_log: bool) {
        if !self.has_lock() {
            return;
        }
        let log = self.path("log");
        if with_log && fs::metadata(&log).is_ok_and(|found| found.len() == 0) {
            let _ = fs::remove_file(log);
        }
        let _ = fs::remove_dir_all(self.jobs());
        if self.has_socket() {
            let _ = fs::remove_file(self.path("sock"));
        }
        let _ = fs::remove_file(self.path("lock"));
        // Fails while other pools are in it.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Returns whether the file at `path` is the one of `known`.
fn is_at(path: &Path, known: Option<FileId>) -> bool {
    known.is_some() && fs::symlink_metadata(path).map(|found| id(&found)).ok() == known
}

fn socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.sock"))
}

/// Returns the directories of pools that exist and are not another user's. Fails if others than this user can reach one of them.
fn usable() -> Result<Vec<PathBuf>, Refusal> {
    usable_of(directories(|name| std::env::var_os(name)))
}

fn usable_of(directories: Vec<PathBuf>) -> Result<Vec<PathBuf>, Refusal> {
    let (mut found, count) = (Vec::new(), directories.len());
    for directory in directories {
        match while_replaced(|| check(&directory)) {
            Ok(_) => found.push(directory),
            Err(Unfit::Missing) => {}
            Err(unfit) => {
                let refusal = refused(&directory, "is not used", &unfit);
                passed_over(&directory, &unfit, count, refusal)?;
            }
        }
    }
    Ok(found)
}

/// Returns the pid of a pool's controller, if it has noted it.
pub fn controller(name: &str) -> Option<u32> {
    let pid = |directory: &PathBuf| {
        let mut text = String::new();
        let file = File::open(directory.join(format!("{name}.lock"))).ok()?;
        file.take(PID_BYTES_MAX).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    };
    usable().ok()?.iter().find_map(pid)
}

/// Connects to a pool.
pub fn connect(name: &str) -> Result<Packets, Refusal> {
    check_pool_name(name)?;
    for directory in &usable()? {
        let Ok(packets) = Packets::connect(&socket(directory, name)) else { continue };
        if packets.peer_user().is_ok_and(|user| user == geteuid().as_raw()) {
            return Ok(packets);
        }
    }
    let start = if name == POOL_DEFAULT { "scela pool start".to_owned() } else { format!("scela pool start {name}") };
    let text = format!("there is no pool '{name}' on this host");
    Err(Refusal::new(text, format!("'{start}' starts it, 'scela pool status' lists those that run")).of_system())
}

/// Returns the names of the pools that have a socket. Fails if others than this user can reach a directory of pools.
pub fn names() -> Result<Vec<String>, Refusal> {
    let name = |path: PathBuf| Some(path.file_name()?.to_str()?.strip_suffix(".sock")?.to_owned());
    let directories = usable()?;
    let entries = directories.iter().filter_map(|path| fs::read_dir(path).ok());
    let mut names: Vec<String> = entries
        .flatten()
        .flatten()
        .filter_map(|entry| name(entry.path()))
        .filter(|name| check_pool_name(name).is_ok())
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_directory_that_others_reach_is_refused() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        assert_eq!(check(&directory), Err(Unfit::Missing));
        let made = prepare(&directory).unwrap();
        assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
        assert_eq!(check(&directory), Ok(made));
        let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        let refused = |why: &str| Err(Unfit::Refused(why.to_owned()));
        set(&directory, 0o750);
        assert_eq!(check(&directory), refused("its mode is 750, so other users can reach it"));
        set(&directory, 0o700);
        set(above.path(), 0o777);
        assert_eq!(check(&directory), refused("other users can replace it"));
        set(above.path(), 0o1777);
        assert_eq!(check(&directory), Ok(made));
        let link = above.path().join("link");
        symlink(&directory, &link).unwrap();
        assert!(matches!(check(&link), Err(Unfit::Refused(_))));
        assert_eq!(prepare(&above.path().join("a/b")), Err(Unfit::Missing), "nothing is above it");
    }

    #[test]
    fn a_directory_that_is_replaced_while_it_is_checked_is_checked_again() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        let made = prepare(&directory).unwrap();
        let opened = File::open(&directory).unwrap();
        assert_eq!(judge(&directory, &opened), Ok(made));
        fs::remove_dir(&directory).unwrap();
        assert_eq!(judge(&directory, &opened), Err(Unfit::Replaced));
        // Another user's, perhaps.
        DirBuilder::new().mode(0o755).create(&directory).unwrap();
        assert_eq!(judge(&directory, &opened), Err(Unfit::Replaced));
        let mut tries = 0;
        let mut attempt = |replaced| {
            tries += 1;
            if tries <= replaced { Err(Unfit::Replaced) } else { Ok(tries) }
        };
        assert_eq!(while_replaced(|| attempt(3)), Ok(4));
        assert_eq!(
            while_replaced(|| attempt(u32::MAX)),
            Err(Unfit::Refused("it is removed and made again and again".to_owned()))
        );
        assert_eq!(tries, 4 + TRIES_MAX);
    }

    fn taken(directory: &Path) -> Place {
        take(&[directory.to_owned()], "p").unwrap().expect("no pool has the name")
    }

    /// Another user takes the name of the first directory before or after a pool begins.
    #[test]
    fn a_directory_of_another_user_is_passed_over() {
        if !geteuid().is_root() {
            return;
        }
        let above = tempfile::tempdir().unwrap();
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let both = ["first", "second"].map(|name| above.path().join(name));
        let give = |path: &Path| std::os::unix::fs::lchown(path, Some(65_502), None).unwrap();
        let place = taken(&both[1]);
        let makers: [&dyn Fn(&Path); 3] = [
            &|path| DirBuilder::new().mode(0o700).create(path).unwrap(),
            &|path| symlink(above.path(), path).unwrap(),
            &|path| fs::write(path, "").unwrap(),
        ];
        for make in makers {
            make(&both[0]);
            give(&both[0]);
            assert_eq!(check(&both[0]), Err(Unfit::Foreign(65_502)));
            assert_eq!(usable_of(both.to_vec()).unwrap(), [both[1].clone()]);
            let refusal = usable_of(vec![both[0].clone()]).unwrap_err();
            assert!(refusal.to_string().ends_with("is not used: it belongs to user 65502"), "{refusal}");
            assert!(take(&both, "p").unwrap().is_none(), "the pool is found where it is");
            let (other, _listener) = take(&both, "q").unwrap().expect("no pool has the name").listen();
            assert!(socket(&both[1], "q").exists());
            other.remove(true);
            let refusal = take(&both[..1], "q").unwrap_err();
            assert!(refusal.to_string().ends_with("cannot be used: it belongs to user 65502"), "{refusal}");
            if fs::remove_file(&both[0]).is_err() {
                fs::remove_dir(&both[0]).unwrap();
            }
        }
        assert!(take(&both, "p").unwrap().is_none(), "also when the other directory is gone");
        DirBuilder::new().mode(0o700).create(&both[0]).unwrap();
        give(&both[0]);
        let three = [both[0].clone(), above.path().join("none/there"), both[1].clone()];
        drop(take(&three, "r").unwrap().expect("no pool has the name"));
        fs::remove_dir(&both[0]).unwrap();
        assert!(!both[0].exists());
        // One's own that others reach is never passed over.
        DirBuilder::new().mode(0o755).create(&both[0]).unwrap();
        for refusal in [usable_of(both.to_vec()).unwrap_err(), take(&both, "q").unwrap_err()] {
            assert!(refusal.to_string().ends_with("its mode is 755, so other users can reach it"), "{refusal}");
        }
        drop(place);
    }

    #[test]
    fn a_name_belongs_to_one_pool_at_a_time() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        let place = taken(&directory);
        assert!(take(std::slice::from_ref(&directory), "p").unwrap().is_none());
        drop(place);
        // As after a kill: the socket is left.
        assert!(socket(&directory, "p").exists());
        let (files, _listener) = taken(&directory).listen();
        assert!(files.are_in_place());
        files.remove(true);
        assert!(!directory.exists() && !files.are_in_place());
    }

    #[test]
    fn a_pool_whose_files_were_removed_leaves_those_of_the_next_one() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        let (first, _listener) = taken(&directory).listen();
        fs::remove_dir_all(&directory).unwrap();
        let (second, _listener) = taken(&directory).listen();
        assert!(!first.are_in_place() && second.are_in_place());
        first.remove(true);
        assert!(second.are_in_place());
    }

    #[test]
    fn a_pool_whose_socket_was_removed_leaves_nothing() {
        let above = tempfile::tempdir().unwrap();
        let directory = above.path().join("pools");
        let place = taken(&directory);
        place.log().unwrap();
        let (files, _listener) = place.listen();
        fs::create_dir(files.jobs()).unwrap();
        fs::remove_file(socket(&directory, "p")).unwrap();
        files.remove(true);
        assert!(!directory.exists());
    }

    #[test]
    fn a_start_that_is_refused_leaves_nothing() {
        let above = tempfile::tempdir().unwrap();
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let directory = above.path().join("pools");
        let text = |directory: &Path| take(&[directory.to_owned()], "p").unwrap_err().with_hint();
        assert!(text(&directory).contains("other users can replace it"), "{}", text(&directory));
        assert!(!directory.exists());
        fs::set_permissions(above.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let long = above.path().join("a".repeat(SOCKET_BYTES_MAX));
        assert!(text(&long).contains("SCELA_POOL_DIR names a directory with a shorter path"), "{}", text(&long));
        assert!(!long.exists());
        let fits = SOCKET_BYTES_MAX - above.path().as_os_str().len() - "//p.sock".len();
        drop(taken(&above.path().join("b".repeat(fits))));
        // It cannot be replaced by a socket.
        fs::create_dir_all(directory.join("p.sock")).unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        assert!(text(&directory).contains("its socket"), "{}", text(&directory));
        assert!(!directory.join("p.lock").exists());
    }

    #[test]
    fn pools_are_looked_for_where_they_may_be() {
        let own = PathBuf::from(format!("/tmp/scela-{}", geteuid()));
        let usual = PathBuf::from(format!("/run/user/{}/scela", geteuid()));
        let with =
            |set: &'static str, value: &'static str| directories(move |name| (name == set).then(|| value.into()));
        let sorted = |mut paths: Vec<PathBuf>| {
            paths.sort();
            paths
        };
        assert_eq!(sorted(with("", "")), [usual.clone(), own.clone()]);
        assert_eq!(with(VARIABLE, "/a"), [PathBuf::from("/a")]);
        assert_eq!(with(VARIABLE, "a"), [std::env::current_dir().unwrap().join("a")]);
        assert_eq!(sorted(with(VARIABLE, "")), [usual, own.clone()]);
        assert_eq!(sorted(with("XDG_RUNTIME_DIR", "/run/user/1")), [PathBuf::from("/run/user/1/scela"), own]);
    }
}
