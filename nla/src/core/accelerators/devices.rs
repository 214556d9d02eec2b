//! The devices of a node, and the variables by which a rank finds its own.

use super::resource::{Resources, label};
use crate::core::limits::{DEVICES_MAX, RESOURCE_WORD_BYTES_MAX};

/// The name of graphics processors, which have variables of their vendors.
pub const GPU: &str = "gpu";

/// A device of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Device {
    /// Its name, such as `gpu`.
    pub name: String,
    /// Its type, if it is known.
    pub kind: Option<String>,
    /// Its number or its name in variables.
    pub id: String,
    /// The NUMA node that it is near to, if it is known.
    pub numa: Option<u32>,
}

impl Device {
    /// Its name and type, as in `gpu:a100`.
    pub fn label(&self) -> String {
        label(&self.name, self.kind.as_deref())
    }
}

/// The vendor of a node's graphics processors, which determines the variables that choose among them.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// NVIDIA.
    Nvidia,
    /// AMD.
    Amd,
    /// Intel.
    Intel,
}

impl Vendor {
    /// All vendors. If a node has devices of several, the first one counts.
    pub const ALL: [Self; 3] = [Self::Nvidia, Self::Amd, Self::Intel];

    /// The variables that list the processors that a program may use, the one that counts first.
    pub fn lists(self) -> &'static [&'static str] {
        match self {
            Self::Nvidia => &["CUDA_VISIBLE_DEVICES"],
            Self::Amd => &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"],
            Self::Intel => &["ZE_AFFINITY_MASK"],
        }
    }
}

/// A graphics processor that an agent has found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundDevice {
    /// Its unique name, as in `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`, if it is known.
    pub uuid: Option<String>,
    /// The NUMA node that it is near to, if it is known.
    pub numa: Option<u32>,
}

/// The graphics processors that an agent has found, in the order of their numbers.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundDevices {
    /// Their vendor; `None` if there are none, and no variable names a vendor.
    pub vendor: Option<Vendor>,
    /// The processors.
    pub devices: Vec<FoundDevice>,
}

/// Parses a list of graphics processors, such as the value of `CUDA_VISIBLE_DEVICES`: numbers, or names of processors or of
/// MIG instances, which stay as they are. The list ends before an entry that names none, such as `-1` or Slurm's
/// `NoDevFiles`. An entry that is repeated counts once.
pub fn listed(text: &str) -> Vec<String> {
    let is_id = |word: &&str| {
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:".contains(&byte);
        let is_none = word.is_empty() || word.starts_with('-') || *word == "NoDevFiles";
        !is_none && word.len() <= 2 * RESOURCE_WORD_BYTES_MAX && word.bytes().all(is_known)
    };
    let mut ids: Vec<String> = Vec::new();
    for word in text.split(',').map(str::trim).take_while(is_id).take(DEVICES_MAX as usize) {
        if ids.iter().all(|id| id != word) {
            ids.push(word.to_owned());
        }
    }
    ids
}

/// Lists the devices that a node offers.
///
/// `declared` is what the hosts file says; without it, the node offers its graphics processors. These are those in
/// `visible`, if a variable lists them, else all that were found. Where they are known, the node offers no others, even if
/// the hosts file says so. Other devices have the numbers from 0 on, for each name, unless the hosts file numbers them.
pub fn offered(declared: Option<&Resources>, found: &FoundDevices, visible: Option<Vec<String>>) -> Vec<Device> {
    let is_known = visible.is_some() || !found.devices.is_empty();
    let ids = visible.unwrap_or_else(|| (0..found.devices.len()).map(|at| at.to_string()).collect());
    let gpu = |kind: Option<String>, id: String| {
        let by_name = found.devices.iter().find(|device| device.uuid.as_ref() == Some(&id));
        let device = by_name.or_else(|| found.devices.get(id.parse::<usize>().ok()?));
        Device { name: GPU.to_owned(), kind, numa: device.and_then(|device| device.numa), id }
    };
    let Some(declared) = declared else { return ids.into_iter().map(|id| gpu(None, id)).collect() };
    let mut devices: Vec<Device> = Vec::new();
    for resource in declared.iter() {
        for index in 0..resource.count() as usize {
            let next = || devices.iter().filter(|device| device.name == resource.name()).count();
            let at = resource.numbers().and_then(|numbers| numbers.get(index)).map_or_else(next, |at| *at as usize);
            let kind = resource.kind().map(str::to_owned);
            if resource.name() == GPU && is_known {
                devices.extend(ids.get(at).map(|id| gpu(kind, id.clone())));
            } else {
                devices.push(Device { name: resource.name().to_owned(), kind, id: at.to_string(), numa: None });
            }
        }
    }
    devices
}

