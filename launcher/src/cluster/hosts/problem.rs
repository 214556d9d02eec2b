//! Problems in host lists, and their hints.

use super::{HOSTS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use nla::core::limits::RANKS_MAX;

/// A problem in a host list. Text from outside is fit for printing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostsProblem {
    /// An empty list.
    #[error("the list is empty")]
    Empty,
    /// A file of comments and blank lines only.
    #[error("there is no host in it")]
    NoHosts,
    /// A text beyond its bound.
    #[error("it is larger than {} MiB", TEXT_BYTES_MAX >> 20)]
    TooLarge,
    /// Bytes that are not UTF-8.
    #[error("this is not UTF-8 text")]
    NotUtf8,
    /// A control character.
    #[error("there is a control character, U+{code:04X}")]
    Control {
        /// Its code point.
        code: u32,
    },
    /// A space or tab where the list goes on.
    #[error("there is a blank inside the list")]
    Blank,
    /// A character that no name contains.
    #[error("there cannot be a '{character}' in a name")]
    Character {
        /// The character, escaped if it cannot be seen.
        character: String,
    },
    /// A missing name.
    #[error("the name of a host is missing here")]
    NameMissing,
    /// A character that cannot begin a name.
    #[error("the name of a host or user cannot begin with '{first}'")]
    NameBegin {
        /// The character.
        first: char,
    },
    /// A name past its bound.
    #[error("a name is longer than {NAME_BYTES_MAX} bytes")]
    NameTooLong,
    /// More hosts than a session can have.
    #[error("there are more than {HOSTS_MAX} hosts")]
    TooManyHosts,
    /// `[` without `]`.
    #[error("this '[' is not closed")]
    BracketNotClosed,
    /// `]` without `[`.
    #[error("there is a ']' without a '['")]
    BracketNotOpened,
    /// Brackets in brackets.
    #[error("there is a '[' inside brackets")]
    BracketInBracket,
    /// A missing number.
    #[error("a number is missing here")]
    NumberMissing,
    /// A word in place of a number.
    #[error("'{text}' is not a number")]
    NotANumber {
        /// As typed.
        text: String,
    },
    /// A number that is too large.
    #[error("the number {number} is too large")]
    NumberTooLarge {
        /// As typed.
        number: String,
    },
    /// A range that goes down.
    #[error("the range {first}-{last} goes downwards")]
    RangeReversed {
        /// The first number as typed.
        first: String,
        /// The last number as typed.
        last: String,
    },
    /// A range whose numbers are not padded alike.
    #[error("'{first}' and '{last}' differ in their zeros")]
    RangePadding {
        /// The first number as typed.
        first: String,
        /// The last number as typed.
        last: String,
    },
    /// A step of zero.
    #[error("the step is 0")]
    StepZero,
    /// A step after a single number.
    #[error("there is a step, and no range in front of it")]
    StepAlone,
    /// More than one colon, outside brackets.
    #[error("'{text}' has more than one ':'")]
    AddressBare {
        /// The item as typed.
        text: String,
    },
    /// Brackets with a colon but no IPv6 address.
    #[error("'{text}' is not an IPv6 address")]
    AddressBroken {
        /// The text in the brackets.
        text: String,
    },
    /// Text after an address in brackets.
    #[error("'{text}' cannot follow an address")]
    AddressTail {
        /// As typed.
        text: String,
    },
    /// `@` without a user before it.
    #[error("the name of a user is missing here")]
    UserMissing,
    /// More than one `@`.
    #[error("there is a second '@'")]
    SecondAt,
    /// A word in place of a number of slots.
    #[error("'{text}' is not a number of slots")]
    SlotsNotANumber {
        /// As typed.
        text: String,
    },
    /// A number of slots out of bounds.
    #[error("{slots} slots are out of range, there must be 1 to {RANKS_MAX}")]
    SlotsOutOfRange {
        /// As typed.
        slots: String,
    },
    /// `max-slots` below `slots`.
    #[error("max-slots={max_slots} is less than the {slots} slots of a host on this line")]
    MaxSlotsTooFew {
        /// The one.
        max_slots: u32,
        /// The other.
        slots: u32,
    },
    /// An unknown attribute.
    #[error("there is no attribute '{name}', only slots, max-slots and user")]
    AttributeUnknown {
        /// As typed.
        name: String,
    },
    /// An attribute given twice for one host.
    #[error("'{name}' is given twice")]
    AttributeTwice {
        /// The attribute.
        name: &'static str,
    },
    /// A word after the list is not an attribute.
    #[error("'{text}' is not an attribute")]
    NotAnAttribute {
        /// As typed.
        text: String,
    },
    /// Hosts are counted from 1.
    #[error("there is no host 0, the first is host 1")]
    IndexZero,
    /// A position beyond the end of the list.
    #[error("there is no host {index}, the list has {hosts}")]
    IndexTooLarge {
        /// The first number without a host.
        index: u64,
        /// The number of hosts.
        hosts: usize,
    },
    /// A host selected twice.
    #[error("host {index} is selected twice")]
    IndexTwice {
        /// Its number.
        index: u64,
    },
    /// Slots or a user where only names are allowed.
    #[error("only names of hosts can stand here, without user and slots")]
    NotAName,
}

