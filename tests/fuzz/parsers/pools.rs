//! The messages of a pool's processes: clients, controller, launchers, keepers.

use launcher::pool::message::{Description, Request, ToClient, ToController};
use launcher::run::front::{FromJob, FromLauncher, ToJob, ToLauncher};
use nla::keeper::fuzzing;

use super::messages::check_as;

/// Checks the bytes as each message.
pub(super) fn check(data: &[u8]) {
    check_as::<ToController>(data);
    if let Some(request) = check_as::<Request>(data) {
        // Only a request of this version is decoded.
        let _ = request.question();
    }
    check_as::<ToClient>(data);
    check_as::<ToLauncher>(data);
    check_as::<FromLauncher>(data);
    check_as::<ToJob>(data);
    check_as::<FromJob>(data);
    fuzzing::decode_all(data);
    if let Some(description) = check_as::<Description>(data) {
        for (name, value) in description.environment() {
            let (name, value) = (name.as_encoded_bytes(), value.as_encoded_bytes());
            assert!(!name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0));
        }
    }
}
