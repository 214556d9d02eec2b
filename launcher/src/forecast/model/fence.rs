//! Predicts how long the fence takes that brings every rank's entry to every node, and chooses the fan-out of links by it.
//!
//! Of S bytes of entries an agent receives each byte once and sends it to k children: k S bytes leave by one network
//! interface, whatever the depth. Pieces are forwarded as they arrive, so a level adds the time of a piece, not that of S.
//! Many children delay large boards, many levels delay small ones. `scela-run --simulate` computes the same with the real
//! messages; this model is for the fan-out of each start, where there is no time to simulate.

use std::time::Duration;

use nla::core::limits::{BOARD_BYTES_MAX, PIECE_BYTES};
use sim::{BoardCosts, Costs};

use super::{FANOUT_LEAST, FANOUT_MOST, Size, depth};

/// The bytes that a board has for each rank: the business card of an MPI library, of about 100 bytes, its key, its lengths,
/// and its slots in the index.
pub const ENTRY_BYTES: u64 = 140;

/// A fan-out whose fence takes at most this much longer than that of the best one is as good.
const TOLERANCE: Duration = Duration::from_millis(2);

/// Some programs put far more than a business card. The fan-out must do for a board that is so many times as large as
/// expected, too.
const LARGE_TIMES: u64 = 128;

/// For such a board, a fence may take this much longer than with the best fan-out, or twice as long, whichever is more.
const LARGE_TOLERANCE: Duration = Duration::from_millis(100);

/// The share of a long board that packing leaves. Boards of MPICH, Intel MPI and Open MPI on one host leave 0.17 to 0.31
/// (`docs/design/013-pieces.md`); more, where hosts have little in common.
pub const PACKED_SHARE: f64 = 0.5;

/// The network between nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Network {
    /// From one node to another.
    pub latency: Duration,
    /// The bytes per second that a node can send.
    pub bandwidth: u64,
}

impl Network {
    /// The network for which a fan-out is chosen: Ethernet of 1 Gbit/s, over which TCP runs on many clusters whose MPI uses
    /// a faster network. On a faster one the choice matters less.
    pub const ASSUMED: Self = Self { latency: Duration::from_micros(50), bandwidth: 125_000_000 };
}

/// The fan-out of the tree of links, and the reason for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkFanout {
    /// The most children of an agent.
    pub fanout: u32,
    /// The bytes of the expected board.
    pub board_bytes: u64,
    /// The predicted time of a fence that brings the board to all nodes.
    pub fence: Duration,
    /// The same with [`FANOUT_MOST`].
    pub fence_at_most: Duration,
}

/// The costs and savings per byte of a long board that travels packed, in picoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Packing {
    /// To pack it at the root, once, and to unpack it at an agent.
    pub costs_ps: u64,
    /// The time on one link that it does not take.
    pub saves_ps: u64,
}

impl Packing {
    /// Whether packing saves more than it costs.
    pub fn pays(self) -> bool {
        self.saves_ps > self.costs_ps
    }
}

/// Predicts what packing costs and saves.
pub fn packing(board: &BoardCosts) -> Packing {
    let link_ps = 1_000_000_000_000 / Network::ASSUMED.bandwidth + board.byte_sent_ps + board.byte_received_ps;
    Packing {
        costs_ps: board.byte_packed_ps + board.byte_unpacked_ps,
        saves_ps: ((1.0 - PACKED_SHARE) * link_ps as f64) as u64,
    }
}

/// Returns the fan-out for a job: the largest, from [`FANOUT_LEAST`] to [`FANOUT_MOST`], whose fence takes about as long as
/// that of the best, and not much longer if the board is far larger than expected. With fewer levels, the loss of an agent
/// concerns fewer others, and output has fewer hops.
pub fn recommend(size: Size, board: &BoardCosts) -> LinkFanout {
    let fanouts = FANOUT_LEAST..=FANOUT_MOST;
    let time = |bytes, fanout| fence(size.nodes, size.ranks(), bytes, fanout, Network::ASSUMED, board);
    let least = |bytes| fanouts.clone().map(|fanout| time(bytes, fanout)).min().unwrap_or_default();
    let board_bytes = size.ranks().saturating_mul(ENTRY_BYTES);
    let large_bytes = board_bytes.saturating_mul(LARGE_TIMES).min(BOARD_BYTES_MAX as u64);
    let (best, best_large) = (least(board_bytes), least(large_bytes));
    let (enough, enough_large) = (best + TOLERANCE.max(best / 10), best_large + LARGE_TOLERANCE.max(best_large));
    let will_do = |fanout: &u32| time(board_bytes, *fanout) <= enough && time(large_bytes, *fanout) <= enough_large;
    // Few children suit large boards. If no fan-out suits both boards, the smallest is chosen.
    let fanout = fanouts.clone().rev().find(will_do).unwrap_or(FANOUT_LEAST);
    LinkFanout { fanout, board_bytes, fence: time(board_bytes, fanout), fence_at_most: time(board_bytes, FANOUT_MOST) }
}

