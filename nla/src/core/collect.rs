//! Files of ranks that are brought back at the end of a session: the patterns that name them.
//!
//! A pattern is a relative path that only descends, so no file outside a rank's directory matches. A component is a pattern as
//! shells have it (`*`, `?`, `[a-z]`), or `**` for any number of directories.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use thiserror::Error;

use super::limits::{COLLECT_PATTERNS_MAX, COLLECTED_NAME_BYTES_MAX};
use super::stage::in_stage_directory;

/// The beginning of the names of directories for files that are being brought back. They are not brought back themselves.
pub const UNFINISHED_PREFIX: &str = ".scela-collect-";

/// A component that matches any number of directories.
const ANY_DIRECTORIES: &[u8] = b"**";

/// Why files cannot be collected.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum CollectError {
    /// The pattern is empty, absolute or too long, or it ascends.
    #[error("'{0}' is not a pattern for files below a directory")]
    Pattern(String),
    /// There are more than [`COLLECT_PATTERNS_MAX`] patterns.
    #[error("{0} patterns are more than can be collected ({COLLECT_PATTERNS_MAX})")]
    TooMany(usize),
}

/// A pattern for files.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(transparent)]
pub struct CollectPattern(#[serde(with = "serde_bytes")] Vec<u8>);

impl CollectPattern {
    /// Checks a pattern.
    pub fn new(text: &[u8]) -> Result<Self, CollectError> {
        let error = || CollectError::Pattern(String::from_utf8_lossy(text).into_owned());
        let (_, rest) = split(text).ok_or_else(error)?;
        let is_good = |component: &[u8]| !matches!(component, b"" | b"." | b"..") && !component.contains(&0);
        let is_short = rest.len() <= COLLECTED_NAME_BYTES_MAX;
        if is_short && rest.split(|byte| *byte == b'/').all(is_good) { Ok(Self(text.to_vec())) } else { Err(error()) }
    }

    /// Whether it is about the directory of the staged files, and not about a rank's working directory.
    pub fn is_in_stage_directory(&self) -> bool {
        split(&self.0).is_some_and(|(in_stage, _)| in_stage)
    }

    /// Returns its components.
    pub fn components(&self) -> Vec<&[u8]> {
        split(&self.0).map(|(_, rest)| rest.split(|byte| *byte == b'/').collect()).unwrap_or_default()
    }

    /// Returns whether it also matches the files that it has brought to a directory, whose path from the directory of the pattern has
    /// these components.
    pub fn matches_brought(&self, directory: &[&[u8]]) -> bool {
        let components = self.components();
        // A file that it brings.
        let file: Vec<Vec<u8>> = components.iter().map(|component| example(component)).collect();
        let mut patterns: Vec<&[&[u8]]> = vec![&components];
        for name in directory.iter().copied().chain(file.iter().map(Vec::as_slice)) {
            let found: Vec<_> = patterns.iter().map(|pattern| matching(pattern, name)).collect();
            // A directory that matches brings all that is in it.
            if found.iter().any(|found| found.is_match) {
                return true;
            }
            patterns = found.iter().flat_map(|found| found.below).flatten().collect();
            // `**` leads to the same rest on many ways.
            patterns.sort_unstable();
            patterns.dedup();
        }
        false
    }

    /// Returns it as it was typed.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

/// Returns whether a pattern is about the directory of the staged files, and the rest of it.
fn split(text: &[u8]) -> Option<(bool, &[u8])> {
    match in_stage_directory(text) {
        Some(rest) => Some((true, rest.strip_prefix(b"/")?)),
        None => Some((false, text.strip_prefix(b"./").unwrap_or(text))),
    }
}

impl<'de> Deserialize<'de> for CollectPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text: serde_bytes::ByteBuf = Deserialize::deserialize(deserializer)?;
        Self::new(&text).map_err(D::Error::custom)
    }
}

/// The files that are brought back.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct CollectPlan {
    patterns: Vec<CollectPattern>,
    /// How many bytes they may have together.
    bytes_max: u64,
}

impl CollectPlan {
    /// Checks the number of patterns.
    pub fn new(patterns: Vec<CollectPattern>, bytes_max: u64) -> Result<Self, CollectError> {
        match patterns.len() {
            0..=COLLECT_PATTERNS_MAX => Ok(Self { patterns, bytes_max }),
            count => Err(CollectError::TooMany(count)),
        }
    }

    /// Returns the patterns.
    pub fn patterns(&self) -> &[CollectPattern] {
        &self.patterns
    }

