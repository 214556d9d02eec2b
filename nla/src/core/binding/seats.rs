//! Assigns each rank of a node its processors and memory.

use std::iter::repeat_n;

use super::cpu_set::CpuSet;
use super::policy::{BindTo, BindingPolicy, MapWithin, MemoryPolicy};
use super::topology::{Level, Topology};

/// The processors and memory that an agent, and thus each of its ranks, may use.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Allowed {
    /// The processors.
    pub cpus: CpuSet,
    /// The memory nodes.
    pub memory: CpuSet,
}

/// The binding of one rank.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Seat {
    /// The processors that it may use; empty if it is not bound.
    pub cpus: CpuSet,
    /// The memory nodes that it may use; empty if its memory is not bound.
    pub memory: CpuSet,
}

/// The bindings of the ranks of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seating {
    /// The seats of the first places. Further ones get the same seats in turn.
    seats: Vec<Seat>,
    /// The number of places, if the node has fewer than ranks.
    pub crowded: Option<u32>,
}

impl Seating {
    /// The seat of the rank at a place among those of the node; `None` if it is not bound.
    pub fn of(&self, place: u32) -> Option<&Seat> {
        let at = place as usize % self.seats.len().max(1);
        self.seats.get(at)
    }

    /// All processors to which ranks are bound.
    pub fn cpus(&self) -> CpuSet {
        self.seats.iter().fold(CpuSet::new(), |all, seat| all.union(&seat.cpus))
    }
}

/// Why the ranks of a node cannot be bound as the user wants.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindingError {
    /// The user has named processors that the agent may not use, or that do not exist.
    #[error(
        "cannot bind to {} {wanted}: only {} may be used here",
        noun("processor", wanted.len()), shown(allowed)
    )]
    Cpus {
        /// The processors of one rank.
        wanted: CpuSet,
        /// Those that may be used.
        allowed: CpuSet,
    },
    /// The user has named memory nodes that the agent may not use, or that do not exist.
    #[error(
        "cannot bind to memory of {} {wanted}: only that of {} may be used here",
        noun("node", wanted.len()), shown(allowed)
    )]
    Memory {
        /// The memory nodes.
        wanted: CpuSet,
        /// Those that may be used.
        allowed: CpuSet,
    },
    /// A rank needs more cores or hardware threads than there are, even without other ranks.
    #[error(
        "a rank needs {wanted} {}{}, and at most {most} may be used here",
        noun(unit.name(), *wanted), within.map(|level| format!(" of one {}", level.name())).unwrap_or_default()
    )]
    TooWide {
        /// The unit of both numbers: cores or hardware threads.
        unit: Level,
        /// How many each rank needs.
        wanted: u32,
        /// The most that are usable together.
        most: u32,
        /// They must be in one part of this level.
        within: Option<Level>,
    },
}

fn noun(noun: &str, count: u32) -> String {
    format!("{noun}{}", if count == 1 { "" } else { "s" })
}

fn shown(set: &CpuSet) -> String {
    if set.is_empty() { "none".to_owned() } else { set.to_string() }
}

