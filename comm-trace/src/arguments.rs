//! Reads the arguments of a call.

use std::ffi::c_int;
use std::sync::OnceLock;

use crate::mpi::{Mpi, Real, call, find_variable};

/// An argument as it was passed: an integer, a handle or a pointer. The bits of a register above an integer are undefined.
pub(crate) type Word = usize;

/// The interface by which a function was called.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Language {
    /// C, with counts of type int.
    C,
    /// C, with counts of type MPI_Count.
    LargeC,
    /// Fortran: all arguments are addresses, and handles are integers.
    Fortran,
    /// Fortran, with counts of the kind MPI_COUNT_KIND.
    LargeFortran,
}

/// The arguments of a call that has succeeded, or that the program may make.
///
/// The methods rely on MPI's rules for the arguments of the function at hand: a position that the function defines as the
/// address of something is one.
#[derive(Copy, Clone)]
pub(crate) struct Arguments<'a> {
    pub(crate) mpi: &'a Mpi,
    words: &'a [Word],
    language: Language,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(mpi: &'a Mpi, words: &'a [Word], language: Language) -> Self {
        Self { mpi, words, language }
    }

    fn is_fortran(&self) -> bool {
        matches!(self.language, Language::Fortran | Language::LargeFortran)
    }

    fn is_large(&self) -> bool {
        matches!(self.language, Language::LargeC | Language::LargeFortran)
    }

    fn word(&self, at: usize) -> Word {
        self.words.get(at).copied().unwrap_or(0)
    }

    /// The position of the last argument.
    pub(crate) fn last(&self) -> usize {
        self.words.len().saturating_sub(1)
    }

    /// An integer.
    pub(crate) fn int(&self, at: usize) -> c_int {
        let word = self.word(at);
        // SAFETY: in Fortran the argument is the address of an integer.
        if self.is_fortran() { unsafe { (word as *const c_int).read_unaligned() } } else { word as c_int }
    }

    /// An MPI_Count in each variant of the function.
    pub(crate) fn long(&self, at: usize) -> u64 {
        let word = self.word(at);
        // SAFETY: in Fortran the argument is the address of an integer of this kind.
        let number = if self.is_fortran() { unsafe { (word as *const i64).read_unaligned() } } else { word as i64 };
        u64::try_from(number).unwrap_or(0)
    }

    /// A count.
    pub(crate) fn count(&self, at: usize) -> u64 {
        if self.is_large() { self.long(at) } else { u64::try_from(self.int(at)).unwrap_or(0) }
    }

    /// An element of an array of counts.
    pub(crate) fn count_in(&self, at: usize, index: u32) -> u64 {
        let array = self.word(at);
        if array == 0 {
            return 0;
        }
        // SAFETY: the argument is the address of an array with an element for each rank or neighbour.
        let number = unsafe {
            if self.is_large() {
                (array as *const i64).add(index as usize).read_unaligned()
            } else {
                i64::from((array as *const c_int).add(index as usize).read_unaligned())
            }
        };
        u64::try_from(number).unwrap_or(0)
    }

    /// The bytes of an element of a datatype.
    pub(crate) fn type_bytes(&self, at: usize) -> u64 {
        let datatype = if self.is_fortran() { type_from(self.int(at)) } else { self.word(at) };
        self.mpi.type_bytes(self.mpi.handle(datatype))
    }

    /// The same for an element of an array of datatypes.
    pub(crate) fn type_bytes_in(&self, at: usize, index: u32) -> u64 {
        let (array, index) = (self.word(at), index as usize);
        if array == 0 {
            return 0;
        }
        // SAFETY: the argument is the address of an array with an element for each rank or neighbour.
        let datatype = unsafe {
            if self.is_fortran() {
                type_from((array as *const c_int).add(index).read_unaligned())
            } else {
                self.mpi.handle_at(array + index * self.mpi.handle_bytes())
            }
        };
        self.mpi.type_bytes(self.mpi.handle(datatype))
    }

    /// The product of a count and the bytes of a datatype.
    pub(crate) fn bytes(&self, count: usize, datatype: usize) -> u64 {
        match self.count(count) {
            0 => 0,
            count => count.saturating_mul(self.type_bytes(datatype)),
        }
    }

    /// A communicator.
    pub(crate) fn comm(&self, at: usize) -> Word {
        self.mpi.handle(if self.is_fortran() { comm_from(self.int(at)) } else { self.word(at) })
    }

    /// A communicator that the function changes.
    pub(crate) fn comm_at(&self, at: usize) -> Word {
        // SAFETY: in C the argument is the address of a handle.
        if self.is_fortran() { self.comm(at) } else { unsafe { self.mpi.handle_at(self.word(at)) } }
    }

    /// A window.
    pub(crate) fn win(&self, at: usize) -> Word {
        self.mpi.handle(if self.is_fortran() { win_from(self.int(at)) } else { self.word(at) })
    }

    /// A window that the function changes.
    pub(crate) fn win_at(&self, at: usize) -> Word {
        // SAFETY: in C the argument is the address of a handle.
        if self.is_fortran() { self.win(at) } else { unsafe { self.mpi.handle_at(self.word(at)) } }
    }

    /// An element of an array of requests, or the request that the function sets.
    pub(crate) fn request(&self, at: usize, index: usize) -> Word {
        let array = self.word(at);
        // SAFETY: the argument is the address of this many handles.
        let request = unsafe {
            if self.is_fortran() {
                request_from((array as *const c_int).add(index).read_unaligned())
            } else {
                self.mpi.handle_at(array + index * self.mpi.handle_bytes())
            }
        };
        self.mpi.handle(request)
    }

    /// Whether an operation only fetches data.
    pub(crate) fn is_no_op(&self, at: usize) -> bool {
        let operation = if self.is_fortran() { op_from(self.int(at)) } else { self.word(at) };
        self.mpi.handle(operation) == self.mpi.no_op
    }

    /// Whether a buffer is MPI_IN_PLACE.
    pub(crate) fn is_in_place(&self, at: usize) -> bool {
        let word = self.word(at);
        if !self.is_fortran() {
            return word == self.mpi.in_place;
        }
        // Fortran programs pass the address of a variable of the library; the interfaces of mpi_f08 that take any shape pass a
        // description that begins with that address.
        let is_variable = |word: Word| word != 0 && fortran_in_place().contains(&word);
        // SAFETY: a buffer has an address; a description begins with one; unequal values mean nothing.
        is_variable(word)
            || word != 0 && word.is_multiple_of(align_of::<Word>()) && is_variable(unsafe { *(word as *const Word) })
    }
}

