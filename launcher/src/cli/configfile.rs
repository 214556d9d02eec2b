//! Configfiles: splits bytes into lines of words.
//!
//! Each line is one command. Blanks separate words. `'…'` keeps every character, `"…"` every character but
//! backslashes before `"`, `\`, `$` and `` ` ``; a backslash elsewhere keeps the next character, and
//! at the end of a line joins it with the next. `#` at the beginning of a word begins a comment.
//! Variables and patterns are not expanded. A shell splits such a line in the same way, and so do
//! Hydra's configfiles and Cplant's load files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use crate::refusal::Refusal;

/// A position in a file: line and character, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// One word of a command line or a configfile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: OsString,
    /// Whether the word contained a quote or backslash: a quoted `:` does not separate commands.
    pub(super) quoted: bool,
    /// Its position; `None` on a command line.
    pub(super) spot: Option<Spot>,
}

impl Word {
    /// Returns whether it separates commands.
    pub(super) fn is_separator(&self) -> bool {
        !self.quoted && self.text == ":"
    }
}

/// Returns the words of each line that is not empty.
pub(super) fn lines(bytes: &[u8]) -> Result<Vec<Vec<Word>>, (Spot, Refusal)> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let mut lexer = Lexer { bytes, at: 0, spot: Spot { line: 1, column: 1 } };
    let mut lines = Vec::new();
    let mut line = Vec::new();
    while let Some(byte) = lexer.peek() {
        match byte {
            b'\n' => {
                lexer.bump();
                if !line.is_empty() {
                    lines.push(std::mem::take(&mut line));
                }
            }
            b' ' | b'\t' => {
                lexer.bump();
            }
            b'#' => lexer.skip_comment(),
            _ => line.extend(lexer.word()?),
        }
    }
    if !line.is_empty() {
        lines.push(line);
    }
    Ok(lines)
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    spot: Spot,
}

impl Lexer<'_> {
    /// Returns the next byte; `\n` for `\r\n`.
    fn peek(&self) -> Option<u8> {
        match self.bytes.get(self.at..)? {
            [b'\r', b'\n', ..] => Some(b'\n'),
            rest => rest.first().copied(),
        }
    }

    /// Takes the next byte.
    fn bump(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += if byte == b'\n' && self.bytes[self.at] == b'\r' { 2 } else { 1 };
        match byte {
            b'\n' => self.spot = Spot { line: self.spot.line + 1, column: 1 },
            // Continuation bytes of a UTF-8 character do not advance the column.
            0x80..=0xbf => {}
            _ => self.spot.column += 1,
        }
        Some(byte)
    }

    fn skip_comment(&mut self) {
        while self.peek().is_some_and(|byte| byte != b'\n') {
            self.bump();
        }
    }

    /// Reads one word; `None` if only a joined line end was left.
    fn word(&mut self) -> Result<Option<Word>, (Spot, Refusal)> {
        let mut begin = self.spot;
        let mut text = Vec::new();
        let mut quoted = false;
        while let Some(byte) = self.peek() {
            let here = self.spot;
            match byte {
                b'\n' | b' ' | b'\t' => break,
                0 => return Err(nul_byte(here)),
                b'\'' | b'"' => {
                    self.bump();
                    quoted = true;
                    self.quotation(byte, here, &mut text)?;
                }
                b'\\' => {
                    self.bump();
                    match self.bump() {
                        None => {
                            let hint = r"remove it, or write \\ for the character itself";
                            return Err((here, Refusal::new("the file ends with a backslash", hint)));
                        }
                        Some(0) => return Err(nul_byte(here)),
                        Some(b'\n') if text.is_empty() && !quoted => begin = self.spot,
                        Some(b'\n') => {}
                        Some(byte) => {
                            quoted = true;
                            text.push(byte);
                        }
                    }
                }
                // A line may be joined before its first word, or before a comment.
                b'#' if text.is_empty() && !quoted => break,
                byte => {
                    self.bump();
                    text.push(byte);
                }
            }
        }
        if text.is_empty() && !quoted {
            return Ok(None);
        }
        Ok(Some(Word { text: OsString::from_vec(text), quoted, spot: Some(begin) }))
    }

    /// Reads the text up to the closing quote. The opening quote has been read.
    fn quotation(&mut self, quote: u8, begin: Spot, text: &mut Vec<u8>) -> Result<(), (Spot, Refusal)> {
        loop {
            let here = self.spot;
            match self.bump() {
                None | Some(b'\n') => {
                    let quote = char::from(quote);
                    let text = format!("the quote {quote} is not closed on its line");
                    let hint = format!("close it, or write \\{quote} for the character itself");
                    return Err((begin, Refusal::new(text, hint)));
                }
                Some(0) => return Err(nul_byte(here)),
                Some(byte) if byte == quote => return Ok(()),
                Some(b'\\') if quote == b'"' => match self.peek() {
                    Some(next @ (b'"' | b'\\' | b'$' | b'`')) => {
                        self.bump();
                        text.push(next);
                    }
                    _ => text.push(b'\\'),
                },
                Some(byte) => text.push(byte),
            }
        }
    }
}