/// Assigns seats to the ranks of a node.
///
/// [`BindTo::Share`] is taken to apply: the caller decides whether it does. A core counts if any of its threads is allowed.
/// The processors of a seat are allowed ones, and those of two seats are disjoint, except where the ranks share a part
/// larger than a core, a list names a processor twice, or the policy lets ranks overload the node.
///
/// # Errors
///
/// The user has named processors or memory that may not be used here, or not even one rank fits.
pub fn seats(
    topology: &Topology,
    allowed: &Allowed,
    policy: &BindingPolicy,
    ranks: u32,
) -> Result<Seating, BindingError> {
    let node = Node { topology, cpus: allowed.cpus.intersection(topology.cpus()) };
    let places = match &policy.bind_to {
        BindTo::Nothing => Places::default(),
        BindTo::Share => node.shares(ranks as usize),
        BindTo::Parts(level, count) => node.places(*level, *count, policy, ranks as usize)?,
        BindTo::List(list) => {
            if let Some(wanted) = list.iter().find(|wanted| !wanted.is_within(&node.cpus)) {
                return Err(BindingError::Cpus { wanted: wanted.clone(), allowed: node.cpus });
            }
            Places { places: list.clone(), is_crowded: false }
        }
    };
    let memory = |cpus: &CpuSet| match &policy.memory {
        MemoryPolicy::Inherited => CpuSet::new(),
        // With one memory node there is no choice, and a kernel without NUMA refuses the system call.
        MemoryPolicy::Local if allowed.memory.len() < 2 => CpuSet::new(),
        MemoryPolicy::Local => topology.numa_nodes_of(cpus).intersection(&allowed.memory),
        MemoryPolicy::Nodes(nodes) => nodes.clone(),
    };
    if let MemoryPolicy::Nodes(wanted) = &policy.memory
        && !wanted.is_within(&allowed.memory)
    {
        return Err(BindingError::Memory { wanted: wanted.clone(), allowed: allowed.memory.clone() });
    }
    let Places { mut places, is_crowded } = places;
    let crowded = is_crowded.then_some(places.len() as u32);
    if is_crowded && !policy.overloads {
        places.clear();
    }
    places.truncate(ranks as usize);
    if places.is_empty() && !memory(&CpuSet::new()).is_empty() {
        places.push(CpuSet::new());
    }
    let seat = |cpus: CpuSet| Seat { memory: memory(&cpus), cpus };
    Ok(Seating { seats: places.into_iter().map(seat).collect(), crowded })
}

/// The places of a node, in the order of its ranks.
#[derive(Default)]
struct Places {
    places: Vec<CpuSet>,
    is_crowded: bool,
}

/// The usable part of a node.
struct Node<'a> {
    topology: &'a Topology,
    cpus: CpuSet,
}

