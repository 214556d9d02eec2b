//! serde for `Vec<Vec<u8>>` as a sequence of byte strings instead of sequences of numbers.

use serde::{Deserialize, Deserializer, Serializer};
use serde_bytes::{ByteBuf, Bytes};

/// Serializes the list.
pub fn serialize<S: Serializer>(list: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|item| Bytes::new(item)))
}

/// Deserializes the list.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
    let list = Vec::<ByteBuf>::deserialize(deserializer)?;
    Ok(list.into_iter().map(ByteBuf::into_vec).collect())
}
