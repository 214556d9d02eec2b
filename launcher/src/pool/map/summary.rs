//! The texts of a map: its progress, and the summary of what has failed.

use std::collections::BTreeMap;
use std::time::Duration;

use nla::core::printable;
use nla::figures::counted;
use nla::sys::signal_name;
use pmi::{Rank, Ranks};

use super::list::List;
use super::plan::Counts;
use crate::exit;
use crate::pool::status::age;
use crate::refusal::shown;

/// The most exit codes that the summary names.
const CODES_MAX: usize = 8;
/// The most bytes of numbers of commands for one exit code.
const NUMBERS_BYTES_MAX: usize = 60;
/// The most characters of a command.
const COMMAND_CHARS_MAX: usize = 60;
/// The least code that a shell gives a program which a signal has killed, and the greatest such signal.
const SIGNALLED: u8 = 128;
const SIGNAL_MAX: u8 = 64;

/// Describes how far the commands are, `elapsed` after the begin.
pub(super) fn progress(counts: &Counts, elapsed: Duration) -> String {
    let Counts { all, succeeded, failed, running, waiting } = counts;
    let done = succeeded + failed;
    let mut text = format!("scela: {done} of {all} done, {failed} failed, {running} running");
    let left = (running + waiting) as u64;
    if done > 0 && left > 0 {
        let rest_ms = (elapsed.as_millis() as u64).saturating_mul(left) / done as u64;
        text.push_str(&format!(", about {} left", age(rest_ms)));
    }
    text
}

/// Describes the commands that have failed or were not started, and the `unprinted` ones, which have succeeded without their outputs
/// being printed; `None` if there are none. `failed` has the indexes of those that have failed by their exit codes.
pub(super) fn summary(
    counts: &Counts,
    unprinted: usize,
    failed: &BTreeMap<u8, Vec<usize>>,
    list: &List,
) -> Option<String> {
    let Counts { all, failed: count_failed, running, waiting, .. } = *counts;
    let were = |number| if number == 1 { "was" } else { "were" };
    let its = if unprinted == 1 { "its output was" } else { "their outputs were" };
    let parts = [
        (count_failed, "failed".to_owned()),
        (running, format!("{} given up", were(running))),
        (waiting, format!("{} not started", were(waiting))),
        (unprinted, format!("succeeded, but {its} not printed")),
    ];
    let mut text = String::new();
    for (number, what) in parts.into_iter().filter(|(number, _)| *number > 0) {
        text.push_str(&match text.is_empty() {
            true => format!("{number} of {} {what}", counted(all as u64, "command")),
            false => format!(", {number} {what}"),
        });
    }
    if text.is_empty() {
        return None;
    }
    let mut codes: Vec<_> = failed.iter().collect();
    codes.sort_by_key(|(_, commands)| std::cmp::Reverse(commands.len()));
    for (code, commands) in codes.iter().take(CODES_MAX) {
        text.push_str(&format!("\n  {}: {}", code_text(**code), commands_text(commands, list)));
    }
    if codes.len() > CODES_MAX {
        let others: usize = codes[CODES_MAX..].iter().map(|(_, commands)| commands.len()).sum();
        text.push_str(&format!("\n  other codes: {}", counted(others as u64, "command")));
    }
    Some(text)
}

fn code_text(code: u8) -> String {
    match code {
        exit::NOT_LAUNCHED => format!("code {code} (could not be started)"),
        exit::LOST => format!("code {code} (lost with a launcher or an agent)"),
        code @ 129.. if code - SIGNALLED <= SIGNAL_MAX => {
            format!("code {code} (signal {})", signal_name((code - SIGNALLED).into()))
        }
        code => format!("code {code}"),
    }
}

