//! `scela-run`: starts MPI programs over a tree of node-level agents.
//!
//! From what was typed to the exit code, a chapter each: [`cli`] (what was typed) → [`plan`] (what
//! it means on this machine) → [`session`] (bootstraps the agents, drives the root of the tree,
//! carries input and output) → [`report`] (what the user reads) and [`exit`] (the code).

#![forbid(unsafe_code)]

pub mod cli;
pub mod demo;
pub mod exit;
pub mod hosts;
pub mod mpi;
pub mod plan;
pub mod report;
pub mod session;
pub mod simulate;
pub mod stats;

mod bootstrap;
mod elf;
mod input;
mod library;
mod output;
mod pattern;
