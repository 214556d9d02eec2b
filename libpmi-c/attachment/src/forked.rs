//! Whether this process is a child of the one that initialised PMI, told by a memory read.
//!
//! A child that was forked has a copy of everything: the connection, locks that another thread may
//! hold at that moment, the state that says "initialised". None of it is the child's: what it said
//! on the connection would be taken for its parent's words. So each call asks here first.
//!
//! A page that the kernel wipes in children (`MADV_WIPEONFORK`, Linux 4.14) says it without a
//! system call, however the child was made. Where there is none, the process id is compared.

use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// The page's first byte, or [`NO_PAGE`]; null before [`mark`].
static MARK: AtomicPtr<AtomicU8> = AtomicPtr::new(ptr::null_mut());
/// Stands for a page where there can be none.
static NO_PAGE: AtomicU8 = AtomicU8::new(OWNER);
/// The process that called [`mark`], where there is no page.
static PROCESS: AtomicU32 = AtomicU32::new(0);

const OWNER: u8 = 1;
const PAGE_BYTES: usize = 4096;

/// Marks this process as the one whose children are to be told apart. To be called before anything
/// is locked or connected. Once is enough; in a child it changes nothing.
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

/// Whether the process that called [`mark`] is an ancestor of this one.
#[inline]
pub(crate) fn is_child() -> bool {
    let mark = MARK.load(Ordering::Acquire);
    if mark.is_null() {
        return false;
    }
    // SAFETY: `mark` is `NO_PAGE` or the page of `wiped_page`; both are for ever. Nobody but the
    // kernel, in a child that has no other thread yet, changes them.
    let owner = unsafe { (*mark).load(Ordering::Relaxed) } == OWNER;
    !owner || (ptr::eq(mark, &NO_PAGE) && PROCESS.load(Ordering::Relaxed) != std::process::id())
}

/// A page that reads [`OWNER`] here and 0 in children.
fn wiped_page() -> Option<*mut AtomicU8> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
    let page = unsafe { libc::mmap(ptr::null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was just mapped, is nobody else's, and is not used after it is unmapped.
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

    /// What `is_child` says in a child, by its exit code.
    fn told_by_a_child() -> i32 {
        // SAFETY: the child reads memory, and leaves without running anything of the parent's.
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
    fn a_child_knows() {
        mark();
        mark();
        assert!(!is_child());
        assert_eq!(told_by_a_child(), 1);
        assert!(!is_child());
    }
}
