//! Parsers for the values of options about staged and collected files.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use nla::core::{CacheBounds, CollectPattern};

use super::text::shown;
use super::values::{OPTION, Parsed, described, some, some_time, split_at_equals};
use crate::plan::collect::Collect;
use crate::plan::stage::{self, StageFile};
use crate::refusal::Refusal;

/// How long a chunk that no session uses stays in a cache, unless the user says so.
const AGE_DEFAULT: Duration = Duration::from_secs(7 * 24 * 3600);
/// The longest time that it may stay: a year.
const AGE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The most bytes that can be asked for: a petabyte.
const BYTES_MAX: u64 = 1_000_000_000_000_000;

/// Parses a file with the name by which ranks find it, `FILE` or `FILE=NAME`. The plan checks the name.
pub(super) fn file(value: &OsStr) -> Parsed<StageFile> {
    staged(value, "file", "FILE")
}

/// Parses a directory in the same way, `DIR` or `DIR=NAME`.
pub(super) fn directory(value: &OsStr) -> Parsed<StageFile> {
    staged(value, "directory", "DIR")
}

fn staged(value: &OsStr, noun: &str, word: &str) -> Parsed<StageFile> {
    let bytes = some(value)?.as_bytes();
    let (path, name) = match bytes.iter().rposition(|byte| *byte == b'=') {
        Some(at) => (Path::new(OsStr::from_bytes(&bytes[..at])), Some(bytes[at + 1..].to_vec())),
        None => (Path::new(value), None),
    };
    match name.or_else(|| stage::own_name(path)).filter(|name| !name.is_empty()) {
        Some(name) if !path.as_os_str().is_empty() => Ok(StageFile { path: path.to_owned(), name }),
        _ => {
            let text = format!("'{}' does not name a {noun} and its name on the nodes", shown(value));
            Err(Refusal::new(text, format!("write '{OPTION} {word}' or '{OPTION} {word}=NAME'")))
        }
    }
}

/// Parses a number of bytes: `1000000`, `500M`, `10G`. Units are powers of 1000.
pub(super) fn bytes(value: &OsStr) -> Parsed<u64> {
    let text = some(value)?.as_bytes();
    let (digits, unit) = match text {
        [digits @ .., b'k' | b'K'] => (digits, 1_000),
        [digits @ .., b'M'] => (digits, 1_000_000),
        [digits @ .., b'G'] => (digits, 1_000_000_000),
        [digits @ .., b'T'] => (digits, 1_000_000_000_000),
        digits => (digits, 1),
    };
    let number = std::str::from_utf8(digits).ok().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    let Some(number) = number.filter(|digits| !digits.is_empty()) else {
        let hint = format!("write a number with k, M, G or T, as in '{OPTION} 10G'");
        return Err(Refusal::new(format!("'{}' is not a number of bytes", shown(value)), hint));
    };
    let bytes =
        number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|bytes| *bytes <= BYTES_MAX);
    bytes.ok_or_else(|| Refusal::new(format!("'{}' is too large, the most is 1000T", shown(value)), described()))
}

/// Parses `--stage-cache`: `none`, or a number of bytes and perhaps a time.
pub(super) fn cache(value: &OsStr) -> Parsed<Option<CacheBounds>> {
    let text = some(value)?.as_bytes();
    if text == b"none" {
        return Ok(None);
    }
    let mut parts = text.splitn(2, |byte| *byte == b',').map(OsStr::from_bytes);
    let size = bytes(parts.next().unwrap_or_default())?;
    if size == 0 {
        return Err(Refusal::new("the size must be greater than 0", format!("write '{OPTION} none' for no cache")));
    }
    let age = parts.next().map_or(Ok(AGE_DEFAULT), |age| some_time(age, AGE_MAX, "no cache"))?;
    Ok(Some(CacheBounds { bytes: size, age }))
}

