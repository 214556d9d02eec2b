//! The processors, caches and memory of a node as the kernel describes them, and their text for hwloc.

use std::fmt::Write as _;

use super::cpu_set::CpuSet;
use super::seats::Allowed;
use super::topology::{Level, Topology};

/// A kind of part of a node, from the largest to the smallest: of parts with the same processors, hwloc puts the smaller kind
/// into the larger one.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PartKind {
    /// The processors of one socket.
    Package,
    /// A die of a package.
    Die,
    /// Cores that are close to each other, such as those that share a bus.
    Cluster,
    /// A cache.
    Cache(Cache),
    /// A core.
    Core,
}

/// A cache that has data.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Cache {
    /// 5 minus its level, from 1 to 5, so that larger caches come first.
    order: u32,
    /// It has instructions too.
    pub is_unified: bool,
    /// Its size; 0 if unknown.
    pub bytes: u64,
}

impl Cache {
    /// A cache of this level; `None` if hwloc has no such level.
    pub fn new(level: u32, is_unified: bool, bytes: u64) -> Option<Self> {
        (1..=5).contains(&level).then(|| Self { order: 5 - level, is_unified, bytes })
    }

    /// The level, from 1 to 5.
    pub fn level(self) -> u32 {
        5 - self.order
    }
}

/// The memory of a NUMA node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Memory {
    /// The node's number.
    pub node: u32,
    /// The processors that are near to it.
    pub near: CpuSet,
    /// Its size; 0 if unknown.
    pub bytes: u64,
}

/// The hardware of a node as the kernel's files describe it. Files that could not be read are left out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Hardware {
    /// The processors that are online.
    pub online: CpuSet,
    /// The parts that are known, in any order.
    pub parts: Vec<(PartKind, CpuSet)>,
    /// The NUMA nodes.
    pub memory: Vec<Memory>,
}

impl Hardware {
    /// Returns the topology of the node, to which ranks are bound.
    pub fn topology(&self) -> Topology {
        let level = |kind: PartKind| match kind {
            PartKind::Package => Some(Level::Package),
            PartKind::Core => Some(Level::Core),
            PartKind::Cache(cache) if cache.level() == 2 => Some(Level::L2),
            PartKind::Cache(cache) if cache.level() == 3 => Some(Level::L3),
            PartKind::Die | PartKind::Cluster | PartKind::Cache(_) => None,
        };
        let parts = self.parts.iter().filter_map(|(kind, cpus)| Some((level(*kind)?, cpus.clone())));
        let memory = self.memory.iter().map(|memory| (memory.node, memory.near.clone()));
        Topology::new(&self.online, parts.chain(memory.clone().map(|(_, near)| (Level::Numa, near))), memory)
    }

    /// Returns the node in the XML of hwloc 2, with the parts that hwloc itself would find if it may use the whole node.
    ///
    /// `None` if this process may not use all processors and memory, which the file would hide, or if there is more than one NUMA
    /// node: the file has no devices, and then hwloc tells which of them are near. Also `None` if a processor has no core,
    /// package or cache of its own, or if parts overlap: hwloc then knows more than the kernel's files.
    pub fn hwloc_xml(&self, allowed: &Allowed) -> Option<String> {
        let [memory] = &*self.memory else { return None };
        let may_use_all = self.online.is_within(&allowed.cpus) && allowed.memory.contains(memory.node);
        let has_all = |is_kind: fn(PartKind) -> bool| {
            let parts = self.parts.iter().filter(|(kind, _)| is_kind(*kind));
            parts.fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus)) == self.online
        };
        let is_known = has_all(|kind| kind == PartKind::Core)
            && has_all(|kind| kind == PartKind::Package)
            && has_all(|kind| matches!(kind, PartKind::Cache(_)));
        if !may_use_all || !is_known || memory.near != self.online {
            return None;
        }
        let mut root = Object::new(Kind::Machine, self.online.clone());
        let mut parts: Vec<&(PartKind, CpuSet)> = self.parts.iter().filter(|part| self.is_shown(part)).collect();
        parts.sort_by_key(|(kind, cpus)| (std::cmp::Reverse(cpus.len()), *kind, cpus.first()));
        for (kind, cpus) in parts {
            root.insert(Object::new(Kind::Part(*kind), cpus.clone()))?;
        }
        for cpu in self.online.iter() {
            root.insert(Object::new(Kind::Thread(cpu), CpuSet::from_iter([cpu])))?;
        }
        let mut text = Text { out: HEAD.to_owned(), nodes: mask(&CpuSet::from_iter([memory.node])), count: 0 };
        text.write(&root, Some(memory));
        text.out.push_str("</topology>\n");
        Some(text.out)
    }

    /// Whether hwloc shows a part: dies only where a package has several, clusters only if they are not the same as another
    /// part.
    fn is_shown(&self, (kind, cpus): &(PartKind, CpuSet)) -> bool {
        let is_also = |is_other: fn(PartKind) -> bool| {
            self.parts.iter().any(|(other, also)| is_other(*other) && also == cpus) || cpus.len() == 1
        };
        match kind {
            PartKind::Die => !is_also(|other| other == PartKind::Package),
            PartKind::Cluster => !is_also(|other| other != PartKind::Cluster),
            PartKind::Package | PartKind::Cache(_) | PartKind::Core => true,
        }
    }
}

