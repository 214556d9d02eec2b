//! What was counted here and below, told to the parent once and last of all.

use super::{Action, Agent, Phase};
use crate::core::cache::Held;
use crate::core::ids::{AgentId, Time};
use crate::core::lookup::Gets;
use crate::core::message::Up;
use crate::core::namespace::Namespace;
use crate::core::stats::{LevelStats, Stats, Times};

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
            let place = LevelStats::of_place(*counted, self.gets(), self.held(), self.fences());
            let below = self.children.values().filter_map(|child| child.stats.as_deref());
            actions.push(Action::ToParent(Up::Stats(Box::new(Stats::of(place, below)))));
        }
    }

    /// How much the caches here have held, all namespaces together.
    pub fn held(&self) -> Held {
        self.namespaces.values().map(|ns| ns.cache.held()).fold(Held::default(), Held::plus)
    }

    /// How gets were answered here, beside those that the boards themselves have answered.
    pub fn gets(&self) -> Gets {
        self.namespaces.values().map(|ns| ns.look_ups.gets()).fold(Gets::default(), Gets::plus)
    }

    /// How long fences took from when the subtree had arrived to their release.
    pub fn fences(&self) -> Times {
        let mut times = Times::default();
        self.namespaces.values().for_each(|ns: &Namespace| times.merge(&ns.fences));
        times
    }
}
