//! Colours for the launcher's own texts on a terminal, and escapes for the control characters in them. All texts of the
//! launcher pass here, with the words of remote hosts in them; the output of ranks does not.

use std::io::IsTerminal;

use clap::builder::styling::{AnsiColor, Style};
use nla::core::printable;

/// The character that bars are made of.
pub const BAR: char = '━';
/// Longer words before a colon are a sentence, not a label.
const LABEL_BYTES_MAX: usize = 40;

/// Returns `text` as `stream` shows it: [`printable`], and with colours on a terminal, unless `NO_COLOR` is set and not
/// empty, or `TERM` is unset or `dumb`.
pub fn for_stream(stream: &impl IsTerminal, text: &str) -> String {
    let text = printable(text);
    let variable = |name| std::env::var_os(name).unwrap_or_default();
    let has_colours = || variable("NO_COLOR").is_empty() && !["", "dumb"].iter().any(|term| variable("TERM") == *term);
    if stream.is_terminal() && has_colours() { text.split_inclusive('\n').map(coloured).collect() } else { text }
}

/// Colours the label at the beginning of a line, such as `error:` or the heading of a section, or else the line's bar.
fn coloured(line: &str) -> String {
    let rest = ["scela-run: ", "scela: "].iter().find_map(|name| line.strip_prefix(name)).unwrap_or(line);
    let words = rest.trim_start();
    let begin = line.len() - words.len();
    let label = words.find(": ").or_else(|| words.trim_end().strip_suffix(':').map(str::len));
    let found = label.and_then(|length| {
        let style = match &words[..length] {
            "error" => AnsiColor::Red.on_default().bold(),
            "warning" => AnsiColor::Yellow.on_default().bold(),
            "hint" => AnsiColor::Cyan.on_default().bold(),
            label if begin == 0 && label.len() <= LABEL_BYTES_MAX => Style::new().bold(),
            "phases" | "phases of the launch" => Style::new().bold(),
            _ => return None,
        };
        Some((begin..begin + length + 1, style))
    });
    let bar = || Some((line.find(BAR)?..line.rfind(BAR)? + BAR.len_utf8(), AnsiColor::Green.on_default()));
    let Some((range, style)) = found.or_else(bar) else { return line.to_owned() };
    format!("{}{style}{}{style:#}{}", &line[..range.start], &line[range.clone()], &line[range.end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_bars_are_coloured() {
        for (line, expected) in [
            ("scela-run: error: no host\n", "scela-run: \x1b[1m\x1b[31merror:\x1b[0m no host\n"),
            ("scela-run: warning: no rank\n", "scela-run: \x1b[1m\x1b[33mwarning:\x1b[0m no rank\n"),
            ("    hint: try it: again", "    \x1b[1m\x1b[36mhint:\x1b[0m try it: again"),
            ("Exit codes:\n", "\x1b[1mExit codes:\x1b[0m\n"),
            ("scela-run: phases:\n", "scela-run: \x1b[1mphases:\x1b[0m\n"),
            ("launch: flat", "\x1b[1mlaunch:\x1b[0m flat"),
            ("join  ━━━  2 ms\n", "join  \x1b[32m━━━\x1b[0m  2 ms\n"),
        ] {
            assert_eq!(coloured(line), expected);
        }
    }

    #[test]
    fn control_characters_are_escaped_on_any_stream() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let text = "scela-run: error: n1: \x1b]0;title\x07no\r\n  hint: \u{202e}x\n";
        let expected = "scela-run: error: n1: \\u{1b}]0;title\\u{7}no\\r\n  hint: \\u{202e}x\n";
        assert_eq!(for_stream(&null, text), expected);
    }

    #[test]
    fn other_lines_stay_as_they_are() {
        let sentence = "a value may follow as the next word, or in the same word after a '=':\n";
        for line in ["", "\n", "scela-run: 4 ranks: done\n", "  node002: refused\n", "up to a lone ':'.\n", sentence] {
            assert_eq!(coloured(line), line);
        }
    }
}
