//! Accelerators and other devices of a node, and which of them each rank gets.
//!
//! A host offers [`Resources`], and each rank asks for some. [`offered`] lists a node's devices, from what the hosts file
//! says and what the agent has found, and [`share`] shares them out among the node's ranks. All agents of a node compute
//! the same shares.

mod devices;
mod resource;
mod sharing;

pub use devices::{Device, FoundDevice, FoundDevices, GPU, Vendor, listed, offered, variables};
pub use resource::{Resource, ResourceError, Resources};
pub use sharing::{DeviceRemedy, Holding, LackOfDevices, TooFew, share};

use pmi::Ranks;
use serde::{Deserialize, Serialize};

/// The devices of a session's ranks. The default gives none.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AcceleratorPlan {
    /// The devices that each rank gets.
    pub requests: Resources,
    /// The devices that the hosts file lists for the node of these ranks. For other ranks, the agent looks for devices itself.
    pub offers: Vec<(Ranks, Resources)>,
}

#[cfg(test)]
mod properties;