/// Returns the variables that tell a rank its devices: `SCELA_GRES_<NAME>` for each name, and for graphics processors also
/// those of their vendor.
pub fn variables(vendor: Option<Vendor>, devices: &[&Device]) -> Vec<(String, String)> {
    let mut lists: Vec<(&str, Vec<&str>)> = Vec::new();
    for device in devices {
        match lists.iter_mut().find(|(name, _)| *name == device.name) {
            Some((_, ids)) => ids.push(device.id.as_str()),
            None => lists.push((device.name.as_str(), vec![device.id.as_str()])),
        }
    }
    let mut variables = Vec::new();
    for (name, ids) in lists {
        let list = ids.join(",");
        variables.push((format!("SCELA_GRES_{}", name.to_ascii_uppercase()), list.clone()));
        match vendor.filter(|_| name == GPU) {
            // By default CUDA puts the fastest processor first, and its numbers are not those of the node.
            Some(Vendor::Nvidia) => {
                variables.push(("CUDA_DEVICE_ORDER".to_owned(), "PCI_BUS_ID".to_owned()));
                variables.push(("CUDA_VISIBLE_DEVICES".to_owned(), list));
            }
            // HIP and OpenCL number the processors that ROCR_VISIBLE_DEVICES leaves.
            Some(Vendor::Amd) => {
                let numbers: Vec<String> = (0..ids.len()).map(|at| at.to_string()).collect();
                variables.push(("ROCR_VISIBLE_DEVICES".to_owned(), list));
                for name in ["HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL"] {
                    variables.push((name.to_owned(), numbers.join(",")));
                }
            }
            Some(Vendor::Intel) => variables.push(("ZE_AFFINITY_MASK".to_owned(), list)),
            None => {}
        }
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(numa: &[Option<u32>]) -> FoundDevices {
        let devices = numa.iter().map(|numa| FoundDevice { uuid: None, numa: *numa }).collect();
        FoundDevices { vendor: Some(Vendor::Nvidia), devices }
    }

    fn written(devices: &[Device]) -> String {
        let numa = |device: &Device| device.numa.map(|numa| format!("@{numa}")).unwrap_or_default();
        let one = |device: &Device| format!("{}={}{}", device.label(), device.id, numa(device));
        devices.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lists_of_variables_are_kept() {
        for (text, expected) in [
            ("0,1", vec!["0", "1"]),
            (" 2 ,2,1", vec!["2", "1"]),
            ("GPU-8932f937,MIG-GPU-8932f937/1/0", vec!["GPU-8932f937", "MIG-GPU-8932f937/1/0"]),
            ("0.0,0.1", vec!["0.0", "0.1"]),
            ("0,-1,1", vec!["0"]),
            ("", vec![]),
            ("NoDevFiles", vec![]),
            ("0;1", vec![]),
        ] {
            assert_eq!(listed(text), expected, "{text}");
        }
        assert_eq!(listed(&(0..2000).map(|at| at.to_string()).collect::<Vec<_>>().join(",")).len(), 1024);
    }

    #[test]
    fn a_node_offers_what_was_found_and_is_visible() {
        let two = found(&[Some(0), Some(1)]);
        assert_eq!(written(&offered(None, &two, None)), "gpu=0@0 gpu=1@1");
        assert_eq!(written(&offered(None, &two, Some(listed("1,GPU-x")))), "gpu=1@1 gpu=GPU-x");
        assert_eq!(offered(None, &two, Some(Vec::new())), []);
        assert_eq!(offered(None, &FoundDevices::default(), None), []);
        let mut named = two;
        named.devices[1].uuid = Some("GPU-y".to_owned());
        assert_eq!(written(&offered(None, &named, Some(listed("GPU-y")))), "gpu=GPU-y@1");
    }

    #[test]
    fn a_hosts_file_says_the_types() {
        let declared: Resources = "gpu:a100:1,gpu:v100:2,fpga:allreduce:1,fpga:reduce:1".parse().unwrap();
        let fpgas = "fpga:allreduce=0 fpga:reduce=1";
        let of = |found: &FoundDevices, visible| written(&offered(Some(&declared), found, visible));
        let none = FoundDevices::default();
        assert_eq!(of(&none, None), format!("gpu:a100=0 gpu:v100=1 gpu:v100=2 {fpgas}"));
        assert_eq!(of(&found(&[Some(1); 4]), None), format!("gpu:a100=0@1 gpu:v100=1@1 gpu:v100=2@1 {fpgas}"));
        assert_eq!(of(&found(&[None; 2]), None), format!("gpu:a100=0 gpu:v100=1 {fpgas}"), "one of them is broken");
        assert_eq!(of(&none, Some(listed("3"))), format!("gpu:a100=3 {fpgas}"));
        let declared: Resources = "gpu:a100:2@1+3,fpga:1@2".parse().unwrap();
        let of = |found: &FoundDevices, visible| written(&offered(Some(&declared), found, visible));
        assert_eq!(of(&none, None), "gpu:a100=1 gpu:a100=3 fpga=2");
        assert_eq!(of(&found(&[None; 4]), Some(listed("4,5,6,7"))), "gpu:a100=5 gpu:a100=7 fpga=2");
    }

    #[test]
    fn ranks_are_told_their_devices() {
        let declared: Resources = "gpu:4,fpga:allreduce:1".parse().unwrap();
        let all = offered(Some(&declared), &FoundDevices::default(), None);
        let told = |vendor| {
            let variables = variables(vendor, &[&all[2], &all[3], &all[4]]);
            variables.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(told(None), "SCELA_GRES_GPU=2,3 SCELA_GRES_FPGA=0");
        assert_eq!(
            told(Some(Vendor::Nvidia)),
            "SCELA_GRES_GPU=2,3 CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,3 SCELA_GRES_FPGA=0"
        );
        assert_eq!(
            told(Some(Vendor::Amd)),
            "SCELA_GRES_GPU=2,3 ROCR_VISIBLE_DEVICES=2,3 HIP_VISIBLE_DEVICES=0,1 GPU_DEVICE_ORDINAL=0,1 SCELA_GRES_FPGA=0"
        );
        assert_eq!(told(Some(Vendor::Intel)), "SCELA_GRES_GPU=2,3 ZE_AFFINITY_MASK=2,3 SCELA_GRES_FPGA=0");
    }
}
