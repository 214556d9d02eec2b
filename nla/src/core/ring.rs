//! The arithmetic of `PMIX_Ring`: segments are joined on the way up, positions are given out on the way down.
//!
//! All ranks of a namespace take part in a ring. Each learns its position and the values that its two neighbours have
//! for it. A [`RingSegment`] is one rank or all ranks of a subtree; the rest of the ring needs only its length and the
//! values at its two ends. So a message about a ring has the same size for any number of ranks. The order of the ring
//! is the order of the segments in the arguments of [`join`] and [`positions`]; it must be the same in both.

use pmi::limits::ATTRIBUTE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Consecutive ranks of a ring, as their neighbours see them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingSegment {
    /// The number of ranks, at least 1.
    pub count: u32,
    /// The value that the first rank has for its left neighbour.
    #[serde(with = "serde_bytes")]
    pub to_left: Vec<u8>,
    /// The value that the last rank has for its right neighbour.
    #[serde(with = "serde_bytes")]
    pub to_right: Vec<u8>,
}

/// The position of a segment in the ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingPosition {
    /// The position of the segment's first rank.
    pub position: u32,
    /// The value for the first rank from its left neighbour.
    #[serde(with = "serde_bytes")]
    pub from_left: Vec<u8>,
    /// The value for the last rank from its right neighbour.
    #[serde(with = "serde_bytes")]
    pub from_right: Vec<u8>,
}

impl RingSegment {
    /// The segment of one rank.
    pub fn of_rank(to_left: Vec<u8>, to_right: Vec<u8>) -> Self {
        Self { count: 1, to_left, to_right }
    }

    /// Whether both values are within [`ATTRIBUTE_BYTES_MAX`].
    pub fn is_bounded(&self) -> bool {
        self.to_left.len() <= ATTRIBUTE_BYTES_MAX && self.to_right.len() <= ATTRIBUTE_BYTES_MAX
    }

    /// The position of a segment that is the whole ring: its two ends are neighbours.
    pub fn closed(&self) -> RingPosition {
        RingPosition { position: 0, from_left: self.to_right.clone(), from_right: self.to_left.clone() }
    }
}

impl RingPosition {
    /// Whether `count` ranks from this position on are within a ring of `size`, and both values are within
    /// [`ATTRIBUTE_BYTES_MAX`].
    pub fn is_bounded(&self, count: u64, size: u32) -> bool {
        u64::from(self.position) + count <= u64::from(size)
            && self.from_left.len() <= ATTRIBUTE_BYTES_MAX
            && self.from_right.len() <= ATTRIBUTE_BYTES_MAX
    }
}

/// Joins neighbouring segments into one; `None` if there are none.
pub(super) fn join<'a>(segments: impl IntoIterator<Item = &'a RingSegment>) -> Option<RingSegment> {
    let mut segments = segments.into_iter();
    let first = segments.next()?;
    let add = |(count, _): (u32, _), segment: &'a RingSegment| (count.saturating_add(segment.count), segment);
    let (count, last) = segments.fold((first.count, first), add);
    Some(RingSegment { count, to_left: first.to_left.clone(), to_right: last.to_right.clone() })
}

