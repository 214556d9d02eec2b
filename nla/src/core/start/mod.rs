//! Starting agents on other nodes: what can go wrong there, and how many sessions to open at a time.
//!
//! A **station** is where an agent is to be started, numbered from 1 in the order of the plan's nodes;
//! the launcher is 0. Stations and agents are not the same: a station whose node fails gets no agent,
//! and the numbers of agents, which are places in the tree, are given to the stations that are left.

mod failure;
mod step;
mod window;

pub use failure::{StartFailure, StartPhase, judge};
pub use step::{StepWord, is_in_list, judge_step, step_word};
pub use window::Window;
