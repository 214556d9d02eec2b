//! Values that ranks have published by PMIx, and the ranks that wait for some.
//!
//! Unlike names of PMI, a value may be read once only, and a reader may wait for it.

use litemap::LiteMap;
use pmi::{NameError, PmixAnswer};

use super::{Root, Turn};
use crate::core::limits::{POSTS_BYTES_MAX, READERS_MAX};
use crate::core::message::{Reply, Requester};

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// The published values, and the ranks that wait for some.
#[derive(Debug, Default)]
pub(super) struct Posts {
    posts: LiteMap<Vec<u8>, Post>,
    /// Bytes of all keys and values.
    bytes: usize,
    readers: Vec<(Requester, Vec<Vec<u8>>)>,
}

#[derive(Debug)]
struct Post {
    value: Vec<u8>,
    /// It is removed when it is read.
    once: bool,
}

impl Posts {
    /// Publishes all entries or none.
    fn post(&mut self, entries: Vec<Entry>, once: bool) -> Result<(), NameError> {
        if entries.iter().any(|(key, _)| self.posts.contains_key(key)) {
            return Err(NameError::Taken);
        }
        let bytes: usize = entries.iter().map(|(key, value)| key.len() + value.len()).sum();
        if self.bytes + bytes > POSTS_BYTES_MAX {
            return Err(NameError::Full);
        }
        self.bytes += bytes;
        for (key, value) in entries {
            self.posts.insert(key, Post { value, once });
        }
        Ok(())
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(post) = self.posts.remove(key) {
            self.bytes -= key.len() + post.value.len();
        }
    }

    fn has_all(&self, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.posts.contains_key(key))
    }

    /// Reads those of the keys that have a value.
    fn read(&mut self, keys: &[Vec<u8>]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for key in keys {
            let Some(post) = self.posts.get(key) else { continue };
            entries.push((key.clone(), post.value.clone()));
            if post.once {
                self.remove(key);
            }
        }
        entries
    }
}

impl Root {
    /// Publishes values, and answers the ranks that have waited for them.
    pub(super) fn post(&mut self, entries: Vec<Entry>, once: bool, turn: &mut Turn<'_>) -> Result<(), NameError> {
        let posted = self.posts.post(entries, once);
        let mut at = 0;
        while let Some((requester, keys)) = self.posts.readers.get(at) {
            if !self.posts.has_all(keys) {
                at += 1;
                continue;
            }
            let requester = *requester;
            let (_, keys) = self.posts.readers.remove(at);
            let entries = self.posts.read(&keys);
            self.reply(requester, Reply::Pmix(PmixAnswer::Read(entries)), turn);
        }
        posted
    }

    /// Reads values. Returns `None` if the rank waits for some.
    pub(super) fn read(&mut self, requester: Requester, keys: Vec<Vec<u8>>, wait: bool) -> Option<Vec<Entry>> {
        if wait && !self.posts.has_all(&keys) && self.posts.readers.len() < READERS_MAX {
            self.posts.readers.push((requester, keys));
            return None;
        }
        Some(self.posts.read(&keys))
    }

    /// Removes values.
    pub(super) fn unpost(&mut self, keys: &[Vec<u8>]) {
        keys.iter().for_each(|key| self.posts.remove(key));
    }
}
