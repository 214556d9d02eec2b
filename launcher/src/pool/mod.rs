//! Standing pools: launchers and agents that are used for one job after the other.
//!
//! A pool is a family of processes of one user:
//!
//! ```text
//! scela pool start --+-- controller --- fork server --+-- launcher + guardian + agent, standing by
//!    (exits)         |                                +-- launcher + guardian + agent, with a job
//!                    |                                      | line
//! scela-run --pool --+--------------------------------- client
//! ```
//!
//! - The **controller** accepts clients at a socket ([`directory`]) and decides which job starts when ([`schedule`]).
//! - The **fork server** is a process with one thread. It forks launchers without an exec ([`fork_server`]).
//! - A **launcher** that stands by has forked the guardian of one agent ([`standby`]). With a job it is what `scela-run` is
//!   without a pool. After the job it stands by again, if it can.
//! - A **client** is `scela-run --pool`. It passes its streams, directory, environment and limits on, and waits ([`client`]). `scela pool map` is a client with many jobs ([`map`]).
//!
//! If the controller dies, the fork server and all launchers notice the end of their connections: launchers end their jobs, and
//! clients exit with 252. [`message`] has what they say to each other, `handover` what the messages about a job mean.

pub mod absences;
pub mod attach;
mod changes;
mod choice;
pub mod client;
pub mod commands;
pub mod controller;
pub mod devices;
pub mod directory;
pub mod fleet;
mod followed;
pub mod fork_server;
mod handover;
mod live;
pub mod map;
pub mod message;
pub mod nodes;
pub mod schedule;
mod silence;
pub mod standby;
pub mod start;
mod states;
mod status;
mod succession;
pub mod waits;
mod watch;
