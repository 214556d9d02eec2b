//! Detects, by one memory read, whether this process is a forked child of the one that initialised PMI.
//!
//! A forked child has a copy of everything: the connection, locks that another thread may hold at that
//! moment, and the state that says "initialised". It must use none of them: the server would take its
//! requests for the parent's. So each call checks this first.
//!
//! A page that the kernel zeroes in children (`MADV_WIPEONFORK`, Linux 4.14) answers without a system
//! call, however the child was created. On older kernels the process id is compared instead.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// The page's first byte, or [`NO_PAGE`]; null before [`mark`].
static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
/// Takes the place of the page where the kernel cannot provide one.
static NO_PAGE: AtomicU8 = AtomicU8::new(OWNER);
/// The id of the process that called [`mark`]; used without a page only.
static PROCESS: AtomicU32 = AtomicU32::new(0);

const OWNER: u8 = 1;
const PAGE_BYTES: usize = 4096;

/// Records this process as the one whose forked children are detected. Must be called before anything
/// is locked or connected. Further calls, and calls in a child, change nothing.
pub(crate) fn mark() {
    static MARKING: Mutex<()> = Mutex::new(());
    if !MARK.load(Ordering::Acquire).is_null() {
        return;
    }
    let Ok(_marking) = MARKING.lock() else { return };
    if MARK.load(Ordering::Acquire).is_null() {
        let mark = wiped_page().unwrap_or_else(|| {
            PROCESS.store(std::process::id(), Ordering::Relaxed);
            ptr::from_ref(&NO_PAGE).cast_mut()
        });
        MARK.store(mark, Ordering::Release);
    }
}

/// Returns whether the process that called [`mark`] is an ancestor of this one.
#[inline]
pub(crate) fn is_child() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        return false;
    }
    // SAFETY: `mark` is `NO_PAGE` or the page of `wiped_page`, and neither is ever freed. Only the
    // kernel changes them, in a child that has no other thread yet.
    let owner = unsafe { (*mark).load(Ordering::Relaxed) } == OWNER;
    !owner || (ptr::eq(mark, &NO_PAGE) && PROCESS.load(Ordering::Relaxed) != std::process::id())
}

/// Maps a page that reads [`OWNER`] here and 0 in forked children.
fn wiped_page() -> Option<*mut AtomicU8> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped, no other code refers to it, and it is not used after munmap.
    unsafe {
        if libc::madvise(page, PAGE_BYTES, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(page, PAGE_BYTES);
            return None;
        }
        let mark = page.cast::<AtomicU8>();
        (*mark).store(OWNER, Ordering::Relaxed);
        Some(mark)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what `is_child` returns in a forked child, through the child's exit code.
    fn is_child_in_a_child() -> i32 {
        // SAFETY: the child reads memory and calls _exit without running any of the parent's exit handlers.
        unsafe {
            let child = libc::fork();
            assert!(child >= 0, "fork failed");
            if child == 0 {
                libc::_exit(i32::from(is_child()));
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn a_forked_child_is_detected() {
        mark();
        mark();
        assert!(!is_child());
        assert_eq!(is_child_in_a_child(), 1);
        assert!(!is_child());
    }
}
