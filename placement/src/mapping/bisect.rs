//! Bipartition of weighted graphs in several levels: coarsening along heavy edges, greedy growing, and refinement by
//! moves (Fiduccia and Mattheyses).
//!
//! A part may attract a vertex for reasons outside of the graph: `pull` is what the vertex costs in part 0 more than in
//! part 1.

use std::collections::BinaryHeap;

use crate::random::Random;

/// Below this many vertices a graph is divided at once.
const COARSE_VERTICES: usize = 64;

/// A matching that leaves more than this share of the vertices ends the coarsening.
const SHRINK_MIN: f64 = 0.95;

/// How often a coarse graph is divided, from different seeds.
const GROWINGS: usize = 8;

/// The most passes of refinement. Few find anything after the fourth.
const PASSES_MAX: usize = 8;

/// A graph with weights, symmetric.
#[derive(Debug, Clone, Default)]
pub(super) struct Weighted {
    pub(super) offsets: Vec<u32>,
    pub(super) targets: Vec<u32>,
    pub(super) weights: Vec<i64>,
    /// The ranks that a vertex stands for.
    pub(super) sizes: Vec<u32>,
    /// The cost of each vertex in part 0 less its cost in part 1.
    pub(super) pulls: Vec<i64>,
}

impl Weighted {
    fn vertices(&self) -> usize {
        self.sizes.len()
    }

    fn row(&self, vertex: usize) -> impl Iterator<Item = (usize, i64)> + '_ {
        let range = self.offsets[vertex] as usize..self.offsets[vertex + 1] as usize;
        self.targets[range.clone()].iter().map(|to| *to as usize).zip(self.weights[range].iter().copied())
    }

    /// Returns the cost of a division: its cut, and the pulls of the vertices in part 0.
    fn cost(&self, is_second: &[bool]) -> i64 {
        let mut cost = 0;
        for vertex in 0..self.vertices() {
            if !is_second[vertex] {
                cost += self.pulls[vertex];
                cost += self.row(vertex).filter(|(to, _)| is_second[*to]).map(|(_, weight)| weight).sum::<i64>();
            }
        }
        cost
    }

    /// Merges pairs of vertices along heavy edges. Returns the coarser graph, and the vertex of each vertex in it.
    fn coarsened(&self, size_max: u32, random: &mut Random) -> (Self, Vec<u32>) {
        const NONE: u32 = u32::MAX;
        let count = self.vertices();
        let mut order: Vec<u32> = (0..count as u32).collect();
        random.shuffle(&mut order);
        let mut partner = vec![NONE; count];
        for vertex in order {
            let vertex = vertex as usize;
            if partner[vertex] != NONE {
                continue;
            }
            let fits = |to: &usize| partner[*to] == NONE && self.sizes[vertex] + self.sizes[*to] <= size_max;
            let best = self.row(vertex).filter(|(to, _)| *to != vertex && fits(to)).max_by_key(|(to, weight)| {
                // Of equal edges the one to a small vertex, else large ones grow on.
                (*weight, std::cmp::Reverse(self.sizes[*to]))
            });
            let with = best.map_or(vertex, |(to, _)| to);
            partner[vertex] = with as u32;
            partner[with] = vertex as u32;
        }
        let mut coarse_of = vec![NONE; count];
        let mut members: Vec<(u32, u32)> = Vec::new();
        for vertex in 0..count {
            if coarse_of[vertex] == NONE {
                let with = partner[vertex] as usize;
                coarse_of[vertex] = members.len() as u32;
                coarse_of[with] = members.len() as u32;
                members.push((vertex as u32, with as u32));
            }
        }
        let mut coarse = Self { offsets: vec![0], ..Self::default() };
        let mut seen = vec![NONE; members.len()];
        for (at, (one, other)) in members.iter().enumerate() {
            let first = coarse.targets.len();
            let both = [Some(*one), Some(*other).filter(|other| other != one)];
            let (mut size, mut pull) = (0, 0);
            for vertex in both.into_iter().flatten().map(|vertex| vertex as usize) {
                size += self.sizes[vertex];
                pull += self.pulls[vertex];
                for (to, weight) in self.row(vertex) {
                    let to = coarse_of[to];
                    if to as usize == at {
                        continue;
                    }
                    let place = seen[to as usize];
                    if place != NONE && place as usize >= first && coarse.targets[place as usize] == to {
                        coarse.weights[place as usize] += weight;
                    } else {
                        seen[to as usize] = coarse.targets.len() as u32;
                        coarse.targets.push(to);
                        coarse.weights.push(weight);
                    }
                }
            }
            coarse.offsets.push(coarse.targets.len() as u32);
            coarse.sizes.push(size);
            coarse.pulls.push(pull);
        }
        (coarse, coarse_of)
    }
}