impl Node<'_> {
    /// The usable parts of a level.
    fn parts(&self, level: Level) -> Vec<CpuSet> {
        let usable = self.topology.parts(level).iter().map(|part| part.intersection(&self.cpus));
        usable.filter(|part| !part.is_empty()).collect()
    }

    /// Divides all cores among the ranks; all hardware threads if there are more ranks than cores.
    fn shares(&self, ranks: usize) -> Places {
        let levels = [Level::Core, Level::Hwthread].map(|level| self.parts(level));
        let Some(units) = levels.into_iter().find(|units| ranks <= units.len()) else {
            return Places { places: Vec::new(), is_crowded: true };
        };
        let bound = |rank: usize| rank * units.len() / ranks;
        let places = (0..ranks).map(|rank| joined(&units[bound(rank)..bound(rank + 1)])).collect();
        Places { places, is_crowded: false }
    }

    /// Places ranks on `count` parts of `level` each. Parts larger than a core may be shared by any number of ranks, unless each
    /// rank needs cores of its own; further ranks then get the places in turn.
    fn places(&self, level: Level, count: u32, policy: &BindingPolicy, ranks: usize) -> Result<Places, BindingError> {
        let unit = level.min(Level::Core);
        let shares = level > unit && policy.cpus_per_rank.is_none();
        let wanted = policy.cpus_per_rank.unwrap_or(if level == unit { count } else { 1 }).max(1);
        let per_rank = wanted as usize;
        let units = self.parts(unit);
        // A unit belongs to the part that has its first processor.
        let within = |part: &CpuSet| -> Vec<CpuSet> {
            let is_in = |unit: &&CpuSet| unit.first().is_some_and(|first| part.contains(first));
            units.iter().filter(is_in).cloned().collect()
        };
        // Places in each of these parts.
        let pools = |parts: &[CpuSet]| -> Vec<Vec<CpuSet>> {
            parts.iter().map(|part| chunks(&within(part), per_rank)).collect()
        };
        // The units that a rank may use beyond its own.
        let wider = if level == unit { Vec::new() } else { groups(&self.parts(level), count.max(1) as usize) };
        // The parts that a rank's units must not leave, and their level.
        let bounds = match policy.map_within {
            Some(MapWithin::Each(part)) if part > unit => Some((part, self.parts(part))),
            Some(MapWithin::Filled(_, part)) => Some((part, self.parts(part))),
            None if level > unit => Some((level, wider.clone())),
            // Parts that are no larger than a unit: the units in their order.
            Some(MapWithin::Each(_)) | None => None,
        };
        let places: Vec<CpuSet> = match (&bounds, policy.map_within) {
            (Some((_, parts)), Some(MapWithin::Each(_))) => in_turn(pools(parts)),
            (Some((_, parts)), Some(MapWithin::Filled(most, _))) => {
                let most = most as usize;
                let filled = |pool| repeat_n(pool, if shares { most } else { 1 }).flatten().take(most);
                pools(parts).into_iter().filter(|pool| !pool.is_empty()).flat_map(filled).take(ranks).collect()
            }
            (Some((_, parts)), None) => spread(pools(parts), ranks),
            (None, _) => {
                let near: Vec<CpuSet> = pools(&self.parts(Level::Numa)).concat();
                // A rank spans two NUMA nodes only if the ranks do not fit otherwise.
                if near.len() >= ranks { near } else { chunks(&units, per_rank) }
            }
        };
        if places.is_empty() && ranks > 0 {
            let largest = |parts: &[CpuSet]| parts.iter().map(|part| within(part).len()).max().unwrap_or_default();
            let most = bounds.as_ref().map_or(units.len(), |(_, parts)| largest(parts)) as u32;
            return Err(BindingError::TooWide { unit, wanted, most, within: bounds.map(|(level, _)| level) });
        }
        let widened = |place: CpuSet| {
            let parts = wider.iter().filter(|part| !part.is_disjoint(&place));
            parts.fold(place.clone(), |place, part| place.union(part))
        };
        let limits_ranks = !shares || matches!(policy.map_within, Some(MapWithin::Filled(..)));
        let is_crowded = limits_ranks && places.len() < ranks;
        Ok(Places { places: places.into_iter().map(widened).collect(), is_crowded })
    }
}

/// Joins adjacent units to places of `per_rank` units each. Units that are left over belong to no place.
fn chunks(units: &[CpuSet], per_rank: usize) -> Vec<CpuSet> {
    units.chunks_exact(per_rank).map(joined).collect()
}

/// Joins adjacent parts to groups of `count`; the last group may have fewer.
fn groups(parts: &[CpuSet], count: usize) -> Vec<CpuSet> {
    parts.chunks(count).map(joined).collect()
}

fn joined(parts: &[CpuSet]) -> CpuSet {
    parts.iter().fold(CpuSet::new(), |all, part| all.union(part))
}

/// Takes places from the pools in turn. A pool that is used up is skipped.
fn in_turn(pools: Vec<Vec<CpuSet>>) -> Vec<CpuSet> {
    let rounds = pools.iter().map(Vec::len).max().unwrap_or_default();
    (0..rounds).flat_map(|round| pools.iter().filter_map(move |pool| pool.get(round)).cloned()).collect()
}

/// Returns one place in each of the first pools, or, with more ranks than pools, as many in each as its size allows.
fn spread(pools: Vec<Vec<CpuSet>>, ranks: usize) -> Vec<CpuSet> {
    let pools: Vec<_> = pools.into_iter().filter(|pool| !pool.is_empty()).collect();
    if ranks <= pools.len() {
        return pools.into_iter().take(ranks).filter_map(|pool| pool.into_iter().next()).collect();
    }
    let all = pools.concat();
    if ranks > all.len() { all } else { (0..ranks).map(|rank| all[rank * all.len() / ranks].clone()).collect() }
}

