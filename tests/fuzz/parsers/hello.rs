//! The bytes of a handshake, from a peer that does not know the key, and damaged ones of a peer that does.

use nla::core::AgentId;
use nla::wire::{HelloError, Initiator, Responder, Role, Seen, SessionId};

const SESSION: SessionId = SessionId(0x5ce1a);

const KEY: [u8; 32] = [9; 32];
const ROLE: Role = Role::Link { parent: AgentId(1) };

/// Checks the bytes as a request, as an answer, and as changes of both.
pub(super) fn check(data: &[u8]) {
    let mut seen = Seen::default();
    if let Some(request) = data.first_chunk::<{ Responder::REQUEST_BYTES }>() {
        check_refused(request, &mut seen);
    }
    let (initiator, request) = Initiator::new(SESSION, &KEY, ROLE).expect("a handshake begins");
    let request: [u8; Responder::REQUEST_BYTES] = *request.first_chunk().expect("a request has its length");
    let damaged = changed(request, data);
    if damaged != request {
        check_refused(&damaged, &mut seen);
    }
    let (established, answer) = Responder::answer(&request, SESSION, &KEY, ROLE, &mut seen);
    assert!(established.is_ok(), "the right key is refused: {established:?}");
    assert_eq!(answer.len(), Initiator::ANSWER_BYTES);
    check_refused(&request, &mut seen);
    let answer: [u8; Initiator::ANSWER_BYTES] = *answer.first_chunk().expect("an answer has its length");
    let damaged = changed(answer, data);
    let (verdict, message) = damaged.split_first_chunk().expect("an answer begins with a verdict");
    let accepted = initiator.verdict(verdict).and_then(|()| initiator.finish(message).map(drop));
    // The preamble and the verdict are in clear and not in the handshake. An attacker can change them, but gains nothing.
    if damaged[Initiator::VERDICT_BYTES..] != answer[Initiator::VERDICT_BYTES..] {
        assert!(accepted.is_err(), "a damaged answer is accepted");
    } else if damaged == answer {
        assert_eq!(accepted, Ok(()));
    }
}

/// A request that proves no key is refused with a short answer, which a child understands.
fn check_refused(request: &[u8; Responder::REQUEST_BYTES], seen: &mut Seen) {
    let (result, answer) = Responder::answer(request, SESSION, &KEY, ROLE, seen);
    let error = result.map(drop).expect_err("a request without a proof is accepted");
    super::check_shown(&error.to_string());
    assert_eq!(answer.len(), Initiator::VERDICT_BYTES);
    let (initiator, _) = Initiator::new(SESSION, &KEY, ROLE).expect("a handshake begins");
    let verdict = initiator.verdict(answer.first_chunk().expect("an answer begins with a verdict"));
    match (error, verdict) {
        (HelloError::NotScela | HelloError::Version { .. }, Err(HelloError::Key)) => {}
        (error, verdict) => assert_eq!(verdict, Err(error)),
    }
}

/// Returns `bytes` with the bits of `changes` flipped, from its end on.
fn changed<const N: usize>(mut bytes: [u8; N], changes: &[u8]) -> [u8; N] {
    for (byte, change) in bytes.iter_mut().rev().zip(changes) {
        *byte ^= change;
    }
    bytes
}
