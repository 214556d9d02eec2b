//! Refusals: why scela-run does not start what was asked for.

use std::fmt;

use nla::core::printable;

use crate::exit::EarlyEnd;

/// Why a request is refused, and the next step to try. Displays the reason, without the hint, and
/// escapes control characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    text: String,
    hint: String,
    end: EarlyEnd,
}

impl Refusal {
    /// Returns a refusal of what the user asked for. `hint` is a fragment without full stop.
    pub fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: hint.into(), end: EarlyEnd::Usage }
    }

    /// Returns the refusal for a cause that lies in the system, not in the user's words.
    pub fn of_system(self) -> Self {
        Self { end: EarlyEnd::NotLaunched, ..self }
    }

    /// Returns the next step to try; empty if there is none.
    pub fn hint(&self) -> &str {
        &self.hint
    }

    /// Returns how scela-run ends.
    pub fn early_end(&self) -> EarlyEnd {
        self.end
    }

    /// Returns the reason, and the hint on a line of its own.
    pub fn with_hint(&self) -> String {
        if self.hint.is_empty() { self.to_string() } else { format!("{self}\n  hint: {}", printable(&self.hint)) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.text))
    }
}

impl std::error::Error for Refusal {}

/// Returns the beginning of a text from outside, fit for messages.
pub(crate) fn shown(text: &str, chars_max: usize) -> String {
    let mut shown: String = text.chars().take(chars_max).map(|c| if c.is_control() { '?' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        shown.push('…');
    }
    shown
}

/// Returns the number with its noun.
pub(crate) fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_of_names_do_not_reach_the_terminal() {
        let refusal = Refusal::new("'a\u{1b}[2Jb' is a directory", "mkdir -p 'c\rd'");
        assert_eq!(refusal.with_hint(), "'a\\u{1b}[2Jb' is a directory\n  hint: mkdir -p 'c\\rd'");
        assert_eq!(refusal.to_string(), "'a\\u{1b}[2Jb' is a directory");
    }
}
