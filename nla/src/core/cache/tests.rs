//! Each policy's cache alone, without a tree.

use super::*;
use crate::core::limits::FENCE_BYTES_MAX;

#[test]
fn policy_names_are_parsed_in_either_case() {
    for policy in CachePolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        assert_eq!(policy.name().to_uppercase().parse(), Ok(policy));
    }
    assert_eq!("hcmba".parse::<CachePolicy>(), Err(UnknownPolicy));
}

#[test]
fn each_rank_is_found_below_its_child() {
    let ranks = |text: &str| text.parse::<Ranks>().unwrap();
    let shares = [(AgentId(2), ranks("2-3,8")), (AgentId(5), ranks("4-7"))];
    let location = CacheLocation::new(false, &shares);
    let children = (0..10).map(|rank| location.child_of(Rank(rank)).map_or(0, |child| child.0));
    assert_eq!(children.collect::<Vec<_>>(), [0, 0, 2, 2, 5, 5, 5, 5, 2, 0]);
}

fn puts(list: &[(u32, &str, &str)]) -> Puts {
    let mut puts = Puts::new();
    for (rank, key, value) in list {
        puts.push(Rank(*rank), key.as_bytes(), value.as_bytes());
    }
    puts
}

/// Runs one fence at the root.
fn fence(cache: &mut dyn Cache, contribution: &[(u32, &str, &str)]) -> Update {
    let (update, _) = cache.close(puts(contribution));
    cache.release(update.clone());
    update
}

fn stored(key: &str, value: &str) -> Source {
    Source::Stored(Entry::new(key.as_bytes(), value.as_bytes()))
}

