//! The entries that ranks put in the exchange: exactly the keys and values of `benches/programs/values.h`.
//!
//! Each value is a slice of one long text, so a million of them take no memory.

use bytes::Bytes;

/// The number of positions in the text at which a value can begin.
const STARTS: usize = 4096;
/// The longest value: that of the benchmark program.
pub(crate) const VALUE_BYTES_MAX: u32 = 1023;
/// The longest prefix of a key.
pub(crate) const PREFIX_BYTES_MAX: usize = 32;
/// The longest key: a prefix and a number.
const KEY_BYTES: usize = PREFIX_BYTES_MAX + 10;

/// See the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct Values {
    text: Vec<u8>,
    prefix: String,
    shortest: u32,
    longest: u32,
}

impl Values {
    /// Creates values of `shortest..=longest` bytes under keys that begin with `prefix`.
    pub(crate) fn new(prefix: &str, shortest: u32, longest: u32) -> Self {
        let mut seed = 0x2545_f491_4f6c_dd1d_u64;
        let text = (0..STARTS + VALUE_BYTES_MAX as usize).map(|_| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            b'a' + (seed % 26) as u8
        });
        Self { text: text.collect(), prefix: prefix.to_owned(), shortest, longest }
    }

    /// Returns the value of entry `id`.
    pub(crate) fn value(&self, id: u32) -> &[u8] {
        let start = id as usize % STARTS;
        &self.text[start..start + self.length(id)]
    }

    fn length(&self, id: u32) -> usize {
        let hash = (u64::from(id) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let span = u64::from(self.longest - self.shortest) + 1;
        self.shortest as usize + ((hash >> 32) % span) as usize
    }

    /// Writes the key of entry `id` to `into` and returns it.
    fn key<'a>(&self, id: u32, into: &'a mut [u8; KEY_BYTES]) -> &'a [u8] {
        let prefix = self.prefix.as_bytes();
        into[..prefix.len()].copy_from_slice(prefix);
        let mut digits = [0; 10];
        let (mut left, mut at) = (id, digits.len());
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let end = prefix.len() + digits.len() - at;
        into[prefix.len()..end].copy_from_slice(&digits[at..]);
        &into[..end]
    }

    /// Returns the keys of entries `0..count`. They share their memory.
    pub(crate) fn keys(&self, count: u32) -> Vec<Bytes> {
        let (mut key, mut all, mut ends) = ([0; KEY_BYTES], Vec::new(), Vec::new());
        for id in 0..count {
            all.extend_from_slice(self.key(id, &mut key));
            ends.push(all.len());
        }
        let all = Bytes::from(all);
        let begins = std::iter::once(0).chain(ends.iter().copied());
        begins.zip(&ends).map(|(begin, end)| all.slice(begin..*end)).collect()
    }

    /// Returns the total length of the keys and values of entries `0..count`, in bytes.
    pub(crate) fn bytes(&self, count: u32) -> u64 {
        let mut key = [0; KEY_BYTES];
        (0..count).map(|id| (self.length(id) + self.key(id, &mut key).len()) as u64).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_equal_those_of_the_benchmark_program() {
        let values = Values::new("card-", 1, 1000);
        let mut key = [0; KEY_BYTES];
        assert_eq!(values.key(0, &mut key), b"card-0");
        assert_eq!(values.key(u32::MAX, &mut key), b"card-4294967295");
        let keys = values.keys(101);
        assert_eq!((&keys[0][..], &keys[9][..], &keys[100][..]), (&b"card-0"[..], &b"card-9"[..], &b"card-100"[..]));
        assert_eq!(keys[1].as_ptr(), keys[0].as_ptr_range().end);
        // These lengths and this text were printed by a program that uses values.h.
        assert_eq!([0, 1, 2, 70_000].map(|id| values.length(id)), [770, 243, 13, 24]);
        assert_eq!(values.text[..12], *b"xavoihyhxdoz");
        assert_eq!(values.value(4096 + 5), &values.text[5..5 + values.length(4101)]);
        let whole: u64 = (0..50).map(|id| (values.key(id, &mut key).len() + values.value(id).len()) as u64).sum();
        assert_eq!(values.bytes(50), whole);
    }
}
