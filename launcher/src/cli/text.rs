//! Text from outside, and numbers, as messages show them.

use std::ffi::OsStr;

/// Returns text from outside fit for a message: control characters escaped, a long end cut.
pub(super) fn shown(text: &OsStr) -> String {
    const CHARS_MAX: usize = 80;
    let text = text.to_string_lossy();
    let mut fit = String::new();
    for (i, c) in text.chars().enumerate() {
        if i == CHARS_MAX {
            fit.push('…');
            break;
        }
        if c.is_control() { fit.extend(c.escape_default()) } else { fit.push(c) }
    }
    fit
}

/// Returns a number with commas between its thousands.
pub(super) fn thousands(number: u32) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}
