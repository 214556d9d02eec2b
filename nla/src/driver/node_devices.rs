//! Finds the graphics processors of this node in /dev, /proc and /sys.
//!
//! NVIDIA's processors are device files, AMD's are nodes of the driver's topology (ROCm), Intel's are render nodes. A node
//! with those of several vendors counts as one of the first vendor. As with [`this_node`](super::this_node), files have
//! bounds, and what cannot be read is left out.

use std::fs;
use std::path::Path;

use super::node_topology::text;
use crate::core::limits::DEVICES_MAX;
use crate::core::{FoundDevice, FoundDevices, Vendor};

/// Entries of a directory that are looked at.
const ENTRIES_MAX: usize = 65_536;
/// Intel's number as a vendor of PCI devices.
const INTEL: &str = "0x8086";

/// Finds the graphics processors below `root`, which is `/` on a real node.
pub(super) fn node_devices(root: &Path) -> FoundDevices {
    for vendor in Vendor::ALL {
        let mut devices = match vendor {
            Vendor::Nvidia => nvidia(root),
            Vendor::Amd => amd(root),
            Vendor::Intel => intel(root),
        };
        devices.truncate(DEVICES_MAX as usize);
        if !devices.is_empty() {
            return FoundDevices { vendor: Some(vendor), devices };
        }
    }
    FoundDevices::default()
}

/// Finds `/dev/nvidia<N>`, in the order of their PCI addresses: CUDA numbers them so if it is asked to.
fn nvidia(root: &Path) -> Vec<FoundDevice> {
    let gpus = root.join("proc/driver/nvidia/gpus");
    let known: Vec<(u32, String, Option<String>)> = names(&gpus)
        .into_iter()
        .filter_map(|address| {
            let information = text(&gpus.join(&address).join("information"))?;
            let field = |name: &str| {
                let mut fields = information.lines().filter_map(|line| line.split_once(':'));
                fields.find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
            };
            let uuid = field("GPU UUID").filter(|uuid| uuid.starts_with("GPU-") && !uuid.contains('?'));
            Some((field("Device Minor")?.parse().ok()?, address, uuid.map(str::to_owned)))
        })
        .collect();
    let mut devices: Vec<(Option<String>, u32, Option<String>)> = numbered(&root.join("dev"), "nvidia")
        .into_iter()
        .map(|minor| match known.iter().find(|(of, ..)| *of == minor) {
            Some((_, address, uuid)) => (Some(address.to_ascii_lowercase()), minor, uuid.clone()),
            None => (None, minor, None),
        })
        .collect();
    devices.sort();
    let found = |(address, _, uuid): (Option<String>, u32, Option<String>)| FoundDevice {
        uuid,
        numa: address.and_then(|address| numa_of_pci(root, &address)),
    };
    devices.into_iter().map(found).collect()
}

/// Finds the nodes of ROCm's topology that are graphics processors, in the order of their numbers, as ROCm numbers them.
fn amd(root: &Path) -> Vec<FoundDevice> {
    let nodes = root.join("sys/class/kfd/kfd/topology/nodes");
    let of = |node: u32| {
        let node = nodes.join(node.to_string());
        // Processors that are no graphics processors have 0.
        let is_gpu = text(&node.join("gpu_id")).is_some_and(|id| !matches!(id.trim(), "" | "0"));
        let properties = text(&node.join("properties")).filter(|_| is_gpu)?;
        let property = |name: &str| -> Option<u64> {
            let mut lines = properties.lines().filter_map(|line| line.split_once(' '));
            lines.find(|(known, _)| *known == name)?.1.trim().parse().ok()
        };
        let location = property("location_id").unwrap_or_default();
        let (bus, device, function) = (location >> 8 & 0xff, location >> 3 & 0x1f, location & 7);
        let domain = property("domain").unwrap_or_default();
        let address = format!("{domain:04x}:{bus:02x}:{device:02x}.{function}");
        Some(FoundDevice { uuid: None, numa: numa_of_pci(root, &address) })
    };
    numbered(&nodes, "").into_iter().filter_map(of).collect()
}

/// Finds `/dev/dri/renderD<N>` of Intel's.
fn intel(root: &Path) -> Vec<FoundDevice> {
    let of = |number: u32| {
        let device = root.join(format!("sys/class/drm/renderD{number}/device"));
        let is_intel = text(&device.join("vendor")).is_some_and(|vendor| vendor.trim() == INTEL);
        is_intel.then(|| FoundDevice { uuid: None, numa: numa_of(&device) })
    };
    numbered(&root.join("dev/dri"), "renderD").into_iter().filter_map(of).collect()
}

/// The NUMA node of the PCI device with this address.
fn numa_of_pci(root: &Path, address: &str) -> Option<u32> {
    numa_of(&root.join("sys/bus/pci/devices").join(address))
}

/// The NUMA node of a device. The kernel writes -1 if it is unknown.
fn numa_of(device: &Path) -> Option<u32> {
    text(&device.join("numa_node"))?.trim().parse().ok()
}

/// The numbers after `prefix` in the names of a directory, in ascending order.
fn numbered(directory: &Path, prefix: &str) -> Vec<u32> {
    let is_number = |word: &&str| !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = |name: &String| name.strip_prefix(prefix).filter(is_number)?.parse().ok();
    let mut numbers: Vec<u32> = names(directory).iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers
}

/// The names in a directory; none if it cannot be read.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().take(ENTRIES_MAX);
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

#[cfg(test)]
mod tests;
