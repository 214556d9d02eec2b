//! A host expression, `r[1-2]n[001-032].example.org`, and its expansion.

use std::fmt::Write as _;

use super::cursor::{Cursor, Fault, begins_name, is_blank, is_name};
use super::problem::{name_begin, name_missing, name_too_long, stray, too_many_hosts};
use super::ranges::{NumberRange, ranges};
use super::{HOSTS_MAX, NAME_BYTES_MAX};
use crate::refusal::Refusal;

/// The hint for a bracket without its partner.
const BRACKETS: &str = "write ranges as in node[001-032,040]; in a shell, put the list in quotes";

/// A host's name with ranges of numbers, within all bounds.
#[derive(Debug)]
pub(super) struct Expression<'a> {
    parts: Vec<Part<'a>>,
    count: u64,
    /// The length of the longest name, in bytes.
    name_bytes: usize,
}

#[derive(Debug)]
enum Part<'a> {
    Text(&'a str),
    Ranges(Vec<NumberRange>),
}

impl<'a> Expression<'a> {
    /// Parses up to the first character that no name contains: `,`, `:`, a blank or the end. Does not expand.
    pub(super) fn parse(cursor: &mut Cursor<'a>) -> Result<Self, Fault> {
        let begin = cursor.at();
        let mut expression = Self { parts: Vec::new(), count: 1, name_bytes: 0 };
        loop {
            let part = match cursor.peek() {
                Some('[') => Part::Ranges(bracket(cursor)?),
                Some(c) if is_name(c) => {
                    if expression.parts.is_empty() && !begins_name(c) {
                        return Err(cursor.fault_here(name_begin(c)));
                    }
                    Part::Text(cursor.take_while(is_name))
                }
                Some(']') => {
                    return Err(cursor.fault_here(Refusal::new("there is a ']' without a '['", BRACKETS)));
                }
                None | Some(',' | ':' | '@') => break,
                Some(c) if is_blank(c) => break,
                Some(c) => return Err(cursor.fault_here(stray(c))),
            };
            expression.add(part).map_err(|problem| cursor.fault_since(begin, problem))?;
        }
        if expression.parts.is_empty() {
            return Err(cursor.fault_here(name_missing()));
        }
        Ok(expression)
    }

    /// Adds a part, if the names stay within their bounds.
    fn add(&mut self, part: Part<'a>) -> Result<(), Refusal> {
        self.count = self.count.saturating_mul(part.count());
        self.name_bytes += part.bytes_max();
        if self.count > HOSTS_MAX as u64 {
            return Err(too_many_hosts());
        }
        if self.name_bytes > NAME_BYTES_MAX {
            return Err(name_too_long());
        }
        self.parts.push(part);
        Ok(())
    }

    /// Returns the number of names, at most `HOSTS_MAX`.
    pub(super) fn count(&self) -> usize {
        usize::try_from(self.count).unwrap_or(HOSTS_MAX)
    }

    /// Returns the names in order; the last range varies fastest.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names = Vec::with_capacity(self.count());
        extend(&self.parts, &mut String::with_capacity(NAME_BYTES_MAX), &mut names);
        names
    }
}

impl Part<'_> {
    /// Returns the number of its expansions.
    fn count(&self) -> u64 {
        match self {
            Self::Text(_) => 1,
            Self::Ranges(ranges) => ranges.iter().fold(0, |sum, range| sum.saturating_add(range.count())),
        }
    }

    /// Returns the length of the longest expansion, in bytes.
    fn bytes_max(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Ranges(ranges) => ranges.iter().map(NumberRange::digits_max).max().unwrap_or(0),
        }
    }
}

