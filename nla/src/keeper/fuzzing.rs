//! The private messages of keepers, for the checks in `tests/fuzz` only.

use super::message::{FromKeeper, KeeperOrder, ToKeeper};
use crate::wire::decode;

/// Decodes the bytes as each message. They may be none.
pub fn decode_all(bytes: &[u8]) {
    let _ = decode::<ToKeeper>(bytes);
    let _ = decode::<FromKeeper>(bytes);
    let _ = decode::<KeeperOrder>(bytes);
}
