//! A bootstrap channel of pipes: greetings of shells, the script's words, the agent's marker, and frames.

use nla::bootstrap::fuzzing::Unread;
use nla::bootstrap::{BootReport, MARKER, StartFailure};
use nla::core::limits::SHELL_GREETING_BYTES_MAX;
use nla::wire::{encode, framed};

const MARK: &str = "scela-script:";
const AGENT: &[u8; MARKER] = b"0123456789abcdef";

/// The contents of a channel: the script's words, then whether the marker arrived, then reports.
#[derive(PartialEq, Debug, Default)]
struct Heard {
    word: Option<String>,
    has_marker: bool,
    reports: Vec<Vec<u8>>,
    failure: Option<StartFailure>,
}

/// Reads the bytes as a whole and in two pieces.
pub(super) fn check(data: &[u8]) {
    let whole = heard(&[data]);
    let (one, other) = super::split(data);
    assert_eq!(heard(&[one, other]), whole, "the split at byte {} changes the outcome", one.len());
    if let Some(failure) = &whole.failure {
        super::check_shown(&failure.words);
    }
    let bytes: usize = whole.reports.iter().map(Vec::len).sum();
    assert!(bytes <= 2 * data.len());
    // With any greeting, the agent's own reports behind its marker arrive.
    let report = encode(&BootReport::Joining);
    let greeted = [data, AGENT, &framed(&report)].concat();
    if data.len() <= SHELL_GREETING_BYTES_MAX && !data.windows(MARKER).any(|window| window == AGENT) {
        let mut unread = Unread::default();
        unread.push(&greeted);
        assert_eq!(unread.skip_to(AGENT), Ok(true));
        assert_eq!(unread.next_message::<BootReport>(), Ok(Some(BootReport::Joining)));
    }
}

fn heard(pieces: &[&[u8]]) -> Heard {
    let mut heard = Heard::default();
    let mut unread = Unread::default();
    for piece in pieces {
        unread.push(piece);
        if heard.failure.is_none()
            && let Err(failure) = hear(&mut unread, &mut heard)
        {
            heard.failure = Some(failure);
        }
    }
    heard
}

fn hear(unread: &mut Unread, heard: &mut Heard) -> Result<(), StartFailure> {
    if heard.word.is_none() {
        let Some(word) = unread.word_behind(MARK)? else { return Ok(()) };
        heard.word = Some(word);
    }
    if !heard.has_marker {
        heard.has_marker = unread.skip_to(AGENT)?;
    }
    while heard.has_marker
        && let Some(report) = unread.next_message::<BootReport>()?
    {
        heard.reports.push(encode(&report));
    }
    Ok(())
}
