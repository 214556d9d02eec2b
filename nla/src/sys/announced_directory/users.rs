//! Directories of another user in the place of a user's own. For root only.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};

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
    let (parent, note) = (tempfile::tempdir().unwrap(), DirectoryNote::new().unwrap());
    // The user may remove everything here: no permission protects the other user's directory.
    set_mode(parent.path(), 0o777);
    let path = parent.path().join("announced");
    note.0.announce_directory(Some(&path)).unwrap();
    for (owner, stays) in [(OTHER, true), (0, true), (USER, false)] {
        fs::create_dir_all(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        set_mode(&path, 0o777);
        chown(&path, Some(owner), Some(owner)).unwrap();
        let _ = as_user(USER, || note.remove_announced().is_ok());
        assert_eq!(path.join("file").exists(), stays, "a directory of user {owner}");
    }
}