const HEAD: &str = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology version=\"2.0\">\n";

#[derive(Copy, Clone)]
enum Kind {
    Machine,
    Part(PartKind),
    /// A hardware thread with this number.
    Thread(u32),
}

/// An object of hwloc's tree.
struct Object {
    kind: Kind,
    cpus: CpuSet,
    children: Vec<Self>,
}

impl Object {
    fn new(kind: Kind, cpus: CpuSet) -> Self {
        Self { kind, cpus, children: Vec::new() }
    }

    /// Inserts an object below this one. Larger ones were inserted before. `None` if it overlaps another one.
    fn insert(&mut self, object: Self) -> Option<()> {
        match self.children.iter().position(|child| !child.cpus.is_disjoint(&object.cpus)) {
            Some(at) if object.cpus.is_within(&self.children[at].cpus) => self.children[at].insert(object),
            Some(_) => None,
            None => {
                let at = self.children.partition_point(|child| child.cpus.first() < object.cpus.first());
                self.children.insert(at, object);
                Some(())
            }
        }
    }
}

/// The text while it is written.
struct Text {
    out: String,
    /// The mask of the only NUMA node.
    nodes: String,
    /// The number of objects written.
    count: u32,
}

impl Text {
    /// Writes an object and those below it, with the memory of the node if that belongs to one of them.
    fn write(&mut self, object: &Object, memory: Option<&Memory>) {
        match object.kind {
            Kind::Machine => {
                self.begin("Machine", &object.cpus);
                self.put(format_args!(" os_index=\"0\" allowed_cpuset=\"{}\"", mask(&object.cpus)));
                let nodes = self.nodes.clone();
                self.put(format_args!(" allowed_nodeset=\"{nodes}\">\n"));
            }
            Kind::Thread(cpu) => {
                self.begin("PU", &object.cpus);
                self.put(format_args!(" os_index=\"{cpu}\">\n"));
            }
            Kind::Part(PartKind::Cache(cache)) => {
                self.begin(&format!("L{}Cache", cache.level()), &object.cpus);
                // 0 is unified, 1 is for data.
                let (level, kind) = (cache.level(), u32::from(!cache.is_unified));
                self.put(format_args!(" cache_size=\"{}\" depth=\"{level}\" cache_type=\"{kind}\">\n", cache.bytes));
            }
            Kind::Part(PartKind::Package) => self.begin_plain("Package", object),
            Kind::Part(PartKind::Die) => self.begin_plain("Die", object),
            Kind::Part(PartKind::Cluster) => {
                self.begin("Group", &object.cpus);
                self.put(format_args!(" subtype=\"Cluster\">\n"));
            }
            Kind::Part(PartKind::Core) => self.begin_plain("Core", object),
        }
        // hwloc puts memory into the package, if there is only one.
        let is_below = matches!(&*object.children, [Object { kind: Kind::Part(PartKind::Package), .. }]);
        if let Some(memory) = memory.filter(|_| !is_below) {
            self.begin("NUMANode", &memory.near);
            self.put(format_args!(" os_index=\"{}\" local_memory=\"{}\"/>\n", memory.node, memory.bytes));
        }
        object.children.iter().for_each(|child| self.write(child, memory.filter(|_| is_below)));
        self.put(format_args!("</object>\n"));
    }

    fn begin_plain(&mut self, name: &str, object: &Object) {
        self.begin(name, &object.cpus);
        self.put(format_args!(">\n"));
    }

    /// Writes what all objects begin with.
    fn begin(&mut self, name: &str, cpus: &CpuSet) {
        self.count += 1;
        let (cpus, nodes, number) = (mask(cpus), self.nodes.clone(), self.count);
        self.put(format_args!(
            "<object type=\"{name}\" gp_index=\"{number}\" cpuset=\"{cpus}\" complete_cpuset=\"{cpus}\" \
             nodeset=\"{nodes}\" complete_nodeset=\"{nodes}\""
        ));
    }

