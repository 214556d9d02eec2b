//! Our own equations.
//!
//! What is different here. An *agent* registers, once, and not each rank. Sessions in flight overlap, and
//! a launching side uses all of its cores. No rank starts before all agents are there, since the plan may
//! change until then; all nodes then start their ranks side by side.
//!
//! **One level.** A launching side starts j sessions, at most b at a time, on m cores. A session takes
//! Tssh of a core, then Tc in which the side only waits, Tssh + Tc in all if it is alone. Whatever the
//! order, none of these can be undercut, and sessions that are started whenever one ends come near to the
//! greatest of them:
//!
//! - *cores*: all processor time has to be had, and the last session still waits: j Tssh / m + Tc;
//! - *places*: b sessions at a time, each as long as one alone: ⌈j / b⌉ (Tssh + Tc);
//! - *joins*: one thread takes in hellos: j Trecv;
//! - *shared cores*, where all hosts are on one machine with s cores: the n sessions of the whole level,
//!   with their far sides, and the last one's waiting without its login:
//!   n (Tssh + Tlogin + Trecv) / s + Tc − Tlogin.
//!
//! The last hello is taken in after the last session is there, so
//!
//! ```text
//! S(j, n) = max(j Tssh / m + Tc,  ⌈j / b⌉ (Tssh + Tc),  j Trecv,
//!               n (Tssh + Tlogin + Trecv) / s + Tc − Tlogin) + Trecv
//! ```
//!
//! It follows that a batch beyond j (Tssh + Tc) / (j Tssh / m + Tc), for many children m (1 + Tc / Tssh),
//! gains nothing: the cores are busy then.
//!
//! **A start.** With w₁, …, w_d agents on the levels of the tree and w₀ = 1,
//!
//! ```text
//! T_linear = S(P, P) + R(1)
//! T_flat   = S(N, N) + R(c)
//! T_tree   = Σ S(⌈w_l / w_(l-1)⌉, w_l) + R(c)
//! R(c)     = max(c Tclient, P Tclient / s)
//! ```
//!
//! An agent opens its sessions as soon as it has joined, so the sum is that of the longest way down.
//! Nothing here is less for more nodes, ranks or constants, nor more for a greater batch.

use std::time::Duration;

use super::{Constants, Size, levels, shared, times};

/// T_linear: the launcher opens a session for each rank, `batch` at a time.
pub fn linear(size: Size, batch: u32, constants: &Constants) -> Duration {
    level(size.ranks(), size.ranks(), batch, constants) + ranks(size, 1, constants)
}

/// T_flat: the launcher opens a session for each node, `batch` at a time.
pub fn flat(size: Size, batch: u32, constants: &Constants) -> Duration {
    let nodes = u64::from(size.nodes);
    level(nodes, nodes, batch, constants) + ranks(size, size.ppn, constants)
}

/// T_tree: the launcher and each agent open sessions for at most `fanout` nodes, `batch` at a time.
pub fn tree(size: Size, fanout: u32, batch: u32, constants: &Constants) -> Duration {
    let mut above = 1;
    let levels = levels(size.nodes, fanout).map(|width| {
        let children = width.div_ceil(above);
        above = width;
        level(u64::from(children), u64::from(width), batch, constants)
    });
    levels.fold(Duration::ZERO, Duration::saturating_add).saturating_add(ranks(size, size.ppn, constants))
}

/// S: how long a side with so many `children` takes for its sessions, of `all` on its level.
fn level(children: u64, all: u64, batch: u32, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, tlogin, cores, shared_cores, .. } = *constants;
    let by_cores = shared(times(tssh, children), cores) + tc;
    let by_places = times(tssh + tc, children.div_ceil(u64::from(batch.max(1))));
    let by_joins = times(trecv, children);
    let by_shared_cores = shared_cores
        .map_or(Duration::ZERO, |cores| shared(times(tssh + tlogin + trecv, all), cores) + tc.saturating_sub(tlogin));
    by_cores.max(by_places).max(by_joins).max(by_shared_cores) + trecv
}

/// R: how long nodes take to start all ranks, if each starter has so many.
fn ranks(size: Size, each: u32, constants: &Constants) -> Duration {
    let Constants { tclient, shared_cores, .. } = *constants;
    let all = shared_cores.map_or(Duration::ZERO, |cores| shared(times(tclient, size.ranks()), cores));
    times(tclient, u64::from(each)).max(all)
}