fn nul_byte(spot: Spot) -> (Spot, Refusal) {
    let text = "there is a NUL byte, which no argument can contain";
    (spot, Refusal::new(text, "check that it is a text file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<Vec<String>> {
        let lines = lines(text.as_bytes()).expect("the file is well-formed");
        let text = |word: Word| word.text.into_string().expect("the test's words are UTF-8");
        lines.into_iter().map(|line| line.into_iter().map(text).collect()).collect()
    }

    #[test]
    fn quoting() {
        for (typed, meant) in [
            ("a b", &["a", "b"][..]),
            ("  a\t b  ", &["a", "b"]),
            ("'a b' \"c d\"", &["a b", "c d"]),
            ("a'b c'd", &["ab cd"]),
            ("'' \"\"", &["", ""]),
            (r"a\ b", &["a b"]),
            (r"\a \\ \' \#", &["a", "\\", "'", "#"]),
            (r"'a\b' '\\'", &[r"a\b", r"\\"]),
            (r#""\" \\ \$ \` \a""#, &[r#"" \ $ ` \a"#]),
            ("a#b '#' c # d 'e", &["a#b", "#", "c"]),
            ("$HOME *.c", &["$HOME", "*.c"]),
            ("a\\\nb", &["ab"]),
            ("a \\\n b", &["a", "b"]),
            ("\\\n\\\n a", &["a"]),
            ("a \\\n# b", &["a"]),
            ("a\r\n", &["a"]),
            ("a \\\r\n b\r\n", &["a", "b"]),
            ("a\rb", &["a\rb"]),
            ("\u{feff}a", &["a"]),
            ("grüße", &["grüße"]),
        ] {
            assert_eq!(words(typed), [meant], "{typed:?}");
        }
    }

    #[test]
    fn lines_without_words_are_none() {
        assert!(words("").is_empty());
        assert!(words("\n \n\t\n# a\n  # b\n\\\n").is_empty());
        assert_eq!(words("\na\n\n# x\nb c"), [vec!["a"], vec!["b", "c"]]);
    }

    #[test]
    fn words_have_the_line_on_which_they_begin() {
        let spots = |text: &str| -> Vec<_> {
            let lines = lines(text.as_bytes()).expect("the file is well-formed");
            lines.into_iter().flatten().filter_map(|w| w.spot).map(|s| (s.line, s.column)).collect()
        };
        assert_eq!(spots("a b\n\n  c 'd\te' f"), [(1, 1), (1, 3), (3, 3), (3, 5), (3, 11)]);
        assert_eq!(spots("a \\\r\n \\\n  b"), [(1, 1), (3, 3)]);
        assert_eq!(spots("'ü ü' b"), [(1, 1), (1, 7)]);
        assert_eq!(spots("\\\nb"), [(2, 1)]);
    }

    #[test]
    fn only_a_bare_colon_separates() {
        let separators = |text: &str| -> Vec<_> {
            let lines = lines(text.as_bytes()).expect("the file is well-formed");
            lines.into_iter().flatten().map(|word| word.is_separator()).collect()
        };
        assert_eq!(separators(r#": ':' ":" \: a: :: "" "#), { [true, false, false, false, false, false, false] });
    }

    #[test]
    fn bytes_are_kept() {
        let lines = lines(b"\xff\xfe'\x80 \x01'").expect("the file is well-formed");
        assert_eq!(lines[0][0].text, OsString::from_vec(b"\xff\xfe\x80 \x01".to_vec()));
    }

    #[test]
    fn errors_name_their_line() {
        for (typed, line, column, message) in [
            ("a 'b", 1, 3, "the quote ' is not closed on its line"),
            ("a\nb c\"d\n\"", 2, 4, "the quote \" is not closed on its line"),
            ("\"a\\\"", 1, 1, "the quote \" is not closed on its line"),
            ("a\n b\\", 2, 3, "the file ends with a backslash"),
            ("a\0", 1, 2, "there is a NUL byte, which no argument can contain"),
            ("'\0'", 1, 2, "there is a NUL byte, which no argument can contain"),
            ("\\\0", 1, 1, "there is a NUL byte, which no argument can contain"),
        ] {
            let (spot, problem) = lines(typed.as_bytes()).expect_err("the file is broken");
            assert_eq!((spot.line, spot.column, problem.to_string().as_str()), { (line, column, message) });
        }
    }
}
