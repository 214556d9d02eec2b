//! Reads synthetic trees, and asks hwloc about the same ones.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write as _;
use std::process::Command;

use tempfile::TempDir;

use super::*;
use crate::core::Level;

/// A synthetic /sys.
struct Tree(TempDir);

impl Tree {
    fn new(online: &str) -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for file in ["online", "possible", "present"] {
            tree.write(&format!("cpu/{file}"), online);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join("sys/devices/system").join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{text}\n")).unwrap();
    }

    /// Adds a processor with its core, its package, and caches of a level.
    fn cpu(&self, cpu: u32, core: &str, package: (u32, &str), caches: &[(u32, &str)]) {
        let topology = format!("cpu/cpu{cpu}/topology");
        let first = core.split([',', '-']).next().unwrap();
        let files = [
            ("core_id", first),
            ("core_cpus_list", core),
            ("thread_siblings_list", core),
            ("physical_package_id", &package.0.to_string()),
            ("package_cpus_list", package.1),
            ("core_siblings_list", package.1),
            // hwloc reads the masks.
            ("core_cpus", &hex(core)),
            ("thread_siblings", &hex(core)),
            ("package_cpus", &hex(package.1)),
            ("core_siblings", &hex(package.1)),
        ];
        files.iter().for_each(|(name, text)| self.write(&format!("{topology}/{name}"), text));
        self.write(&format!("cpu/cpu{cpu}/online"), "1");
        for (index, (level, shared)) in caches.iter().enumerate() {
            let files = [("level", level.to_string()), ("type", "Unified".to_owned()), ("size", "1024K".to_owned())];
            for (name, text) in files {
                self.write(&format!("cpu/cpu{cpu}/cache/index{index}/{name}"), &text);
            }
            self.write(&format!("cpu/cpu{cpu}/cache/index{index}/shared_cpu_list"), shared);
            self.write(&format!("cpu/cpu{cpu}/cache/index{index}/shared_cpu_map"), &hex(shared));
        }
    }

    fn nodes(&self, nodes: &[(u32, &str)]) {
        let numbers: CpuSet = nodes.iter().map(|(node, _)| *node).collect();
        self.write("node/online", &numbers.to_string());
        for (node, cpus) in nodes {
            self.write(&format!("node/node{node}/cpulist"), cpus);
            self.write(&format!("node/node{node}/cpumap"), &hex(cpus));
            self.write(&format!("node/node{node}/meminfo"), &format!("Node {node} MemTotal: 1048576 kB"));
        }
    }

    #[track_caller]
    fn check(&self, level: Level, expected: &[&str]) {
        let topology = hardware(self.0.path()).topology();
        let parts: Vec<String> = topology.parts(level).iter().map(ToString::to_string).collect();
        assert_eq!(parts, expected, "{}", level.name());
        if let Some(oracle) = self.by_hwloc(level) {
            assert_eq!(parts.into_iter().collect::<BTreeSet<_>>(), oracle, "hwloc: {}", level.name());
        }
    }

    /// Checks that hwloc shows the same node from our text as from the tree.
    #[track_caller]
    fn check_xml(&self) {
        let hardware = hardware(self.0.path());
        let nodes = hardware.memory.iter().map(|memory| memory.node).collect();
        let allowed = Allowed { cpus: hardware.online.clone(), memory: nodes };
        let text = hardware.hwloc_xml(&allowed).expect("hwloc would find no more");
        let Some(expected) = self.lstopo(&["--no-io"]) else { return };
        assert_eq!(of_xml(&text), expected, "{text}");
    }

    /// The parts that hwloc finds; `None` if it is not installed, or knows no part of the level.
    fn by_hwloc(&self, level: Level) -> Option<BTreeSet<String>> {
        let kind = match level {
            Level::Hwthread => "pu",
            Level::Core => "core",
            Level::L2 => "l2cache",
            Level::L3 => "l3cache",
            Level::Numa => "numa",
            Level::Package => "package",
        };
        let text = self.lstopo(&["--no-io", "--cpuset-only", "--only", kind])?;
        Some(text.lines().map(|line| of_mask(line).to_string()).collect())
    }

    /// The output of lstopo for the tree; `None` if it is not installed.
    fn lstopo(&self, options: &[&str]) -> Option<String> {
        lstopo(
            Command::new("lstopo-no-graphics")
                .env("HWLOC_FSROOT", self.0.path())
                .env("HWLOC_COMPONENTS", "linux,stop")
                .env("HWLOC_THISSYSTEM", "0")
                .args(options),
        )
    }
}

/// The objects that lstopo shows of a node that is described by this text.
fn of_xml(text: &str) -> String {
    let file = tempfile::Builder::new().suffix(".xml").tempfile().unwrap();
    fs::write(file.path(), text).unwrap();
    lstopo(Command::new("lstopo-no-graphics").arg("-i").arg(file.path())).expect("lstopo has run before")
}

