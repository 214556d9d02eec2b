//! Key-value spaces: put, commit, get and iterate.

use std::borrow::Cow;
use std::ffi::{c_char, c_int};
use std::iter::Peekable;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attachment::c::Text;
use attachment::{Attachment, Entries, Error, Joined, Maxes, c, limits};

use crate::spaces::{self, Space};
use crate::{
    ATTACHMENT, Outcome, PMI_ERR_INVALID_ARG, PMI_ERR_INVALID_KEY, PMI_ERR_INVALID_KEY_LENGTH, PMI_ERR_INVALID_KVS,
    PMI_ERR_INVALID_LENGTH, PMI_ERR_INVALID_VAL, PMI_ERR_INVALID_VAL_LENGTH, PMI_FAIL, PMI_SUCCESS, failed, joined,
};

/// What the maxima are as long as no server was asked.
const MAXES: Maxes = Maxes { kvsname: limits::KVSNAME_MAX, key: limits::KEYLEN_MAX, value: limits::VALLEN_MAX };

/// Longest name of a space, and longest key, of any server.
const NAME_BYTES_MAX: usize = 1023;
const ANY_KEY_BYTES_MAX: usize = 1023;

/// Most spaces that are iterated over at once; the one begun first ends.
const ITERATIONS_MAX: usize = 16;

static ITERATIONS: Mutex<Vec<Iteration>> = Mutex::new(Vec::new());

