//! [`Segment`]: the board that this node's agent shares with its ranks, read in place.
//!
//! [`pmi::segment`] documents the layout and the agent's guarantees: a log that only grows and whose
//! bytes never change, and two words that do change. A look-up takes no lock, makes no system call and
//! allocates nothing; it loads two words and then reads memory that no process changes.
//!
//! # Why this is sound
//!
//! The argument is for [`Segment::view`], which makes a slice of the first `n` bytes of the log.
//!
//! 1. *The bytes exist.* A slice covers only bytes before [`Window::readable`], which is set, after
//!    `fstat`, to no more than lies both in the file and in the window. The file never shrinks:
//!    [`Segment::map`] rejects a file that is not sealed against shrinking. Only [`Segment::drop`]
//!    unmaps the window, and slices borrow from the segment.
//! 2. *The bytes do not change.* `n` was loaded from the publication word with acquire semantics. The
//!    agent stored it with release semantics after writing those bytes, and it writes no byte of the
//!    log twice. So each write to them happened before the slice was made, and no write comes later. No
//!    other process can write: the agent seals the file against all writing except through its own
//!    mapping (`F_SEAL_FUTURE_WRITE`), so that no other rank can write to it, however broken. The agent
//!    is trusted to keep its guarantees; it runs as the same user, who could stop this process or write
//!    into its memory by other means.
//! 3. *The words.* Both sides access them only as atomics, and they lie aligned in a page of their own.
//! 4. *Arbitrary contents.* A look-up in [`View`] stays within the slice and terminates, whatever the
//!    bytes are. An agent that writes garbage gets wrong answers, not a crash.
//!
//! When the log outgrows its window, a larger window is mapped. Threads that read in the old window
//! continue there: it stays mapped and shows the same bytes. [`Segment::view`] loads either window; a
//! window is stored with release semantics after its `readable` has been set.
//!
//! A release increments the release word with release semantics, after the publication of the fence's
//! entries has been stored. [`Segment::wait_for_release`] loads the word with acquire semantics. So a
//! later `view`, in this thread or in one that synchronises with it, sees that publication or a newer
//! one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pmi::segment::{FAILED_AT, LOG_AT, MAGIC, PUBLISHED_AT, Published, RELEASED_AT, View};

use crate::{futex, socket};

/// The least that is mapped. It costs address space only, and most boards never outgrow it.
const WINDOW_BYTES_MIN: usize = 16 << 20;

/// A segment, mapped read-only.
#[derive(Debug)]
pub(crate) struct Segment {
    /// Needed to map a larger window.
    file: OwnedFd,
    /// The device and inode of the file.
    identity: (u64, u64),
    /// The newest window, the head of a list of all windows.
    window: AtomicPtr<Window>,
    growing: Mutex<()>,
}

/// One mapping of the segment.
#[derive(Debug)]
struct Window {
    base: NonNull<u8>,
    bytes: usize,
    /// How much of this window is known to lie in the file. An agent extends the file in larger steps
    /// than it publishes, so `fstat` is seldom needed again.
    readable: AtomicUsize,
    /// The window that was used before this one.
    previous: *mut Window,
}

