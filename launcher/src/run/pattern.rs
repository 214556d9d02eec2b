//! File names with blanks to be filled in: `-outfile-pattern out.%r`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use nla::core::NamespaceId;
use pmi::Rank;

/// What a pattern's letters stand for.
pub(crate) struct Facts<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) rank: Rank,
    pub(crate) host: &'a str,
    pub(crate) session: &'a str,
}

/// Fills in `%r` (rank), `%n` (namespace), `%h` (host), `%j` (session) and `%%`; anything else is
/// kept as it is.
pub(crate) fn fill(pattern: &OsStr, facts: &Facts<'_>) -> PathBuf {
    let mut out = Vec::new();
    let mut rest = pattern.as_bytes();
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        out.extend_from_slice(&rest[..at]);
        match rest.get(at + 1) {
            Some(b'r') => out.extend_from_slice(facts.rank.to_string().as_bytes()),
            Some(b'n') => out.extend_from_slice(facts.namespace.to_string().as_bytes()),
            Some(b'h') => out.extend_from_slice(facts.host.as_bytes()),
            Some(b'j') => out.extend_from_slice(facts.session.as_bytes()),
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
    fn letters_are_filled_in() {
        let facts = Facts { namespace: NamespaceId(1), rank: Rank(12), host: "n7", session: "ab" };
        let filled = |pattern: &str| fill(OsStr::new(pattern), &facts).into_os_string().into_string().unwrap();
        assert_eq!(filled("out.%r"), "out.12");
        assert_eq!(filled("%h/%j-%n-%r%%.txt"), "n7/ab-1-12%.txt");
        assert_eq!(filled("%x%"), "%x%");
        assert_eq!(filled("plain"), "plain");
    }
}
