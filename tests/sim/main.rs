//! Whole trees of the real cores in simulation: seeds, bounds, exact counts.
//!
//! `SCELA_SEEDS` says how many seeds are tried, `SCELA_SEED` tries that one and tells about it.

mod bounds;
mod counts;
mod mutations;
mod same;
mod seeds;
