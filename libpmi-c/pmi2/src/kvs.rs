//! The key-value space: put, fence and get.

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome, run};
use attachment::{Member, limits};

use crate::{
    ATTACHMENT, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_KEY, PMI2_ERR_INVALID_VAL, PMI2_ERR_OTHER, check_room, failed,
    member, text,
};

/// Puts a pair. This process sees it at once, other ranks after the next fence.
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
        ATTACHMENT.put(member()?, key, value).map_err(failed)
    })
}

/// Waits for all ranks of the job, after which their puts are visible.
#[unsafe(no_mangle)]
extern "C" fn PMI2_KVS_Fence() -> c_int {
    run(|| ATTACHMENT.fence(member()?).map_err(failed))
}

/// Copies the value of a key. While the shared segment is complete, this takes no lock and makes no
/// system call.
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
        // SAFETY: NULL or a string. The key is not read after the value has been written, so they may
        // overlap.
        let key = unsafe { text(key, limits::KEY_BYTES_MAX, PMI2_ERR_INVALID_KEY)? };
        check_room(value, maxvalue, PMI2_ERR_INVALID_VAL)?;
        let member = member()?;
        // SAFETY: NULL or a string.
        let found = if unsafe { is_own(member, jobid)? } {
            ATTACHMENT.get(member, key)
        } else {
            // SAFETY: NULL or a string.
            let job = unsafe { text(jobid, limits::JOB_BYTES_MAX, PMI2_ERR_INVALID_ARG)? };
            ATTACHMENT.get_from_job(job, src_pmi_id, key).map(|value| value.map(Into::into))
        };
        let found = found.map_err(failed)?.ok_or(PMI2_ERR_OTHER)?;
        // SAFETY: not NULL, so the caller's buffer of `maxvalue` bytes, and NULL or an int; the value
        // lies in memory of this library.
        unsafe {
            let is_whole = c::write_cut(&found, value, maxvalue);
            let length = c::int(found.len());
            c::store(vallen, if is_whole { length } else { -length });
        }
        Ok(())
    })
}

/// Returns whether a job's name denotes this process's own job, as NULL and the empty string do.
///
/// # Safety
///
/// `job` is NULL or a string.
#[inline]
unsafe fn is_own(member: &'static Member, job: *const c_char) -> Outcome<bool> {
    if job.is_null() {
        return Ok(true);
    }
    let own = match member.known_name() {
        Some(own) => own,
        None => ATTACHMENT.name(member).map_err(failed)?,
    };
    // SAFETY: the caller guarantees it.
    Ok(unsafe { c::equals(job, own) || c::equals(job, c"") })
}
