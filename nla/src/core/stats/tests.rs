//! Merging statistics, and refusing those that a subtree cannot have.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::core::ids::AgentId;
use crate::wire::{decode, encode};

fn member(number: u64) -> LevelStats {
    let mut counted = DriverCounts { link_bytes: number, segments: 1, ..DriverCounts::default() };
    counted.up.note(true, 100);
    counted.down.note(false, 7);
    let gets = GetCounts { asked: number, ..GetCounts::default() };
    let cache = CachePeaks { entries: number, evictions: 1, ..CachePeaks::default() };
    let mut fences = DurationHistogram::default();
    fences.note(Duration::from_micros(number));
    LevelStats::of_member(counted, gets, cache, fences)
}

#[test]
fn members_of_one_level_are_merged() {
    let leaves = [2, 5, 3].map(|number| Stats::of(member(number), Vec::new(), []));
    let inner = Stats::of(member(10), Vec::new(), &leaves);
    let whole = Stats::of(member(1), Vec::new(), [&inner, &leaves[0]]);
    assert_eq!(whole.levels.iter().map(|level| level.members).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!((whole.members(), whole.segments()), (6, 6));
    let level = &whole.levels[1];
    assert_eq!((level.counted.link_bytes, level.gets.asked), (12, 12));
    assert_eq!(level.counted.up.board, LaneTraffic { messages: 2, bytes: 200 });
    assert_eq!(level.counted.down, Traffic { control: LaneTraffic { messages: 2, bytes: 14 }, ..Traffic::default() });
    assert_eq!((level.cache_max.entries, level.cache_sum.entries, level.cache_sum.evictions), (10, 12, 2));
    let level = &whole.levels[2];
    assert_eq!((level.cache_max.entries, level.cache_sum.entries), (5, 10));
    assert_eq!((level.fences.count(), level.fences.max()), (3, Some(Duration::from_micros(5))));
}

#[test]
fn a_report_that_cannot_be_of_its_subtree_is_refused() {
    let tree = Subtree::whole(4, 2); // 1 - 2, 3 - 4
    let below = tree.of(AgentId(1)).unwrap();
    let leaf = Stats::of(member(1), Vec::new(), []);
    let good = Stats::of(member(1), Vec::new(), [&leaf]);
    assert!(good.is_of(below, None) && leaf.is_of(below, None), "lost agents may be missing");
    assert!(!Stats::default().is_of(below, None), "no member has reported");
    let deep = Stats::of(member(1), Vec::new(), [&good]);
    assert!(deep.is_of(Subtree::whole(3, 1), None) && !deep.is_of(Subtree::whole(3, 3), None), "too deep");
    assert!(!Stats::of(member(1), Vec::new(), [&leaf, &leaf]).is_of(below, None), "too many");
    let changes: [fn(&mut Stats); 4] = [
        |stats| stats.levels[0].members = 2,
        |stats| stats.levels[1].members = u64::MAX,
        |stats| stats.levels[1].members = 0,
        |stats| stats.levels[1].fences = nonsense(),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut bad = good.clone();
        change(&mut bad);
        assert!(!bad.is_of(below, None), "change {at}");
    }
}

/// A histogram with a count of one and no bucket, as a peer could send it.
fn nonsense() -> DurationHistogram {
    decode(&encode(&(1u64, 0u64, 0u64, BTreeMap::<u16, u64>::new()))).unwrap()
}

#[test]
fn a_peer_cannot_make_sums_overflow() {
    let most = CachePeaks { entries: u64::MAX, evictions: u64::MAX, ..CachePeaks::default() };
    let counted = DriverCounts { link_bytes: u64::MAX, segments: u64::MAX, ..DriverCounts::default() };
    let gets = GetCounts { own: u64::MAX, ..GetCounts::default() };
    let child = Stats::of(LevelStats::of_member(counted, gets, most, DurationHistogram::default()), Vec::new(), []);
    let whole = Stats::of(member(1), Vec::new(), [&child, &child]);
    assert_eq!(whole.levels[1].counted.link_bytes, u64::MAX);
    assert_eq!(whole.levels[1].cache_sum, most);
    assert_eq!(whole.segments(), u64::MAX);
}

#[test]
fn statistics_are_decoded_as_they_were_encoded() {
    let stats = Stats::of(member(1), Vec::new(), [&Stats::of(member(u64::MAX / 3), Vec::new(), [])]);
    assert_eq!(decode::<Stats>(&encode(&stats)).unwrap(), stats);
}
