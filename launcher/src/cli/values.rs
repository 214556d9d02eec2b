//! Parsers for values of options, with their bounds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

use nla::core::CachePolicy;
use nla::core::limits::RANKS_MAX;

use super::limits::{ENV_NAMES_MAX, KILL_GRACE_MAX, LABEL_BYTES_MAX, TIMEOUT_MAX};
use super::text::shown;
use super::value_problem::ValueProblem;
use crate::plan::pattern;
use crate::plan::request::{EnvChange, Mpi, StatsTo, StdinTo};
use crate::suggest;

pub(super) type Parsed<T> = Result<T, ValueProblem>;

/// Parses any value that is not empty.
pub(super) fn non_empty(value: &OsStr) -> Parsed<OsString> {
    if value.is_empty() { Err(ValueProblem::Empty) } else { Ok(value.to_owned()) }
}

/// Parses a pattern for files: not empty, with known placeholders only.
pub(super) fn file_pattern(value: &OsStr) -> Parsed<OsString> {
    let pattern = non_empty(value)?;
    match pattern::unknown_placeholder(&pattern) {
        Some(placeholder) => Err(ValueProblem::UnknownPlaceholder { value: shown(value), placeholder }),
        None => Ok(pattern),
    }
}

/// Parses a whole number within bounds.
pub(super) fn number(value: &OsStr, min: u32, max: u32) -> Parsed<u32> {
    let bytes = value.as_bytes();
    let digits = bytes.strip_prefix(b"-").unwrap_or(bytes);
    if bytes.is_empty() {
        return Err(ValueProblem::Empty);
    }
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ValueProblem::NotANumber { value: shown(value) });
    }
    decimal(bytes).filter(|number| (min..=max).contains(number)).ok_or_else(|| ValueProblem::OutOfRange {
        value: shown(value),
        min,
        max,
    })
}

/// Parses decimal digits that fit into 32 bits.
pub(super) fn decimal(bytes: &[u8]) -> Option<u32> {
    bytes.iter().try_fold(0u32, |number, byte| {
        let digit = byte.checked_sub(b'0').filter(|digit| *digit < 10)?;
        number.checked_mul(10)?.checked_add(u32::from(digit))
    })
}

/// Parses `--timeout`: more than zero.
pub(super) fn timeout(value: &OsStr) -> Parsed<Duration> {
    some_time(value, TIMEOUT_MAX, "a session without a time limit")
}

/// Parses a time of more than zero. `without` says what holds without the option.
pub(super) fn some_time(value: &OsStr, max: Duration, without: &'static str) -> Parsed<Duration> {
    let time = time(value, max)?;
    if time.is_zero() { Err(ValueProblem::NoTime { value: shown(value), without }) } else { Ok(time) }
}

/// Parses `--kill-grace`, which may be zero.
pub(super) fn kill_grace(value: &OsStr) -> Parsed<Duration> {
    time(value, KILL_GRACE_MAX)
}

/// Parses digits, with an optional fraction and an optional unit: `90`, `1.5h`, `.5`, `30m`, `10s`.
fn time(value: &OsStr, max: Duration) -> Parsed<Duration> {
    const NANOS: u128 = 1_000_000_000;
    let not_a_time = || ValueProblem::NotATime { value: shown(value) };
    let too_long = || ValueProblem::TimeTooLong { value: shown(value), max };
    let (digits, unit_seconds) = match value.as_bytes() {
        [] => return Err(ValueProblem::Empty),
        [digits @ .., b's'] => (digits, 1),
        [digits @ .., b'm'] => (digits, 60),
        [digits @ .., b'h'] => (digits, 3600),
        digits => (digits, 1),
    };
    let point = digits.iter().position(|byte| *byte == b'.').unwrap_or(digits.len());
    let (whole, fraction) = digits.split_at(point);
    let fraction = fraction.get(1..).unwrap_or_default();
    let all_digits = whole.iter().chain(fraction).all(u8::is_ascii_digit);
    if !all_digits || whole.len() + fraction.len() == 0 {
        return Err(not_a_time());
    }
    let whole = match whole {
        [] => 0,
        digits => u128::from(decimal(digits).ok_or_else(too_long)?),
    };
    // Digits below a billionth of a unit are ignored.
    let fraction =
        (0..9).fold(0u128, |nanos, i| nanos * 10 + fraction.get(i).map_or(0, |digit| u128::from(digit - b'0')));
    let nanos = (whole * NANOS + fraction) * unit_seconds;
    if nanos > max.as_nanos() {
        return Err(too_long());
    }
    Ok(Duration::from_nanos(u64::try_from(nanos).map_err(|_| too_long())?))
}

