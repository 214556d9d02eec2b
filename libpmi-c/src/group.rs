//! Beginning and end, sizes and ranks, the barrier.

use std::ffi::{c_char, c_int};
use std::io::Write;

use attachment::{Joined, c, limits};

use crate::{
    ATTACHMENT, Outcome, PMI_ERR_INVALID_ARG, PMI_ERR_INVALID_LENGTH, PMI_FAIL, PMI_SUCCESS, failed, join, joined, kvs,
    spaces,
};

/// Initialises PMI, once.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Init(spawned: *mut c_int) -> c_int {
    let body = || {
        if spawned.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        let joined = join()?;
        // SAFETY: not NULL, so the caller's place for an int.
        unsafe { c::store(spawned, joined.is_spawned().into()) };
        Ok(())
    };
    c::run(body)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Initialized(initialized: *mut c_int) -> c_int {
    c::guarded(PMI_FAIL, || {
        if initialized.is_null() {
            return PMI_ERR_INVALID_ARG;
        }
        // SAFETY: not NULL, so the caller's place for an int.
        unsafe { c::store(initialized, joined().is_ok().into()) };
        PMI_SUCCESS
    })
}

/// Finalises PMI; a success also when it is not initialised.
#[unsafe(no_mangle)]
extern "C" fn PMI_Finalize() -> c_int {
    c::run(|| {
        if joined().is_ok() {
            kvs::forget_iterations();
            spaces::forget();
        }
        ATTACHMENT.finalize().map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { number(size, |joined| Ok(c::int(joined.size()))) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_rank(rank: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { number(rank, |joined| Ok(c::int(joined.rank()))) }
}

/// The real one: Slurm's libpmi says the size. Negative if the server does not know.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_universe_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { number(size, |_| ATTACHMENT.universe_size().map_err(failed)) }
}

/// The real one: Slurm's libpmi says its job's number.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_appnum(appnum: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { number(appnum, |joined| ATTACHMENT.appnum(joined).map_err(failed)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_id_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { kvs::length_max(length, |maxes| maxes.kvsname) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: NULL or the caller's buffer of so many bytes.
    c::run(|| unsafe { write_id(id, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_kvs_domain_id(id: *mut c_char, length: c_int) -> c_int {
    // SAFETY: NULL or the caller's buffer of so many bytes.
    c::run(|| unsafe { write_id(id, length) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_clique_size(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { number(size, |joined| ATTACHMENT.clique(joined).map(|ranks| c::int(ranks.len())).map_err(failed)) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_clique_ranks(ranks: *mut c_int, length: c_int) -> c_int {
    let body = || {
        if ranks.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        let clique = ATTACHMENT.clique(joined()?).map_err(failed)?;
        if usize::try_from(length).unwrap_or(0) < clique.len() {
            return Err(PMI_ERR_INVALID_LENGTH);
        }
        for (at, rank) in clique.into_iter().enumerate() {
            // SAFETY: the caller's array has `length` elements, which is more than `at`.
            unsafe { ranks.add(at).write(c::int(rank)) };
        }
        Ok(())
    };
    c::run(body)
}

/// Waits for all ranks of the job, and makes what they put visible.
#[unsafe(no_mangle)]
extern "C" fn PMI_Barrier() -> c_int {
    c::run(|| joined().and_then(|joined| ATTACHMENT.fence(joined).map_err(failed)))
}

/// Tells the server to end the job, and exits as Slurm's and MPICH's libraries do: what is buffered
/// in stdio is written, what is registered for exit is run, and finds PMI finalised.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Abort(exit_code: c_int, error_msg: *const c_char) -> c_int {
    c::guarded((), || {
        // SAFETY: NULL or a string.
        let message = unsafe { c::text_cut(error_msg, limits::ABORT_MESSAGE_BYTES_MAX) };
        if let Some(message) = message {
            let who = joined().map_or(String::new(), |joined| format!("rank {}: ", joined.rank()));
            let line = [who.as_bytes(), format!("PMI_Abort({exit_code}, ").as_bytes(), message, b")\n"].concat();
            // As one line among those of other ranks; who cannot be told is not told.
            let _ = std::io::stderr().write_all(&line);
        }
        ATTACHMENT.abort(exit_code, message.unwrap_or_default());
    });
    // SAFETY: the contract of this function is that it exits.
    unsafe { libc::exit(if exit_code & 0xff == 0 { 1 } else { exit_code }) }
}

/// A number where the caller wants it: `PMI_ERR_INVALID_ARG` for NULL, `PMI_FAIL` before `PMI_Init`.
///
/// # Safety
///
/// `out` is NULL or can be written.
unsafe fn number(out: *mut c_int, ask: impl FnOnce(&'static Joined) -> Outcome<c_int>) -> c_int {
    let body = || {
        if out.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        let number = ask(joined()?)?;
        // SAFETY: the caller vouches for it.
        unsafe { c::store(out, number) };
        Ok(())
    };
    c::run(body)
}

/// # Safety
///
/// `id` is NULL or can be written for `length` bytes.
unsafe fn write_id(id: *mut c_char, length: c_int) -> Outcome {
    let maxes = kvs::maxes().map_err(failed)?;
    if usize::try_from(length).unwrap_or(0) < maxes.kvsname {
        return Err(PMI_ERR_INVALID_LENGTH);
    }
    if id.is_null() {
        return Err(PMI_ERR_INVALID_ARG);
    }
    let name = ATTACHMENT.name(joined()?).map_err(failed)?;
    // SAFETY: the caller vouches for it; our own memory is elsewhere.
    if unsafe { c::write(name.to_bytes(), id, length) } { Ok(()) } else { Err(PMI_ERR_INVALID_LENGTH) }
}
