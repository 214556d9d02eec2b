//! Beginning and end, who and how many, other jobs, the ring.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write;

use attachment::{Environment, Joined, c, limits};

use crate::{
    ATTACHMENT, Outcome, PMI2_ERR_INIT, PMI2_ERR_INVALID_ARG, PMI2_ERR_OTHER, check_room, failed, joined, run, text,
};

/// Initialises PMI, once.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Init(spawned: *mut c_int, size: *mut c_int, rank: *mut c_int, appnum: *mut c_int) -> c_int {
    run(|| {
        if [spawned, size, rank, appnum].contains(&std::ptr::null_mut()) {
            return Err(PMI2_ERR_INVALID_ARG);
        }
        let environment = Environment::read(std::env::var_os).map_err(|_| PMI2_ERR_INIT)?;
        let joined = ATTACHMENT.join(&environment).map_err(|_| PMI2_ERR_INIT)?;
        // Slurm's library says -1 to a process without a launcher.
        let number = if joined.is_alone() { -1 } else { ATTACHMENT.appnum(joined).map_err(failed)? };
        // SAFETY: none is NULL, so the caller's places for ints.
        unsafe {
            c::store(spawned, joined.is_spawned().into());
            c::store(size, c::int(joined.size()));
            c::store(rank, c::int(joined.rank()));
            c::store(appnum, number);
        }
        Ok(())
    })
}

/// As in Slurm's library, also true when PMI is finalised.
#[unsafe(no_mangle)]
extern "C" fn PMI2_Initialized() -> c_int {
    c::guarded(0, || matches!(ATTACHMENT.last_joined(), Ok(Some(_))).into())
}

/// Finalises PMI; a success also when it is not initialised.
#[unsafe(no_mangle)]
extern "C" fn PMI2_Finalize() -> c_int {
    run(|| ATTACHMENT.finalize().map_err(failed))
}

/// Tells the server to end the job, unless `flag` is 0, and exits as Slurm's library does: what is
/// buffered in stdio is written, what is registered for exit is run, and finds PMI finalised.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Abort(flag: c_int, msg: *const c_char) -> c_int {
    let exit_code = if flag & 0xff == 0 { 1 } else { flag };
    c::guarded((), || {
        // SAFETY: NULL or a string.
        let message = unsafe { c::text_cut(msg, limits::ABORT_MESSAGE_BYTES_MAX) };
        if let Some(message) = message {
            let who = joined().map_or(String::new(), |joined| format!("rank {}: ", joined.rank()));
            let line = [who.as_bytes(), format!("PMI2_Abort({flag}, ").as_bytes(), message, b")\n"].concat();
            // As one line among those of other ranks; who cannot be told is not told.
            let _ = std::io::stderr().write_all(&line);
        }
        if flag != 0 {
            ATTACHMENT.abort(exit_code, message.unwrap_or_default());
        }
    });
    // SAFETY: the contract of this function is that it exits.
    unsafe { libc::exit(exit_code) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_GetId(jobid: *mut c_char, jobid_size: c_int) -> c_int {
    run(|| {
        check_room(jobid, jobid_size, PMI2_ERR_INVALID_ARG)?;
        let name = ATTACHMENT.name(joined()?).map_err(failed)?;
        // SAFETY: not NULL, so the caller's buffer of so many bytes; our own memory is elsewhere.
        unsafe { c::write_cut(name.to_bytes(), jobid, jobid_size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_GetRank(rank: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    run(|| unsafe { known(rank, 0, Joined::rank) })
}

/// The size of the job, as in Slurm's library, whatever its name says.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetSize(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    run(|| unsafe { known(size, 1, Joined::size) })
}

/// The connection's functions are not needed: our launcher has the boards of both jobs.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_Connect(jobid: *const c_char, _conn: *mut c_void) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let job = unsafe { text(jobid, limits::JOB_BYTES_MAX, PMI2_ERR_INVALID_ARG)? };
        ATTACHMENT.connect(job).map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_Disconnect(jobid: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let job = unsafe { text(jobid, limits::JOB_BYTES_MAX, PMI2_ERR_INVALID_ARG)? };
        ATTACHMENT.disconnect(job).map_err(failed)
    })
}

/// Meets all ranks; gives both neighbours a string and takes theirs.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMIX_Ring(
    value: *const c_char,
    rank: *mut c_int,
    ranks: *mut c_int,
    left: *mut c_char,
    right: *mut c_char,
    maxvalue: c_int,
) -> c_int {
    run(|| {
        check_room(left, maxvalue, PMI2_ERR_INVALID_ARG)?;
        check_room(right, maxvalue, PMI2_ERR_INVALID_ARG)?;
        if rank.is_null() || ranks.is_null() {
            return Err(PMI2_ERR_INVALID_ARG);
        }
        // SAFETY: NULL or a string.
        let value = unsafe { text(value, limits::ATTRIBUTE_BYTES_MAX, PMI2_ERR_INVALID_ARG)? };
        if usize::try_from(maxvalue).unwrap_or(0) <= value.len() {
            return Err(PMI2_ERR_OTHER);
        }
        let joined = joined()?;
        let ring = ATTACHMENT.ring(value, value).map_err(failed)?;
        // SAFETY: none is NULL, so the caller's ints, and buffers of so many bytes; what was received
        // lies elsewhere.
        unsafe {
            c::write_cut(&ring.from_left, left, maxvalue);
            c::write_cut(&ring.from_right, right, maxvalue);
            c::store(rank, c::int(ring.position));
            c::store(ranks, c::int(joined.size()));
        }
        Ok(())
    })
}

/// A number that was learned when PMI was initialised; `never` if it was not, as in Slurm's library.
///
/// # Safety
///
/// `out` is NULL or can be written.
unsafe fn known(out: *mut c_int, never: u32, of: impl FnOnce(&Joined) -> u32) -> Outcome {
    if out.is_null() {
        return Err(PMI2_ERR_INVALID_ARG);
    }
    let number = ATTACHMENT.last_joined().map_err(failed)?.map_or(never, of);
    // SAFETY: the caller vouches for it.
    unsafe { c::store(out, c::int(number)) };
    Ok(())
}
