//! Bounds on what can be typed.

use std::time::Duration;

/// The least `--fanout`. With 1 the tree would be a chain, each agent one link further away.
pub const FANOUT_MIN: u32 = 2;
/// The greatest `--fanout`.
pub const FANOUT_MAX: u32 = 1024;
/// The most fan-outs that `--fanouts` compares.
pub const FANOUTS_MAX: usize = 64;
/// The maximum of `--cache-entries`. No board has that many entries.
pub(super) const CACHE_ENTRIES_MAX: u32 = 1 << 28;
/// The most `--cores`.
pub(super) const CORES_MAX: u32 = 1 << 20;
/// The most `--batch`: as many as an agent can have children in a tree.
pub const BATCH_MAX: u32 = FANOUT_MAX;
/// The most agents that can be asked for on one node.
pub const AGENTS_PER_NODE_MAX: u32 = 4096;
/// The longest `--timeout`, a year.
pub const TIMEOUT_MAX: Duration = Duration::from_secs(365 * 24 * 3600);
/// The longest `--kill-grace`, a day.
pub const KILL_GRACE_MAX: Duration = Duration::from_secs(24 * 3600);
/// The shortest `--dead-time`. An agent that decodes a large board does nothing else for up to some tenths of a second.
pub(super) const DEAD_TIME_MIN: Duration = Duration::from_millis(500);
/// The longest `--dead-time`, an hour.
pub(super) const DEAD_TIME_MAX: Duration = Duration::from_secs(3600);
/// The longest second time of `--dead-time`, a day.
pub(super) const STOP_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The largest `--max-restarts`.
pub(super) const RESTARTS_MAX: u32 = 1000;
/// The shortest `--heartbeat`.
pub(super) const HEARTBEAT_MIN: Duration = Duration::from_millis(50);
/// The longest `--heartbeat`, a third of the longest dead time.
pub(super) const HEARTBEAT_MAX: Duration = Duration::from_secs(1200);
/// The longest `--start-timeout`, a day.
pub const START_TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest `--wait-for-hosts`, a day.
pub(super) const HOSTS_TIME_MAX: Duration = Duration::from_secs(24 * 3600);
/// The longest `--label`, in bytes. It goes into process titles, which are short.
pub const LABEL_BYTES_MAX: usize = 64;
/// The highest priority of a job in a pool; the lowest is its negative.
pub(super) const PRIORITY_MAX: i32 = 1000;
/// The longest `-memory-alloc-kinds`, in bytes: the longest value that PMI-1 clients read.
pub(super) const MEMORY_ALLOC_KINDS_BYTES_MAX: usize = 1023;
/// The most names in one `-envlist` or `-genvlist`.
pub const ENV_NAMES_MAX: usize = 4096;
/// The most processors of a rank that can be asked for, and the most parts of a node.
pub(super) const PARTS_MAX: u32 = 4096;
/// The most ranks in the list of `--bind-to user:LIST`.
pub(super) const BINDING_LIST_MAX: usize = 4096;
/// The longest name of a network interface, in bytes: Linux's IFNAMSIZ without the NUL at its end.
pub const IFACE_BYTES_MAX: usize = 15;
/// The largest configfile, in bytes.
pub const CONFIGFILE_BYTES_MAX: usize = 16 << 20;
