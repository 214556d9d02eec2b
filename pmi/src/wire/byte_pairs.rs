//! serde for `Vec<(Vec<u8>, Vec<u8>)>` as a sequence of pairs of byte strings.

use serde::{Deserialize, Deserializer, Serializer};
use serde_bytes::{ByteBuf, Bytes};

type Pair = (Vec<u8>, Vec<u8>);

/// Serializes the list.
pub fn serialize<S: Serializer>(list: &[Pair], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(list.iter().map(|(key, value)| (Bytes::new(key), Bytes::new(value))))
}

/// Deserializes the list.
pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Pair>, D::Error> {
    let list = Vec::<(ByteBuf, ByteBuf)>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|(key, value)| (key.into_vec(), value.into_vec())).collect())
}
