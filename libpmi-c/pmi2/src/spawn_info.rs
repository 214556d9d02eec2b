//! The pairs of `PMI2_Job_Spawn`: hints and preputs, which callers pass in three shapes.
//!
//! Slurm's clients pass an array of [`Info`]. Intel MPI passes its own info object: a list whose elements are linked by
//! `next`, of which the last one's is not initialized. (Intel MPI 2021.18 crashes when it frees that list after the call,
//! with any libpmi2.) MVAPICH2 2.3 passes an info object of its own, too, but its header has a number less ([`ShortInfo`]).
//! The size is the number of pairs in all of them. An array's `next` are not initialized either.
//!
//! So no pointer is trusted before the kernel has read what it points to, and the shape is the first one in which all
//! pairs have a plausible key and a value that is a string.

use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use attachment::c::Outcome;
use attachment::limits;
use attachment::spawn::Pairs;

use crate::{PMI2_ERR_INVALID_ARG, PMI2_ERR_OTHER};

/// `struct MPID_Info` of Slurm's header and of ours.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub(crate) struct Info {
    handle: c_int,
    pobj_mutex: c_int,
    ref_count: c_int,
    next: *const Self,
    key: *const c_char,
    value: *const c_char,
}

/// `struct MPID_Info` of MVAPICH2 2.3.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
struct ShortInfo {
    handle: c_int,
    ref_count: c_int,
    next: *const Self,
    key: *const c_char,
    value: *const c_char,
}

/// What both structs have.
#[derive(Copy, Clone)]
struct Element {
    next: *const c_void,
    key: *const c_char,
    value: *const c_char,
}

/// Reads an element at an address, if it can be read.
type ReadElement = fn(&Prober, *const c_void) -> Option<Element>;

/// Copies the hints of a command: `size` pairs of an array or a list.
pub(crate) fn hints(first: *const Info, size: usize) -> Outcome<Pairs> {
    if first.is_null() || size == 0 {
        return Ok(Vec::new());
    }
    let prober = Prober::new().map_err(|_| PMI2_ERR_OTHER)?;
    let first: *const c_void = first.cast();
    let array = |is_key: fn(&[u8]) -> bool| {
        prober.pairs(is_key, (0..size).map(|at| info(&prober, element_of_array(first, at))))
    };
    let list = |read: ReadElement| prober.pairs(is_plausible, prober.list(read, first, size).into_iter().map(Some));
    let found = list(info).filter(|pairs| pairs.len() == size).or_else(|| array(is_plausible));
    let found = found.or_else(|| list(short_info).filter(|pairs| pairs.len() == size));
    found.or_else(|| array(is_any)).ok_or(PMI2_ERR_INVALID_ARG)
}

/// Copies the preputs: `infos` are pointers to one pair each.
pub(crate) fn preputs(infos: &[*const Info]) -> Outcome<Pairs> {
    let prober = Prober::new().map_err(|_| PMI2_ERR_OTHER)?;
    let one = |&info: &*const Info, read: ReadElement, is_key: fn(&[u8]) -> bool| {
        prober.pairs(is_key, std::iter::once(read(&prober, info.cast())))
    };
    let pair = |address| {
        let found = one(address, info, is_plausible).or_else(|| one(address, short_info, is_plausible));
        found.or_else(|| one(address, info, is_any)).ok_or(PMI2_ERR_INVALID_ARG)
    };
    Ok(infos.iter().map(pair).collect::<Outcome<Vec<_>>>()?.concat())
}

fn info(prober: &Prober, address: *const c_void) -> Option<Element> {
    let Info { next, key, value, .. } = prober.read(address.cast())?;
    Some(Element { next: next.cast(), key, value })
}

fn short_info(prober: &Prober, address: *const c_void) -> Option<Element> {
    let ShortInfo { next, key, value, .. } = prober.read(address.cast())?;
    Some(Element { next: next.cast(), key, value })
}

fn element_of_array(first: *const c_void, at: usize) -> *const c_void {
    first.cast::<Info>().wrapping_add(at).cast()
}

/// Whether these bytes may be a key, rather than a value that lies where another shape has its key: in an [`Info`] that
/// is read as a [`ShortInfo`], or the other way round. A port has `#` and `$`, a path begins with `/`.
fn is_plausible(key: &[u8]) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-.:".contains(byte);
    (1..=limits::SPAWN_KEY_BYTES_MAX).contains(&key.len()) && key.iter().all(is_word)
}

fn is_any(_: &[u8]) -> bool {
    true
}

