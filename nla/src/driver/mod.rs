//! Turns the world into inputs for the core and the core's actions into the world.
//!
//! [`run_agent`] is a whole agent process. The launcher, the root of the same tree, is driven by
//! its own crate and shares the links ([`Link`], [`connect`], [`accept`]).

mod agent;
mod board;
mod children;
mod input;
mod output;
mod port;
mod process;
mod queue;
mod recorder;
mod root;
mod serving;
mod shutdown;
mod startup;
mod table;

pub use output::{STREAM_HEADER_BYTES, split_stream_message};
pub use process::run_agent;
pub use root::{OutputSink, RootDriver, RootEvent, RootPort, RootSetup};
