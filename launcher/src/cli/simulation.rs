//! Parsers for values of the options of a simulation.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nla::core::limits::RANKS_MAX;
use sim::Pattern;

use super::limits::{FANOUT_MAX, FANOUT_MIN, FANOUTS_MAX};
use super::text::shown;
use super::values::{OPTION, Parsed, described, is_whole_number, not_a_number, number, some};
use crate::refusal::Refusal;
use crate::suggest;

/// Parses `1024x64`: nodes, and ranks on each.
pub(super) fn size(value: &OsStr) -> Parsed<(u32, u32)> {
    let refused = |text| Refusal::new(text, format!("write it as in '{OPTION} 1024x64'"));
    let not_a_size =
        || refused(format!("'{}' is not a number of nodes, an 'x' and a number of ranks on each", shown(value)));
    let (nodes, ppn) = some(value)?.to_str().and_then(|text| text.split_once(['x', 'X'])).ok_or_else(not_a_size)?;
    let count = |text: &str| match is_whole_number(text.as_bytes()) {
        true => number(OsStr::new(text), 1, RANKS_MAX).map_err(|error| refused(error.to_string())),
        false => Err(not_a_size()),
    };
    Ok((count(nodes)?, count(ppn)?))
}

/// Parses `25us`, `1.5ms`, `2s`, `100ns`.
pub(super) fn latency(value: &OsStr) -> Parsed<Duration> {
    let units = [("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)];
    let nanoseconds = with_unit(some(value)?, &units).filter(|nanoseconds| *nanoseconds <= 3600e9);
    nanoseconds.map(|nanoseconds| Duration::from_nanos(nanoseconds as u64)).ok_or_else(|| {
        let hint = format!("write a number with ns, us, ms or s, as in '{OPTION} 25us'");
        Refusal::new(format!("'{}' is not a latency", shown(value)), hint)
    })
}

/// Parses bytes per second: `1.5G`, `100M`, `12500000000`.
pub(super) fn bandwidth(value: &OsStr) -> Parsed<u64> {
    let units = [("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12), ("", 1.0)];
    let bytes = with_unit(some(value)?, &units).filter(|bytes| (1.0..=1e15).contains(bytes));
    bytes.map(|bytes| bytes as u64).ok_or_else(|| {
        let hint = format!("write a number with k, M, G or T, as in '{OPTION} 12.5G'");
        Refusal::new(format!("'{}' is not a number of bytes per second", shown(value)), hint)
    })
}

/// Parses a number and one of these units, of which the first that fits counts.
fn with_unit(value: &OsStr, units: &[(&str, f64)]) -> Option<f64> {
    let text = value.to_str()?;
    let (digits, scale) = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, *scale)))?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f64 = digits.parse().ok().filter(|_| is_plain)?;
    Some(number * scale)
}

/// The names of patterns.
const PATTERNS: [(&str, Pattern); 4] =
    [("1:2", Pattern::Neighbours), ("1:p", Pattern::All), ("fence", Pattern::Fences), ("none", Pattern::Nothing)];

/// Parses the name of a pattern.
pub(super) fn pattern(value: &OsStr) -> Parsed<Pattern> {
    let name = some(value)?.to_string_lossy();
    let named = PATTERNS.iter().find(|(known, _)| *known == name);
    named.map(|(_, pattern)| *pattern).ok_or_else(|| {
        let near = suggest::nearest(&name, PATTERNS.iter().map(|(name, _)| *name));
        let hint = near.map_or_else(described, |near| format!("did you mean '{near}'?"));
        Refusal::new(format!("there is no pattern '{}', only 1:2, 1:p, fence and none", shown(value)), hint)
    })
}

/// Parses a decimal or hexadecimal number.
pub(super) fn seed(value: &OsStr) -> Parsed<u64> {
    let text = some(value)?.to_str().unwrap_or_default();
    let parsed = match text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u64::from_str_radix(digits, 16).ok(),
        _ if text.starts_with('+') => None,
        _ => text.parse().ok(),
    };
    parsed.ok_or_else(|| not_a_number(value))
}

/// Parses `2,4,8`: fan-outs to compare.
pub(super) fn fanouts(value: &OsStr) -> Parsed<Vec<u32>> {
    let parts = value.as_bytes().split(|byte| *byte == b',');
    let fanouts: Vec<u32> =
        parts.map(|part| number(OsStr::from_bytes(part), FANOUT_MIN, FANOUT_MAX)).collect::<Parsed<_>>()?;
    match fanouts.len() <= FANOUTS_MAX {
        true => Ok(fanouts),
        false => Err(Refusal::new(format!("the list has more than {FANOUTS_MAX} fan-outs"), described())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check<T: PartialEq + std::fmt::Debug>(parse: impl Fn(&OsStr) -> Parsed<T>, good: &[(&str, T)], bad: &[&str]) {
        for (text, expected) in good {
            assert_eq!(parse(OsStr::new(text)).ok().as_ref(), Some(expected), "{text}");
        }
        for text in bad {
            assert!(parse(OsStr::new(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes() {
        check(
            size,
            &[("16x64", (16, 64)), ("1X1", (1, 1))],
            &["", "16", "x", "0x4", "4x", "-1x2", "1x2x3", "16777217x1"],
        );
    }

    #[test]
    fn latencies() {
        let us = Duration::from_micros;
        let good = [("25us", us(25)), ("1.5ms", us(1500)), ("2s", us(2_000_000)), ("100ns", Duration::from_nanos(100))];
        check(latency, &good, &["", "25", "us", "-1us", "1e3us", "inf s", "2h", "4000s"]);
    }

    #[test]
    fn bandwidths() {
        let good = [("1.5G", 1_500_000_000), ("100M", 100_000_000), ("12500", 12_500), ("3k", 3000)];
        check(bandwidth, &good, &["", "0", "G", "1g", "-1G", "1e9", "nan", "2000T"]);
    }

    #[test]
    fn patterns_seeds_and_fanouts() {
        check(pattern, &[("1:2", Pattern::Neighbours), ("none", Pattern::Nothing)], &["", "1:3", "all"]);
        check(seed, &[("7", 7), ("0x1f", 31)], &["", "-1", "x", "0x", "0x+1", "+1"]);
        check(fanouts, &[("2", vec![2]), ("2,32", vec![2, 32])], &["", "1", "2,", "2000"]);
    }
}
