//! Runs both ends of the tree: tokio tasks turn outside events into inputs of a core, and its actions into effects.
//!
//! [`run_agent`] runs a whole agent process. [`RootDriver`] runs the root: the launcher asks it for one [`RootEvent`]
//! at a time. Each of the two actors selects into one closed event enum and handles it in one function (`agent.rs`,
//! `root.rs`). They share the links to children (`children.rs`), the bounded queues (`queue.rs`) and the order of the
//! end (`shutdown.rs`).

mod accelerators;
mod agent;
mod binder;
mod board;
mod children;
mod collector;
mod guarding;
mod input;
mod joiners;
mod leftovers;
mod node_devices;
mod node_topology;
mod output;
mod pmix;
mod port;
mod process;
mod profile;
mod pulse;
mod queue;
mod recorder;
mod rejoin;
mod root;
mod serving;
mod shutdown;
mod spawners;
mod spawning;
mod stage_source;
mod stage_writer;
mod staging;
mod stall;
mod startup;
mod survivors;
mod table;
mod topology_file;
mod trace;
mod turns;
mod uplink;

pub use accelerators::{Accelerators, RankDevices};
pub use binder::binding_failed;
pub use node_topology::this_node;
pub use output::{LastWriter, PIPE_BYTES, Quote, STREAM_HEADER_BYTES, split_stream_message};
pub use pmix::PMIX_ARGUMENT;
pub use process::{run_agent, run_standing_agent};
pub use root::{OutputSink, RootDriver, RootEvent, RootPort, RootSetup};
pub use spawners::{ORDERS_MAX, spawner_threads};
pub use stage_source::StageSource;
