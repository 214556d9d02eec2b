//! The nodes that a session may use: typed host lists, allocations of resource managers, placement of ranks.

pub mod allocation;
pub mod fault_history;
pub mod hosts;
pub mod manager;
pub(crate) mod node;
pub mod node_list;
pub mod placement;
pub(crate) mod private_directory;
pub mod system;
