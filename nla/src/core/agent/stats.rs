//! What was counted here and below, told to the parent once and last of all.

use super::{Action, Agent, Phase};
use crate::core::cache::CachePeaks;
use crate::core::ids::{AgentId, Time};
use crate::core::lookup::GetCounts;
use crate::core::message::Up;
use crate::core::namespace::Namespace;
use crate::core::stats::{DurationHistogram, LevelStats, Stats};

impl Agent {
    /// What a child's subtree has counted.
    pub(super) fn on_stats(&mut self, now: Time, from: AgentId, stats: Box<Stats>, actions: &mut Vec<Action>) {
        let Some(below) = self.here.toward(from) else { return };
        let Some(child) = self.children.get_mut(&from) else { return };
        if child.stats.is_none() && stats.is_of(below) {
            child.stats = Some(stats);
        } else {
            self.cut_off(now, from, "its statistics make no sense".to_owned(), actions);
        }
    }

    /// Tells the parent, when all is counted and each child has told, or never will.
    pub(super) fn tell_stats(&mut self, actions: &mut Vec<Action>) {
        let heard = self.children.values().all(|child| child.stats.is_some() || child.gone || !child.joined);
        if !self.tells_stats || self.phase != Phase::Over || self.parent_lost || !heard {
            return;
        }
        if let Some(counted) = self.counted.take() {
            let place = LevelStats::of_member(*counted, self.gets(), self.cache_peaks(), self.fences());
            let below = self.children.values().filter_map(|child| child.stats.as_deref());
            actions.push(Action::ToParent(Up::Stats(Box::new(Stats::of(place, below)))));
        }
    }

    /// How much the caches here have held, all namespaces together.
    pub fn cache_peaks(&self) -> CachePeaks {
        self.namespaces.values().map(|ns| ns.cache.peaks()).fold(CachePeaks::default(), CachePeaks::plus)
    }

    /// How gets were answered here, beside those that the boards themselves have answered.
    pub fn gets(&self) -> GetCounts {
        self.namespaces.values().map(|ns| ns.look_ups.gets()).fold(GetCounts::default(), GetCounts::plus)
    }

    /// How long fences took from when the subtree had arrived to their release.
    pub fn fences(&self) -> DurationHistogram {
        let mut times = DurationHistogram::default();
        self.namespaces.values().for_each(|ns: &Namespace| times.merge(&ns.fences));
        times
    }
}
