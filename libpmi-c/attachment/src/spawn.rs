//! The arguments of a C spawn call, read into a [`SpawnRequest`], and the codes that it hands out.

use std::ffi::{c_char, c_int};

use pmi::{SpawnCommand, SpawnRequest, SpawnedJob, limits};

use crate::attachment::Attachment;
use crate::c::{self, Outcome};
use crate::error::Error;

/// Keys with their values.
pub type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

/// The arrays of a spawn call that both interfaces have. Each is NULL or has an element for each command.
#[derive(Copy, Clone, Debug)]
pub struct Arrays<K> {
    /// Strings: the programs.
    pub programs: *const *const c_char,
    /// The numbers of ranks.
    pub nprocs: *const c_int,
    /// The lengths of the arrays in `infos`.
    pub info_sizes: *const c_int,
    /// Arrays of hints.
    pub infos: *const *const K,
}

/// An interface's codes for arguments that cannot be used.
#[derive(Copy, Clone, Debug)]
pub struct Codes {
    /// NULL, or an order that [`SpawnRequest::check`] refuses.
    pub invalid: c_int,
    /// A number of elements or ranks that is negative or too large.
    pub size: c_int,
    /// A string beyond [`limits::SPAWN_BYTES_MAX`].
    pub too_long: c_int,
}

impl Codes {
    /// Checks a number of elements.
    pub fn count(&self, count: c_int, max: usize) -> Outcome<usize> {
        usize::try_from(count).ok().filter(|&count| count <= max).ok_or(self.size)
    }

    /// Copies a string.
    ///
    /// # Safety
    ///
    /// `string` is NULL or a string.
    pub unsafe fn string(&self, string: *const c_char) -> Outcome<Vec<u8>> {
        // SAFETY: the caller guarantees it.
        unsafe { c::argument(string, limits::SPAWN_BYTES_MAX, self.invalid, self.too_long) }.map(<[u8]>::to_vec)
    }

    /// Copies a key-value pair.
    ///
    /// # Safety
    ///
    /// Key and value are each NULL or a string.
    pub unsafe fn pair(&self, key: *const c_char, value: *const c_char) -> Outcome<(Vec<u8>, Vec<u8>)> {
        // SAFETY: the caller guarantees it.
        unsafe { Ok((self.string(key)?, self.string(value)?)) }
    }

    /// Reads the commands. `words` reads the arguments of the command with the given index, and `hints`
    /// an array of hints with its size: in these the interfaces differ.
    ///
    /// # Safety
    ///
    /// The arrays are as [`Arrays`] says, and the programs are NULL or strings.
    pub unsafe fn commands<K>(
        &self,
        count: c_int,
        arrays: Arrays<K>,
        words: impl Fn(usize) -> Outcome<Vec<Vec<u8>>>,
        hints: impl Fn(*const K, c_int) -> Outcome<Pairs>,
    ) -> Outcome<Vec<SpawnCommand>> {
        let count = self.count(count, limits::SPAWN_COMMANDS_MAX)?;
        if arrays.programs.is_null() || arrays.nprocs.is_null() {
            return Err(self.invalid);
        }
        // SAFETY: the caller guarantees it.
        let (programs, nprocs, sizes, infos) = unsafe {
            let (sizes, infos) = (c::array(arrays.info_sizes, count), c::array(arrays.infos, count));
            (c::array(arrays.programs, count), c::array(arrays.nprocs, count), sizes, infos)
        };
        let command = |at: usize| {
            // SAFETY: the caller guarantees it.
            let program = unsafe { self.string(programs[at])? };
            let args = words(at)?;
            let info = match (infos.get(at), sizes.get(at)) {
                (Some(&info), Some(&size)) => hints(info, size)?,
                (None, _) | (_, None) => Vec::new(),
            };
            let nprocs = u32::try_from(nprocs[at]).map_err(|_| self.size)?;
            Ok(SpawnCommand { program, args, nprocs, info })
        };
        (0..count).map(command).collect()
    }

    /// Spawns ranks and writes a code for each command to `errors`. MPICH passes a buffer with room for
    /// a code for each rank, but the interfaces document one for each command.
    ///
    /// # Safety
    ///
    /// `errors` is NULL or has room for as many ints as there are commands.
    pub unsafe fn spawn(
        &self,
        attachment: &Attachment,
        order: &SpawnRequest,
        errors: *mut c_int,
        failed: impl Fn(Error) -> c_int,
    ) -> Outcome<SpawnedJob> {
        attachment.member().map_err(&failed)?;
        order.check().map_err(|_| self.invalid)?;
        let spawned = attachment.spawn(order);
        // SAFETY: the caller guarantees it.
        unsafe { write_codes(order, &spawned, errors) };
        spawned.map_err(failed)
    }
}

/// Writes a code for each command: the first of its ranks' codes that is not 0, or else the code of
/// the spawn as a whole.
///
/// # Safety
///
/// `errors` is NULL or has room for as many ints as there are commands.
unsafe fn write_codes(order: &SpawnRequest, spawned: &Result<SpawnedJob, Error>, errors: *mut c_int) {
    if errors.is_null() {
        return;
    }
    let (whole, mut rest) = match spawned {
        Ok(launched) => (c::SUCCESS, &launched.codes[..]),
        Err(_) => (c::FAIL, &[][..]),
    };
    for (at, command) in order.commands.iter().enumerate() {
        let (own, others) = rest.split_at_checked(command.nprocs as usize).unwrap_or_default();
        rest = others;
        let code = own.iter().copied().find(|&code| code != 0).unwrap_or(whole);
        // SAFETY: the caller's array has an element for each command.
        unsafe { errors.add(at).write(code) };
    }
}
