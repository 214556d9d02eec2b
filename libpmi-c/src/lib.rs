//! libpmi.so.0: the C interface of PMI-1, over [`attachment::Attachment`].
//!
//! `include/pmi.h` is the contract, also for the pointers that callers may pass; each `SAFETY:` comment
//! relies on it. The functions check their arguments in the order and with the codes of Slurm's library,
//! and turn results into codes. A panic, which is a bug of ours, becomes `PMI_FAIL`.
//!
//! - [`group`]: initialisation and finalisation, sizes and ranks, the barrier, the abort.
//! - [`kvs`]: put, get and iterate; [`spaces`]: further key-value spaces.
//! - [`names`]: the name service; [`spawn`]: `PMI_Spawn_multiple`.
//! - [`options`]: command-line options, an obsolete part of the interface.

mod group;
mod kvs;
mod names;
mod options;
mod spaces;
mod spawn;

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome};
use attachment::{Attachment, Environment, Error, Member, PutRefusal, Version};

/// The connection of this process to its PMI server.
static ATTACHMENT: Attachment = Attachment::new(Version::One);

const PMI_SUCCESS: c_int = 0;
const PMI_FAIL: c_int = -1;
const PMI_ERR_NOMEM: c_int = 2;
const PMI_ERR_INVALID_ARG: c_int = 3;
const PMI_ERR_INVALID_KEY: c_int = 4;
const PMI_ERR_INVALID_KEY_LENGTH: c_int = 5;
const PMI_ERR_INVALID_VAL: c_int = 6;
const PMI_ERR_INVALID_VAL_LENGTH: c_int = 7;
const PMI_ERR_INVALID_LENGTH: c_int = 8;
const PMI_ERR_INVALID_NUM_ARGS: c_int = 9;
const PMI_ERR_INVALID_ARGS: c_int = 10;
const PMI_ERR_INVALID_NUM_PARSED: c_int = 11;
const PMI_ERR_INVALID_KEYVALP: c_int = 12;
const PMI_ERR_INVALID_SIZE: c_int = 13;
const PMI_ERR_INVALID_KVS: c_int = 14;

/// Returns the code for an error to which the function at hand gives no other code.
fn failed(error: Error) -> c_int {
    match error {
        Error::Put(PutRefusal::ValueTooLong) => PMI_ERR_INVALID_VAL,
        Error::Put(PutRefusal::KeyEmpty | PutRefusal::KeyTooLong | PutRefusal::KeyReserved) => PMI_ERR_INVALID_KEY,
        Error::Full => PMI_ERR_NOMEM,
        Error::NotInitialized
        | Error::Connection(_)
        | Error::Server(_)
        | Error::Disconnected
        | Error::RankDied
        | Error::Busy
        | Error::Unsupported
        | Error::Broken => PMI_FAIL,
    }
}

/// Returns this process's rank and job; fails unless PMI is initialised.
#[inline]
fn member() -> Outcome<&'static Member> {
    ATTACHMENT.member().map_err(|_| PMI_FAIL)
}

/// Initialises PMI from the environment variables.
fn initialize() -> Outcome<&'static Member> {
    let environment = Environment::read(std::env::var_os).map_err(|_| PMI_FAIL)?;
    ATTACHMENT.initialize(&environment).map_err(failed)
}

/// Reads a string argument; NULL and a string of more than `bytes_max` bytes fail with the same code.
///
/// # Safety
///
/// `text` is NULL or a string, which is not changed while the result is used.
#[inline]
unsafe fn string<'a>(text: *const c_char, bytes_max: usize, invalid: c_int) -> Outcome<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    unsafe { c::argument(text, bytes_max, invalid, invalid) }
}
