//! Process mappings, rank maps and sets of ranks, as bytes of a peer and as text.

use launcher::cluster::placement::RankMap;
use nla::wire::{decode, encode};
use pmi::{Mapping, Rank, Ranks};

/// Longer lists of nodes are not built.
const RANKS_MAX: u32 = 10_000;

/// Checks the bytes as a mapping, a set of ranks, and text of each.
pub(super) fn check(data: &[u8]) {
    if let Ok(mapping) = decode::<Mapping>(data) {
        check_mapping(&mapping);
    }
    if let Ok(ranks) = decode::<Ranks>(data) {
        check_ranks(&ranks);
    }
    let Ok(text) = str::from_utf8(data) else { return };
    match text.parse::<Ranks>() {
        Ok(ranks) => check_ranks(&ranks),
        Err(error) => super::check_shown(&error.to_string()),
    }
    match RankMap::parse(text) {
        Ok(map) => check_map(&map),
        Err(refusal) => super::check_shown(&refusal.to_string()),
    }
}

fn check_mapping(mapping: &Mapping) {
    assert_eq!(decode::<Mapping>(&encode(mapping)).ok().as_ref(), Some(mapping));
    let size = mapping.size();
    assert_eq!(mapping.node_of(Rank(size)), None);
    for rank in [0, size / 2, size.saturating_sub(1)].into_iter().filter(|rank| *rank < size).map(Rank) {
        let node = mapping.node_of(rank).expect("each rank has a node");
        assert!(mapping.local_rank(rank).expect("each rank has a number on its node") < mapping.local_size(node));
    }
    // The launcher reads the same syntax.
    if let Some(map) = mapping.wire_value().and_then(|value| RankMap::parse(&value).ok()) {
        assert_eq!(map.size(), size);
    }
}

fn check_map(map: &RankMap) {
    if map.size() > RANKS_MAX {
        return;
    }
    let nodes: Vec<u32> = map.runs().flat_map(|(node, ranks)| std::iter::repeat_n(node, ranks as usize)).collect();
    assert_eq!(nodes.len(), map.size() as usize);
    let mapping = Mapping::from_nodes(nodes.iter().copied());
    check_mapping(&mapping);
    for (rank, node) in (0..).zip(&nodes) {
        assert_eq!(mapping.node_of(Rank(rank)), Some(*node));
    }
    if let Some(value) = mapping.wire_value() {
        let again = RankMap::parse(&value).expect("a mapping is a rank map");
        let again = again.runs().flat_map(|(node, ranks)| std::iter::repeat_n(node, ranks as usize));
        assert!(again.eq(nodes), "{value}");
    }
}

fn check_ranks(ranks: &Ranks) {
    assert_eq!(decode::<Ranks>(&encode(ranks)).ok().as_ref(), Some(ranks));
    assert_eq!(ranks.to_string().parse::<Ranks>().as_ref(), Ok(ranks));
    let mut again = Ranks::new();
    for &(start, end) in ranks.intervals().iter().rev() {
        again.union_with(&Ranks::range(start..end));
    }
    assert_eq!(&again, ranks);
    assert!(ranks.contains_all(&again));
    assert!(ranks.first().into_iter().chain(ranks.last()).all(|rank| ranks.contains(rank)));
}
