//! The identity of this process: its host, addresses and cores, and the attributes that it sets on itself.

use std::ffi::CStr;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::prctl;
use nix::sys::signal::Signal;

use super::shell::ShellState;
use super::spawn::swap_signal_mask;

/// Returns the node's name as the kernel reports it: never shortened, never resolved.
pub fn host_name() -> String {
    match nix::unistd::gethostname() {
        Ok(name) => name.to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}

/// Returns the addresses of this node's interfaces that are up, in the kernel's order, IPv4 first. Leaves out
/// link-local IPv6 addresses. Empty if the kernel reports an error.
pub fn addresses() -> Vec<IpAddr> {
    addresses_of(None)
}

/// Returns the addresses of one interface, given by its name, or of all interfaces; see [`addresses`].
pub fn addresses_of(interface: Option<&str>) -> Vec<IpAddr> {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else { return Vec::new() };
    let found: Vec<IpAddr> = interfaces
        .filter(|one| one.flags.contains(nix::net::if_::InterfaceFlags::IFF_UP))
        .filter(|one| interface.is_none_or(|name| one.interface_name == name))
        .filter_map(|one| {
            let address = one.address?;
            match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => Some(IpAddr::V4(v4.ip())),
                (_, Some(v6)) => Some(IpAddr::V6(v6.ip())).filter(|_| !v6.ip().is_unicast_link_local()),
                _ => None,
            }
        })
        .collect();
    let (mut all, v6): (Vec<_>, Vec<_>) = found.into_iter().partition(IpAddr::is_ipv4);
    all.extend(v6);
    all
}

/// Makes this process a child subreaper: orphaned descendants, even double-forked ones, become its children.
pub fn become_subreaper() -> io::Result<()> {
    Ok(prctl::set_child_subreaper(true)?)
}

/// Forbids core dumps and debuggers of the same user, because the memory contains the session's key.
///
/// The setting is not inherited through exec, so ranks can be debugged.
pub fn forbid_dump() -> io::Result<()> {
    Ok(prctl::set_dumpable(false)?)
}

/// Makes the kernel send SIGCONT to this process when its parent dies, in case it is stopped then.
pub(super) fn continue_when_parent_dies() -> io::Result<()> {
    Ok(prctl::set_pdeathsig(Some(Signal::SIGCONT))?)
}

/// Makes the kernel send SIGTERM to the command's process when the thread that spawns it ends (PR_SET_PDEATHSIG): ssh would
/// go on connecting to a host after the launcher was killed. If the process becomes a guardian, that ends the setting. The command
/// gets the signal mask of the user's shell: an agent blocks signals that the command may need.
pub fn end_with_this_thread(command: &mut Command) {
    let blocked = ShellState::recorded().blocked;
    let end = move || {
        swap_signal_mask(blocked);
        Ok(prctl::set_pdeathsig(Some(Signal::SIGTERM))?)
    };
    // SAFETY: between fork and exec it only makes two system calls.
    unsafe { command.pre_exec(end) };
}

/// Ends the setting of [`end_with_this_thread`] for this process.
pub(super) fn outlive_parent() -> io::Result<()> {
    Ok(prctl::set_pdeathsig(None)?)
}

/// Creates a new session (setsid), without a controlling terminal. Fails with EPERM in the leader of a process group.
pub fn new_session() -> io::Result<()> {
    nix::unistd::setsid()?;
    Ok(())
}

/// Sets the name of the calling thread in `ps` and `top`. The kernel truncates it to 15 bytes.
pub fn set_process_name(name: &CStr) -> io::Result<()> {
    Ok(prctl::set_name(name)?)
}

/// Sets the calling thread's nice value, -20 to 19, if the kernel permits it.
///
/// Never call it on the thread that starts ranks: they would inherit the value, and an unprivileged process cannot
/// lower it again.
pub fn set_thread_nice(nice: i32) {
    // SAFETY: takes three numbers. 0 is the calling thread on Linux (POSIX says process).
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Returns the processors that this thread may run on, processor 0 as the lowest bit of the first word.
pub fn affinity() -> Vec<u64> {
    // Room for 16,384 processors. The kernel refuses a set smaller than its own with EINVAL.
    let mut set = vec![0u64; 256];
    // SAFETY: the kernel writes at most the given number of bytes, which is the vector's size.
    let bytes = unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(set.as_slice()), set.as_mut_ptr()) };
    if bytes <= 0 {
        return Vec::new();
    }
    set
}

/// Lets this thread, and the children that it makes later, run only on these processors.
pub(super) fn set_affinity(cpus: &[u64]) -> io::Result<()> {
    // SAFETY: the kernel reads as many bytes as the slice has.
    let set = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(cpus), cpus.as_ptr()) };
    if set < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the number of threads of this process.
pub(super) fn threads() -> io::Result<u64> {
    // The directory has two links of its own, and one for each thread.
    Ok(std::fs::metadata("/proc/self/task")?.nlink().saturating_sub(2))
}

/// Waits until this process has one thread. Returns false if it has more after `limit`.
pub fn has_one_thread_within(limit: Duration) -> bool {
    let began = Instant::now();
    while threads().map_or(true, |threads| threads > 1) {
        if began.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_micros(100));
    }
    true
}

/// Returns the number of processors that this thread may run on; at least 1.
pub fn cores() -> usize {
    affinity().iter().map(|word| word.count_ones() as usize).sum::<usize>().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_a_name_and_cores() {
        assert!(!host_name().is_empty());
        assert!(cores() >= 1);
    }
}
