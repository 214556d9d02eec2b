//! File names with placeholders: `-outfile-pattern out.%r`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nla::core::NamespaceId;
use nla::sys;
use pmi::Rank;

/// The placeholders and their meanings, for messages.
pub const PLACEHOLDERS: &str = "%r (rank), %n (namespace), %h (host), %j (session) and %% (a percent sign)";

/// The values of the placeholders.
#[derive(Debug)]
pub struct PlaceholderValues<'a> {
    /// The rank's namespace.
    pub namespace: NamespaceId,
    /// The rank.
    pub rank: Rank,
    /// The rank's host.
    pub host: &'a str,
    /// The session's name.
    pub session: &'a str,
}

/// Returns the first placeholder of `pattern` that does not exist, as typed.
pub fn unknown_placeholder(pattern: &OsStr) -> Option<String> {
    let mut rest = pattern.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        if !matches!(rest.get(at + 1), Some(b'r' | b'n' | b'h' | b'j' | b'%')) {
            let text = String::from_utf8_lossy(&rest[at..]);
            return Some(text.chars().take(2).collect());
        }
        rest = &rest[at + 2..];
    }
    None
}

/// Returns whether each rank gets a file of its own: `pattern` contains `%r`.
pub fn has_rank(pattern: &OsStr) -> bool {
    has(pattern, b"r")
}

/// Returns whether names take part in those of the files: `pattern` contains `%h` or `%j`.
pub fn has_name(pattern: &OsStr) -> bool {
    has(pattern, b"hj")
}

/// Returns whether `pattern` contains a placeholder with one of these letters.
fn has(pattern: &OsStr, letters: &[u8]) -> bool {
    let without_percent = pattern.as_bytes().windows(2).scan(false, |escaped, pair| {
        let is_placeholder = pair[0] == b'%' && !*escaped;
        *escaped = is_placeholder;
        Some((is_placeholder, pair[1]))
    });
    without_percent.into_iter().any(|(is_placeholder, letter)| is_placeholder && letters.contains(&letter))
}

/// Returns the directory that must exist: the last one before the first placeholder. Directories whose names contain
/// placeholders are created.
pub fn fixed_directory(pattern: &OsStr) -> &Path {
    let bytes = pattern.as_bytes();
    let end = bytes.iter().position(|byte| *byte == b'%').unwrap_or(bytes.len());
    let end = bytes[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash.max(1));
    Path::new(OsStr::from_bytes(&bytes[..end]))
}

/// Returns whether `pattern` may name a file, which is given by its true path. Counts all ranks, hosts and sessions as possible.
pub fn may_name(pattern: &OsStr, file: &Path) -> bool {
    if !pattern.as_bytes().contains(&b'%') {
        return sys::is_one_file(&sys::true_path(Path::new(pattern)), file);
    }
    let directory = fixed_directory(pattern);
    let inside = sys::true_path(&directory.join("name"));
    let Some(Ok(name)) = inside.parent().map(|directory| file.strip_prefix(directory)) else { return false };
    let name = name.as_os_str().as_bytes();
    let mut rest = &pattern.as_bytes()[directory.as_os_str().len()..];
    while let Some(after) = rest.strip_prefix(b"/") {
        rest = after;
    }
    // The beginning of the pattern may stand for the name up to here.
    let mut ends = BTreeSet::from([0]);
    while let Some(first) = rest.first() {
        let (placeholder, length) = match (first, rest.get(1)) {
            (b'%', Some(b'%')) | (b'%', None) => (None, rest.len().min(2)),
            (b'%', Some(letter)) => (Some(*letter), 2),
            _ => (None, 1),
        };
        rest = &rest[length..];
        ends = match placeholder {
            None => ends.into_iter().filter(|end| name.get(*end) == Some(first)).map(|end| end + 1).collect(),
            Some(letter) => {
                let is_part =
                    |byte: &&u8| if matches!(letter, b'r' | b'n') { byte.is_ascii_digit() } else { **byte != b'/' };
                let value = |end: usize| end + 1..end + 1 + name[end..].iter().take_while(is_part).count();
                ends.into_iter().flat_map(value).collect()
            }
        };
    }
    ends.contains(&name.len())
}

