//! PMI-1: request lines, reply lines, the handshake on a port, and a whole conversation.

use pmi::v1::command::Command;
use pmi::v1::initack;
use pmi::v1::reply::ReplyLine;

use super::pmi_world::check_splits;

const INIT: &[u8] = b"cmd=init pmi_version=1 pmi_subversion=1\n";

/// Checks each line alone, then all bytes as a conversation, before and after `init`.
pub(super) fn check(data: &[u8]) {
    for line in data.split(|&byte| byte == b'\n') {
        check_line(line);
    }
    check_splits(data);
    let outcome = check_splits(&[INIT, data].concat());
    check_replies(&outcome.replies);
}

/// A command that was written is parsed as itself.
fn check_line(line: &[u8]) {
    if let Ok(command) = Command::parse(line) {
        let mut written = Vec::new();
        command.write(&mut written);
        assert_eq!(written.pop(), Some(b'\n'));
        assert_eq!(Command::parse(&written), Ok(command), "{}", written.escape_ascii());
    }
    if let Ok(rank) = initack::parse(line) {
        let mut written = Vec::new();
        Command::Initack { rank: rank.0 }.write(&mut written);
        assert_eq!(initack::parse(&written[..written.len() - 1]), Ok(rank));
    }
    if let Some(reply) = ReplyLine::parse(line) {
        let _ = (reply.reason(), reply.word("value"), reply.last("value"));
    }
}

/// Replies in PMI-1 are whole lines that a client reads. Those in PMI-2 are another check's.
fn check_replies(replies: &[u8]) {
    for line in replies.split_inclusive(|&byte| byte == b'\n').take_while(|line| line.starts_with(b"cmd=")) {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        assert!(ReplyLine::parse(line).is_some(), "{}", line.escape_ascii());
    }
}
