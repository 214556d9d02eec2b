//! Forks launchers of a pool, in a process that has one thread and little memory.

use std::io;

use nla::sys::{self, Packets};

use super::message::packed;
use crate::run::front::FromLauncher;

/// Asks the fork server for a launcher. The descriptor is the launcher's end of its connection to the controller.
pub const FORK: &[u8] = b"fork";

/// Serves until the controller closes the connection. Returns `None` then, and the connection to the controller in each process
/// that it has forked.
pub fn serve(pool: &str, requests: Packets) -> io::Result<Option<Packets>> {
    sys::name_process(c"scela-forks", pool);
    sys::serve_forks(&requests, |packet| {
        let [controller] = <[_; 1]>::try_from(packet.descriptors).ok()?;
        let controller = Packets::of(controller);
        match sys::fork_alone() {
            Ok(None) => {
                sys::name_process(c"scela-standby", pool);
                Some(controller)
            }
            Ok(Some(child)) => {
                // The controller must be able to end a launcher that is stopped before it stands by.
                let forked = FromLauncher::Forked { pid: child.as_raw().unsigned_abs() };
                let _ = controller.send(&packed(&forked), &[], false);
                None
            }
            // The controller notices that the connection has ended.
            Err(error) => {
                tracing::warn!(%error, "no launcher can be forked");
                None
            }
        }
    })
}
