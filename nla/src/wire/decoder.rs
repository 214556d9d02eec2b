//! Decodes messages from MessagePack, as rmp-serde encodes them.
//!
//! Messages know their types, so each method accepts only the encoding of the type that is asked for. rmp-serde's own
//! decoder accepts any type at any place: the compiler then generates about 2,000 lines of LLVM IR per type, which made
//! up half the time to compile this crate.

use std::fmt::Display;

use rmp::Marker;
use serde::de::{self, DeserializeSeed, Visitor};
use thiserror::Error;

use crate::core::limits::DURATION_SECONDS_MAX;

/// The name that serde gives to [`std::time::Duration`].
const DURATION: &str = "Duration";

/// Arrays and maps nest at most this deep, so that no message overflows the stack.
const DEPTH_MAX: usize = 32;

/// The most characters of [`DecodeError::Invalid`].
const WORDS_CHARS_MAX: usize = 256;

/// An error in bytes that are not the expected message.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// The bytes end inside the message.
    #[error("it ends early")]
    Short,
    /// The first byte is the encoding of another type.
    #[error("it has the byte {marker:#04x} at the place of {expected}")]
    Unexpected {
        /// The first byte of the encoding.
        marker: u8,
        /// The expected type.
        expected: &'static str,
    },
    /// A string is not UTF-8.
    #[error("it has a string that is not UTF-8")]
    NotText,
    /// An array or a map has more elements than its type.
    #[error("it has {0} elements too many")]
    Excess(usize),
    /// An enum's variant has data and should have none, or has none and should have some.
    #[error("it has a variant {0} data")]
    Variant(&'static str),
    /// Arrays and maps nest deeper than 32.
    #[error("it nests too deep")]
    TooDeep,
    /// A duration is so long that adding it to a time could overflow.
    #[error("it has a duration of {0} s, which is too long")]
    Duration(u64),
    /// The type occurs in no message.
    #[error("it is of a type that no message has")]
    Unsupported,
    /// The type rejects the value.
    #[error("{0}")]
    Invalid(String),
}

impl de::Error for DecodeError {
    #[cold]
    fn custom<T: Display>(message: T) -> Self {
        // The text may repeat words of the peer, and logs and reports show it.
        let shown = |letter: char| if letter.is_control() { '?' } else { letter };
        Self::Invalid(message.to_string().chars().take(WORDS_CHARS_MAX).map(shown).collect())
    }
}

/// Reads values from the front of a byte slice.
pub(super) struct Decoder<'de> {
    rest: &'de [u8],
    /// The number of further levels of arrays and maps that may nest.
    depth: usize,
}

impl<'de> Decoder<'de> {
    pub(super) fn new(bytes: &'de [u8]) -> Self {
        Self { rest: bytes, depth: DEPTH_MAX }
    }

