//! How an agent gets onto a node and into the tree.
//!
//! A **target** is where an agent is to be started, numbered from 1 in the order of the plan's nodes;
//! the launcher is 0. Stations and agents are not the same: a target whose node fails gets no agent,
//! and the numbers of agents, which are places in the tree, are given to the targets that are left.

pub(crate) mod agent_channel;
pub(crate) mod agent_shell;
mod attempt;
mod callback;
mod decide;
mod processes;
mod program;
mod protocol;
mod root;
mod script;
mod shell;
mod shell_channel;
mod shell_links;
mod starter;
mod step;

pub use decide::arrival_times::ArrivalTimes;
pub use decide::failure::{StartFailure, StartPhase};
pub use decide::node_choice::NodeChoice;
pub use program::own_program;
pub use protocol::{
    Below, BootCommand, BootOrder, BootReport, HostAt, Links, MARKER, Method, NoMarker, RemoteProgram, Sent, marked,
};
pub use root::{Bootstrap, Launch, NotAssembled, PlannedTree, RemoteTargets, assemble};
pub use script::agent_id;
pub use shell::opening_words;
pub use starter::{Starter, TargetReport};
pub use step::step_words;