/// Predicts the time from the last rank's arrival to the last rank's release.
pub fn fence(nodes: u32, ranks: u64, bytes: u64, fanout: u32, network: Network, board: &BoardCosts) -> Duration {
    let (costs, bytes) = (Costs::default(), bytes as f64);
    let ns = |ps: u64| ps as f64 / 1000.0;
    let latency = network.latency.as_nanos() as f64;
    let wire = 1e9 / network.bandwidth.max(1) as f64;
    let levels = f64::from(depth(nodes, fanout));
    let children = f64::from(fanout.min(nodes));
    let piece = PIECE_BYTES.map_or(bytes, |piece| bytes.min(f64::from(piece.get())));
    let pieces = (bytes / piece.max(1.0)).ceil().max(1.0);
    let (received, sent) = (ns(board.byte_received_ps), ns(board.byte_sent_ps));
    let collected = ns(board.byte_hashed_ps + board.byte_copied_ps);
    // One piece: at one agent, on its way to one child.
    let arrival = costs.message_received as f64 + piece * (received + collected);
    let sending = costs.message_sent as f64 + piece * sent;
    let forwarding = if levels > 1.0 { arrival + children * sending } else { arrival };
    let slowest = forwarding.max(children * sending).max(children * piece * wire);
    let down = levels * (children * sending.max(piece * wire) + latency + arrival) + (pieces - 1.0) * slowest;
    // Entries go up once. The launcher receives all of them, each of its children a part.
    let part = bytes / children;
    let up = levels * (latency + costs.message_received as f64 + costs.message_sent as f64)
        + bytes * received.max(wire / children)
        + part * (received + sent);
    let root = ranks as f64 * board.entry_merged as f64 + bytes * ns(board.byte_hashed_ps);
    Duration::from_nanos((up + root + down) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fanout(nodes: u32, ppn: u32) -> u32 {
        recommend(Size { nodes, ppn }, &BoardCosts::default()).fanout
    }

    #[test]
    fn small_jobs_have_few_levels_and_large_boards_few_children() {
        assert_eq!(fanout(1, 1), FANOUT_MOST);
        assert_eq!(fanout(16, 1), FANOUT_MOST);
        let large = fanout(16_384, 64);
        assert!((2..=4).contains(&large), "{large}");
        let fanouts: Vec<_> = [1, 4, 16, 64, 256].map(|ppn| fanout(256, ppn)).into();
        assert!(fanouts.is_sorted_by(|less, more| less >= more), "more ranks, fewer children: {fanouts:?}");
    }

    /// The job of `docs/results/links.md`: the default must not be far from the best there.
    #[test]
    fn a_board_that_is_far_larger_than_expected_takes_at_most_twice_as_long_as_with_the_best_fan_out() {
        let size = Size { nodes: 64, ppn: 4 };
        let slow = Network { bandwidth: 12_000_000, ..Network::ASSUMED };
        let costs = BoardCosts::default();
        let time = |fanout| fence(size.nodes, size.ranks(), 5_120_000, fanout, slow, &costs);
        let best = (FANOUT_LEAST..=FANOUT_MOST).map(time).min().unwrap();
        let fanout = fanout(size.nodes, size.ppn);
        assert!(time(fanout) <= best * 2, "fan-out {fanout}: {:?}, best {best:?}", time(fanout));
    }

    #[test]
    fn boards_are_packed_if_that_saves_more_than_it_costs() {
        let usual = packing(&BoardCosts::default());
        assert_eq!(usual, Packing { costs_ps: 1500, saves_ps: 4837 });
        assert!(usual.pays());
        let slow = packing(&BoardCosts { byte_packed_ps: 4_700, ..BoardCosts::default() });
        assert!(!slow.pays(), "{slow:?}");
    }

    #[test]
    fn the_recommended_fence_is_about_the_fastest() {
        for (nodes, ppn) in [(2, 1), (64, 8), (64, 128), (1024, 64), (16_384, 64)] {
            let size = Size { nodes, ppn };
            let LinkFanout { fanout, board_bytes, fence: took, fence_at_most } =
                recommend(size, &BoardCosts::default());
            let costs = BoardCosts::default();
            for other in 2..=FANOUT_MOST {
                let its = fence(nodes, size.ranks(), board_bytes, other, Network::ASSUMED, &costs);
                assert!(took <= its + TOLERANCE.max(its / 8), "{nodes}x{ppn}: {fanout} {took:?}, {other} {its:?}");
            }
            assert!(took <= fence_at_most);
        }
    }

    #[test]
    fn the_model_agrees_with_the_simulation() {
        let network = Network { latency: Duration::from_micros(25), bandwidth: 1_500_000_000 };
        for (nodes, ppn, fanout) in [(16, 16, 4), (64, 8, 2), (64, 8, 8), (64, 64, 4), (256, 64, 4), (1024, 64, 2)] {
            let spec = sim::Spec {
                nodes,
                ppn,
                fanout,
                value_min: 64,
                value_max: 64,
                pattern: sim::Pattern::Fences,
                latency: Some(network.latency),
                bandwidth: Some(network.bandwidth),
                ..sim::Spec::default()
            };
            let simulated = &sim::run(&spec).unwrap().fences[0];
            let board = BoardCosts::default();
            let ranks = u64::from(nodes * ppn);
            let predicted = fence(nodes, ranks, simulated.bytes, fanout, network, &board).as_nanos() as f64;
            let ratio = predicted / simulated.releasing as f64;
            assert!((0.6..1.5).contains(&ratio), "{nodes}x{ppn}, fan-out {fanout}: {ratio:.2} of {simulated:?}");
        }
    }
}
