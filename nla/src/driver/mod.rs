//! Turns the world into inputs for the core and the core's actions into the world.
//!
//! [`run_agent`] is a whole agent process. The launcher, the root of the same tree, is driven by
//! its own crate and shares the links ([`Link`], [`connect`], [`accept`]).

mod agent;
mod board;
mod boot;
mod channel;
mod clock;
mod greeting;
mod input;
mod link;
mod output;
mod port;
mod process;
mod reach;
mod recorder;
mod serving;
mod sessions;
mod startup;
mod stream;
mod table;

pub use boot::{Starter, StationReport, agent_id, opening_words, own_program, step_words};
pub use clock::Clock;
pub use greeting::{Accepted, Gatekeeper, GreetingError, accept, connect, let_in};
pub use link::{Link, LinkEvent, Meter, Receipt, StreamSink};
pub use output::{STREAM_HEADER_BYTES, split_stream_message};
pub use process::run_agent;
pub use reach::{Door, open as open_door};
