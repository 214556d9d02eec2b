//! File names with placeholders: `out.%r`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use launcher::plan::pattern::{PlaceholderValues, fill, fixed_directory, has_rank, unknown_placeholder};
use nla::core::NamespaceId;
use pmi::Rank;

/// A pattern is the name of one file, or of one for each rank, below its fixed directory.
pub(super) fn check(data: &[u8]) {
    let pattern = OsStr::from_bytes(data);
    let filled = |rank, host| {
        fill(pattern, &PlaceholderValues { namespace: NamespaceId(1), rank: Rank(rank), host, session: "ab" })
    };
    let (one, other) = (filled(3, "n7"), filled(4, "n7"));
    assert_eq!(has_rank(pattern), one != other, "{}", data.escape_ascii());
    assert!(one.as_os_str().len() <= 2 * data.len());
    if !data.contains(&b'%') {
        assert_eq!(one.as_os_str(), pattern);
    }
    // A name's directory is known before its placeholders are.
    let fixed = fixed_directory(pattern).as_os_str().as_bytes();
    assert!(data.starts_with(fixed) && !fixed.contains(&b'%'));
    assert!(one.as_os_str().as_bytes().starts_with(fixed));
    if let Some(unknown) = unknown_placeholder(pattern) {
        assert!(unknown.starts_with('%') && unknown.chars().count() <= 2);
    } else if !data.contains(&b'/') {
        assert!(!one.as_os_str().as_bytes().contains(&b'/'), "a placeholder has a slash");
    }
}
