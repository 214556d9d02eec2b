//! Small jobs for which the exact number of messages is known.

use nla::core::{CachePolicy, GetCounts};
use sim::{BoardCosts, Pattern, Refusal, Report, Spec};

use crate::MEASURED;

/// Runs a job on six agents with two ranks each. The root has two children, each of which has two children.
fn small(cache: CachePolicy, pattern: Pattern) -> Report {
    let spec = Spec { nodes: 6, ppn: 2, fanout: 2, cache, pattern, ..Spec::default() };
    sim::run(&spec).expect("a small job can be simulated")
}

fn board(report: &Report) -> Vec<(u64, u64)> {
    report.levels.iter().map(|level| (level.up_board.messages, level.down_board.messages)).collect()
}

#[test]
fn two_fences_send_the_expected_messages() {
    for cache in [CachePolicy::Hcma, CachePolicy::Hcmab, CachePolicy::HcmabLru { entries: 3 }] {
        assert_eq!(board(&small(cache, Pattern::Fences)), [(4, 4), (8, 8)], "{cache}");
    }
    // The root's links carry twelve entries, the other links the entries of the four leaves.
    assert_eq!(board(&small(CachePolicy::Hcs, Pattern::Fences)), [(4 + 12, 4), (8 + 8, 8)]);
    assert_eq!(board(&small(CachePolicy::Hcs, Pattern::Nothing)), [(0, 0), (0, 0)]);
}

#[test]
fn a_fence_stores_the_expected_entries_and_bytes() {
    let spec = Spec { nodes: 6, ppn: 2, value_min: 10, value_max: 10, pattern: Pattern::Fences, ..Spec::default() };
    let report = sim::run(&spec).expect("a small job can be simulated");
    // A header, 32 slots for 12 entries, and for each entry its lengths, its key and its value.
    let keys = 10 * 6 + 2 * 7;
    let epoch = 16 + 32 * 8 + 12 * (2 + 4 + 10) + keys;
    assert_eq!((report.fences[0].entries, report.fences[0].bytes), (12, epoch));
    assert_eq!((report.fences[1].entries, report.fences[1].bytes), (0, 0));
    for memory in [report.root, report.leaves] {
        assert_eq!((memory.max.entries, memory.max.bytes), (12, epoch));
    }
    assert_eq!((report.root.members, report.inner.members, report.leaves.members), (1, 0, 6));
}

#[test]
fn gets_of_neighbours_are_answered_at_the_expected_levels() {
    // Agent 1 is the parent of 2 and 3, agent 4 of 5 and 6. On each agent, one rank gets an entry of the previous
    // agent and one an entry of the next agent.
    let report = small(CachePolicy::Hcma, Pattern::Neighbours);
    let expected = [
        GetCounts { others: 4, ..GetCounts::default() },
        // Agents 1 and 4 have the entries of their subtrees. The root is asked for those that 1 needs of 6, 3 of 4, 4
        // of 3 and 6 of 1.
        GetCounts { others: 6, asked: 4, ..GetCounts::default() },
        // Leaves have the entries of their own ranks.
        GetCounts { asked: 8, ..GetCounts::default() },
    ];
    assert_eq!(report.gets.levels, expected);
    assert_eq!((report.gets.here, report.gets.waited), (24 - 8 - 2, 0));
    let report = small(CachePolicy::Hcmab, Pattern::Neighbours);
    assert_eq!((report.gets.here, report.gets.waited), (24, 0));
    assert!(report.gets.levels.iter().all(|level| *level == GetCounts::default()));
}

#[test]
fn gets_of_all_entries_are_answered_at_the_expected_levels() {
    for cache in [CachePolicy::Hcs, CachePolicy::Hcma] {
        let report = small(cache, Pattern::All);
        let [root, inner, leaves] = report.gets.levels[..] else { panic!("{:?}", report.gets) };
        // Two ranks of an agent need each entry: the agent asks once, and the second rank waits for the same answer.
        assert_eq!(leaves, GetCounts { asked: 4 * 10, joined: 4 * 10, ..GetCounts::default() });
        assert_eq!(inner.asked, 2 * 6, "each agent asks once for each entry outside its subtree");
        assert_eq!(inner.others + inner.joined, 4 * 10 + 2 * 6 + 2 * 6 - 12, "all gets that reached the inner agents");
        assert_eq!(report.gets.here + report.gets.waited + 4 * 10 + 2 * 6, 12 * 12, "each get is counted once");
        assert_eq!(root, GetCounts { others: 12, ..GetCounts::default() });
        for memory in [report.root, report.inner, report.leaves] {
            assert_eq!(memory.max.entries, 12, "{cache}: a member that asked for all entries stores all");
        }
    }
    let report = small(CachePolicy::Hcmab, Pattern::All);
    assert_eq!((report.gets.here, report.gets.waited), (12 * 12, 0));
}

#[test]
fn a_bounded_cache_never_exceeds_its_bound() {
    let report = small(CachePolicy::HcmabLru { entries: 3 }, Pattern::All);
    for memory in [report.inner, report.leaves] {
        assert_eq!(memory.max.entries, 3);
        assert_eq!(memory.max.own_entries, 2);
    }
    assert_eq!((report.inner.max.index_entries, report.leaves.max.index_entries), (4, 0));
}

#[test]
fn a_slower_network_makes_fences_slower() {
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
fn a_simulation_beyond_the_memory_bound_is_refused() {
    let spec = Spec { nodes: 16_384, cache: CachePolicy::Hcma, pattern: Pattern::All, ..Spec::default() };
    let refusal = sim::run(&spec).expect_err("it takes terabytes");
    assert!(matches!(refusal, Refusal::Memory { .. }), "{refusal}");
    assert!(refusal.to_string().contains("16384 agents x 1048576 entries"), "{refusal}");
}

#[test]
fn the_costs_of_boards_are_the_measured_ones() {
    assert_eq!(BoardCosts::default(), MEASURED);
}

#[test]
fn a_long_board_takes_little_more_than_an_agents_work_for_its_bytes() {
    let spec = Spec {
        nodes: 2048,
        ppn: 64,
        fanout: 2,
        value_min: 64,
        value_max: 64,
        pattern: Pattern::Fences,
        ..Spec::default()
    };
    let fence = |piece_bytes| {
        let spec = Spec { piece_bytes, ..spec.clone() };
        sim::run(&spec).expect("131,072 ranks can be simulated").fences[0]
    };
    let (pieces, whole) = (fence(spec.piece_bytes), fence(None));
    // An agent receives, hashes and copies each byte, and sends it to two children; the launcher receives and merges all
    // entries before.
    let board = BoardCosts::default();
    let each = 2 * board.byte_received_ps + board.byte_hashed_ps + board.byte_copied_ps + 2 * board.byte_sent_ps;
    let least = pieces.bytes * each / 1000 + pieces.entries * board.entry_merged;
    assert!((least * 9 / 10..least * 3 / 2).contains(&pieces.releasing), "{least} ns of work, {pieces:?}");
    assert!(whole.releasing > 4 * pieces.releasing, "one message for each link: {whole:?}");
}
