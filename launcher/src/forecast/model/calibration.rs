//! From measured times to constants.

use std::time::Duration;

use super::{CONSTANT_MAX, COUNT_MAX, Constants, nanoseconds, shared, times};

/// Some things of one kind that took a time together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted {
    /// How many; those of none are passed over.
    pub count: u32,
    /// From the beginning of the first to the end of the last.
    pub took: Duration,
}

/// What was measured. A list may be empty: its constants are then those of the default.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Samples {
    /// Sessions with no other in flight: from the start of each to its agent's first words.
    pub alone: Vec<Duration>,
    /// Sessions to that many hosts, all started at once. They tell more the more of them there are for
    /// each core; no more of them than cores tell nothing.
    pub crowds: Vec<Counted>,
    /// Hellos taken in by one side.
    pub joins: Vec<Counted>,
    /// Ranks started by one agent.
    pub starts: Vec<Counted>,
    /// Cores of the launching side; 0 counts as 1.
    pub cores: u32,
    /// Whether the hosts share these cores, as namespaces of one machine do.
    pub are_shared: bool,
    /// The most sessions in flight that were borne, where there was a limit.
    pub sessions_max: Option<u32>,
}

/// The constants that explain these samples best; each is a median, which a slow host does not move.
///
/// In [our equations](super::own) a session that is alone takes T(1) = w + v, of which w is work of the
/// cores in question (Tssh, and Tlogin where both sides share them), and v waiting. A crowd of b > m takes
/// T(b) = b w / m + v on m cores. Hence w = (T(b) − T(1)) m / (b − m), and v is the rest of T(1). Where
/// the sides share cores, each has half of w: they do the same arithmetic for the same handshake.
///
/// The result is [valid](Constants::is_valid): times above [`CONSTANT_MAX`] are cut.
pub fn calibrate(samples: &Samples) -> Constants {
    let typical = Constants::default();
    let cores = samples.cores.clamp(1, COUNT_MAX);
    let bounded = |time: Duration| time.min(CONSTANT_MAX);
    let alone = median(samples.alone.iter().copied()).map(bounded);
    let session = alone.unwrap_or(typical.tssh + typical.tc);
    let crowds = samples.crowds.iter().filter(|crowd| crowd.count > cores);
    let work = median(crowds.filter(|_| alone.is_some()).map(|crowd| work(*crowd, session, cores)));
    let (tssh, tlogin) = match (work, samples.are_shared) {
        (Some(work), true) => (shared(work, 2), shared(work, 2)),
        (Some(work), false) => (work, typical.tlogin),
        (None, _) => (typical.tssh.min(session), typical.tlogin),
    };
    let tc = session - tssh;
    Constants {
        tc,
        tssh,
        tlogin: tlogin.min(tc),
        trecv: median(samples.joins.iter().filter_map(each)).map_or(typical.trecv, bounded),
        tclient: median(samples.starts.iter().filter_map(each)).map_or(typical.tclient, bounded),
        cores,
        shared_cores: samples.are_shared.then_some(cores),
        sessions_max: samples.sessions_max.unwrap_or(typical.sessions_max).clamp(1, COUNT_MAX),
        measured: alone.is_some(),
    }
}

/// w: the cores' work for one session of a crowd that is larger than the cores are many; never more than
/// `session`, the whole time of one that is alone.
fn work(crowd: Counted, session: Duration, cores: u32) -> Duration {
    let longer = times(crowd.took.saturating_sub(session), u64::from(cores));
    shared(longer, crowd.count - cores).min(session)
}

/// The time for one, if there are any.
fn each(counted: &Counted) -> Option<Duration> {
    (counted.count > 0).then(|| shared(counted.took, counted.count))
}

/// The middle one, or the mean of the two in the middle.
fn median(values: impl Iterator<Item = Duration>) -> Option<Duration> {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable();
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(nanoseconds((lower.as_nanos() + upper.as_nanos()) / 2))
}
