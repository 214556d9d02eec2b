//! The time that a start takes: predicted, measured and simulated.

pub mod batch;
pub mod board;
pub mod calibrate;
pub mod explain;
pub mod model;
pub mod simulate;