/// Parses a variable to set, from `NAME=VALUE` or from a name and a value.
pub(super) fn env_set(name: &OsStr, value: Option<&OsString>) -> Parsed<EnvChange> {
    let (name, value) = match (split_at_equals(name), value) {
        (Some(name_and_value), None) => name_and_value,
        (_, value) => (name.to_owned(), value.cloned().unwrap_or_default()),
    };
    Ok(EnvChange::Set(env_name(name)?, value))
}

/// Parses `-x NAME=VALUE` or `-x NAME`.
pub(super) fn env_set_or_pass(value: &OsStr) -> Parsed<EnvChange> {
    if let Some((name, value)) = split_at_equals(value) {
        return Ok(EnvChange::Set(env_name(name)?, value));
    }
    if value.as_bytes().contains(&b'*') {
        return Err(ValueProblem::EnvPattern { value: shown(value) });
    }
    Ok(EnvChange::Pass(env_name(value.to_owned())?))
}

/// Parses names between commas.
pub(super) fn env_names(value: &OsStr) -> Parsed<Vec<OsString>> {
    if value.is_empty() {
        return Err(ValueProblem::Empty);
    }
    let names: Vec<_> = value
        .as_bytes()
        .split(|byte| *byte == b',')
        .take(ENV_NAMES_MAX + 1)
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect();
    if names.iter().any(|name| name.is_empty()) {
        Err(ValueProblem::EnvListGap { value: shown(value) })
    } else if names.len() > ENV_NAMES_MAX {
        Err(ValueProblem::EnvListTooLong)
    } else {
        Ok(names)
    }
}

fn env_name(name: OsString) -> Parsed<OsString> {
    if name.is_empty() { Err(ValueProblem::EnvNameEmpty) } else { Ok(name) }
}

/// Returns the parts of a word before and after its first `=`.
pub(super) fn split_at_equals(word: &OsStr) -> Option<(OsString, OsString)> {
    let bytes = word.as_bytes();
    let equals = bytes.iter().position(|byte| *byte == b'=')?;
    let part = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    Some((part(&bytes[..equals]), part(&bytes[equals + 1..])))
}

/// Parses `-stdin`. A value of digits, commas and dashes is a list of ranks; any other value but `none` and `all`
/// is a file.
pub(super) fn stdin(value: &OsStr) -> Parsed<StdinTo> {
    let bytes = value.as_bytes();
    match bytes {
        b"" => Err(ValueProblem::Empty),
        b"none" => Ok(StdinTo::None),
        b"all" => Ok(StdinTo::All),
        _ if bytes.iter().all(|b| b.is_ascii_digit() || matches!(b, b',' | b'-')) => ranks(value),
        _ => Ok(StdinTo::File(value.into())),
    }
}

fn ranks(value: &OsStr) -> Parsed<StdinTo> {
    let rank = |digits: &[u8]| {
        if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return Err(ValueProblem::NotRanks { value: shown(value) });
        }
        let rank = decimal(digits).filter(|rank| *rank < RANKS_MAX);
        rank.ok_or_else(|| ValueProblem::RankTooLarge { rank: shown(OsStr::from_bytes(digits)) })
    };
    let mut ranges = Vec::new();
    for part in value.as_bytes().split(|byte| *byte == b',') {
        let range = match part.iter().position(|byte| *byte == b'-') {
            None => rank(part).map(|rank| (rank, rank))?,
            Some(dash) => (rank(&part[..dash])?, rank(&part[dash + 1..])?),
        };
        let (first, last) = range;
        if first > last {
            return Err(ValueProblem::RanksReversed { first, last });
        }
        ranges.push(range);
    }
    Ok(StdinTo::Ranks(merge(ranges)))
}