/// Names commands by numbers, and the first of them in words.
fn commands_text(commands: &[usize], list: &List) -> String {
    let mut commands = commands.to_vec();
    commands.sort_unstable();
    // A list has far fewer commands than there can be ranks.
    let ranks: Ranks = commands.iter().map(|index| Rank(*index as u32 + 1)).collect();
    let mut numbers = ranks.to_string();
    if numbers.len() > NUMBERS_BYTES_MAX {
        let end = numbers[..NUMBERS_BYTES_MAX].rfind(',').unwrap_or(NUMBERS_BYTES_MAX);
        numbers.truncate(end);
        numbers.push_str(",...");
    }
    let first = commands.first().and_then(|index| list.command(*index)).unwrap_or_default();
    let first = shown(&String::from_utf8_lossy(first), COMMAND_CHARS_MAX);
    let first = printable(first.trim());
    match commands.len() {
        1 => format!("command {numbers} ({first})"),
        all => format!("{}: {numbers} (the first is {first})", counted(all as u64, "command")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(succeeded: usize, failed: usize, running: usize, waiting: usize) -> Counts {
        Counts { all: succeeded + failed + running + waiting, succeeded, failed, running, waiting }
    }

    fn list(commands: usize) -> List {
        let text: String = (1..=commands).map(|number| format!("  ./a.out {number} \x1b\n")).collect();
        List::parse(text.into_bytes()).unwrap()
    }

    #[test]
    fn progress_estimates_the_rest() {
        let line = |counts: &Counts, s| progress(counts, Duration::from_secs(s));
        assert_eq!(line(&counts(0, 0, 8, 92), 3), "scela: 0 of 100 done, 0 failed, 8 running");
        let text = "scela: 25 of 100 done, 1 failed, 8 running, about 3 min left";
        assert_eq!(line(&counts(24, 1, 8, 67), 60), text);
        assert_eq!(line(&counts(99, 1, 0, 0), 60), "scela: 100 of 100 done, 1 failed, 0 running");
    }

    #[test]
    fn the_summary_folds_commands_by_codes() {
        let list = list(20);
        assert_eq!(summary(&counts(20, 0, 0, 0), 0, &BTreeMap::new(), &list), None);
        let failed = BTreeMap::from([(1, vec![1]), (137, vec![6, 4, 5, 9]), (252, vec![11, 12])]);
        let text = "7 of 20 commands failed, 3 were not started\n  \
                    code 137 (signal KILL): 4 commands: 5-7,10 (the first is ./a.out 5 ?)\n  \
                    code 252 (lost with a launcher or an agent): 2 commands: 12-13 (the first is ./a.out 12 ?)\n  \
                    code 1: command 2 (./a.out 2 ?)";
        assert_eq!(summary(&counts(10, 7, 0, 3), 0, &failed, &list).as_deref(), Some(text));
        let left = summary(&counts(0, 0, 1, 19), 0, &BTreeMap::new(), &list);
        assert_eq!(left.as_deref(), Some("1 of 20 commands was given up, 19 were not started"));
        let unprinted = summary(&counts(3, 0, 0, 0), 3, &BTreeMap::new(), &list);
        assert_eq!(unprinted.as_deref(), Some("3 of 3 commands succeeded, but their outputs were not printed"));
        let one = summary(&counts(4, 0, 0, 15), 1, &BTreeMap::new(), &list);
        let text = "15 of 19 commands were not started, 1 succeeded, but its output was not printed";
        assert_eq!(one.as_deref(), Some(text));
    }

    #[test]
    fn the_summary_is_bounded() {
        let all = 100_000;
        let list = list(all);
        let failed: BTreeMap<u8, Vec<usize>> = (0..200)
            .map(|code| (code + 1, (0..all).filter(|index| index % 200 == usize::from(code)).collect()))
            .collect();
        let text = summary(&counts(0, all, 0, 0), 0, &failed, &list).unwrap();
        assert!(text.len() < 2000 && text.lines().count() == 2 + CODES_MAX, "{text}");
        assert!(text.contains("\n  code 1: 500 commands: 1,201,401,601,801,"), "{text}");
        assert!(text.ends_with("\n  other codes: 96000 commands"), "{text}");
    }
}