    /// Returns the bytes that have not been read yet.
    pub(super) fn rest(&self) -> &'de [u8] {
        self.rest
    }

    fn take(&mut self, count: usize) -> Result<&'de [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(DecodeError::Short)?;
        self.rest = rest;
        Ok(*taken)
    }

    fn marker(&mut self) -> Result<Marker, DecodeError> {
        self.array().map(|[byte]| Marker::from_u8(byte))
    }

    fn peek(&self) -> Result<Marker, DecodeError> {
        self.rest.first().map(|byte| Marker::from_u8(*byte)).ok_or(DecodeError::Short)
    }

    fn length_8(&mut self) -> Result<usize, DecodeError> {
        self.array().map(|[length]| usize::from(length))
    }

    fn length_16(&mut self) -> Result<usize, DecodeError> {
        self.array().map(|length| usize::from(u16::from_be_bytes(length)))
    }

    fn length_32(&mut self) -> Result<usize, DecodeError> {
        self.array().map(|length| u32::from_be_bytes(length) as usize)
    }

    /// Reads any integer: encoders choose the shortest form, whatever the type.
    fn integer(&mut self) -> Result<i128, DecodeError> {
        Ok(match self.marker()? {
            Marker::FixPos(value) => value.into(),
            Marker::U8 => u8::from_be_bytes(self.array()?).into(),
            Marker::U16 => u16::from_be_bytes(self.array()?).into(),
            Marker::U32 => u32::from_be_bytes(self.array()?).into(),
            Marker::U64 => u64::from_be_bytes(self.array()?).into(),
            Marker::I8 => i8::from_be_bytes(self.array()?).into(),
            Marker::I16 => i16::from_be_bytes(self.array()?).into(),
            Marker::I32 => i32::from_be_bytes(self.array()?).into(),
            Marker::I64 => i64::from_be_bytes(self.array()?).into(),
            Marker::FixNeg(value) => value.into(),
            marker => return Err(unexpected(marker, "an integer")),
        })
    }

    fn unsigned(&mut self) -> Result<u64, DecodeError> {
        self.integer()?.try_into().map_err(|_| DecodeError::Invalid("it has a negative number".to_owned()))
    }

    fn signed(&mut self) -> Result<i64, DecodeError> {
        self.integer()?.try_into().map_err(|_| DecodeError::Invalid("it has too large a number".to_owned()))
    }

    fn float(&mut self) -> Result<f64, DecodeError> {
        match self.marker()? {
            Marker::F32 => Ok(f32::from_be_bytes(self.array()?).into()),
            Marker::F64 => Ok(f64::from_be_bytes(self.array()?)),
            marker => Err(unexpected(marker, "a float")),
        }
    }

    fn boolean(&mut self) -> Result<bool, DecodeError> {
        match self.marker()? {
            Marker::False => Ok(false),
            Marker::True => Ok(true),
            marker => Err(unexpected(marker, "a boolean")),
        }
    }

    fn nil(&mut self) -> Result<(), DecodeError> {
        match self.marker()? {
            Marker::Null => Ok(()),
            marker => Err(unexpected(marker, "nil")),
        }
    }

    fn text(&mut self) -> Result<&'de str, DecodeError> {
        let length = match self.marker()? {
            Marker::FixStr(length) => length.into(),
            Marker::Str8 => self.length_8()?,
            Marker::Str16 => self.length_16()?,
            Marker::Str32 => self.length_32()?,
            marker => return Err(unexpected(marker, "a string")),
        };
        str::from_utf8(self.take(length)?).map_err(|_| DecodeError::NotText)
    }

    fn bytes(&mut self) -> Result<&'de [u8], DecodeError> {
        let length = match self.marker()? {
            Marker::Bin8 => self.length_8()?,
            Marker::Bin16 => self.length_16()?,
            Marker::Bin32 => self.length_32()?,
            marker => return Err(unexpected(marker, "a byte string")),
        };
        self.take(length)
    }

    /// Enters an array and returns its length.
    fn enter_array(&mut self) -> Result<usize, DecodeError> {
        let length = match self.marker()? {
            Marker::FixArray(length) => length.into(),
            Marker::Array16 => self.length_16()?,
            Marker::Array32 => self.length_32()?,
            marker => return Err(unexpected(marker, "an array")),
        };
        self.enter(length)
    }

    /// Enters a map and returns the number of its entries.
    fn enter_map(&mut self) -> Result<usize, DecodeError> {
        let length = match self.marker()? {
            Marker::FixMap(length) => length.into(),
            Marker::Map16 => self.length_16()?,
            Marker::Map32 => self.length_32()?,
            marker => return Err(unexpected(marker, "a map")),
        };
        self.enter(length)
    }

    fn enter(&mut self, length: usize) -> Result<usize, DecodeError> {
        // Each element takes at least one byte: a false length must not reserve memory.
        if length > self.rest.len() {
            return Err(DecodeError::Short);
        }
        self.depth = self.depth.checked_sub(1).ok_or(DecodeError::TooDeep)?;
        Ok(length)
    }

    /// Leaves an array or a map of which `left` elements have not been read. Fails unless `left` is 0.
    fn leave(&mut self, left: usize) -> Result<(), DecodeError> {
        self.depth += 1;
        match left {
            0 => Ok(()),
            left => Err(DecodeError::Excess(left)),
        }
    }

    /// Refuses a duration of [`DURATION_SECONDS_MAX`] or more, which is the next value. Reads nothing.
    fn check_duration(&self) -> Result<(), DecodeError> {
        let mut ahead = Self { rest: self.rest, depth: self.depth };
        let elements = ahead.enter_array()?;
        let seconds = if elements > 0 { ahead.unsigned()? } else { 0 };
        if seconds < DURATION_SECONDS_MAX { Ok(()) } else { Err(DecodeError::Duration(seconds)) }
    }

    fn seq<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, DecodeError> {
        let mut left = self.enter_array()?;
        let value = visitor.visit_seq(Elements { decoder: self, left: &mut left })?;
        self.leave(left)?;
        Ok(value)
    }
}

