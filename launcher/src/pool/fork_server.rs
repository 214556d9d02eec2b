//! Forks launchers of a pool, in a process that has one thread and little memory.

use std::io;

use nla::sys::{self, Packets};

/// Asks the fork server for a launcher. The descriptor is the launcher's end of its connection to the controller.
pub const FORK: &[u8] = b"fork";

/// Serves until the controller closes the connection. Returns `None` then, and the connection to the controller in each process
/// that it has forked.
pub fn serve(pool: &str, requests: Packets) -> io::Result<Option<Packets>> {
    sys::name_process(c"scela-forks", pool);
    sys::serve_forks(&requests, |packet| {
        let [controller] = <[_; 1]>::try_from(packet.descriptors).ok()?;
        match sys::fork_alone() {
            Ok(None) => {
                sys::name_process(c"scela-standby", pool);
                Some(Packets::of(controller))
            }
            Ok(Some(_)) => None,
            // The controller notices that the connection has ended.
            Err(error) => {
                tracing::warn!(%error, "no launcher can be forked");
                None
            }
        }
    })
}