    /// Returns how many bytes the files may have together.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Whether no file is brought back.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }
}

impl<'de> Deserialize<'de> for CollectPlan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Unchecked(Vec<CollectPattern>, u64);
        let Unchecked(patterns, bytes_max) = Deserialize::deserialize(deserializer)?;
        Self::new(patterns, bytes_max).map_err(D::Error::custom)
    }
}

/// The meaning of a directory's entry for a pattern.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Matching<'a> {
    /// The entry matches the whole pattern.
    pub is_match: bool,
    /// The patterns for the entries of this directory: one or two.
    pub below: [Option<&'a [&'a [u8]]>; 2],
}

/// Matches an entry of a directory against the components of a pattern that are left there.
pub fn matching<'a>(components: &'a [&'a [u8]], name: &[u8]) -> Matching<'a> {
    let nothing = Matching { is_match: false, below: [None; 2] };
    let Some((first, rest)) = components.split_first() else { return nothing };
    if *first == ANY_DIRECTORIES {
        // No directory, or this one. A hidden one must be named.
        let none = matching(rest, name);
        let is_match = none.is_match || rest.is_empty();
        let this = (!name.starts_with(b".")).then_some(components);
        return Matching { is_match, below: [none.below[0].or(none.below[1]), this] };
    }
    if !is_like(first, name) {
        return nothing;
    }
    Matching { is_match: rest.is_empty(), below: [Some(rest).filter(|rest| !rest.is_empty()), None] }
}

/// Whether a name is like a pattern of a shell. A first dot must be named.
pub fn is_like(pattern: &[u8], name: &[u8]) -> bool {
    if name.starts_with(b".") && !pattern.starts_with(b".") {
        return false;
    }
    // The last star, and where its part of the name ends.
    let (mut at, mut in_name, mut star) = (0, 0, None);
    while in_name < name.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, in_name));
            at += 1;
            continue;
        }
        match one(&pattern[at.min(pattern.len())..], name[in_name]) {
            Some(length) => (at, in_name) = (at + length, in_name + 1),
            None => {
                let Some((after, taken)) = star else { return false };
                (at, in_name, star) = (after, taken + 1, Some((after, taken + 1)));
            }
        }
    }
    pattern[at.min(pattern.len())..].iter().all(|byte| *byte == b'*')
}

/// Returns the length of the part of a pattern that matches this byte, if its first part does.
fn one(pattern: &[u8], byte: u8) -> Option<usize> {
    match pattern {
        [b'?', ..] => Some(1),
        [b'\\', escaped, ..] => (*escaped == byte).then_some(2),
        [b'[', rest @ ..] => {
            let (negated, set) = match rest {
                [b'!' | b'^', set @ ..] => (true, set),
                set => (false, set),
            };
            // The first one may be a bracket.
            let Some(end) = set.iter().skip(1).position(|byte| *byte == b']').map(|end| end + 1) else {
                return (byte == b'[').then_some(1);
            };
            let (mut left, mut found) = (&set[..end], false);
            while let Some((first, rest)) = left.split_first() {
                match rest {
                    [b'-', last, rest @ ..] => {
                        found |= (*first..=*last).contains(&byte);
                        left = rest;
                    }
                    _ => {
                        found |= *first == byte;
                        left = rest;
                    }
                }
            }
            (found != negated).then_some(pattern.len() - set.len() + end + 1)
        }
        [first, ..] => (*first == byte).then_some(1),
        [] => None,
    }
}

