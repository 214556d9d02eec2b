//! The arithmetic of `PMIX_Ring`: how parts of a ring are joined on the way up, and seated on the
//! way down.
//!
//! A ring is a meeting of all ranks of a namespace at which each learns its position and what its
//! two neighbours have for it. A part of it, a rank or all ranks of a subtree, is a [`RingSegment`]: of
//! what lies inside nobody else has to know anything but how much it is. So a message about a ring
//! has one size, however many ranks it speaks for. The order of the ring is the order in which
//! [`join`] and [`seats`] are content the parts; it has to be the same in both.

use pmi::limits::ATTRIBUTE_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// A part of a ring, as its neighbours see it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingSegment {
    /// How many ranks it has, at least 1.
    pub count: u32,
    /// What its first rank has for the one on its left.
    #[serde(with = "serde_bytes")]
    pub to_left: Vec<u8>,
    /// What its last rank has for the one on its right.
    #[serde(with = "serde_bytes")]
    pub to_right: Vec<u8>,
}

/// Where a part sits in the ring.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RingPosition {
    /// The position of its first rank.
    pub position: u32,
    /// What comes to its first rank from the left.
    #[serde(with = "serde_bytes")]
    pub from_left: Vec<u8>,
    /// What comes to its last rank from the right.
    #[serde(with = "serde_bytes")]
    pub from_right: Vec<u8>,
}

impl RingSegment {
    /// One rank.
    pub fn of_rank(to_left: Vec<u8>, to_right: Vec<u8>) -> Self {
        Self { count: 1, to_left, to_right }
    }

    /// Whether what it says is no longer than a rank may say.
    pub fn is_bounded(&self) -> bool {
        self.to_left.len() <= ATTRIBUTE_BYTES_MAX && self.to_right.len() <= ATTRIBUTE_BYTES_MAX
    }

    /// The seat of a stretch that is the whole ring: its two ends are neighbours.
    pub fn closed(&self) -> RingPosition {
        RingPosition { position: 0, from_left: self.to_right.clone(), from_right: self.to_left.clone() }
    }
}

impl RingPosition {
    /// Whether `count` ranks from here on are within a ring of `size`, and hear no more than a rank
    /// may say.
    pub fn is_bounded(&self, count: u64, size: u32) -> bool {
        u64::from(self.position) + count <= u64::from(size)
            && self.from_left.len() <= ATTRIBUTE_BYTES_MAX
            && self.from_right.len() <= ATTRIBUTE_BYTES_MAX
    }
}

/// The parts, side by side, as one. None of no parts.
pub(super) fn join<'a>(parts: impl IntoIterator<Item = &'a RingSegment>) -> Option<RingSegment> {
    let mut parts = parts.into_iter();
    let first = parts.next()?;
    let (count, last) = parts.fold((first.count, first), |(count, _), part| (count.saturating_add(part.count), part));
    Some(RingSegment { count, to_left: first.to_left.clone(), to_right: last.to_right.clone() })
}