/// Divides a graph so that the vertices of part 0 have `first` ranks together, exactly if all vertices are single ranks.
/// Returns whether each vertex is in part 1.
pub(super) fn bisect(graph: Weighted, first: u32, random: &mut Random) -> Vec<bool> {
    let total: u32 = graph.sizes.iter().sum();
    let size_max = (total / 24).max(2);
    let mut levels: Vec<(Weighted, Vec<u32>)> = Vec::new();
    let mut finest = graph;
    while finest.vertices() > COARSE_VERTICES {
        let (coarse, coarse_of) = finest.coarsened(size_max, random);
        if coarse.vertices() as f64 > finest.vertices() as f64 * SHRINK_MIN {
            break;
        }
        levels.push((std::mem::replace(&mut finest, coarse), coarse_of));
    }
    let mut is_second = divided(&finest, first, random);
    while let Some((finer, coarse_of)) = levels.pop() {
        is_second = coarse_of.iter().map(|coarse| is_second[*coarse as usize]).collect();
        refine(&finer, first, &mut is_second);
    }
    is_second
}

/// Divides a coarse graph in several ways and returns the best.
fn divided(graph: &Weighted, first: u32, random: &mut Random) -> Vec<bool> {
    let count = graph.vertices();
    let by_order = |order: &[usize]| {
        let mut is_second = vec![true; count];
        let mut size = 0;
        for vertex in order {
            if size + graph.sizes[*vertex] / 2 >= first {
                break;
            }
            is_second[*vertex] = false;
            size += graph.sizes[*vertex];
        }
        is_second
    };
    let mut candidates = Vec::new();
    let natural: Vec<usize> = (0..count).collect();
    candidates.push(by_order(&natural));
    if graph.pulls.iter().any(|pull| *pull != 0) {
        let mut by_pull = natural;
        by_pull.sort_by_key(|vertex| graph.pulls[*vertex]);
        candidates.push(by_order(&by_pull));
    }
    candidates.extend((0..GROWINGS).map(|_| grown(graph, first, random.below(count.max(1)))));
    let scored = candidates.into_iter().map(|mut is_second| {
        refine(graph, first, &mut is_second);
        (imbalance(graph, first, &is_second), graph.cost(&is_second), is_second)
    });
    // The first of equals, so that results do not depend on the comparison of vectors.
    let best = scored.min_by_key(|(off, cost, _)| (*off, *cost));
    best.map(|(_, _, is_second)| is_second).unwrap_or_default()
}

fn imbalance(graph: &Weighted, first: u32, is_second: &[bool]) -> u64 {
    let size: u64 =
        graph.sizes.iter().zip(is_second).filter(|(_, second)| !**second).map(|(size, _)| u64::from(*size)).sum();
    size.abs_diff(u64::from(first))
}

/// Grows part 0 from a vertex, always by the vertex that costs least.
fn grown(graph: &Weighted, first: u32, seed: usize) -> Vec<bool> {
    let count = graph.vertices();
    let mut is_second = vec![true; count];
    let mut gains: Vec<i64> = (0..count)
        .map(|vertex| -graph.pulls[vertex] - graph.row(vertex).map(|(_, weight)| weight).sum::<i64>())
        .collect();
    let mut heap: BinaryHeap<(i64, usize)> = BinaryHeap::new();
    heap.push((i64::MAX, seed));
    let mut rest = (0..count).collect::<Vec<_>>().into_iter();
    let mut size = 0;
    while size < first {
        // A component that is used up: go on with any vertex.
        let next = heap.pop().map(|(_, vertex)| vertex).or_else(|| rest.find(|vertex| is_second[*vertex]));
        let Some(vertex) = next else { break };
        if !is_second[vertex] {
            continue;
        }
        is_second[vertex] = false;
        size += graph.sizes[vertex];
        for (to, weight) in graph.row(vertex).filter(|(to, _)| is_second[*to]) {
            gains[to] += 2 * weight;
            heap.push((gains[to], to));
        }
    }
    is_second
}

