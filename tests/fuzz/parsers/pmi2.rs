//! PMI-2: pairs, requests, replies and a whole conversation in frames.

use pmi::v2::command::Command;
use pmi::v2::pairs::{self, Pairs};
use pmi::v2::reply::ReplyFrame;
use pmi::wire::frame;

use super::pmi_world::check_splits;

const INIT: &[u8] = b"cmd=init pmi_version=2 pmi_subversion=0\n";
const FULL_INIT: &[u8] = b"cmd=fullinit;pmirank=3;";
/// Ends a payload in the input, so that the fuzzer need not keep lengths right. No valid text has this byte.
const END: u8 = 0xff;

/// Checks each payload alone, then all of them as frames of a conversation, then all bytes as they are.
pub(super) fn check(data: &[u8]) {
    let mut frames = [INIT, &framed(FULL_INIT)].concat();
    for payload in data.split(|&byte| byte == END) {
        check_payload(payload);
        frames.extend(framed(payload));
    }
    check_splits(&frames);
    check_splits(&[INIT, data].concat());
}

fn framed(payload: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let start = frame::begin(&mut frame);
    frame.extend_from_slice(payload);
    assert!(frame::end(start, &mut frame) || payload.len() > frame::PAYLOAD_BYTES_MAX);
    frame
}

/// Pairs and a command that were written are parsed as themselves.
fn check_payload(payload: &[u8]) {
    let found: Vec<_> = Pairs::of(payload).iter().collect();
    let mut written = Vec::new();
    for (name, value) in &found {
        assert!(name.len() + value.len() < payload.len());
        // Only names of ASCII letters are ever written.
        if let Ok(name) = str::from_utf8(name) {
            pairs::write(name, value, &mut written);
        }
    }
    let names_are_text = found.iter().all(|(name, _)| str::from_utf8(name).is_ok());
    if names_are_text {
        assert_eq!(Pairs::of(&written).iter().collect::<Vec<_>>(), found);
    }
    if let Ok(command) = Command::parse(Pairs::of(payload)) {
        let mut frame = Vec::new();
        if command.write(&mut frame) {
            assert_eq!(frame::length(&frame), Ok(Some(frame.len() - frame::HEADER_BYTES)));
            let again = Command::parse(Pairs::of(&frame[frame::HEADER_BYTES..]));
            assert_eq!(again, Ok(command), "{}", frame.escape_ascii());
        }
    }
    if let Some(reply) = ReplyFrame::parse(payload) {
        let _ = (reply.reason(), reply.found("value"), reply.number::<i32>("rank"));
    }
}
