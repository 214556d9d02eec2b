//! MessagePack: all messages between agents, and the decoder under them.

use bytes::Bytes;
use nla::core::{Down, Inquiry, NamespacePlan, SessionPlan, Stats, Timing, Up};
use nla::wire::{Hello, TreePosition, Welcome, decode, decode_down, encode, encoded_bytes};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks the bytes as each type of message.
pub(super) fn check(data: &[u8]) {
    check_as::<Up>(data);
    check_as::<Down>(data);
    check_as::<Inquiry>(data);
    check_as::<NamespacePlan>(data);
    check_as::<SessionPlan>(data);
    check_as::<Stats>(data);
    check_as::<Timing>(data);
    check_as::<Hello>(data);
    check_as::<Welcome>(data);
    if let Some(position) = check_as::<TreePosition>(data) {
        assert!(position.subtree().is_none_or(|subtree| subtree.head() == position.agent));
    }
    check_down(data);
}

/// A message that was decoded is the same after it was encoded and decoded again, and takes no more memory than a small
/// multiple of its bytes. Returns the message.
pub(super) fn check_as<T: Serialize + DeserializeOwned>(data: &[u8]) -> Option<T> {
    let message: T = match decode(data) {
        Ok(message) => message,
        Err(error) => {
            super::check_shown(&error.to_string());
            return None;
        }
    };
    let encoded = encode(&message);
    assert_eq!(encoded.len(), encoded_bytes(&message));
    // The encoder writes the shortest form of each value, but some floats have a shorter one. A control character of a text
    // is decoded as its escape, `\u{12}`.
    assert!(encoded.len() <= 6 * data.len(), "{} bytes became {}", data.len(), encoded.len());
    let again: T = decode(&encoded).expect("an encoded message can be decoded");
    assert_eq!(encode(&again), encoded);
    let cut = &encoded[..encoded.len() - 1];
    assert!(decode::<T>(cut).is_err(), "a message without its last byte is decoded");
    Some(message)
}

/// The decoder that copies no epoch agrees with the other one.
fn check_down(data: &[u8]) {
    let bytes = Bytes::copy_from_slice(data);
    let mut is_in_log = false;
    let down = decode_down(&bytes, |_, _| {
        is_in_log = true;
        None
    });
    match (decode::<Down>(data), down) {
        (Ok(one), Ok(other)) => assert_eq!(encode(&one), encode(&other)),
        (Err(_), Err(_)) => {}
        (one, other) => panic!("the two decoders disagree: {} and {}", one.is_ok(), other.is_ok()),
    }
    assert!(!is_in_log || decode::<Down>(data).is_err(), "a reference to the log is another message too");
}
