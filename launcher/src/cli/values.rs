//! Parsers for values of options, with their bounds.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::time::Duration;

use nla::core::limits::RANKS_MAX;
use nla::core::{CachePolicy, CleanShm, FailurePolicy};
use nla::sys;

use super::error::CALLED;
use super::limits::{
    DEAD_TIME_MAX, DEAD_TIME_MIN, ENV_NAMES_MAX, HEARTBEAT_MAX, HEARTBEAT_MIN, KILL_GRACE_MAX, LABEL_BYTES_MAX,
    MEMORY_ALLOC_KINDS_BYTES_MAX, PRIORITY_MAX, STOP_TIME_MAX, TIMEOUT_MAX,
};
use super::text::{shown, thousands};
use crate::plan::pattern::{self, PLACEHOLDERS};
use crate::plan::pool_name::{POOL_DEFAULT, check_pool_name};
use crate::plan::request::{EnvChange, Mpi, StatsTo, StdinTo, Universe};
use crate::refusal::Refusal;
use crate::suggest;

/// Stands in hints for the option, as typed. No text from outside contains it: messages escape control characters.
pub(super) const OPTION: &str = "\u{2}";

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
/// The highest signal number.
const SIGNAL_MAX: i32 = 64;

pub(super) type Parsed<T> = Result<T, Refusal>;

/// Returns the hint that refers to the help text.
pub(super) fn described() -> String {
    format!("'{CALLED} --help' describes the values of '{OPTION}'")
}

/// Fails if the value is empty.
pub(super) fn some(value: &OsStr) -> Parsed<&OsStr> {
    let hint = || format!("a variable on the command line may be unset; {}", described());
    if value.is_empty() { Err(Refusal::new("the value is empty", hint())) } else { Ok(value) }
}

/// Parses any value that is not empty.
pub(super) fn non_empty(value: &OsStr) -> Parsed<OsString> {
    some(value).map(OsStr::to_owned)
}

/// Parses a pattern for files: not empty, with known placeholders only.
pub(super) fn file_pattern(value: &OsStr) -> Parsed<OsString> {
    let pattern = non_empty(value)?;
    match pattern::unknown_placeholder(&pattern) {
        Some(placeholder) => Err(Refusal::new(
            format!("'{placeholder}' in '{}' is unknown; the placeholders are {PLACEHOLDERS}", shown(value)),
            format!("write '{OPTION} out.%r' for a file for each rank"),
        )),
        None => Ok(pattern),
    }
}

/// Parses a whole number within bounds.
pub(super) fn number(value: &OsStr, min: u32, max: u32) -> Parsed<u32> {
    let bytes = some(value)?.as_bytes();
    if !is_whole_number(bytes) {
        return Err(not_a_number(value));
    }
    decimal(bytes).filter(|number| (min..=max).contains(number)).ok_or_else(|| {
        let value = shown(value);
        let is_below = value.starts_with('-') || value.parse::<u64>().is_ok_and(|number| number < u64::from(min));
        let nearest = if is_below { min } else { max };
        Refusal::new(
            format!("{value} is out of range, it must be {} to {}", thousands(min), thousands(max)),
            format!("write '{OPTION} {nearest}', or leave '{OPTION}' out"),
        )
    })
}

/// Parses `text`, a whole number within bounds that is a part of `value`. Its hints do not suggest a whole value.
pub(super) fn number_within(value: &OsStr, text: &str, min: u32, max: u32) -> Parsed<u32> {
    number(OsStr::new(text), min, max).map_err(|error| {
        let hint = match is_whole_number(text.as_bytes()) {
            true => format!("write another number in '{}'", shown(value)),
            false => format!("'{}' needs a whole number there", shown(value)),
        };
        Refusal::new(error.to_string(), hint)
    })
}

/// Returns whether these are digits, with or without a minus sign.
pub(super) fn is_whole_number(bytes: &[u8]) -> bool {
    is_digits(bytes.strip_prefix(b"-").unwrap_or(bytes))
}

fn is_digits(bytes: &[u8]) -> bool {
    !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit)
}

pub(super) fn not_a_number(value: &OsStr) -> Refusal {
    let value = shown(value);
    let hint = match plain_digits(&value) {
        Some(digits) => format!("write all digits: '{OPTION} {digits}'"),
        None => format!("write a number, as in '{OPTION} 4'"),
    };
    Refusal::new(format!("'{value}' is not a whole number"), hint)
}

