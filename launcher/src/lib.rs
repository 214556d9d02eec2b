//! `scela-run`: starts MPI programs over a tree of node-level agents.
//!
//! From what was typed to the exit code, a chapter each: [`cli`] (what was typed) → [`field`]
//! (which nodes there are) → [`plan`] (what it means on them) → [`session`] (bootstraps the agents, drives the
//! root of the tree, carries input and output) → [`report`] (what the user reads) and [`exit`] (the code).

#![forbid(unsafe_code)]

pub mod cli;
pub mod cluster;
pub mod forecast;
pub mod plan;
pub mod run;
