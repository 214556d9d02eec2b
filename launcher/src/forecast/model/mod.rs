//! Predicts the time that a start takes: by the published equations of multi-level startup, and by a model of
//! `scela-run`. All predictions are pure functions of numbers; only [`store`] reads and writes a file, with measured
//! constants.
//!
//! A **remote shell** is one run of the bootstrap's command, an `ssh` for example. It takes processor time at the
//! launching side ([`Constants::tssh`]), then time in which that side waits ([`Constants::tc`]). The started agent or
//! rank then registers ([`Constants::trecv`]). Both models have the same constants, so their times are comparable.
//!
//! The models do not cover resource managers that start all agents with one command, hosts that are slower than others,
//! and retries.

mod calibration;
pub mod fence;
pub mod own;
pub mod published;
pub mod store;

#[cfg(test)]
mod tests;

use std::time::Duration;

use sim::BoardCosts;

use crate::plan::remote_launch::{Recommended, Shape};

pub use self::calibration::{GroupTime, Samples, calibrate};

/// The smallest fan-out that is considered.
pub const FANOUT_LEAST: u32 = 2;

/// The largest fan-out that is considered. With more children, the extra messages that an agent receives and forwards
/// for the rest of the session cost more than the start gains.
pub const FANOUT_MOST: u32 = 32;

/// The largest time of a constant.
pub const CONSTANT_MAX: Duration = Duration::from_secs(3600);

/// The largest cost of a byte, in picoseconds, or of an entry, in nanoseconds.
pub const BOARD_COST_MAX: u64 = 1_000_000;

/// The largest number of cores, and of remote shells at a time, of constants.
pub const COUNT_MAX: u32 = 1 << 20;

/// The times of the machines and the network. The default is typical of a cluster and not measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Constants {
    /// Tc: the wait of a remote shell after [`tssh`](Self::tssh) until the agent's first message: the network, and the
    /// login at the remote side. Waits of concurrent remote shells overlap.
    pub tc: Duration,
    /// Tssh: the processor time of a remote shell at the launching side, mainly cryptography.
    pub tssh: Duration,
    /// Trecv: the time to receive one registration: of a rank in the published equations, of an agent (a hello on its
    /// link) in the model of scela-run. Registrations are received one after another.
    pub trecv: Duration,
    /// Tclient: the time to start one rank. An agent starts its ranks one after another.
    pub tclient: Duration,
    /// Tlogin: the processor time of a remote shell at the remote side, a part of `tc`. It matters only if the hosts
    /// share cores. At most `tc`.
    pub tlogin: Duration,
    /// The cores for the remote shells of one launching side, which is scela-run's host or a node. At least 1.
    pub cores: u32,
    /// The number of cores that all hosts share, if they do, as hosts in namespaces of one machine. At least 1.
    pub shared_cores: Option<u32>,
    /// The most remote shells that one launching side may open at a time. At least 1.
    pub shells_max: u32,
    /// The costs of entries on their way through the tree. Each at most [`BOARD_COST_MAX`].
    pub board: BoardCosts,
    /// Whether the times were measured on these hosts.
    pub measured: bool,
}

impl Default for Constants {
    /// Returns typical times, **not measured**: OpenSSH with a key of Ed25519 between current servers of one network, a
    /// home directory that is mounted already, a start of a rank as in `docs/design/002-spawning.md`.
    fn default() -> Self {
        Self {
            tc: Duration::from_millis(180),
            tssh: Duration::from_millis(20),
            trecv: Duration::from_micros(300),
            tclient: Duration::from_micros(700),
            tlogin: Duration::from_millis(40),
            cores: 4,
            shared_cores: None,
            shells_max: 128,
            board: BoardCosts::default(),
            measured: false,
        }
    }
}

impl Constants {
    /// Returns the constants of a start on this machine alone, where an agent is a local process. The times to start
    /// that process are typical and not measured.
    #[must_use]
    pub fn local(&self, cores: u32) -> Self {
        let cores = cores.clamp(1, COUNT_MAX);
        let process = Duration::from_millis(1);
        Self { tc: 2 * process, tssh: process, tlogin: process, cores, shared_cores: Some(cores), ..self.clone() }
    }

    /// Returns whether all constants are within their bounds.
    pub fn is_valid(&self) -> bool {
        let Self { tc, tssh, trecv, tclient, tlogin, cores, shared_cores, shells_max, board, measured: _ } = self;
        let counts = [*cores, shared_cores.unwrap_or(1), *shells_max];
        [tc, tssh, trecv, tclient].into_iter().all(|time| *time <= CONSTANT_MAX)
            && tlogin <= tc
            && counts.into_iter().all(|count| (1..=COUNT_MAX).contains(&count))
            && board_fields(board).into_iter().all(|cost| cost <= BOARD_COST_MAX)
    }
}

/// Returns all costs.
fn board_fields(board: &BoardCosts) -> [u64; 7] {
    let BoardCosts {
        byte_received_ps,
        byte_sent_ps,
        byte_hashed_ps,
        byte_copied_ps,
        byte_packed_ps,
        byte_unpacked_ps,
        entry_merged,
    } = *board;
    [byte_received_ps, byte_sent_ps, byte_hashed_ps, byte_copied_ps, byte_packed_ps, byte_unpacked_ps, entry_merged]
}

/// The size of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// N: the number of nodes, each with an agent. At least 1.
    pub nodes: u32,
    /// c: the number of ranks on each node. At least 1.
    pub ppn: u32,
}