/// Moves vertices between the parts while that helps. Ends with part 0 as near to `first` as the best division was.
fn refine(graph: &Weighted, first: u32, is_second: &mut [bool]) {
    let count = graph.vertices();
    let first = i64::from(first);
    let largest = graph.sizes.iter().copied().max().map_or(1, i64::from);
    // Parts of single ranks end exact; larger vertices cannot.
    let slack = if largest == 1 { 0 } else { largest / 2 };
    let mut size: i64 =
        graph.sizes.iter().zip(&*is_second).filter(|(_, second)| !**second).map(|(size, _)| i64::from(*size)).sum();
    let mut gains = vec![0i64; count];
    let mut is_moved = vec![false; count];
    let moves_without_gain_max = (count / 8).clamp(32, 400);
    for _ in 0..PASSES_MAX {
        let mut heaps = [BinaryHeap::new(), BinaryHeap::new()];
        for vertex in 0..count {
            let side = is_second[vertex];
            let pull = if side { -graph.pulls[vertex] } else { graph.pulls[vertex] };
            let edges: i64 =
                graph.row(vertex).map(|(to, weight)| if is_second[to] == side { -weight } else { weight }).sum();
            gains[vertex] = pull + edges;
            heaps[usize::from(side)].push((gains[vertex], vertex));
        }
        is_moved.fill(false);
        let off = |size: i64| ((size - first).abs() - slack).max(0);
        let start = (off(size), 0i64);
        let (mut best, mut best_moves) = (start, 0);
        let (mut gained, mut moves) = (0i64, Vec::new());
        while moves.len() - best_moves < moves_without_gain_max {
            for (side, heap) in heaps.iter_mut().enumerate() {
                let is_stale = |top: &(i64, usize)| {
                    is_moved[top.1] || gains[top.1] != top.0 || usize::from(is_second[top.1]) != side
                };
                while heap.peek().is_some_and(is_stale) {
                    heap.pop();
                }
            }
            let tops = [0, 1].map(|side: usize| heaps[side].peek().copied());
            let side = match tops {
                [None, None] => break,
                [Some(_), None] => 0,
                [None, Some(_)] => 1,
                _ if size > first + slack => 0,
                _ if size < first - slack => 1,
                [Some(zero), Some(one)] => usize::from(one.0 > zero.0),
            };
            let Some((gain, vertex)) = heaps[side].pop() else { break };
            is_moved[vertex] = true;
            is_second[vertex] = side == 0;
            let own = i64::from(graph.sizes[vertex]);
            size += if side == 0 { -own } else { own };
            gained += gain;
            moves.push(vertex);
            let now = (off(size), -gained);
            if now < best {
                (best, best_moves) = (now, moves.len());
            }
            for (to, weight) in graph.row(vertex).filter(|(to, _)| !is_moved[*to]) {
                gains[to] += if is_second[to] == is_second[vertex] { -2 * weight } else { 2 * weight };
                heaps[usize::from(is_second[to])].push((gains[to], to));
            }
        }
        for vertex in moves.drain(best_moves..) {
            is_second[vertex] = !is_second[vertex];
            let own = i64::from(graph.sizes[vertex]);
            size += if is_second[vertex] { -own } else { own };
        }
        if best >= start {
            break;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(count: u32) -> Weighted {
        let row = |at: u32| [(at + count - 1) % count, (at + 1) % count];
        Weighted {
            offsets: (0..=count).map(|at| 2 * at).collect(),
            targets: (0..count).flat_map(row).collect(),
            weights: vec![1; 2 * count as usize],
            sizes: vec![1; count as usize],
            pulls: vec![0; count as usize],
        }
    }

    #[test]
    fn a_ring_is_cut_twice_and_exactly_in_half() {
        for (count, first) in [(4, 2), (1000, 500), (1000, 250), (333, 166)] {
            let graph = ring(count);
            let is_second = bisect(graph.clone(), first, &mut Random::new(1));
            assert_eq!(is_second.iter().filter(|second| !**second).count(), first as usize);
            assert_eq!(graph.cost(&is_second), 2, "{count}");
        }
    }

    #[test]
    fn pulls_decide_between_equal_cuts() {
        let mut graph = ring(100);
        (0..50).for_each(|at| graph.pulls[at] = 1);
        let is_second = bisect(graph, 50, &mut Random::new(1));
        assert!(is_second[..50].iter().all(|second| *second));
    }
}