// SAFETY: the mapping belongs to the process, not to a thread. Threads share atomics and bytes that do
// not change; only `drop` follows `previous`.
unsafe impl Send for Segment {}
// SAFETY: as for `Send`.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps the segment of a descriptor. Fails if the file is no segment or could shrink.
    pub(crate) fn map(file: OwnedFd) -> io::Result<Self> {
        // SAFETY: only queries an open descriptor.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let status = socket::status(file.as_raw_fd())?;
        if usize::try_from(status.st_size).unwrap_or(0) < LOG_AT {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let window = Window::map(&file, WINDOW_BYTES_MIN, ptr::null_mut())?;
        if window.magic() != MAGIC {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let window = AtomicPtr::new(Box::into_raw(window));
        let segment = Self { file, identity: identity_of(&status), window, growing: Mutex::new(()) };
        segment.view();
        Ok(segment)
    }

    /// Returns the device and inode of the segment's file.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// Returns everything published; `None` if the segment is incomplete and the agent must be asked.
    #[inline]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let window = self.window();
        let published = Published::from_word(window.published().load(Ordering::Acquire));
        // This cannot overflow: `log_bytes` is bounded by the width of its field.
        let is_readable = LOG_AT + published.log_bytes() <= window.readable.load(Ordering::Relaxed);
        if is_readable && !published.is_closed() { window.view(published) } else { self.remap_and_view() }
    }

    /// Returns how many fences have been released; an argument for [`Segment::wait_for_release`].
    pub(crate) fn released(&self) -> u32 {
        self.window().released().load(Ordering::Acquire)
    }

    /// Waits until a fence is released after the `before`th, for at most `timeout`. Returns whether one
    /// was.
    pub(crate) fn wait_for_release(&self, before: u32, timeout: Duration) -> bool {
        futex::wait(self.window().released(), before, timeout).is_some()
    }

    /// Returns whether the fence that was released after the `before`th failed, because a rank has died.
    pub(crate) fn has_failed(&self, before: u32) -> bool {
        self.window().failed().load(Ordering::Acquire) == before.wrapping_add(1)
    }

    fn window(&self) -> &Window {
        // SAFETY: always a window of this segment, which lives until `drop`.
        unsafe { &*self.window.load(Ordering::Acquire) }
    }

    /// Handles a log that may be longer than `readable`: checks the file's length, and maps a larger
    /// window if needed.
    #[cold]
    fn remap_and_view(&self) -> Option<View<'_>> {
        let _growing = self.growing.lock().ok()?;
        let mut window = self.window();
        let published = Published::from_word(window.published().load(Ordering::Acquire));
        if published.is_closed() {
            return None;
        }
        let end = LOG_AT.checked_add(published.log_bytes())?;
        let status = socket::status(self.file.as_raw_fd()).ok()?;
        let file_bytes = usize::try_from(status.st_size).ok()?;
        // A program that closes all descriptors may have opened another file under this number.
        let is_same = identity_of(&status) == self.identity;
        if !is_same || file_bytes < end {
            return None;
        }
        if end > window.bytes {
            let bytes = end.checked_mul(2)?.checked_next_power_of_two()?.max(WINDOW_BYTES_MIN);
            let larger = Window::map(&self.file, bytes, ptr::from_ref(window).cast_mut()).ok()?;
            let larger = Box::into_raw(larger);
            // SAFETY: just created; it lives until `drop`.
            window = unsafe { &*larger };
            window.readable.store(file_bytes.min(window.bytes), Ordering::Relaxed);
            self.window.store(larger, Ordering::Release);
        }
        // The file never shrinks, so `readable` never decreases.
        window.readable.store(file_bytes.min(window.bytes), Ordering::Relaxed);
        window.view(published)
    }
}

fn identity_of(status: &libc::stat) -> (u64, u64) {
    (status.st_dev, status.st_ino)
}

impl Drop for Segment {
    fn drop(&mut self) {
        let mut next = *self.window.get_mut();
        while !next.is_null() {
            // SAFETY: each window comes from `Box::into_raw` and is in this list once; no borrow of the
            // segment is left.
            let window = unsafe { Box::from_raw(next) };
            next = window.previous;
            // SAFETY: as above; the window owned this mapping.
            unsafe { libc::munmap(window.base.as_ptr().cast(), window.bytes) };
        }
    }
}

