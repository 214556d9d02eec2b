//! A file system that is soon full: a tmpfs with a bound.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// The mounted file system. Dropping it unmounts it.
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// Mounts it with these options, for example `size=64k`. Fails with the reason if this machine does not permit it.
    pub fn mount(options: &str) -> Result<Self, String> {
        let directory = TempDir::new().map_err(|error| error.to_string())?;
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", options, "small"]).arg(directory.path()).output();
        let mounted = mounted.map_err(|error| error.to_string())?;
        if !mounted.status.success() {
            return Err(format!("a tmpfs cannot be mounted: {}", String::from_utf8_lossy(&mounted.stderr)));
        }
        Ok(Self(directory))
    }

    /// Returns the path of its directory.
    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}
