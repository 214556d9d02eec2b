//! The environment of tests of whole programs.
//!
//! [`scela`] returns the builder of a run of `scela-run`. [`Run::run`] runs it to its end and returns its [`Outcome`];
//! [`Run::spawn`] returns a [`Running`] session that the test can act on. No process outlives its test: each run has a
//! label and a mark in its environment by which all its processes are found ([`World`]). [`Running::finish`] fails if
//! one of them is left, and dropping a run kills them. A failed assertion about a run prints the run's output.
//!
//! A test always waits for a condition, with a deadline: [`eventually`].

mod arguments;
mod binary;
mod capture;
mod cluster;
mod greeting;
pub mod lines;
mod mock;
mod outcome;
mod pool;
mod process;
mod random;
mod run;
mod running;
mod skip;
mod slurm;
mod small_disk;
mod sockets;
mod stalling;
mod strangers;
mod terminal;
mod tree;
mod waiting;
mod world;

pub use arguments::is_wanted;
pub use binary::scela_run;
pub use capture::Capture;
pub use cluster::{Broken, Builder as ClusterBuilder, Cluster, Host};
pub use greeting::Greeting;
pub use mock::{Manager, Mock};
pub use outcome::Outcome;
pub use pool::Pool;
pub use process::Process;
pub use random::Random;
pub use run::{CACHES, MPICH_OVER_TCP, Program, Run, quote, scela, sh};
pub use running::Running;
pub use skip::skip;
pub use slurm::{Allocation, Slurm};
pub use small_disk::SmallDisk;
pub use sockets::{LinkSocket, TcpSocket, link_sockets, tcp_sockets};
pub use stalling::{Call, StallingFiles};
pub use strangers::{Strangers, Target};
pub use terminal::Terminal;
pub use tree::Tree;
pub use waiting::{before, event_timeout, eventually};
pub use world::World;