/// Parses `--collect`: a pattern and a directory.
pub(super) fn collect(value: &OsStr) -> Parsed<Collect> {
    let hint = || format!("write a pattern below the rank's directory, as in '{OPTION} \"out/*.dat=results\"'");
    let typed = || format!("'{}' does not name files of ranks and a directory for them", shown(value));
    let (pattern, directory) = split_at_equals(some(value)?).ok_or_else(|| Refusal::new(typed(), hint()))?;
    if directory.is_empty() {
        return Err(Refusal::new(typed(), hint()));
    }
    let pattern = CollectPattern::new(pattern.as_bytes()).map_err(|error| Refusal::new(error.to_string(), hint()))?;
    Ok(Collect { pattern, directory: directory.into() })
}

#[cfg(test)]
mod tests {
    use super::super::values::tests::check;
    use super::*;

    #[test]
    fn staged_files() {
        let of = |path: &str, name: &str| StageFile { path: path.into(), name: name.into() };
        let no_name = |value| format!("'{value}' does not name a file and its name on the nodes");
        check(
            file,
            &[
                ("data", of("data", "data")),
                ("../in/data.h5", of("../in/data.h5", "data.h5")),
                ("in/data/", of("in/data/", "data")),
                ("in/data=mesh", of("in/data", "mesh")),
                ("a=b=c", of("a=b", "c")),
            ],
            &[("", "the value is empty"), ("in/..", &no_name("in/..")), ("=a", &no_name("=a")), ("a=", &no_name("a="))],
        );
        let refused = directory(OsStr::new("=a")).unwrap_err();
        assert_eq!(refused.to_string(), "'=a' does not name a directory and its name on the nodes");
        assert_eq!(refused.hint(), format!("write '{OPTION} DIR' or '{OPTION} DIR=NAME'"));
    }

    #[test]
    fn sizes() {
        let (none, large) = (
            |value| format!("'{value}' is not a number of bytes"),
            |value| format!("'{value}' is too large, the most is 1000T"),
        );
        check(
            bytes,
            &[("0", 0), ("7", 7), ("2k", 2000), ("500M", 500_000_000), ("10G", 10_000_000_000), ("1000T", BYTES_MAX)],
            &[
                ("", "the value is empty"),
                ("G", &none("G")),
                ("1.5G", &none("1.5G")),
                ("-1", &none("-1")),
                ("10GB", &none("10GB")),
                ("1001T", &large("1001T")),
                ("99999999999999999999", &large("99999999999999999999")),
            ],
        );
    }

    #[test]
    fn caches() {
        let of = |bytes, age_s| Some(CacheBounds { bytes, age: Duration::from_secs(age_s) });
        check(
            cache,
            &[("none", None), ("2G", of(2_000_000_000, 604_800)), ("2G,12h", of(2_000_000_000, 43_200))],
            &[
                ("", "the value is empty"),
                ("all", "'all' is not a number of bytes"),
                ("0", "the size must be greater than 0"),
                ("1G,", "the value is empty"),
                ("1G,9000h", "'9000h' is too long, the most is 8760 hours"),
            ],
        );
    }

    #[test]
    fn patterns_of_collected_files() {
        let of = |pattern: &str, directory: &str| Collect {
            pattern: CollectPattern::new(pattern.as_bytes()).unwrap(),
            directory: directory.into(),
        };
        let neither = |value| format!("'{value}' does not name files of ranks and a directory for them");
        check(
            collect,
            &[("out/*=r", of("out/*", "r")), ("$SCELA_STAGE_DIR/a=/tmp/r", of("$SCELA_STAGE_DIR/a", "/tmp/r"))],
            &[
                ("", "the value is empty"),
                ("out", &neither("out")),
                ("out=", &neither("out=")),
                ("../a=r", "'../a' is not a pattern for files below a directory"),
                ("/a=r", "'/a' is not a pattern for files below a directory"),
            ],
        );
    }
}