#[cfg(test)]
mod tests {
    use pmi::Rank;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// Two packages with two NUMA nodes each, two cores in a node, two threads in a core: threads of core `n` are `n` and
    /// `n + 8`.
    fn two_packages() -> Topology {
        let cores = (0..8).map(|core| (Level::Core, CpuSet::from_iter([core, core + 8])));
        let numa = |node: u32| CpuSet::from_iter([2 * node, 2 * node + 1, 2 * node + 8, 2 * node + 9]);
        let known = cores.chain((0..4).map(|node| (Level::Numa, numa(node))));
        let packages = ["0-3,8-11", "4-7,12-15"].map(|cpus| (Level::Package, set(cpus)));
        Topology::new(&set("0-15"), known.chain(packages), (0..4).map(|node| (node, numa(node))))
    }

    fn everything() -> Allowed {
        Allowed { cpus: set("0-15"), memory: set("0-3") }
    }

    fn policy(bind_to: BindTo) -> BindingPolicy {
        BindingPolicy { bind_to, ..BindingPolicy::default() }
    }

    fn to(level: Level) -> BindingPolicy {
        policy(BindTo::Parts(level, 1))
    }

    /// The processors of each rank, and whether the node is crowded.
    #[track_caller]
    fn check(policy: &BindingPolicy, allowed: &Allowed, ranks: u32, expected: &[&str], is_crowded: bool) {
        let seating = seats(&two_packages(), allowed, policy, ranks).unwrap();
        let cpus = (0..ranks).map_while(|rank| Some(seating.of(rank)?.cpus.to_string()));
        assert_eq!(cpus.collect::<Vec<_>>(), expected);
        assert_eq!(seating.crowded.is_some(), is_crowded);
    }

    #[test]
    fn ranks_are_bound_to_parts_of_each_level() {
        check(&to(Level::Core), &everything(), 3, &["0,8", "1,9", "2,10"], false);
        check(&to(Level::Hwthread), &everything(), 3, &["0", "8", "1"], false);
        check(&to(Level::Numa), &everything(), 3, &["0-1,8-9", "2-3,10-11", "4-5,12-13"], false);
        check(&to(Level::Package), &everything(), 2, &["0-3,8-11", "4-7,12-15"], false);
        check(&to(Level::L2), &everything(), 1, &["0,8"], false);
        check(&to(Level::L3), &everything(), 1, &["0-3,8-11"], false);
        check(&policy(BindTo::Nothing), &everything(), 2, &[], false);
        check(&policy(BindTo::Parts(Level::Numa, 2)), &everything(), 2, &["0-3,8-11", "4-7,12-15"], false);
    }

    #[test]
    fn more_ranks_than_parts_share_them_evenly() {
        check(&to(Level::Package), &everything(), 4, &["0-3,8-11", "0-3,8-11", "4-7,12-15", "4-7,12-15"], false);
        let uneven = Allowed { cpus: set("0,4-7"), ..everything() };
        check(&to(Level::Package), &uneven, 5, &["0", "4-7", "4-7", "4-7", "4-7"], false);
        check(&to(Level::Core), &everything(), 9, &[], true);
        let two = Allowed { cpus: set("0,4"), ..everything() };
        for level in [Level::L2, Level::L3, Level::Numa, Level::Package] {
            check(&to(level), &two, 3, &["0", "4", "0"], false);
        }
        let overloaded = BindingPolicy { overloads: true, ..to(Level::Core) };
        check(&overloaded, &two, 3, &["0", "4", "0"], true);
        let of_their_own = BindingPolicy { cpus_per_rank: Some(1), ..to(Level::Package) };
        check(&of_their_own, &two, 3, &[], true);
        let filled =
            |most| BindingPolicy { map_within: Some(MapWithin::Filled(most, Level::Package)), ..to(Level::Package) };
        check(&filled(2), &two, 3, &["0", "0", "4"], false);
        check(&filled(1), &two, 3, &[], true);
        let in_turn = BindingPolicy { map_within: Some(MapWithin::Each(Level::Core)), ..to(Level::Package) };
        check(&in_turn, &two, 3, &["0", "4", "0"], false);
    }

