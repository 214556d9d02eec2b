//! [`LookUpResult`]: the final result of a look-up.

use bytes::Bytes;

use super::entry::Entry;

/// The final result of looking up a key. Cheap to clone: all parts of a process, and its caches, share the entry's memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookUpResult {
    /// The key's entry.
    Entry(Entry),
    /// No rank has put this key.
    Absent(Bytes),
}

impl LookUpResult {
    /// Returns the key.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Entry(entry) => entry.key(),
            Self::Absent(key) => key,
        }
    }

    /// Returns the value, if there is one.
    pub fn value(&self) -> Option<&[u8]> {
        self.entry().map(Entry::value)
    }

    /// Returns the entry, if there is one.
    pub fn entry(&self) -> Option<&Entry> {
        match self {
            Self::Entry(entry) => Some(entry),
            Self::Absent(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_an_entry_or_the_key_that_has_none() {
        let entry = Entry::new(b"key", b"");
        let (found, absent) = (LookUpResult::Entry(entry.clone()), LookUpResult::Absent(b"key"[..].into()));
        assert_eq!((found.key(), found.entry(), found.value()), (&b"key"[..], Some(&entry), Some(&b""[..])));
        assert_eq!((absent.key(), absent.entry(), absent.value()), (&b"key"[..], None, None));
        assert!(size_of::<LookUpResult>() <= 40, "it is passed by value");
    }
}
