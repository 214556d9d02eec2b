//! Gives ranks the accelerators and other devices of this node.

use std::cell::{OnceCell, RefCell};
use std::path::Path;
use std::rc::Rc;

use pmi::Rank;

use super::node_devices::node_devices;
use crate::core::limits::DEVICES_MAX;
use crate::core::{
    AcceleratorPlan, CpuSet, Device, FoundDevices, LackOfDevices, Resources, TooFew, Variable, Vendor, listed, offered,
    share, variables,
};

/// The lists of a Slurm job's graphics processors on this node, that of the step first.
const LISTS_OF_SLURM: [&str; 2] = ["SLURM_STEP_GPUS", "SLURM_JOB_GPUS"];
/// Their number.
const NUMBER_OF_SLURM: &str = "SLURM_GPUS_ON_NODE";

/// The devices of one rank.
#[derive(Clone, Debug, Default)]
pub struct RankDevices {
    vendor: Option<Vendor>,
    devices: Vec<Device>,
}

impl RankDevices {
    /// The variables that tell the rank its devices.
    pub fn variables(&self) -> Vec<(String, String)> {
        variables(self.vendor, &self.devices.iter().collect::<Vec<_>>())
    }

    /// Describes them, as in `gpu 0,1, fpga 0`; empty if there are none.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut last = "";
        for device in &self.devices {
            match (last == device.name, text.is_empty()) {
                (true, _) => text.push_str(&format!(",{}", device.id)),
                (false, true) => text.push_str(&format!("{} {}", device.name, device.id)),
                (false, false) => text.push_str(&format!(", {} {}", device.name, device.id)),
            }
            last = &device.name;
        }
        text
    }
}

/// The devices of this node.
struct Here {
    found: FoundDevices,
    /// The graphics processors that variables list.
    visible: Option<Vec<String>>,
}

/// The shares of the ranks of a node.
type Shares = Rc<Result<Vec<RankDevices>, TooFew>>;
/// The offer of a node, by its index in the plan, and the number of its ranks.
type Key = (Option<usize>, u32);

/// Shares out the devices of this node among the ranks of a session.
pub struct Accelerators {
    plan: AcceleratorPlan,
    /// The lists of graphics processors in the environment of the ranks.
    lists: Vec<(&'static str, String)>,
    here: OnceCell<Here>,
    last: RefCell<Option<(Key, Shares)>>,
}

impl Accelerators {
    /// Prepares to share devices out. `environment` is that of the ranks, in which a resource manager or the user may have
    /// listed the graphics processors that they may use.
    pub fn new(plan: AcceleratorPlan, environment: &[Variable]) -> Self {
        let value = |name: &str| {
            let (_, value) = environment.iter().rev().find(|(known, _)| known == name.as_bytes())?;
            Some(String::from_utf8_lossy(value).into_owned())
        };
        let names = Vendor::ALL.into_iter().flat_map(|vendor| vendor.lists().iter().copied());
        let lists = names.filter_map(|name| Some((name, value(name)?))).collect();
        Self { plan, lists, here: OnceCell::new(), last: RefCell::new(None) }
    }

    /// Whether ranks ask for no device.
    pub fn are_none(&self) -> bool {
        self.plan.requests.is_empty()
    }

    fn here(&self) -> &Here {
        self.here.get_or_init(|| here(node_devices(Path::new("/")), &self.lists, |name| std::env::var(name).ok()))
    }

    /// Returns the devices of `rank`, number `local` of the `ranks` of this node. `near` returns the NUMA nodes of the seat
    /// of a local rank, and `rank_of` its rank.
    ///
    /// # Errors
    ///
    /// The node has too few devices for its ranks.
    pub fn of(
        &self,
        rank: Rank,
        local: u32,
        ranks: u32,
        near: impl Fn(u32) -> CpuSet,
        rank_of: impl Fn(u32) -> Rank,
    ) -> Result<RankDevices, LackOfDevices> {
        let key = (self.plan.offers.iter().position(|(ranks, _)| ranks.contains(rank)), ranks);
        let known = self.last.borrow().as_ref().filter(|(of, _)| *of == key).map(|(_, shares)| Rc::clone(shares));
        let shares = known.unwrap_or_else(|| {
            let declared = key.0.and_then(|at| self.plan.offers.get(at)).map(|(_, offer)| offer);
            let shares = Rc::new(self.shares(declared, ranks, near));
            *self.last.borrow_mut() = Some((key, Rc::clone(&shares)));
            shares
        });
        match shares.as_ref() {
            Ok(shares) => Ok(shares.get(local as usize).cloned().unwrap_or_default()),
            Err(error) => Err(error.describe(rank_of)),
        }
    }

