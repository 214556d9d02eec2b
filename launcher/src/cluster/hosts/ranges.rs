//! Ranges of numbers: `001-032,040,1-9/2`.

use std::ops::Range;

use super::HOSTS_MAX;
use super::cursor::{Cursor, Fault, is_blank};
use super::problem::{blank, number_missing, shown, too_many_hosts};
use crate::refusal::Refusal;

/// Numbers from `first` to `last`, `step` apart, with at least `width` digits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NumberRange {
    pub(super) first: u64,
    /// The last number that the steps reach. Not less than the first.
    pub(super) last: u64,
    /// Not zero.
    step: u64,
    pub(super) width: usize,
}

impl NumberRange {
    /// Returns the count of its numbers, at least one.
    pub(super) fn count(&self) -> u64 {
        ((self.last - self.first) / self.step).saturating_add(1)
    }

    /// Returns the digits of its longest number.
    pub(super) fn digits_max(&self) -> usize {
        let digits = self.last.checked_ilog10().unwrap_or(0) as usize + 1;
        digits.max(self.width)
    }

    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        (0..self.count()).map(|i| self.first + i * self.step)
    }
}

/// A range and its position.
pub(super) type Placed = (Range<usize>, NumberRange);

/// Parses the ranges up to the end of `part`, at least one.
pub(super) fn ranges(part: &mut Cursor<'_>) -> Result<Vec<Placed>, Fault> {
    let mut ranges = Vec::new();
    loop {
        let begin = part.at();
        let range = range(part)?;
        if ranges.len() == HOSTS_MAX {
            return Err(part.fault_since(begin, too_many_hosts()));
        }
        ranges.push((part.since(begin), range));
        match part.peek() {
            None => return Ok(ranges),
            Some(',') => part.eat(','),
            Some('/' | ':') => {
                let text = "there is a step, and no range in front of it";
                return Err(part.fault_here(Refusal::new(text, "write a range with a step as in 1-9/2")));
            }
            Some(_) => return Err(no_number(part)),
        };
    }
}

/// Parses one range.
fn range(part: &mut Cursor<'_>) -> Result<NumberRange, Fault> {
    let begin = part.at();
    let (typed_first, first) = number(part)?;
    let width = typed_first.len();
    if !(part.eat('-') || part.eat_text("..")) {
        return Ok(NumberRange { first, last: first, step: 1, width });
    }
    let (typed_last, last) = number(part)?;
    if last < first {
        let (first, last) = (shown(typed_first), shown(typed_last));
        let text = format!("the range {first}-{last} goes downwards");
        return Err(part.fault_since(begin, Refusal::new(text, format!("write {last}-{first}"))));
    }
    if typed_last.starts_with('0') && typed_last.len() != width {
        let text = format!("'{}' and '{}' differ in their zeros", shown(typed_first), shown(typed_last));
        let hint = "write both with the same number of digits, as in 001-032";
        return Err(part.fault_since(begin, Refusal::new(text, hint)));
    }
    let mut step = 1;
    if part.eat('/') || part.eat(':') {
        let begin = part.at();
        step = number(part)?.1;
        if step == 0 {
            let hint = "leave the step out, or write how far to go each time, as in 1-9/2";
            return Err(part.fault_since(begin, Refusal::new("the step is 0", hint)));
        }
    }
    Ok(NumberRange { first, last: last - (last - first) % step, step, width })
}

/// Parses digits; returns them with their value.
fn number<'a>(part: &mut Cursor<'a>) -> Result<(&'a str, u64), Fault> {
    let begin = part.at();
    let digits = part.take_while(|c| c.is_ascii_digit());
    if digits.is_empty() {
        return Err(no_number(part));
    }
    let number = digits.parse().map_err(|_| {
        let text = format!("the number {} is too large", shown(digits));
        part.fault_since(begin, Refusal::new(text, "write it outside the brackets if it is a part of the name"))
    })?;
    Ok((digits, number))
}

