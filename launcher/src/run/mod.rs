//! Runs a session: its agents, streams, signals and reports.

pub(crate) mod assemble;
pub(crate) mod binding_text;
mod collect;
mod comm_profile;
pub mod demo;
mod end_report;
pub mod front;
mod host_wait;
pub(crate) mod input;
mod kill_wait;
mod last_lines;
mod low_limit_text;
mod milestones;
pub mod output;
mod progress;
pub(crate) mod rank_locations;
pub mod report;
mod report_file;
pub mod session;
pub(crate) mod signals;
mod staged_memory;
pub mod stats;
pub mod stderr;
mod survey_text;
pub(crate) mod suspension;
pub mod timing;
pub mod trace;
