//! [`LookUpResult`]: what has come of looking for a key.

use bytes::Bytes;

use super::entry::Entry;

/// What has come of looking for a key. Cheap to clone: on its way from place to place in one process,
/// and into the caches on that way, an entry stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookUpResult {
    /// Its entry.
    Entry(Entry),
    /// That nobody has put this key.
    Absent(Bytes),
}

impl LookUpResult {
    /// What was looked for.
    pub fn key(&self) -> &[u8] {
        match self {
            Self::Entry(entry) => entry.key(),
            Self::Absent(key) => key,
        }
    }

    /// The value, if there is one.
    pub fn value(&self) -> Option<&[u8]> {
        self.entry().map(Entry::value)
    }

    /// The entry, if there is one.
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
    fn is_an_entry_or_says_which_key_has_none() {
        let entry = Entry::new(b"key", b"");
        let (found, absent) = (LookUpResult::Entry(entry.clone()), LookUpResult::Absent(b"key"[..].into()));
        assert_eq!((found.key(), found.entry(), found.value()), (&b"key"[..], Some(&entry), Some(&b""[..])));
        assert_eq!((absent.key(), absent.entry(), absent.value()), (&b"key"[..], None, None));
        assert!(size_of::<LookUpResult>() <= 40, "it is handed on by value");
    }
}
