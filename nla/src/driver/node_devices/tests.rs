//! Reads synthetic trees.

use tempfile::TempDir;

use super::*;

/// A synthetic root directory.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn pci(&self, address: &str, numa: i32) {
        self.write(&format!("sys/bus/pci/devices/{address}/numa_node"), &format!("{numa}\n"));
    }

    fn nvidia(&self, minor: u32, address: &str, uuid: &str) {
        self.write(&format!("dev/nvidia{minor}"), "");
        let information = format!(
            "Model: \t\t NVIDIA A100\nIRQ:   \t\t 42\nGPU UUID: \t {uuid}\nBus Location: \t {address}\nDevice Minor: \t {minor}\n"
        );
        self.write(&format!("proc/driver/nvidia/gpus/{address}/information"), &information);
    }

    fn kfd(&self, node: u32, gpu_id: u32, properties: &str) {
        self.write(&format!("sys/class/kfd/kfd/topology/nodes/{node}/gpu_id"), &format!("{gpu_id}\n"));
        self.write(&format!("sys/class/kfd/kfd/topology/nodes/{node}/properties"), properties);
    }

    fn render(&self, number: u32, vendor: &str, numa: i32) {
        self.write(&format!("dev/dri/renderD{number}"), "");
        self.write(&format!("sys/class/drm/renderD{number}/device/vendor"), &format!("{vendor}\n"));
        self.write(&format!("sys/class/drm/renderD{number}/device/numa_node"), &format!("{numa}\n"));
    }

    #[track_caller]
    fn has(&self, vendor: Option<Vendor>, expected: &[(Option<&str>, Option<u32>)]) {
        let found = node_devices(self.0.path());
        let devices: Vec<_> = found.devices.iter().map(|device| (device.uuid.as_deref(), device.numa)).collect();
        assert_eq!((found.vendor, devices.as_slice()), (vendor, expected));
    }
}

#[test]
fn a_node_without_devices_has_none() {
    let tree = Tree::new();
    tree.has(None, &[]);
    tree.write("dev/nvidiactl", "");
    tree.write("dev/nvidia-uvm", "");
    tree.kfd(0, 0, "cpu_cores_count 64\n");
    tree.render(128, "0x1a03", 0);
    tree.has(None, &[]);
}

#[test]
fn processors_of_nvidia_are_in_the_order_of_their_addresses() {
    let tree = Tree::new();
    tree.nvidia(0, "0000:c1:00.0", "GPU-c");
    tree.nvidia(1, "0000:41:00.0", "GPU-4");
    tree.nvidia(10, "0000:C2:00.0", "GPU-????????-????");
    tree.write("dev/nvidiactl", "");
    tree.pci("0000:c1:00.0", 3);
    tree.pci("0000:41:00.0", 1);
    tree.pci("0000:c2:00.0", -1);
    // Another vendor's device beside them.
    tree.render(128, "0x8086", 0);
    tree.has(Some(Vendor::Nvidia), &[(Some("GPU-4"), Some(1)), (Some("GPU-c"), Some(3)), (None, None)]);
}

#[test]
fn processors_of_nvidia_without_a_proc_file_are_counted() {
    let tree = Tree::new();
    tree.write("dev/nvidia0", "");
    tree.write("dev/nvidia2", "");
    tree.has(Some(Vendor::Nvidia), &[(None, None), (None, None)]);
}

#[test]
fn processors_of_amd_are_nodes_of_the_topology() {
    let tree = Tree::new();
    tree.kfd(0, 0, "cpu_cores_count 64\nlocation_id 0\ndomain 0\n");
    // Bus 0xc1, device 0, and bus 0x05, device 3, function 1, in the second domain.
    tree.kfd(2, 51_803, "simd_count 440\nlocation_id 49408\ndomain 0\n");
    tree.kfd(10, 4_711, "simd_count 440\nlocation_id 1305\ndomain 1\n");
    tree.pci("0000:c1:00.0", 2);
    tree.pci("0001:05:03.1", 5);
    tree.has(Some(Vendor::Amd), &[(None, Some(2)), (None, Some(5))]);
}

#[test]
fn render_nodes_of_intel_are_processors() {
    let tree = Tree::new();
    tree.render(129, "0x8086", 1);
    tree.render(128, "0x8086", 0);
    tree.render(130, "0x1a03", 0);
    tree.has(Some(Vendor::Intel), &[(None, Some(0)), (None, Some(1))]);
}

#[test]
fn more_devices_than_the_bound_are_left_out() {
    let tree = Tree::new();
    for minor in 0..=DEVICES_MAX {
        tree.write(&format!("dev/nvidia{minor}"), "");
    }
    assert_eq!(node_devices(tree.0.path()).devices.len(), DEVICES_MAX as usize);
}