/// Adds the names that begin with `name` and continue with `parts`. Recurses once for each part.
fn extend(parts: &[Part<'_>], name: &mut String, names: &mut Vec<String>) {
    let Some((part, parts)) = parts.split_first() else {
        names.push(name.as_str().to_owned());
        return;
    };
    let begun = name.len();
    match part {
        Part::Text(text) => {
            name.push_str(text);
            extend(parts, name, names);
            name.truncate(begun);
        }
        Part::Ranges(ranges) => {
            for range in ranges {
                let width = range.width;
                for number in range.numbers() {
                    let _ = write!(name, "{number:0width$}");
                    extend(parts, name, names);
                    name.truncate(begun);
                }
            }
        }
    }
}

/// Parses `[`, ranges and `]`.
fn bracket(cursor: &mut Cursor<'_>) -> Result<Vec<NumberRange>, Fault> {
    let open = cursor.fault_here(Refusal::new("this '[' is not closed", BRACKETS));
    cursor.eat('[');
    // A bracket that opens before the `]` belongs to another host.
    let Some(inside) = cursor.rest().find(['[', ']']).filter(|&end| cursor.rest()[end..].starts_with(']')) else {
        return Err(if is_nested(cursor.rest()) { nested(cursor) } else { open });
    };
    let mut inside = cursor.take_part(inside);
    cursor.eat(']');
    let ranges = ranges(&mut inside)?;
    Ok(ranges.into_iter().map(|(_, range)| range).collect())
}

/// Returns whether the text after a `[` has a pair of brackets and then its own `]`.
fn is_nested(rest: &str) -> bool {
    let mut brackets = rest.bytes().filter(|byte| matches!(byte, b'[' | b']'));
    brackets.by_ref().take(3).eq(*b"[]]")
}

fn nested(cursor: &Cursor<'_>) -> Fault {
    let mut inner = *cursor;
    inner.take_while(|c| c != '[');
    let hint = "write ranges one behind the other, as in rack[1-2]node[1-4]";
    inner.fault_here(Refusal::new("there is a '[' inside brackets", hint))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<String>, (std::ops::Range<usize>, String)> {
        let mut cursor = Cursor::new(text);
        let expression = Expression::parse(&mut cursor).map_err(|fault| (fault.at, fault.problem.to_string()))?;
        assert_eq!(cursor.rest(), "", "{text}: all was read");
        Ok(expression.names())
    }

    #[test]
    fn names_of_expressions() {
        for (text, names) in [
            ("login", "login"),
            ("node7", "node7"),
            ("n-1.x_y.example.org", "n-1.x_y.example.org"),
            ("10.0.0.1", "10.0.0.1"),
            ("rechner-süd", "rechner-süd"),
            ("_a+b", "_a+b"),
            ("node[1-3]", "node1 node2 node3"),
            ("node[001-003,040]", "node001 node002 node003 node040"),
            ("node[9-11]-ib", "node9-ib node10-ib node11-ib"),
            ("gpu[1-4/2]", "gpu1 gpu3"),
            ("[1-2]", "1 2"),
            ("[1-2]a", "1a 2a"),
            ("r[1-2]n[1-3]", "r1n1 r1n2 r1n3 r2n1 r2n2 r2n3"),
            ("a[2,1]b[1-2]c[07-08]", "a2b1c07 a2b1c08 a2b2c07 a2b2c08 a1b1c07 a1b1c08 a1b2c07 a1b2c08"),
            ("[0-1][0-1]", "00 01 10 11"),
            ("10.0.[1-2].[9-10]", "10.0.1.9 10.0.1.10 10.0.2.9 10.0.2.10"),
            ("a[1,1]", "a1 a1"),
        ] {
            assert_eq!(read(text).map(|names| names.join(" ")), Ok(names.to_owned()), "{text}");
        }
    }

    #[test]
    fn errors_name_their_place() {
        for (text, at, message) in [
            ("", 0..0, "the name of a host is missing here"),
            (",", 0..1, "the name of a host is missing here"),
            ("a]", 1..2, "there is a ']' without a '['"),
            ("a[1-2]]", 6..7, "there is a ']' without a '['"),
            ("a[1-2", 1..2, "this '[' is not closed"),
            ("a[1-2,b[1]", 1..2, "this '[' is not closed"),
            ("a[1-2][3", 6..7, "this '[' is not closed"),
            ("a[1,[2]]", 4..5, "there is a '[' inside brackets"),
            ("a[]", 2..2, "a number is missing here"),
            ("a[1-b]", 4..5, "'b' is not a number"),
            ("-a", 0..1, "the name of a host or user cannot begin with '-'"),
            ("+n1", 0..1, "the name of a host or user cannot begin with '+'"),
            ("..", 0..1, "the name of a host or user cannot begin with '.'"),
            ("^a", 0..1, "there cannot be a '^' in a name"),
            ("a*3", 1..2, "there cannot be a '*' in a name"),
            ("a#x", 1..2, "there cannot be a '#' in a name"),
            ("../a", 0..1, "the name of a host or user cannot begin with '.'"),
            ("a/b", 1..2, "there cannot be a '/' in a name"),
            ("a\u{202e}b", 1..4, "there cannot be a '\\u{202e}' in a name"),
            ("a\u{a0}b", 1..3, "there cannot be a '\\u{a0}' in a name"),
            ("a\0", 1..2, "there is a control character, U+0000"),
            ("a\u{9b}", 1..3, "there is a control character, U+009B"),
        ] {
            assert_eq!(read(text), Err((at, message.to_owned())), "{text:?}");
        }
    }

    #[test]
    fn names_have_a_bound() {
        let long = "a".repeat(NAME_BYTES_MAX);
        assert_eq!(read(&long), Ok(vec![long.clone()]));
        let longer = format!("{long}b");
        assert_eq!(read(&longer), Err((0..254, "a name is longer than 253 bytes".to_owned())));
        let nearly = "a".repeat(NAME_BYTES_MAX - 1);
        assert!(read(&format!("{nearly}[8-9]")).is_ok());
        assert!(read(&format!("{nearly}[8-10/5]")).is_ok(), "no step comes to the 10");
        assert!(read(&format!("{nearly}[8-10]")).is_err());
        assert!(read(&format!("{nearly}[08]")).is_err());
        assert!(read(&format!("[1]{}", "0".repeat(NAME_BYTES_MAX))).is_err());
    }

    #[test]
    fn the_bound_on_hosts_is_checked_before_expansion() {
        assert_eq!(read("a[1-1024]b[1-1024]").map(|names| names.len()), Ok(HOSTS_MAX));
        for text in [
            &format!("a[0-{HOSTS_MAX}]"),
            "a[1-1024]b[1-1025]",
            "a[0-18446744073709551615]",
            "a[0-18446744073709551615,0-18446744073709551615]",
            "a[1][1-1048577][1][1]",
            "a[1-100000][1-100000][1-100000][1-100000][1-100000]",
        ] {
            let message = "there are more than 1048576 hosts".to_owned();
            assert_eq!(read(text).map_err(|(_, problem)| problem), Err(message), "{text}");
        }
    }
}
