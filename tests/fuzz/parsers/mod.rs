//! The checks of all parsers: each takes any bytes, and panics if a property does not hold.
//!
//! `fuzz/` runs them under libFuzzer, and the test target `fuzz` over the kept corpus and mutations of it. A check never
//! only parses: what is accepted is written and parsed again, and results stay within their bounds.

mod allocations;
mod bindings;
mod boards;
mod boot;
mod command_lines;
mod fault_histories;
mod hello;
mod host_lists;
mod hosts_files;
mod journals;
mod lanes;
mod mappings;
mod matrices;
mod messages;
mod models;
mod patterns;
mod pieces;
mod pmi1;
mod pmi2;
mod pmi_world;
mod pmix;
mod pools;
mod profiles;
mod recordings;
mod shell_channel;
mod spawns;
mod ssh;
mod staging;
mod steps;
mod topologies;

/// A parser's check, and the folder of its corpus below `fuzz/corpus`.
#[derive(Clone, Copy)]
pub struct Target {
    /// The name of the target and of its folder.
    pub name: &'static str,
    /// Checks any bytes.
    pub check: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "allocations", check: allocations::check },
    Target { name: "bindings", check: bindings::check },
    Target { name: "boards", check: boards::check },
    Target { name: "boot", check: boot::check },
    Target { name: "command_lines", check: command_lines::check },
    Target { name: "config_files", check: command_lines::check_config_file },
    Target { name: "fault_histories", check: fault_histories::check },
    Target { name: "hello", check: hello::check },
    Target { name: "host_lists", check: host_lists::check },
    Target { name: "hosts_files", check: hosts_files::check },
    Target { name: "journals", check: journals::check },
    Target { name: "lanes", check: lanes::check },
    Target { name: "mappings", check: mappings::check },
    Target { name: "matrices", check: matrices::check },
    Target { name: "messages", check: messages::check },
    Target { name: "models", check: models::check },
    Target { name: "patterns", check: patterns::check },
    Target { name: "pieces", check: pieces::check },
    Target { name: "pmi1", check: pmi1::check },
    Target { name: "pmi2", check: pmi2::check },
    Target { name: "pmix", check: pmix::check },
    Target { name: "pools", check: pools::check },
    Target { name: "profiles", check: profiles::check },
    Target { name: "recordings", check: recordings::check },
    Target { name: "shell_channel", check: shell_channel::check },
    Target { name: "spawns", check: spawns::check },
    Target { name: "ssh", check: ssh::check },
    Target { name: "staging", check: staging::check },
    Target { name: "steps", check: steps::check },
    Target { name: "topologies", check: topologies::check },
];

/// Returns the target of this name.
///
/// # Panics
///
/// If there is none.
pub fn target(name: &str) -> Target {
    let target = TARGETS.iter().find(|target| target.name == name);
    *target.expect("the target is in TARGETS")
}

/// Splits `data` at the first byte of it, as a number: the tests of how bytes are split depend only on the input.
fn split(data: &[u8]) -> (&[u8], &[u8]) {
    let at = data.first().map_or(0, |&first| usize::from(first) % (data.len() + 1));
    data.split_at(at)
}

/// Checks a text that a user reads: one line, without control characters.
#[track_caller]
fn check_shown(text: &str) {
    assert!(!text.contains(char::is_control), "a control character is shown: {text:?}");
}
