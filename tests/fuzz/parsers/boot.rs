//! The messages of a bootstrap channel: orders, commands and reports.

use nla::bootstrap::{BootCommand, BootOrder, BootReport};

use super::messages::check_as;

/// Checks the bytes as each message.
pub(super) fn check(data: &[u8]) {
    if let Some(order) = check_as::<BootOrder>(data) {
        assert_eq!(order.is_shared(), order.target == 0);
        assert!(format!("{order:?}").contains("key: Secret(..)"), "the key is shown");
    }
    check_as::<BootCommand>(data);
    check_as::<BootReport>(data);
}
