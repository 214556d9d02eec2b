//! serde for `Result<Vec<u8>, E>` with a byte string instead of a sequence of numbers.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_bytes::{ByteBuf, Bytes};

/// Serializes the result.
pub fn serialize<E: Serialize, S: Serializer>(result: &Result<Vec<u8>, E>, serializer: S) -> Result<S::Ok, S::Error> {
    result.as_ref().map(|bytes| Bytes::new(bytes)).serialize(serializer)
}

/// Deserializes the result.
pub fn deserialize<'de, E: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Result<Vec<u8>, E>, D::Error> {
    Ok(Result::<ByteBuf, E>::deserialize(deserializer)?.map(ByteBuf::into_vec))
}
