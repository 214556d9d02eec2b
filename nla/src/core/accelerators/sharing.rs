//! Shares the devices of a node out among its ranks.

use pmi::{Rank, Ranks};

use serde::{Deserialize, Serialize};

use super::devices::Device;
use super::resource::{Resource, Resources};
use crate::core::binding::CpuSet;
use crate::core::words::deserialize_one_line;

/// The devices of a node with one name and type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holding {
    /// Their name and type, as in `gpu:a100`.
    pub label: String,
    /// Their number.
    pub count: u32,
    /// How many are taken.
    pub taken: u32,
    /// The local ranks that have them.
    pub holders: Vec<u32>,
}

/// A rank cannot get what it asks for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TooFew {
    /// The rank, by its number among those of its node.
    pub local_rank: u32,
    /// The devices that it needs.
    pub wanted: Resource,
    /// The devices of its node.
    pub holdings: Vec<Holding>,
}

/// A remedy for a lack of devices. The launcher words it, since only the launcher knows which file declares the hosts.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum DeviceRemedy {
    /// Declare the devices of the host.
    Declare,
    /// Declare the types of its devices, which agents do not find out.
    DeclareTypes,
    /// Ask for fewer devices, or declare hosts that have more.
    OtherHosts,
    /// Fewer ranks on the host, or fewer devices for each.
    Fewer,
}

/// A lack of devices for a rank, in words, and what may help.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct LackOfDevices {
    /// The rank, its needs, and the devices of the host.
    #[serde(deserialize_with = "deserialize_one_line")]
    pub text: String,
    /// The remedy to suggest.
    pub remedy: DeviceRemedy,
}

impl TooFew {
    /// Describes it, with the rank of each local rank.
    pub fn describe(&self, rank_of: impl Fn(u32) -> Rank) -> LackOfDevices {
        let Self { local_rank, wanted, holdings } = self;
        let is_meant = |holding: &&Holding| match wanted.kind() {
            Some(_) => holding.label == wanted.label(),
            None => holding.label.split(':').next() == Some(wanted.name()),
        };
        let meant: Vec<&Holding> = holdings.iter().filter(is_meant).collect();
        let (has, remedy) = if holdings.is_empty() {
            ("no device was found on the host".to_owned(), DeviceRemedy::Declare)
        } else if meant.iter().any(|holding| holding.taken > 0) {
            let free: Vec<String> = meant.into_iter().map(|holding| holding.free_text(&rank_of)).collect();
            (free.join(", "), DeviceRemedy::Fewer)
        } else {
            let all: Vec<String> =
                holdings.iter().map(|Holding { label, count, .. }| format!("{label}:{count}")).collect();
            let is_of_unknown_type = holdings.iter().any(|holding| holding.label == wanted.name());
            let remedy = match wanted.kind() {
                Some(_) if is_of_unknown_type => DeviceRemedy::DeclareTypes,
                _ => DeviceRemedy::OtherHosts,
            };
            (format!("the host has {}", all.join(", ")), remedy)
        };
        let plural = if wanted.kind().is_none() && wanted.count() > 1 { "s" } else { "" };
        let rank = rank_of(*local_rank);
        let text = format!("rank {rank} needs {} {}{plural}, and {has}", wanted.count(), wanted.label());
        LackOfDevices { text, remedy }
    }
}

impl Holding {
    /// Describes how many devices are free, and which ranks have the others.
    fn free_text(&self, rank_of: impl Fn(u32) -> Rank) -> String {
        let Self { label, count, taken, holders } = self;
        let free = match count - taken {
            0 => format!("none of the host's {label}:{count} is free"),
            1 => format!("1 of the host's {label}:{count} is free"),
            free => format!("{free} of the host's {label}:{count} are free"),
        };
        let holders: Ranks = holders.iter().map(|local| rank_of(*local)).collect();
        match holders.len() {
            0 => free,
            1 => format!("{free}: rank {holders} has {taken}"),
            _ => format!("{free}: ranks {holders} have {taken}"),
        }
    }
}

/// Shares devices out: returns the devices of each local rank, as ascending indices into `devices`.
///
/// `near` has the NUMA nodes of each local rank's seat; an empty set if they are unknown. No two ranks get the same device.
/// Ranks get devices near to them first, and leave those near to others as long as there are further ones. Requests with a
/// type are served before those without.
///
/// # Errors
///
/// There are too few devices for the first rank that gets less than it asks for.
pub fn share(devices: &[Device], near: &[CpuSet], requests: &Resources) -> Result<Vec<Vec<usize>>, TooFew> {
    if requests.is_empty() {
        return Ok(vec![Vec::new(); near.len()]);
    }
    // Each rank takes a device at least, so one of these cannot get any.
    let near = &near[..near.len().min(devices.len() + 1)];
    let mut owners: Vec<Option<u32>> = vec![None; devices.len()];
    let (typed, untyped): (Vec<&Resource>, Vec<&Resource>) = requests.iter().partition(|one| one.kind().is_some());
    for request in typed.into_iter().chain(untyped) {
        let is_meant = |device: &Device| {
            device.name == request.name() && request.kind().is_none_or(|kind| device.kind.as_deref() == Some(kind))
        };
        let mut missing = vec![request.count(); near.len()];
        for takes_all in [false, true] {
            for ((local, near), missing) in (0..).zip(near).zip(&mut missing) {
                for (device, owner) in devices.iter().zip(&mut owners) {
                    let is_near = device.numa.is_some_and(|numa| near.contains(numa));
                    if *missing > 0 && owner.is_none() && is_meant(device) && (is_near || takes_all) {
                        *owner = Some(local);
                        *missing -= 1;
                    }
                }
                if takes_all && *missing > 0 {
                    let holdings = holdings(devices, &owners, local);
                    return Err(TooFew { local_rank: local, wanted: request.clone(), holdings });
                }
            }
        }
    }
    let mut shares = vec![Vec::new(); near.len()];
    for (at, owner) in owners.iter().enumerate() {
        if let Some(share) = owner.and_then(|owner| shares.get_mut(owner as usize)) {
            share.push(at);
        }
    }
    Ok(shares)
}