/// Returns the same ranks in ascending ranges that neither overlap nor are adjacent.
fn merge(mut ranges: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(before) if first <= before.1 + 1 => before.1 = before.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

/// Parses a policy's name, in upper or lower case.
pub(super) fn cache(value: &OsStr) -> Parsed<CachePolicy> {
    let name = value.to_string_lossy().to_ascii_lowercase();
    if name.is_empty() {
        return Err(ValueProblem::Empty);
    }
    name.parse().map_err(|_| ValueProblem::CacheUnknown {
        value: shown(value),
        near: suggest::nearest(&name, CachePolicy::ALL.into_iter().map(CachePolicy::name))
            .and_then(|name| name.parse().ok()),
    })
}

/// Parses an MPI library's name, in upper or lower case.
pub(super) fn mpi(value: &OsStr) -> Parsed<Mpi> {
    let name = value.to_string_lossy().to_ascii_lowercase();
    if name.is_empty() {
        return Err(ValueProblem::Empty);
    }
    let named = |name: &str| Mpi::ALL.into_iter().find(|mpi| mpi.name() == name);
    named(&name).ok_or_else(|| ValueProblem::MpiUnknown {
        value: shown(value),
        near: suggest::nearest(&name, Mpi::ALL.into_iter().map(Mpi::name)).and_then(named),
    })
}

/// Parses one of the words of a table, in upper or lower case. `what` names the kind of choice; `aliases` are words
/// of other launchers, which messages do not list.
pub(super) fn choice<T: Clone>(
    value: &OsStr,
    what: &'static str,
    choices: &[(&'static str, T)],
    aliases: &[(&'static str, T)],
) -> Parsed<T> {
    let word = value.to_string_lossy().to_ascii_lowercase();
    if word.is_empty() {
        return Err(ValueProblem::Empty);
    }
    let found = choices.iter().chain(aliases).find(|(name, _)| *name == word);
    found.map(|(_, choice)| choice.clone()).ok_or_else(|| {
        let choices: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let near = suggest::nearest(&word, choices.iter().copied());
        ValueProblem::ChoiceUnknown { what, value: shown(value), choices, near }
    })
}

/// Parses the optional file of `--stats`.
pub(super) fn stats(value: Option<&OsString>) -> Parsed<StatsTo> {
    value.map_or(Ok(StatsTo::Table), |value| Ok(StatsTo::File(non_empty(value)?.into())))
}

/// Parses a session's label.
pub(super) fn label(value: &OsStr) -> Parsed<String> {
    let bytes = value.len();
    if bytes == 0 {
        return Err(ValueProblem::Empty);
    }
    if bytes > LABEL_BYTES_MAX {
        return Err(ValueProblem::LabelTooLong { bytes });
    }
    value
        .to_str()
        .filter(|text| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')))
        .filter(|text| text.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .map(str::to_owned)
        .ok_or_else(|| ValueProblem::LabelCharacter { value: shown(value) })
}

#[cfg(test)]
pub(super) mod tests {
    use nla::core::limits::CACHE_ENTRIES_DEFAULT;

    use super::*;

    /// Checks what a parser returns for good words, and its messages about bad ones.
    #[track_caller]
    pub(in crate::cli) fn check<T: std::fmt::Debug + PartialEq>(
        parse: impl Fn(&OsStr) -> Parsed<T>,
        good: &[(&str, T)],
        bad: &[(&str, &str)],
    ) {
        for (typed, value) in good {
            assert_eq!(parse(OsStr::new(typed)).as_ref(), Ok(value), "{typed}");
        }
        for (typed, message) in bad {
            let problem = parse(OsStr::new(typed)).expect_err(typed);
            assert_eq!(problem.to_string(), *message, "{typed}");
        }
    }

    #[test]
    fn numbers() {
        check(
            |value| number(value, 1, RANKS_MAX),
            &[("1", 1), ("007", 7), ("16777216", RANKS_MAX)],
            &[
                ("", "the value is empty"),
                ("0", "0 is out of range, it must be 1 to 16,777,216"),
                ("-4", "-4 is out of range, it must be 1 to 16,777,216"),
                ("16777217", "16777217 is out of range, it must be 1 to 16,777,216"),
                ("99999999999999999999", "99999999999999999999 is out of range, it must be 1 to 16,777,216"),
                ("four", "'four' is not a whole number"),
                ("+4", "'+4' is not a whole number"),
                ("4.0", "'4.0' is not a whole number"),
                ("4 ", "'4 ' is not a whole number"),
                ("-", "'-' is not a whole number"),
                ("٤", "'٤' is not a whole number"),
            ],
        );
    }

    #[test]
    fn times() {
        let ms = Duration::from_millis;
        check(
            timeout,
            &[
                ("1", ms(1000)),
                ("90s", ms(90_000)),
                ("1.5", ms(1500)),
                (".25", ms(250)),
                ("2.", ms(2000)),
                ("30m", ms(1_800_000)),
                ("1.5h", ms(5_400_000)),
                ("0.0166667m", Duration::from_nanos(1_000_002_000)),
                ("0.0000000019", Duration::from_nanos(1)),
                ("8760h", TIMEOUT_MAX),
            ],
            &[
                ("", "the value is empty"),
                ("0", "'0' is no time"),
                ("0.0h", "'0.0h' is no time"),
                ("s", "'s' is not a length of time"),
                (".", "'.' is not a length of time"),
                ("5x", "'5x' is not a length of time"),
                ("-5", "'-5' is not a length of time"),
                ("1e3", "'1e3' is not a length of time"),
                ("inf", "'inf' is not a length of time"),
                ("1.2.3", "'1.2.3' is not a length of time"),
                ("1h30m", "'1h30m' is not a length of time"),
                ("8760.1h", "'8760.1h' is too long, the most is 8760 hours"),
                ("99999999999", "'99999999999' is too long, the most is 8760 hours"),
            ],
        );
        check(
            kill_grace,
            &[("0", Duration::ZERO), ("0.5", ms(500)), ("24h", KILL_GRACE_MAX)],
            &[("25h", "'25h' is too long, the most is 24 hours")],
        );
    }

    #[test]
    fn the_ranks_that_read_stdin() {
        let file = |name: &str| StdinTo::File(name.into());
        check(
            stdin,
            &[
                ("none", StdinTo::None),
                ("all", StdinTo::All),
                ("0", StdinTo::Ranks(vec![(0, 0)])),
                ("0,3-5", StdinTo::Ranks(vec![(0, 0), (3, 5)])),
                ("5,3-4,9,4,0-1", StdinTo::Ranks(vec![(0, 1), (3, 5), (9, 9)])),
                ("0-9,2-3", StdinTo::Ranks(vec![(0, 9)])),
                ("16777215", StdinTo::Ranks(vec![(16_777_215, 16_777_215)])),
                ("./0", file("./0")),
                ("./none", file("./none")),
                ("0.txt", file("0.txt")),
                ("All", file("All")),
                ("1 2", file("1 2")),
            ],
            &[
                ("", "the value is empty"),
                ("0,", "'0,' is not a list of ranks"),
                ("-3", "'-3' is not a list of ranks"),
                ("-", "'-' is not a list of ranks"),
                ("1-2-3", "'1-2-3' is not a list of ranks"),
                ("5-3", "the ranks 5-3 go downwards"),
                ("16777216", "rank 16777216 is out of range, ranks go from 0 to 16,777,215"),
                ("9999999999", "rank 9999999999 is out of range, ranks go from 0 to 16,777,215"),
            ],
        );
    }

    #[test]
    fn lists_of_names() {
        let names = |names: &[&str]| names.iter().map(OsString::from).collect::<Vec<_>>();
        check(
            env_names,
            &[("A", names(&["A"])), ("A,B_2,c d", names(&["A", "B_2", "c d"]))],
            &[
                ("", "the value is empty"),
                ("A,", "'A,' has an empty name in its list"),
                (",", "',' has an empty name in its list"),
            ],
        );
        let many = |count| OsString::from(vec!["A"; count].join(","));
        assert!(env_names(&many(ENV_NAMES_MAX)).is_ok());
        let problem = env_names(&many(ENV_NAMES_MAX + 1)).expect_err("too many");
        assert_eq!(problem.to_string(), "the list has more than 4,096 names");
    }

    #[test]
    fn policies() {
        check(
            cache,
            &[
                ("hcs", CachePolicy::Hcs),
                ("HCMA", CachePolicy::Hcma),
                ("hcmab", CachePolicy::Hcmab),
                ("hcmab-lru", CachePolicy::HcmabLru { entries: CACHE_ENTRIES_DEFAULT }),
            ],
            &[
                ("", "the value is empty"),
                ("hcmba", "there is no policy 'hcmba', only hcs, hcma, hcmab, hcmab-lru"),
                ("lru", "there is no policy 'lru', only hcs, hcma, hcmab, hcmab-lru"),
            ],
        );
    }

    #[test]
    fn mpi_libraries() {
        check(
            mpi,
            &[("auto", Mpi::Auto), ("none", Mpi::None), ("openmpi", Mpi::OpenMpi), ("OpenMPI", Mpi::OpenMpi)],
            &[
                ("", "the value is empty"),
                ("open-mpi", "there is no kind 'open-mpi' of MPI library here, only auto, none and openmpi"),
                ("pmi2", "there is no kind 'pmi2' of MPI library here, only auto, none and openmpi"),
            ],
        );
    }

    #[test]
    fn labels() {
        const CHARACTERS: &str = "is not letters, digits, '.', '_' and '-', beginning with a letter or digit";
        let longest = "x".repeat(LABEL_BYTES_MAX);
        check(
            label,
            &[("a", "a".to_owned()), ("Run_3.b-x", "Run_3.b-x".to_owned()), (&longest, longest.clone())],
            &[
                ("", "the value is empty"),
                ("a b", &format!("the label 'a b' {CHARACTERS}")),
                ("./a", &format!("the label './a' {CHARACTERS}")),
                ("-np", &format!("the label '-np' {CHARACTERS}")),
                ("é", &format!("the label 'é' {CHARACTERS}")),
                (&"x".repeat(65), "the label has 65 bytes, the most is 64"),
            ],
        );
    }
}
