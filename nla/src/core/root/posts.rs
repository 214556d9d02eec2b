//! Values that ranks have published by PMIx, and the ranks that wait for some.
//!
//! Unlike names of PMI, a value may be read once only, a reader may wait for it, and a value may be published to some ranks
//! only.

use std::time::Duration;

use litemap::LiteMap;
use pmi::{NameError, PmixAnswer, PostRange, Rank};

use super::{Root, Turn};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::{POSTS_BYTES_MAX, READERS_MAX};
use crate::core::message::{Reply, Requester};

/// A key and its value.
type Entry = (Vec<u8>, Vec<u8>);

/// The ranks that can look up a value. A key has one value in each scope. Narrow scopes are first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Scope {
    Rank(NamespaceId, Rank),
    /// A node has one agent.
    Node(AgentId),
    Namespace(NamespaceId),
    Session,
}

/// A rank that publishes or looks up values. The requester's rank is a number of the node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller {
    pub(super) requester: Requester,
    pub(super) rank: Rank,
}

impl Caller {
    fn scope(&self, range: PostRange) -> Scope {
        match range {
            PostRange::Rank => Scope::Rank(self.requester.namespace, self.rank),
            PostRange::Node => Scope::Node(self.requester.agent),
            PostRange::Namespace => Scope::Namespace(self.requester.namespace),
            PostRange::Session => Scope::Session,
        }
    }

    /// The scopes that it belongs to, the narrowest first.
    fn scopes(&self) -> [Scope; 4] {
        [PostRange::Rank, PostRange::Node, PostRange::Namespace, PostRange::Session].map(|range| self.scope(range))
    }
}

/// The published values, and the ranks that wait for some.
#[derive(Debug, Default)]
pub(super) struct Posts {
    posts: LiteMap<(Scope, Vec<u8>), Post>,
    /// Bytes of all keys and values.
    bytes: usize,
    readers: Vec<Reader>,
}

#[derive(Debug)]
struct Post {
    value: Vec<u8>,
    /// It is removed when it is read.
    once: bool,
}

/// A rank that waits until all keys have a value.
#[derive(Debug)]
struct Reader {
    caller: Caller,
    keys: Vec<Vec<u8>>,
    until: Option<Time>,
}

impl Posts {
    /// Publishes all entries or none.
    fn post(&mut self, entries: Vec<Entry>, once: bool, scope: Scope) -> Result<(), NameError> {
        let entries: Vec<_> = entries.into_iter().map(|(key, value)| ((scope, key), value)).collect();
        if entries.iter().any(|(key, _)| self.posts.contains_key(key)) {
            return Err(NameError::Taken);
        }
        let bytes: usize = entries.iter().map(|((_, key), value)| key.len() + value.len()).sum();
        if self.bytes + bytes > POSTS_BYTES_MAX {
            return Err(NameError::Full);
        }
        self.bytes += bytes;
        for (key, value) in entries {
            self.posts.insert(key, Post { value, once });
        }
        Ok(())
    }

    /// The narrowest scope in which the caller finds a value of the key.
    fn find(&self, caller: Caller, key: &[u8]) -> Option<(Scope, Vec<u8>)> {
        caller.scopes().into_iter().map(|scope| (scope, key.to_vec())).find(|key| self.posts.contains_key(key))
    }

    fn remove(&mut self, key: &(Scope, Vec<u8>)) {
        if let Some(post) = self.posts.remove(key) {
            self.bytes -= key.1.len() + post.value.len();
        }
    }

    fn has_all(&self, caller: Caller, keys: &[Vec<u8>]) -> bool {
        keys.iter().all(|key| self.find(caller, key).is_some())
    }

    /// Reads those of the keys that have a value.
    fn read(&mut self, caller: Caller, keys: &[Vec<u8>]) -> Vec<Entry> {
        let mut entries = Vec::new();
        for key in keys {
            let Some(found) = self.find(caller, key) else { continue };
            let Some(post) = self.posts.get(&found) else { continue };
            entries.push((key.clone(), post.value.clone()));
            if post.once {
                self.remove(&found);
            }
        }
        entries
    }

