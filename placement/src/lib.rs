//! Placement: which rank runs where, decided by what ranks send to each other and by the network between hosts.
//!
//! All of it are values and pure functions: no files, no clock, no threads. Readers take any `BufRead`.

pub mod limits;
pub mod matrix;
pub mod topology;
