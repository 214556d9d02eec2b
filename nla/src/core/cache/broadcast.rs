//! HCMAB: the release of a fence brings all its entries to every agent.

use pmi::{Board, Epoch, LookUpResult, Puts};

use super::{Cache, CachePeaks, Source};
use crate::core::message::Update;

/// Stores no entry itself: the boards of the tasks that serve ranks are complete.
#[derive(Debug, Default)]
pub(super) struct Broadcast {
    entries: usize,
    bytes: usize,
}

impl Cache for Broadcast {
    fn board(&self) -> Board {
        Board::new()
    }

    fn gather(&mut self, _: &Puts) {}

    fn close(&mut self, puts: Puts) -> (Update, usize) {
        // The puts were validated on arrival, so merging them cannot fail.
        let epoch = Epoch::merge(&puts).unwrap_or_default();
        let entries = epoch.len();
        (Update::Epoch(epoch), entries)
    }

    fn release(&mut self, update: Update) -> Option<Epoch> {
        let Update::Epoch(epoch) = update else { return None };
        self.entries += epoch.len();
        self.bytes += epoch.bytes().len();
        (!epoch.is_empty()).then_some(epoch)
    }

    /// Only keys that the board does not have are looked up here.
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
