//! The shared segment: memory that an agent writes and its ranks read. It is the log of [`pmi::segment`] in a sealed
//! memfd.
//!
//! The agent maps the file once, with more address space than the file has bytes, and then seals it.
//! F_SEAL_FUTURE_WRITE leaves this one mapping writable and forbids any other, even to a process that gets the file;
//! F_SEAL_SHRINK keeps every page that a reader may touch. The segment grows by pages that are allocated at once:
//! without memory the allocation fails, instead of a signal killing the process that first touches a page. The file
//! is longer than its allocated pages, so that ranks seldom have to query its length.
//!
//! Other processes of the same user can read the log too, with a [`SegmentReader`], at offsets that the writer sends
//! them.
//!
//! # Why this is sound
//!
//! One thread writes ([`Segment`] is used by `&mut`). Bytes of the log are written before they are returned or
//! published, and never changed; slices refer only to such bytes. The two words that do change are in the header, and
//! all processes access them only as atomics. A rank has a read-only descriptor of a file that no other process can
//! map for writing, so it cannot disturb any other process.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl, open};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::stat::Mode;
use pmi::segment::{ALIGNMENT, DIRECTORY_ROOM, FAILED_AT, LOG_AT, MAGIC, PUBLISHED_AT, Published, RELEASED_AT};

/// The address space reserved for a segment, and thus its largest size. If the process may not have that much, half
/// of it is tried, and so on.
const RESERVED_BYTES: usize = 64 << 30;
/// The smallest useful reservation.
const RESERVED_BYTES_MIN: usize = 64 << 20;
/// The smallest number of bytes whose pages are allocated at once.
const GROWTH_BYTES: usize = 64 << 10;
/// The shortest length of the file; longer files have a power of two. Bytes beyond the allocated pages take no
/// memory.
const FILE_BYTES_MIN: usize = 16 << 20;

/// See the module's documentation.
#[derive(Debug)]
pub struct Segment {
    memory: Arc<Memory>,
    file: OwnedFd,
    reader: OwnedFd,
    file_bytes: usize,
    /// The bytes from the start whose pages are allocated.
    allocated_bytes: usize,
    log_bytes: usize,
    /// The offset in the log of reserved room for a directory.
    room_at: Option<usize>,
    published: Published,
}

impl Segment {
    /// Creates an empty segment, with nothing published or released.
    pub fn new() -> io::Result<Self> {
        let file = memfd_create(c"scela-board", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        let memory = Arc::new(Memory::map(file.as_fd(), ProtFlags::PROT_READ | ProtFlags::PROT_WRITE)?);
        fcntl(
            &file,
            FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_SEAL),
        )?;
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let reader = open(own.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let mut segment = Self {
            memory,
            file,
            reader,
            file_bytes: 0,
            allocated_bytes: 0,
            log_bytes: 0,
            room_at: None,
            published: Published::NOTHING,
        };
        segment.grow_to(LOG_AT)?;
        segment.memory.write(0, &MAGIC.to_le_bytes());
        Ok(segment)
    }

    /// Returns a read-only descriptor, with which a rank can map the segment.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Returns the pid and the descriptor with which other processes of this user can open the segment while it
    /// exists.
    pub fn place(&self) -> (u32, i32) {
        (std::process::id(), self.reader.as_raw_fd())
    }

    /// Appends bytes to the log and returns them as a slice of the log. Readers see them after [`Segment::publish`],
    /// for whose directory this reserves room in front of them.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<Bytes> {
        let room_at = self.log_bytes.next_multiple_of(ALIGNMENT);
        let bytes = self.append_at(room_at + DIRECTORY_ROOM, bytes)?;
        self.room_at = Some(room_at);
        Ok(bytes)
    }

