//! The accelerators and other devices of a pool's node, as its list of hosts or an option says, and the jobs that have them. Pure.

use std::collections::BTreeMap;

use nla::core::{CpuSet, Device, FoundDevices, Resource, Resources, offered, share};

use super::message::JobNumber;

/// The devices of a node. There are none if nothing is said about it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Devices {
    all: Vec<Device>,
    /// The job that has each of them.
    holders: Vec<Option<JobNumber>>,
}

impl Devices {
    /// Returns the devices that a node offers. No job has them.
    pub fn of(gres: &Resources) -> Self {
        let all = offered(Some(gres), &FoundDevices::default(), None);
        Self { holders: vec![None; all.len()], all }
    }

    /// Returns whether there are none.
    pub fn are_none(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns how many ranks get what they ask for if no job has any.
    pub fn room(&self, requests: &Resources) -> u32 {
        resources(&self.all).ranks_of(requests).unwrap_or(u32::MAX)
    }

    /// Returns how many ranks the free devices can serve.
    pub fn free_room(&self, requests: &Resources) -> u32 {
        resources(&self.held_by(None)).ranks_of(requests).unwrap_or(u32::MAX)
    }

    /// Assigns devices for `ranks` ranks, or for as many as the free devices allow.
    pub fn take(&mut self, job: JobNumber, requests: &Resources, ranks: u32) {
        let places: Vec<usize> = (0..self.all.len()).filter(|at| self.holders[*at].is_none()).collect();
        let ranks = ranks.min(self.free_room(requests)).min(self.all.len() as u32);
        let near = vec![CpuSet::default(); ranks as usize];
        // There is room for them.
        for at in share(&self.held_by(None), &near, requests).unwrap_or_default().concat() {
            self.holders[places[at]] = Some(job);
        }
    }

    /// Takes the devices of a job back.
    pub fn give_back(&mut self, job: JobNumber) {
        self.holders.iter_mut().filter(|holder| **holder == Some(job)).for_each(|holder| *holder = None);
    }

    /// Returns the devices of a job, with their numbers.
    pub fn of_job(&self, job: JobNumber) -> Resources {
        resources(&self.held_by(Some(job)))
    }

    fn held_by(&self, job: Option<JobNumber>) -> Vec<Device> {
        self.all
            .iter()
            .zip(&self.holders)
            .filter(|(_, holder)| **holder == job)
            .map(|(device, _)| device.clone())
            .collect()
    }
}

/// Returns devices as resources with numbers.
fn resources(devices: &[Device]) -> Resources {
    let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for device in devices {
        numbers.entry(device.label()).or_default().extend(device.id.parse::<u32>());
    }
    let mut all = Resources::NONE;
    // They are as many as the list of hosts had.
    let _ = numbers.iter().try_for_each(|(label, numbers)| all.push(Resource::with_numbers(label, numbers)?));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Resources {
        text.parse().unwrap()
    }

    #[test]
    fn no_two_jobs_have_the_same_device() {
        let mut devices = Devices::of(&list("gpu:a100:2,gpu:v100:2,fpga:1"));
        assert_eq!((devices.room(&list("gpu")), devices.free_room(&list("gpu:2"))), (4, 2));
        devices.take(1, &list("gpu"), 1);
        devices.take(2, &list("gpu:v100"), 1);
        devices.take(3, &list("gpu,fpga"), 1);
        assert_eq!(devices.of_job(1).to_string(), "gpu:a100:1@0");
        assert_eq!(devices.of_job(2).to_string(), "gpu:v100:1@2");
        assert_eq!(devices.of_job(3).to_string(), "fpga:1@0,gpu:a100:1@1");
        assert_eq!([list("gpu"), list("gpu:a100"), list("fpga")].map(|one| devices.free_room(&one)), [1, 0, 0]);
        assert_eq!(devices.room(&list("gpu")), 4);
        devices.give_back(1);
        devices.take(4, &list("gpu"), 9);
        assert_eq!(devices.of_job(4).to_string(), "gpu:a100:1@0,gpu:v100:1@3", "as many as there are");
        assert!(devices.of_job(1).is_empty());
    }

    #[test]
    fn a_node_without_devices_has_no_room() {
        let mut none = Devices::of(&Resources::NONE);
        none.take(1, &list("gpu"), 1);
        assert!(none.are_none() && none.of_job(1).is_empty());
        assert_eq!((none.room(&list("gpu")), none.free_room(&list("gpu"))), (0, 0));
    }

    #[test]
    fn numbers_of_the_list_of_hosts_are_kept() {
        let mut devices = Devices::of(&list("gpu:2@3+5"));
        devices.take(1, &list("gpu"), 1);
        devices.take(2, &list("gpu"), 1);
        assert_eq!([1, 2].map(|job| devices.of_job(job).to_string()), ["gpu:1@3", "gpu:1@5"]);
    }
}
