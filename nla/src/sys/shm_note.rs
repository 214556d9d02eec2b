//! Files in /dev/shm that the ranks of an agent have mapped, as the agent announces them to its guardian, which removes them if the
//! agent was killed.

use std::collections::BTreeSet;
use std::io;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

use super::shared_files::{SharedFile, SharedMemory, files_in_use, user};

/// The most files that are announced. Open MPI makes one for each rank.
const FILES_MAX: usize = 1024;
/// A guardian does not look for files if /dev/shm has more than this.
const ENTRIES_MAX: usize = 65_536;
/// How long the search for processes that still use a file may take.
const SEARCH_TIME: Duration = Duration::from_secs(1);

/// The memory in which an agent announces files.
#[derive(Copy, Clone, Debug)]
pub struct ShmNote(&'static Shared);

#[derive(Debug)]
struct Shared {
    count: AtomicUsize,
    inodes: [AtomicU64; FILES_MAX],
}

impl ShmNote {
    /// Maps the memory, which stays mapped. Processes that are forked later share it.
    pub(crate) fn new() -> io::Result<Self> {
        const LENGTH: NonZeroUsize = NonZeroUsize::new(size_of::<Shared>()).expect("it has fields");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which overlaps no other.
        let pages = unsafe { mmap_anonymous(None, LENGTH, access, MapFlags::MAP_SHARED) }?;
        // SAFETY: the mapping is as long as the value, aligned to a page, full of zeros, which are valid, and never unmapped.
        // Both processes change it only by atomic operations.
        Ok(Self(unsafe { pages.cast::<Shared>().as_ref() }))
    }

    /// Announces a file that may be removed when no process has it mapped. Called by one thread of the agent at a time.
    pub fn add(self, inode: u64) {
        let count = self.0.count.load(Ordering::Relaxed);
        // The guardian reads it only when the agent has ended: it may have been killed at any instruction.
        if let Some(place) = self.0.inodes.get(count) {
            place.store(inode, Ordering::Relaxed);
            self.0.count.store(count + 1, Ordering::Release);
        }
    }

    /// Withdraws all announced files, before another session begins.
    pub fn clear(self) {
        self.0.count.store(0, Ordering::Release);
    }

    /// Removes the announced files that no process of this user has mapped. Removes none if the search exceeds [`SEARCH_TIME`].
    pub(super) fn remove_announced(self) {
        let count = self.0.count.load(Ordering::Acquire).min(FILES_MAX);
        let inodes: BTreeSet<u64> = self.0.inodes[..count].iter().map(|inode| inode.load(Ordering::Relaxed)).collect();
        if inodes.is_empty() {
            return;
        }
        let Ok(memory) = SharedMemory::open() else { return };
        let listed = memory.list(ENTRIES_MAX).unwrap_or_default();
        let files: Vec<(Vec<u8>, SharedFile)> = listed
            .into_iter()
            .filter(|(_, inode)| inodes.contains(inode))
            .filter_map(|(name, _)| memory.file(&name).map(|file| (name, file)))
            .filter(|(_, file)| file.is_regular && file.owner == user() && inodes.contains(&file.inode))
            .collect();
        let wanted = files.iter().map(|(_, file)| (file.device, file.inode)).collect();
        let (in_use, is_complete) = files_in_use(&wanted, Instant::now() + SEARCH_TIME);
        for (name, file) in files.iter().filter(|(_, file)| is_complete && !in_use.contains(&(file.device, file.inode)))
        {
            memory.remove(name, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn announced_files_that_nothing_uses_are_removed() {
        let place = |name: &str| format!("/dev/shm/tests-shm-note-{}-{name}", std::process::id());
        let made = ["announced", "mapped", "other"].map(|name| {
            fs::write(place(name), "x").unwrap();
            (place(name), fs::metadata(place(name)).unwrap().ino())
        });
        let mapped = fs::File::open(&made[1].0).unwrap();
        // SAFETY: a new mapping of one page, which is not read.
        let page = unsafe {
            nix::sys::mman::mmap(None, NonZeroUsize::MIN, ProtFlags::PROT_READ, MapFlags::MAP_SHARED, &mapped, 0)
        };
        let note = ShmNote::new().unwrap();
        note.add(made[2].1);
        note.clear();
        note.add(made[0].1);
        note.add(made[1].1);
        note.remove_announced();
        let left = made.each_ref().map(|(path, _)| fs::exists(path).unwrap());
        // SAFETY: it was mapped above, and nothing uses it.
        unsafe { nix::sys::mman::munmap(page.unwrap(), 1) }.unwrap();
        note.remove_announced();
        let later = made.each_ref().map(|(path, _)| fs::exists(path).unwrap());
        made.iter().for_each(|(path, _)| drop(fs::remove_file(path)));
        assert_eq!((left, later), ([false, true, true], [false, false, true]));
    }

    #[test]
    fn no_more_files_are_announced_than_there_is_room_for() {
        let note = ShmNote::new().unwrap();
        (0..=FILES_MAX as u64).for_each(|inode| note.add(inode + 1));
        assert_eq!(note.0.count.load(Ordering::Relaxed), FILES_MAX);
    }
}
