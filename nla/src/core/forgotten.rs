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

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use pmi::{Epoch, Puts, Rank};

    use super::*;
    use crate::core::cache::CachePolicy;
    use crate::core::ids::AgentId;
    use crate::core::lookup::{LookUpStep, Peer, ReplyTo};
    use crate::core::message::Update;
    use crate::core::tests::plan;
    use crate::core::topology::Subtree;

    #[test]
    fn peaks_of_forgotten_namespaces_count_and_their_evictions_add_up() {
        let here = Subtree::whole(1, 1).of(AgentId(1)).unwrap();
        let policy = CachePolicy::HcmabLru { entries: 1 };
        let mut exchange = Exchange::new(&plan(1, &[(1, "0")]), here, &[], policy, None);
        let mut puts = Puts::new();
        [b"a", b"b", b"c"].into_iter().for_each(|key| puts.push(Rank(9), key, b"v"));
        exchange.cache.release(Update::Epoch(Epoch::merge(&puts).unwrap()));
        let asked = exchange.look_ups.ask(exchange.cache.as_mut(), ReplyTo::Rank(Rank(0)), &Bytes::from_static(b"x"));
        assert_eq!(asked, LookUpStep::Ask(Peer::Parent));
        let (peaks, mut forgotten) = (exchange.cache.peaks(), Forgotten::default());
        assert_eq!((peaks.entries, peaks.evictions), (1, 2));
        for count in 1..=2 {
            forgotten.note(&exchange, peaks);
            let all = forgotten.peaks(CachePeaks { evictions: 1, ..CachePeaks::default() });
            assert_eq!((all.entries, all.evictions), (1, 2 * count + 1));
            assert_eq!(forgotten.gets(), GetCounts { asked: count, ..GetCounts::default() });
        }
    }
}
