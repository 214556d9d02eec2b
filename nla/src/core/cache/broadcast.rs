//! HCMAB: everybody is told everything at the fence.

use pmi::{Board, Epoch, LookUpResult, Puts};

use super::{Cache, CachePeaks, Source};
use crate::core::fence::FenceError;
use crate::core::message::Update;

/// Keeps nothing itself: the board is whole, and lies with those who serve ranks.
#[derive(Debug, Default)]
pub(super) struct Broadcast {
    entries: usize,
    bytes: usize,
}

impl Cache for Broadcast {
    fn board(&self) -> Board {
        Board::new()
    }

    /// Nobody sends any; they would be lost, so they are refused.
    fn pass(&mut self, _: &Puts) -> Result<(), FenceError> {
        Err(FenceError::EarlyPut)
    }

    fn gather(&mut self, _: &Puts) {}

    fn close(&mut self, puts: Puts) -> (Update, usize) {
        // They were validated when they came in, so merging them cannot fail.
        let epoch = Epoch::merge(&puts).unwrap_or_default();
        let entries = epoch.len();
        (Update::Epoch(epoch), entries)
    }

    fn release(&mut self, news: Update) -> Option<Epoch> {
        let Update::Epoch(epoch) = news else { return None };
        self.entries += epoch.len();
        self.bytes += epoch.bytes().len();
        (!epoch.is_empty()).then_some(epoch)
    }

    /// The board knows; who asks here asks for what is not on it.
    fn look_up(&mut self, _: &[u8], _: usize) -> Source {
        Source::Absent
    }

    fn learn(&mut self, _: &LookUpResult) {}

    fn peaks(&self) -> CachePeaks {
        let mut peaks = CachePeaks::default();
        peaks.note(self.entries, self.bytes);
        peaks
    }
}
