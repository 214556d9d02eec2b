//! How long a start takes, predicted: by the published equations of multi-level startup, and by our
//! own of what `scela-run` does. All of it is a function of numbers, apart from [`store`], which keeps
//! measured constants in a file.
//!
//! A **session** is one run of the bootstrap's command, an `ssh` for example. It takes processor time at
//! the side that launches it ([`Constants::tssh`]), then time in which that side waits
//! ([`Constants::tc`]); whoever has been started registers ([`Constants::trecv`]). Both models have the
//! same constants, so that their times can stand side by side.
//!
//! What the model does not know: resource managers that start all agents with one command, hosts that
//! are slower than others, and retries.

mod calibration;
pub mod own;
pub mod published;
pub mod store;

#[cfg(test)]
mod tests;

use std::time::Duration;

use crate::plan::remote_launch::{Recommended, Shape};

pub use self::calibration::{Counted, Samples, calibrate};

/// The least fan-out that is considered.
pub const FANOUT_LEAST: u32 = 2;

/// The greatest fan-out that is considered. With more children, an agent has more to take in and to send
/// on for the rest of the session than the start gains.
pub const FANOUT_MOST: u32 = 32;

/// The longest time that a constant can be.
pub const CONSTANT_MAX: Duration = Duration::from_secs(3600);

/// The most cores, and the most sessions at a time, that constants can tell of.
pub const COUNT_MAX: u32 = 1 << 20;

/// What the machines and the network take. The default is typical of a cluster and not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constants {
    /// Tc: what a session waits for beyond [`tssh`](Self::tssh), until the agent's first words: the
    /// network, the far side's login. Waits of sessions in flight overlap.
    pub tc: Duration,
    /// Tssh: processor time of a session at the side that launches it, its cryptography above all.
    pub tssh: Duration,
    /// Trecv: to take in one registration: of a rank in the published equations, of an agent (a hello
    /// on its link) in ours. One after another.
    pub trecv: Duration,
    /// Tclient: to start one rank, one after another.
    pub tclient: Duration,
    /// Processor time of a session at the far side, a part of `tc`. It counts only where the hosts
    /// share cores. Never more than `tc`.
    pub tlogin: Duration,
    /// Cores for the sessions of one launching side: of scela-run's host, and of each node likewise.
    /// At least 1.
    pub cores: u32,
    /// All hosts share so many cores, as hosts in namespaces of one machine do. At least 1.
    pub shared_cores: Option<u32>,
    /// The most sessions that one launching side may have in flight. At least 1.
    pub sessions_max: u32,
    /// Whether the times were measured on these hosts.
    pub measured: bool,
}

impl Default for Constants {
    /// Typical times, **not measured**: OpenSSH with a key of Ed25519 between current servers of one
    /// network, a home directory that is mounted already, a start of a rank as in
    /// `docs/design/002-spawning.md`.
    fn default() -> Self {
        Self {
            tc: Duration::from_millis(180),
            tssh: Duration::from_millis(20),
            trecv: Duration::from_micros(300),
            tclient: Duration::from_micros(700),
            tlogin: Duration::from_millis(40),
            cores: 4,
            shared_cores: None,
            sessions_max: 128,
            measured: false,
        }
    }
}

impl Constants {
    /// Those of a start on this machine alone, where an agent is a process like any other. The times to
    /// start one are typical and not measured.
    #[must_use]
    pub fn here(&self, cores: u32) -> Self {
        let cores = cores.clamp(1, COUNT_MAX);
        let process = Duration::from_millis(1);
        Self { tc: 2 * process, tssh: process, tlogin: process, cores, shared_cores: Some(cores), ..self.clone() }
    }

    /// Whether all are within their bounds.
    pub fn is_valid(&self) -> bool {
        let Self { tc, tssh, trecv, tclient, tlogin, cores, shared_cores, sessions_max, measured: _ } = self;
        let counts = [*cores, shared_cores.unwrap_or(1), *sessions_max];
        [tc, tssh, trecv, tclient].into_iter().all(|time| *time <= CONSTANT_MAX)
            && tlogin <= tc
            && counts.into_iter().all(|count| (1..=COUNT_MAX).contains(&count))
    }
}

/// Who is started, and from where.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// N: nodes, each with an agent. At least 1.
    pub nodes: u32,
    /// c: ranks on each. At least 1.
    pub ppn: u32,
}

impl Size {
    /// P: all ranks.
    pub fn ranks(self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ppn)
    }
}

/// One way to start, and how long it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// What it is called.
    pub name: &'static str,
    /// By the published equation.
    pub published: Duration,
    /// By ours.
    pub own: Duration,
}

