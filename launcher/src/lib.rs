//! `scela-run`: starts MPI programs over a tree of node-level agents.
//!
//! From what was typed to the exit code, a chapter each: [`cli`] (what was typed) → [`field`]
//! (which nodes there are) → [`plan`] (what it means on them) → [`session`] (bootstraps the agents, drives the
//! root of the tree, carries input and output) → [`report`] (what the user reads) and [`exit`] (the code).

#![forbid(unsafe_code)]

pub mod allocation;
pub mod calibrate;
pub mod cli;
pub mod demo;
pub mod environment;
pub mod exit;
pub mod expedition;
pub mod explain;
pub mod field;
pub mod hosts;
pub mod model;
pub mod mpi;
pub mod placement;
pub mod plan;
pub mod report;
pub mod session;
pub mod simulate;
pub mod stats;
pub mod surroundings;
pub mod timing;

mod bootstrap;
mod elf;
mod input;
mod library;
mod muster;
mod node;
mod output;
mod pattern;
mod progress;
mod signals;
mod whereabouts;
