//! Framing and tokens of both protocol versions.
//!
//! Nothing here depends on a command: [`LineBuffer`] turns reads into lines, [`fields`] finds `name=value` in a line, and
//! [`mod@frame`] has the frames of PMI-2.

pub mod byte_pairs;
pub mod byte_result;
pub mod byte_strings;
pub mod fields;
pub mod frame;
mod line;
pub(crate) mod numbered;

pub use line::{LineBuffer, LineTooLong};
