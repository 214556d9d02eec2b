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
fn only_a_directory_of_the_user_is_removed() {
    if !is_root() {
        return;
    }
    let (parent, note) = (tempfile::tempdir().unwrap(), StageNote::unread().unwrap());
    // The user may remove everything here: no permission protects the other user's directory.
    set_mode(parent.path(), 0o777);
    let path = parent.path().join("announced");
    note.0.announce_directory(Some(&path)).unwrap();
    for (owner, stays) in [(OTHER, true), (0, true), (USER, false)] {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        set_mode(&path, 0o777);
        chown(&path, Some(owner), Some(owner)).unwrap();
        as_user(USER, || remove_announced(note.0));
        assert_eq!(path.join("file").exists(), stays, "a directory of user {owner}");
    }
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
