//! Directories of another user in the place of a user's own. For root only.

use std::os::unix::fs::chown;

use super::*;
use crate::sys::users::{as_user, is_root};

const USER: u32 = 1001;
const OTHER: u32 = 1002;

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn a_place_of_another_user_is_not_safe() {
    if !is_root() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    for (mode, owner, is_safe) in [(0o755, USER, true), (0o755, 0, true), (0o755, OTHER, false), (0o1777, OTHER, false)]
    {
        set_mode(place.path(), mode);
        chown(place.path(), Some(owner), Some(owner)).unwrap();
        let found = as_user(USER, || stage_room(place.path()).unwrap().is_safe);
        assert_eq!(found, is_safe, "mode {mode:o} of user {owner}");
    }
}
