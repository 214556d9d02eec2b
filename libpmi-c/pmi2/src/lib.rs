//! libpmi2.so.0: the C interface of PMI-2, over [`attachment::Attachment`].
//!
//! `include/pmi2.h` is the contract, also for the pointers that callers may pass; each `SAFETY:` comment
//! relies on it. As in Slurm's library, nearly every failure is `PMI2_ERR_OTHER`, and output that does
//! not fit is truncated. A panic, which is a bug of ours, becomes `PMI2_FAIL`.
//!
//! - [`job`]: initialisation and finalisation, ranks and sizes, other jobs, the ring.
//! - [`kvs`]: put, fence and get.
//! - [`info`]: attributes of node and job.
//! - [`names`]: the name service; [`spawn`]: `PMI2_Job_Spawn`, with its hints in [`spawn_info`].

mod info;
mod job;
mod kvs;
mod names;
mod spawn;
mod spawn_info;

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome};
use attachment::{Attachment, Error, Member, Version};

/// The connection of this process to its PMI server.
static ATTACHMENT: Attachment = Attachment::new(Version::Two);

const PMI2_ERR_INIT: c_int = 1;
const PMI2_ERR_INVALID_ARG: c_int = 3;
const PMI2_ERR_INVALID_KEY: c_int = 4;
const PMI2_ERR_INVALID_VAL: c_int = 6;
const PMI2_ERR_INVALID_LENGTH: c_int = 8;
const PMI2_ERR_INVALID_SIZE: c_int = 13;
const PMI2_ERR_OTHER: c_int = 14;

/// Returns the code for any error.
fn failed(_: Error) -> c_int {
    PMI2_ERR_OTHER
}

/// Returns this process's rank and job; fails unless PMI is initialised.
#[inline]
fn member() -> Outcome<&'static Member> {
    ATTACHMENT.member().map_err(failed)
}

/// Reads a string argument of at most `bytes_max` bytes; `null` is the code for NULL.
///
/// # Safety
///
/// `text` is NULL or a string, which is not changed while the result is used.
#[inline]
unsafe fn text<'a>(text: *const c_char, bytes_max: usize, null: c_int) -> Outcome<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    unsafe { c::argument(text, bytes_max, null, PMI2_ERR_OTHER) }
}

/// Checks an output buffer of `room` bytes; `null` is the code for NULL.
#[inline]
fn check_room(out: *mut c_char, room: c_int, null: c_int) -> Outcome {
    c::not_null(out, null)?;
    if room > 0 { Ok(()) } else { Err(PMI2_ERR_INVALID_LENGTH) }
}
