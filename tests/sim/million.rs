//! A million ranks: the time of the fence that brings all entries to all nodes.

use sim::{Costs, Pattern, Spec};

use crate::MEASURED;

/// A million ranks take about 20 s; without optimization, a sixteenth of them as long.
const NODES: u32 = if cfg!(debug_assertions) { 1024 } else { 16_384 };
const PPN: u32 = 64;

/// The costs are pinned, so that another calibration does not change the result: those of `docs/results/simulation.md`.
fn costs() -> Costs {
    Costs {
        latency: 25_000,
        bandwidth: 1_500_000_000,
        message_received: 13_000,
        message_sent: 9_000,
        board: MEASURED,
        local: 5_000,
        put: 7_000,
        arrival: 8_000,
        release: 4_000,
        ..Costs::default()
    }
}

/// The same as `scela-run --simulate 16384x64 --pattern fence --latency 25us --bandwidth 1.5G`. Before epochs travelled in
/// pieces, the fence took 3.9 s.
#[test]
fn the_fence_of_a_million_ranks_takes_at_most_half_a_second() {
    let spec = Spec {
        nodes: NODES,
        ppn: PPN,
        fanout: 2,
        value_min: 64,
        value_max: 64,
        pattern: Pattern::Fences,
        costs: costs(),
        ..Spec::default()
    };
    let report = sim::run(&spec).expect("a million ranks can be simulated");
    assert_eq!((report.ranks, report.outcome.as_str()), (NODES * PPN, "success"));
    let fence = &report.fences[0];
    assert!(fence.bytes > 90 * u64::from(report.ranks), "{fence:?}");
    assert!(fence.releasing <= 500_000_000, "{fence:?}");
}