/// Reads memory that may not be mapped, without a signal: it passes through a pipe, and the kernel refuses to write
/// what it cannot read (EFAULT).
struct Prober {
    output: OwnedFd,
    input: OwnedFd,
}

/// Bytes of a string that are copied at once; a divisor of every page's size.
const CHUNK_BYTES: usize = 1024;

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

    /// Follows `next` from `first` to at most `size` elements. A list may begin with an element without a key, which does
    /// not count. Ends at what cannot be read, and at an element that was there before.
    fn list(&self, read: ReadElement, first: *const c_void, size: usize) -> Vec<Element> {
        let (mut addresses, mut elements) = (Vec::new(), Vec::new());
        let mut address = first;
        while elements.len() < size
            && !addresses.contains(&address)
            && let Some(element) = read(self, address)
        {
            if !addresses.is_empty() || !element.key.is_null() {
                elements.push(element);
            }
            addresses.push(address);
            address = element.next;
        }
        elements
    }

    /// Copies the pairs of all elements. `None` if one is missing, if one of its strings cannot be read up to its NUL, or
    /// if its key is none.
    fn pairs(&self, is_key: fn(&[u8]) -> bool, elements: impl Iterator<Item = Option<Element>>) -> Option<Pairs> {
        let pair = |element: Option<Element>| {
            let Element { key, value, .. } = element?;
            let key = self.string(key).filter(|key| is_key(key))?;
            Some((key, self.string(value)?))
        };
        elements.map(pair).collect()
    }

    /// Copies a string of at most [`limits::SPAWN_BYTES_MAX`] bytes.
    fn string(&self, text: *const c_char) -> Option<Vec<u8>> {
        if text.is_null() {
            return None;
        }
        let mut copied = Vec::new();
        while copied.len() <= limits::SPAWN_BYTES_MAX {
            let address = text.wrapping_add(copied.len());
            // No further than the next multiple, so that no page is touched that the string does not reach.
            let bytes = CHUNK_BYTES - address.addr() % CHUNK_BYTES;
            let chunk: [u8; CHUNK_BYTES] = self.read_some(address.cast(), bytes)?;
            match chunk[..bytes].iter().position(|&byte| byte == 0) {
                None => copied.extend_from_slice(&chunk[..bytes]),
                Some(end) => {
                    copied.extend_from_slice(&chunk[..end]);
                    return Some(copied);
                }
            }
        }
        None
    }

    /// Copies the value at an address; `None` if it cannot be read. Any bytes must be a valid `T`.
    fn read<T: Copy>(&self, address: *const T) -> Option<T> {
        self.read_some(address.cast(), size_of::<T>())
    }

    /// Copies the first `bytes` bytes of a value, of which the others are 0. Any bytes must be a valid `T`.
    fn read_some<T: Copy>(&self, address: *const c_void, bytes: usize) -> Option<T> {
        let mut value = MaybeUninit::<T>::zeroed();
        let bytes = bytes.min(size_of::<T>());
        // SAFETY: the kernel checks the address. It writes `bytes` bytes at once, or none or a part if some cannot be read.
        let written = unsafe { libc::write(self.input.as_raw_fd(), address, bytes) };
        // SAFETY: `value` has room for `bytes` bytes.
        let read = unsafe { libc::read(self.output.as_raw_fd(), value.as_mut_ptr().cast(), bytes) };
        // SAFETY: all bytes of the value are initialized, and the caller passes no type that forbids some.
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
    const HOST: (&CStr, &CStr) = (c"host", c"node1");
    const PORT: (&CStr, &CStr) = (c"PARENT_ROOT_PORT_NAME", c"tag#0$desc#a$");

    fn info((key, value): (&CStr, &CStr), next: *const Info) -> Info {
        Info { handle: 0, pobj_mutex: 0, ref_count: 0, next, key: key.as_ptr(), value: value.as_ptr() }
    }

    fn short((key, value): (&CStr, &CStr), next: *const ShortInfo) -> ShortInfo {
        ShortInfo { handle: 0x1c00_0001, ref_count: 1, next, key: key.as_ptr(), value: value.as_ptr() }
    }

    /// An element with the word that follows it in memory, where an [`Info`] has its value.
    #[repr(C)]
    struct Followed(ShortInfo, *const c_char);

    fn bytes(expected: &[(&CStr, &CStr)]) -> Pairs {
        expected.iter().map(|(key, value)| (key.to_bytes().to_vec(), value.to_bytes().to_vec())).collect()
    }

    #[track_caller]
    fn check<T>(first: *const T, expected: &[(&CStr, &CStr)]) {
        assert_eq!(hints(first.cast(), expected.len()), Ok(bytes(expected)));
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
        // A key of any bytes, where no other shape fits.
        check([info((c"a key", c"1"), UNINITIALIZED)].as_ptr(), &[(c"a key", c"1")]);
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
    fn lists_of_mvapich2_are_read_with_and_without_a_head() {
        for next in [ptr::null(), UNINITIALIZED.cast()] {
            let last = Followed(short(HOST, next), ptr::without_provenance(0x1_1c00_0002));
            let first = Followed(short(WDIR, &raw const last.0), c"other".as_ptr());
            check(&raw const first.0, &[WDIR, HOST]);
            let head = ShortInfo { key: ptr::null(), value: ptr::null(), ..short(WDIR, &raw const first.0) };
            check(&raw const head, &[WDIR, HOST]);
        }
    }

    #[test]
    fn preputs_are_read_in_both_layouts() {
        for next in [ptr::null(), UNINITIALIZED] {
            let pair = info(PORT, next);
            assert_eq!(preputs(&[&raw const pair]), Ok(bytes(&[PORT])));
            // Whatever follows on the stack: a string, no address, or nothing that can be read.
            for follows in [c"other".as_ptr(), ptr::null(), ptr::without_provenance(8)] {
                let pair = Followed(short(PORT, next.cast()), follows);
                let own = info(HOST, next);
                assert_eq!(preputs(&[(&raw const pair.0).cast(), &raw const own]), Ok(bytes(&[PORT, HOST])));
            }
        }
    }

    #[test]
    fn hostile_pairs_are_refused() {
        let (null, wild) = (ptr::null(), UNINITIALIZED);
        let refused = |first: *const Info, size| assert_eq!(hints(first, size), Err(PMI2_ERR_INVALID_ARG));
        let without_key = Info { key: null, ..info(WDIR, ptr::null()) };
        let wild_key = Info { key: wild.cast(), ..without_key };
        let wild_value = Info { value: wild.cast(), ..info(WDIR, ptr::null()) };
        for one in [&without_key, &wild_key, &wild_value] {
            refused(one, 1);
            assert_eq!(preputs(&[one]), Err(PMI2_ERR_INVALID_ARG));
        }
        refused(wild, 1);
        assert_eq!(preputs(&[wild]), Err(PMI2_ERR_INVALID_ARG));
        assert_eq!(preputs(&[ptr::null()]), Err(PMI2_ERR_INVALID_ARG));
        // A list that leads back to itself.
        let mut ring = [short(WDIR, ptr::null()), short(HOST, ptr::null())];
        ring[1].next = ring.as_ptr();
        ring[0].next = &raw const ring[1];
        refused(ring.as_ptr().cast(), 200);
        // A string without end.
        let long = vec![b'x'; limits::SPAWN_BYTES_MAX + 2 * CHUNK_BYTES];
        refused(&raw const *Box::new(Info { value: long.as_ptr().cast(), ..info(WDIR, ptr::null()) }), 1);
    }

    #[test]
    fn no_pairs_are_read_where_there_are_none() {
        assert_eq!(hints(ptr::null(), 3), Ok(Vec::new()));
        assert_eq!(hints(UNINITIALIZED, 0), Ok(Vec::new()));
        assert_eq!(preputs(&[]), Ok(Vec::new()));
        check(&raw const *Box::new(info(WDIR, UNINITIALIZED)), &[WDIR]);
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
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let pages = libc::mmap(ptr::null_mut(), 2 * page, access, anonymous, -1, 0).cast::<u8>();
            libc::munmap(pages.add(page).cast(), page);
            pages.add(page)
        };
        assert_eq!(prober.read(edge.wrapping_sub(4).cast::<u64>()), None);
        assert_eq!(prober.read(edge.wrapping_sub(4).cast::<u32>()), Some(0));
        // SAFETY: the last bytes of the page that is mapped.
        let text = unsafe {
            edge.wrapping_sub(3).copy_from_nonoverlapping(c"ab".as_ptr().cast(), 3);
            edge.wrapping_sub(3)
        };
        assert_eq!(prober.string(text.cast()), Some(b"ab".to_vec()), "the string ends with the page");
        // SAFETY: as above.
        unsafe { edge.wrapping_sub(1).write(b'c') };
        assert_eq!(prober.string(text.cast()), None);
    }
}
