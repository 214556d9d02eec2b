//! A cursor: a position in a line that moves forward as the line is parsed.

use std::ops::Range;

use crate::refusal::Refusal;

/// A problem and the bytes of the line that it is about.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) at: Range<usize>,
    pub(super) problem: Refusal,
}

impl Fault {
    pub(super) fn new(at: Range<usize>, problem: Refusal) -> Self {
        Self { at, problem }
    }
}

/// A line and a position in it, in bytes from the line's beginning, also in a part of the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    /// Takes the next character, if it is this one.
    pub(super) fn eat(&mut self, wanted: char) -> bool {
        let is_there = self.peek() == Some(wanted);
        if is_there {
            self.at += wanted.len_utf8();
        }
        is_there
    }

    /// Takes this text, if it is next.
    pub(super) fn eat_text(&mut self, wanted: &str) -> bool {
        let is_there = self.rest().starts_with(wanted);
        if is_there {
            self.at += wanted.len();
        }
        is_there
    }

    /// Takes characters while they are of this kind.
    pub(super) fn take_while(&mut self, is_wanted: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = rest.split(|c| !is_wanted(c)).next().unwrap_or_default();
        self.at += taken.len();
        taken
    }

    /// Takes a number of bytes as a part with a cursor of its own. They must end at a character's end.
    pub(super) fn take_part(&mut self, bytes: usize) -> Self {
        let end = self.at + bytes;
        let part = Self { text: self.text.get(..end).unwrap_or(self.text), at: self.at };
        self.at = end;
        part
    }

    /// Returns the bytes from `begin` to here.
    pub(super) fn since(&self, begin: usize) -> Range<usize> {
        begin..self.at
    }

    /// Returns the text from `begin` to here.
    pub(super) fn text_since(&self, begin: usize) -> &'a str {
        self.text.get(self.since(begin)).unwrap_or_default()
    }

    /// Returns a fault about the text since `begin`.
    pub(super) fn fault_since(&self, begin: usize, problem: Refusal) -> Fault {
        Fault::new(self.since(begin), problem)
    }

    /// Returns a fault about the next character, or about the end.
    pub(super) fn fault_here(&self, problem: Refusal) -> Fault {
        let width = self.peek().map_or(0, char::len_utf8);
        Fault::new(self.at..self.at + width, problem)
    }
}

/// Returns whether it separates words.
pub(super) fn is_blank(c: char) -> bool {
    c == ' ' || c == '\t'
}

/// Returns whether the name of a host or user may contain it.
pub(super) fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | '+')
}

/// Returns whether the name of a host or user may begin with it.
pub(super) fn begins_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_moves_by_characters() {
        let mut cursor = Cursor::new("äb-12,x");
        assert!(!cursor.eat('b') && cursor.eat('ä') && cursor.eat('b'));
        assert_eq!((cursor.at(), cursor.peek(), cursor.rest()), (3, Some('-'), "-12,x"));
        assert!(cursor.eat_text("-1") && !cursor.eat_text("3"));
        assert_eq!(cursor.take_while(|c| c.is_ascii_digit()), "2");
        assert_eq!(cursor.take_while(|c| c.is_ascii_digit()), "");
        assert_eq!((cursor.since(3), cursor.text_since(3)), (3..6, "-12"));
        assert_eq!(cursor.take_while(|_| true), ",x");
        assert!(cursor.is_at_end() && cursor.peek().is_none());
    }

    #[test]
    fn a_part_ends_at_its_bound_and_keeps_places() {
        let mut cursor = Cursor::new("a[1-2]b");
        cursor.eat_text("a[");
        let mut part = cursor.take_part(3);
        assert_eq!(cursor.rest(), "]b");
        assert_eq!((part.at(), part.take_while(|_| true)), (2, "1-2"));
        assert!(part.is_at_end());
    }

    #[test]
    fn faults_are_about_characters() {
        let mut cursor = Cursor::new("aä");
        cursor.eat('a');
        let problem = || Refusal::new("", "");
        assert_eq!(cursor.fault_here(problem()).at, 1..3);
        cursor.eat('ä');
        assert_eq!(cursor.fault_here(problem()).at, 3..3);
        assert_eq!(cursor.fault_since(1, problem()).at, 1..3);
    }
}
