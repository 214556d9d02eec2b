//! Values of the options about communication profiles.

use std::ffi::OsStr;
use std::path::PathBuf;

use super::text::shown;
use super::values::{Parsed, own_file};
use crate::refusal::Refusal;

/// Parses the file of `--profile-comm`.
pub(super) fn profile_comm(value: &OsStr) -> Parsed<PathBuf> {
    own_file(value, "a communication profile", "--profile-comm program.comm")
}

/// Parses `--profile-comm-collectives`: whether collective operations are counted.
pub(super) fn profile_collectives(value: &OsStr) -> Parsed<bool> {
    match value.to_str() {
        Some("schedule") => Ok(true),
        Some("none") => Ok(false),
        _ => Err(Refusal::new(format!("'{}' is not known", shown(value)), "write 'schedule' or 'none'")),
    }
}
