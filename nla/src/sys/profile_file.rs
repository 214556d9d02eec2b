//! A file without a name to which all ranks of an agent append their communication profiles.
//!
//! It leaves nothing behind however its processes end, and other users cannot reach it. The kernel writes what one call
//! appends without the bytes of other ranks in between.

use std::fs::{File, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::descriptors::Slot;

/// The descriptor of the file in a rank: the one after [`RANK_FILE_FD`](super::RANK_FILE_FD). libscela-trace.so has the same
/// number and the same name of the file.
pub const PROFILE_FD: i32 = 12;

/// See the module's documentation. It occupies a low descriptor, like [`RankFile`](super::RankFile).
#[derive(Debug)]
pub struct ProfileFile {
    file: File,
    /// The descriptor that ranks inherit.
    slot: Slot,
}

impl ProfileFile {
    /// Creates an empty file. Call it before the first [`Spawner`](super::Spawner) is made.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create(c"scela-profile", MFdFlags::MFD_CLOEXEC)?);
        file.set_permissions(Permissions::from_mode(0o600))?;
        fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
        let slot = Slot::of(PROFILE_FD, file.as_fd())?;
        Ok(Self { file, slot })
    }

    /// Forgets all profiles: the ranks start again.
    pub fn clear(&self) -> io::Result<()> {
        self.file.set_len(0)
    }

    /// Returns the length.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Fills the buffer from a position on. Fails if the file is shorter.
    pub fn read_at(&self, buffer: &mut [u8], position: u64) -> io::Result<()> {
        self.file.read_exact_at(buffer, position)
    }
}

impl AsFd for ProfileFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.slot.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;

    use super::super::descriptors;
    use super::*;

    #[test]
    fn all_writers_append() {
        let _alone = descriptors::SLOTS_IN_TEST.lock();
        let file = ProfileFile::new().expect("descriptors are left");
        let writer = || File::from(file.as_fd().try_clone_to_owned().expect("descriptors are left"));
        let (mut one, mut other) = (writer(), writer());
        one.write_all(b"one ").expect("it is written");
        other.write_all(b"other").expect("it is written");
        let mut bytes = vec![0; file.bytes().expect("it has a length") as usize];
        file.read_at(&mut bytes, 0).expect("it can be read");
        assert_eq!(bytes, b"one other");
        file.read_at(&mut bytes, 1).expect_err("it is shorter");
        file.clear().expect("it can be cut");
        one.write_all(b"new").expect("it is written");
        assert_eq!(file.bytes().expect("it has a length"), 3);
        let link = std::fs::read_link(format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()));
        assert_eq!(
            link.expect("it is open").as_os_str(),
            "/memfd:scela-profile (deleted)",
            "libscela-trace.so looks at it"
        );
    }
}
