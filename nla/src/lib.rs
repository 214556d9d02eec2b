//! The node-level agent (NLA), as a library.
//!
//! - [`core`] decides. It has no sockets, no clock and no threads: it takes inputs and returns actions.
//! - [`wire`] encodes and decodes the core's messages, authenticates peers, and encrypts links.
//! - [`sys`] contains all unsafe code: starting processes, signals, descriptors, shared memory, the guardian.
//! - [`link`] has the connections between agents: streams, the handshake, and the listener.
//! - [`bootstrap`] starts agents on nodes and connects them to the tree.
//! - [`pmix`] serves ranks that speak PMIx: a process of its own for libpmix, and the agent's end of it.
//! - [`keeper`] keeps nodes in a pool, and starts agents there for its jobs.
//! - [`driver`] runs the cores: it turns events into inputs and carries out actions.
//! - [`figures`] formats times and sizes for people.
//! - [`tasks`] starts tasks and threads, and reports their panics.
//!
//! Dependencies: `driver -> bootstrap -> link -> wire -> core`; each module may use all modules to its right. `keeper` uses what
//! `bootstrap` may use. Of the project's crates, `core` uses only `pmi`. `link`, `bootstrap`, `keeper` and `driver` also use `sys`, which depends on no
//! other module. `tests/tidy` enforces these directions.

pub mod bootstrap;
pub mod core;
pub mod driver;
pub mod figures;
pub mod keeper;
pub mod link;
pub mod pmix;
pub mod sys;
pub mod tasks;
pub mod wire;
