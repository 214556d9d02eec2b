//! What was counted in the whole tree.

use super::{Root, RootAction};
use crate::core::cache::CachePeaks;
use crate::core::ids::{AgentId, Time};
use crate::core::lookup::GetCounts;
use crate::core::stats::{DriverCounts, DurationHistogram, LevelStats, Stats};

impl Root {
    /// What a child's subtree has counted.
    pub(super) fn on_stats(&mut self, now: Time, from: AgentId, stats: Box<Stats>, actions: &mut Vec<RootAction>) {
        let Some(below) = self.tree.toward(from) else { return };
        let Some(child) = self.children.get_mut(&from) else { return };
        if self.session.stats && child.stats.is_none() && stats.is_of(below) {
            child.stats = Some(stats);
        } else {
            self.cut_off(now, from, "its statistics make no sense".to_owned(), actions);
        }
    }

    /// Whether each child has told what it has counted, or never will.
    pub(super) fn all_have_told(&self) -> bool {
        !self.session.stats || self.children.values().all(|child| child.stats.is_some() || child.gone)
    }

    /// What was counted in the tree, as far as agents have told. `counted` and `fences` are the
    /// launcher's own.
    pub fn stats(&self, counted: DriverCounts, fences: DurationHistogram) -> Stats {
        let place = LevelStats::of_member(counted, self.gets(), self.cache_peaks(), fences);
        Stats::of(place, self.children.values().filter_map(|child| child.stats.as_deref()))
    }

    /// How much the caches here have held, all namespaces together.
    pub fn cache_peaks(&self) -> CachePeaks {
        self.namespaces.values().map(|ns| ns.cache.peaks()).fold(CachePeaks::default(), CachePeaks::plus)
    }

    /// How gets were answered here.
    pub fn gets(&self) -> GetCounts {
        self.namespaces.values().map(|ns| ns.look_ups.gets()).fold(GetCounts::default(), GetCounts::plus)
    }
}