impl Size {
    /// Returns P, the number of ranks.
    pub fn ranks(self) -> u64 {
        u64::from(self.nodes) * u64::from(self.ppn)
    }
}

/// A launch strategy, and the time that it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prediction {
    /// The strategy's name.
    pub name: &'static str,
    /// The time by the published equation.
    pub published: Duration,
    /// The time by the model of scela-run.
    pub own: Duration,
}

/// The recommended options, and the predictions that they follow from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recommendation {
    /// `--launch`.
    pub shape: Shape,
    /// `--fanout`: k. For [`Shape::Flat`] the number of nodes, because all of them are the launcher's children.
    pub fanout: u32,
    /// d: the number of levels of agents below the launcher.
    pub depth: u32,
    /// k of the best tree; equal to [`fanout`](Self::fanout) if a tree is recommended.
    pub tree_fanout: u32,
    /// `--batch`: b, the smallest that takes no longer than [`Constants::shells_max`].
    pub batch: u32,
    /// The time of the recommended start, by the model of scela-run.
    pub time: Duration,
    /// The fan-out of the tree of links.
    pub links: fence::LinkFanout,
    /// Whether long boards travel packed.
    pub packing: fence::Packing,
    /// The predictions for all strategies. The last two have the fan-out and the batch of the best tree, also if flat
    /// is recommended.
    pub predicted: Vec<Prediction>,
}

impl From<&Recommendation> for Recommended {
    fn from(recommendation: &Recommendation) -> Self {
        let Recommendation { shape, tree_fanout, ref links, packing, .. } = *recommendation;
        Self { shape, tree_fanout, link_fanout: links.fanout, packs: packing.pays() }
    }
}

/// Returns the fastest start by the model of scela-run: flat, or a tree with a fan-out of [`FANOUT_LEAST`] to
/// [`FANOUT_MOST`]. Of equally fast starts it prefers flat, then fewer levels, then fewer children. A few nodes are
/// started flat: a second level pays only if the remote shells of the first keep its cores busy for longer than a
/// remote shell waits.
///
/// Treats zero nodes, or zero ranks per node, as one.
pub fn recommend(nodes: u32, ppn: u32, constants: &Constants) -> Recommendation {
    let size = Size { nodes: nodes.max(1), ppn: ppn.max(1) };
    let most = constants.shells_max.max(1);
    let time = |fanout| own::tree(size, fanout, most, constants);
    let trees = (FANOUT_LEAST..=FANOUT_MOST).map(|fanout| (time(fanout), depth(size.nodes, fanout), fanout));
    // The range of fan-outs is not empty, so the default is never used.
    let (tree_time, tree_depth, tree_fanout) = trees.min().unwrap_or((Duration::MAX, 1, FANOUT_MOST));
    let tree_batch = least_batch(most, |batch| own::tree(size, tree_fanout, batch, constants));
    let predicted = predict(size, tree_fanout, tree_batch, constants);
    let (links, packing) = (fence::recommend(size, &constants.board), fence::packing(&constants.board));
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
            links,
            packing,
            predicted,
        }
    } else {
        let (fanout, depth, batch) = (tree_fanout, tree_depth, tree_batch);
        Recommendation {
            shape: Shape::Tree,
            fanout,
            depth,
            tree_fanout,
            batch,
            time: tree_time,
            links,
            packing,
            predicted,
        }
    }
}

/// Returns the smallest batch of `1..=most` that takes no longer than `most`. A binary search, because a larger batch
/// never takes longer.
fn least_batch(most: u32, time: impl Fn(u32) -> Duration) -> u32 {
    let best = time(most);
    let (mut too_few, mut enough) = (0, most);
    while enough - too_few > 1 {
        let middle = too_few + (enough - too_few) / 2;
        if time(middle) <= best { enough = middle } else { too_few = middle }
    }
    enough
}

/// Predicts the times of all strategies. Those with a tree or a batch use this fan-out and this batch.
pub fn predict(size: Size, fanout: u32, batch: u32, constants: &Constants) -> Vec<Prediction> {
    let most = constants.shells_max.max(1);
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

/// Returns d, the number of levels below the launcher of a tree of `nodes` agents with at most `fanout` children each.
/// Levels are filled from the top. A fan-out of 0 counts as 1.
pub fn depth(nodes: u32, fanout: u32) -> u32 {
    u32::try_from(levels(nodes, fanout).count()).unwrap_or(u32::MAX)
}

/// Returns the number of agents on each level, from the first below the launcher on.
fn levels(nodes: u32, fanout: u32) -> impl Iterator<Item = u32> {
    let fanout = fanout.max(1);
    let (mut left, mut width) = (nodes, 1u32);
    std::iter::from_fn(move || {
        width = width.saturating_mul(fanout).min(left);
        left -= width;
        (width > 0).then_some(width)
    })
}

/// Returns the time of `count` operations, one after another.
fn times(time: Duration, count: u64) -> Duration {
    nanoseconds(time.as_nanos().saturating_mul(u128::from(count)))
}

/// Returns the time of work that `by` cores or parties share evenly.
fn shared(work: Duration, by: u32) -> Duration {
    nanoseconds(work.as_nanos() / u128::from(by.max(1)))
}

fn nanoseconds(count: u128) -> Duration {
    u64::try_from(count).map_or(Duration::from_nanos(u64::MAX), Duration::from_nanos)
}
