//! Directories of another user that have the name of a session's. For root only.

use std::os::unix::fs::{PermissionsExt, chown};

use super::*;
use crate::sys::users::{as_user, is_root};

const USER: u32 = 1001;
const OTHER: u32 = 1002;

#[test]
fn only_directories_of_the_user_are_removed() {
    if !is_root() {
        return;
    }
    let set_mode = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o777)).unwrap();
    let parent = tempfile::tempdir().unwrap();
    // The user may remove everything here: no permission protects the other user's directory.
    set_mode(parent.path());
    let pid = std::process::id();
    let made = [USER, OTHER, 0].map(|owner| {
        let path = parent.path().join(format!("{}of-{owner}", prefix(pid)));
        fs::create_dir(&path).unwrap();
        fs::write(path.join("file"), "").unwrap();
        set_mode(&path);
        chown(&path, Some(owner), Some(owner)).unwrap();
        path
    });
    as_user(USER, || remove_directories(parent.path(), pid));
    assert_eq!(made.map(|path| path.join("file").exists()), [false, true, true]);
}