fn unexpected(marker: Marker, expected: &'static str) -> DecodeError {
    DecodeError::Unexpected { marker: marker.to_u8(), expected }
}

/// The remaining elements of an array or a map.
struct Elements<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    left: &'a mut usize,
}

impl Elements<'_, '_> {
    fn next(&mut self) -> bool {
        let more = *self.left > 0;
        *self.left -= usize::from(more);
        more
    }
}

impl<'de> de::SeqAccess<'de> for Elements<'_, 'de> {
    type Error = DecodeError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, DecodeError> {
        if self.next() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    fn size_hint(&self) -> Option<usize> {
        Some(*self.left)
    }
}

impl<'de> de::MapAccess<'de> for Elements<'_, 'de> {
    type Error = DecodeError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, DecodeError> {
        if self.next() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, DecodeError> {
        seed.deserialize(&mut *self.decoder)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(*self.left)
    }
}

/// A variant of an enum: its name alone, or a map of one entry from its name to its data.
struct Variant<'a, 'de> {
    decoder: &'a mut Decoder<'de>,
    has_data: bool,
}

impl<'a, 'de> Variant<'a, 'de> {
    fn data(self) -> Result<&'a mut Decoder<'de>, DecodeError> {
        if self.has_data { Ok(self.decoder) } else { Err(DecodeError::Variant("without its")) }
    }
}

impl<'de> de::EnumAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;
    type Variant = Self;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Self), DecodeError> {
        Ok((seed.deserialize(&mut *self.decoder)?, self))
    }
}

impl<'de> de::VariantAccess<'de> for Variant<'_, 'de> {
    type Error = DecodeError;

    fn unit_variant(self) -> Result<(), DecodeError> {
        if self.has_data { Err(DecodeError::Variant("with unknown")) } else { Ok(()) }
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, DecodeError> {
        seed.deserialize(self.data()?)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.data()?.seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.data()?.seq(visitor)
    }
}

/// Defines the methods for types whose decoding is one call.
macro_rules! decode_by {
    ($($method:ident: $read:ident -> $visit:ident;)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
            visitor.$visit(self.$read()?)
        }
    )*};
}

impl<'de> de::Deserializer<'de> for &mut Decoder<'de> {
    type Error = DecodeError;

    decode_by! {
        deserialize_bool: boolean -> visit_bool;
        deserialize_i8: signed -> visit_i64;
        deserialize_i16: signed -> visit_i64;
        deserialize_i32: signed -> visit_i64;
        deserialize_i64: signed -> visit_i64;
        deserialize_u8: unsigned -> visit_u64;
        deserialize_u16: unsigned -> visit_u64;
        deserialize_u32: unsigned -> visit_u64;
        deserialize_u64: unsigned -> visit_u64;
        deserialize_f32: float -> visit_f64;
        deserialize_f64: float -> visit_f64;
        deserialize_char: text -> visit_borrowed_str;
        deserialize_str: text -> visit_borrowed_str;
        deserialize_string: text -> visit_borrowed_str;
        deserialize_identifier: text -> visit_borrowed_str;
        deserialize_bytes: bytes -> visit_borrowed_bytes;
        deserialize_byte_buf: bytes -> visit_borrowed_bytes;
    }

    fn is_human_readable(&self) -> bool {
        false
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::Unsupported)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, DecodeError> {
        Err(DecodeError::Unsupported)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        if self.peek()? == Marker::Null {
            self.nil()?;
            return visitor.visit_none();
        }
        visitor.visit_some(self)
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.nil()?;
        visitor.visit_unit()
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        let left = self.enter_array()?;
        self.leave(left)?;
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, DecodeError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        self.seq(visitor)
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _length: usize, visitor: V) -> Result<V::Value, DecodeError> {
        self.seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _length: usize,
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        self.seq(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        if name == DURATION {
            self.check_duration()?;
        }
        self.seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, DecodeError> {
        let mut left = self.enter_map()?;
        let value = visitor.visit_map(Elements { decoder: self, left: &mut left })?;
        self.leave(left)?;
        Ok(value)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DecodeError> {
        let has_data = matches!(self.peek()?, Marker::FixMap(_) | Marker::Map16 | Marker::Map32);
        if !has_data {
            return visitor.visit_enum(Variant { decoder: self, has_data });
        }
        let entries = self.enter_map()?;
        if entries != 1 {
            return Err(DecodeError::Variant("with missing or doubled"));
        }
        let value = visitor.visit_enum(Variant { decoder: self, has_data })?;
        self.leave(0)?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
