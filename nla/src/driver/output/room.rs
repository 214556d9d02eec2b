//! The bytes of one lane that may still be queued for the parent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use crate::core::limits::STREAM_WINDOW_BYTES;
use crate::link::Receipt;
use crate::sys::Waker;

/// The bytes that may be queued.
const ROOM_BYTES: usize = STREAM_WINDOW_BYTES as usize;

/// Counts the bytes of a lane that the link has not yet written.
#[derive(Clone)]
pub(super) struct Room(Arc<Shared>);

struct Shared {
    queued: AtomicUsize,
    /// The thread waits for room.
    awaited: AtomicBool,
    waker: Waker,
}

/// Bytes that are queued until this is dropped.
struct Taken {
    room: Room,
    bytes: usize,
}

impl Room {
    pub(super) fn new(waker: Waker) -> Self {
        Self(Arc::new(Shared { queued: AtomicUsize::new(0), awaited: AtomicBool::new(false), waker }))
    }

    /// Returns whether `bytes` more may be queued. If not, the waker is used once half of the room is free.
    pub(super) fn has(&self, bytes: usize) -> bool {
        let has = || self.0.queued.load(SeqCst) + bytes <= ROOM_BYTES;
        // Checked again after setting `awaited`: the link may have written all in between, and no wake-up would follow.
        has() || {
            self.0.awaited.store(true, SeqCst);
            has()
        }
    }

    /// Takes room until the receipt is dropped.
    pub(super) fn take(&self, bytes: usize) -> Receipt {
        self.0.queued.fetch_add(bytes, SeqCst);
        Receipt::holding(Taken { room: self.clone(), bytes })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let Shared { queued, awaited, waker } = &*self.room.0;
        let left = queued.fetch_sub(self.bytes, SeqCst) - self.bytes;
        if left <= ROOM_BYTES / 2 && awaited.load(SeqCst) && awaited.swap(false, SeqCst) {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::EpollSet;

    #[test]
    fn the_thread_is_woken_once_when_half_of_the_room_is_free() {
        let set = EpollSet::new().expect("descriptors are left");
        let room = Room::new(set.waker());
        let waker = set.waker();
        let receipts = [(); 4].map(|()| room.take(ROOM_BYTES / 4));
        assert!(!room.has(1));
        let [first, second, third, fourth] = receipts;
        drop(first);
        assert!(!waker.was_used());
        drop(second);
        assert!(waker.was_used());
        assert!(room.has(ROOM_BYTES / 2));
        drop((third, fourth));
        assert!(!waker.was_used(), "the thread does not wait for room");
    }
}
