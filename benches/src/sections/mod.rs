//! The sections: one measurement of every launcher each, with its table.

mod agents;
mod caches;
mod exchange;
mod fence;
mod get;
mod launch;
mod measure;
mod memory;
mod notes;
mod output;
mod private_memory;
mod quiet;
mod scale;
mod trace;

use crate::bench::Bench;
use crate::error::BenchError;
use crate::run::Program;
use crate::suite::Section;

/// Runs the section and prints its results.
///
/// # Errors
/// If results cannot be printed. A launcher that fails is a result.
pub fn run(bench: &mut Bench, section: Section) -> Result<(), BenchError> {
    match section {
        Section::Empty => launch::run(bench, section, Program::Empty),
        Section::Hello => launch::run(bench, section, Program::Hello),
        Section::OneToTwo => exchange::run(bench, section, Program::OneToTwo),
        Section::OneToAll => exchange::run(bench, section, Program::OneToAll),
        Section::Fence => fence::run(bench, section),
        Section::Output => output::run(bench, section),
        Section::Memory => memory::run(bench, section),
        Section::Quiet => quiet::run(bench, section),
        Section::Scale => scale::run(bench, section),
        Section::Trace => trace::run(bench, section),
        Section::Get => get::run(bench, section),
        Section::PrivateMemory => private_memory::run(bench, section),
        Section::CachedOneToTwo => caches::exchange::run(bench, section, Program::OneToTwo),
        Section::CachedOneToAll => caches::exchange::run(bench, section, Program::OneToAll),
        Section::CachedMemory => caches::memory::run(bench, section),
        Section::Simulated => caches::simulated::run(bench, section),
    }
}
