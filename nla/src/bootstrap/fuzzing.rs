//! The private parsers of bootstrap, for the checks in `tests/fuzz` only.

use super::decide::failure::StartFailure;
use super::decide::{slurm, ssh};
pub use super::shell_channel::Unread;

/// Parses a line of `srun` about nodes. Returns their list, and why they have no agent.
pub fn step_line(line: &str) -> Option<(&str, StartFailure)> {
    slurm::step_line(line).map(|about| (about.nodes, about.failure))
}

/// Judges a step that ended, by its exit code and last lines.
pub fn judge_step(code: Option<i32>, lines: &[String]) -> StartFailure {
    slurm::judge_step(code, lines)
}

/// Returns whether `name` is in a list as Slurm writes it.
pub fn is_in_list(name: &str, list: &str) -> bool {
    slurm::is_in_list(name, list)
}

/// Judges a remote shell that ended, by its exit code and its last words.
pub fn judge_shell(code: Option<i32>, said: &str) -> StartFailure {
    ssh::judge(code, said)
}