fn lstopo(command: &mut Command) -> Option<String> {
    let Ok(output) = command.args(["--of", "console"]).output() else {
        assert!(std::env::var_os("TESTS_STRICT").is_none(), "hwloc-nox is needed");
        let _ = std::io::stderr().write_all(b"skipped: lstopo-no-graphics is not installed\n");
        return None;
    };
    let (text, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && !text.is_empty() && errors.is_empty(), "{errors}");
    Some(text)
}

/// A list as a mask of the kernel: words of 32 bits with commas between.
fn hex(list: &str) -> String {
    let set: CpuSet = list.parse().unwrap();
    let word = set.words().first().copied().unwrap_or_default();
    format!("{:08x},{:08x}", word >> 32, word & 0xffff_ffff)
}

/// The set of a mask of hwloc, such as `0x0000ff00`.
fn of_mask(mask: &str) -> CpuSet {
    let word = u64::from_str_radix(mask.trim().trim_start_matches("0x"), 16).unwrap();
    CpuSet::try_from(vec![word]).unwrap()
}

#[test]
fn threads_share_cores() {
    let tree = Tree::new("0-7");
    for cpu in 0..8 {
        let core = format!("{},{}", cpu % 4, cpu % 4 + 4);
        tree.cpu(cpu, &core, (0, "0-7"), &[(1, &core), (2, &core), (3, "0-7")]);
    }
    tree.nodes(&[(0, "0-7")]);
    tree.check(Level::Hwthread, &["0", "4", "1", "5", "2", "6", "3", "7"]);
    tree.check(Level::Core, &["0,4", "1,5", "2,6", "3,7"]);
    tree.check(Level::L2, &["0,4", "1,5", "2,6", "3,7"]);
    tree.check(Level::L3, &["0-7"]);
    tree.check(Level::Numa, &["0-7"]);
    tree.check(Level::Package, &["0-7"]);
    tree.check_xml();
}

#[test]
fn two_packages_with_alternating_numbers() {
    let tree = Tree::new("0-7");
    for cpu in 0..8u32 {
        let package = [(0, "0,2,4,6"), (1, "1,3,5,7")][cpu as usize % 2];
        tree.cpu(cpu, &cpu.to_string(), package, &[(2, &cpu.to_string()), (3, package.1)]);
    }
    tree.nodes(&[(0, "0,2,4,6"), (1, "1,3,5,7")]);
    tree.check(Level::Core, &["0", "2", "4", "6", "1", "3", "5", "7"]);
    tree.check(Level::L3, &["0,2,4,6", "1,3,5,7"]);
    tree.check(Level::Numa, &["0,2,4,6", "1,3,5,7"]);
    tree.check(Level::Package, &["0,2,4,6", "1,3,5,7"]);
}

#[test]
fn a_package_has_several_numa_nodes_and_one_has_no_processor() {
    let tree = Tree::new("0-7");
    for cpu in 0..8u32 {
        let l3 = if cpu < 4 { "0-3" } else { "4-7" };
        tree.cpu(cpu, &cpu.to_string(), (0, "0-7"), &[(2, &cpu.to_string()), (3, l3)]);
    }
    tree.nodes(&[(0, "0-3"), (1, "4-7"), (2, "")]);
    let topology = hardware(tree.0.path()).topology();
    let numa: Vec<String> = topology.parts(Level::Numa).iter().map(ToString::to_string).collect();
    assert_eq!(numa, ["0-3", "4-7"], "memory without processors is no place for a rank");
    tree.check(Level::L3, &["0-3", "4-7"]);
    tree.check(Level::Package, &["0-7"]);
    assert_eq!(topology.numa_nodes_of(&"5".parse().unwrap()), "1".parse().unwrap());
}

#[test]
fn large_cores_have_threads_and_small_ones_share_a_cache() {
    let tree = Tree::new("0-7");
    for cpu in 0..4u32 {
        let core = if cpu < 2 { "0-1" } else { "2-3" };
        tree.cpu(cpu, core, (0, "0-7"), &[(2, core), (3, "0-7")]);
    }
    for cpu in 4..8 {
        tree.cpu(cpu, &cpu.to_string(), (0, "0-7"), &[(2, "4-7"), (3, "0-7")]);
    }
    tree.nodes(&[(0, "0-7")]);
    tree.check(Level::Core, &["0-1", "2-3", "4", "5", "6", "7"]);
    tree.check(Level::L2, &["0-1", "2-3", "4-7"]);
    tree.check(Level::L3, &["0-7"]);
    tree.check_xml();
}

