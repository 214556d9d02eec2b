//! `scela-run`: starts MPI programs over a tree of node-level agents.
//!
//! From the command line to the exit code, a chapter each:
//!
//! - [`cli`]: what was typed. It parses words into values of the other chapters.
//! - [`cluster`]: the nodes that the session may use, and the placement of ranks on them.
//! - [`plan`]: what the request means here: agents, environment, MPI library, and how to reach the nodes.
//! - [`comm`]: shows what ranks send to each other.
//! - [`run`]: the session at work: agents, streams, signals, timing, reports.
//! - [`forecast`]: beside a run: predicts, explains, calibrates and simulates.
//! - [`pool`]: standing pools: launchers and agents that stand by for jobs.
//! - [`program`]: the roles of the program's processes.
//! - [`exit`]: the exit codes, in one place.
//! - [`suggest`]: "did you mean ...?".
//! - [`refusal`]: why scela-run does not start what was asked for.
//! - [`colour`]: colours for texts on a terminal.
//!
//! A module depends only on modules before it in this order; `tests/tidy` checks this:
//!
//! ```text
//! exit, suggest, refusal, colour, cluster  <-  plan  <-  comm  <-  run  <-  forecast  <-  cli  <-  pool  <-  program
//! ```
//!
//! So the types that describe a request belong to the chapter that they are an idea of (a host list to `cluster`,
//! the request to `plan`, a simulation to `forecast`), and `cli` only produces them.

#![forbid(unsafe_code)]

pub mod cli;
pub mod cluster;
pub mod colour;
pub mod comm;
pub mod exit;
pub mod forecast;
pub mod plan;
pub mod pool;
pub mod program;
pub mod refusal;
pub mod run;
pub mod suggest;
