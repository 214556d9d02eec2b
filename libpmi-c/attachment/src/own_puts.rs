//! [`OwnPuts`]: the puts of this rank that no released fence has published yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmi::board::PendingPuts;
use pmi::{Puts, Rank};

/// A rank's puts since its last fence, and those that a fence in progress has sent. The rank sees both
/// at once.
#[derive(Debug)]
pub(crate) struct OwnPuts {
    /// False only if there are no puts: lets gets skip the lock.
    has_any: AtomicBool,
    puts: Mutex<Option<Unreleased>>,
}

#[derive(Debug, Default)]
struct Unreleased {
    pending: PendingPuts,
    in_fence: Option<Arc<Puts>>,
}

impl OwnPuts {
    pub(crate) const fn new() -> Self {
        Self { has_any: AtomicBool::new(false), puts: Mutex::new(None) }
    }

    /// Stores a put; returns `false`, and stores nothing, if it exceeds the bound.
    #[must_use]
    pub(crate) fn push(&self, rank: Rank, key: &[u8], value: &[u8]) -> bool {
        let mut puts = self.lock();
        let stored = puts.get_or_insert_default().pending.push(rank, key, value);
        self.has_any.store(true, Ordering::Release);
        stored
    }

    /// Returns the last value put for a key.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.has_any.load(Ordering::Acquire) { self.find(key) } else { None }
    }

    /// Moves the pending puts into a fence that is about to start, and returns them.
    pub(crate) fn begin_fence(&self) -> Option<Arc<Puts>> {
        if !self.has_any.load(Ordering::Acquire) {
            return None;
        }
        let mut puts = self.lock();
        let puts = puts.get_or_insert_default();
        puts.in_fence = Some(Arc::new(puts.pending.take()));
        puts.in_fence.clone()
    }

    /// Drops the puts of the released fence: from now on they are found on the board.
    pub(crate) fn end_fence(&self) {
        if !self.has_any.load(Ordering::Acquire) {
            return;
        }
        let mut puts = self.lock();
        let left = puts.as_ref().is_some_and(|puts| !puts.pending.is_empty());
        match &mut *puts {
            Some(puts) if left => puts.in_fence = None,
            none => *none = None,
        }
        // A thread that loads this value also sees the board as of the fence's release, or newer.
        self.has_any.store(left, Ordering::Release);
    }

    /// Drops all puts.
    pub(crate) fn clear(&self) {
        let mut puts = self.lock();
        *puts = None;
        self.has_any.store(false, Ordering::Release);
    }

    /// Returns all keys, each with its last value, in no particular order.
    pub(crate) fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.newest(true)
    }

    /// Returns the keys that no fence has sent yet, each with its last value.
    pub(crate) fn unsent(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.newest(false)
    }

    fn newest(&self, with_sent: bool) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut puts = self.lock();
        let Some(puts) = &mut *puts else { return Vec::new() };
        let pending = puts.pending.take();
        for put in pending.iter().flatten() {
            // It fitted before.
            let _ = puts.pending.push(put.rank, put.key, put.value);
        }
        let in_fence = puts.in_fence.iter().filter(|_| with_sent).flat_map(|puts| puts.iter());
        let all = in_fence.chain(pending.iter()).flatten();
        let newest: std::collections::BTreeMap<_, _> = all.map(|put| (put.key, put.value)).collect();
        newest.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    #[cold]
    fn find(&self, key: &[u8]) -> Option<Vec<u8>> {
        let puts = self.lock();
        let puts = puts.as_ref()?;
        let in_fence = || puts.in_fence.as_ref()?.last_value_of(key);
        puts.pending.get(key).or_else(in_fence).map(<[u8]>::to_vec)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Unreleased>> {
        // No panic can leave the contents inconsistent.
        self.puts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Rank = Rank(3);

    #[test]
    fn puts_are_visible_until_the_fence_has_published_them() {
        let own = OwnPuts::new();
        assert_eq!(own.get(b"a"), None);
        assert!(own.push(ME, b"a", b"1"));
        assert!(own.push(ME, b"a", b"2"));
        assert_eq!(own.get(b"a"), Some(b"2".to_vec()));
        let departed = own.begin_fence();
        assert_eq!(departed.map(|puts| puts.validate()), Some(Ok(2)));
        assert_eq!(own.get(b"a"), Some(b"2".to_vec()));
        assert!(own.push(ME, b"b", b"3"));
        assert_eq!(own.entries(), [(b"a".to_vec(), b"2".to_vec()), (b"b".to_vec(), b"3".to_vec())]);
        assert_eq!(own.unsent(), [(b"b".to_vec(), b"3".to_vec())]);
        own.end_fence();
        assert_eq!(own.get(b"a"), None);
        assert_eq!(own.get(b"b"), Some(b"3".to_vec()));
        own.begin_fence();
        own.end_fence();
        assert_eq!(own.begin_fence(), None);
        assert!(!own.has_any.load(Ordering::Relaxed));
    }

    #[test]
    fn puts_beyond_the_bound_are_refused() {
        let own = OwnPuts::new();
        let value = vec![b'x'; pmi::limits::PENDING_BYTES_MAX - 10 - 1];
        assert!(own.push(ME, b"k", &value));
        assert!(!own.push(ME, b"k", b""));
        own.clear();
        assert!(own.push(ME, b"k", b""));
    }
}
