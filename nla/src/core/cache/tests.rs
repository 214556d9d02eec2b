//! The policies as values.

use super::*;

#[test]
fn names_are_read_as_they_are_written() {
    for policy in CachePolicy::ALL {
        assert_eq!(policy.to_string().parse(), Ok(policy));
        assert_eq!(policy.name().to_uppercase().parse(), Ok(policy));
    }
    assert_eq!("hcmba".parse::<CachePolicy>(), Err(UnknownPolicy));
}

#[test]
fn ranks_are_found_below_their_child() {
    let ranks = |text: &str| text.parse::<Ranks>().unwrap();
    let shares = [(AgentId(2), ranks("2-3,8")), (AgentId(5), ranks("4-7"))];
    let place = Place::new(false, shares.iter().map(|(child, ranks)| (child, ranks)));
    let children = (0..10).map(|rank| place.child_of(Rank(rank)).map_or(0, |child| child.0));
    assert_eq!(children.collect::<Vec<_>>(), [0, 0, 2, 2, 5, 5, 5, 5, 2, 0]);
}

fn puts(list: &[(u32, &str, &str)]) -> Puts {
    let mut puts = Puts::new();
    for (rank, key, value) in list {
        puts.push(Rank(*rank), key.as_bytes(), value.as_bytes());
    }
    puts
}

/// One fence at the root.
fn fence(cache: &mut dyn Cache, contribution: &[(u32, &str, &str)]) -> Update {
    let (news, _) = cache.close(puts(contribution));
    cache.release(news.clone());
    news
}

fn here(key: &str, value: &str) -> Source {
    Source::Stored(Entry::new(key.as_bytes(), value.as_bytes()))
}

fn overwritten(news: Update) -> Vec<String> {
    let Update::Overwritten(keys) = news else { panic!("{news:?}") };
    keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect()
}

#[test]
fn a_release_names_what_caches_may_have_wrong() {
    for policy in [CachePolicy::Hcs, CachePolicy::Hcma] {
        let mut root = policy.at(Place::new(true, []));
        // Of one rank the last put counts everywhere: no cache has it wrong.
        let first = fence(root.as_mut(), &[(0, "a", "1"), (0, "a", "2"), (1, "b", "1"), (2, "b", "2"), (3, "c", "1")]);
        assert_eq!(overwritten(first), ["b"]);
        assert_eq!(root.look_up(b"a", 0), here("a", "2"));
        assert_eq!(overwritten(fence(root.as_mut(), &[(1, "c", "2"), (1, "d", "1")])), ["c"]);
        assert_eq!(root.look_up(b"c", 0), here("c", "2"));
        assert_eq!(root.look_up(b"e", 0), Source::Absent);
    }
}

#[test]
fn what_passed_is_seen_after_the_release_and_not_before() {
    let mut cache = CachePolicy::Hcs.at(Place::new(false, []));
    cache.pass(&puts(&[(0, "a", "1"), (0, "b", "1")])).unwrap();
    assert_eq!(cache.look_up(b"a", 0), Source::Parent);
    cache.gather(&puts(&[]));
    cache.learn(&LookUpResult::Absent("none".into()));
    assert_eq!(cache.look_up(b"none", 0), Source::Absent);
    cache.release(Update::Overwritten([b"b"].into_iter().collect()));
    assert_eq!(cache.look_up(b"a", 0), here("a", "1"));
    assert_eq!(cache.look_up(b"b", 0), Source::Parent);
    assert_eq!(cache.look_up(b"none", 0), Source::Parent, "it may have been put since");
}

#[test]
fn the_bounded_one_knows_below_which_child_to_look() {
    let child = |agent, text: &str| (AgentId(agent), text.parse::<Ranks>().unwrap());
    let shares = [child(1, "0-1"), child(4, "2-3")];
    let place = || Place::new(true, shares.iter().map(|(child, ranks)| (child, ranks)));
    let mut root = CachePolicy::HcmabLru { entries: 1 }.at(place());
    fence(root.as_mut(), &[(0, "a", "1"), (2, "b", "1"), (3, "c", "1")]);
    assert_eq!(root.look_up(b"a", 0), Source::Child(AgentId(1)));
    assert_eq!(root.look_up(b"b", 0), Source::Child(AgentId(4)));
    assert_eq!(root.look_up(b"c", 0), here("c", "1"));
    assert_eq!(root.look_up(b"d", 0), Source::Absent);
    // It moves to the other child; the one that had it is asked last.
    fence(root.as_mut(), &[(1, "b", "2"), (3, "e", "1")]);
    assert_eq!(root.look_up(b"b", 0), Source::Child(AgentId(1)));
    assert_eq!(root.look_up(b"b", 1), Source::Child(AgentId(4)));
    assert_eq!(root.look_up(b"b", 2), Source::Absent);
    let peaks = root.peaks();
    assert_eq!((peaks.entries, peaks.index_entries, peaks.own_entries), (1, 4, 0));
}
