//! Key-value spaces: put, commit, get and iterate.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::iter::Peekable;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attachment::c::{self, Outcome, run};
use attachment::{Attachment, Entries, Error, Maxes, Member, SCELA_MAXES};

use crate::spaces::{self, Space};
use crate::{
    ATTACHMENT, PMI_ERR_INVALID_ARG, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_KEY_LENGTH, PMI_ERR_INVALID_KVS,
    PMI_ERR_INVALID_LENGTH, PMI_ERR_INVALID_VAL, PMI_ERR_INVALID_VAL_LENGTH, PMI_FAIL, failed, member, string,
};

/// The longest name of a space, and the longest key, that any server accepts.
const NAME_BYTES_MAX: usize = 1023;
const ANY_KEY_BYTES_MAX: usize = 1023;

/// The most spaces that are iterated over at once; beyond it, the oldest iteration ends.
const ITERATIONS_MAX: usize = 16;

static ITERATIONS: Mutex<Vec<Iteration>> = Mutex::new(Vec::new());

/// A snapshot of a space and the position in it.
struct Iteration {
    space: Space,
    entries: Peekable<Entries>,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_my_name(kvsname: *mut c_char, length: c_int) -> c_int {
    run(|| {
        // SAFETY: NULL or the caller's buffer of `length` bytes.
        unsafe { write_name(kvsname, length) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_name_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { length_max(length, |maxes| maxes.kvsname) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_key_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { length_max(length, |maxes| maxes.key) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_value_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's int.
    unsafe { length_max(length, |maxes| maxes.value) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Create(kvsname: *mut c_char, length: c_int) -> c_int {
    run(|| {
        c::not_null(kvsname, PMI_ERR_INVALID_ARG)?;
        let member = member()?;
        let own = ATTACHMENT.name(member).map_err(failed)?;
        let most = maxes().map_err(failed)?.kvsname;
        spaces::create(own, member.rank(), |name| {
            // SAFETY: not NULL, so the caller's buffer of `length` bytes.
            name.len() < most && unsafe { c::write(name, kvsname, length) }
        })
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Destroy(kvsname: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let name = unsafe { string(kvsname, NAME_BYTES_MAX, PMI_ERR_INVALID_ARG)? };
        let member = member()?;
        let own = ATTACHMENT.name(member).map_err(failed)?;
        spaces::destroy(own, member, name).ok_or(PMI_ERR_INVALID_ARG)
    })
}

/// Puts a pair. This process sees it at once, other ranks after the next barrier.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Put(kvsname: *const c_char, key: *const c_char, value: *const c_char) -> c_int {
    run(|| {
        c::not_null(kvsname, PMI_ERR_INVALID_KVS)?;
        let maxes = maxes().map_err(failed)?;
        // SAFETY: NULL or strings.
        let (key, value) = unsafe {
            let key = string(key, maxes.key - 1, PMI_ERR_INVALID_KEY)?;
            (key, string(value, maxes.value - 1, PMI_ERR_INVALID_VAL)?)
        };
        let member = member()?;
        // SAFETY: not NULL, so a string.
        let key = unsafe { space(member, kvsname)? }.key(key);
        if key.len() >= maxes.key {
            return Err(PMI_ERR_INVALID_KEY);
        }
        ATTACHMENT.put(member, &key, value).map_err(|error| match error {
            // Only ScELA's server accepts a blank in a key, or a newline.
            Error::Server(attachment::ClientError::Unsendable("value")) => PMI_ERR_INVALID_VAL,
            Error::Server(attachment::ClientError::Unsendable(_)) => PMI_ERR_INVALID_KEY,
            error => failed(error),
        })
    })
}

/// Does nothing: the next barrier publishes all puts. The name is not looked up.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Commit(kvsname: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        unsafe { string(kvsname, NAME_BYTES_MAX, PMI_ERR_INVALID_ARG)? };
        member().map(drop)
    })
}

/// Copies the value of a key. While the shared segment is complete, this takes no lock and makes no
/// system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get(
    kvsname: *const c_char,
    key: *const c_char,
    value: *mut c_char,
    length: c_int,
) -> c_int {
    // SAFETY: NULL or strings, and NULL or a buffer of `length` bytes.
    run(|| unsafe { get(kvsname, key, value, length) })
}

/// # Safety
///
/// As [`PMI_KVS_Get`].
#[inline]
unsafe fn get(kvsname: *const c_char, key: *const c_char, value: *mut c_char, length: c_int) -> Outcome {
    check_not_null(kvsname, key, value)?;
    let member = member()?;
    let key_max = Attachment::known_maxes(member).map_or(ANY_KEY_BYTES_MAX, |maxes| maxes.key - 1);
    // SAFETY: not NULL, so strings. The key is not read after the value has been written, so they may
    // overlap.
    let (space, key) = unsafe { (space(member, kvsname)?, string(key, key_max, PMI_ERR_INVALID_KEY)?) };
    let found = match space {
        Space::Own => ATTACHMENT.get(member, key),
        Space::Created(_) => ATTACHMENT.get(member, &space.key(key)),
    };
    let found = found.map_err(failed)?.ok_or(PMI_ERR_INVALID_KEY)?;
    // SAFETY: not NULL, so the caller's buffer of `length` bytes; the value lies in memory of this library.
    unsafe { c::copy(&found, value, length, PMI_ERR_INVALID_LENGTH) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Iter_first(
    kvsname: *const c_char,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> c_int {
    run(|| {
        check_not_null(kvsname, key, val)?;
        let member = member()?;
        // SAFETY: not NULL, so a string.
        let space = unsafe { space(member, kvsname)? };
        let entries = space.entries(ATTACHMENT.entries(member).map_err(failed)?).peekable();
        let mut iterations = iterations();
        iterations.retain(|iteration| iteration.space != space);
        if iterations.len() == ITERATIONS_MAX {
            iterations.remove(0);
        }
        let mut iteration = Iteration { space, entries };
        // SAFETY: not NULL, so the caller's buffers of these lengths.
        let outcome = unsafe { hand_out(&mut iteration, key, key_len, val, val_len) };
        iterations.push(iteration);
        outcome
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Iter_next(
    kvsname: *const c_char,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> c_int {
    run(|| {
        check_not_null(kvsname, key, val)?;
        // SAFETY: not NULL, so a string.
        let space = unsafe { space(member()?, kvsname)? };
        let mut iterations = iterations();
        let iteration = iterations.iter_mut().find(|iteration| iteration.space == space).ok_or(PMI_FAIL)?;
        // SAFETY: not NULL, so the caller's buffers of these lengths.
        unsafe { hand_out(iteration, key, key_len, val, val_len) }
    })
}

/// Ends all iterations.
pub(crate) fn forget_iterations() {
    *iterations() = Vec::new();
}

/// Returns the server's buffer sizes, or ScELA's before PMI is initialised.
pub(crate) fn maxes() -> Result<Maxes, Error> {
    ATTACHMENT.member().map_or(Ok(SCELA_MAXES), |member| ATTACHMENT.maxes(member))
}

/// Stores one of the buffer sizes in `*out`: `PMI_ERR_INVALID_ARG` for NULL.
///
/// # Safety
///
/// `out` is NULL or can be written.
pub(crate) unsafe fn length_max(out: *mut c_int, of: impl FnOnce(Maxes) -> usize) -> c_int {
    // SAFETY: the caller guarantees it.
    run(|| unsafe { c::output(out, PMI_ERR_INVALID_ARG, || Ok(c::int(of(maxes().map_err(failed)?)))) })
}

/// Copies the name of the job and of its space: `PMI_ERR_INVALID_ARG` for NULL.
///
/// # Safety
///
/// `out` is NULL or can be written for `length` bytes.
pub(crate) unsafe fn write_name(out: *mut c_char, length: c_int) -> Outcome {
    c::not_null(out, PMI_ERR_INVALID_ARG)?;
    let name = ATTACHMENT.name(member()?).map_err(failed)?;
    // SAFETY: the caller guarantees it, and the name lies in memory of this library.
    unsafe { c::copy(name.to_bytes(), out, length, PMI_ERR_INVALID_LENGTH) }
}

/// Returns the space of this name.
///
/// # Safety
///
/// `name` is a string.
#[inline]
unsafe fn space(member: &'static Member, name: *const c_char) -> Outcome<Space> {
    // SAFETY: the caller guarantees it.
    let is_own = member.known_name().is_some_and(|own| unsafe { c::equals(name, own) });
    // SAFETY: the caller guarantees it.
    if is_own { Ok(Space::Own) } else { unsafe { other_space(member, name) } }
}

/// # Safety
///
/// `name` is a string.
#[cold]
unsafe fn other_space(member: &'static Member, name: *const c_char) -> Outcome<Space> {
    // SAFETY: the caller guarantees it.
    let name = unsafe { string(name, NAME_BYTES_MAX, PMI_ERR_INVALID_KVS)? };
    let own = ATTACHMENT.name(member).map_err(failed)?;
    spaces::named(own, member, name).ok_or(PMI_ERR_INVALID_KVS)
}

#[inline]
fn check_not_null(kvsname: *const c_char, key: *const c_char, val: *const c_char) -> Outcome {
    c::not_null(kvsname, PMI_ERR_INVALID_KVS)?;
    c::not_null(key, PMI_ERR_INVALID_KEY)?;
    c::not_null(val, PMI_ERR_INVALID_VAL)
}

/// Writes the next pair, with an empty key at the end. A pair whose buffer is too short is not skipped.
///
/// # Safety
///
/// The buffers can be written for `key_len` and `val_len` bytes.
unsafe fn hand_out(
    iteration: &mut Iteration,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> Outcome {
    let none = (Cow::Borrowed(&b""[..]), Cow::Borrowed(&b""[..]));
    let (next_key, next_value) = iteration.entries.peek().unwrap_or(&none);
    // SAFETY: the caller guarantees it; the pair lies in memory of this library.
    unsafe {
        c::copy(next_key, key, key_len, PMI_ERR_INVALID_KEY_LENGTH)?;
        c::copy(next_value, val, val_len, PMI_ERR_INVALID_VAL_LENGTH)?;
    }
    iteration.entries.next();
    Ok(())
}

fn iterations() -> MutexGuard<'static, Vec<Iteration>> {
    // At worst, a panic has left an iteration at the wrong position.
    ITERATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}
