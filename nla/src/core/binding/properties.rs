//! Properties of all bindings, on random nodes.

use proptest::prelude::*;

use super::*;

/// A node with `packages`, NUMA nodes in each, cores in each, threads in each, whose numbers are dealt out over the cores.
fn node([packages, nodes, cores, threads]: [u32; 4]) -> Topology {
    let all_cores = packages * nodes * cores;
    let core = |core: u32| (0..threads).map(move |thread| thread * all_cores + core).collect::<CpuSet>();
    let of =
        |first: u32, count: u32| (first..first + count).flat_map(|at| core(at).iter().collect::<Vec<_>>()).collect();
    let numa = |at: u32| -> CpuSet { of(at * cores, cores) };
    let known = (0..all_cores).map(|at| (Level::Core, core(at)));
    let known = known.chain((0..packages * nodes).map(|at| (Level::Numa, numa(at))));
    let known = known.chain((0..packages).map(|at| (Level::Package, of(at * nodes * cores, nodes * cores))));
    Topology::new(&(0..all_cores * threads).collect(), known, (0..packages * nodes).map(|at| (at, numa(at))))
}

fn topologies() -> impl Strategy<Value = Topology> {
    [1u32..=3, 1u32..=2, 1u32..=4, 1u32..=2].prop_map(node)
}

fn levels() -> impl Strategy<Value = Level> {
    prop::sample::select(Level::ALL.to_vec())
}

fn policies() -> impl Strategy<Value = BindingPolicy> {
    let bind_to = prop_oneof![
        Just(BindTo::Nothing),
        Just(BindTo::Share),
        (levels(), 1u32..4).prop_map(|(level, count)| BindTo::Parts(level, count)),
    ];
    let map_within = prop_oneof![
        levels().prop_map(MapWithin::Each),
        (1u32..4, levels()).prop_map(|(count, level)| MapWithin::Filled(count, level)),
    ];
    let memory = prop_oneof![Just(MemoryPolicy::Inherited), Just(MemoryPolicy::Local)];
    let parts = (bind_to, prop::option::of(map_within), prop::option::of(1u32..4), any::<bool>(), memory);
    parts.prop_map(|(bind_to, map_within, cpus_per_rank, overloads, memory)| BindingPolicy {
        bind_to,
        map_within,
        cpus_per_rank,
        overloads,
        memory,
        ..BindingPolicy::default()
    })
}

proptest! {
    #[test]
    fn parts_of_a_level_are_disjoint_and_complete(topology in topologies(), level in levels()) {
        let parts = topology.parts(level);
        let all = parts.iter().fold(CpuSet::new(), |all, part| all.union(part));
        prop_assert_eq!(&all, topology.cpus());
        prop_assert_eq!(parts.iter().map(CpuSet::len).sum::<u32>(), all.len());
    }

    #[test]
    fn masks_are_allowed_and_disjoint(
        topology in topologies(),
        allowed in prop::collection::btree_set(0u32..48, 1..48),
        memory in prop::collection::btree_set(0u32..6, 0..6),
        policy in policies(),
        ranks in 0u32..60,
    ) {
        let allowed = Allowed { cpus: allowed.into_iter().collect(), memory: memory.into_iter().collect() };
        let seating = match seats(&topology, &allowed, &policy, ranks) {
            Ok(seating) => seating,
            Err(BindingError::TooWide { wanted, most, .. }) => {
                prop_assert!(most < wanted);
                return Ok(());
            }
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let seats: Vec<Seat> = (0..ranks).map_while(|rank| seating.of(rank).cloned()).collect();
        let usable = allowed.cpus.intersection(topology.cpus());
        prop_assert!(seats.is_empty() || seats.len() == ranks as usize, "all ranks are bound, or none");
        prop_assert!(policy.bind_to != BindTo::Nothing || seats.is_empty());
        for seat in &seats {
            prop_assert!(!seat.cpus.is_empty() && seat.cpus.is_within(&usable));
            prop_assert!(seat.memory.is_within(&allowed.memory));
        }
        if seating.crowded.is_some() {
            prop_assert!(policy.overloads || seats.is_empty());
            return Ok(());
        }
        prop_assert!(policy.bind_to == BindTo::Nothing || ranks == 0 || !seats.is_empty());
        let shares_parts = matches!(policy.bind_to, BindTo::Parts(level, _) if level > Level::Core);
        let sum: u32 = seats.iter().map(|seat| seat.cpus.len()).sum();
        prop_assert!(seating.cpus().is_within(&seats.iter().fold(CpuSet::new(), |all, seat| all.union(&seat.cpus))));
        prop_assert!(shares_parts || sum == seating.cpus().len(), "two ranks have the same processor");
        if policy.bind_to == BindTo::Share && ranks > 0 {
            prop_assert_eq!(seating.cpus(), usable, "all processors are used");
        }
    }
}