/// The seat of each of the parts, whose [`join`] sits at `whole`.
pub(super) fn seats<'a>(parts: impl IntoIterator<Item = &'a RingSegment>, whole: &RingPosition) -> Vec<RingPosition> {
    let mut seats: Vec<RingPosition> = Vec::new();
    let (mut position, mut from_left) = (whole.position, whole.from_left.as_slice());
    for part in parts {
        if let Some(left) = seats.last_mut() {
            left.from_right.clone_from(&part.to_left);
        }
        seats.push(RingPosition { position, from_left: from_left.to_vec(), from_right: Vec::new() });
        position = position.saturating_add(part.count);
        from_left = &part.to_right;
    }
    if let Some(last) = seats.last_mut() {
        last.from_right.clone_from(&whole.from_right);
    }
    seats
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(name: &str) -> RingSegment {
        RingSegment::of_rank(format!("{name}<").into_bytes(), format!(">{name}").into_bytes())
    }

    fn seat(position: u32, from_left: &str, from_right: &str) -> RingPosition {
        RingPosition { position, from_left: from_left.into(), from_right: from_right.into() }
    }

    #[test]
    fn one_rank_is_its_own_neighbour() {
        let alone = rank("a");
        assert_eq!(join([&alone]), Some(alone.clone()));
        assert_eq!(seats([&alone], &alone.closed()), [seat(0, ">a", "a<")]);
    }

    #[test]
    fn parts_lie_side_by_side() {
        let parts = [rank("a"), RingSegment { count: 3, ..rank("b") }, rank("c")];
        let whole = join(&parts).unwrap();
        assert_eq!(whole, RingSegment { count: 5, to_left: b"a<".to_vec(), to_right: b">c".to_vec() });
        let expected = [seat(7, "x", "b<"), seat(8, ">a", "c<"), seat(11, ">b", "y")];
        assert_eq!(seats(&parts, &seat(7, "x", "y")), expected);
    }

    #[test]
    fn nothing_is_no_part() {
        assert_eq!(join([]), None);
        assert_eq!(seats([], &seat(0, "", "")), []);
    }

    #[test]
    fn words_have_a_bound() {
        let word = |bytes: usize| vec![b'w'; bytes];
        assert!(RingSegment::of_rank(word(ATTRIBUTE_BYTES_MAX), word(ATTRIBUTE_BYTES_MAX)).is_bounded());
        assert!(!RingSegment::of_rank(word(ATTRIBUTE_BYTES_MAX + 1), word(0)).is_bounded());
        assert!(!RingSegment::of_rank(word(0), word(ATTRIBUTE_BYTES_MAX + 1)).is_bounded());
        assert!(seat(3, "", "").is_bounded(2, 5));
        assert!(!seat(3, "", "").is_bounded(3, 5));
        assert!(!seat(u32::MAX, "", "").is_bounded(1, u32::MAX));
        assert!(RingPosition { from_right: word(ATTRIBUTE_BYTES_MAX), ..seat(0, "", "") }.is_bounded(1, 1));
        assert!(!RingPosition { from_right: word(ATTRIBUTE_BYTES_MAX + 1), ..seat(0, "", "") }.is_bounded(1, 1));
        assert!(!RingPosition { from_left: word(ATTRIBUTE_BYTES_MAX + 1), ..seat(0, "", "") }.is_bounded(1, 1));
    }

    mod properties {
        use super::*;
        use proptest::prelude::*;

        /// A place in a tree: some ranks of its own, and places below it.
        #[derive(Clone, Debug)]
        struct Place {
            own: u32,
            below: Vec<Self>,
        }

        fn places() -> impl Strategy<Value = Place> {
            let leaf = (0u32..4).prop_map(|own| Place { own, below: Vec::new() });
            leaf.prop_recursive(4, 40, 4, |inner| {
                (0u32..4, prop::collection::vec(inner, 0..4)).prop_map(|(own, below)| Place { own, below })
            })
        }

        /// What a place sends up; `next` numbers the ranks in the ring's order.
        fn up(place: &Place, next: &mut u32) -> (Vec<RingSegment>, Vec<Vec<RingSegment>>) {
            let mut parts = Vec::new();
            for _ in 0..place.own {
                parts.push(rank(&next.to_string()));
                *next += 1;
            }
            let mut all = Vec::new();
            for child in &place.below {
                let (below, kept) = up(child, next);
                parts.extend(join(&below));
                all.extend(kept);
            }
            all.insert(0, parts.clone());
            (parts, all)
        }

        /// Hands the seats down; `kept` are the parts of each place, in pre-order.
        fn down(
            place: &Place,
            seat: &RingPosition,
            kept: &mut std::vec::IntoIter<Vec<RingSegment>>,
            out: &mut Vec<RingPosition>,
        ) {
            let parts = kept.next().unwrap();
            let mut content = seats(&parts, seat).into_iter();
            out.extend(content.by_ref().take(place.own as usize));
            for child in &place.below {
                if has_ranks(child) {
                    down(child, &content.next().unwrap(), kept, out);
                } else {
                    skip(child, kept);
                }
            }
        }

        fn has_ranks(place: &Place) -> bool {
            place.own > 0 || place.below.iter().any(has_ranks)
        }

        fn skip(place: &Place, kept: &mut std::vec::IntoIter<Vec<RingSegment>>) {
            kept.next();
            place.below.iter().for_each(|child| skip(child, kept));
        }

        proptest! {
            #[test]
            fn whatever_the_tree_each_rank_has_its_neighbours(top in places()) {
                let mut size = 0;
                let (parts, kept) = up(&top, &mut size);
                let Some(whole) = join(&parts) else { return Ok(()) };
                prop_assert_eq!(whole.count, size);
                let mut content = Vec::new();
                down(&top, &whole.closed(), &mut kept.into_iter(), &mut content);
                let expected: Vec<_> = (0..size)
                    .map(|at| {
                        let (left, right) = ((at + size - 1) % size, (at + 1) % size);
                        seat(at, &format!(">{left}"), &format!("{right}<"))
                    })
                    .collect();
                prop_assert_eq!(content, expected);
            }
        }
    }
}
