//! The allocator of the program: the system's, which keeps some freed memory, with large pages for long allocations.
//!
//! A board of a large job is written once, to fresh memory. The kernel then maps and clears each page of 4 KiB on first
//! use, which takes longer than to merge the entries. With pages of 2 MiB that is a small part of the time. Kernels whose
//! setting is "always" do this unasked; where it is "madvise", a process must ask.

use std::alloc::{GlobalAlloc, Layout, System};

use nix::libc;

/// The shortest allocation for which large pages are asked. Shorter ones would waste the rest of a page.
const BYTES_MIN: usize = 8 << 20;
/// The length of small pages, to which a request must be aligned. A multiple of the length on all machines would do.
const PAGE_BYTES: usize = 64 * 1024;

/// The freed memory that stays with the process, per heap, and the shortest allocation that gets a mapping of its own.
#[cfg(target_env = "gnu")]
const KEPT_BYTES: libc::c_int = 1 << 20;

/// Makes glibc's malloc keep up to 1 MiB of freed memory. By default it returns 128 KiB to the kernel, and takes and clears
/// them again for the next messages of output: a sixth of the time of a flood.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    for threshold in [libc::M_TRIM_THRESHOLD, libc::M_MMAP_THRESHOLD] {
        // SAFETY: mallopt takes two integers, and changes nothing but the time at which memory is returned. A failure costs
        // speed.
        unsafe { libc::mallopt(threshold, KEPT_BYTES) };
    }
}

/// The system's allocator, which asks for large pages for allocations of 8 MiB and more.
pub struct LargePages;

/// Asks for large pages within the allocation. The kernel may ignore it.
fn advise(start: *mut u8, bytes: usize) {
    if bytes < BYTES_MIN || start.is_null() {
        return;
    }
    let skipped = start.align_offset(PAGE_BYTES);
    if let Some(length) = bytes.checked_sub(skipped) {
        // SAFETY: the range lies within an allocation of this process. The advice changes how its pages are mapped, not
        // their content. An error is ignored, because the memory can be used all the same.
        unsafe { libc::madvise(start.wrapping_add(skipped).cast(), length, libc::MADV_HUGEPAGE) };
    }
}

// SAFETY: each method passes its arguments on to the system's allocator and returns its result. The advice in between
// neither allocates nor touches the memory's content.
unsafe impl GlobalAlloc for LargePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract, which is the same.
        let start = unsafe { System.alloc(layout) };
        advise(start, layout.size());
        start
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let start = unsafe { System.alloc_zeroed(layout) };
        advise(start, layout.size());
        start
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        let start = unsafe { System.realloc(start, layout, bytes) };
        advise(start, bytes);
        start
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(start, layout) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_the_same_with_large_pages() {
        let layout = |bytes| Layout::from_size_align(bytes, 8).unwrap();
        for bytes in [BYTES_MIN - 1, BYTES_MIN, 3 * BYTES_MIN + 5] {
            // SAFETY: the layouts have a size, each allocation is used within its length and freed once.
            unsafe {
                let start = LargePages.alloc_zeroed(layout(bytes));
                assert!(!start.is_null());
                assert_eq!((*start, *start.add(bytes - 1)), (0, 0));
                *start.add(bytes - 1) = 7;
                let start = LargePages.realloc(start, layout(bytes), 2 * bytes);
                assert_eq!(*start.add(bytes - 1), 7);
                LargePages.dealloc(start, layout(2 * bytes));
            }
        }
    }
}
