//! libpmi.so.0: the C interface of PMI-1, over [`attachment::Attachment`].
//!
//! `include/pmi.h` is the contract, also as to what pointers callers may pass; each `SAFETY:` here
//! leans on it. The functions are thin: they check arguments, in the order and with the codes of
//! Slurm's library, and turn results into codes. A panic, which is a bug of ours, becomes `PMI_FAIL`.
//!
//! - [`group`]: beginning and end, sizes and ranks, the barrier.
//! - [`kvs`]: put, get and iterate; [`spaces`]: further key-value spaces.
//! - [`worlds`]: names and spawn.
//! - [`options`]: the parsing of options, which nobody has used for long.

mod group;
mod kvs;
mod options;
mod spaces;
mod worlds;

use std::ffi::c_int;

use attachment::{Attachment, Environment, Error, Joined, PutRefusal, Version};

/// The process's tie to its server.
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

/// What a function came to, with the code that it fails with.
type Outcome<T = ()> = Result<T, c_int>;

/// The code for an error that has none of its own for the function at hand.
fn failed(error: Error) -> c_int {
    match error {
        Error::Put(PutRefusal::ValueTooLong) => PMI_ERR_INVALID_VAL,
        Error::Put(PutRefusal::KeyEmpty | PutRefusal::KeyTooLong | PutRefusal::KeyReserved) => PMI_ERR_INVALID_KEY,
        Error::Full => PMI_ERR_NOMEM,
        Error::NotJoined
        | Error::Environment(_)
        | Error::Connection(_)
        | Error::Server(_)
        | Error::Gone
        | Error::Busy
        | Error::Unsupported
        | Error::Broken => PMI_FAIL,
    }
}

/// What is known of this process, if it has initialised PMI.
#[inline]
fn joined() -> Outcome<&'static Joined> {
    ATTACHMENT.joined().map_err(|_| PMI_FAIL)
}

/// Initialises PMI by what the environment says.
fn join() -> Outcome<&'static Joined> {
    let environment = Environment::read(std::env::var_os).map_err(|_| PMI_FAIL)?;
    ATTACHMENT.join(&environment).map_err(failed)
}
