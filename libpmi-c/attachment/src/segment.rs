//! [`Segment`]: the board that this node's agent shares with its ranks, read where it lies.
//!
//! The layout, and what the agent promises, is told in [`pmi::segment`]: a log that only grows and
//! never changes, and two words that do. A look-up takes no lock, makes no system call and allocates
//! nothing; it reads two words, and then memory that nobody changes.
//!
//! # Why this is sound
//!
//! Shown for [`Segment::view`], which makes a slice of the log's first `n` bytes.
//!
//! 1. *They are there.* A slice is made only of bytes in front of [`Window::readable`], which is set, once
//!    `fstat` has said so, to no more than lies both in the file and in the window. The file never
//!    shrinks: [`Segment::map`] takes none that is not sealed against it. The window is unmapped by
//!    [`Segment::drop`] only, and slices borrow from the segment.
//! 2. *They do not change.* `n` was read from the word of publication with acquire semantics, the
//!    agent stored it there with release semantics after it had written those bytes, and it writes
//!    no byte of the log twice. So each write to them happened before the slice was made, and none
//!    comes after. Nobody else can write: the agent seals the file against all writing but through
//!    its own mapping (`F_SEAL_FUTURE_WRITE`), so that no other rank, however broken, can. That the
//!    agent keeps its promise is trusted; it is the same user's process, and could stop this one or
//!    write into it by other means.
//! 3. *The words.* They are only touched as atomics, here and in the agent, and lie in a page of
//!    their own, aligned.
//! 4. *Whatever the bytes are*, [`View`] leaves them in no look-up and ends each one; an agent that
//!    writes nonsense gets nonsense answers, not a crash.
//!
//! A larger log is mapped anew, larger. Threads that read in the old window go on there: its bytes
//! are the same ones, and it stays. [`Segment::view`] sees either window, stored with release
//! semantics after `readable` was set.
//!
//! A release: the word of releases is incremented, with release semantics, after the publication of
//! what the fence made visible was stored. [`Segment::wait_for_release`] reads it with acquire
//! semantics, so a `view` after it, in this thread or in one that learns of it from this one, sees
//! that publication or a later one.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use pmi::segment::{LOG_AT, MAGIC, PUBLISHED_AT, Published, RELEASED_AT, View};

use crate::{futex, socket};

/// At least so much is mapped, which is address space only: most boards never outgrow it.
const WINDOW_BYTES_MIN: usize = 16 << 20;

/// A segment, mapped read-only.
#[derive(Debug)]
pub(crate) struct Segment {
    /// To map it anew.
    file: OwnedFd,
    /// Which file that is.
    identity: (u64, u64),
    /// The newest window; those before it hang from it.
    window: AtomicPtr<Window>,
    growing: Mutex<()>,
}

/// One mapping of the segment.
#[derive(Debug)]
struct Window {
    base: NonNull<u8>,
    bytes: usize,
    /// How much of this window is known to lie in the file. An agent makes the file longer than what it
    /// publishes, so that this seldom has to be looked at anew.
    readable: AtomicUsize,
    /// The one that was used before.
    previous: *mut Window,
}

// SAFETY: the mapping belongs to the process, not to a thread. What is shared of it are atomics, and
// bytes that do not change; `previous` is followed by `drop` only.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Maps the segment behind a descriptor. Fails if it is none, or could shrink.
    pub(crate) fn map(file: OwnedFd) -> io::Result<Self> {
        // SAFETY: asks about a descriptor that is open.
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

    /// What tells this segment's file from others.
    pub(crate) fn identity(&self) -> (u64, u64) {
        self.identity
    }

    /// All that is published; `None` if the segment cannot tell, and the agent is to be asked.
    #[inline]
    pub(crate) fn view(&self) -> Option<View<'_>> {
        let window = self.window();
        let published = Published::from_word(window.published().load(Ordering::Acquire));
        // A log of any length ends inside of the address space.
        let is_readable = LOG_AT + published.log_bytes() <= window.readable.load(Ordering::Relaxed);
        if is_readable && !published.is_closed() { window.view(published) } else { self.view_anew() }
    }

    /// How many fences were released, to be told to [`Segment::wait_for_release`].
    pub(crate) fn released(&self) -> u32 {
        self.window().released().load(Ordering::Acquire)
    }

    /// Waits until a fence is released after the `before`th, for at most `timeout`. Whether it was.
    pub(crate) fn wait_for_release(&self, before: u32, timeout: Duration) -> bool {
        futex::wait(self.window().released(), before, timeout).is_some()
    }

    fn window(&self) -> &Window {
        // SAFETY: always a window of ours, which lives until `drop`.
        unsafe { &*self.window.load(Ordering::Acquire) }
    }

    /// More is published than was known to be there: makes sure of it, and of a window that is
    /// large enough.
    #[cold]
    fn view_anew(&self) -> Option<View<'_>> {
        let _growing = self.growing.lock().ok()?;
        let mut window = self.window();
        let published = Published::from_word(window.published().load(Ordering::Acquire));
        if published.is_closed() {
            return None;
        }
        let end = LOG_AT.checked_add(published.log_bytes())?;
        let status = socket::status(self.file.as_raw_fd()).ok()?;
        let file_bytes = usize::try_from(status.st_size).ok()?;
        // A program that closes all descriptors, whosoever they are, may have another file there now.
        let is_same = identity_of(&status) == self.identity;
        if !is_same || file_bytes < end {
            return None;
        }
        if end > window.bytes {
            let bytes = end.checked_mul(2)?.checked_next_power_of_two()?.max(WINDOW_BYTES_MIN);
            let larger = Window::map(&self.file, bytes, ptr::from_ref(window).cast_mut()).ok()?;
            let larger = Box::into_raw(larger);
            // SAFETY: just made; it lives until `drop`.
            window = unsafe { &*larger };
            window.readable.store(file_bytes.min(window.bytes), Ordering::Relaxed);
            self.window.store(larger, Ordering::Release);
        }
        // The file never gets shorter, so this never falls.
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
            // SAFETY: each window was made by `Box::into_raw` and is in this list once; nobody
            // borrows from the segment any more.
            let window = unsafe { Box::from_raw(next) };
            next = window.previous;
            // SAFETY: as above, for the mapping.
            unsafe { libc::munmap(window.base.as_ptr().cast(), window.bytes) };
        }
    }
}

