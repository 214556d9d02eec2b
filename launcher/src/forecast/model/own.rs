//! The model of scela-run.
//!
//! It differs from the published equations in these points: each *agent* registers once, ranks do not; remote shells
//! overlap; a launching side uses all of its cores; no rank starts before all agents have joined, because the plan may
//! change until then; all nodes then start their ranks concurrently.
//!
//! **One level.** A launching side opens j remote shells, at most b at a time, on m cores. A single remote shell takes
//! Tssh of a core, then Tc in which the launching side only waits: Tssh + Tc in all. The following are lower bounds for
//! any order. If a new remote shell is opened whenever one has finished, the time is close to the largest of them:
//!
//! - *cores*: all processor time is spent, and the last remote shell then waits: j Tssh / m + Tc;
//! - *batch*: b remote shells at a time, each as long as a single one: ⌈j / b⌉ (Tssh + Tc);
//! - *joins*: one thread receives hellos: j Trecv;
//! - *shared cores*, if all hosts are on one machine with s cores: the n remote shells of the whole level with both of
//!   their sides, and the last one's wait without its login: n (Tssh + Tlogin + Trecv) / s + Tc − Tlogin.
//!
//! The last hello is received after the last remote shell has started its agent, so
//!
//! ```text
//! S(j, n) = max(j Tssh / m + Tc,  ⌈j / b⌉ (Tssh + Tc),  j Trecv,
//!               n (Tssh + Tlogin + Trecv) / s + Tc − Tlogin) + Trecv
//! ```
//!
//! It follows that a batch above j (Tssh + Tc) / (j Tssh / m + Tc), for many children m (1 + Tc / Tssh), gains nothing:
//! the cores are busy then.
//!
//! **A start.** With w₁, …, w_d agents on the levels of the tree and w₀ = 1:
//!
//! ```text
//! T_linear = S(P, P) + R(1)
//! T_flat   = S(N, N) + R(c)
//! T_tree   = Σ S(⌈w_l / w_(l-1)⌉, w_l) + R(c)
//! R(c)     = max(c Tclient, P Tclient / s)
//! ```
//!
//! An agent opens its remote shells as soon as it has joined, so the sum is over the longest path from the root. No
//! time decreases with more nodes, more ranks or larger constants, and none increases with a larger batch.

use std::time::Duration;

use super::{Constants, Size, levels, shared, times};

/// Returns T_linear: the launcher opens a remote shell for each rank, `batch` at a time.
pub fn linear(size: Size, batch: u32, constants: &Constants) -> Duration {
    level(size.ranks(), size.ranks(), batch, constants) + ranks(size, 1, constants)
}

/// Returns T_flat: the launcher opens a remote shell for each node, `batch` at a time.
pub fn flat(size: Size, batch: u32, constants: &Constants) -> Duration {
    let nodes = u64::from(size.nodes);
    level(nodes, nodes, batch, constants) + ranks(size, size.ppn, constants)
}

/// Returns T_tree: the launcher and each agent open remote shells to at most `fanout` nodes, `batch` at a time.
pub fn tree(size: Size, fanout: u32, batch: u32, constants: &Constants) -> Duration {
    let mut above = 1;
    let levels = levels(size.nodes, fanout).map(|width| {
        let children = width.div_ceil(above);
        above = width;
        level(u64::from(children), u64::from(width), batch, constants)
    });
    levels.fold(Duration::ZERO, Duration::saturating_add).saturating_add(ranks(size, size.ppn, constants))
}

/// Returns S: the time that a launching side takes for its `children`, with `all` remote shells on its level.
fn level(children: u64, all: u64, batch: u32, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, tlogin, cores, shared_cores, .. } = *constants;
    let by_cores = shared(times(tssh, children), cores) + tc;
    let by_batch = times(tssh + tc, children.div_ceil(u64::from(batch.max(1))));
    let by_joins = times(trecv, children);
    let by_shared_cores = shared_cores
        .map_or(Duration::ZERO, |cores| shared(times(tssh + tlogin + trecv, all), cores) + tc.saturating_sub(tlogin));
    by_cores.max(by_batch).max(by_joins).max(by_shared_cores) + trecv
}

/// Returns R: the time to start all ranks if each agent starts `each` of them.
fn ranks(size: Size, each: u32, constants: &Constants) -> Duration {
    let Constants { tclient, shared_cores, .. } = *constants;
    let all = shared_cores.map_or(Duration::ZERO, |cores| shared(times(tclient, size.ranks()), cores));
    times(tclient, u64::from(each)).max(all)
}