/// Fills in the placeholders. An unknown one is kept as it is.
pub fn fill(pattern: &OsStr, values: &PlaceholderValues<'_>) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = pattern.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(b'r') => out.extend_from_slice(values.rank.to_string().as_bytes()),
            Some(b'n') => out.extend_from_slice(values.namespace.to_string().as_bytes()),
            Some(b'h') => out.extend_from_slice(values.host.as_bytes()),
            Some(b'j') => out.extend_from_slice(values.session.as_bytes()),
            Some(b'%') => out.push(b'%'),
            Some(other) => out.extend_from_slice(&[b'%', *other]),
            None => out.push(b'%'),
        }
        rest = rest.get(at + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_are_filled_in() {
        let values = PlaceholderValues { namespace: NamespaceId(1), rank: Rank(12), host: "n7", session: "ab" };
        let filled = |pattern: &str| fill(OsStr::new(pattern), &values).into_os_string().into_string().unwrap();
        assert_eq!(filled("out.%r"), "out.12");
        assert_eq!(filled("%h/%j-%n-%r%%.txt"), "n7/ab-1-12%.txt");
        assert_eq!(filled("%x%"), "%x%");
        assert_eq!(filled("plain"), "plain");
    }

    #[test]
    fn unknown_placeholders_are_found() {
        let unknown = |pattern: &str| unknown_placeholder(OsStr::new(pattern));
        assert_eq!(unknown("%h/%j-%n-%r%%z"), None);
        assert_eq!(unknown("plain"), None);
        assert_eq!(unknown("out.%z"), Some("%z".to_owned()));
        assert_eq!(unknown("%%%"), Some("%".to_owned()));
        assert_eq!(unknown("%r.%\u{e9}"), Some("%\u{e9}".to_owned()));
    }

    #[test]
    fn only_a_placeholder_of_the_rank_separates_ranks() {
        let has = |pattern: &str| has_rank(OsStr::new(pattern));
        assert!(has("out.%r") && has("%%%r") && has("%r"));
        assert!(!has("out") && !has("%%r") && !has("%h") && !has("r%"));
        let has = |pattern: &str| has_name(OsStr::new(pattern));
        assert!(has("out.%h") && has("%r%j") && has("%%%h") && !has("%r.%n") && !has("%%h") && !has("j%"));
    }

    #[test]
    fn a_pattern_names_the_files_of_all_ranks() {
        let place = tempfile::tempdir().unwrap();
        let top = place.path().canonicalize().unwrap();
        std::os::unix::fs::symlink(".", top.join("here")).unwrap();
        let may = |pattern: &str, file: &str| may_name(top.join(pattern).as_os_str(), &top.join(file));
        for (pattern, file) in [
            ("x%r.json", "x0.json"),
            ("here/x%r.json", "x12.json"),
            ("%h/x", "n1/x"),
            ("%j-%n%r%%", "my-job-12%"),
            ("%h%h%h", "abc"),
            ("here/plain", "plain"),
        ] {
            assert!(may(pattern, file), "{pattern} {file}");
        }
        for (pattern, file) in [
            ("x%r.json", "x.json"),
            ("out.%r", "out.json"),
            ("x%r.json", "x0.json5"),
            ("%h", "a/b"),
            ("%h%h%h", "ab"),
            ("d/x%r", "x0"),
            ("plain", "other"),
        ] {
            assert!(!may(pattern, file), "{pattern} {file}");
        }
        assert!(!may(&"%h".repeat(100), &"a".repeat(99)), "and soon");
    }

    #[test]
    fn directories_before_the_first_placeholder_must_exist() {
        let fixed = |pattern: &'static str| fixed_directory(OsStr::new(pattern)).to_str().unwrap();
        assert_eq!(fixed("out.%r"), "");
        assert_eq!(fixed("logs/out.%r"), "logs");
        assert_eq!(fixed("logs/%j/out.%r"), "logs");
        assert_eq!(fixed("logs/job-%j/out"), "logs");
        assert_eq!(fixed("/a/b/plain"), "/a/b");
        assert_eq!((fixed("/%r"), fixed("%h/x")), ("/", ""));
    }
}
