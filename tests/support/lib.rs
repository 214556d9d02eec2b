//! The world that tests of whole programs live in, in words.
//!
//! [`scela`] begins the description of a run of `scela-run`; [`Run::run`] carries it out and hands
//! back its [`Outcome`], [`Run::spawn`] hands out a [`Running`] one to interfere with. Whatever a
//! test does, nothing outlives it: each run has a label and a mark in its environment by which all
//! its processes are found ([`World`]), [`Running::finish`] fails if any is left, and dropping a
//! run ends them. What a run said is printed whenever an assertion about it fails.
//!
//! Waiting is always for a condition, with a deadline: [`eventually`].

mod binary;
mod capture;
mod cluster;
pub mod lines;
mod mock;
mod outcome;
mod process;
mod run;
mod running;
mod skip;
mod slurm;
mod sockets;
mod terminal;
mod tree;
mod waiting;
mod world;

pub use binary::scela_run;
pub use capture::Capture;
pub use cluster::{Broken, Builder as ClusterBuilder, Cluster, Host};
pub use mock::{Manager, Mock};
pub use outcome::Outcome;
pub use process::Process;
pub use run::{CACHES, MPICH_OVER_TCP, Program, Run, scela, sh};
pub use running::Running;
pub use skip::skip;
pub use slurm::{Allocation, Slurm};
pub use sockets::{TcpSocket, tcp_sockets};
pub use terminal::Terminal;
pub use tree::Tree;
pub use waiting::{eventually, patience};
pub use world::World;