fn overwritten(update: Update) -> Vec<String> {
    let Update::Overwritten(keys) = update else { panic!("{update:?}") };
    keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[test]
fn a_release_names_the_keys_with_stale_values() {
    for policy in [CachePolicy::Hcs, CachePolicy::Hcma] {
        let mut root = policy.cache_at(CacheLocation::new(true, &[]));
        // Every cache keeps the last of one rank's puts, so "a" is stale nowhere.
        let first = fence(root.as_mut(), &[(0, "a", "1"), (0, "a", "2"), (1, "b", "1"), (2, "b", "2"), (3, "c", "1")]);
        assert_eq!(overwritten(first), ["b"]);
        assert_eq!(root.look_up(b"a", 0), stored("a", "2"));
        assert_eq!(overwritten(fence(root.as_mut(), &[(1, "c", "2"), (1, "d", "1")])), ["c"]);
        assert_eq!(root.look_up(b"c", 0), stored("c", "2"));
        assert_eq!(root.look_up(b"e", 0), Source::Absent);
    }
}

#[test]
fn puts_that_passed_are_visible_after_the_release_only() {
    let mut cache = CachePolicy::Hcs.cache_at(CacheLocation::new(false, &[]));
    cache.pass(&puts(&[(0, "a", "1"), (0, "b", "1")])).unwrap();
    assert_eq!(cache.look_up(b"a", 0), Source::Parent);
    cache.gather(&puts(&[]));
    cache.learn(&LookUpResult::Absent("none".into()));
    assert_eq!(cache.look_up(b"none", 0), Source::Absent);
    cache.release(Update::Overwritten([b"b"].into_iter().collect()));
    assert_eq!(cache.look_up(b"a", 0), stored("a", "1"));
    assert_eq!(cache.look_up(b"b", 0), Source::Parent);
    assert_eq!(cache.look_up(b"none", 0), Source::Parent, "a rank may have put it since");
}

#[test]
fn the_bounded_cache_names_the_child_that_has_the_entry() {
    let child = |agent, text: &str| (AgentId(agent), text.parse::<Ranks>().unwrap());
    let shares = [child(1, "0-1"), child(4, "2-3")];
    let location = || CacheLocation::new(true, &shares);
    let mut root = CachePolicy::HcmabLru { entries: 1 }.cache_at(location());
    fence(root.as_mut(), &[(0, "a", "1"), (2, "b", "1"), (3, "c", "1")]);
    assert_eq!(root.look_up(b"a", 0), Source::Child(AgentId(1)));
    assert_eq!(root.look_up(b"b", 0), Source::Child(AgentId(4)));
    assert_eq!(root.look_up(b"c", 0), stored("c", "1"));
    assert_eq!(root.look_up(b"d", 0), Source::Absent);
    // "b" moves to the other child; the child that stored it before is asked last.
    fence(root.as_mut(), &[(1, "b", "2"), (3, "e", "1")]);
    assert_eq!(root.look_up(b"b", 0), Source::Child(AgentId(1)));
    assert_eq!(root.look_up(b"b", 1), Source::Child(AgentId(4)));
    assert_eq!(root.look_up(b"b", 2), Source::Absent);
    let peaks = root.peaks();
    assert_eq!((peaks.entries, peaks.index_entries, peaks.own_entries), (1, 4, 0));
}

#[test]
fn early_puts_of_a_fence_have_a_bound_in_bytes() {
    let bytes = |bytes: usize| {
        let mut puts = Puts::new();
        puts.push(Rank(0), b"k", &vec![b'v'; bytes - Puts::cost(b"k", b"")]);
        puts
    };
    let small = 100;
    let mut cache = CachePolicy::Hcs.cache_at(CacheLocation::new(false, &[]));
    cache.pass(&bytes(FENCE_BYTES_MAX - small)).unwrap();
    assert_eq!(cache.pass(&bytes(small + 1)), Err(FenceError::TooLarge));
    assert_eq!(cache.pass(&bytes(small)), Ok(()));
    assert_eq!(cache.pass(&bytes(small)), Err(FenceError::TooLarge));
}

#[test]
fn only_one_policy_bounds_the_stored_values() {
    for policy in CachePolicy::ALL {
        let bounded = (policy.name() == "hcmab-lru").then_some(CachePolicy::HcmabLru { entries: 7 });
        assert_eq!(policy.with_entries(7), bounded);
        assert_eq!(policy.entries(), bounded.map(|_| CACHE_ENTRIES_DEFAULT));
    }
}

#[test]
fn a_put_ahead_of_its_fence_is_refused_where_puts_travel_with_it() {
    for policy in [CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 1 }] {
        let mut cache = policy.cache_at(CacheLocation::new(false, &[]));
        assert_eq!(cache.pass(&puts(&[(0, "k", "v")])), Err(FenceError::EarlyPut));
    }
}

/// A cache for one value, and the keys of ranks 0, 2 and 4: their values were evicted. The children 1, 4 and 7 have two
/// ranks each.
fn evicted() -> Box<dyn Cache> {
    let shares = [0, 2, 4].map(|first| (AgentId(1 + first * 3 / 2), Ranks::range(first..first + 2)));
    let mut cache = CachePolicy::HcmabLru { entries: 1 }.cache_at(CacheLocation::new(false, &shares));
    gathered(cache.as_mut(), &[(0, "a", "1"), (2, "b", "1"), (4, "c", "1"), (5, "z", "1")]);
    cache
}

fn gathered(cache: &mut dyn Cache, list: &[(u32, &str, &str)]) {
    let puts = puts(list);
    cache.gather(&puts);
    cache.release(Update::Epoch(pmi::Epoch::merge(&puts).unwrap()));
}

/// The children that are asked for a key, before the parent is.
fn asked(cache: &mut dyn Cache, key: &str) -> Vec<u32> {
    let child = |tried| match cache.look_up(key.as_bytes(), tried) {
        Source::Child(child) => Some(child.0),
        Source::Parent => None,
        source => panic!("{source:?}"),
    };
    (0..).map_while(child).collect()
}

