//! The key-value space: put, fence and get.

use std::ffi::{c_char, c_int};

use attachment::{Joined, c, limits};

use crate::{
    ATTACHMENT, Outcome, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_KEY, PMI2_ERR_INVALID_VAL, PMI2_ERR_OTHER, check_room,
    failed, joined, run, text,
};

/// Puts a pair, which this process sees at once and others after the next fence.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_KVS_Put(key: *const c_char, value: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or strings.
        let (key, value) = unsafe {
            let key = text(key, limits::KEY_BYTES_MAX, PMI2_ERR_INVALID_KEY)?;
            (key, text(value, limits::VALUE_BYTES_MAX, PMI2_ERR_INVALID_VAL)?)
        };
        if key.is_empty() {
            return Err(PMI2_ERR_OTHER);
        }
        ATTACHMENT.put(joined()?, key, value).map_err(failed)
    })
}

/// Waits for all ranks of the job, and makes what they put visible.
#[unsafe(no_mangle)]
extern "C" fn PMI2_KVS_Fence() -> c_int {
    run(|| ATTACHMENT.fence(joined()?).map_err(failed))
}

/// The value of a key, from the segment if there is one: without lock or system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_KVS_Get(
    jobid: *const c_char,
    src_pmi_id: c_int,
    key: *const c_char,
    value: *mut c_char,
    maxvalue: c_int,
    vallen: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or a string. The key is not used after something was written to `value`.
        let key = unsafe { text(key, limits::KEY_BYTES_MAX, PMI2_ERR_INVALID_KEY)? };
        check_room(value, maxvalue, PMI2_ERR_INVALID_VAL)?;
        let joined = joined()?;
        // SAFETY: NULL or a string.
        let found = if unsafe { is_own(joined, jobid)? } {
            ATTACHMENT.get(joined, key)
        } else {
            // SAFETY: NULL or a string.
            let job = unsafe { text(jobid, limits::JOB_BYTES_MAX, PMI2_ERR_INVALID_ARG)? };
            ATTACHMENT.get_elsewhere(job, src_pmi_id, key).map(|value| value.map(Into::into))
        };
        let found = found.map_err(failed)?.ok_or(PMI2_ERR_OTHER)?;
        // SAFETY: not NULL, so the caller's buffer of so many bytes, and NULL or a place for an int;
        // what is found lies in memory of ours.
        unsafe {
            let is_whole = c::write_cut(&found, value, maxvalue);
            let length = c::int(found.len());
            c::store(vallen, if is_whole { length } else { -length });
        }
        Ok(())
    })
}

/// Whether a job's name means this process's own job; NULL and the empty one do.
///
/// # Safety
///
/// `job` is NULL or a string.
#[inline]
unsafe fn is_own(joined: &'static Joined, job: *const c_char) -> Outcome<bool> {
    if job.is_null() {
        return Ok(true);
    }
    let own = match joined.known_name() {
        Some(own) => own,
        None => ATTACHMENT.name(joined).map_err(failed)?,
    };
    // SAFETY: the caller vouches for it.
    Ok(unsafe { c::is(job, own) || c::is(job, c"") })
}
