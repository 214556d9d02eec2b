//! The statistics of namespaces of MPI_Comm_spawn that have ended and were forgotten, at one place.

use super::cache::CachePeaks;
use super::exchange::Exchange;
use super::lookup::GetCounts;
use super::stats::DurationHistogram;

/// The counts and peaks of forgotten namespaces, all together.
#[derive(Debug, Default)]
pub(super) struct Forgotten {
    /// The peaks that were stored at a time, and the evictions of forgotten namespaces.
    peaks: CachePeaks,
    gets: GetCounts,
    /// How long their fences took.
    pub(super) fences: DurationHistogram,
}

impl Forgotten {
    /// Adds a namespace that is about to be forgotten; `stored` are the peaks of all namespaces, this one included.
    pub(super) fn note(&mut self, exchange: &Exchange, stored: CachePeaks) {
        let evictions = self.peaks.evictions.saturating_add(exchange.cache.peaks().evictions);
        self.peaks = CachePeaks { evictions, ..self.peaks.max(stored) };
        self.gets = self.gets.plus(exchange.look_ups.counts());
    }

    /// Returns the peaks of the whole session; `stored` are those of the namespaces that were not forgotten.
    pub(super) fn peaks(&self, stored: CachePeaks) -> CachePeaks {
        let evictions = self.peaks.evictions.saturating_add(stored.evictions);
        CachePeaks { evictions, ..self.peaks.max(stored) }
    }

    /// How gets in forgotten namespaces were answered.
    pub(super) fn gets(&self) -> GetCounts {
        self.gets
    }
}