/// Returns the fault of a text that is not a number.
fn no_number(part: &Cursor<'_>) -> Fault {
    let mut word = *part;
    let begin = word.at();
    match word.peek() {
        Some(c) if is_blank(c) => word.fault_here(blank()),
        Some(_) if word.rest().starts_with("..") => word.fault_here(number_missing()),
        None | Some(',' | '-' | '/' | ':') => word.fault_here(number_missing()),
        Some(_) => {
            let text = word.take_while(|c| !is_blank(c) && !matches!(c, ',' | '-' | '/' | ':'));
            let hint = "write ranges as in node[1-4,10]; an address in brackets has colons, as in [fe80::1]";
            word.fault_since(begin, Refusal::new(format!("'{}' is not a number", shown(text)), hint))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Expands all ranges, with their padding.
    fn read(text: &str) -> Result<Vec<String>, (Range<usize>, String)> {
        let ranges = ranges(&mut Cursor::new(text)).map_err(|fault| (fault.at, fault.problem.to_string()))?;
        let texts = |range: &NumberRange| {
            let width = range.width;
            range.numbers().map(|number| format!("{number:0width$}")).collect::<Vec<_>>()
        };
        Ok(ranges.iter().flat_map(|(_, range)| texts(range)).collect())
    }

    #[test]
    fn numbers_of_ranges() {
        for (text, numbers) in [
            ("7", "7"),
            ("007", "007"),
            ("0", "0"),
            ("1-3", "1 2 3"),
            ("1..3", "1 2 3"),
            ("3-3", "3"),
            ("8-11", "8 9 10 11"),
            ("08-11", "08 09 10 11"),
            ("098-101", "098 099 100 101"),
            ("98-101", "98 99 100 101"),
            ("001-3", "001 002 003"),
            ("00-01", "00 01"),
            ("0-10/5", "0 5 10"),
            ("1-9/4", "1 5 9"),
            ("1-9:4", "1 5 9"),
            ("1..9:4", "1 5 9"),
            ("1-8/4", "1 5"),
            ("1-3/100", "1"),
            ("1-2,9,4-5", "1 2 9 4 5"),
            ("3,1,3", "3 1 3"),
            ("001,01,1", "001 01 1"),
            ("18446744073709551614-18446744073709551615", "18446744073709551614 18446744073709551615"),
        ] {
            assert_eq!(read(text).map(|numbers| numbers.join(" ")), Ok(numbers.to_owned()), "{text}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        for (text, at, message) in [
            ("", 0..0, "a number is missing here"),
            (",1", 0..1, "a number is missing here"),
            ("1,", 2..2, "a number is missing here"),
            ("1,,2", 2..3, "a number is missing here"),
            ("1-", 2..2, "a number is missing here"),
            ("-2", 0..1, "a number is missing here"),
            ("1-2/", 4..4, "a number is missing here"),
            ("1--2", 2..3, "a number is missing here"),
            ("1-2-3", 3..4, "a number is missing here"),
            ("1...3", 3..5, "'.3' is not a number"),
            ("1....3", 3..4, "a number is missing here"),
            ("1-2,9-3", 4..7, "the range 9-3 goes downwards"),
            ("03..01", 0..6, "the range 03-01 goes downwards"),
            ("1-x3,4", 2..4, "'x3' is not a number"),
            ("1x-3", 1..2, "'x' is not a number"),
            ("ü", 0..2, "'ü' is not a number"),
            ("1-9/0", 4..5, "the step is 0"),
            ("5/2", 1..2, "there is a step, and no range in front of it"),
            ("1-3, 5", 4..5, "there is a blank inside the list"),
            ("1 ", 1..2, "there is a blank inside the list"),
            ("1[2", 1..3, "'[2' is not a number"),
            ("8-010", 0..5, "'8' and '010' differ in their zeros"),
            ("09-0010", 0..7, "'09' and '0010' differ in their zeros"),
            ("1,18446744073709551616", 2..22, "the number 18446744073709551616 is too large"),
        ] {
            assert_eq!(read(text), Err((at, message.to_owned())), "{text}");
        }
    }

    #[test]
    fn large_ranges_are_counted_without_expansion() {
        let count = |text: &str| ranges(&mut Cursor::new(text)).map(|ranges| ranges[0].1.count()).ok();
        assert_eq!(count("0-18446744073709551615"), Some(u64::MAX));
        assert_eq!(count("0-18446744073709551615/18446744073709551615"), Some(2));
        assert_eq!(count("1-1000000000000"), Some(1_000_000_000_000));
    }

    #[test]
    fn ranges_have_a_bound_themselves() {
        let at_bound = vec!["1"; HOSTS_MAX].join(",");
        assert_eq!(ranges(&mut Cursor::new(&at_bound)).map(|ranges| ranges.len()).ok(), Some(HOSTS_MAX));
        let beyond = format!("{at_bound},1");
        let fault = ranges(&mut Cursor::new(&beyond)).expect_err("one too many");
        assert_eq!((fault.problem, fault.at.end), (too_many_hosts(), beyond.len()));
    }

    #[test]
    fn digits_of_the_longest_number() {
        for (text, digits) in [("0", 1), ("9-10", 2), ("001-9", 3), ("1-10/8", 1), ("1-999", 3), ("0-1000", 4)] {
            let ranges = ranges(&mut Cursor::new(text)).expect("well-formed");
            assert_eq!(ranges[0].1.digits_max(), digits, "{text}");
        }
    }
}
