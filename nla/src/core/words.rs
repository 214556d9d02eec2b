//! Text from other hosts and programs: cut, on one line, and without characters that a terminal acts on.

use serde::{Deserialize, Deserializer};

use super::limits::TEXT_BYTES_MAX;

/// Returns text with an escape, such as `\u{1b}`, in place of each character that a terminal acts on or that changes the
/// place of others: control characters other than newlines, and format characters such as U+202E.
pub fn printable(text: &str) -> String {
    escaped(text, |c| c != '\n' && is_unprintable(c))
}

/// Returns text that is fit for one line of a message: cut to [`TEXT_BYTES_MAX`] bytes at a character boundary, with
/// escapes as in [`printable`] and in place of newlines.
pub fn one_line(text: String) -> String {
    let text = cut(text);
    if text.contains(is_unprintable) { cut(escaped(&text, is_unprintable)) } else { text }
}

/// Decodes text of a peer by [`one_line`].
pub(crate) fn deserialize_one_line<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(one_line)
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if is_escaped(c) { escaped.extend(c.escape_debug()) } else { escaped.push(c) }
    }
    escaped
}

fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

fn cut(mut text: String) -> String {
    if text.len() > TEXT_BYTES_MAX {
        let end = (0..=TEXT_BYTES_MAX).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_at_a_character_boundary() {
        let cut = one_line("é".repeat(TEXT_BYTES_MAX));
        assert!(cut.len() <= TEXT_BYTES_MAX && cut.chars().all(|c| c == 'é'));
        assert_eq!(one_line("x".repeat(TEXT_BYTES_MAX + 1)), "x".repeat(TEXT_BYTES_MAX));
        assert_eq!(one_line("x".repeat(TEXT_BYTES_MAX)), "x".repeat(TEXT_BYTES_MAX));
        assert_eq!(one_line("\x1b".repeat(TEXT_BYTES_MAX)).len(), TEXT_BYTES_MAX);
    }

    #[test]
    fn characters_that_a_terminal_acts_on_are_escaped() {
        let text = "a\x1b[2J\u{9b}31m\r\u{7f}\u{202e}ü \"'\\\nb";
        assert_eq!(printable(text), "a\\u{1b}[2J\\u{9b}31m\\r\\u{7f}\\u{202e}ü \"'\\\nb");
        assert_eq!(one_line(text.to_owned()), "a\\u{1b}[2J\\u{9b}31m\\r\\u{7f}\\u{202e}ü \"'\\\\nb");
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn no_control_character_remains(text in any::<String>()) {
                prop_assert!(!printable(&text).contains(|c: char| c.is_control() && c != '\n'));
                let line = one_line(text);
                prop_assert!(!line.contains(char::is_control) && line.len() <= TEXT_BYTES_MAX);
                prop_assert_eq!(one_line(line.clone()), line);
            }
        }
    }
}
