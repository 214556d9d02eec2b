//! MPI's own functions, and its binary interface.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::arguments::Word;

/// A function of MPI, which is searched for at its first use.
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Returns the function's address; `None` if there is none in this process.
    #[inline]
    pub(crate) fn get(&self) -> Option<*mut c_void> {
        let found = self.found.load(Ordering::Relaxed);
        if !found.is_null() {
            return Some(found);
        }
        let found = find(self.name)?;
        self.found.store(found, Ordering::Relaxed);
        Some(found)
    }
}

/// Calls a function of MPI by its address, with any number of words as arguments.
macro_rules! call {
    ($real:expr, $result:ty; $($argument:expr),*) => {{
        // SAFETY: the address is that of a C function with this many arguments, each an integer or pointer of at most one
        // word, which the ABIs of 64-bit Linux systems pass in a register or slot of a word.
        unsafe {
            let function: unsafe extern "C-unwind" fn($($crate::mpi::call!(@word $argument)),*) -> $result = std::mem::transmute($real);
            function($($argument),*)
        }
    }};
    (@word $argument:expr) => { $crate::arguments::Word };
}
pub(crate) use call;

/// Calls PMPI's function of this name, if there is one. `None` also if the call fails.
macro_rules! pmpi {
    ($name:literal, $($argument:expr),*) => {{
        static REAL: $crate::mpi::Real = match std::ffi::CStr::from_bytes_with_nul(concat!("PMPI_", $name, "\0").as_bytes()) {
            Ok(name) => $crate::mpi::Real::new(name),
            Err(_) => panic!("a name has no NUL"),
        };
        REAL.get().filter(|real| $crate::mpi::call!(*real, std::ffi::c_int; $($argument),*) == 0).map(drop)
    }};
}
pub(crate) use pmpi;

/// Returns the next function of this name after this library, in the order in which the loader searches: another tool that
/// wraps MPI is called, too. Python's modules load MPI where that order does not lead.
fn find(name: &CStr) -> Option<*mut c_void> {
    find_from(libc::RTLD_NEXT, name)
}

/// Returns the variable of this name. The linker may have moved a library's variable to the program, so the first one counts.
pub(crate) fn find_variable(name: &CStr) -> Option<*mut c_void> {
    find_from(libc::RTLD_DEFAULT, name)
}

fn find_from(place: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is a string.
    let found = unsafe { libc::dlsym(place, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    loaded_libraries().into_iter().find_map(|library| {
        // SAFETY: both are strings. The library is loaded already, and is never unloaded.
        let found = unsafe {
            let library = libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
            if library.is_null() { library } else { libc::dlsym(library, name.as_ptr()) }
        };
        (!found.is_null()).then_some(found)
    })
}

/// Returns the MPI libraries of this process: libmpi, libmpich and their parts for Fortran.
fn loaded_libraries() -> Vec<std::ffi::CString> {
    unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: usize, found: *mut c_void) -> c_int {
        // SAFETY: the loader passes a description, whose name is a string, and the pointer from below.
        let (name, found) =
            unsafe { (CStr::from_ptr((*info).dlpi_name), &mut *found.cast::<Vec<std::ffi::CString>>()) };
        let file = name.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if file.starts_with(b"libmpi") && !file.starts_with(b"libmpir.") {
            found.push(name.to_owned());
        }
        0
    }
    let mut found: Vec<std::ffi::CString> = Vec::new();
    // SAFETY: `note` gets the pointer to `found`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut found).cast()) };
    found
}

/// The binary interfaces of MPI.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Abi {
    /// Of MPICH and its relatives: handles are ints.
    Mpich,
    /// Of Open MPI: handles are pointers.
    OpenMpi,
    /// Of MPI 5: handles are pointers, some with small values.
    Standard,
}

/// The values that differ between the interfaces.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Mpi {
    pub(crate) abi: Abi,
    /// MPI_COMM_WORLD.
    pub(crate) world: Word,
    /// MPI_ROOT.
    pub(crate) root: c_int,
    /// MPI_IN_PLACE in C.
    pub(crate) in_place: Word,
    /// MPI_NO_OP.
    pub(crate) no_op: Word,
    /// MPI_THREAD_MULTIPLE.
    pub(crate) thread_multiple: c_int,
    /// MPI_CART, MPI_GRAPH and MPI_DIST_GRAPH.
    pub(crate) topologies: [c_int; 3],
}

/// Returns the interface of the MPI library in this process, once there is one.
#[inline]
pub(crate) fn mpi() -> Option<&'static Mpi> {
    static FOUND: OnceLock<Mpi> = OnceLock::new();
    if let Some(found) = FOUND.get() {
        return Some(found);
    }
    let found = detect()?;
    Some(FOUND.get_or_init(|| found))
}

#[cold]
fn detect() -> Option<Mpi> {
    let send = find(c"PMPI_Send")?;
    if library_of(send).starts_with(b"libmpi_abi") {
        let topologies = [211, 212, 213];
        return Some(Mpi {
            abi: Abi::Standard,
            world: 0x101,
            root: -4,
            in_place: 1,
            no_op: 0x3d,
            thread_multiple: 4096,
            topologies,
        });
    }
    if let Some(world) = find_variable(c"ompi_mpi_comm_world") {
        let no_op = find_variable(c"ompi_mpi_op_no_op").map_or(0, |op| op as Word);
        let topologies = [1, 2, 3];
        return Some(Mpi {
            abi: Abi::OpenMpi,
            world: world as Word,
            root: -4,
            in_place: 1,
            no_op,
            thread_multiple: 3,
            topologies,
        });
    }
    let topologies = [2, 1, 3];
    Some(Mpi {
        abi: Abi::Mpich,
        world: 0x4400_0000,
        root: -3,
        in_place: Word::MAX,
        no_op: 0x5800_000e,
        thread_multiple: 3,
        topologies,
    })
}

/// Returns the file name of the library that has a function.
fn library_of(function: *mut c_void) -> &'static [u8] {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null::<c_char>(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: dladdr writes to `info`, and its name is a string of a library that is never unloaded.
    unsafe {
        if libc::dladdr(function, &raw mut info) == 0 || info.dli_fname.is_null() {
            return b"";
        }
        CStr::from_ptr(info.dli_fname).to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default()
    }
}

impl Mpi {
    /// Returns a handle without the bits of its register that are not part of it.
    pub(crate) fn handle(&self, word: Word) -> Word {
        if self.abi == Abi::Mpich { word & 0xffff_ffff } else { word }
    }

    /// Reads a handle from memory.
    ///
    /// # Safety
    ///
    /// `at` is the address of a handle.
    pub(crate) unsafe fn handle_at(&self, at: Word) -> Word {
        // SAFETY: the caller guarantees it; handles have these lengths.
        unsafe {
            if self.abi == Abi::Mpich {
                (at as *const u32).read_unaligned() as Word
            } else {
                (at as *const Word).read_unaligned()
            }
        }
    }

    /// The bytes of a handle.
    pub(crate) fn handle_bytes(&self) -> usize {
        if self.abi == Abi::Mpich { 4 } else { 8 }
    }

    /// Returns the bytes of data of one element of a datatype.
    pub(crate) fn type_bytes(&self, datatype: Word) -> u64 {
        // The handle of a predefined type has its size.
        if self.abi == Abi::Mpich && datatype & 0xff00_0000 == 0x4c00_0000 {
            return (datatype >> 8 & 0xff) as u64;
        }
        let mut size = 0_i64;
        pmpi!("Type_size_x", datatype, &raw mut size as Word);
        u64::try_from(size).unwrap_or(0)
    }
}