    /// Looks up keys. With `wait`, a number of seconds or 0, the rank waits for all. Returns `None` if it does.
    pub(super) fn look_up(
        &mut self,
        caller: Caller,
        keys: Vec<Vec<u8>>,
        wait: Option<u32>,
        now: Time,
    ) -> Option<PmixAnswer> {
        match wait {
            Some(_) if self.has_all(caller, &keys) => {}
            // A partial answer would use up values that are read once.
            Some(_) if self.readers.len() >= READERS_MAX => return Some(PmixAnswer::Full),
            Some(timeout_s) => {
                self.readers.push(Reader { caller, keys, until: until(now, timeout_s) });
                return None;
            }
            None => {}
        }
        Some(PmixAnswer::Read(self.read(caller, &keys)))
    }

    /// The ranks of a namespace have ended: no rank can find what was published to them only.
    pub(super) fn forget(&mut self, namespace: NamespaceId) {
        let is_lost = |scope: &Scope| match scope {
            Scope::Rank(of, _) | Scope::Namespace(of) => *of == namespace,
            Scope::Node(_) | Scope::Session => false,
        };
        let lost: Vec<_> = self.posts.keys().filter(|(scope, _)| is_lost(scope)).cloned().collect();
        lost.iter().for_each(|key| self.remove(key));
    }

    /// The time at which a reader has waited long enough.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.readers.iter().filter_map(|reader| reader.until).min()
    }
}

impl Root {
    /// Publishes values, and answers the ranks that have waited for them.
    pub(super) fn post(
        &mut self,
        caller: Caller,
        entries: Vec<Entry>,
        once: bool,
        range: PostRange,
        turn: &mut Turn<'_>,
    ) -> Result<(), NameError> {
        // A dead rank must not take a value that is read once.
        self.end_readers(turn);
        let posted = self.posts.post(entries, once, caller.scope(range));
        let mut at = 0;
        while let Some(Reader { caller, keys, .. }) = self.posts.readers.get(at) {
            if !self.posts.has_all(*caller, keys) {
                at += 1;
                continue;
            }
            let Reader { caller, keys, .. } = self.posts.readers.remove(at);
            let entries = self.posts.read(caller, &keys);
            self.reply(caller.requester, Reply::Pmix(PmixAnswer::Read(entries)), turn);
        }
        posted
    }

    /// Removes values.
    pub(super) fn unpost(&mut self, caller: Caller, keys: &[Vec<u8>]) {
        for key in keys {
            if let Some(found) = self.posts.find(caller, key) {
                self.posts.remove(&found);
            }
        }
    }

    /// Answers the readers whose time is over, and those that have ended: their agents' numbers become free.
    pub(super) fn end_readers(&mut self, turn: &mut Turn<'_>) {
        let (now, namespaces) = (turn.now, &self.namespaces);
        let is_over = |reader: &Reader| reader.until.is_some_and(|until| now >= until);
        let is_gone = |caller: &Caller| {
            namespaces.get(&caller.requester.namespace).is_none_or(|ns| ns.gone().contains(caller.rank))
        };
        let ended = self.posts.readers.extract_if(.., |reader| is_over(reader) || is_gone(&reader.caller));
        for reader in ended.collect::<Vec<_>>() {
            self.reply(reader.caller.requester, Reply::Pmix(PmixAnswer::TimedOut), turn);
        }
    }
}

/// The time after so many seconds; `None`: never.
pub(super) fn until(now: Time, timeout_s: u32) -> Option<Time> {
    (timeout_s > 0).then(|| now + Duration::from_secs(timeout_s.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lookup_that_cannot_wait_takes_nothing() {
        let requester = Requester { agent: AgentId(1), namespace: NamespaceId::FIRST, rank: Rank(0), number: 0 };
        let caller = Caller { requester, rank: Rank(0) };
        let (here, missing) = (|| b"here".to_vec(), || b"missing".to_vec());
        let mut posts = Posts::default();
        posts.post(vec![(here(), b"v".to_vec())], true, Scope::Session).unwrap();
        let mut look_up = |keys| posts.look_up(caller, keys, Some(0), Time::ZERO);
        for _ in 0..READERS_MAX {
            assert_eq!(look_up(vec![missing()]), None);
        }
        assert_eq!(look_up(vec![here(), missing()]), Some(PmixAnswer::Full));
        assert_eq!(look_up(vec![here()]), Some(PmixAnswer::Read(vec![(here(), b"v".to_vec())])));
    }
}
