//! Memory that an agent writes and its ranks read: the log of [`pmi::segment`] in a sealed memfd.
//!
//! The file is mapped here once, larger than it is, and then sealed: F_SEAL_FUTURE_WRITE leaves this
//! one mapping writable and allows no other, whoever gets hold of the file; F_SEAL_SHRINK keeps
//! every page that a reader may touch. It grows by pages that are taken at once, which fails where
//! there is no memory, in place of killing whoever touches the page first. The file is longer than
//! these pages reach, so that ranks seldom have to ask how long it is by now.
//!
//! Other processes of the same user may read it too, by a [`SegmentReader`]: what they are told to lie
//! in the log.
//!
//! # Why this is sound
//!
//! One thread writes ([`Segment`] is used by `&mut`). Bytes of the log are written before they are
//! handed out or published, and never again; slices are made of such bytes only. The two words that
//! do change are in the header and only ever touched as atomics, here and in the ranks. A rank has
//! a read-only descriptor of a file that nobody else can map for writing: it can disturb nobody.

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
use pmi::segment::{ALIGNMENT, DIRECTORY_ROOM, LOG_AT, MAGIC, PUBLISHED_AT, Published, RELEASED_AT};

/// Address space that is reserved for a segment, and thus its largest size; where the process may
/// not have so much, half of it, and so on.
const RESERVED_BYTES: usize = 64 << 30;
/// Less is not worth while.
const RESERVED_BYTES_MIN: usize = 64 << 20;
/// So many bytes of pages are taken at a time, at least.
const GROWTH_BYTES: usize = 64 << 10;
/// How long the file is at least; then a power of two. Longer than what lies in it, it takes no memory.
const FILE_BYTES_MIN: usize = 16 << 20;

/// See the module.
#[derive(Debug)]
pub struct Segment {
    memory: Arc<Memory>,
    file: OwnedFd,
    reader: OwnedFd,
    file_bytes: usize,
    /// Up to where pages have been taken.
    taken_bytes: usize,
    log_bytes: usize,
    /// Where in the log there is room for a directory.
    room_at: Option<usize>,
    published: Published,
}