/// Returns a name that is like a pattern of a shell.
fn example(pattern: &[u8]) -> Vec<u8> {
    let (mut name, mut rest) = (Vec::new(), pattern);
    while !rest.is_empty() {
        let found = (b'!'..=b'~').filter(|byte| *byte != b'/').find_map(|byte| Some((byte, one(rest, byte)?)));
        // A part that matches none of these bytes stands for itself.
        let (byte, length) = if rest[0] == b'*' { (b'x', 1) } else { found.unwrap_or((rest[0], 1)) };
        name.push(byte);
        rest = &rest[length..];
    }
    name
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{decode, encode};

    #[test]
    fn patterns_only_descend() {
        for text in ["a", "*.dat", "./out/*", "**/x", "$SCELA_STAGE_DIR/a", "${SCELA_STAGE_DIR}/v/*"] {
            let pattern = CollectPattern::new(text.as_bytes()).unwrap();
            assert_eq!(pattern.is_in_stage_directory(), text.starts_with('$'), "{text}");
            assert_eq!(decode::<CollectPattern>(&encode(&pattern)).unwrap(), pattern);
        }
        let long = "n".repeat(COLLECTED_NAME_BYTES_MAX + 1);
        for text in [
            "",
            "/etc/passwd",
            "../a",
            "a/../b",
            "a//b",
            "a/",
            "./",
            ".",
            "a\0",
            "$SCELA_STAGE_DIR",
            "$SCELA_STAGE_DIR/..",
            &long,
        ] {
            assert_eq!(CollectPattern::new(text.as_bytes()), Err(CollectError::Pattern(text.to_owned())));
            // As an agent reads it.
            assert!(decode::<CollectPattern>(&encode(&serde_bytes::Bytes::new(text.as_bytes()))).is_err(), "{text}");
        }
        assert!(CollectPattern::new(&long.as_bytes()[1..]).is_ok());
    }

    #[test]
    fn a_pattern_may_match_what_it_has_brought() {
        for (pattern, directory, expected) in [
            ("*", "res", true),
            ("*", ".res", false),
            ("*", "a/res", true),
            ("**", "res", true),
            ("**/[a-c]?.dat", "res", true),
            ("**/*.dat", ".res", false),
            ("*.dat", "res", false),
            ("*.dat", "res.dat", true),
            ("out", "res", false),
            ("out", "out", true),
            ("out/*", "out", true),
            ("out/*.dat", "out", false),
            ("out/*.dat", "results", false),
            ("*/*.dat", "res", false),
            ("*/**/x", "res", true),
        ] {
            let directory: Vec<&[u8]> = directory.split('/').map(str::as_bytes).collect();
            let found = CollectPattern::new(pattern.as_bytes()).unwrap().matches_brought(&directory);
            assert_eq!(found, expected, "{pattern} {directory:?}");
        }
    }

    #[test]
    fn the_number_of_patterns_is_bounded() {
        let patterns = |count| vec![CollectPattern::new(b"a").unwrap(); count];
        let plan = CollectPlan::new(patterns(COLLECT_PATTERNS_MAX), 7).unwrap();
        assert_eq!(decode::<CollectPlan>(&encode(&plan)).unwrap(), plan);
        let one_more = COLLECT_PATTERNS_MAX + 1;
        assert_eq!(CollectPlan::new(patterns(one_more), 7), Err(CollectError::TooMany(one_more)));
    }

    #[test]
    fn components_match_as_in_a_shell() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            ("?", "ab", false),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abcd", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[a", "[a", true),
            ("[a-]", "-", true),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("", "", true),
            ("", "a", false),
            ("a**", "abc", true),
        ] {
            assert_eq!(is_like(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn paths_match_component_by_component() {
        fn matches(pattern: &str, path: &str) -> bool {
            fn below(components: &[&[u8]], path: &[&[u8]]) -> bool {
                let Some((name, rest)) = path.split_first() else { return false };
                let found = matching(components, name);
                if rest.is_empty() {
                    found.is_match
                } else {
                    found.below.into_iter().flatten().any(|left| below(left, rest))
                }
            }
            let pattern = CollectPattern::new(pattern.as_bytes()).unwrap();
            below(&pattern.components(), &path.split('/').map(str::as_bytes).collect::<Vec<_>>())
        }
        for (pattern, path, expected) in [
            ("a/*.dat", "a/x.dat", true),
            ("a/*.dat", "a/b/x.dat", false),
            ("*.dat", "a/x.dat", false),
            ("**/*.dat", "x.dat", true),
            ("**/*.dat", "a/b/x.dat", true),
            ("**/*.dat", ".git/x.dat", false),
            ("a/**/b/c", "a/b/c", true),
            ("a/**/b/c", "a/x/y/b/c", true),
            ("a/**", "a/b/c", true),
            ("a", "a/b", false),
            ("$SCELA_STAGE_DIR/a", "a", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    proptest! {
        #[test]
        fn no_pattern_takes_long(pattern in "[a*?\\[\\]!\\\\-]{0,40}", name in "[a*\\]-]{0,60}") {
            is_like(pattern.as_bytes(), name.as_bytes());
            prop_assert!(pattern.is_empty() || !example(pattern.as_bytes()).is_empty());
            prop_assert!(!pattern.bytes().all(|byte| byte == b'a') || is_like(pattern.as_bytes(), name.as_bytes()) == (pattern == name));
        }
    }
}