    /// Appends at this offset of the log, which was not written before.
    fn append_at(&mut self, at: usize, bytes: &[u8]) -> io::Result<Bytes> {
        let start = LOG_AT + at;
        let end = start.checked_add(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Readers see the log up to a multiple of the alignment.
        self.grow_to(end.next_multiple_of(ALIGNMENT))?;
        // No slice refers to bytes beyond the end of the log.
        self.memory.write(start, bytes);
        self.log_bytes = end - LOG_AT;
        Ok(Bytes::from_owner(Part { memory: Arc::clone(&self.memory), start, bytes: bytes.len() }))
    }

    /// Returns the offset in the log of bytes that [`Segment::append`] returned; `None` for other bytes.
    pub fn offset_of(&self, bytes: &Bytes) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.memory.base.as_ptr() as usize + LOG_AT)?;
        (offset < self.log_bytes).then_some(offset as u64)
    }

    /// Writes a directory and makes all appended bytes visible to readers.
    pub fn publish(&mut self, directory: &[u8]) -> io::Result<()> {
        let at = match self.room_at.take() {
            // The reserved room is not published yet, and no slice refers to it.
            Some(at) if directory.len() <= DIRECTORY_ROOM => {
                self.memory.write(LOG_AT + at, directory);
                at
            }
            _ => {
                let at = self.log_bytes.next_multiple_of(ALIGNMENT);
                self.append_at(at, directory)?;
                at
            }
        };
        self.published = Published::new(self.log_bytes, at).ok_or(io::ErrorKind::OutOfMemory)?;
        self.memory.published().store(self.published.to_word(), Ordering::Release);
        Ok(())
    }

    /// Tells readers that the log is no longer complete.
    pub fn close(&mut self) {
        self.published = self.published.closed();
        self.memory.published().store(self.published.to_word(), Ordering::Release);
    }

    /// Counts one more release and wakes all ranks that wait for it. `failed`: their fence failed, because a rank has died.
    pub fn release(&mut self, failed: bool) {
        let released = self.memory.released();
        if failed {
            self.memory.failed().store(released.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        }
        released.fetch_add(1, Ordering::Release);
        // SAFETY: FUTEX_WAKE uses only the address, which is mapped as long as `self` exists.
        unsafe { libc::syscall(libc::SYS_futex, released.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    fn grow_to(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.allocated_bytes {
            return Ok(());
        }
        if bytes > self.memory.bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let more =
            (bytes - self.allocated_bytes).next_multiple_of(GROWTH_BYTES).min(self.memory.bytes - self.allocated_bytes);
        self.lengthen_to(self.allocated_bytes + more)?;
        self.allocate_pages(self.allocated_bytes, more)?;
        self.allocated_bytes += more;
        Ok(())
    }

    /// Makes the file at least `bytes` long.
    fn lengthen_to(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.file_bytes {
            return Ok(());
        }
        // Growing a file past RLIMIT_FSIZE raises SIGXFSZ, so check the limit first.
        let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        if bytes > limit {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let ample = bytes.next_power_of_two().max(FILE_BYTES_MIN);
        let length = ample.min(self.memory.bytes).min(limit);
        nix::unistd::ftruncate(&self.file, length as i64)?;
        self.file_bytes = length;
        Ok(())
    }

    /// Allocates the pages of a part of the file.
    fn allocate_pages(&self, start: usize, bytes: usize) -> io::Result<()> {
        // MADV_POPULATE_WRITE also maps the pages, which saves a page fault each.
        // SAFETY: a part of our own mapping, and of the file.
        let status =
            unsafe { libc::madvise(self.memory.base.as_ptr().add(start).cast(), bytes, libc::MADV_POPULATE_WRITE) };
        match status {
            0 => Ok(()),
            // Linux before 5.14 has no MADV_POPULATE_WRITE.
            _ if Errno::last() == Errno::EINVAL => {
                Ok(fallocate(&self.file, FallocateFlags::empty(), start as i64, bytes as i64)?)
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A reader of another process's [`Segment`], at offsets that the other process sends.
#[derive(Debug)]
pub struct SegmentReader {
    memory: Arc<Memory>,
    file: OwnedFd,
}

impl SegmentReader {
    /// Opens the segment that the other process describes by [`Segment::place`]. Fails if it is no segment, or
    /// belongs to another user.
    pub fn open((process, descriptor): (u32, i32)) -> io::Result<Self> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { memory: Arc::new(Memory::map(file.as_fd(), ProtFlags::PROT_READ)?), file })
    }

    /// Returns the bytes that the other process appended at this offset; `None` if the file is shorter.
    pub fn bytes(&self, offset: u64, length: u64) -> Option<Bytes> {
        let start = LOG_AT.checked_add(usize::try_from(offset).ok()?)?;
        let bytes = usize::try_from(length).ok()?;
        let end = start.checked_add(bytes)?;
        let file_bytes = usize::try_from(nix::sys::stat::fstat(&self.file).ok()?.st_size).ok()?;
        let is_there = end <= file_bytes.min(self.memory.bytes);
        is_there.then(|| Bytes::from_owner(Part { memory: Arc::clone(&self.memory), start, bytes }))
    }

    /// Returns the offset in the log of bytes that [`SegmentReader::bytes`] returned; `None` for other bytes.
    pub fn offset_of(&self, bytes: &Bytes) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.memory.base.as_ptr() as usize + LOG_AT)?;
        (offset < self.memory.bytes - LOG_AT).then_some(offset as u64)
    }
}

/// A mapping: the writer's or a reader's.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. Only atomics and immutable bytes of it are shared.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(file: BorrowedFd<'_>, access: ProtFlags) -> io::Result<Self> {
        let mut bytes = RESERVED_BYTES;
        loop {
            let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
            let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
            match unsafe { mmap(None, length, access, flags, file, 0) } {
                Ok(base) => {
                    // A core dump would contain every page of the reserved range.
                    // SAFETY: the advice concerns the mapping just made, and changes no memory.
                    unsafe { libc::madvise(base.as_ptr(), bytes, libc::MADV_DONTDUMP) };
                    return Ok(Self { base: base.cast(), bytes });
                }
                Err(_) if bytes > RESERVED_BYTES_MIN => bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes bytes. The caller guarantees that they lie within the file and that no slice refers to them.
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "the bytes lie inside the mapping");
        // SAFETY: inside the mapping, as just checked, and inside the file; `bytes` is other memory, or
        // an earlier part of the log.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    fn released(&self) -> &AtomicU32 {
        // SAFETY: in the header, which the file contains from the beginning; aligned, since mappings are;
        // accessed only as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(RELEASED_AT).cast()) }
    }

    fn failed(&self) -> &AtomicU32 {
        // SAFETY: as for `released`.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(FAILED_AT).cast()) }
    }

    fn published(&self) -> &AtomicU64 {
        // SAFETY: as for `released`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(PUBLISHED_AT).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and no slice of it is left: each slice has an Arc of this.
        let _ = unsafe { munmap(self.base.cast(), self.bytes) };
    }
}

/// A part of the log.
#[derive(Debug)]
struct Part {
    memory: Arc<Memory>,
    start: usize,
    bytes: usize,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Segment::append` wrote these bytes before this value existed (in another process:
        // before that process sent their offset). They lie inside the file and never change.
        unsafe { std::slice::from_raw_parts(self.memory.base.as_ptr().add(self.start), self.bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pmi::segment::{View, directory};
    use pmi::{Board, Epoch};

    fn epoch(number: u32) -> Epoch {
        let (key, value) = (format!("key-{number}"), format!("{number}").repeat(300));
        Epoch::from_entries([(key.as_bytes(), value.as_bytes()), (b"same", value.as_bytes())])
    }

    /// Returns what a rank sees: the releases, the published word, and the log.
    fn seen(segment: &Segment) -> (u32, Published, Vec<u8>) {
        let bytes =
            std::fs::read(format!("/proc/self/fd/{}", segment.reader().as_raw_fd())).expect("the segment can be read");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let published = Published::from_word(word(PUBLISHED_AT));
        (word(RELEASED_AT) as u32, published, bytes[LOG_AT..LOG_AT + published.log_bytes()].to_vec())
    }

    #[test]
    fn readers_see_everything_that_was_published() {
        let mut segment = Segment::new().expect("a segment");
        let mut board = Board::new();
        assert_eq!(seen(&segment).1, Published::NOTHING);
        for number in 0..500 {
            board.publish_with(epoch(number), |epoch| epoch.relocated(|bytes| segment.append(bytes).ok()));
            let place = |run: &Epoch| (segment.offset_of(run.bytes()).expect("in the log"), run.bytes().len() as u64);
            let list = directory(board.runs().iter().rev().map(place));
            segment.publish(&list).expect("the segment has room");
            segment.release(false);
        }
        let (released, published, log) = seen(&segment);
        assert_eq!((released, published.is_closed()), (500, false));
        let view = View::new(&log, published.directory_at()).expect("a directory");
        for number in 0..500 {
            let key = format!("key-{number}");
            assert_eq!(view.get(key.as_bytes()), board.get(key.as_bytes()));
        }
        assert_eq!(view.get(b"same"), Some("499".repeat(300).as_bytes()));
        segment.close();
        assert!(seen(&segment).1.is_closed());
    }

    #[test]
    fn a_failed_release_is_marked_with_its_number() {
        let mut segment = Segment::new().expect("a segment");
        let words = |segment: &Segment| {
            let bytes =
                std::fs::read(format!("/proc/self/fd/{}", segment.reader().as_raw_fd())).expect("it is readable");
            [RELEASED_AT, FAILED_AT].map(|at| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
        };
        for (failed, seen) in [(false, [1, 0]), (true, [2, 2]), (false, [3, 2]), (true, [4, 4])] {
            segment.release(failed);
            assert_eq!(words(&segment), seen);
        }
    }

    #[test]
    fn appended_bytes_outlive_the_segment() {
        let mut segment = Segment::new().expect("a segment");
        let bytes = segment.append(b"abc").expect("the segment has room");
        assert_eq!(segment.offset_of(&bytes), Some(DIRECTORY_ROOM as u64));
        assert_eq!(segment.offset_of(&Bytes::from_static(b"abc")), None);
        drop(segment);
        assert_eq!(&bytes[..], b"abc");
    }

    #[test]
    fn another_process_reads_the_log_at_given_offsets() {
        let mut segment = Segment::new().expect("a segment");
        let reader = SegmentReader::open(segment.place()).expect("the segment can be opened");
        let bytes = segment.append(&[7; 100_000]).expect("the segment has room");
        let offset = segment.offset_of(&bytes).expect("in the log");
        let read = reader.bytes(offset, 100_000).expect("the log reaches so far");
        assert_eq!(read, bytes);
        assert_eq!(reader.offset_of(&read), Some(offset));
        assert_eq!(reader.offset_of(&read.slice(64..)), Some(offset + 64));
        assert_eq!((reader.offset_of(&bytes), reader.offset_of(&Bytes::from_static(b"abc"))), (None, None));
        for (offset, length) in [(offset, 1 << 40), (1 << 40, 1), (u64::MAX, 1), (0, u64::MAX)] {
            assert!(reader.bytes(offset, length).is_none(), "{length} at {offset}");
        }
        drop((segment, reader));
        assert!(read.iter().all(|&byte| byte == 7));
    }

    #[test]
    fn files_that_are_no_segments_are_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(SegmentReader::open((std::process::id(), file.as_raw_fd())).is_err());
        assert!(SegmentReader::open((std::process::id(), -1)).is_err());
    }

    #[test]
    fn a_rank_cannot_write_to_the_segment() {
        let segment = Segment::new().expect("a segment");
        let length = NonZeroUsize::new(LOG_AT).expect("not zero");
        let own = format!("/proc/self/fd/{}", segment.reader().as_raw_fd());
        // Not even after opening the file again for writing.
        let again =
            open(own.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).expect("the file can be opened");
        for file in [segment.reader(), again.as_fd()] {
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping touches no other memory.
            let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) };
            assert!(mapped.is_err(), "the segment was mapped for writing");
            assert!(nix::unistd::write(file, b"x").is_err(), "the segment was written to");
            assert!(nix::unistd::ftruncate(file, 0).is_err(), "the segment was truncated");
        }
    }
}