#[test]
fn offline_processors_are_no_part_of_the_node() {
    let tree = Tree::new("0-2,4");
    tree.write("cpu/possible", "0-5");
    tree.write("cpu/present", "0-5");
    for cpu in [0, 1, 2, 4u32] {
        let core = [(0, "0-1"), (1, "0-1"), (2, "2"), (4, "4")].iter().find(|(of, _)| *of == cpu).unwrap().1;
        tree.cpu(cpu, core, (0, "0-2,4"), &[(2, core)]);
    }
    tree.write("cpu/cpu3/online", "0");
    tree.write("cpu/cpu5/online", "0");
    tree.nodes(&[(0, "0-2,4")]);
    tree.check(Level::Hwthread, &["0", "1", "2", "4"]);
    tree.check(Level::Core, &["0-1", "2", "4"]);
    tree.check(Level::Package, &["0-2,4"]);
    tree.check_xml();
}

#[test]
fn older_kernels_have_other_names_and_broken_files_are_left_out() {
    let tree = Tree::new("0-3");
    for cpu in 0..4 {
        let core = if cpu < 2 { "0-1" } else { "2-3" };
        tree.write(&format!("cpu/cpu{cpu}/topology/thread_siblings_list"), core);
        tree.write(&format!("cpu/cpu{cpu}/topology/core_siblings_list"), "0-3x");
        tree.write(&format!("cpu/cpu{cpu}/cache/index0/level"), "two");
    }
    tree.write("node/online", &"9".repeat(100_000));
    let topology = hardware(tree.0.path()).topology();
    let of = |level| topology.parts(level).iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(of(Level::Core), ["0-1", "2-3"]);
    assert_eq!(
        [of(Level::L2), of(Level::Package), of(Level::Numa)],
        [vec!["0-1".to_owned(), "2-3".into()], vec!["0-3".into()], vec!["0-3".into()]]
    );
    assert_eq!(hardware(&tree.0.path().join("nothing")).topology().cpus().len(), 0);
}

#[test]
fn this_process_may_use_what_the_kernel_says() {
    let topology = hardware(Path::new("/")).topology();
    let allowed = allowed_here();
    assert_eq!(allowed.cpus.len() as usize, sys::cores());
    assert!(allowed.cpus.is_within(topology.cpus()), "{allowed:?}");
    let status = fs::read_to_string("/proc/self/status").unwrap();
    assert!(status.contains(&format!("Cpus_allowed_list:\t{}\n", allowed.cpus)), "{allowed:?}");
    assert!(status.contains(&format!("Mems_allowed_list:\t{}\n", allowed.memory)), "{allowed:?}");
}

#[test]
fn dies_and_clusters_of_cores_are_shown_where_they_differ_from_other_parts() {
    let tree = Tree::new("0-63");
    for cpu in 0..64u32 {
        let part = |size: u32| format!("{}-{}", cpu / size * size, cpu / size * size + size - 1);
        let (core, cluster, die, package) = (part(2), part(8), part(16), part(32));
        tree.cpu(cpu, &core, (cpu / 32, &package), &[(2, &core), (3, &die)]);
        for (name, list) in [("cluster_cpus", &cluster), ("die_cpus", &die)] {
            tree.write(&format!("cpu/cpu{cpu}/topology/{name}_list"), list);
            tree.write(&format!("cpu/cpu{cpu}/topology/{name}"), &hex(list));
        }
        for (name, id) in [("cluster_id", cpu / 8), ("die_id", cpu / 16)] {
            tree.write(&format!("cpu/cpu{cpu}/topology/{name}"), &id.to_string());
        }
    }
    tree.nodes(&[(0, "0-63")]);
    tree.check_xml();
}

/// Objects that hwloc finds in other places than these files must not be missing.
#[test]
fn hwloc_sees_this_machine_the_same_way() {
    let hardware = hardware(Path::new("/"));
    let allowed =
        Allowed { cpus: hardware.online.clone(), memory: hardware.memory.iter().map(|memory| memory.node).collect() };
    // Other machines of the tests may have several NUMA nodes, and then there is no text.
    let Some(text) = hardware.hwloc_xml(&allowed) else { return };
    let show = &mut Command::new("lstopo-no-graphics");
    let Some(expected) = lstopo(show.args(["--no-io", "--no-icaches", "--whole-system"])) else { return };
    assert_eq!(of_xml(&text), expected, "{text}");
}

#[test]
fn network_controllers_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let devices = root.path().join("sys/bus/pci/devices");
    for (name, class) in [("0000:00:01.0", "0x010802"), ("0000:00:02.0", "0x020000"), ("0000:01:00.0", "0x020700")] {
        fs::create_dir_all(devices.join(name)).unwrap();
        fs::write(devices.join(name).join("class"), format!("{class}\n")).unwrap();
    }
    assert_eq!(network_controllers(root.path()), 2);
    assert_eq!(network_controllers(&root.path().join("nothing")), 0);
}
