//! Initialisation and finalisation, ranks and sizes, other jobs, the ring, the abort.

use std::ffi::{c_char, c_int, c_void};

use attachment::c::{self, Outcome, run};
use attachment::{Environment, Member, limits};

use crate::{ATTACHMENT, PMI2_ERR_INIT, PMI2_ERR_INVALID_ARG, PMI2_ERR_OTHER, check_room, failed, member, text};

/// Initialises PMI; a second call returns the same values.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Init(spawned: *mut c_int, size: *mut c_int, rank: *mut c_int, appnum: *mut c_int) -> c_int {
    run(|| {
        if [spawned, size, rank, appnum].contains(&std::ptr::null_mut()) {
            return Err(PMI2_ERR_INVALID_ARG);
        }
        let environment = Environment::read(std::env::var_os).map_err(|_| PMI2_ERR_INIT)?;
        let member = ATTACHMENT.initialize(&environment).map_err(|_| PMI2_ERR_INIT)?;
        // Slurm's library returns -1 to a process without a launcher.
        let number = if member.is_singleton() { -1 } else { ATTACHMENT.appnum(member).map_err(failed)? };
        // SAFETY: none is NULL, so these are the caller's ints.
        unsafe {
            c::store(spawned, member.is_spawned().into());
            c::store(size, c::int(member.size()));
            c::store(rank, c::int(member.rank()));
            c::store(appnum, number);
        }
        Ok(())
    })
}

/// Returns true also after finalisation, as Slurm's library does.
#[unsafe(no_mangle)]
extern "C" fn PMI2_Initialized() -> c_int {
    c::guarded(0, || matches!(ATTACHMENT.last_member(), Ok(Some(_))).into())
}

/// Finalises PMI; succeeds if it is not initialised.
#[unsafe(no_mangle)]
extern "C" fn PMI2_Finalize() -> c_int {
    run(|| ATTACHMENT.finalize().map_err(failed))
}

/// Tells the server to end the job, unless `flag` is 0, and exits through exit(3) as Slurm's library
/// does: stdio buffers are flushed, and exit handlers run and find PMI finalised.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Abort(flag: c_int, msg: *const c_char) -> c_int {
    let exit_code = if flag & 0xff == 0 { 1 } else { flag };
    c::guarded((), || {
        // SAFETY: NULL or a string.
        let message = unsafe { c::text_cut(msg, limits::ABORT_MESSAGE_BYTES_MAX) };
        ATTACHMENT.print_abort("PMI2_Abort", flag, message);
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
        let name = ATTACHMENT.name(member()?).map_err(failed)?;
        // SAFETY: not NULL, so the caller's buffer of `jobid_size` bytes; the name lies in memory of
        // this library.
        unsafe { c::write_cut(name.to_bytes(), jobid, jobid_size) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_GetRank(rank: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    run(|| unsafe { known(rank, 0, Member::rank) })
}

/// Returns the size of the job, as in Slurm's library, although the function's name suggests the node.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetSize(size: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    run(|| unsafe { known(size, 1, Member::size) })
}

/// Connects to another job. `_conn` is not needed: ScELA's launcher has the boards of both jobs.
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

/// Waits for all ranks; sends a string to both neighbours in the ring and returns theirs.
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
        let member = member()?;
        let ring = ATTACHMENT.ring(value, value).map_err(failed)?;
        // SAFETY: none is NULL, so these are the caller's ints and buffers of `maxvalue` bytes; the
        // received strings lie in memory of this library.
        unsafe {
            c::write_cut(&ring.from_left, left, maxvalue);
            c::write_cut(&ring.from_right, right, maxvalue);
            c::store(rank, c::int(ring.position));
            c::store(ranks, c::int(member.size()));
        }
        Ok(())
    })
}

/// Stores a number known since initialisation in `*out`; stores `never` before it, as Slurm's library does.
///
/// # Safety
///
/// `out` is NULL or can be written.
unsafe fn known(out: *mut c_int, never: u32, of: impl FnOnce(&Member) -> u32) -> Outcome {
    // SAFETY: the caller guarantees it.
    unsafe {
        c::output(out, PMI2_ERR_INVALID_ARG, || Ok(c::int(ATTACHMENT.last_member().map_err(failed)?.map_or(never, of))))
    }
}
