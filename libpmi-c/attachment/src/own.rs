//! [`Own`]: what this rank has put and others do not see yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pmi::board::PendingPuts;
use pmi::{Puts, Rank};

/// A rank's puts since its last fence, and those that are on their way in one that is not released
/// yet. The rank sees both at once.
#[derive(Debug)]
pub(crate) struct Own {
    /// Whether there may be any: spares those who only get the lock.
    any: AtomicBool,
    puts: Mutex<Option<OwnPuts>>,
}

#[derive(Debug, Default)]
struct OwnPuts {
    pending: PendingPuts,
    under_way: Option<Arc<Puts>>,
}

impl Own {
    pub(crate) const fn new() -> Self {
        Self { any: AtomicBool::new(false), puts: Mutex::new(None) }
    }

    /// Notes a put; `false`, and nothing noted, when there is no room for it.
    #[must_use]
    pub(crate) fn push(&self, rank: Rank, key: &[u8], value: &[u8]) -> bool {
        let mut puts = self.lock();
        let noted = puts.get_or_insert_default().pending.push(rank, key, value);
        self.any.store(true, Ordering::Release);
        noted
    }

    /// The last value put for a key.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Vec<u8>> {
        if self.any.load(Ordering::Acquire) { self.find(key) } else { None }
    }

    /// Sends all puts on their way, if there are any: to be called when the fence is arrived at.
    pub(crate) fn depart(&self) -> Option<Arc<Puts>> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut puts = self.lock();
        let puts = puts.get_or_insert_default();
        puts.under_way = Some(Arc::new(puts.pending.take()));
        puts.under_way.clone()
    }

    /// The puts that departed have arrived: they are on the board, for those who look there next.
    pub(crate) fn arrive(&self) {
        if !self.any.load(Ordering::Acquire) {
            return;
        }
        let mut puts = self.lock();
        let left = puts.as_ref().is_some_and(|puts| !puts.pending.is_empty());
        match &mut *puts {
            Some(puts) if left => puts.under_way = None,
            none => *none = None,
        }
        // Who reads this sees the board as it was when the fence was released, or newer.
        self.any.store(left, Ordering::Release);
    }

    /// Forgets all.
    pub(crate) fn clear(&self) {
        let mut puts = self.lock();
        *puts = None;
        self.any.store(false, Ordering::Release);
    }

    /// All keys, each with its last value, in no particular order.
    pub(crate) fn entries(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut puts = self.lock();
        let Some(puts) = &mut *puts else { return Vec::new() };
        let pending = puts.pending.take();
        for put in pending.iter().flatten() {
            // There was room for it before.
            let _ = puts.pending.push(put.rank, put.key, put.value);
        }
        let under_way = puts.under_way.iter().flat_map(|puts| puts.iter());
        let all = under_way.chain(pending.iter()).flatten();
        let newest: std::collections::BTreeMap<_, _> = all.map(|put| (put.key, put.value)).collect();
        newest.into_iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
    }

    #[cold]
    fn find(&self, key: &[u8]) -> Option<Vec<u8>> {
        let puts = self.lock();
        let puts = puts.as_ref()?;
        let under_way = || puts.under_way.as_ref()?.last_value_of(key);
        puts.pending.get(key).or_else(under_way).map(<[u8]>::to_vec)
    }

    fn lock(&self) -> MutexGuard<'_, Option<OwnPuts>> {
        // Nothing in here is left half done by a panic.
        self.puts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Rank = Rank(3);

    #[test]
    fn puts_are_seen_until_they_are_on_the_board() {
        let own = Own::new();
        assert_eq!(own.get(b"a"), None);
        assert!(own.push(ME, b"a", b"1"));
        assert!(own.push(ME, b"a", b"2"));
        assert_eq!(own.get(b"a"), Some(b"2".to_vec()));
        let departed = own.depart();
        assert_eq!(departed.map(|puts| puts.validate()), Some(Ok(2)));
        assert_eq!(own.get(b"a"), Some(b"2".to_vec()));
        assert!(own.push(ME, b"b", b"3"));
        assert_eq!(own.entries(), [(b"a".to_vec(), b"2".to_vec()), (b"b".to_vec(), b"3".to_vec())]);
        own.arrive();
        assert_eq!(own.get(b"a"), None);
        assert_eq!(own.get(b"b"), Some(b"3".to_vec()));
        own.depart();
        own.arrive();
        assert_eq!(own.depart(), None);
        assert!(!own.any.load(Ordering::Relaxed));
    }

    #[test]
    fn there_is_a_bound() {
        let own = Own::new();
        let value = vec![b'x'; pmi::limits::PENDING_BYTES_MAX - 10 - 1];
        assert!(own.push(ME, b"k", &value));
        assert!(!own.push(ME, b"k", b""));
        own.clear();
        assert!(own.push(ME, b"k", b""));
    }
}