impl Segment {
    /// An empty segment: nothing is published, nothing released.
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
            taken_bytes: 0,
            log_bytes: 0,
            room_at: None,
            published: Published::NOTHING,
        };
        segment.grow_to(LOG_AT)?;
        segment.memory.write(0, &MAGIC.to_le_bytes());
        Ok(segment)
    }

    /// A descriptor by which a rank can map it, for reading only.
    pub fn reader(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }

    /// Where other processes of this user find it as long as this lives: this process and a descriptor.
    pub fn place(&self) -> (u32, i32) {
        (std::process::id(), self.reader.as_raw_fd())
    }

    /// Appends to the log, and returns the same bytes where they lie now. Readers do not see them
    /// before [`Segment::publish`], whose directory finds room in front of them.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<Bytes> {
        let room_at = self.log_bytes.next_multiple_of(ALIGNMENT);
        let bytes = self.append_at(room_at + DIRECTORY_ROOM, bytes)?;
        self.room_at = Some(room_at);
        Ok(bytes)
    }

    /// Appends at this place of the log, which nobody has written to.
    fn append_at(&mut self, at: usize, bytes: &[u8]) -> io::Result<Bytes> {
        let start = LOG_AT + at;
        let end = start.checked_add(bytes.len()).ok_or(io::ErrorKind::OutOfMemory)?;
        // Readers see the log up to a multiple of the alignment.
        self.grow_to(end.next_multiple_of(ALIGNMENT))?;
        // Nobody has a slice of what lies behind the log's end.
        self.memory.write(start, bytes);
        self.log_bytes = end - LOG_AT;
        Ok(Bytes::from_owner(Part { memory: Arc::clone(&self.memory), start, bytes: bytes.len() }))
    }

    /// Where in the log bytes lie that [`Segment::append`] returned.
    pub fn offset_of(&self, bytes: &Bytes) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.memory.base.as_ptr() as usize + LOG_AT)?;
        (offset < self.log_bytes).then_some(offset as u64)
    }

    /// Writes a directory and makes all that was appended visible to readers.
    pub fn publish(&mut self, directory: &[u8]) -> io::Result<()> {
        let at = match self.room_at.take() {
            // Not published yet, and nobody has a slice of it.
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

    /// Tells readers that the log is not all there is.
    pub fn close(&mut self) {
        self.published = self.published.closed();
        self.memory.published().store(self.published.to_word(), Ordering::Release);
    }

    /// Counts one more release, and wakes all who wait for it.
    pub fn release(&mut self) {
        let released = self.memory.released();
        released.fetch_add(1, Ordering::Release);
        // SAFETY: FUTEX_WAKE looks at the address only, which is mapped as long as `self` is.
        unsafe { libc::syscall(libc::SYS_futex, released.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    fn grow_to(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.taken_bytes {
            return Ok(());
        }
        if bytes > self.memory.bytes {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let more = (bytes - self.taken_bytes).next_multiple_of(GROWTH_BYTES).min(self.memory.bytes - self.taken_bytes);
        self.lengthen_to(self.taken_bytes + more)?;
        self.take_pages(self.taken_bytes, more)?;
        self.taken_bytes += more;
        Ok(())
    }

    /// Makes the file at least so long.
    fn lengthen_to(&mut self, bytes: usize) -> io::Result<()> {
        if bytes <= self.file_bytes {
            return Ok(());
        }
        // Who makes a file longer than `ulimit -f` is killed.
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

    /// Takes the pages of a part of the file, or fails.
    fn take_pages(&self, start: usize, bytes: usize) -> io::Result<()> {
        // Takes the pages and maps them at once, where touching them would be a fault each.
        // SAFETY: a part of our own mapping, and of the file.
        let taken =
            unsafe { libc::madvise(self.memory.base.as_ptr().add(start).cast(), bytes, libc::MADV_POPULATE_WRITE) };
        match taken {
            0 => Ok(()),
            // Before Linux 5.14.
            _ if Errno::last() == Errno::EINVAL => {
                Ok(fallocate(&self.file, FallocateFlags::empty(), start as i64, bytes as i64)?)
            }
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The log of another process's [`Segment`], to be read where that process says that something lies.
#[derive(Debug)]
pub struct SegmentReader {
    memory: Arc<Memory>,
    file: OwnedFd,
}

impl SegmentReader {
    /// Opens what that process has as [`Segment::place`]. Fails if it is no segment, or is another
    /// user's.
    pub fn open((process, descriptor): (u32, i32)) -> io::Result<Self> {
        let path = format!("/proc/{process}/fd/{descriptor}");
        let file = open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?;
        let seals = SealFlag::from_bits_retain(fcntl(&file, FcntlArg::F_GET_SEALS)?);
        if !seals.contains(SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SHRINK) {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { memory: Arc::new(Memory::map(file.as_fd(), ProtFlags::PROT_READ)?), file })
    }

    /// Bytes that the other process has appended at this offset of the log; `None` if the log does
    /// not reach so far.
    pub fn bytes(&self, offset: u64, length: u64) -> Option<Bytes> {
        let start = LOG_AT.checked_add(usize::try_from(offset).ok()?)?;
        let bytes = usize::try_from(length).ok()?;
        let end = start.checked_add(bytes)?;
        let file_bytes = usize::try_from(nix::sys::stat::fstat(&self.file).ok()?.st_size).ok()?;
        let is_there = end <= file_bytes.min(self.memory.bytes);
        is_there.then(|| Bytes::from_owner(Part { memory: Arc::clone(&self.memory), start, bytes }))
    }

    /// Where in the log bytes lie that [`SegmentReader::bytes`] returned; `None` of all others.
    pub fn offset_of(&self, bytes: &Bytes) -> Option<u64> {
        let offset = (bytes.as_ptr() as usize).checked_sub(self.memory.base.as_ptr() as usize + LOG_AT)?;
        (offset < self.memory.bytes - LOG_AT).then_some(offset as u64)
    }
}

/// A mapping: the one writable one, or a reader's.
#[derive(Debug)]
struct Memory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. What is shared of it are atomics, and
// bytes that do not change any more.
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
                Ok(base) => return Ok(Self { base: base.cast(), bytes }),
                Err(_) if bytes > RESERVED_BYTES_MIN => bytes /= 2,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes bytes that lie within the file and of which nobody has a slice: callers see to both.
    fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at.checked_add(bytes.len()).is_some_and(|end| end <= self.bytes), "written inside of the mapping");
        // SAFETY: inside of the mapping, as was just checked, and of the file; `bytes` is elsewhere
        // or in a part of the log that lies in front.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.base.as_ptr().add(at), bytes.len()) };
    }

    fn released(&self) -> &AtomicU32 {
        // SAFETY: in the header, which is inside of the file from the beginning; aligned, since
        // mappings are; never touched but as an atomic.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(RELEASED_AT).cast()) }
    }

    fn published(&self) -> &AtomicU64 {
        // SAFETY: as for `released`.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(PUBLISHED_AT).cast()) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no slice of it is left: each holds an Arc of this.
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
        // SAFETY: written by `Segment::append` before this was made (by that of another process before
        // it told us), inside of the file, and never again.
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

    /// What a rank sees: its own mapping of the descriptor that it was given.
    fn seen(segment: &Segment) -> (u32, Published, Vec<u8>) {
        let bytes = std::fs::read(format!("/proc/self/fd/{}", segment.reader().as_raw_fd())).expect("it can be read");
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let published = Published::from_word(word(PUBLISHED_AT));
        (word(RELEASED_AT) as u32, published, bytes[LOG_AT..LOG_AT + published.log_bytes()].to_vec())
    }

    #[test]
    fn readers_see_what_is_published_and_all_of_it() {
        let mut segment = Segment::new().expect("a segment");
        let mut board = Board::new();
        assert_eq!(seen(&segment).1, Published::NOTHING);
        for number in 0..500 {
            board.publish_with(epoch(number), |epoch| epoch.relocated(|bytes| segment.append(bytes).ok()));
            let place = |run: &Epoch| (segment.offset_of(run.bytes()).expect("in the log"), run.bytes().len() as u64);
            let list = directory(board.runs().iter().rev().map(place));
            segment.publish(&list).expect("there is room");
            segment.release();
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
    fn what_was_handed_out_outlives_the_segment() {
        let mut segment = Segment::new().expect("a segment");
        let bytes = segment.append(b"abc").expect("there is room");
        assert_eq!(segment.offset_of(&bytes), Some(DIRECTORY_ROOM as u64));
        assert_eq!(segment.offset_of(&Bytes::from_static(b"abc")), None);
        drop(segment);
        assert_eq!(&bytes[..], b"abc");
    }

    #[test]
    fn another_process_reads_what_it_is_told_of() {
        let mut segment = Segment::new().expect("a segment");
        let reader = SegmentReader::open(segment.place()).expect("it can be opened");
        let bytes = segment.append(&[7; 100_000]).expect("there is room");
        let offset = segment.offset_of(&bytes).expect("in the log");
        let read = reader.bytes(offset, 100_000).expect("it is there");
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
    fn only_segments_are_read() {
        let file = std::fs::File::open("/proc/self/exe").expect("a file");
        assert!(SegmentReader::open((std::process::id(), file.as_raw_fd())).is_err());
        assert!(SegmentReader::open((std::process::id(), -1)).is_err());
    }

    #[test]
    fn a_rank_can_only_read() {
        let segment = Segment::new().expect("a segment");
        let length = NonZeroUsize::new(LOG_AT).expect("not zero");
        let own = format!("/proc/self/fd/{}", segment.reader().as_raw_fd());
        // Even by opening the file anew for writing.
        let again = open(own.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).expect("it may be opened");
        for file in [segment.reader(), again.as_fd()] {
            let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            // SAFETY: a new mapping touches no other memory.
            let mapped = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, file, 0) };
            assert!(mapped.is_err(), "mapped for writing");
            assert!(nix::unistd::write(file, b"x").is_err(), "written");
            assert!(nix::unistd::ftruncate(file, 0).is_err(), "cut");
        }
    }
}