#[test]
fn each_child_that_may_have_an_entry_is_asked_once_the_newest_first() {
    let mut cache = evicted();
    assert_eq!(["a", "b", "c"].map(|key| asked(cache.as_mut(), key)), [[1], [4], [7]]);
    for (rank, children) in [(3, vec![4, 1]), (5, vec![7, 4, 1]), (0, vec![1, 7, 4]), (1, vec![1, 7, 4])] {
        gathered(cache.as_mut(), &[(rank, "a", "2"), (5, "z", "2")]);
        assert_eq!(asked(cache.as_mut(), "a"), children, "after rank {rank}");
    }
}

#[test]
fn evictions_are_counted() {
    let mut cache = evicted();
    assert_eq!(cache.peaks().evictions, 3);
    gathered(cache.as_mut(), &[(0, "d", "1")]);
    assert_eq!(cache.peaks().evictions, 4, "of \"z\"");
    cache.learn(&LookUpResult::Entry(Entry::new(b"a", b"1")));
    assert_eq!(cache.peaks().evictions, 5, "of \"d\"");
}

#[test]
fn all_heirs_of_a_lost_child_are_asked_in_its_place() {
    let mut cache = evicted();
    gathered(cache.as_mut(), &[(2, "a", "2"), (4, "b", "2"), (5, "z", "2")]);
    let shares = [(2, "0"), (3, "1"), (4, "2-3"), (7, "4-5")];
    let shares: Vec<_> = shares.iter().map(|(child, set)| (AgentId(*child), set.parse::<Ranks>().unwrap())).collect();
    cache.replace_child(AgentId(1), &[AgentId(2), AgentId(3)], &shares);
    let after = ["a", "b", "c"].map(|key| asked(cache.as_mut(), key));
    assert_eq!(after, [vec![4, 2, 3], vec![7, 4], vec![7]]);
    // A child with one heir that has the entry too.
    cache.replace_child(AgentId(4), &[AgentId(7)], &[]);
    let after = ["a", "b"].map(|key| asked(cache.as_mut(), key));
    assert_eq!(after, [vec![7, 2, 3], vec![7]]);
    cache.replace_child(AgentId(7), &[], &[]);
    let after = ["a", "b"].map(|key| asked(cache.as_mut(), key));
    assert_eq!(after, [vec![2, 3], vec![]]);
}

#[test]
fn new_entries_are_found_at_the_heirs_of_a_lost_child_and_where_ranks_have_moved() {
    let mut cache = evicted();
    cache.replace_child(AgentId(1), &[AgentId(2)], &[(AgentId(2), Ranks::range(0..2))]);
    gathered(cache.as_mut(), &[(0, "d", "1"), (9, "z", "2")]);
    assert_eq!(asked(cache.as_mut(), "d"), [2]);
    cache.relocate(&[(AgentId(7), Ranks::range(0..2))]);
    gathered(cache.as_mut(), &[(0, "e", "1"), (9, "z", "3")]);
    assert_eq!(asked(cache.as_mut(), "e"), [7]);
}

#[test]
fn what_a_lost_agents_ranks_have_put_is_taken_back() {
    let mut cache = evicted();
    let (lost, kept) = (puts(&[(0, "d", "1")]), puts(&[(2, "e", "1")]));
    cache.gather(&lost);
    cache.gather(&kept);
    cache.retract(&Ranks::range(0..1), &[&kept]);
    // Another place puts the same value.
    let update = puts(&[(0, "d", "1"), (2, "e", "1"), (9, "z", "2")]);
    cache.release(Update::Epoch(pmi::Epoch::merge(&update).unwrap()));
    assert_eq!(["d", "e"].map(|key| asked(cache.as_mut(), key)), [vec![], vec![4]]);
    let mut cache = CachePolicy::Hcs.cache_at(CacheLocation::new(false, &[]));
    cache.pass(&lost).unwrap();
    cache.pass(&kept).unwrap();
    cache.retract(&Ranks::range(0..1), &[]);
    cache.release(Update::Overwritten([b"x"].into_iter().collect()));
    assert_eq!((cache.look_up(b"d", 0), cache.look_up(b"e", 0)), (Source::Parent, stored("e", "1")));
}
