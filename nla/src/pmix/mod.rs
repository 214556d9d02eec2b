//! PMIx: ranks of Open MPI 5 and others find their launcher by it.
//!
//! libpmix runs in a process of its own, `scela-pmix`, one on each node of a session that needs it: a defect in it ends that
//! process and not the agent. The agent starts it and talks to it over a socket pair ([`message`]). [`helper`] is that process;
//! it only translates. [`relay`] decides at the agent: it turns what ranks ask by PMIx into the requests of PMI that the
//! core knows, so that fences, aborts and lookups of both travel through the tree in the same way.

pub mod helper;
pub mod message;
mod query;
mod registration;
pub mod relay;

pub use helper::run_helper;
