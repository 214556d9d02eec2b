//! A cgroup of its own for each agent and all that it starts, where the user may create one: `cgroup.kill` ends all
//! processes in it at once, whatever their parents, credentials and states.
//!
//! A cgroup v2 is delegated to a user if its directory and its `cgroup.procs` belong to that user, as in a session of a
//! user's systemd; for root, if its creator says so (the attribute `user.delegate` or `trusted.delegate`), because root may
//! write to every cgroup. Elsewhere no cgroup is created, and the guardian kills its descendants one by one.
//!
//! The guardian creates the directory `scela-PID-NAMESPACE` below its own cgroup, with its pid and its pid namespace, and the
//! agent enters it before it starts anything. The kernel then puts every rank into it at no cost; a move of each rank would
//! take 0.4 ms. The guardian stays outside: it kills the cgroup and removes it. If agent and guardian were killed together,
//! the launcher does both for the guardians that it has started ([`end_group_of`]).

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::attributes::attribute;
use super::cgroup_files::{cgroup_mount, cgroup_mounts};
use super::kernel_files::read_text;

/// How long killed processes may take to leave a cgroup before its directory stays.
const REMOVE_TIME: Duration = Duration::from_millis(200);
/// The most levels of cgroups that are removed: launchers inside ranks create their own.
const LEVELS_MAX: u32 = 8;

/// The cgroup of one agent.
pub(super) struct AgentGroup(PathBuf);

impl AgentGroup {
    /// Creates a cgroup for the agent of this process; `None` if none may be created here.
    pub(super) fn create() -> Option<Self> {
        let group = Self::of(delegated()?, std::process::id())?;
        if fs::create_dir(&group.0).is_err() {
            // A guardian that was killed has left it. A cgroup with processes is not removed.
            fs::remove_dir(&group.0).ok()?;
            fs::create_dir(&group.0).ok()?;
        }
        // Linux 5.14.
        if group.0.join("cgroup.kill").exists() {
            return Some(group);
        }
        group.remove();
        None
    }

    fn of(parent: &Path, guardian: u32) -> Option<Self> {
        let namespace = fs::metadata("/proc/self/ns/pid").ok()?.ino();
        Some(Self(parent.join(format!("scela-{guardian}-{namespace}"))))
    }

    /// Moves this process into the cgroup.
    pub(super) fn enter(&self) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), "0")
    }

    /// Kills all processes in the cgroup and below.
    pub(super) fn kill(&self) {
        // Without the file, the cgroup was removed or never used.
        let _ = fs::OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_NOFOLLOW)
            .open(self.0.join("cgroup.kill"))
            .and_then(|mut file| io::Write::write_all(&mut file, b"1"));
    }

    /// Removes the cgroup and those below. Waits a short time for killed processes to leave it.
    pub(super) fn remove(&self) {
        let until = Instant::now() + REMOVE_TIME;
        while remove_tree(&self.0, LEVELS_MAX).is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY))
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Removes a cgroup and those below it.
fn remove_tree(group: &Path, levels: u32) -> io::Result<()> {
    match fs::remove_dir(group) {
        // A cgroup with others below is busy.
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) && levels > 0 => {
            for entry in fs::read_dir(group)?.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    remove_tree(&entry.path(), levels - 1)?;
                }
            }
            fs::remove_dir(group)
        }
        removed => removed,
    }
}

/// Kills the processes in the cgroup that an ended guardian left behind, and removes the cgroup. `guardian` is the pid
/// of that guardian, which this process had started.
pub fn end_group_of(guardian: u32) {
    if let Some(group) = delegated().and_then(|parent| AgentGroup::of(parent, guardian))
        && group.0.exists()
    {
        group.kill();
        group.remove();
    }
}

/// Looks up this process's cgroup. [`end_group_of`] does it otherwise, at the end of a session.
pub fn look_up_cgroup() {
    let _ = delegated();
}

/// Returns this process's cgroup if it is delegated to this user. Looked up once.
pub(super) fn delegated() -> Option<&'static Path> {
    static OWN: OnceLock<Option<PathBuf>> = OnceLock::new();
    let own = OWN.get_or_init(|| {
        let groups = read_text("/proc/self/cgroup").ok()?;
        let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
        own_directory(path, cgroup_mounts()).filter(|own| is_delegated(own))
    });
    own.as_deref()
}

/// Returns the directory of the cgroup `path` among these mounts.
fn own_directory(path: &str, mounts: &str) -> Option<PathBuf> {
    let (root, mount) = mounts.lines().find_map(|line| cgroup_mount(line, None))?;
    let below = Path::new(path).strip_prefix(root).ok()?;
    // `..`: the process is outside its cgroup namespace. A backslash: an escaped mount point.
    let is_plain = !path.split('/').any(|name| name == "..") && !mount.contains('\\');
    is_plain.then(|| Path::new(mount).join(below))
}

fn is_delegated(group: &Path) -> bool {
    // SAFETY: geteuid takes nothing.
    let user = unsafe { libc::geteuid() };
    let is_own = |path: &Path| fs::symlink_metadata(path).is_ok_and(|found| found.uid() == user);
    let is_marked = || [c"user.delegate", c"trusted.delegate"].into_iter().any(|name| is_set(group, name));
    is_own(group) && is_own(&group.join("cgroup.procs")) && (user != 0 || is_marked())
}

/// Returns whether the extended attribute is "1".
fn is_set(path: &Path, name: &CStr) -> bool {
    let mut value = [0; 2];
    attribute(path, name, &mut value) == Some(1) && value[0] == b'1'
}

#[cfg(test)]
mod tests {
    use super::super::attributes::set_attribute;
    use super::*;

    #[test]
    fn the_directory_of_a_cgroup_is_found_below_its_mount() {
        let mount = |root: &str, at: &str| format!("1 2 0:3 {root} {at} rw - cgroup2 cgroup2 rw\n");
        let found = |path: &str, mounts: &str| own_directory(path, mounts);
        let whole = mount("/", "/sys/fs/cgroup");
        assert_eq!(found("/user.slice/x", &whole), Some("/sys/fs/cgroup/user.slice/x".into()));
        assert_eq!(found("/", &whole), Some("/sys/fs/cgroup/".into()));
        assert_eq!(found("/box/job", &mount("/box", "/sys/fs/cgroup")), Some("/sys/fs/cgroup/job".into()));
        assert_eq!(found("/other", &mount("/box", "/sys/fs/cgroup")), None, "it is not mounted");
        assert_eq!(found("/../x", &whole), None, "it is outside the namespace");
        assert_eq!(found("/x", &mount("/", "/a\\040b")), None);
        assert_eq!(found("/x", "1 2 0:3 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n"), None, "version 1");
    }

    #[test]
    fn a_mark_is_read() {
        let place = tempfile::tempdir().unwrap();
        let name = c"user.delegate";
        for (value, expected) in [("1", true), ("0", false), ("11", false), ("", false)] {
            if !set_attribute(place.path(), name, value.as_bytes()) {
                return; // a file system without attributes
            }
            assert_eq!(is_set(place.path(), name), expected, "{value:?}");
        }
        assert!(!is_set(place.path(), c"user.other"));
    }

    #[test]
    fn a_directory_of_another_user_is_not_delegated() {
        assert!(!is_delegated(Path::new("/proc")));
        assert!(!is_delegated(Path::new("/no/such/cgroup")));
    }
}
