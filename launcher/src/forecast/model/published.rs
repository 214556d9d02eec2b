//! The published equations: A. Gupta, G. Zheng, L. V. Kalé, "A Multi-level Scalable Startup for Parallel
//! Applications" (ROSS 2011), whose system started 16,384 ranks in 25 s.
//!
//! P ranks, N nodes with c ranks each, k children of each launching side, d levels, b remote shells in a batch. Each
//! rank registers with the side that launched it. A launching side opens its remote shells one after another on one
//! core. All of them then wait for Tc together.

use std::time::Duration;

use super::{Constants, Size, depth, shared, times};

/// Returns T_linear = Tc + P (Tssh + Trecv): a remote shell for each rank.
pub fn linear(size: Size, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, .. } = *constants;
    tc + times(tssh + trecv, size.ranks())
}

/// Returns T_smp = Tc + (c - 1) Tclient + N (Tssh + c Trecv): a remote shell for each node, which starts its own
/// ranks.
pub fn smp_aware(size: Size, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, tclient, .. } = *constants;
    let (nodes, ppn) = (u64::from(size.nodes), u64::from(size.ppn));
    tc + times(tclient, ppn.saturating_sub(1)) + times(tssh + times(trecv, ppn), nodes)
}

/// Returns T_d-level = d (Tc + k (Tssh + Trecv)) + k (c - 1) (Trecv + Tclient): agents start agents.
pub fn multi_level(size: Size, fanout: u32, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, tclient, .. } = *constants;
    let (levels, children) = (u64::from(depth(size.nodes, fanout)), u64::from(fanout));
    let others = u64::from(size.ppn).saturating_sub(1);
    times(tc + times(tssh + trecv, children), levels) + times(trecv + tclient, children.saturating_mul(others))
}

/// Returns T_batched d-level = (d - 1) (Tc + k (Tssh + Trecv)) + (k / b) Tc + k (Tssh + c Trecv): the same with b
/// remote shells at a time. A batch is at most the number of children.
pub fn batched(size: Size, fanout: u32, batch: u32, constants: &Constants) -> Duration {
    let Constants { tc, tssh, trecv, .. } = *constants;
    let (above, children) = (u64::from(depth(size.nodes, fanout)).saturating_sub(1), u64::from(fanout));
    times(tc + times(tssh + trecv, children), above)
        + shared(times(tc, children), batch.clamp(1, fanout.max(1)))
        + times(tssh + times(trecv, u64::from(size.ppn)), children)
}
