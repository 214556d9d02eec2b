//! Derives the model's constants from measured times.

use std::time::Duration;

use sim::BoardCosts;

use super::{CONSTANT_MAX, COUNT_MAX, Constants, nanoseconds, shared, times};

/// The time that several operations of one kind took together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupTime {
    /// The number of operations. A group of none is ignored.
    pub count: u32,
    /// The time from the start of the first to the end of the last.
    pub took: Duration,
}

/// The measured times. If a list is empty, its constants keep their defaults.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Samples {
    /// Single remote shells: the time from the start of each to its agent's first message.
    pub single: Vec<Duration>,
    /// Remote shells to several hosts, all started at once. A group is more accurate the more remote shells it has per
    /// core; a group with at most one per core is of no use.
    pub concurrent: Vec<GroupTime>,
    /// Hellos received by one process.
    pub joins: Vec<GroupTime>,
    /// Ranks started by one agent.
    pub starts: Vec<GroupTime>,
    /// The number of cores of the launching side; 0 counts as 1.
    pub cores: u32,
    /// Whether the hosts share these cores, as namespaces of one machine do.
    pub are_shared: bool,
    /// The costs of entries on this machine.
    pub board: Option<BoardCosts>,
    /// The most remote shells at a time, if they were limited.
    pub shells_max: Option<u32>,
}

/// Returns the constants that fit these samples best. Each is a median, so a single slow host does not affect it.
///
/// In [the model of scela-run](super::own) a single remote shell takes T(1) = w + v: w is the work of the cores (Tssh,
/// plus Tlogin if both sides share them), v the wait. A group of b > m remote shells takes T(b) = b w / m + v on m
/// cores. Hence w = (T(b) − T(1)) m / (b − m), and v is the rest of T(1). If both sides share cores, each has half
/// of w, because both do the same arithmetic for the handshake.
///
/// The result is [valid](Constants::is_valid): times above [`CONSTANT_MAX`] are cut to it.
pub fn calibrate(samples: &Samples) -> Constants {
    let typical = Constants::default();
    let cores = samples.cores.clamp(1, COUNT_MAX);
    let bounded = |time: Duration| time.min(CONSTANT_MAX);
    let measured = median(samples.single.iter().copied()).map(bounded);
    let single = measured.unwrap_or(typical.tssh + typical.tc);
    let groups = samples.concurrent.iter().filter(|group| group.count > cores);
    let work = median(groups.filter(|_| measured.is_some()).map(|group| work(*group, single, cores)));
    let (tssh, tlogin) = match (work, samples.are_shared) {
        (Some(work), true) => (shared(work, 2), shared(work, 2)),
        (Some(work), false) => (work, typical.tlogin),
        (None, _) => (typical.tssh.min(single), typical.tlogin),
    };
    let tc = single - tssh;
    Constants {
        tc,
        tssh,
        tlogin: tlogin.min(tc),
        trecv: median(samples.joins.iter().filter_map(each)).map_or(typical.trecv, bounded),
        tclient: median(samples.starts.iter().filter_map(each)).map_or(typical.tclient, bounded),
        cores,
        shared_cores: samples.are_shared.then_some(cores),
        shells_max: samples.shells_max.unwrap_or(typical.shells_max).clamp(1, COUNT_MAX),
        board: samples.board.unwrap_or(typical.board),
        measured: measured.is_some(),
    }
}

/// Returns w, the cores' work for one remote shell of a group with more remote shells than cores. At most `single`, the
/// whole time of a single remote shell.
fn work(group: GroupTime, single: Duration, cores: u32) -> Duration {
    let longer = times(group.took.saturating_sub(single), u64::from(cores));
    shared(longer, group.count - cores).min(single)
}

/// Returns the time of one operation of a group; `None` for an empty group.
fn each(group: &GroupTime) -> Option<Duration> {
    (group.count > 0).then(|| shared(group.took, group.count))
}

/// Returns the median; for an even number of values, the mean of the two in the middle.
fn median(values: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(nanoseconds((lower.as_nanos() + upper.as_nanos()) / 2))
}