/// Returns the digits that a number such as `1e6`, `1,000` or `1_000` stands for.
fn plain_digits(value: &str) -> Option<String> {
    if let Some((digits, zeros)) = value.split_once(['e', 'E']) {
        let zeros = zeros.parse().ok().filter(|zeros| *zeros < 10)?;
        return is_digits(digits.as_bytes()).then(|| format!("{digits}{}", "0".repeat(zeros)));
    }
    let digits = value.replace([',', '_', '\''], "");
    (digits != value && is_digits(digits.as_bytes())).then_some(digits)
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

/// Parses `--exit-timeout`: more than zero.
pub(super) fn exit_timeout(value: &OsStr) -> Parsed<Duration> {
    some_time(value, TIMEOUT_MAX, "a session whose last ranks may run on")
}

/// Parses `--orphan-time`.
pub(super) fn orphan_time(value: &OsStr) -> Parsed<Duration> {
    some_time(value, TIMEOUT_MAX, "a job that ends with scela-run")
}

/// Parses `-usize`.
pub(super) fn universe(value: &OsStr) -> Parsed<Universe> {
    match some(value)?.as_bytes() {
        bytes if bytes.eq_ignore_ascii_case(b"infinite") => Ok(Universe::Infinite),
        bytes if bytes.eq_ignore_ascii_case(b"system") => Ok(Universe::System),
        bytes if is_digits(bytes) => number(value, 1, RANKS_MAX).map(Universe::Ranks),
        _ => {
            let text = format!("'{}' is not the size of a universe", shown(value));
            Err(Refusal::new(text, format!("write a number, SYSTEM or INFINITE, as in '{OPTION} 64'")))
        }
    }
}

/// Parses `-memory-alloc-kinds`: the kinds that MPI 4.1 defines, and their restrictions, as one word. PMI-1 has no blanks
/// in values.
pub(super) fn memory_alloc_kinds(value: &OsStr) -> Parsed<String> {
    let is_word = |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:,.-".contains(&byte));
    match some(value)?.to_str().filter(|text| text.len() <= MEMORY_ALLOC_KINDS_BYTES_MAX).filter(is_word) {
        Some(kinds) => Ok(kinds.to_owned()),
        None => {
            let text = format!("'{}' is not a list of kinds of memory", shown(value));
            Err(Refusal::new(text, format!("write them with commas, as in '{OPTION} mpi,system,cuda:device'")))
        }
    }
}

/// Parses `-initial-errhandler`. Open MPI 5 reads it from the environment, before it speaks PMIx.
pub(super) fn initial_errhandler(value: &OsStr) -> Parsed<EnvChange> {
    let names = ["mpi_errors_abort", "mpi_errors_are_fatal", "mpi_errors_return"].map(|name| (name, name));
    let unknown = |value: &str, names: &str| format!("there is no error handler '{value}', only {names}");
    let name = choice(value, &names, &[], unknown, described())?;
    Ok(EnvChange::Set("OMPI_MCA_mpi_initial_errhandler".into(), name.into()))
}

/// Parses `--stuck-after`: more than zero.
pub(super) fn stuck_after(value: &OsStr) -> Parsed<Duration> {
    some_time(value, TIMEOUT_MAX, "no such report")
}

/// Parses a time of more than zero. `without` says what holds without the option.
pub(super) fn some_time(value: &OsStr, max: Duration, without: &'static str) -> Parsed<Duration> {
    let time = time(value, max)?;
    if time.is_zero() {
        let hint = format!("leave '{OPTION}' out for {without}");
        return Err(Refusal::new("the time must be greater than 0", hint));
    }
    Ok(time)
}

/// Parses `--signal`, spelled as Slurm's option: `USR1@300`, `SIGUSR1@5m`, `10`. The time is 60 s if it is left out, as there.
pub(super) fn early_signal(value: &OsStr) -> Parsed<(i32, Duration)> {
    let text = value.to_string_lossy();
    let (name, early) = match text.split_once('@') {
        Some((name, early)) => (name, some_time(OsStr::new(early), TIMEOUT_MAX, "no signal before the end")?),
        None => (&*text, Duration::from_secs(60)),
    };
    let named = |name: &str| (1..=SIGNAL_MAX).find(|signal| sys::signal_name(*signal) == name);
    let upper = name.to_ascii_uppercase();
    let signal = upper.parse().ok().filter(|signal| (1..=SIGNAL_MAX).contains(signal));
    let signal = signal.or_else(|| named(upper.strip_prefix("SIG").unwrap_or(&upper)));
    match signal {
        Some(SIGKILL | SIGSTOP) => Err(Refusal::new(
            format!("no program can handle '{}'", shown(OsStr::new(name))),
            format!("write '{OPTION} USR1@300'"),
        )),
        Some(signal) => Ok((signal, early)),
        None => Err(Refusal::new(
            format!("'{}' is no signal", shown(OsStr::new(name))),
            format!("write '{OPTION} USR1@300' for USR1 300 s before the end of --timeout"),
        )),
    }
}

/// Parses `--kill-grace`, which may be zero.
pub(super) fn kill_grace(value: &OsStr) -> Parsed<Duration> {
    time(value, KILL_GRACE_MAX)
}

/// Parses `--dead-time`: the time for a machine that does not answer, and that for a silent process of one that does.
pub(super) fn dead_time(value: &OsStr) -> Parsed<(Duration, Option<Duration>)> {
    let bytes = value.as_bytes();
    let Some(comma) = bytes.iter().position(|byte| *byte == b',') else {
        return Ok((time_within(value, DEAD_TIME_MIN, DEAD_TIME_MAX)?, None));
    };
    let (first, second) = (OsStr::from_bytes(&bytes[..comma]), OsStr::from_bytes(&bytes[comma + 1..]));
    let dead_time = time_within(first, DEAD_TIME_MIN, DEAD_TIME_MAX)?;
    let stop_time = time(second, STOP_TIME_MAX)?;
    if stop_time < dead_time {
        let text = format!("the second time, '{}', is shorter than the first", shown(second));
        return Err(Refusal::new(text, format!("write '{OPTION} {},{0}', or a longer time", shown(first))));
    }
    Ok((dead_time, Some(stop_time)))
}

/// Parses `--heartbeat`.
pub(super) fn heartbeat(value: &OsStr) -> Parsed<Duration> {
    time_within(value, HEARTBEAT_MIN, HEARTBEAT_MAX)
}

fn time_within(value: &OsStr, min: Duration, max: Duration) -> Parsed<Duration> {
    let time = time(value, max)?;
    if time < min {
        let min = min.as_secs_f64();
        let text = format!("'{}' is too short, the least is {min} seconds", shown(value));
        return Err(Refusal::new(text, format!("write '{OPTION} {min}', or leave '{OPTION}' out")));
    }
    Ok(time)
}

/// Parses digits, with an optional fraction and an optional unit: `90`, `1.5h`, `.5`, `30m`, `10s`.
pub(super) fn time(value: &OsStr, max: Duration) -> Parsed<Duration> {
    const NANOS: u128 = 1_000_000_000;
    let not_a_time = || {
        let hint = format!("write seconds, or a number with s, m or h, as in '{OPTION} 1.5h'");
        Refusal::new(format!("'{}' is not a length of time", shown(value)), hint)
    };
    let too_long = || {
        let most = match max.as_secs() {
            3600 => "1 hour".to_owned(),
            seconds if seconds < 3600 => format!("{} minutes", seconds / 60),
            seconds => format!("{} hours", seconds / 3600),
        };
        let text = format!("'{}' is too long, the most is {most}", shown(value));
        Refusal::new(text, described())
    };
    let (digits, unit_seconds) = match some(value)?.as_bytes() {
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
        let text = format!("'{}' is a pattern, and only one variable's name is understood", shown(value));
        return Err(Refusal::new(text, format!("give '{OPTION}' once for each variable")));
    }
    Ok(EnvChange::Pass(env_name(value.to_owned())?))
}

/// Parses names between commas.
pub(super) fn env_names(value: &OsStr) -> Parsed<Vec<OsString>> {
    let names: Vec<_> = some(value)?
        .as_bytes()
        .split(|byte| *byte == b',')
        .take(ENV_NAMES_MAX + 1)
        .map(|name| OsStr::from_bytes(name).to_owned())
        .collect();
    if names.iter().any(|name| name.is_empty()) {
        let hint = format!("write names and commas only: '{OPTION} HOME,PATH'");
        Err(Refusal::new(format!("'{}' has an empty name in its list", shown(value)), hint))
    } else if names.len() > ENV_NAMES_MAX {
        let text = format!("the list has more than {} names", thousands(ENV_NAMES_MAX as u32));
        Err(Refusal::new(text, described()))
    } else {
        Ok(names)
    }
}

fn env_name(name: OsString) -> Parsed<OsString> {
    if name.is_empty() { Err(Refusal::new("the variable's name is empty", described())) } else { Ok(name) }
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
    match some(value)?.as_bytes() {
        b"none" => Ok(StdinTo::None),
        b"all" => Ok(StdinTo::All),
        bytes if bytes.iter().all(|b| b.is_ascii_digit() || matches!(b, b',' | b'-')) => ranks(value),
        _ => Ok(StdinTo::File(value.into())),
    }
}

fn ranks(value: &OsStr) -> Parsed<StdinTo> {
    let refused = |text| Refusal::new(text, format!("write ranks as in '{OPTION} 0,3-5'; put ./ before a file's name"));
    let rank = |digits: &[u8]| {
        if !is_digits(digits) {
            return Err(refused(format!("'{}' is not a list of ranks", shown(value))));
        }
        decimal(digits).filter(|rank| *rank < RANKS_MAX).ok_or_else(|| {
            let (rank, last) = (shown(OsStr::from_bytes(digits)), thousands(RANKS_MAX - 1));
            refused(format!("rank {rank} is out of range, ranks go from 0 to {last}"))
        })
    };
    let mut ranges = Vec::new();
    for part in value.as_bytes().split(|byte| *byte == b',') {
        let (first, last) = match part.iter().position(|byte| *byte == b'-') {
            None => rank(part).map(|rank| (rank, rank))?,
            Some(dash) => (rank(&part[..dash])?, rank(&part[dash + 1..])?),
        };
        if first > last {
            return Err(refused(format!("the ranks {first}-{last} go downwards")));
        }
        ranges.push((first, last));
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

/// Parses a cache policy's name.
pub(super) fn cache(value: &OsStr) -> Parsed<CachePolicy> {
    let choices = CachePolicy::ALL.map(|policy| (policy.name(), policy));
    let unknown = |value: &str, names: &str| format!("there is no policy '{value}', only {names}");
    choice(value, &choices, &[], unknown, format!("leave '{OPTION}' out"))
}

/// Parses which files in /dev/shm are removed.
pub(super) fn clean_shm(value: &OsStr) -> Parsed<CleanShm> {
    let choices = CleanShm::ALL.map(|which| (which.name(), which));
    let unknown = |value: &str, names: &str| format!("'{value}' selects no files, only {names} do");
    choice(value, &choices, &[], unknown, format!("leave '{OPTION}' out"))
}

/// Parses what happens when a rank fails.
pub(super) fn on_failure(value: &OsStr) -> Parsed<FailurePolicy> {
    let mut choices = FailurePolicy::ALL.map(|policy| (policy.name(), policy)).to_vec();
    choices.push(("restart=job", FailurePolicy::Restart));
    choices.sort_unstable_by_key(|(name, _)| *name);
    let unknown = |value: &str, names: &str| format!("there is no action '{value}', only {names}");
    choice(value, &choices, &[], unknown, format!("leave '{OPTION}' out"))
}

/// Parses the kind of fault tolerance. Returns whether there is some.
pub(super) fn fault_tolerance(value: &OsStr) -> Parsed<bool> {
    let choices = [("none", false), ("ulfm", true)];
    let unknown = |value: &str, names: &str| format!("there is no fault tolerance '{value}', only {names}");
    choice(value, &choices, &[("mpi", true), ("no", false), ("off", false)], unknown, format!("leave '{OPTION}' out"))
}

/// Parses an MPI library's name.
pub(super) fn mpi(value: &OsStr) -> Parsed<Mpi> {
    let choices = Mpi::ALL.map(|mpi| (mpi.name(), mpi));
    let kinds = "only auto, none, openmpi and pmix";
    let unknown = |value: &str, _: &str| format!("there is no kind '{value}' of MPI library here, {kinds}");
    let hint = format!("leave '{OPTION}' out: scela-run detects which PMI version a rank speaks");
    // srun's names, which are similar to one of ours.
    if let word @ ("pmi1" | "pmi2") = value.to_string_lossy().to_ascii_lowercase().as_str() {
        return Err(Refusal::new(unknown(word, ""), hint));
    }
    choice(value, &choices, &[], unknown, hint)
}

/// Parses one of the words of a table, in upper or lower case. `aliases` are words of other launchers, which messages
/// do not list. `unknown` makes the text for another value from it and the list of choices; `hint` is the hint if no
/// choice is similar.
pub(super) fn choice<T: Clone>(
    value: &OsStr,
    choices: &[(&'static str, T)],
    aliases: &[(&'static str, T)],
    unknown: impl Fn(&str, &str) -> String,
    hint: String,
) -> Parsed<T> {
    let word = some(value)?.to_string_lossy().to_ascii_lowercase();
    let found = choices.iter().chain(aliases).find(|(name, _)| *name == word);
    found.map(|(_, choice)| choice.clone()).ok_or_else(|| {
        let names: Vec<_> = choices.iter().map(|(name, _)| *name).collect();
        let near = suggest::nearest(&word, names.iter().copied());
        let hint = near.map_or(hint, |near| format!("did you mean '{near}'?"));
        Refusal::new(unknown(&shown(value), &names.join(", ")), hint)
    })
}

/// Parses `--pool`, whose value may be missing.
pub(super) fn pool(value: Option<&OsString>) -> Parsed<String> {
    let Some(value) = value else { return Ok(POOL_DEFAULT.to_owned()) };
    let name = value.to_string_lossy().into_owned();
    check_pool_name(&name)?;
    Ok(name)
}

/// Parses `--priority`.
pub(super) fn priority(value: &OsStr) -> Parsed<i32> {
    let number = value.to_str().and_then(|text| text.parse().ok());
    number.filter(|number| (-PRIORITY_MAX..=PRIORITY_MAX).contains(number)).ok_or_else(|| {
        let text = format!("'{}' is not a whole number from -{PRIORITY_MAX} to {PRIORITY_MAX}", shown(value));
        Refusal::new(text, "a job with a higher number starts earlier")
    })
}

/// Parses the optional file of `--stats`.
pub(super) fn stats(value: Option<&OsString>) -> Parsed<StatsTo> {
    value.map_or(Ok(StatsTo::Table), |value| Ok(StatsTo::File(non_empty(value)?.into())))
}

/// Parses the file of `--trace`.
pub(super) fn trace(value: &OsStr) -> Parsed<PathBuf> {
    own_file(value, "a trace", "--trace trace.json")
}

/// Parses the file of `--report`.
pub(super) fn report(value: &OsStr) -> Parsed<PathBuf> {
    own_file(value, "a report", "--report report.json")
}

/// Parses the name of a file that cannot be standard output. `contents` names what it will have; `example` is an option for the
/// hint.
pub(super) fn own_file(value: &OsStr, contents: &str, example: &str) -> Parsed<PathBuf> {
    if value == "-" {
        let text = format!("{contents} cannot go to standard output, which belongs to the ranks");
        return Err(Refusal::new(text, format!("write '{example}'")));
    }
    Ok(some(value)?.into())
}

/// Parses a session's label.
pub(super) fn label(value: &OsStr) -> Parsed<String> {
    let refused =
        |text| Refusal::new(text, "a label names the session; to begin each line with its rank use '-prepend-rank'");
    let bytes = some(value)?.len();
    if bytes > LABEL_BYTES_MAX {
        return Err(refused(format!("the label has {bytes} bytes, the most is {LABEL_BYTES_MAX}")));
    }
    value
        .to_str()
        .filter(|text| text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-')))
        .filter(|text| text.starts_with(|c: char| c.is_ascii_alphanumeric()))
        .map(str::to_owned)
        .ok_or_else(|| {
            let made_of = "letters, digits, '.', '_' and '-', beginning with a letter or digit";
            refused(format!("the label '{}' is not {made_of}", shown(value)))
        })
}

#[cfg(test)]
pub(super) mod tests;