/// Returns the addresses of the variables that mean MPI_IN_PLACE in Fortran; 0 for those of other libraries.
fn fortran_in_place() -> &'static [Word; 4] {
    static FOUND: OnceLock<[Word; 4]> = OnceLock::new();
    FOUND.get_or_init(|| {
        // MPICH's is in a common block, behind MPI_BOTTOM.
        let variables = [
            (c"mpi_fortran_in_place_", 0),
            (c"MPI_FORTRAN_IN_PLACE", 0),
            (c"mpipriv1_", 4),
            (c"MPIR_F08_MPI_IN_PLACE", 0),
        ];
        variables.map(|(name, offset)| find_variable(name).map_or(0, |found| found as Word + offset))
    })
}

/// Defines a function that converts a handle of Fortran. MPICH's and Intel's are the same in C, and have no function for it.
macro_rules! conversion {
    ($function:ident, $name:literal) => {
        fn $function(handle: c_int) -> Word {
            static REAL: Real = Real::new($name);
            match REAL.get() {
                Some(real) => call!(real, Word; handle as Word),
                None => handle as u32 as Word,
            }
        }
    };
}
conversion!(comm_from, c"PMPI_Comm_f2c");
conversion!(type_from, c"PMPI_Type_f2c");
conversion!(win_from, c"PMPI_Win_f2c");
conversion!(op_from, c"PMPI_Op_f2c");
conversion!(request_from, c"PMPI_Request_f2c");