/// Returns the position of each segment. `whole` is the position of their [`join`].
pub(super) fn positions<'a>(
    segments: impl IntoIterator<Item = &'a RingSegment>,
    whole: &RingPosition,
) -> Vec<RingPosition> {
    let mut positions: Vec<RingPosition> = Vec::new();
    let (mut position, mut from_left) = (whole.position, whole.from_left.as_slice());
    for segment in segments {
        if let Some(left) = positions.last_mut() {
            left.from_right.clone_from(&segment.to_left);
        }
        positions.push(RingPosition { position, from_left: from_left.to_vec(), from_right: Vec::new() });
        position = position.saturating_add(segment.count);
        from_left = &segment.to_right;
    }
    if let Some(last) = positions.last_mut() {
        last.from_right.clone_from(&whole.from_right);
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(name: &str) -> RingSegment {
        RingSegment::of_rank(format!("{name}<").into_bytes(), format!(">{name}").into_bytes())
    }

    fn position(position: u32, from_left: &str, from_right: &str) -> RingPosition {
        RingPosition { position, from_left: from_left.into(), from_right: from_right.into() }
    }

    #[test]
    fn a_single_rank_is_its_own_neighbour() {
        let alone = rank("a");
        assert_eq!(join([&alone]), Some(alone.clone()));
        assert_eq!(positions([&alone], &alone.closed()), [position(0, ">a", "a<")]);
    }

    #[test]
    fn segments_are_joined_in_order() {
        let parts = [rank("a"), RingSegment { count: 3, ..rank("b") }, rank("c")];
        let whole = join(&parts).unwrap();
        assert_eq!(whole, RingSegment { count: 5, to_left: b"a<".to_vec(), to_right: b">c".to_vec() });
        let expected = [position(7, "x", "b<"), position(8, ">a", "c<"), position(11, ">b", "y")];
        assert_eq!(positions(&parts, &position(7, "x", "y")), expected);
    }

    #[test]
    fn no_segments_make_no_ring() {
        assert_eq!(join([]), None);
        assert_eq!(positions([], &position(0, "", "")), []);
    }

    #[test]
    fn values_are_bounded() {
        let value = |bytes: usize| vec![b'v'; bytes];
        assert!(RingSegment::of_rank(value(ATTRIBUTE_BYTES_MAX), value(ATTRIBUTE_BYTES_MAX)).is_bounded());
        assert!(!RingSegment::of_rank(value(ATTRIBUTE_BYTES_MAX + 1), value(0)).is_bounded());
        assert!(!RingSegment::of_rank(value(0), value(ATTRIBUTE_BYTES_MAX + 1)).is_bounded());
        assert!(position(3, "", "").is_bounded(2, 5));
        assert!(!position(3, "", "").is_bounded(3, 5));
        assert!(!position(u32::MAX, "", "").is_bounded(1, u32::MAX));
        assert!(RingPosition { from_right: value(ATTRIBUTE_BYTES_MAX), ..position(0, "", "") }.is_bounded(1, 1));
        assert!(!RingPosition { from_right: value(ATTRIBUTE_BYTES_MAX + 1), ..position(0, "", "") }.is_bounded(1, 1));
        assert!(!RingPosition { from_left: value(ATTRIBUTE_BYTES_MAX + 1), ..position(0, "", "") }.is_bounded(1, 1));
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        /// An agent with a number of ranks of its own and the agents below it.
        #[derive(Clone, Debug)]
        struct AgentShape {
            own: u32,
            below: Vec<Self>,
        }

        fn trees() -> impl Strategy<Value = AgentShape> {
            let leaf = (0u32..4).prop_map(|own| AgentShape { own, below: Vec::new() });
            leaf.prop_recursive(4, 40, 4, |inner| {
                (0u32..4, prop::collection::vec(inner, 0..4)).prop_map(|(own, below)| AgentShape { own, below })
            })
        }

        /// Returns the segments at an agent, then those at all agents of its subtree in pre-order. `next` numbers the
        /// ranks in the ring's order.
        fn up(agent: &AgentShape, next: &mut u32) -> (Vec<RingSegment>, Vec<Vec<RingSegment>>) {
            let mut parts = Vec::new();
            for _ in 0..agent.own {
                parts.push(rank(&next.to_string()));
                *next += 1;
            }
            let mut all = Vec::new();
            for child in &agent.below {
                let (below, stored) = up(child, next);
                parts.extend(join(&below));
                all.extend(stored);
            }
            all.insert(0, parts.clone());
            (parts, all)
        }

        /// Gives out the positions; `stored` has the segments at each agent, in pre-order.
        fn down(
            agent: &AgentShape,
            whole: &RingPosition,
            stored: &mut std::vec::IntoIter<Vec<RingSegment>>,
            out: &mut Vec<RingPosition>,
        ) {
            let parts = stored.next().unwrap();
            let mut given_out = positions(&parts, whole).into_iter();
            out.extend(given_out.by_ref().take(agent.own as usize));
            for child in &agent.below {
                if has_ranks(child) {
                    down(child, &given_out.next().unwrap(), stored, out);
                } else {
                    skip(child, stored);
                }
            }
        }

        fn has_ranks(agent: &AgentShape) -> bool {
            agent.own > 0 || agent.below.iter().any(has_ranks)
        }

        fn skip(agent: &AgentShape, stored: &mut std::vec::IntoIter<Vec<RingSegment>>) {
            stored.next();
            agent.below.iter().for_each(|child| skip(child, stored));
        }

        proptest! {
            #[test]
            fn each_rank_gets_its_neighbours_values_in_any_tree(top in trees()) {
                let mut size = 0;
                let (parts, stored) = up(&top, &mut size);
                let Some(whole) = join(&parts) else { return Ok(()) };
                prop_assert_eq!(whole.count, size);
                let mut given_out = Vec::new();
                down(&top, &whole.closed(), &mut stored.into_iter(), &mut given_out);
                let expected: Vec<_> = (0..size)
                    .map(|at| {
                        let (left, right) = ((at + size - 1) % size, (at + 1) % size);
                        position(at, &format!(">{left}"), &format!("{right}<"))
                    })
                    .collect();
                prop_assert_eq!(given_out, expected);
            }
        }
    }
}
