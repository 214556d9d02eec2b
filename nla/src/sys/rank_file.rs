//! A file without a name that all ranks of an agent inherit: empty until the agent fills it.
//!
//! Ranks open it by a path, so libraries that want the name of a file can read it. It leaves nothing behind however its
//! processes end, and other users cannot reach it.

use std::fs::{File, Permissions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use super::descriptors::Slot;

/// The descriptor of the file in a rank: the one after [`PMI_FD`](super::PMI_FD).
pub const RANK_FILE_FD: i32 = 11;

/// The path by which a rank opens the file.
pub const RANK_FILE_PATH: &str = "/proc/self/fd/11";

/// See the module's documentation. It occupies a low descriptor, [`RANK_FILE_FD`] if that is reserved, so that the children of
/// all [spawners](super::Spawner) get a copy of it.
#[derive(Debug)]
pub struct RankFile {
    file: File,
    /// Opened for reading only, with a position of its own: it is the one that ranks inherit.
    slot: Slot,
}

impl RankFile {
    /// Creates an empty file. Call it before the first [`Spawner`](super::Spawner) is made.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create(c"scela-topology", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
        file.set_permissions(Permissions::from_mode(0o400))?;
        let reader = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
        let slot = Slot::of(RANK_FILE_FD, reader.as_fd())?;
        Ok(Self { file, slot })
    }

    /// Writes the file's content, once. Ranks cannot change it afterwards. Fails if the file has other content then: a rank can open
    /// it for writing before it is sealed.
    pub fn fill(&self, content: &[u8]) -> io::Result<()> {
        // Writing past RLIMIT_FSIZE raises SIGXFSZ.
        let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        if content.len() as u64 > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        (&self.file).write_all(content)?;
        let seals = SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL;
        fcntl(&self.file, FcntlArg::F_ADD_SEALS(seals))?;
        let mut sealed = vec![0; content.len()];
        self.file.read_exact_at(&mut sealed, 0)?;
        if sealed != content || self.file.metadata()?.len() != content.len() as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a rank has written to it"));
        }
        Ok(())
    }
}

impl AsFd for RankFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.slot.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::super::descriptors;
    use super::*;

    #[test]
    fn a_rank_can_read_the_file_and_not_change_it() {
        let _alone = descriptors::SLOTS_IN_TEST.lock();
        let file = RankFile::new().expect("descriptors are left");
        let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        assert_eq!(std::fs::read(&path).expect("it can be opened"), b"");
        let access = fcntl(file.as_fd(), FcntlArg::F_GETFL).expect("it is open") & nix::libc::O_ACCMODE;
        assert_eq!(access, nix::libc::O_RDONLY, "a rank cannot write before the agent does");
        file.fill(b"content").expect("it is filled once");
        assert_eq!(std::fs::read(&path).expect("it can be opened"), b"content");
        std::fs::write(&path, "other").expect_err("it is sealed");
        assert_eq!(std::fs::read(&path).expect("it can be opened"), b"content");
        file.fill(b"again").expect_err("it is sealed");
    }

    #[test]
    fn what_a_rank_has_written_before_is_not_offered() {
        let _alone = descriptors::SLOTS_IN_TEST.lock();
        for (at, text) in [(0, &b"<evil/>"[..]), (7, b" and more"), (3, b"")] {
            let file = RankFile::new().expect("descriptors are left");
            let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
            std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("it is this user's");
            let rank = File::options().write(true).open(&path).expect("it is not sealed");
            rank.write_all_at(text, at).expect("it is not sealed");
            let filled = file.fill(b"content");
            assert_eq!(filled.is_ok(), text.is_empty() || at == 0, "{text:?}");
            rank.write_all_at(b"x", at).expect_err("it is sealed");
        }
    }

    #[test]
    fn the_path_names_the_descriptor() {
        assert_eq!(RANK_FILE_PATH, format!("/proc/self/fd/{RANK_FILE_FD}"));
        assert_eq!(RANK_FILE_FD, super::super::PMI_FD + 1);
    }
}
