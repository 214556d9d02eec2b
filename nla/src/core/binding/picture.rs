//! A picture of a binding, as Open MPI draws it.

use super::cpu_set::CpuSet;
use super::topology::{Level, Topology};
use crate::core::limits::PICTURE_CPUS_MAX;

/// Draws processors of a node: `[BB/../..][../../..]`. Each pair of brackets is a package, each group between slashes a
/// core, each character a thread: `B` if it is in `cpus`, `~` if it is not allowed, else `.`.
///
/// Returns `None` for a node with more than [`PICTURE_CPUS_MAX`] processors.
pub fn picture(topology: &Topology, allowed: &CpuSet, cpus: &CpuSet) -> Option<String> {
    if topology.cpus().len() > PICTURE_CPUS_MAX {
        return None;
    }
    let thread = |cpu: u32| match (cpus.contains(cpu), allowed.contains(cpu)) {
        (true, _) => 'B',
        (false, true) => '.',
        (false, false) => '~',
    };
    let core = |core: &CpuSet| core.iter().map(thread).collect::<String>();
    let package = |package: &CpuSet| {
        let cores = topology.parts(Level::Core).iter().filter(|core| !core.is_disjoint(package));
        format!("[{}]", cores.map(core).collect::<Vec<_>>().join("/"))
    };
    Some(topology.parts(Level::Package).iter().map(package).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn packages_cores_and_threads_are_drawn() {
        let known = [(Level::Package, set("0-3")), (Level::Core, set("0,2")), (Level::Core, set("1,3"))];
        let topology = Topology::new(&set("0-5"), known, []);
        assert_eq!(picture(&topology, &set("0-4"), &set("1,3-4")).unwrap(), "[../BB][B/~]");
        let large: CpuSet = (0..PICTURE_CPUS_MAX + 1).collect();
        assert_eq!(picture(&Topology::new(&large, [], []), &large, &large), None);
    }
}
