//! Tests of the decoder: rmp-serde's encoder is the oracle.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::*;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Unit;

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
struct Newtype(u16);

#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
enum Shape {
    Unit,
    Newtype(Option<Box<Shape>>),
    Tuple(u8, String),
    Struct { number: i64, list: Vec<Newtype> },
}

fn encode<T: Serialize>(value: &T) -> Vec<u8> {
    rmp_serde::to_vec(value).unwrap()
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    let mut decoder = Decoder::new(bytes);
    let value = T::deserialize(&mut decoder)?;
    assert_eq!((decoder.rest().len(), decoder.depth), (0, DEPTH_MAX));
    Ok(value)
}

/// Asserts that the decoder reverses rmp-serde's encoding, and that it refuses every prefix of it.
#[track_caller]
fn check<T: Serialize + DeserializeOwned + PartialEq + Debug>(value: T) {
    let bytes = encode(&value);
    assert_eq!(decode::<T>(&bytes).unwrap(), value, "{bytes:02x?}");
    for length in 0..bytes.len().min(100) {
        assert!(matches!(decode::<T>(&bytes[..length]), Err(DecodeError::Short)), "{length} bytes of {bytes:02x?}");
    }
}

#[test]
fn values_of_each_type_are_decoded() {
    for number in [0, 1, 127, 128, 255, 256, 65535, 65536, u64::from(u32::MAX), 1 << 32, u64::MAX] {
        check(number);
    }
    for number in [-1, -32, -33, -128, -129, -32768, -32769, i64::MIN, 0, 127, 128, i64::MAX] {
        check(number);
    }
    check((true, false, 'ä', 1.5f32, -2.5f64, (), i8::MIN, u8::MAX));
    for length in [0, 31, 32, 255, 256, 65535, 65536] {
        check("x".repeat(length));
        check(serde_bytes::ByteBuf::from(vec![7; length]));
        check(vec![3u8; length]);
    }
    check((0..20).map(|number| (number, number.to_string())).collect::<BTreeMap<u32, String>>());
    check((Some(3), None::<u32>, Unit, Newtype(300), [1u16, 2, 3]));
    check((Duration::from_millis(1500), SocketAddr::from(([127, 0, 0, 1], 80)), IpAddr::V4(Ipv4Addr::LOCALHOST)));
    check(Shape::Unit);
    check(Shape::Newtype(Some(Box::new(Shape::Newtype(None)))));
    check(vec![Shape::Tuple(1, "two".to_owned()), Shape::Struct { number: -3, list: vec![Newtype(4), Newtype(5)] }]);
    check((Ok::<(), u8>(()), Err::<(), u8>(4)));
}

#[test]
fn encodings_of_other_types_are_refused() {
    assert!(matches!(decode::<u8>(&encode(&256)), Err(DecodeError::Invalid(_))));
    assert!(matches!(decode::<u8>(&encode(&-1)), Err(DecodeError::Invalid(_))));
    assert!(matches!(decode::<i64>(&encode(&u64::MAX)), Err(DecodeError::Invalid(_))));
    assert!(matches!(decode::<u8>(&encode(&"1")), Err(DecodeError::Unexpected { marker: 0xa1, .. })));
    assert!(matches!(decode::<String>(&encode(&1)), Err(DecodeError::Unexpected { marker: 1, .. })));
    assert!(matches!(decode::<bool>(&encode(&())), Err(DecodeError::Unexpected { marker: 0xc0, .. })));
    assert!(matches!(decode::<String>(b"\xa1\xff"), Err(DecodeError::NotText)));
    assert!(matches!(decode::<(u8, u8)>(&encode(&[1, 2, 3])), Err(DecodeError::Excess(1))));
    assert!(matches!(decode::<(u8, u8)>(&encode(&[1])), Err(DecodeError::Invalid(_))));
    // A variant without its data, a unit variant with data, two variants at once, and an unknown variant.
    assert!(matches!(decode::<Shape>(&encode(&"Tuple")), Err(DecodeError::Variant(_))));
    assert!(matches!(decode::<Shape>(&encode(&BTreeMap::from([("Unit", ())]))), Err(DecodeError::Variant(_))));
    let two = BTreeMap::from([("Newtype", ()), ("Unit", ())]);
    assert!(matches!(decode::<Shape>(&encode(&two)), Err(DecodeError::Variant(_))));
    assert!(matches!(decode::<Shape>(&encode(&"Circle")), Err(DecodeError::Invalid(_))));
    assert!(matches!(decode::<Shape>(&[]), Err(DecodeError::Short)));
}

#[test]
fn nesting_is_bounded() {
    let nested = |depth: usize| (0..depth).fold(Shape::Newtype(None), |inner, _| Shape::Newtype(Some(inner.into())));
    assert!(decode::<Shape>(&encode(&nested(DEPTH_MAX - 1))).is_ok());
    let deep = encode(&nested(DEPTH_MAX));
    assert!(matches!(decode::<Shape>(&deep), Err(DecodeError::TooDeep)));
}

#[test]
fn durations_are_bounded_wherever_they_are() {
    let longest = Duration::new(DURATION_SECONDS_MAX - 1, 999_999_999);
    check((1, vec![Some(longest), None]));
    for seconds in [DURATION_SECONDS_MAX, u64::MAX - 1, u64::MAX] {
        let too_long = (1, vec![Some(Duration::from_secs(seconds))]);
        let read = decode::<(u8, Vec<Option<Duration>>)>(&encode(&too_long));
        assert!(matches!(read, Err(DecodeError::Duration(read)) if read == seconds), "{read:?}");
    }
    // Without the bound, serde itself would refuse only the sum of seconds and nanoseconds.
    assert!(decode::<Duration>(&encode(&(u64::MAX, u32::MAX))).is_err());
    assert!(matches!(decode::<Duration>(&encode(&[0u64; 0])), Err(DecodeError::Invalid(_))));
}

#[test]
fn a_false_length_reserves_no_memory() {
    for bytes in [&b"\xdd\xff\xff\xff\xff\x01"[..], b"\xc6\xff\xff\xff\xff\x01", b"\xdb\xff\xff\xff\xff\x01"] {
        assert!(decode::<Vec<u64>>(bytes).is_err());
        assert!(decode::<serde_bytes::ByteBuf>(bytes).is_err());
        assert!(decode::<String>(bytes).is_err());
    }
}

#[test]
fn errors_repeat_a_peers_words_without_control_characters_and_up_to_a_bound() {
    let refused = |name: &str| decode::<Shape>(&encode(&name)).unwrap_err().to_string();
    let text = refused("\x1b[2J\r\nShape");
    assert!(text.starts_with("unknown variant `?[2J??Shape`"), "{text}");
    assert_eq!(refused(&"x".repeat(1 << 20)).len(), WORDS_CHARS_MAX);
}
