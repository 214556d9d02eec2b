//! Placement: which rank runs where, decided by what ranks send to each other and by the network between hosts.
//!
//! All of it are values and pure functions: no files, no clock, no threads. Readers take any `BufRead`.

pub mod batch;
pub mod exposure;
pub mod faults;
pub mod graph;
pub mod limits;
pub mod mapping;
pub mod matrix;
pub mod patterns;
pub mod random;
pub mod scotch;
pub mod simgrid;
pub mod topology;