    fn put(&mut self, text: std::fmt::Arguments<'_>) {
        // A String takes all that is written.
        let _ = self.out.write_fmt(text);
    }
}

/// A set as hwloc writes it: words of 32 bits, the highest first.
fn mask(set: &CpuSet) -> String {
    let words = set.words().iter().flat_map(|word| [*word as u32, (word >> 32) as u32]);
    let mut words: Vec<String> = words.map(|word| format!("0x{word:08x}")).collect();
    while words.len() > 1 && words.last().is_some_and(|word| word == "0x00000000") {
        words.pop();
    }
    words.reverse();
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    /// A package of two cores with a cache each.
    fn hardware() -> Hardware {
        let cache = PartKind::Cache(Cache::new(2, true, 1024).unwrap());
        let parts =
            [(PartKind::Core, "0"), (PartKind::Core, "1"), (PartKind::Package, "0-1"), (cache, "0"), (cache, "1")];
        Hardware {
            online: set("0-1"),
            parts: parts.map(|(kind, cpus)| (kind, set(cpus))).to_vec(),
            memory: vec![Memory { node: 0, near: set("0-1"), bytes: 4096 }],
        }
    }

    fn all() -> Allowed {
        Allowed { cpus: set("0-3"), memory: set("0-1") }
    }

    /// Returns whether there is a text for a changed node.
    fn has_text(change: impl FnOnce(&mut Hardware)) -> bool {
        let mut hardware = hardware();
        change(&mut hardware);
        hardware.hwloc_xml(&all()).is_some()
    }

    #[test]
    fn each_object_is_inside_a_larger_one() {
        let text = hardware().hwloc_xml(&all()).unwrap();
        let names = text.split("<object type=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        let expected = ["Machine", "Package", "NUMANode", "L2Cache", "Core", "PU", "L2Cache", "Core", "PU"];
        assert_eq!(names.collect::<Vec<_>>(), expected);
        assert!(text.contains("local_memory=\"4096\"") && text.contains("cache_size=\"1024\""), "{text}");
        assert!(text.contains("allowed_cpuset=\"0x00000003\" allowed_nodeset=\"0x00000001\""), "{text}");
    }

    #[test]
    fn a_node_of_which_hwloc_may_know_more_has_no_text() {
        assert!(has_text(|_| {}));
        assert!(!has_text(|node| node.memory.push(Memory { node: 1, near: set(""), bytes: 0 })), "two NUMA nodes");
        assert!(!has_text(|node| node.memory.clear()), "no NUMA node");
        assert!(!has_text(|node| node.memory[0].near = set("0")), "a processor without memory");
        assert!(!has_text(|node| node.parts.retain(|(kind, _)| *kind != PartKind::Package)), "no package");
        assert!(!has_text(|node| node.parts.truncate(3)), "no cache");
        assert!(!has_text(|node| node.parts[0].1 = set("")), "a processor without a core");
        assert!(!has_text(|node| node.parts[2].1 = set("0-2")), "a processor that is not online");
        let with_cluster = |cpus: &str| {
            let part = (PartKind::Cluster, set(cpus));
            has_text(|node| {
                *node = Hardware { online: set("0-2"), ..hardware() };
                node.memory[0].near = set("0-2");
                let cache = PartKind::Cache(Cache::new(2, true, 1024).unwrap());
                let others = [PartKind::Core, PartKind::Package, cache].map(|kind| (kind, set("2")));
                node.parts.extend(others.into_iter().chain([part]));
            })
        };
        assert!(with_cluster("0-1"), "it is the package");
        assert!(!with_cluster("1-2"), "it overlaps a package");
    }

    /// hwloc would show only what the process that writes the text may use.
    #[test]
    fn a_node_of_which_only_a_part_may_be_used_has_no_text() {
        assert_eq!(hardware().hwloc_xml(&Allowed { cpus: set("0"), ..all() }), None);
        assert_eq!(hardware().hwloc_xml(&Allowed { memory: set("1"), ..all() }), None);
    }

    #[test]
    fn masks_are_written_as_hwloc_does() {
        for (cpus, expected) in [
            ("", ""),
            ("0-1", "0x00000003"),
            ("31", "0x80000000"),
            ("0,32", "0x00000001,0x00000001"),
            ("64", "0x00000001,0x00000000,0x00000000"),
        ] {
            assert_eq!(mask(&set(cpus)), expected, "{cpus}");
        }
    }

    #[test]
    fn caches_of_other_levels_are_unknown_to_hwloc() {
        assert_eq!(
            [0, 1, 5, 6].map(|level| Cache::new(level, true, 0).map(Cache::level)),
            [None, Some(1), Some(5), None]
        );
    }
}
