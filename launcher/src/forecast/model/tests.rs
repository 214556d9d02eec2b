//! Tests of the equations with numbers that can be checked by hand, and properties of all of them.

use proptest::prelude::*;

use super::own::{flat, linear, tree};
use super::published::{batched, multi_level, smp_aware};
use super::*;
use nla::core::{AgentId, Subtree};

fn ms(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// Returns constants with round numbers, on one core.
fn round() -> Constants {
    Constants {
        tc: ms(1000),
        tssh: ms(100),
        trecv: ms(10),
        tclient: ms(1),
        tlogin: ms(200),
        cores: 1,
        shared_cores: None,
        shells_max: 1000,
        measured: true,
        board: BoardCosts::default(),
    }
}

#[test]
fn the_published_equations_give_the_expected_times() {
    let size = Size { nodes: 64, ppn: 16 };
    let constants = round();
    // 1000 + 1024 (100 + 10)
    assert_eq!(published::linear(size, &constants), ms(113_640));
    // 1000 + 15 * 1 + 64 (100 + 16 * 10)
    assert_eq!(smp_aware(size, &constants), ms(17_655));
    // d = 2: 2 (1000 + 8 (100 + 10)) + 8 * 15 (10 + 1)
    assert_eq!(multi_level(size, 8, &constants), ms(3760 + 1320));
    // (1000 + 8 (100 + 10)) + 8 / 4 * 1000 + 8 (100 + 16 * 10)
    assert_eq!(batched(size, 8, 4, &constants), ms(1880 + 2000 + 2080));
    // 8 / 3 is not an integer, and a batch is at most the number of children.
    assert_eq!(batched(size, 8, 3, &constants), ms(1880 + 2080) + Duration::from_nanos(2_666_666_666));
    assert_eq!(batched(size, 8, 100, &constants), batched(size, 8, 8, &constants));
}

#[test]
fn the_model_of_scela_run_gives_the_expected_times() {
    let size = Size { nodes: 64, ppn: 16 };
    let constants = round();
    // Cores: 64 * 100 + 1000, and the last hello; 16 ranks on each node.
    assert_eq!(flat(size, 64, &constants), ms(7400 + 10 + 16));
    // Batch: 11 times 1100.
    assert_eq!(flat(size, 6, &constants), ms(12_100 + 10 + 16));
    // Two levels, of 8 children and (as 56 are left for 8) of 7: 800 + 1000, 700 + 1000.
    assert_eq!(tree(size, 8, 8, &constants), ms(1800 + 10 + 1700 + 10 + 16));
    // Two batches on each level.
    assert_eq!(tree(size, 8, 6, &constants), ms(2200 + 10 + 2200 + 10 + 16));
    // 1024 remote shells.
    assert_eq!(linear(size, 2000, &constants), ms(103_400 + 10 + 1));
    let more_cores = Constants { cores: 32, ..round() };
    assert_eq!(flat(size, 64, &more_cores), ms(1200 + 10 + 16));
    // Joins: the remote shells take no time.
    let only_joins = Constants { tc: ms(0), tssh: ms(0), tlogin: ms(0), ..round() };
    assert_eq!(flat(size, 64, &only_joins), ms(640 + 10 + 16));
    // 64 (100 + 200 + 10) / 2 + 1000 - 200; 1024 ranks on two cores.
    let one_machine = Constants { cores: 2, shared_cores: Some(2), ..round() };
    assert_eq!(flat(size, 64, &one_machine), ms(9920 + 800 + 10 + 512));
}

#[test]
fn levels_are_those_of_the_tree() {
    for nodes in (1..70).chain([255, 1000, 4096]) {
        for fanout in [2, 3, 8, 32] {
            let tree = Subtree::whole(nodes, fanout);
            let mut widths = std::collections::BTreeMap::new();
            for agent in (1..=nodes).map(AgentId) {
                let above = std::iter::successors(tree.parent_of(agent), |above| tree.parent_of(*above));
                *widths.entry(above.count()).or_insert(0u32) += 1;
            }
            let widths: Vec<u32> = widths.into_values().collect();
            assert_eq!(levels(nodes, fanout).collect::<Vec<_>>(), widths, "{nodes} nodes, fan-out {fanout}");
            assert_eq!(depth(nodes, fanout), tree.depth());
        }
    }
    assert_eq!(depth(0, 2), 0);
    assert_eq!(depth(u32::MAX, 2), 32);
}

#[test]
fn few_nodes_are_started_flat_and_many_by_a_tree() {
    let constants = Constants::default();
    let shape = |nodes| recommend(nodes, 16, &constants).shape;
    for nodes in [0, 1, 2, 8, 16, 32] {
        assert_eq!(shape(nodes), Shape::Flat, "{nodes}");
    }
    for nodes in [256, 1024, 16_384] {
        assert_eq!(shape(nodes), Shape::Tree, "{nodes}");
    }
    let few = recommend(4, 16, &constants);
    assert_eq!((few.fanout, few.depth, few.batch), (4, 1, 4));
    let names: Vec<_> = few.predicted.iter().map(|row| row.name).collect();
    assert_eq!(names, ["linear", "flat (SMP-aware)", "tree (multi-level)", "tree, batched"]);
}

/// The test cluster of issue 5: each ssh is delayed by 300 ms, and sshd accepts at most six at a time.
#[test]
fn a_limit_on_remote_shells_makes_a_tree_faster() {
    let constants = Constants { tc: ms(400), cores: 2, shells_max: 6, ..Constants::default() };
    let recommendation = recommend(64, 1, &constants);
    assert_eq!(recommendation.shape, Shape::Tree);
    assert!(recommendation.batch <= 6);
    assert!(recommendation.time * 2 < flat(Size { nodes: 64, ppn: 1 }, 6, &constants));
}

/// On one machine a tree has no more cores than a flat start.
#[test]
fn a_tree_gains_nothing_if_hosts_share_cores() {
    let constants = Constants { cores: 2, shared_cores: Some(2), ..Constants::default() };
    assert_eq!(recommend(32, 16, &constants).shape, Shape::Flat);
}

#[test]
fn calibration_recovers_the_constants_of_the_model() {
    let wanted = Constants { cores: 4, shells_max: 128, tlogin: Constants::default().tlogin, ..round() };
    let group = |count: u32, constants: &Constants| {
        // The time of `flat` without the last hello and the ranks.
        let took = flat(Size { nodes: count, ppn: 1 }, count, constants) - constants.trecv;
        GroupTime { count, took: took - ranks_of(count, constants) }
    };
    let samples = |constants: &Constants| Samples {
        single: vec![ms(1100), ms(1100), ms(90_000)],
        concurrent: vec![group(4, constants), group(32, constants), group(64, constants)],
        joins: vec![GroupTime { count: 0, took: ms(7) }, GroupTime { count: 8, took: ms(80) }],
        starts: vec![GroupTime { count: 16, took: ms(16) }],
        cores: 4,
        are_shared: constants.shared_cores.is_some(),
        board: None,
        shells_max: None,
    };
    assert_eq!(calibrate(&samples(&wanted)), wanted);
    // With shared cores, the samples of joins give Trecv, although it was 0 in the model that made the other samples.
    let one_machine = Constants { shared_cores: Some(4), tlogin: ms(100), trecv: ms(0), ..wanted };
    let found = calibrate(&samples(&one_machine));
    assert_eq!(found, Constants { trecv: ms(10), ..one_machine });
}

/// Returns the time that [`flat`] adds for a rank on each node.
fn ranks_of(nodes: u32, constants: &Constants) -> Duration {
    let all =
        constants.shared_cores.map_or(Duration::ZERO, |cores| shared(times(constants.tclient, nodes.into()), cores));
    constants.tclient.max(all)
}

#[test]
fn few_samples_leave_typical_constants() {
    let typical = Constants::default();
    let none = calibrate(&Samples { cores: 4, ..Samples::default() });
    assert_eq!(none, typical);
    // A group with one remote shell per core, or without the time of a single remote shell, does not show the work.
    let concurrent = vec![GroupTime { count: 4, took: ms(9000) }];
    let single = vec![ms(100)];
    let some = calibrate(&Samples { single, concurrent: concurrent.clone(), cores: 4, ..Samples::default() });
    assert_eq!((some.tssh, some.tc, some.measured), (ms(20), ms(80), true));
    let some = calibrate(&Samples { concurrent, cores: 0, ..Samples::default() });
    assert_eq!((some.tssh, some.cores, some.measured), (typical.tssh, 1, false));
    // A group that is faster than a single remote shell is noise.
    let concurrent = vec![GroupTime { count: 8, took: ms(50) }];
    let some = calibrate(&Samples { single: vec![ms(100)], concurrent, cores: 4, ..Samples::default() });
    assert_eq!((some.tssh, some.tc), (ms(0), ms(100)));
}

fn any_time() -> impl Strategy<Value = Duration> {
    prop_oneof![
        (0..1_000_000_000u64).prop_map(Duration::from_nanos),
        (0..=CONSTANT_MAX.as_nanos() as u64).prop_map(Duration::from_nanos),
    ]
}

prop_compose! {
    fn any_constants()(
        tc in any_time(),
        tssh in any_time(),
        trecv in any_time(),
        tclient in any_time(),
        login in 0..=100u32,
        cores in 1..=256u32,
        shared_cores in prop::option::of(1..=256u32),
        shells_max in 1..=1024u32,
    ) -> Constants {
        let tlogin = tc * login / 100;
        Constants { tc, tssh, trecv, tclient, tlogin, cores, shared_cores, shells_max, board: BoardCosts::default(), measured: true }
    }
}

fn any_count() -> impl Strategy<Value = u32> {
    prop_oneof![1..100u32, 1..100_000u32]
}

proptest! {
    #[test]
    fn no_prediction_is_faster_than_the_recommendation(
        constants in any_constants(), nodes in any_count(), ppn in 1..256u32,
    ) {
        let size = Size { nodes, ppn };
        let Recommendation { shape, fanout, depth: levels, tree_fanout, batch, time, predicted, links: _, packing: _ } = recommend(nodes, ppn, &constants);
        let most = constants.shells_max;
        prop_assert!((1..=most).contains(&batch));
        prop_assert!(time <= flat(size, most, &constants));
        for fanout in FANOUT_LEAST..=FANOUT_MOST {
            prop_assert!(time <= tree(size, fanout, most, &constants), "fan-out {}", fanout);
        }
        match shape {
            Shape::Flat => prop_assert_eq!((fanout, levels, flat(size, batch, &constants)), (nodes, 1, time)),
            Shape::Tree => {
                prop_assert_eq!(tree_fanout, fanout);
                prop_assert_eq!((levels, tree(size, fanout, batch, &constants)), (depth(nodes, fanout), time));
                prop_assert_eq!(predicted[3].own, time);
            }
        }
        if batch > 1 {
            let less = match shape {
                Shape::Flat => flat(size, batch - 1, &constants),
                Shape::Tree => tree(size, fanout, batch - 1, &constants),
            };
            prop_assert!(less > time, "a smaller batch would do");
        }
    }

    #[test]
    fn times_grow_with_the_size_and_shrink_with_the_batch(
        constants in any_constants(), nodes in any_count(), ppn in 1..256u32, fanout in 2..40u32, batch in 1..40u32,
    ) {
        let (size, wider) = (Size { nodes, ppn }, Size { nodes: nodes + 1, ppn });
        let fuller = Size { nodes, ppn: ppn + 1 };
        for more in [wider, fuller] {
            prop_assert!(recommend(nodes, ppn, &constants).time <= recommend(more.nodes, more.ppn, &constants).time);
            for (less, more) in
                predict(size, fanout, batch, &constants).iter().zip(predict(more, fanout, batch, &constants))
            {
                prop_assert!(less.own <= more.own && less.published <= more.published, "{}", less.name);
            }
        }
        prop_assert!(flat(size, batch + 1, &constants) <= flat(size, batch, &constants));
        prop_assert!(tree(size, fanout, batch + 1, &constants) <= tree(size, fanout, batch, &constants));
    }

    #[test]
    fn any_measurement_gives_valid_constants(
        single in prop::collection::vec(any_time(), 0..4),
        counted in prop::collection::vec((0..200u32, any_time()), 0..6),
        cores in any::<u32>(), are_shared: bool, shells_max in prop::option::of(any::<u32>()),
    ) {
        let counted: Vec<_> = counted.into_iter().map(|(count, took)| GroupTime { count, took: took * 3 }).collect();
        let (concurrent, joins, starts) = (counted.clone(), counted.clone(), counted);
        let samples = Samples { single, concurrent, joins, starts, cores, are_shared, shells_max, board: None };
        prop_assert!(calibrate(&samples).is_valid());
    }

    #[test]
    fn the_largest_numbers_do_not_overflow(constants in any_constants()) {
        let constants = Constants { tc: CONSTANT_MAX, tssh: CONSTANT_MAX, tclient: CONSTANT_MAX, ..constants };
        recommend(u32::MAX, u32::MAX, &constants);
    }
}