impl Window {
    /// Maps `bytes` of the file, which may be more than it has: memory past its end is not read until
    /// the file has grown.
    fn map(file: &OwnedFd, bytes: usize, previous: *mut Self) -> io::Result<Box<Self>> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Keep the shared pages out of every rank's core dump.
        // SAFETY: advice about the mapping that was just created.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Box::new(Self { base, bytes, readable: AtomicUsize::new(0), previous }))
    }

    fn magic(&self) -> u32 {
        // SAFETY: aligned and in the header, whose presence `Segment::map` has checked.
        let magic = unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) };
        u32::from_le(magic.load(Ordering::Relaxed))
    }

    fn released(&self) -> &AtomicU32 {
        // SAFETY: in the header, aligned since mappings are, and accessed only as an atomic. A
        // read-only mapping suffices for loads, and this code does nothing else.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(RELEASED_AT).cast()) }
    }

    fn failed(&self) -> &AtomicU32 {
        // SAFETY: as for `released`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(FAILED_AT).cast()) }
    }

    #[inline]
    fn published(&self) -> &AtomicU64 {
        // SAFETY: as for `released`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(PUBLISHED_AT).cast()) }
    }

    /// Returns the log up to `published`, which was loaded from the segment and ends within `readable`.
    #[inline]
    fn view(&self, published: Published) -> Option<View<'_>> {
        let bytes = published.log_bytes();
        // SAFETY: see "Why this is sound" in the module's documentation.
        let log = unsafe { slice::from_raw_parts(self.base.as_ptr().add(LOG_AT), bytes) };
        View::new(log, published.directory_at())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::FromRawFd;
    use std::os::unix::fs::FileExt;

    use pmi::Epoch;
    use pmi::segment::{ALIGNMENT, directory};

    use super::*;

    /// Creates a memfd with these bytes and seals.
    fn memory(bytes: &[u8], seals: i32) -> File {
        // SAFETY: memfd_create returns a new descriptor, which no other code owns.
        let file = unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            assert!(file >= 0, "memfd_create failed");
            File::from_raw_fd(file)
        };
        file.write_all_at(bytes, 0).unwrap();
        // SAFETY: changes the seals of the file that was just created.
        assert!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0, "F_ADD_SEALS failed");
        file
    }

    fn duplicate(file: &File) -> OwnedFd {
        file.try_clone().unwrap().into()
    }

    /// Creates a segment with an epoch of one entry; returns it with its publication word.
    fn segment() -> (File, Published) {
        let epoch = Epoch::from_entries([(&b"key"[..], &b"value"[..])]);
        let mut bytes = vec![0; LOG_AT];
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        bytes.extend_from_slice(epoch.bytes());
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let directory_at = bytes.len() - LOG_AT;
        bytes.extend_from_slice(&directory([(0, epoch.bytes().len() as u64)]));
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        let log_bytes = bytes.len() - LOG_AT;
        let published = Published::new(log_bytes, directory_at).unwrap();
        bytes[PUBLISHED_AT..][..8].copy_from_slice(&published.to_word().to_ne_bytes());
        (memory(&bytes, libc::F_SEAL_SHRINK), published)
    }

    fn publish(file: &File, word: u64) {
        file.write_all_at(&word.to_ne_bytes(), PUBLISHED_AT as u64).unwrap();
    }

    #[test]
    fn only_segments_that_cannot_shrink_are_mapped() {
        let mut bytes = vec![0; LOG_AT];
        assert!(Segment::map(memory(&bytes, libc::F_SEAL_SHRINK).into()).is_err(), "no magic");
        bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
        assert!(Segment::map(memory(&bytes, libc::F_SEAL_GROW).into()).is_err(), "not sealed");
        assert!(Segment::map(memory(&bytes[1..], libc::F_SEAL_SHRINK).into()).is_err(), "too short");
        assert!(Segment::map(File::open("/dev/null").unwrap().into()).is_err(), "not a memfd");
        let empty = Segment::map(memory(&bytes, libc::F_SEAL_SHRINK).into()).unwrap();
        assert!(empty.view().is_none(), "nothing has been published");
    }

    #[test]
    fn nothing_is_read_past_the_end_of_the_file() {
        let (file, published) = segment();
        let segment = Segment::map(duplicate(&file)).unwrap();
        assert_eq!(segment.view().unwrap().get(b"key"), Some(&b"value"[..]));
        // An agent that publishes more than the file has.
        for promised in [1 << 20, 1 << 40, u64::MAX >> 1] {
            publish(&file, promised);
            assert!(segment.view().is_none());
        }
        publish(&file, published.closed().to_word());
        assert!(segment.view().is_none());
    }

    #[test]
    fn a_descriptor_that_now_refers_to_another_file_is_not_mapped() {
        let (file, published) = segment();
        let segment = Segment::map(duplicate(&file)).unwrap();
        let other = memory(&[0; 1 << 16], libc::F_SEAL_SHRINK);
        // SAFETY: imitates a program that closes all descriptors and opens others.
        unsafe { libc::dup2(other.as_raw_fd(), segment.file.as_raw_fd()) };
        assert!(segment.view().is_some(), "the mapped part stays readable");
        file.set_len(1 << 20).unwrap();
        publish(&file, published.to_word() + 1);
        assert!(segment.view().is_none());
    }
}
