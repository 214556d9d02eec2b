//! Epochs, batches of puts, lists of keys and the shared segment, as bytes of a peer or of a rank.

use bytes::Bytes;
use pmi::segment::View;
use pmi::{Epoch, Keys, Puts, Rank};

/// Checks the bytes as each of them.
pub(super) fn check(data: &[u8]) {
    if let Ok(epoch) = Epoch::from_bytes(Bytes::copy_from_slice(data)) {
        check_epoch(&epoch);
    }
    if let Ok(keys) = Keys::from_bytes(Bytes::copy_from_slice(data)) {
        assert_eq!(keys.iter().count(), keys.len());
        assert_eq!(Keys::from_bytes(keys.bytes().clone()).ok().as_ref(), Some(&keys));
    }
    let rank = data.first_chunk().map_or(0, |rank| u32::from_le_bytes(*rank));
    if let Ok(puts) = Puts::from_rank(Rank(rank), data) {
        check_puts(&puts);
    }
    // The segment's pages belong to the agent, but a rank reads them without a lock.
    let directory_at = data.last().map_or(0, |last| usize::from(*last));
    if let Some(view) = View::new(data, directory_at) {
        let entries = view.iter().take(data.len() + 1).count();
        assert!(entries <= data.len(), "the view does not end");
        let _ = view.get(b"key");
    }
}

/// Each entry is found under its key, and the same entries make the same answers.
fn check_epoch(epoch: &Epoch) {
    assert_eq!((epoch.iter().count(), epoch.entries().count()), (epoch.len(), epoch.len()));
    let again = Epoch::from_entries(epoch.iter());
    assert_eq!(Epoch::from_bytes(again.bytes().clone()).ok().as_ref(), Some(&again));
    for (entry, (key, value)) in epoch.entries().zip(epoch.iter()) {
        assert_eq!((entry.key(), entry.value()), (key, value));
        // A key that is there twice is one key for `from_entries`, so only the first one is compared.
        assert!(epoch.get(key).is_some());
        assert!(again.get(key).is_some());
    }
}

fn check_puts(puts: &Puts) {
    let count = puts.validate().expect("all puts were checked");
    let mut written = Puts::new();
    for put in puts.iter() {
        let put = put.expect("all puts were checked");
        written.push(put.rank, put.key, put.value);
    }
    assert_eq!(&written, puts);
    assert_eq!(puts.clone().into_entries().count(), count);
    let epoch = Epoch::merge(puts).expect("all puts were checked");
    assert!(epoch.len() <= count);
    for (key, value) in epoch.iter() {
        assert_eq!(puts.last_value_of(key), Some(value));
    }
}