impl Window {
    /// Maps `bytes` of the file, which may be more than it has: what lies behind its end is not
    /// touched until it has grown.
    fn map(file: &OwnedFd, bytes: usize, previous: *mut Self) -> io::Result<Box<Self>> {
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, flags, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // The same pages in the core dump of each rank would help nobody.
        // SAFETY: advice about the mapping that was just made.
        unsafe { libc::madvise(base, bytes, libc::MADV_DONTDUMP) };
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Box::new(Self { base, bytes, readable: AtomicUsize::new(0), previous }))
    }

    fn magic(&self) -> u32 {
        // SAFETY: in the header, which `Segment::map` has found to be there, and aligned.
        let magic = unsafe { AtomicU32::from_ptr(self.base.as_ptr().cast()) };
        u32::from_le(magic.load(Ordering::Relaxed))
    }

    fn released(&self) -> &AtomicU32 {
        // SAFETY: in the header; aligned, since mappings are; only touched as an atomic. Memory that
        // can only be read is fine for loads, and there is nothing else done to it here.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(RELEASED_AT).cast()) }
    }

    #[inline]
    fn published(&self) -> &AtomicU64 {
        // SAFETY: as for `released`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(PUBLISHED_AT).cast()) }
    }

    /// What `published` says, which was read from the segment and ends within `readable`.
    #[inline]
    fn view(&self, published: Published) -> Option<View<'_>> {
        let bytes = published.log_bytes();
        // SAFETY: shown above, in the module's documentation.
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

    /// A file in memory with these bytes, sealed or not.
    fn memory(bytes: &[u8], seals: i32) -> File {
        // SAFETY: a system call that makes a descriptor, which is nobody else's.
        let file = unsafe {
            let file = libc::memfd_create(c"test".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            assert!(file >= 0, "there is memory");
            File::from_raw_fd(file)
        };
        file.write_all_at(bytes, 0).unwrap();
        // SAFETY: changes what may be done to the file that was just made.
        assert!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } == 0, "sealed");
        file
    }

    fn again(file: &File) -> OwnedFd {
        file.try_clone().unwrap().into()
    }

    /// A segment with an epoch of one entry, and what is published of it.
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
        assert!(Segment::map(File::open("/dev/null").unwrap().into()).is_err(), "no memory");
        let empty = Segment::map(memory(&bytes, libc::F_SEAL_SHRINK).into()).unwrap();
        assert!(empty.view().is_none(), "nothing is published");
    }

    #[test]
    fn nothing_is_read_that_is_not_in_the_file() {
        let (file, published) = segment();
        let segment = Segment::map(again(&file)).unwrap();
        assert_eq!(segment.view().unwrap().get(b"key"), Some(&b"value"[..]));
        // An agent that promises what is not there.
        for promised in [1 << 20, 1 << 40, u64::MAX >> 1] {
            publish(&file, promised);
            assert!(segment.view().is_none());
        }
        publish(&file, published.closed().to_word());
        assert!(segment.view().is_none());
    }

    #[test]
    fn a_descriptor_that_became_another_file_is_not_mapped() {
        let (file, published) = segment();
        let segment = Segment::map(again(&file)).unwrap();
        let other = memory(&[0; 1 << 16], libc::F_SEAL_SHRINK);
        // SAFETY: what a program does that has closed all descriptors and opened others.
        unsafe { libc::dup2(other.as_raw_fd(), segment.file.as_raw_fd()) };
        assert!(segment.view().is_some(), "what is known to be there is");
        file.set_len(1 << 20).unwrap();
        publish(&file, published.to_word() + 1);
        assert!(segment.view().is_none());
    }
}
