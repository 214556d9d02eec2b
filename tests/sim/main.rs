//! Simulations of whole trees of the real cores: random scenarios, bounds, exact counts.
//!
//! `SCELA_SEEDS` sets the number of seeds to run. `SCELA_SEED` runs one seed and prints its report.

mod bounds;
mod counts;
mod million;
mod mutations;
mod reproducible;
mod seeds;
mod survival;

use sim::BoardCosts;

/// The costs in `docs/results/simulation.md`, with the machine on which `--calibrate` measured them.
const MEASURED: BoardCosts = BoardCosts {
    byte_received_ps: 830,
    byte_sent_ps: 845,
    byte_hashed_ps: 53,
    byte_copied_ps: 130,
    byte_packed_ps: 1200,
    byte_unpacked_ps: 300,
    entry_merged: 100,
};
