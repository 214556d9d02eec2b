//! Problems in host lists, and their hints.

use super::{HOSTS_MAX, NAME_BYTES_MAX, TEXT_BYTES_MAX};
use crate::refusal::Refusal;

/// The hint for text that is not text.
pub(super) const TEXT_FILE: &str = "check that it is a text file, and save it as UTF-8";

pub(super) fn empty() -> Refusal {
    Refusal::new("the list is empty", "name hosts, as in node[1-4],login; a variable on the command line may be unset")
}

pub(super) fn too_large() -> Refusal {
    let text = format!("it is larger than {} MiB", TEXT_BYTES_MAX >> 20);
    Refusal::new(text, "check that it is a list of hosts")
}

pub(super) fn too_many_hosts() -> Refusal {
    let hint = "check the ranges; write a host that has many slots once, with slots=8";
    Refusal::new(format!("there are more than {HOSTS_MAX} hosts"), hint)
}

pub(super) fn blank() -> Refusal {
    let hint = "separate hosts by commas alone; attributes like slots=8 go into a hostfile";
    Refusal::new("there is a blank inside the list", hint)
}

pub(super) fn name_missing() -> Refusal {
    let hint = "remove a comma too many; host names are written as in node[1-4],login";
    Refusal::new("the name of a host is missing here", hint)
}

pub(super) fn name_too_long() -> Refusal {
    Refusal::new(format!("a name is longer than {NAME_BYTES_MAX} bytes"), "check the ranges")
}

/// Returns the problem of a name that begins with a character that cannot begin a name.
pub(super) fn name_begin(first: char) -> Refusal {
    let hint = match first {
        '-' => "check the list; ssh would take such a name for an option",
        '+' => "name the hosts; relative names like +n1 are not understood",
        _ => "begin it with a letter or a digit",
    };
    Refusal::new(format!("the name of a host or user cannot begin with '{first}'"), hint)
}

pub(super) fn user_missing() -> Refusal {
    Refusal::new("the name of a user is missing here", "write user@host")
}

pub(super) fn number_missing() -> Refusal {
    Refusal::new("a number is missing here", "write ranges as in 1-4,10")
}

/// Returns the problem of a character that no name contains.
pub(super) fn stray(c: char) -> Refusal {
    if c.is_control() {
        let text = format!("there is a control character, U+{:04X}", u32::from(c));
        return Refusal::new(text, TEXT_FILE);
    }
    Refusal::new(format!("there cannot be a '{}' in a name", shown_char(c)), character_hint(c))
}

/// Returns what other launchers use a character for.
fn character_hint(character: char) -> &'static str {
    match character {
        '#' => "put a blank in front of a comment",
        '^' => "name hosts to leave out with --exclude",
        '*' | '(' | ')' => "write a host once, with its slots, as in node1:8",
        '/' => "begin a comment with '#'",
        ';' => "separate hosts by commas",
        '{' | '}' => "write ranges as in node[1-4]",
        '=' => "put attributes behind a blank, in a hostfile: node1 slots=8",
        _ => "names are made of letters, digits, '-', '.', '_' and '+'",
    }
}

/// Returns the problem of a word that is not an attribute.
pub(super) fn not_an_attribute(text: &str) -> Refusal {
    let hint = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        format!("write slots={text}")
    } else {
        "put each host on a line of its own, or commas between them; attributes are written slots=8".to_owned()
    };
    Refusal::new(format!("'{text}' is not an attribute"), hint)
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
        let hint = |c| stray(c).hint().to_owned();
        assert!(hint('^').contains("--exclude"));
        assert!(hint('#').contains("comment"));
        assert!(hint('ü').contains("letters"));
        let hint = |text| not_an_attribute(text).hint().to_owned();
        assert_eq!(hint("4"), "write slots=4");
        assert!(hint("node2").contains("line of its own"));
    }
}