    #[test]
    fn an_order_gives_partners_neighbouring_cores() {
        // Of each two ranks that differ by 4, one is on each package by number, and both are in a NUMA node in this order.
        let order = vec![0, 2, 4, 6, 1, 3, 5, 7];
        let policy = BindingPolicy { order, ..to(Level::Core) };
        let seating = seats(&two_packages(), &everything(), &policy, 8).unwrap();
        let cpus = |rank: u32| seating.of(policy.place_of(Rank(rank), rank)).unwrap().cpus.to_string();
        assert_eq!((0..8).map(cpus).collect::<Vec<_>>().join(" "), "0,8 2,10 4,12 6,14 1,9 3,11 5,13 7,15");
        // Ranks without a place of their own are placed by their numbers.
        assert_eq!(policy.place_of(Rank(9), 3), 3);
    }

    #[test]
    fn several_cores_of_a_rank_are_in_one_numa_node_if_the_ranks_fit_so() {
        let two_cores = policy(BindTo::Parts(Level::Core, 2));
        let allowed = Allowed { cpus: set("1-7,9-15"), ..everything() };
        check(&two_cores, &allowed, 3, &["2-3,10-11", "4-5,12-13", "6-7,14-15"], false);
        let allowed = Allowed { cpus: set("1-3,9-11"), ..everything() };
        check(&two_cores, &allowed, 1, &["2-3,10-11"], false);
        let allowed = Allowed { cpus: set("1,3,9,11"), ..everything() };
        check(&two_cores, &allowed, 1, &["1,3,9,11"], false);
    }

    #[test]
    fn ranks_are_distributed_in_turn_or_by_a_number_for_each_part() {
        let by = |map_within, level| BindingPolicy { map_within: Some(map_within), ..to(level) };
        let each = by(MapWithin::Each(Level::Package), Level::Core);
        check(&each, &everything(), 3, &["0,8", "4,12", "1,9"], false);
        let few = Allowed { cpus: set("0,4-7"), ..everything() };
        check(&each, &few, 4, &["0", "4", "5", "6"], false);
        let filled = by(MapWithin::Filled(2, Level::Package), Level::Core);
        check(&filled, &everything(), 4, &["0,8", "1,9", "4,12", "5,13"], false);
        check(&filled, &everything(), 5, &[], true);
        let by_core = by(MapWithin::Each(Level::Core), Level::Package);
        check(&by_core, &everything(), 2, &["0-3,8-11", "0-3,8-11"], false);
        let wide = BindingPolicy { cpus_per_rank: Some(3), ..each };
        check(&wide, &everything(), 2, &["0-2,8-10", "4-6,12-14"], false);
        check(&wide, &everything(), 3, &[], true);
    }

    #[test]
    fn a_number_of_cores_is_the_same_by_core_and_by_slot() {
        for map_within in [None, Some(MapWithin::Each(Level::Core)), Some(MapWithin::Each(Level::Hwthread))] {
            let policy = BindingPolicy { map_within, cpus_per_rank: Some(2), ..to(Level::Core) };
            check(&policy, &everything(), 2, &["0-1,8-9", "2-3,10-11"], false);
        }
    }

