//! libpmi2.so.0: the C interface of PMI-2, over [`attachment::Attachment`].
//!
//! `include/pmi2.h` is the contract, also as to what pointers callers may pass; each `SAFETY:` here
//! leans on it. As in Slurm's library nearly every failure is `PMI2_ERR_OTHER`, and what does not fit
//! is cut short. A panic, which is a bug of ours, becomes `PMI2_FAIL`.
//!
//! - [`job`]: beginning and end, who and how many, other jobs, the ring.
//! - [`kvs`]: put, fence and get.
//! - [`info`]: attributes of node and job.
//! - [`worlds`]: names and spawn.

mod info;
mod job;
mod kvs;
mod worlds;

use std::ffi::{c_char, c_int};

use attachment::c::{self, Text, run};
use attachment::{Attachment, Error, Joined, Version};

/// The process's tie to its server.
static ATTACHMENT: Attachment = Attachment::new(Version::Two);

const PMI2_ERR_INIT: c_int = 1;
const PMI2_ERR_INVALID_ARG: c_int = 3;
const PMI2_ERR_INVALID_KEY: c_int = 4;
const PMI2_ERR_INVALID_VAL: c_int = 6;
const PMI2_ERR_INVALID_LENGTH: c_int = 8;
const PMI2_ERR_INVALID_SIZE: c_int = 13;
const PMI2_ERR_OTHER: c_int = 14;

/// What a function came to, with the code that it fails with.
type Outcome<T = ()> = Result<T, c_int>;

/// The code for any error.
fn failed(_: Error) -> c_int {
    PMI2_ERR_OTHER
}

/// What is known of this process, if it has initialised PMI.
#[inline]
fn joined() -> Outcome<&'static Joined> {
    ATTACHMENT.joined().map_err(failed)
}

/// An argument that is a string of at most `bytes_max` bytes; `null` is the code for NULL.
///
/// # Safety
///
/// `text` is NULL or a string, which is not changed while the result is used.
#[inline]
unsafe fn text<'a>(text: *const c_char, bytes_max: usize, null: c_int) -> Outcome<&'a [u8]> {
    // SAFETY: the caller vouches for it.
    match unsafe { c::text(text, bytes_max) } {
        Text::Bytes(bytes) => Ok(bytes),
        Text::Null => Err(null),
        Text::TooLong => Err(PMI2_ERR_OTHER),
    }
}

/// Checks a place for a string of `room` bytes; `null` is the code for NULL.
#[inline]
fn check_room(out: *mut c_char, room: c_int, null: c_int) -> Outcome {
    if out.is_null() {
        return Err(null);
    }
    if room > 0 { Ok(()) } else { Err(PMI2_ERR_INVALID_LENGTH) }
}
