//! Errors in host lists and hosts files, shown with the line and a mark under the position.

use std::error::Error;
use std::fmt;

use super::cursor::Fault;
use super::problem::is_visible;
use crate::refusal::Refusal;

/// The most characters of a line that are shown around a position.
const SHOWN_CHARS_MAX: usize = 72;

/// The characters that are shown before the position in a longer line.
const SHOWN_CHARS_BEFORE: usize = 24;

/// An error in a host list or hosts file. Displays the problem, after its position if it has one, and below it the
/// line with a caret under the position, without a line end. A long line is cut around the position. The caller
/// puts the file's name in front, with a comma or colon.
///
/// ```text
/// line 3, column 13: the range 9-3 goes downwards
///     node[001-003,9-3] slots=8
///                  ^^^
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostsError {
    place: Option<Box<Place>>,
    problem: Refusal,
}

/// A position and the line around it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    /// The line of a file, counted from 1.
    line: Option<usize>,
    /// The character, counted from 1.
    column: usize,
    /// A part of the line, a column for each character.
    shown: String,
    blanks: usize,
    carets: usize,
}

impl HostsError {
    /// Returns the error for a problem of the whole text.
    pub(super) fn without_place(problem: Refusal) -> Self {
        Self { place: None, problem }
    }

    /// Returns the error for a fault in a line; of a file if the line has a number.
    pub(super) fn in_line(text: &str, line: Option<usize>, fault: Fault) -> Self {
        let chars_to = |bytes: usize| text.char_indices().take_while(|(at, _)| *at < bytes).count();
        let (begin, end) = (chars_to(fault.at.start), chars_to(fault.at.end));
        let place = Place::new(text, line, begin, end.max(begin + 1));
        Self { place: Some(Box::new(place)), problem: fault.problem }
    }

    /// Returns the error after the name of the text that it is in.
    pub(crate) fn after(&self, name: &str) -> Refusal {
        let mark = if self.column().is_some() { "," } else { ":" };
        Refusal::new(format!("{name}{mark} {self}"), self.hint())
    }

    /// Returns the line of the file, counted from 1; `None` for a list.
    pub fn line(&self) -> Option<usize> {
        self.place.as_ref()?.line
    }

    /// Returns the character in the line or list, counted from 1; `None` for a problem of the whole text.
    pub fn column(&self) -> Option<usize> {
        Some(self.place.as_ref()?.column)
    }

    /// Returns the problem.
    pub fn problem(&self) -> &Refusal {
        &self.problem
    }

    /// Returns the next step to try, a fragment without full stop.
    pub fn hint(&self) -> &str {
        self.problem.hint()
    }
}

impl Place {
    /// Returns the position of the characters `begin..end` of a line.
    fn new(text: &str, line: Option<usize>, begin: usize, end: usize) -> Self {
        let chars = text.chars().count();
        let first = if chars <= SHOWN_CHARS_MAX {
            0
        } else {
            begin.saturating_sub(SHOWN_CHARS_BEFORE).min(chars - SHOWN_CHARS_MAX)
        };
        let last = chars.min(first + SHOWN_CHARS_MAX);
        let mut shown = String::new();
        if first > 0 {
            shown.push('…');
        }
        let blanks = begin - first + shown.chars().count();
        shown.extend(text.chars().skip(first).take(last - first).map(one_column));
        if last < chars {
            shown.push('…');
        }
        Self { line, column: begin + 1, shown, blanks, carets: end.min(last).saturating_sub(begin).max(1) }
    }
}

/// Returns the character to print in its place, one column wide, so that the caret is aligned.
fn one_column(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c == ' ' || is_visible(c) => c,
        _ => char::REPLACEMENT_CHARACTER,
    }
}

impl fmt::Display for HostsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(place) = &self.place else { return write!(f, "{}", self.problem) };
        if let Some(line) = place.line {
            write!(f, "line {line}, ")?;
        }
        let Place { column, shown, blanks, carets, .. } = place.as_ref();
        write!(f, "column {column}: {}\n    {shown}\n    {:blanks$}{:^<carets$}", self.problem, "", "")
    }
}

impl Error for HostsError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str, at: std::ops::Range<usize>) -> String {
        HostsError::in_line(text, None, Fault::new(at, step_zero())).to_string()
    }

    fn step_zero() -> Refusal {
        Refusal::new("the step is 0", "leave the step out")
    }

    #[test]
    fn the_place_has_a_caret_under_it() {
        assert_eq!(shown("a[1-2/0],b", 6..7), "column 7: the step is 0\n    a[1-2/0],b\n          ^");
        assert_eq!(shown("ab", 0..2), "column 1: the step is 0\n    ab\n    ^^");
        assert_eq!(shown("ab", 2..2), "column 3: the step is 0\n    ab\n      ^");
        assert_eq!(shown("", 0..0), "column 1: the step is 0\n    \n    ^");
    }

    #[test]
    fn a_file_has_lines() {
        let fault = Fault::new(2..3, step_zero());
        let error = HostsError::in_line("a b", Some(7), fault);
        assert_eq!((error.line(), error.column()), (Some(7), Some(3)));
        assert_eq!(error.to_string(), "line 7, column 3: the step is 0\n    a b\n      ^");
        let error = HostsError::without_place(super::super::problem::too_large());
        assert_eq!((error.line(), error.column()), (None, None));
        assert_eq!(error.to_string(), "it is larger than 64 MiB");
    }

    #[test]
    fn columns_are_characters_and_each_is_one_wide() {
        assert_eq!(shown("süd,é!", 7..8), "column 6: the step is 0\n    süd,é!\n         ^");
        assert_eq!(shown("\ta\tb", 3..4), "column 4: the step is 0\n     a b\n       ^");
        assert_eq!(shown("\x1b\u{202e}b", 4..5), "column 3: the step is 0\n    \u{fffd}\u{fffd}b\n      ^");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let line = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let (before, after) = ("a".repeat(24), "b".repeat(47));
        let expected = format!("column 501: the step is 0\n    …{before}X{after}…\n    {:25}^", "");
        assert_eq!(shown(&line, 500..501), expected);
        let expected = format!("column 1: the step is 0\n    {}…\n    ^", "a".repeat(72));
        assert_eq!(shown(&line, 0..1), expected);
        let expected = format!("column 1002: the step is 0\n    …{}\n    {:73}^", "b".repeat(72), "");
        assert_eq!(shown(&line, 1001..1001), expected);
        // Mark only the part of a long range that is shown.
        let expected = format!("column 1: the step is 0\n    {}…\n    {}", "a".repeat(72), "^".repeat(72));
        assert_eq!(shown(&line, 0..900), expected);
        let fits = "a".repeat(72);
        assert!(!shown(&fits, 71..72).contains('…'));
    }
}