/// What to type, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recommendation {
    /// `--launch`.
    pub shape: Shape,
    /// `--fanout`: k. For [`Shape::Flat`] the number of nodes, which are all the launcher's children.
    pub fanout: u32,
    /// d: levels of agents below the launcher.
    pub depth: u32,
    /// k of the best tree; [`fanout`](Self::fanout) if that is what is recommended.
    pub tree_fanout: u32,
    /// `--batch`: b, the least that is as good as any within [`Constants::sessions_max`].
    pub batch: u32,
    /// How long that takes, by our own equations.
    pub time: Duration,
    /// All ways, the recommended tree's fan-out and batch in the last two; for comparison the tree's if
    /// flat is recommended.
    pub predicted: Vec<Prediction>,
}

impl From<&Recommendation> for Recommended {
    fn from(recommendation: &Recommendation) -> Self {
        Self { shape: recommendation.shape, tree_fanout: recommendation.tree_fanout }
    }
}

/// The start that takes the least time by our own equations: flat, or a tree with a fan-out of
/// [`FANOUT_LEAST`] to [`FANOUT_MOST`]. Of those that take the same time, flat, else the one with fewer
/// levels, else the one with fewer children. So few nodes are started flat: a second level pays only
/// when the sessions of a first keep its cores busy for longer than a session waits.
///
/// No nodes, or no ranks on them, count as one.
pub fn recommend(nodes: u32, ppn: u32, constants: &Constants) -> Recommendation {
    let size = Size { nodes: nodes.max(1), ppn: ppn.max(1) };
    let most = constants.sessions_max.max(1);
    let time = |fanout| own::tree(size, fanout, most, constants);
    let trees = (FANOUT_LEAST..=FANOUT_MOST).map(|fanout| (time(fanout), depth(size.nodes, fanout), fanout));
    // The range is not empty.
    let (tree_time, tree_depth, tree_fanout) = trees.min().unwrap_or((Duration::MAX, 1, FANOUT_MOST));
    let tree_batch = least_batch(most, |batch| own::tree(size, tree_fanout, batch, constants));
    let predicted = predict(size, tree_fanout, tree_batch, constants);
    let flat_time = own::flat(size, most, constants);
    if flat_time <= tree_time {
        let batch = least_batch(most, |batch| own::flat(size, batch, constants));
        Recommendation {
            shape: Shape::Flat,
            fanout: size.nodes,
            depth: 1,
            tree_fanout,
            batch,
            time: flat_time,
            predicted,
        }
    } else {
        let (fanout, depth, batch) = (tree_fanout, tree_depth, tree_batch);
        Recommendation { shape: Shape::Tree, fanout, depth, tree_fanout, batch, time: tree_time, predicted }
    }
}

/// The least of `1..=most` sessions at a time that takes no longer than `most`. More sessions never take
/// longer.
fn least_batch(most: u32, time: impl Fn(u32) -> Duration) -> u32 {
    let best = time(most);
    let (mut too_few, mut enough) = (0, most);
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if time(middle) <= best { enough = middle } else { too_few = middle }
    }
    enough
}

/// All ways to start, with this fan-out and batch where one has them.
pub fn predict(size: Size, fanout: u32, batch: u32, constants: &Constants) -> Vec<Prediction> {
    let most = constants.sessions_max.max(1);
    let row = |name, published, own| Prediction { name, published, own };
    vec![
        row("linear", published::linear(size, constants), own::linear(size, most, constants)),
        row("flat (SMP-aware)", published::smp_aware(size, constants), own::flat(size, most, constants)),
        row(
            "tree (multi-level)",
            published::multi_level(size, fanout, constants),
            own::tree(size, fanout, u32::MAX, constants),
        ),
        row(
            "tree, batched",
            published::batched(size, fanout, batch, constants),
            own::tree(size, fanout, batch, constants),
        ),
    ]
}

/// d: how many levels a tree of `nodes` agents has below the launcher, if each place has at most
/// `fanout` children. No level is begun before the one above it is full. A fan-out below 1 counts as 1.
pub fn depth(nodes: u32, fanout: u32) -> u32 {
    u32::try_from(levels(nodes, fanout).count()).unwrap_or(u32::MAX)
}

/// How many agents are on each level, from the first below the launcher on.
fn levels(nodes: u32, fanout: u32) -> impl Iterator<Item = u32> {
    let fanout = fanout.max(1);
    let (mut left, mut width) = (nodes, 1u32);
    std::iter::from_fn(move || {
        width = width.saturating_mul(fanout).min(left);
        left -= width;
        (width > 0).then_some(width)
    })
}

/// So many times, one after another.
fn times(time: Duration, count: u64) -> Duration {
    nanoseconds(time.as_nanos().saturating_mul(u128::from(count)))
}

/// That work, shared evenly.
fn shared(work: Duration, by: u32) -> Duration {
    nanoseconds(work.as_nanos() / u128::from(by.max(1)))
}

fn nanoseconds(count: u128) -> Duration {
    u64::try_from(count).map_or(Duration::from_nanos(u64::MAX), Duration::from_nanos)
}
