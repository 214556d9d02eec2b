//! Framing and tokens that the protocol versions share.
//!
//! Nothing here knows a command: [`LineBuffer`] turns reads into lines, [`fields`] finds `name=value`
//! in a line.

pub mod byte_pairs;
pub mod byte_strings;
pub mod fields;
mod line;

pub use line::{LineBuffer, LineTooLong};