    /// Shares out the devices of this node, which offers what is `declared`.
    fn shares(
        &self,
        declared: Option<&Resources>,
        ranks: u32,
        near: impl Fn(u32) -> CpuSet,
    ) -> Result<Vec<RankDevices>, TooFew> {
        let Here { found, visible } = self.here();
        let devices = offered(declared, found, visible.clone());
        // One more rank than there can be devices is enough to see that there are too few.
        let near: Vec<CpuSet> = (0..ranks.min(DEVICES_MAX + 1)).map(near).collect();
        let shares = share(&devices, &near, &self.plan.requests)?;
        let of = |share: Vec<usize>| {
            let devices = share.into_iter().filter_map(|at| devices.get(at).cloned()).collect();
            RankDevices { vendor: found.vendor, devices }
        };
        Ok(shares.into_iter().map(of).collect())
    }
}

/// Decides which of the graphics processors that were found are visible. `lists` are those of the ranks' environment,
/// `variable` returns a variable of the agent.
///
/// A list of the vendor's is what ranks would see without any request. If no processor was found, a list tells the vendor.
/// Slurm's own variables count where it has set none of them.
fn here(mut found: FoundDevices, lists: &[(&'static str, String)], variable: impl Fn(&str) -> Option<String>) -> Here {
    let is_of = |vendor: Vendor, name: &str| vendor.lists().contains(&name);
    let list = lists.iter().find(|(name, _)| found.vendor.is_none_or(|vendor| is_of(vendor, name)));
    if let Some((name, list)) = list {
        found.vendor = Vendor::ALL.into_iter().find(|vendor| is_of(*vendor, name));
        return Here { found, visible: Some(listed(list)) };
    }
    let of_slurm = LISTS_OF_SLURM.iter().find_map(|name| variable(name)).map(|list| listed(&list));
    let numbered = || {
        let number: u32 = variable(NUMBER_OF_SLURM)?.trim().parse().ok()?;
        Some((0..number.min(DEVICES_MAX)).map(|at| at.to_string()).collect())
    };
    let visible = of_slurm.or_else(numbered);
    Here { found, visible }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::FoundDevice;

    fn visible(
        vendor: Option<Vendor>,
        lists: &[(&'static str, &str)],
        own: &[(&str, &str)],
    ) -> (Option<Vendor>, Option<String>) {
        let found = FoundDevices { vendor, devices: vec![FoundDevice::default(); 2] };
        let lists: Vec<_> = lists.iter().map(|(name, list)| (*name, (*list).to_owned())).collect();
        let variable = |name: &str| own.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        let Here { found, visible } = here(found, &lists, variable);
        (found.vendor, visible.map(|ids| ids.join(",")))
    }

    #[test]
    fn a_list_of_the_vendor_comes_before_slurms_variables() {
        let (cuda, rocr) = (("CUDA_VISIBLE_DEVICES", "GPU-1,MIG-2"), ("ROCR_VISIBLE_DEVICES", "1"));
        let slurm = [("SLURM_STEP_GPUS", "2"), ("SLURM_JOB_GPUS", "2,3"), ("SLURM_GPUS_ON_NODE", "4")];
        let list = |text: &str| Some(text.to_owned());
        let nvidia = Some(Vendor::Nvidia);
        assert_eq!(visible(nvidia, &[cuda, rocr], &slurm), (nvidia, list("GPU-1,MIG-2")));
        assert_eq!(visible(nvidia, &[rocr], &slurm), (nvidia, list("2")), "the list is not of the vendor");
        assert_eq!(visible(nvidia, &[], &slurm[1..]), (nvidia, list("2,3")));
        assert_eq!(visible(nvidia, &[], &slurm[2..]), (nvidia, list("0,1,2,3")));
        assert_eq!(visible(nvidia, &[], &[("SLURM_GPUS_ON_NODE", "x")]), (nvidia, None));
        assert_eq!(visible(None, &[rocr], &[]), (Some(Vendor::Amd), list("1")));
        assert_eq!(visible(None, &[("CUDA_VISIBLE_DEVICES", "")], &[]), (nvidia, list("")), "none may be used");
        assert_eq!(visible(None, &[], &[]), (None, None));
    }

    #[test]
    fn devices_are_named_for_reports() {
        let device = |name: &str, id: &str| Device { name: name.to_owned(), kind: None, id: id.to_owned(), numa: None };
        let devices = vec![device("gpu", "1"), device("gpu", "GPU-3"), device("fpga", "0")];
        assert_eq!(RankDevices { vendor: None, devices }.text(), "gpu 1,GPU-3, fpga 0");
        assert_eq!(RankDevices::default().text(), "");
    }

    #[test]
    fn shares_are_made_for_the_node_of_the_rank() {
        let offer = |ranks, text: &str| (pmi::Ranks::range(ranks), text.parse().unwrap());
        let plan = AcceleratorPlan {
            requests: "fpga:x".parse().unwrap(),
            offers: vec![offer(0..2, "fpga:x:2"), offer(2..4, "fpga:y:1,fpga:x:1")],
        };
        let of = |rank, local, ranks| {
            let accelerators = Accelerators::new(plan.clone(), &[]);
            let devices = accelerators.of(Rank(rank), local, ranks, |_| CpuSet::new(), |local| Rank(local + 2));
            devices.map(|devices| devices.text())
        };
        assert_eq!(of(1, 1, 2).as_deref(), Ok("fpga 1"));
        assert_eq!(of(2, 0, 1).as_deref(), Ok("fpga 1"), "the first one is of another type");
        let error = "rank 3 needs 1 fpga:x, and none of the host's fpga:x:1 is free: rank 2 has 1";
        assert_eq!(of(3, 1, 2).unwrap_err().text, error);
        assert!(of(3, 1, u32::MAX).is_err());
    }
}
