//! Cgroups that limit processor time and memory.

use std::fs;
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;
use tests::{Run, World, eventually, scela, sh, skip};

/// A cgroup of one controller. Dropping it removes it.
struct Limited {
    group: PathBuf,
    is_v1: bool,
}

impl Limited {
    /// Creates the cgroup for the run of `world`. Skips if that is not possible here.
    fn new(world: &World, controller: &str) -> Option<Self> {
        let created = if geteuid().is_root() { Self::create(world, controller) } else { None };
        if created.is_none() {
            skip(&format!("no cgroup with the controller {controller} can be created"));
        }
        created
    }

    fn create(world: &World, controller: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let mount_of = |kind: &str, has: &dyn Fn(&Path, &str) -> bool| {
            let mounts = mounts.lines().filter_map(|line| line.split_once(&format!(" - {kind} ")));
            let mut mounts = mounts.map(|(mount, options)| (PathBuf::from(mount.split(' ').nth(4).unwrap()), options));
            mounts.find_map(|(mount, options)| has(&mount, options).then_some(mount))
        };
        let of_v1 = mount_of("cgroup", &|_, options| options.split([',', ' ']).any(|name| name == controller));
        let is_v1 = of_v1.is_some();
        let enables =
            |mount: &Path, _: &str| fs::write(mount.join("cgroup.subtree_control"), format!("+{controller}")).is_ok();
        let group = of_v1.or_else(|| mount_of("cgroup2", &enables))?.join(world.label());
        fs::create_dir(&group).ok().map(|()| Self { group, is_v1 })
    }

    /// Writes a limit: to the file of version 1, or to that of version 2.
    fn set(&self, v1: (&str, &str), v2: (&str, &str)) {
        let (file, limit) = if self.is_v1 { v1 } else { v2 };
        fs::write(self.group.join(file), limit).unwrap();
    }

    /// Lets the launcher run in this cgroup.
    fn around(&self, run: Run) -> Run {
        run.shell(&format!("echo $$ > {}/cgroup.procs", self.group.display()))
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A process that has just ended may not have left it.
        let removed = eventually(|| fs::remove_dir(&self.group).is_ok().then_some(()));
        assert!(removed.is_some() || std::thread::panicking(), "{} is not empty", self.group.display());
    }
}

/// Two ranks would share the half core, and each would wait for the other in every fence.
#[test]
fn a_quota_of_half_a_core_starts_one_rank() {
    let run = scela();
    let Some(group) = Limited::new(run.world(), "cpu") else { return };
    group.set(("cpu.cfs_quota_us", "50000"), ("cpu.max", "50000 100000"));
    group.around(run).program(sh("echo $PMI_SIZE")).run().has_code(0).wrote("1\n");
}
