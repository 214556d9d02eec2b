//! Forks launchers of a pool, in a process that has one thread and little memory.

use std::ffi::CStr;
use std::io;

use nla::sys::{self, Packets};

/// Asks the fork server for a launcher. The descriptor is the launcher's end of its connection to the controller.
pub const FORK: &[u8] = b"fork";

/// Names this process in `ps`.
fn show_as(name: &CStr, pool: &str) {
    // If one fails, `ps` shows the controller's name.
    let _ = sys::set_process_name(name);
    let _ = sys::show_as(&format!("{} {pool}", name.to_string_lossy()));
}

/// Serves until the controller closes the connection. Returns `None` then, and the connection to the controller in each process
/// that it has forked.
pub fn serve(pool: &str, requests: Packets) -> io::Result<Option<Packets>> {
    show_as(c"scela-forks", pool);
    sys::let_kernel_reap();
    loop {
        let Some(packet) = requests.receive(true)? else { return Ok(None) };
        let Ok([controller]) = <[_; 1]>::try_from(packet.descriptors) else { continue };
        match sys::fork_alone() {
            Ok(None) => {
                sys::reset_sigchld();
                show_as(c"scela-standby", pool);
                return Ok(Some(Packets::of(controller)));
            }
            Ok(Some(_)) => {}
            // The controller notices that the connection has ended.
            Err(error) => tracing::warn!(%error, "no launcher can be forked"),
        }
    }
}
