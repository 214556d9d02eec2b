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
