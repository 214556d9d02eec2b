//! The decisions of bootstrap, as values.
//!
//! Nothing here opens a socket, reads a clock, starts a process or waits. Time is an argument, a
//! [`Duration`](std::time::Duration) since the session or the starter began; randomness comes from a seed. Inputs are
//! facts that have happened, actions are commands to the tasks around this module. tests/tidy enforces this.
//!
//! | file | decides |
//! |---|---|
//! | [`schedule`] | which agent is started next, when a start is tried again, who starts the targets below a failed one |
//! | [`start_limit`] | how many starts are under way at a time |
//! | [`deadline`] | how much of the remaining time each start may take |
//! | [`roster`] | what became of the tasks of a step, and whether the step is started again |
//! | [`conversation`] | what the reports of an agent mean to the process above it |
//! | [`relay`] | what an agent passes on, and when it closes its channel |
//! | [`pending_joins`] | which agents were ordered to join over their remote shells, and the meaning of their failures |
//! | [`assembly`] | which target gets which position in the tree |
//! | [`node_choice`] | which nodes replace those that failed |
//! | [`failure`], [`ssh`], [`slurm`] | what an exit code and last words mean |
//! | [`arrival_times`] | no decision: when agents reported and joined |

pub(super) mod arrival_times;
pub(super) mod assembly;
pub(super) mod conversation;
pub(super) mod deadline;
pub(super) mod failure;
pub(super) mod node_choice;
pub(super) mod pending_joins;
pub(super) mod relay;
pub(super) mod roster;
pub(super) mod schedule;
pub(super) mod slurm;
pub(super) mod ssh;
pub(super) mod start_limit;
