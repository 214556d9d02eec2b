//! Small jobs of which every message is known.

use nla::core::{CachePolicy, GetCounts};
use sim::{Pattern, Refusal, Report, Spec};

/// Six agents, two of them below the root, each with two below; two ranks on each.
fn small(cache: CachePolicy, pattern: Pattern) -> Report {
    let spec = Spec { nodes: 6, ppn: 2, fanout: 2, cache, pattern, ..Spec::default() };
    sim::run(&spec).expect("a small job can be simulated")
}

fn board(report: &Report) -> Vec<(u64, u64)> {
    report.levels.iter().map(|level| (level.up_board.messages, level.down_board.messages)).collect()
}

#[test]
fn messages_of_two_fences() {
    for cache in [CachePolicy::Hcma, CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 3 }] {
        assert_eq!(board(&small(cache, Pattern::Fences)), [(4, 4), (8, 8)], "{cache}");
    }
    // Twelve entries through the root's links, those of the four leaves through the others.
    assert_eq!(board(&small(CachePolicy::Hcs, Pattern::Fences)), [(4 + 12, 4), (8 + 8, 8)]);
    assert_eq!(board(&small(CachePolicy::Hcs, Pattern::Nothing)), [(0, 0), (0, 0)]);
}

#[test]
fn entries_and_bytes_of_a_fence() {
    let spec = Spec { nodes: 6, ppn: 2, value_min: 10, value_max: 10, pattern: Pattern::Fences, ..Spec::default() };
    let report = sim::run(&spec).expect("a small job can be simulated");
    // A header, 32 slots for 12 entries, and of each its lengths, its key and its value.
    let keys = 10 * 6 + 2 * 7;
    let epoch = 16 + 32 * 8 + 12 * (2 + 4 + 10) + keys;
    assert_eq!((report.fences[0].entries, report.fences[0].bytes), (12, epoch));
    assert_eq!((report.fences[1].entries, report.fences[1].bytes), (0, 0));
    for memory in [report.root, report.leaves] {
        assert_eq!((memory.most.entries, memory.most.bytes), (12, epoch));
    }
    assert_eq!((report.root.places, report.inner.places, report.leaves.places), (1, 0, 6));
}

#[test]
fn gets_of_neighbours() {
    // Agent 1 is over 2 and 3, agent 4 over 5 and 6. On each, one rank asks for what the agent before has put, and
    // one for what the next one has.
    let report = small(CachePolicy::Hcma, Pattern::Neighbours);
    let expected = [
        GetCounts { others: 4, ..GetCounts::default() },
        // Agents 1 and 4 know what is below them. What 1 needs of 6, 3 of 4, 4 of 3 and 6 of 1 is asked of the root.
        GetCounts { others: 6, asked: 4, ..GetCounts::default() },
        // Leaves know their own.
        GetCounts { asked: 8, ..GetCounts::default() },
    ];
    assert_eq!(report.gets.levels, expected);
    assert_eq!((report.gets.here, report.gets.waited), (24 - 8 - 2, 0));
    let report = small(CachePolicy::Hcmab, Pattern::Neighbours);
    assert_eq!((report.gets.here, report.gets.waited), (24, 0));
    assert!(report.gets.levels.iter().all(|level| *level == GetCounts::default()));
}

#[test]
fn gets_of_all() {
    for cache in [CachePolicy::Hcs, CachePolicy::Hcma] {
        let report = small(cache, Pattern::All);
        let [root, inner, leaves] = report.gets.levels[..] else { panic!("{:?}", report.gets) };
        // Of two ranks that need an entry, the agent asks for one, and the other waits with it.
        assert_eq!(leaves, GetCounts { asked: 4 * 10, joined: 4 * 10, ..GetCounts::default() });
        assert_eq!(inner.asked, 2 * 6, "each asks once for what is not below it");
        assert_eq!(inner.others + inner.joined, 4 * 10 + 2 * 6 + 2 * 6 - 12, "all that came to it");
        assert_eq!(report.gets.here + report.gets.waited + 4 * 10 + 2 * 6, 12 * 12, "each get counts once");
        assert_eq!(root, GetCounts { others: 12, ..GetCounts::default() });
        for memory in [report.root, report.inner, report.leaves] {
            assert_eq!(memory.most.entries, 12, "{cache}: who has asked for all has all");
        }
    }
    let report = small(CachePolicy::Hcmab, Pattern::All);
    assert_eq!((report.gets.here, report.gets.waited), (12 * 12, 0));
}

#[test]
fn a_bounded_cache_keeps_so_many() {
    let report = small(CachePolicy::HcmabLru { entries: 3 }, Pattern::All);
    for memory in [report.inner, report.leaves] {
        assert_eq!(memory.most.entries, 3);
        assert_eq!(memory.most.own_entries, 2);
    }
    assert_eq!((report.inner.most.index_entries, report.leaves.most.index_entries), (4, 0));
}

#[test]
fn slower_machines_take_longer() {
    let job = |change: fn(&mut Spec)| {
        let mut spec = Spec { nodes: 64, fanout: 8, pattern: Pattern::Fences, ..Spec::default() };
        change(&mut spec);
        sim::run(&spec).expect("it can be simulated").fences[0].releasing
    };
    let usual = job(|_| {});
    assert!(job(|spec| spec.latency = Some(std::time::Duration::from_millis(1))) > usual + 2_000_000);
    assert!(job(|spec| spec.bandwidth = Some(100_000_000)) > 4 * usual);
    assert!(job(|spec| spec.value_max = 10) < usual);
}

#[test]
fn what_cannot_be_is_refused() {
    let spec = Spec { nodes: 16_384, cache: CachePolicy::Hcma, pattern: Pattern::All, ..Spec::default() };
    let refusal = sim::run(&spec).expect_err("it would take terabytes");
    assert!(matches!(refusal, Refusal::Memory { .. }), "{refusal}");
    assert!(refusal.to_string().contains("16384 agents x 1048576 entries"), "{refusal}");
}
