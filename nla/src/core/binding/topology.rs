//! The parts of a node: packages, NUMA nodes, caches, cores, hardware threads.

use serde::{Deserialize, Serialize};

use super::cpu_set::CpuSet;

/// A kind of part of a node, from the smallest to the largest.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Level {
    /// One of the threads of a core: what the kernel calls a processor.
    Hwthread,
    /// A core.
    Core,
    /// The cores that share a cache of level 2.
    L2,
    /// The cores that share a cache of level 3.
    L3,
    /// The processors of a NUMA node.
    Numa,
    /// A package: what sits in one socket.
    Package,
}

impl Level {
    /// All levels, in their order.
    pub const ALL: [Self; 6] = [Self::Hwthread, Self::Core, Self::L2, Self::L3, Self::Numa, Self::Package];

    /// The name that users type.
    pub fn name(self) -> &'static str {
        match self {
            Self::Hwthread => "hwthread",
            Self::Core => "core",
            Self::L2 => "l2cache",
            Self::L3 => "l3cache",
            Self::Numa => "numa",
            Self::Package => "package",
        }
    }
}

/// The topology of a node.
///
/// On each level, the parts are disjoint, none is empty, and together they have all processors that are online. They are
/// in an order in which neighbours are close: parts of one package follow each other, and in it those of one NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Topology {
    parts: [Vec<CpuSet>; Level::ALL.len()],
    cpus: CpuSet,
    memory: Vec<(u32, CpuSet)>,
}

impl Topology {
    /// Makes a topology of the processors that are online, the parts that are known, and the processors that each memory
    /// node is near to.
    ///
    /// Processors that are not online are left out of all parts. A part that overlaps another one of its level is left out
    /// too. Where processors have no part of a level: each is a core of its own, a core has its cache of level 2 for itself,
    /// a package its cache of level 3, and the others are together in one NUMA node and in one package.
    pub fn new(
        online: &CpuSet,
        known: impl IntoIterator<Item = (Level, CpuSet)>,
        memory: impl IntoIterator<Item = (u32, CpuSet)>,
    ) -> Self {
        let mut parts: [Vec<CpuSet>; Level::ALL.len()] = Default::default();
        let mut covered: [CpuSet; Level::ALL.len()] = Default::default();
        let mut add = |parts: &mut [Vec<CpuSet>; Level::ALL.len()], level: Level, part: &CpuSet| {
            let (covered, part) = (&mut covered[level as usize], part.intersection(online));
            if !part.is_empty() && part.is_disjoint(covered) {
                *covered = covered.union(&part);
                parts[level as usize].push(part);
            }
            online.difference(covered)
        };
        for (level, part) in known {
            add(&mut parts, level, &part);
        }
        for cpu in online.iter() {
            let alone = CpuSet::from_iter([cpu]);
            add(&mut parts, Level::Hwthread, &alone);
            add(&mut parts, Level::Core, &alone);
        }
        for level in [Level::Package, Level::Numa] {
            let others = add(&mut parts, level, &CpuSet::new());
            add(&mut parts, level, &others);
        }
        for (level, like) in [(Level::L2, Level::Core), (Level::L3, Level::Package)] {
            for part in parts[like as usize].clone() {
                let others = add(&mut parts, level, &CpuSet::new());
                add(&mut parts, level, &part.intersection(&others));
            }
        }
        let mut topology = Self { parts, cpus: online.clone(), memory: memory.into_iter().collect() };
        topology.sort();
        topology
    }

    /// Sorts all parts.
    fn sort(&mut self) {
        let mut order: Vec<u32> = self.cpus.iter().collect();
        let outer = [Level::Package, Level::Numa, Level::L3, Level::L2, Level::Core];
        let first_of = |level: Level, cpu: u32| {
            let part = self.parts[level as usize].iter().find(|part| part.contains(cpu));
            part.and_then(CpuSet::first).unwrap_or(cpu)
        };
        order.sort_by_cached_key(|cpu| (outer.map(|level| first_of(level, *cpu)), *cpu));
        let mut place = vec![0; order.iter().max().map_or(0, |max| *max as usize + 1)];
        order.iter().enumerate().for_each(|(at, cpu)| place[*cpu as usize] = at);
        for parts in &mut self.parts {
            parts.sort_by_cached_key(|part| part.iter().map(|cpu| place[cpu as usize]).min());
        }
    }

    /// The processors that are online.
    pub fn cpus(&self) -> &CpuSet {
        &self.cpus
    }

    /// The parts of a level, neighbours next to each other.
    pub fn parts(&self, level: Level) -> &[CpuSet] {
        &self.parts[level as usize]
    }

    /// The memory nodes that are near to any of these processors.
    pub fn numa_nodes_of(&self, cpus: &CpuSet) -> CpuSet {
        self.memory.iter().filter(|(_, near)| !near.is_disjoint(cpus)).map(|(node, _)| *node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    fn sets(texts: &[&str]) -> Vec<CpuSet> {
        texts.iter().map(|text| set(text)).collect()
    }

    #[test]
    fn what_is_not_known_is_filled_in() {
        let known = [(Level::Core, set("0,2")), (Level::Package, set("0-2"))];
        let topology = Topology::new(&set("0-4"), known, []);
        assert_eq!(topology.parts(Level::Hwthread), sets(&["0", "2", "1", "3", "4"]), "by cores");
        assert_eq!(topology.parts(Level::Core), sets(&["0,2", "1", "3", "4"]));
        assert_eq!(topology.parts(Level::L2), topology.parts(Level::Core));
        assert_eq!(topology.parts(Level::L3), sets(&["0-2", "3-4"]), "that of the package");
        assert_eq!(topology.parts(Level::Numa), sets(&["0-4"]));
        assert_eq!(topology.parts(Level::Package), sets(&["0-2", "3-4"]));
        assert_eq!(topology.numa_nodes_of(&set("0")), set(""));
    }

    #[test]
    fn offline_processors_and_overlapping_parts_are_left_out() {
        let known = [(Level::Package, set("0-3")), (Level::Package, set("3-5")), (Level::Core, set("6-7"))];
        let topology = Topology::new(&set("0-2,5"), known, []);
        assert_eq!(topology.parts(Level::Package), sets(&["0-2", "5"]));
        assert_eq!(topology.parts(Level::Core), sets(&["0", "1", "2", "5"]));
    }

    #[test]
    fn neighbours_are_next_to_each_other() {
        // Even processors are in one package, odd ones in the other.
        let known = [(Level::Package, set("0,2,4,6")), (Level::Package, set("1,3,5,7"))];
        let memory = [(0, set("0,2,4,6")), (1, set("1,3,5,7")), (2, set(""))];
        let topology = Topology::new(&set("0-7"), known, memory);
        assert_eq!(topology.parts(Level::Core), sets(&["0", "2", "4", "6", "1", "3", "5", "7"]));
        assert_eq!(topology.numa_nodes_of(&set("5")), set("1"));
        assert_eq!(topology.numa_nodes_of(&set("4-5")), set("0-1"));
    }
}
