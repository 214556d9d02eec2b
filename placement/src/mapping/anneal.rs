//! Improves a placement by changes that may also be bad, ever more rarely (simulated annealing).
//!
//! The objective is the sum of weight times distance, and the excess: the bytes that links carry, or that leave hosts,
//! beyond what a guard allows. A byte of excess first counts as long as a few links, and more towards the end.

use super::guard::Guard;
use super::refine::{Change, Refiner};
use crate::random::Random;

/// How many links a byte of excess is worth, at the beginning and at the end.
const EXCESS_LINKS: (f64, f64) = (1.0, 6.0);

/// The work of following a route and changing its links' loads, in visited edges.
const ROUTE_WORK: usize = 16;

/// The work of drawing a change, in visited edges.
const TRY_WORK: usize = 12;

/// How often the ranks whose bytes cross heavy links are looked for.
const HOT_TURNS: usize = 24;

/// How an annealing goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    /// The temperature at the start and at the end, in parts of what a usual bad change costs.
    pub(super) heat: (f64, f64),
    /// The edges that are visited in total.
    pub(super) work: usize,
}

/// The best placement that occurred.
struct Best {
    sum: i64,
    host_of: Vec<u32>,
    /// Whether the present placement is the best one, which is not stored yet.
    is_present: bool,
}

impl Refiner<'_> {
    /// Anneals. Afterwards the placement is the shortest one that occurred without excess. Returns `false`, with another
    /// placement, if none occurred.
    pub(super) fn anneal(
        &mut self,
        mut guard: Option<&mut Guard<'_>>,
        random: &mut Random,
        schedule: Schedule,
    ) -> bool {
        let ranks = self.ranks() as usize;
        let is_sound = |guard: &Option<&mut Guard<'_>>| guard.as_ref().is_none_or(|guard| guard.excess() == 0);
        if ranks < 2 {
            return is_sound(&guard);
        }
        let Some(usual) = self.usual_cost(random) else { return is_sound(&guard) };
        let (start, end) = (usual * schedule.heat.0, usual * schedule.heat.1);
        let per_byte = self.edges().per_byte();
        let mut sum = 0;
        let mut best = is_sound(&guard).then(|| Best { sum, host_of: self.host_of().to_vec(), is_present: true });
        let mut hot: Vec<u32> = Vec::new();
        let (mut work, mut next_hot, mut temperature, mut excess_cost) = (0, 0, start, 0.0);
        for turn in 0.. {
            if turn % 64 == 0 {
                if work >= schedule.work {
                    break;
                }
                let part = work as f64 / schedule.work as f64;
                temperature = start * libm::pow(end / start, part);
                excess_cost = per_byte * (EXCESS_LINKS.0 + (EXCESS_LINKS.1 - EXCESS_LINKS.0) * part);
                if work >= next_hot {
                    next_hot += schedule.work.div_ceil(HOT_TURNS);
                    hot = guard.as_ref().map_or_else(Vec::new, |guard| guard.hot(self));
                }
            }
            let excess = guard.as_ref().map_or(0, |guard| guard.excess());
            let rank = match hot.len() {
                count if count > 0 && excess > 0 && turn % 2 == 0 => hot[random.below(count)],
                _ => random.below(ranks) as u32,
            };
            work += TRY_WORK;
            let Some(change) = self.drawn(rank, random) else { continue };
            work += self.degree(change);
            let cost = self.cost(change);
            let bound = -temperature * libm::log(random.fraction().max(f64::MIN_POSITIVE));
            // A change takes away at most all excess.
            if cost as f64 > bound + excess as f64 * excess_cost {
                continue;
            }
            if let Some(guard) = guard.as_deref_mut() {
                work += 4 * ROUTE_WORK * guard.pairs_of(change);
                guard.account(self, change, false);
                let back = self.keep_best(&mut best, sum, change);
                guard.account(self, change, true);
                let more = (guard.excess() - excess) as f64 * excess_cost;
                if cost as f64 + more > bound {
                    guard.account(self, change, false);
                    self.apply(back);
                    guard.account(self, change, true);
                    continue;
                }
            } else {
                self.keep_best(&mut best, sum, change);
            }
            sum += cost;
            let is_sound = is_sound(&guard);
            match &mut best {
                _ if !is_sound => {}
                Some(best) if sum >= best.sum => {}
                Some(best) => (best.sum, best.is_present) = (sum, true),
                None => best = Some(Best { sum, host_of: self.host_of().to_vec(), is_present: true }),
            }
        }
        let Some(best) = best else { return false };
        if !best.is_present {
            self.restart(best.host_of);
        }
        true
    }

    /// Applies a change, and stores the placement before it if that is the best one. Returns the change that undoes it.
    fn keep_best(&mut self, best: &mut Option<Best>, sum: i64, change: Change) -> Change {
        if let Some(best) = best.as_mut().filter(|best| best.is_present && best.sum == sum) {
            best.host_of.copy_from_slice(self.host_of());
            best.is_present = false;
        }
        self.apply(change)
    }

    /// Returns the number of edges of the ranks of a change.
    fn degree(&self, change: Change) -> usize {
        std::iter::once(change.rank).chain(change.other).map(|rank| self.edges().degree(rank)).sum()
    }

    /// Returns what a usual bad change costs; `None` if no change costs anything.
    fn usual_cost(&self, random: &mut Random) -> Option<f64> {
        let ranks = self.ranks() as usize;
        let one = |_| {
            let rank = random.below(ranks) as u32;
            self.drawn(rank, random).map(|change| self.cost(change).abs())
        };
        let mut costs: Vec<i64> = (0..256).filter_map(one).filter(|cost| *cost > 0).collect();
        costs.sort_unstable();
        costs.get(costs.len() / 8).map(|cost| *cost as f64)
    }
}
