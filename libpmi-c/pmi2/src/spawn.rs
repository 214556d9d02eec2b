//! `PMI2_Job_Spawn`.

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome, run};
use attachment::spawn::{Arrays, Codes, Pairs};
use attachment::{SpawnRequest, limits};

use crate::spawn_info::{self, Info};
use crate::{ATTACHMENT, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_SIZE, PMI2_ERR_OTHER, failed};

const CODES: Codes = Codes { invalid: PMI2_ERR_INVALID_ARG, size: PMI2_ERR_INVALID_SIZE, too_long: PMI2_ERR_OTHER };

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_Spawn(
    count: c_int,
    cmds: *const *const c_char,
    argcs: *const c_int,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_keyval_sizes: *const c_int,
    info_keyval_vectors: *const *const Info,
    preput_keyval_size: c_int,
    preput_keyval_vector: *const *const Info,
    job_id: *mut c_char,
    job_id_size: c_int,
    errors: *mut c_int,
) -> c_int {
    run(|| {
        let arrays =
            Arrays { programs: cmds, nprocs: maxprocs, info_sizes: info_keyval_sizes, infos: info_keyval_vectors };
        let words = |at: usize| {
            if argvs.is_null() || argcs.is_null() {
                return Ok(Vec::new());
            }
            // SAFETY: arrays with an element for each command, of arrays of so many strings.
            unsafe { words(*argvs.add(at), *argcs.add(at)) }
        };
        // SAFETY: NULL or arrays as the header describes them.
        let order = unsafe {
            let preputs = preputs(preput_keyval_vector, preput_keyval_size)?;
            SpawnRequest { commands: CODES.commands(count, arrays, words, hints)?, preputs }
        };
        // SAFETY: NULL, or the caller's array with an element for each command.
        let launched = unsafe { CODES.spawn(&ATTACHMENT, &order, errors, failed)? };
        if !job_id.is_null() {
            // SAFETY: not NULL, so the caller's buffer of `job_id_size` bytes.
            unsafe { c::write_cut(launched.job.as_bytes(), job_id, job_id_size) };
        }
        Ok(())
    })
}

/// # Safety
///
/// `argv` is NULL or has `argc` elements that are strings.
unsafe fn words(argv: *const *const c_char, argc: c_int) -> Outcome<Vec<Vec<u8>>> {
    let argc = CODES.count(argc, limits::SPAWN_ARGS_MAX)?;
    // SAFETY: the caller guarantees it.
    unsafe { c::array(argv, argc).iter().map(|&word| CODES.string(word)).collect() }
}

fn hints(infos: *const Info, size: c_int) -> Outcome<Pairs> {
    spawn_info::hints(infos, CODES.count(size, limits::SPAWN_INFO_MAX)?)
}

/// # Safety
///
/// `preputs` is NULL or has `size` elements.
unsafe fn preputs(preputs: *const *const Info, size: c_int) -> Outcome<Pairs> {
    let size = CODES.count(size, limits::SPAWN_PREPUTS_MAX)?;
    if size == 0 {
        return Ok(Vec::new());
    }
    c::not_null(preputs, PMI2_ERR_INVALID_ARG)?;
    // SAFETY: the caller guarantees it.
    spawn_info::preputs(unsafe { c::array(preputs, size) })
}