/// A snapshot of a space, and how far it was handed out.
struct Iteration {
    space: Space,
    entries: Peekable<Entries>,
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_my_name(kvsname: *mut c_char, length: c_int) -> c_int {
    let body = || {
        if kvsname.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        let name = ATTACHMENT.name(joined()?).map_err(failed)?;
        // SAFETY: not NULL, so the caller's buffer of so many bytes.
        if unsafe { c::write(name.to_bytes(), kvsname, length) } { Ok(()) } else { Err(PMI_ERR_INVALID_LENGTH) }
    };
    c::run(body)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_name_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { length_max(length, |maxes| maxes.kvsname) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_key_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { length_max(length, |maxes| maxes.key) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get_value_length_max(length: *mut c_int) -> c_int {
    // SAFETY: NULL or the caller's place for an int.
    unsafe { length_max(length, |maxes| maxes.value) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Create(kvsname: *mut c_char, length: c_int) -> c_int {
    let body = || {
        if kvsname.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        let joined = joined()?;
        let own = ATTACHMENT.name(joined).map_err(failed)?;
        let most = maxes().map_err(failed)?.kvsname;
        spaces::create(own, joined.rank(), |name| {
            // SAFETY: not NULL, so the caller's buffer of so many bytes.
            name.len() < most && unsafe { c::write(name, kvsname, length) }
        })
    };
    c::run(body)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Destroy(kvsname: *const c_char) -> c_int {
    let body = || {
        // SAFETY: NULL or a string.
        let name = unsafe { c::text(kvsname, NAME_BYTES_MAX) }.bytes().ok_or(PMI_ERR_INVALID_ARG)?;
        let joined = joined()?;
        let own = ATTACHMENT.name(joined).map_err(failed)?;
        spaces::destroy(own, joined, name).ok_or(PMI_ERR_INVALID_ARG)
    };
    c::run(body)
}

/// Puts a pair, which this process sees at once and others after the next barrier.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Put(kvsname: *const c_char, key: *const c_char, value: *const c_char) -> c_int {
    let body = || {
        if kvsname.is_null() {
            return Err(PMI_ERR_INVALID_KVS);
        }
        let maxes = maxes().map_err(failed)?;
        // SAFETY: NULL or strings.
        let (key, value) = unsafe { (c::text(key, maxes.key - 1), c::text(value, maxes.value - 1)) };
        let key = key.bytes().ok_or(PMI_ERR_INVALID_KEY)?;
        let value = value.bytes().ok_or(PMI_ERR_INVALID_VAL)?;
        let joined = joined()?;
        // SAFETY: not NULL, so a string.
        let key = unsafe { space(joined, kvsname)? }.key(key);
        if key.len() >= maxes.key {
            return Err(PMI_ERR_INVALID_KEY);
        }
        ATTACHMENT.put(joined, &key, value).map_err(|error| match error {
            // A blank in a key, or a newline, can be said to no server but ours.
            Error::Server(attachment::ClientError::Unsendable("value")) => PMI_ERR_INVALID_VAL,
            Error::Server(attachment::ClientError::Unsendable(_)) => PMI_ERR_INVALID_KEY,
            error => failed(error),
        })
    };
    c::run(body)
}

/// Nothing is left to be done: the next barrier brings all that was put. As everywhere, the name is
/// not looked at.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Commit(kvsname: *const c_char) -> c_int {
    let body = || {
        // SAFETY: NULL or a string.
        unsafe { c::text(kvsname, NAME_BYTES_MAX) }.bytes().ok_or(PMI_ERR_INVALID_ARG)?;
        joined().map(drop)
    };
    c::run(body)
}

/// The value of a key, from the segment if there is one: without lock or system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Get(
    kvsname: *const c_char,
    key: *const c_char,
    value: *mut c_char,
    length: c_int,
) -> c_int {
    // SAFETY: NULL or strings, and a buffer of so many bytes.
    c::run(|| unsafe { get(kvsname, key, value, length) })
}

/// # Safety
///
/// As of [`PMI_KVS_Get`].
#[inline]
unsafe fn get(kvsname: *const c_char, key: *const c_char, value: *mut c_char, length: c_int) -> Outcome {
    if kvsname.is_null() {
        return Err(PMI_ERR_INVALID_KVS);
    }
    if key.is_null() {
        return Err(PMI_ERR_INVALID_KEY);
    }
    if value.is_null() {
        return Err(PMI_ERR_INVALID_VAL);
    }
    let joined = joined()?;
    let key_max = Attachment::known_maxes(joined).map_or(ANY_KEY_BYTES_MAX, |maxes| maxes.key - 1);
    // SAFETY: not NULL, so strings. The key is not used after something was written to `value`.
    let (space, key) = unsafe { (space(joined, kvsname)?, c::text(key, key_max)) };
    let Text::Bytes(key) = key else { return Err(PMI_ERR_INVALID_KEY) };
    let found = match space {
        Space::Own => ATTACHMENT.get(joined, key),
        Space::Made(_) => ATTACHMENT.get(joined, &space.key(key)),
    };
    let found = found.map_err(failed)?.ok_or(PMI_ERR_INVALID_KEY)?;
    // SAFETY: not NULL, so the caller's buffer of so many bytes; what is found lies in memory of
    // ours.
    if unsafe { c::write(&found, value, length) } { Ok(()) } else { Err(PMI_ERR_INVALID_LENGTH) }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Iter_first(
    kvsname: *const c_char,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> c_int {
    let body = || {
        check_places(kvsname, key, val)?;
        let joined = joined()?;
        // SAFETY: not NULL, so a string.
        let space = unsafe { space(joined, kvsname)? };
        let entries = space.entries(ATTACHMENT.entries(joined).map_err(failed)?).peekable();
        let mut iterations = iterations();
        iterations.retain(|iteration| iteration.space != space);
        if iterations.len() == ITERATIONS_MAX {
            iterations.remove(0);
        }
        let mut iteration = Iteration { space, entries };
        // SAFETY: not NULL, so the caller's buffers of so many bytes.
        let outcome = unsafe { hand_out(&mut iteration, key, key_len, val, val_len) };
        iterations.push(iteration);
        outcome
    };
    c::run(body)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_KVS_Iter_next(
    kvsname: *const c_char,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> c_int {
    let body = || {
        check_places(kvsname, key, val)?;
        // SAFETY: not NULL, so a string.
        let space = unsafe { space(joined()?, kvsname)? };
        let mut iterations = iterations();
        let iteration = iterations.iter_mut().find(|iteration| iteration.space == space).ok_or(PMI_FAIL)?;
        // SAFETY: not NULL, so the caller's buffers of so many bytes.
        unsafe { hand_out(iteration, key, key_len, val, val_len) }
    };
    c::run(body)
}

/// Ends all iterations.
pub(crate) fn forget_iterations() {
    *iterations() = Vec::new();
}

/// The maxima of the server, or those of ours as long as there is none.
pub(crate) fn maxes() -> Result<Maxes, Error> {
    match ATTACHMENT.joined() {
        Ok(joined) => ATTACHMENT.maxes(joined),
        Err(_) => Ok(MAXES),
    }
}

/// One of the maxima, where the caller wants it.
///
/// # Safety
///
/// `out` is NULL or can be written.
pub(crate) unsafe fn length_max(out: *mut c_int, of: impl FnOnce(Maxes) -> usize) -> c_int {
    c::guarded(PMI_FAIL, || {
        if out.is_null() {
            return PMI_ERR_INVALID_ARG;
        }
        match maxes() {
            Ok(maxes) => {
                // SAFETY: the caller vouches for it.
                unsafe { c::store(out, c::int(of(maxes))) };
                PMI_SUCCESS
            }
            Err(error) => failed(error),
        }
    })
}

/// Which space a name means.
///
/// # Safety
///
/// `name` is a string.
#[inline]
unsafe fn space(joined: &'static Joined, name: *const c_char) -> Outcome<Space> {
    // SAFETY: the caller vouches for it.
    let is_own = joined.known_name().is_some_and(|own| unsafe { c::is(name, own) });
    // SAFETY: the caller vouches for it.
    if is_own { Ok(Space::Own) } else { unsafe { other_space(joined, name) } }
}

/// # Safety
///
/// `name` is a string.
#[cold]
unsafe fn other_space(joined: &'static Joined, name: *const c_char) -> Outcome<Space> {
    // SAFETY: the caller vouches for it.
    let name = unsafe { c::text(name, NAME_BYTES_MAX) }.bytes().ok_or(PMI_ERR_INVALID_KVS)?;
    let own = ATTACHMENT.name(joined).map_err(failed)?;
    spaces::named(own, joined, name).ok_or(PMI_ERR_INVALID_KVS)
}

fn check_places(kvsname: *const c_char, key: *mut c_char, val: *mut c_char) -> Outcome {
    if kvsname.is_null() {
        return Err(PMI_ERR_INVALID_KVS);
    }
    if key.is_null() {
        return Err(PMI_ERR_INVALID_KEY);
    }
    if val.is_null() { Err(PMI_ERR_INVALID_VAL) } else { Ok(()) }
}

/// The next pair; an empty key at the end. Where a buffer is too short, the pair is not lost.
///
/// # Safety
///
/// The buffers can be written for so many bytes.
unsafe fn hand_out(
    iteration: &mut Iteration,
    key: *mut c_char,
    key_len: c_int,
    val: *mut c_char,
    val_len: c_int,
) -> Outcome {
    let none = (Cow::Borrowed(&b""[..]), Cow::Borrowed(&b""[..]));
    let (next_key, next_value) = iteration.entries.peek().unwrap_or(&none);
    // SAFETY: the caller vouches for it; what is handed out lies in memory of ours.
    unsafe {
        if !c::write(next_key, key, key_len) {
            return Err(PMI_ERR_INVALID_KEY_LENGTH);
        }
        if !c::write(next_value, val, val_len) {
            return Err(PMI_ERR_INVALID_VAL_LENGTH);
        }
    }
    iteration.entries.next();
    Ok(())
}

fn iterations() -> MutexGuard<'static, Vec<Iteration>> {
    // At worst an iteration has lost its place.
    ITERATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}
