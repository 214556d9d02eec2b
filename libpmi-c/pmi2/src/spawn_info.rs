//! The hints of `PMI2_Job_Spawn`, which callers pass in two shapes.
//!
//! Slurm's clients pass an array of [`Info`]. Intel MPI passes its own info object: a list whose elements are linked by
//! `next`, of which the last one's is not initialized. (Intel MPI 2021.18 crashes when it frees that list after the call,
//! with any libpmi2.) The size is the number of pairs in both. An array's `next` are not initialized either, so an
//! element is trusted only after the kernel has read it.

use std::ffi::{c_char, c_int};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use attachment::c;

/// `struct MPID_Info`.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub(crate) struct Info {
    handle: c_int,
    pobj_mutex: c_int,
    ref_count: c_int,
    next: *const Self,
    pub(crate) key: *const c_char,
    pub(crate) value: *const c_char,
}

/// Copies `size` pairs from a list or an array.
///
/// They are a list if following `next` leads to `size` different elements that have a key and a value. A chain of
/// uninitialized pointers does not lead there.
///
/// # Safety
///
/// `first` is NULL, or the first element of an array or of a list with `size` elements.
pub(crate) unsafe fn read(first: *const Info, size: usize) -> Vec<Info> {
    // SAFETY: what is no list is an array, as the caller guarantees.
    list(first, size).unwrap_or_else(|| unsafe { c::array(first, size).to_vec() })
}

fn list(first: *const Info, size: usize) -> Option<Vec<Info>> {
    let prober = Prober::new().ok()?;
    let (mut elements, mut infos) = (Vec::new(), Vec::new());
    let mut next = first;
    for _ in 0..size {
        let info = prober.read(next).filter(|_| !elements.contains(&next))?;
        prober.read(info.key)?;
        prober.read(info.value)?;
        elements.push(next);
        infos.push(info);
        next = info.next;
    }
    Some(infos)
}

/// Reads memory that may not be mapped, without a signal: it passes through a pipe, and the kernel refuses to write
/// what it cannot read (EFAULT).
struct Prober {
    output: OwnedFd,
    input: OwnedFd,
}

impl Prober {
    fn new() -> io::Result<Self> {
        let mut pipe = [-1; 2];
        // SAFETY: an array of two descriptors.
        if unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: pipe2 has just opened both.
        let [output, input] = pipe.map(|descriptor| unsafe { OwnedFd::from_raw_fd(descriptor) });
        Ok(Self { output, input })
    }

    /// Copies the value at an address; `None` if it cannot be read. Any bytes must be a valid `T`.
    fn read<T: Copy>(&self, address: *const T) -> Option<T> {
        let (bytes, mut value) = (size_of::<T>(), MaybeUninit::<T>::uninit());
        // SAFETY: the kernel checks the address. It writes `bytes` bytes at once, or none or a part if some cannot be read.
        let written = unsafe { libc::write(self.input.as_raw_fd(), address.cast(), bytes) };
        // SAFETY: `value` has room for `bytes` bytes.
        let read = unsafe { libc::read(self.output.as_raw_fd(), value.as_mut_ptr().cast(), bytes) };
        // SAFETY: all bytes of the value were read, and the caller passes no type that forbids some.
        (written == bytes as isize && read == written).then(|| unsafe { value.assume_init() })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;
    use std::ptr;

    use super::*;

    /// The `next` of an element that no library has set.
    const UNINITIALIZED: *const Info = ptr::without_provenance(0x4c41_4e47_4953_5f54);
    const WDIR: (&CStr, &CStr) = (c"wdir", c"/tmp");
    const SOFT: (&CStr, &CStr) = (c"soft", c"1:2");
    const PATH: (&CStr, &CStr) = (c"path", c"");

    fn info((key, value): (&CStr, &CStr), next: *const Info) -> Info {
        Info { handle: 0, pobj_mutex: 0, ref_count: 0, next, key: key.as_ptr(), value: value.as_ptr() }
    }

    fn check(first: *const Info, expected: &[(&CStr, &CStr)]) {
        // SAFETY: the tests pass arrays and lists of literals with as many elements.
        let infos = unsafe { read(first, expected.len()) };
        // SAFETY: as above.
        let text = |text| unsafe { CStr::from_ptr(text) };
        let pairs: Vec<_> = infos.iter().map(|info| (text(info.key), text(info.value))).collect();
        assert_eq!(pairs, expected);
    }

    #[test]
    fn an_array_is_read_whatever_its_elements_point_to() {
        let all = [WDIR, SOFT, PATH];
        for next in [ptr::null(), UNINITIALIZED, ptr::without_provenance(8), ptr::from_ref(&all).cast()] {
            check(all.map(|pair| info(pair, next)).as_ptr(), &all);
        }
        let mut own = all.map(|pair| info(pair, ptr::null()));
        own[0].next = own.as_ptr();
        check(own.as_ptr(), &all);
    }

    #[test]
    fn a_list_is_read_whatever_its_last_element_points_to() {
        for next in [ptr::null(), UNINITIALIZED] {
            let last = info(PATH, next);
            let middle = info(SOFT, &raw const last);
            let first = Box::new(info(WDIR, &raw const middle));
            check(&raw const *first, &[WDIR, SOFT, PATH]);
        }
    }

    #[test]
    fn no_pairs_are_read_where_there_are_none() {
        check(ptr::null(), &[]);
        // SAFETY: NULL is allowed.
        assert!(unsafe { read(ptr::null(), 3) }.is_empty());
        let one = info(WDIR, UNINITIALIZED);
        check(&raw const one, &[WDIR]);
    }

    #[test]
    fn memory_that_is_not_mapped_is_not_read() {
        let prober = Prober::new().unwrap();
        assert_eq!(prober.read(UNINITIALIZED.cast::<u8>()), None);
        assert_eq!(prober.read(&7_u32), Some(7), "a refused read leaves nothing in the pipe");
        let page = 4096;
        // SAFETY: a new mapping, of which the second page is unmapped.
        let edge = unsafe {
            let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let pages = libc::mmap(ptr::null_mut(), 2 * page, libc::PROT_READ, anonymous, -1, 0).cast::<u8>();
            libc::munmap(pages.add(page).cast(), page);
            pages.add(page)
        };
        assert_eq!(prober.read(edge.wrapping_sub(4).cast::<u64>()), None);
        assert_eq!(prober.read(edge.wrapping_sub(4).cast::<u32>()), Some(0));
    }
}
