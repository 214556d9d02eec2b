//! Reads the topology of this node from /sys, and what this process may use of it.
//!
//! The kernel's files are small, and a container or a mount can put any others in their place: each has a bound, and what
//! cannot be read or parsed is left out, as [`Topology::new`] says.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use crate::core::{Allowed, CpuSet, Level, Topology};
use crate::sys;

/// Bytes of one file. A list of every other processor of [`CPUS_MAX`](crate::core::limits::CPUS_MAX) is shorter.
const FILE_BYTES_MAX: u64 = 64 * 1024;
/// Caches of one processor. Processors have 3 or 4, of which two are of level 1.
const CACHES_MAX: u32 = 16;

/// Reads the topology from `sys/devices/system` below `root`, which is `/` on a real node.
pub(super) fn node_topology(root: &Path) -> Topology {
    let system = root.join("sys/devices/system");
    let cpus = system.join("cpu");
    let online = set(&cpus.join("online")).unwrap_or_default();
    let mut known: Vec<(Level, CpuSet)> = Vec::new();
    let covers = |known: &[(Level, CpuSet)], level: Level, cpu: u32| {
        known.iter().any(|(of, part)| *of == level && part.contains(cpu))
    };
    for cpu in online.iter() {
        let own = cpus.join(format!("cpu{cpu}"));
        // All threads of a core have the same files.
        if covers(&known, Level::Core, cpu) {
            continue;
        }
        // The first name is that of Linux 5.3 and later.
        for (level, names) in [
            (Level::Core, ["core_cpus_list", "thread_siblings_list"]),
            (Level::Package, ["package_cpus_list", "core_siblings_list"]),
        ] {
            let part = || names.iter().find_map(|name| set(&own.join("topology").join(name)));
            if !covers(&known, level, cpu) {
                known.extend(part().map(|part| (level, part)));
            }
        }
        let caches = (0..CACHES_MAX).map(|index| own.join(format!("cache/index{index}")));
        for cache in caches.take_while(|cache| cache.exists()) {
            let level = match text(&cache.join("level")).as_deref().map(str::trim) {
                Some("2") => Level::L2,
                Some("3") => Level::L3,
                _ => continue,
            };
            let has_data = text(&cache.join("type")).is_none_or(|kind| kind.trim() != "Instruction");
            if has_data && !covers(&known, level, cpu) {
                known.extend(set(&cache.join("shared_cpu_list")).map(|part| (level, part)));
            }
        }
    }
    let nodes = system.join("node");
    let numbers = set(&nodes.join("online")).unwrap_or_default();
    let near = |node: u32| set(&nodes.join(format!("node{node}/cpulist"))).map(|near| (node, near));
    let memory: Vec<(u32, CpuSet)> = numbers.iter().filter_map(near).collect();
    known.extend(memory.iter().map(|(_, near)| (Level::Numa, near.clone())));
    Topology::new(&online, known, memory)
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
    let (topology, allowed) = (node_topology(Path::new("/")), allowed_here());
    // Without /sys, each processor counts as a core.
    if topology.cpus().is_empty() {
        return (Topology::new(&allowed.cpus, [], []), allowed);
    }
    (topology, allowed)
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