    #[test]
    fn a_rank_that_fits_nowhere_is_an_error() {
        let error = |policy: &BindingPolicy| seats(&two_packages(), &everything(), policy, 2).unwrap_err().to_string();
        let threads = BindingPolicy { overloads: true, ..policy(BindTo::Parts(Level::Hwthread, 17)) };
        assert_eq!(error(&threads), "a rank needs 17 hwthreads, and at most 16 may be used here");
        let wide = |bind_to, map_within| BindingPolicy { cpus_per_rank: Some(5), map_within, ..to(bind_to) };
        let expected = |level| format!("a rank needs 5 cores of one {level}, and at most 4 may be used here");
        assert_eq!(error(&wide(Level::Package, None)), expected("package"));
        assert_eq!(error(&wide(Level::Core, Some(MapWithin::Each(Level::L3)))), expected("l3cache"));
        assert_eq!(error(&wide(Level::Numa, Some(MapWithin::Filled(2, Level::Package)))), expected("package"));
        let one_core = wide(Level::Core, Some(MapWithin::Filled(1, Level::Core)));
        assert_eq!(error(&one_core), "a rank needs 5 cores of one core, and at most 1 may be used here");
        assert_eq!(seats(&two_packages(), &everything(), &threads, 0), Ok(Seating::default()));
    }

    #[test]
    fn the_node_is_divided_among_its_ranks() {
        let share = policy(BindTo::Share);
        check(&share, &everything(), 1, &["0-15"], false);
        check(&share, &everything(), 2, &["0-3,8-11", "4-7,12-15"], false);
        check(&share, &everything(), 3, &["0-1,8-9", "2-4,10-12", "5-7,13-15"], false);
        let sixteen: Vec<String> = (0..8).flat_map(|core| [core.to_string(), (core + 8).to_string()]).collect();
        let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
        check(&share, &everything(), 16, &sixteen, false);
        check(&share, &everything(), 17, &[], true);
    }

    #[test]
    fn a_list_is_used_in_turn_and_must_be_allowed() {
        let list = policy(BindTo::List(vec![set("0,2"), set("5")]));
        check(&list, &everything(), 3, &["0,2", "5", "0,2"], false);
        let allowed = Allowed { cpus: set("0-3"), ..everything() };
        let error = seats(&two_packages(), &allowed, &list, 1).unwrap_err();
        assert_eq!(error.to_string(), "cannot bind to processor 5: only 0-3 may be used here");
    }

    #[test]
    fn a_core_counts_if_any_of_its_threads_is_allowed() {
        let allowed = Allowed { cpus: set("0,9-10,11"), ..everything() };
        check(&to(Level::Core), &allowed, 4, &["0", "9", "10", "11"], false);
        check(&to(Level::Core), &allowed, 5, &[], true);
    }

    #[test]
    fn memory_is_near_or_named() {
        let memory = |memory, allowed: &Allowed| {
            let policy = BindingPolicy { memory, ..to(Level::Package) };
            let seating = seats(&two_packages(), allowed, &policy, 2)?;
            Ok(seating.of(1).map(|seat| seat.memory.to_string()).unwrap_or_default())
        };
        assert_eq!(memory(MemoryPolicy::Inherited, &everything()), Ok(String::new()));
        assert_eq!(memory(MemoryPolicy::Local, &everything()), Ok("2-3".to_owned()));
        let some = Allowed { memory: set("0-2"), ..everything() };
        assert_eq!(memory(MemoryPolicy::Local, &some), Ok("2".to_owned()));
        let one = Allowed { memory: set("0"), ..everything() };
        assert_eq!(memory(MemoryPolicy::Local, &one), Ok(String::new()), "there is no choice");
        assert_eq!(memory(MemoryPolicy::Nodes(set("1")), &some), Ok("1".to_owned()));
        let error: BindingError = memory(MemoryPolicy::Nodes(set("3")), &some).unwrap_err();
        assert_eq!(error.to_string(), "cannot bind to memory of node 3: only that of 0-2 may be used here");
    }

    #[test]
    fn memory_is_bound_without_processors_too() {
        let policy = BindingPolicy { memory: MemoryPolicy::Nodes(set("1")), ..BindingPolicy::default() };
        let seating = seats(&two_packages(), &everything(), &policy, 2).unwrap();
        assert_eq!(seating.of(7), Some(&Seat { cpus: set(""), memory: set("1") }));
    }
}