/// Lists devices by name and type. The devices of the rank `but` count as free: that rank does not start.
fn holdings(devices: &[Device], owners: &[Option<u32>], but: u32) -> Vec<Holding> {
    let mut all: Vec<Holding> = Vec::new();
    for (device, owner) in devices.iter().zip(owners) {
        let label = device.label();
        let at = all.iter().position(|known| known.label == label).unwrap_or(all.len());
        if at == all.len() {
            all.push(Holding { label, count: 0, taken: 0, holders: Vec::new() });
        }
        all[at].count += 1;
        if let Some(owner) = owner.filter(|owner| *owner != but) {
            all[at].taken += 1;
            all[at].holders.push(owner);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(name: &str, kind: &str, at: u32, numa: Option<u32>) -> Device {
        let kind = Some(kind.to_owned()).filter(|kind| !kind.is_empty());
        Device { name: name.to_owned(), kind, id: at.to_string(), numa }
    }

    fn near(nodes: &[&str]) -> Vec<CpuSet> {
        nodes.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn shared(devices: &[Device], nodes: &[&str], requests: &str) -> Result<Vec<Vec<usize>>, LackOfDevices> {
        let shares = share(devices, &near(nodes), &requests.parse().unwrap());
        shares.map_err(|error| error.describe(|local| Rank(local + 10)))
    }

    #[test]
    fn ranks_get_the_nearest_devices() {
        let gpus: Vec<Device> = (0..4).map(|at| device("gpu", "", at, Some(at / 2))).collect();
        assert_eq!(shared(&gpus, &["1", "0"], "gpu:1"), Ok(vec![vec![2], vec![0]]));
        assert_eq!(shared(&gpus, &["1", "0"], "gpu:2"), Ok(vec![vec![2, 3], vec![0, 1]]));
        assert_eq!(shared(&gpus, &["", ""], "gpu:1"), Ok(vec![vec![0], vec![1]]), "not bound");
        // The third rank of node 0 takes a far device, and not the near one of the last rank.
        assert_eq!(shared(&gpus, &["0", "0", "0", "1"], "gpu:1"), Ok(vec![vec![0], vec![1], vec![3], vec![2]]));
    }

    #[test]
    fn requests_with_a_type_come_first() {
        let devices = [device("gpu", "a100", 0, None), device("gpu", "v100", 1, None), device("fpga", "x", 0, None)];
        assert_eq!(shared(&devices, &[""], "gpu:1,gpu:a100:1"), Ok(vec![vec![0, 1]]));
        assert_eq!(shared(&devices, &[""], "fpga"), Ok(vec![vec![2]]));
    }

    #[test]
    fn too_few_devices_say_who_has_them() {
        let devices = [device("gpu", "v100", 0, None), device("gpu", "v100", 1, None), device("fpga", "x", 0, None)];
        let check = |devices: &[Device], ranks: usize, requests, text: &str, remedy| {
            let text = text.to_owned();
            assert_eq!(shared(devices, &vec![""; ranks], requests), Err(LackOfDevices { text, remedy }));
        };
        let (fewer, more) = (DeviceRemedy::Fewer, DeviceRemedy::OtherHosts);
        let text = "rank 12 needs 1 gpu:v100, and none of the host's gpu:v100:2 is free: ranks 10-11 have 2";
        check(&devices, 3, "gpu:v100:1", text, fewer);
        let three: Vec<Device> = (0..3).map(|at| device("gpu", "", at, None)).collect();
        let text = "rank 11 needs 2 gpus, and 1 of the host's gpu:3 is free: rank 10 has 2";
        check(&three, 2, "gpu:2", text, fewer);
        let both = [devices.as_slice(), &[device("gpu", "a100", 2, None)]].concat();
        let text = "rank 11 needs 2 gpus, and none of the host's gpu:v100:2 is free: rank 10 has 2, \
                    1 of the host's gpu:a100:1 is free";
        check(&both, 2, "gpu:2", text, fewer);
        let text = "rank 10 needs 1 gpu:a100, and the host has gpu:v100:2, fpga:x:1";
        check(&devices, 5000, "gpu:a100:1", text, more);
        check(&devices, 1, "gpu:3", "rank 10 needs 3 gpus, and the host has gpu:v100:2, fpga:x:1", more);
        let text = "rank 10 needs 1 gpu, and no device was found on the host";
        check(&[], 1, "gpu", text, DeviceRemedy::Declare);
        let text = "rank 10 needs 1 gpu:a100, and the host has gpu:1";
        check(&[device("gpu", "", 0, None)], 1, "gpu:a100", text, DeviceRemedy::DeclareTypes);
    }
}
