//! Reads the topology of this node from /sys, and what this process may use of it.
//!
//! The kernel's files are small, and a container or a mount can put any others in their place: each has a bound, and what
//! cannot be read or parsed is left out, as [`Topology::new`] says.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;

use crate::core::{Allowed, Cache, CpuSet, Hardware, Memory, PartKind, Topology};
use crate::sys;

/// Bytes of one file. A list of every other processor of [`CPUS_MAX`](crate::core::limits::CPUS_MAX) is shorter.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Caches of one processor. Processors have 3 or 4, of which two are of level 1.
const CACHES_MAX: u32 = 16;
/// PCI devices that are looked at.
const DEVICES_MAX: usize = 65_536;
/// How the class of PCI devices begins that are network controllers: Ethernet, InfiniBand and others.
const NETWORK_CONTROLLER: &str = "0x02";

/// Reads what the kernel says about the hardware from `sys/devices/system` below `root`, which is `/` on a real node.
fn hardware(root: &Path) -> Hardware {
    let system = root.join("sys/devices/system");
    let cpus = system.join("cpu");
    let online = set(&cpus.join("online")).unwrap_or_default();
    let mut parts: Vec<(PartKind, CpuSet)> = Vec::new();
    let covers = |parts: &[(PartKind, CpuSet)], kind: PartKind, cpu: u32| {
        parts.iter().any(|(of, part)| *of == kind && part.contains(cpu))
    };
    for cpu in online.iter() {
        let own = cpus.join(format!("cpu{cpu}"));
        // All threads of a core have the same files.
        if covers(&parts, PartKind::Core, cpu) {
            continue;
        }
        // The first name is that of Linux 5.3 and later.
        for (kind, names) in [
            (PartKind::Core, &["core_cpus_list", "thread_siblings_list"][..]),
            (PartKind::Package, &["package_cpus_list", "core_siblings_list"]),
            (PartKind::Die, &["die_cpus_list"]),
            (PartKind::Cluster, &["cluster_cpus_list"]),
        ] {
            let part = || names.iter().find_map(|name| set(&own.join("topology").join(name)));
            if !covers(&parts, kind, cpu) {
                parts.extend(part().map(|part| (kind, part)));
            }
        }
        let caches = (0..CACHES_MAX).map(|index| own.join(format!("cache/index{index}")));
        for path in caches.take_while(|cache| cache.exists()) {
            let Some(cache) = cache(&path) else { continue };
            let is_known = parts.iter().any(|(kind, part)| match kind {
                PartKind::Cache(known) => known.level() == cache.level() && part.contains(cpu),
                _ => false,
            });
            if !is_known {
                parts.extend(set(&path.join("shared_cpu_list")).map(|part| (PartKind::Cache(cache), part)));
            }
        }
    }
    let nodes = system.join("node");
    let numbers = set(&nodes.join("online")).unwrap_or_default();
    let memory = |node: u32| {
        let own = nodes.join(format!("node{node}"));
        Some(Memory { node, near: set(&own.join("cpulist"))?, bytes: memory_bytes(&own).unwrap_or_default() })
    };
    Hardware { memory: numbers.iter().filter_map(memory).collect(), online, parts }
}

/// Reads a cache that has data.
fn cache(path: &Path) -> Option<Cache> {
    let level = text(&path.join("level"))?.trim().parse().ok()?;
    let kind = text(&path.join("type")).unwrap_or_default();
    let kibibytes = text(&path.join("size")).and_then(|size| size.trim().strip_suffix('K')?.parse::<u64>().ok());
    let bytes = kibibytes.unwrap_or_default().saturating_mul(1024);
    Cache::new(level, kind.trim() != "Data", bytes).filter(|_| kind.trim() != "Instruction")
}

/// Reads the size of a NUMA node's memory.
fn memory_bytes(node: &Path) -> Option<u64> {
    let meminfo = text(&node.join("meminfo"))?;
    let (_, rest) = meminfo.split_once("MemTotal:")?;
    rest.split_ascii_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Returns the processors and memory nodes that this process may use: the affinity mask already has what a cpuset, of
/// either version of cgroups, leaves of it.
fn allowed_here() -> Allowed {
    let status = text(Path::new("/proc/self/status")).unwrap_or_default();
    let memory = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    Allowed {
        cpus: CpuSet::try_from(sys::affinity()).unwrap_or_default(),
        memory: memory.and_then(|list| list.trim().parse().ok()).unwrap_or_default(),
    }
}

/// Returns the topology of this node, and what this process may use of it.
pub fn this_node() -> (Topology, Allowed) {
    let (topology, allowed) = (hardware(Path::new("/")).topology(), allowed_here());
    // Without /sys, each processor counts as a core.
    if topology.cpus().is_empty() {
        return (Topology::new(&allowed.cpus, [], []), allowed);
    }
    (topology, allowed)
}

/// Returns the text with which this node is described to hwloc; `None` if hwloc is to find the topology itself: see
/// [`Hardware::hwloc_xml`]. MPICH fails an assertion if the file lacks one of several network controllers.
pub(super) fn hwloc_xml() -> Option<String> {
    let root = Path::new("/");
    (network_controllers(root) <= 1).then(|| hardware(root).hwloc_xml(&allowed_here()))?
}

/// The number of PCI devices that are network controllers, of any kind.
fn network_controllers(root: &Path) -> usize {
    let devices = fs::read_dir(root.join("sys/bus/pci/devices")).into_iter().flatten().flatten().take(DEVICES_MAX);
    let class = |device: fs::DirEntry| text(&device.path().join("class"));
    devices.filter_map(class).filter(|class| class.starts_with(NETWORK_CONTROLLER)).count()
}

fn set(path: &Path) -> Option<CpuSet> {
    text(path)?.trim().parse().ok()
}

/// Reads a file; `None` if that fails. Longer files are cut.
pub(super) fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests;
