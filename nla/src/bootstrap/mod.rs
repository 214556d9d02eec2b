//! Starts agents on their nodes and joins them into the tree.
//!
//! A **target** is one agent to be started, numbered from 1 in the order of the plan's nodes; target 0 is the launcher.
//! A target is not an agent number: a target that fails gets no agent, and the numbers of agents, which are positions
//! in the tree, are given to the targets that are left.
//!
//! The life of one agent, with the file that knows the step:
//!
//! 1. The launcher, or an agent that starts others, decides which agent to start next (`decide/schedule.rs`) and opens a
//!    remote shell, starts a step of a resource manager, or forks (`starter.rs`, `attempt.rs`, `shell.rs`, `step.rs`).
//! 2. The script at the other end finds this program, or takes it in, and becomes it (`script.rs`, `program.rs`).
//! 3. The agent reads its order with the session's key from standard input, and calls back to the process that started
//!    it or answers on standard output (`protocol.rs`, `agent.rs`, `agent_channel.rs`, `callback.rs`). A remote shell
//!    that is not needed any more is closed.
//! 4. The launcher waits until each target has reported or has failed, leaves out nodes that failed, and gives out
//!    the positions in the tree (`root.rs`; `decide/assembly.rs`, `decide/node_choice.rs`).
//! 5. The agent connects to its parent (`agent.rs`), or makes its remote shell the link (`channel_links.rs`,
//!    `starter.rs`). From there on the [driver](crate::driver) runs it.
//!
//! All decisions are values in `decide/`, without sockets, clocks, threads or processes. The other files carry them
//! out. What a failure *means* is decided in `decide/ssh.rs` and `decide/slurm.rs`; what the user reads about it is the
//! launcher's. This module builds on [`crate::link`] and never on [`crate::driver`].

mod agent;
mod agent_channel;
mod attempt;
mod callback;
mod channel_links;
mod decide;
#[doc(hidden)]
pub mod fuzzing;
mod processes;
mod program;
mod protocol;
mod root;
mod script;
mod shell;
mod shell_channel;
mod standing;
mod starter;
mod step;

pub(crate) use agent::{ChildLinks, JoinOutcome, Joined, OwnProcess, join, join_and_stand_by, with_order};
pub(crate) use agent_channel::report_failure;
pub use decide::arrival_times::{ArrivalTimes, TargetTimes};
pub use decide::failure::{StartFailure, StartPhase};
pub use decide::node_choice::NodeChoice;
pub(crate) use processes::{Processes, Started};
pub use program::own_program;
pub use protocol::{
    Below, BootCommand, BootOrder, BootReport, HostAt, Joining, Links, MARKER, Method, Place, RemoteProgram, Sent,
    StartTimes, TargetReport,
};
pub use root::{Bootstrap, Launch, NotAssembled, PlannedTree, RemoteTargets, assemble};
pub use script::agent_id;
pub use shell::opening_words;
pub use standing::{SessionAhead, StandingAgent};
pub use starter::Keepers;
pub(crate) use starter::Starter;
pub use step::step_words;
