//! The decisions of bootstrap, as values.
//!
//! Nothing here opens a socket, reads a clock, starts a process or waits. Time is an argument, a
//! [`Duration`](std::time::Duration) since the process began to start agents; randomness comes from a seed. Inputs are
//! facts that have happened, actions are commands to the tasks around this module. tests/tidy.rs enforces this.

pub(super) mod arrival_times;
pub(super) mod assembly;
pub(super) mod deadline;
pub(super) mod failure;
pub(super) mod node_choice;
pub(super) mod slurm;
pub(super) mod window;