impl HostsProblem {
    /// Returns the next step to try.
    pub(super) fn hint(&self) -> String {
        let hint = match self {
            Self::Empty => "name hosts, as in node[1-4],login; a variable on the command line may be unset",
            Self::NoHosts => "write a host on each line, as in: node1 slots=8",
            Self::TooLarge => "check that it is a list of hosts",
            Self::NotUtf8 | Self::Control { .. } => "check that it is a text file, and save it as UTF-8",
            Self::Blank => "separate hosts by commas alone; attributes like slots=8 go into a hostfile",
            Self::Character { character } => return character_hint(character).to_owned(),
            Self::NameMissing => "remove a comma too many; host names are written as in node[1-4],login",
            Self::NameBegin { first: '-' } => "check the list; ssh would take such a name for an option",
            Self::NameBegin { first: '+' } => "name the hosts; relative names like +n1 are not understood",
            Self::NameBegin { .. } => "begin it with a letter or a digit",
            Self::NameTooLong => "check the ranges",
            Self::TooManyHosts => "check the ranges; write a host that has many slots once, with slots=8",
            Self::BracketNotClosed | Self::BracketNotOpened => {
                "write ranges as in node[001-032,040]; in a shell, put the list in quotes"
            }
            Self::BracketInBracket => "write ranges one behind the other, as in rack[1-2]node[1-4]",
            Self::NumberMissing => "write ranges as in 1-4,10",
            Self::NotANumber { .. } => {
                "write ranges as in node[1-4,10]; an address in brackets has colons, as in [fe80::1]"
            }
            Self::NumberTooLarge { .. } => "write it outside the brackets if it is a part of the name",
            Self::RangeReversed { first, last } => return format!("write {last}-{first}"),
            Self::RangePadding { .. } => "write both with the same number of digits, as in 001-032",
            Self::StepZero => "leave the step out, or write how far to go each time, as in 1-9/2",
            Self::StepAlone => "write a range with a step as in 1-9/2",
            Self::AddressBare { .. } => "put an IPv6 address in brackets, and slots behind them: [fe80::1]:8",
            Self::AddressBroken { .. } => "write an address as in [2001:db8::7] or [fe80::1%eth0], ranges as in [1-4]",
            Self::AddressTail { .. } => "an address stands alone, or with slots: [fe80::1]:8",
            Self::UserMissing | Self::SecondAt => "write user@host",
            Self::SlotsNotANumber { .. } => "write slots as in node1:8, or leave ':' out",
            Self::SlotsOutOfRange { .. } => "leave out a host that has none",
            Self::MaxSlotsTooFew { .. } => "make max-slots at least as large, or leave it out",
            Self::AttributeUnknown { .. } => "remove it, or put it behind a '#'",
            Self::AttributeTwice { .. } => "remove one of the two",
            Self::NotAnAttribute { text } => return attribute_hint(text),
            Self::IndexZero | Self::IndexTooLarge { .. } => "count the hosts in the order of the list, from 1",
            Self::IndexTwice { .. } => "remove one of the two; for more ranks on a host give it slots",
            Self::NotAName => "write names alone, as in node[1-4],login",
        };
        hint.to_owned()
    }
}

/// Returns what other launchers use a character for.
fn character_hint(character: &str) -> &'static str {
    match character {
        "#" => "put a blank in front of a comment",
        "^" => "name hosts to leave out with --exclude",
        "*" | "(" | ")" => "write a host once, with its slots, as in node1:8",
        "/" => "begin a comment with '#'",
        ";" => "separate hosts by commas",
        "{" | "}" => "write ranges as in node[1-4]",
        "=" => "put attributes behind a blank, in a hostfile: node1 slots=8",
        _ => "names are made of letters, digits, '-', '.', '_' and '+'",
    }
}

/// Returns a suggestion for a word that is not an attribute.
fn attribute_hint(text: &str) -> String {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("write slots={text}")
    } else {
        "put each host on a line of its own, or commas between them; attributes are written slots=8".to_owned()
    }
}

/// Returns text from outside fit for a message.
pub(super) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 40;
    let mut shown: String = text.chars().take(CHARS_MAX).map(shown_char).collect();
    if text.chars().nth(CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns a character, escaped if it is invisible or changes the layout of others.
pub(super) fn shown_char(c: char) -> String {
    if c == ' ' || is_visible(c) { c.to_string() } else { c.escape_unicode().to_string() }
}

/// Returns whether it takes a column of its own.
pub(super) fn is_visible(c: char) -> bool {
    let is_format = matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}');
    !(c.is_control() || c.is_whitespace() || is_format)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shown_text_is_short_and_escaped() {
        assert_eq!(shown("node1 ü"), "node1 ü");
        assert_eq!(shown("a\x1b[2J\u{202e}b\n"), "a\\u{1b}[2J\\u{202e}b\\u{a}");
        assert_eq!(shown(&"x".repeat(40)), "x".repeat(40));
        assert_eq!(shown(&"x".repeat(41)), format!("{}…", "x".repeat(40)));
    }

    #[test]
    fn hints_explain_unexpected_characters_and_words() {
        let hint = |character: &str| HostsProblem::Character { character: character.to_owned() }.hint();
        assert!(hint("^").contains("--exclude"));
        assert!(hint("#").contains("comment"));
        assert!(hint("ü").contains("letters"));
        let hint = |text: &str| HostsProblem::NotAnAttribute { text: text.to_owned() }.hint();
        assert_eq!(hint("4"), "write slots=4");
        assert!(hint("node2").contains("line of its own"));
    }
}
