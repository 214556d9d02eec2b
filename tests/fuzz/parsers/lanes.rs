//! The lanes of a link: messages in pieces, and the content of records.

use std::cell::RefCell;

use bytes::Bytes;
use nla::core::limits::RECORD_BYTES_MAX;
use nla::wire::{Assembler, Content, Established, Initiator, Lane, Responder, Role, Seen, SessionId};

/// Checks the bytes as the stream of a lane, as the content of a record, and as a sealed record.
pub(super) fn check(data: &[u8]) {
    let lane = Lane::ALL[usize::from(data.first().copied().unwrap_or(0)) % Lane::ALL.len()];
    check_stream(lane, data.get(1..).unwrap_or_default());
    check_content(data);
    LINK.with_borrow_mut(|link| link.check(data));
}

/// Messages do not depend on the pieces in which they arrive.
fn check_stream(lane: Lane, stream: &[u8]) {
    let whole = assembled(lane, &[stream]);
    let (one, other) = super::split(stream);
    assert_eq!(assembled(lane, &[one, other]), whole);
    let (messages, is_valid) = &whole;
    let written: Vec<u8> = messages.iter().flat_map(|message| nla::wire::framed(message)).collect();
    assert!(stream.starts_with(&written));
    assert!(messages.iter().all(|message| message.len() <= lane.message_bytes_max()));
    // The rest is a part of one message, or a length that is refused.
    if *is_valid && let Some(length) = stream[written.len()..].first_chunk() {
        assert!(u32::from_le_bytes(*length) as usize > stream.len() - written.len() - length.len());
    }
}

/// Returns the messages of a stream, and whether it is valid to its end.
fn assembled(lane: Lane, pieces: &[&[u8]]) -> (Vec<Bytes>, bool) {
    let mut assembler = Assembler::new(lane);
    let mut messages = Vec::new();
    for piece in pieces {
        assembler.push(piece);
        loop {
            match assembler.next_message() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(error) => {
                    super::check_shown(&error.to_string());
                    return (messages, false);
                }
            }
        }
    }
    (messages, true)
}

/// Content that was read is the same after it was written and read again.
fn check_content(plain: &[u8]) {
    if let Ok(content) = Content::read(plain) {
        let mut written = Vec::new();
        content.write(&mut written);
        assert_eq!(written, plain);
        assert_eq!(Content::read(&written), Ok(content));
    }
}

thread_local! {
    static LINK: RefCell<SealedLink> = RefCell::new(SealedLink::new());
}

/// Both ends of a link. A handshake is slow, so one link serves all inputs of a thread.
struct SealedLink {
    child: Established,
    parent: Established,
}

impl SealedLink {
    fn new() -> Self {
        let (session, key, role) = (SessionId(1), [7; 32], Role::Callback { starter: 0 });
        let (initiator, request) = Initiator::new(session, &key, role).expect("a handshake begins");
        let request = request.first_chunk().expect("a request has its length");
        let (parent, answer) = Responder::answer(request, session, &key, role, &mut Seen::default());
        let child = initiator.finish(&answer[Initiator::VERDICT_BYTES..]).expect("the key is right");
        Self { child, parent: parent.expect("the key is right") }
    }

    /// A sealed record opens to its content; bytes that the peer has not sealed do not open.
    fn check(&mut self, data: &[u8]) {
        assert!(!matches!(self.parent.opener.open(data), Ok(Some(_))), "a record was opened that was not sealed");
        let number = data.first_chunk().map_or(0, |grant| u32::from_le_bytes(*grant));
        let piece = &data[..data.len().min(RECORD_BYTES_MAX)];
        for content in [Content::Piece(Lane::Board, piece), Content::Grant(Lane::Stdout, number), Content::Alive] {
            let mut record = Vec::new();
            self.child.sealer.seal(&content, &mut record);
            let is_flipped = self.flipped(&record, number);
            assert!(is_flipped, "a damaged record was opened");
            let opened = self.parent.opener.open(&record).expect("it was sealed by the peer");
            assert_eq!(opened, Some((content, record.len())));
        }
    }

    /// Returns whether a record with one flipped bit is refused.
    fn flipped(&mut self, record: &[u8], bit: u32) -> bool {
        let mut record = record.to_vec();
        let at = bit as usize % record.len();
        record[at] ^= 1 << (bit % 8);
        !matches!(self.parent.opener.open(&record), Ok(Some(_)))
    }
}
