//! `PMI_Spawn_multiple`.

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome, run};
use attachment::spawn::{Arrays, Codes, Pairs};
use attachment::{ClientError, Error, SpawnRequest, limits};

use crate::options::Keyval;
use crate::{ATTACHMENT, PMI_ERR_INVALID_ARG, failed};

const CODES: Codes = Codes { invalid: PMI_ERR_INVALID_ARG, size: PMI_ERR_INVALID_ARG, too_long: PMI_ERR_INVALID_ARG };

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Spawn_multiple(
    count: c_int,
    cmds: *const *const c_char,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_keyval_sizes: *const c_int,
    info_keyval_vectors: *const *const Keyval,
    preput_keyval_size: c_int,
    preput_keyval_vector: *const Keyval,
    errors: *mut c_int,
) -> c_int {
    run(|| {
        let arrays =
            Arrays { programs: cmds, nprocs: maxprocs, info_sizes: info_keyval_sizes, infos: info_keyval_vectors };
        // SAFETY: NULL, or an array with an element for each command.
        let words = |at: usize| unsafe { if argvs.is_null() { Ok(Vec::new()) } else { words(*argvs.add(at)) } };
        // SAFETY: NULL, or an array of so many pairs.
        let hints = |infos, size| unsafe { pairs(infos, size) };
        // SAFETY: NULL or arrays as the header describes them.
        let order = unsafe {
            let preputs = pairs(preput_keyval_vector, preput_keyval_size)?;
            SpawnRequest { commands: CODES.commands(count, arrays, words, hints)?, preputs }
        };
        let refused = |error| match error {
            Error::Server(ClientError::Unsendable(_) | ClientError::Spawn(_)) => PMI_ERR_INVALID_ARG,
            error => failed(error),
        };
        // SAFETY: NULL, or the caller's array with an element for each command.
        unsafe { CODES.spawn(&ATTACHMENT, &order, errors, refused) }.map(drop)
    })
}

/// Reads the words of an array that ends with NULL, or is NULL.
///
/// # Safety
///
/// `argv` is such an array, and its other elements are strings.
unsafe fn words(argv: *const *const c_char) -> Outcome<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    if argv.is_null() {
        return Ok(words);
    }
    loop {
        // SAFETY: the NULL at the end has not been reached yet.
        let word = unsafe { *argv.add(words.len()) };
        if word.is_null() {
            return Ok(words);
        }
        if words.len() == limits::SPAWN_ARGS_MAX {
            return Err(PMI_ERR_INVALID_ARG);
        }
        // SAFETY: a string.
        words.push(unsafe { CODES.string(word)? });
    }
}

/// Reads an array of pairs.
///
/// # Safety
///
/// `pairs` is NULL or has `size` elements, whose keys and values are strings or NULL.
unsafe fn pairs(pairs: *const Keyval, size: c_int) -> Outcome<Pairs> {
    let size = CODES.count(size, limits::SPAWN_PREPUTS_MAX)?;
    if pairs.is_null() && size > 0 {
        return Err(PMI_ERR_INVALID_ARG);
    }
    // SAFETY: the caller guarantees it.
    unsafe { c::array(pairs, size).iter().map(|pair| CODES.pair(pair.key, pair.val)).collect() }
}
