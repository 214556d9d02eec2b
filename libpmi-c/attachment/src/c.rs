//! C strings, arrays and result codes: reads arguments, writes outputs, catches panics.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{self, AssertUnwindSafe};
use std::{ptr, slice};

/// The code for success, in both interfaces.
pub const SUCCESS: c_int = 0;
/// The code for an unspecific failure, in both interfaces.
pub const FAIL: c_int = -1;

/// The result of a C function's body; the error is the code to return.
pub type Outcome<T = ()> = Result<T, c_int>;

/// Fails with `null` for NULL.
#[inline]
pub fn not_null<T>(pointer: *const T, null: c_int) -> Outcome {
    if pointer.is_null() { Err(null) } else { Ok(()) }
}

/// Reads a string argument of at most `bytes_max` bytes; never reads further than that bound and one byte.
///
/// Fails with `null` for NULL, with `too_long` beyond the bound.
///
/// # Safety
///
/// `text` is NULL, or can be read up to its NUL, and is not changed while the result is used.
#[inline]
pub unsafe fn argument<'a>(text: *const c_char, bytes_max: usize, null: c_int, too_long: c_int) -> Outcome<&'a [u8]> {
    not_null(text, null)?;
    // SAFETY: reads no further than the NUL, up to which the caller guarantees readable memory.
    let bytes = unsafe { libc::strnlen(text, bytes_max + 1) };
    if bytes > bytes_max {
        return Err(too_long);
    }
    // SAFETY: strnlen has just read these bytes.
    Ok(unsafe { slice::from_raw_parts(text.cast(), bytes) })
}

/// Reads the first `bytes_max` bytes of a string; `None` if it is NULL.
///
/// # Safety
///
/// As [`argument`].
pub unsafe fn text_cut<'a>(text: *const c_char, bytes_max: usize) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: reads no further than the NUL, up to which the caller guarantees readable memory.
    Some(unsafe { slice::from_raw_parts(text.cast(), libc::strnlen(text, bytes_max)) })
}

/// Returns whether `text` is the string `expected`.
///
/// # Safety
///
/// `text` is not NULL and can be read up to its NUL.
#[inline]
pub unsafe fn equals(text: *const c_char, expected: &CStr) -> bool {
    // SAFETY: both strings are terminated.
    unsafe { libc::strcmp(text, expected.as_ptr()) == 0 }
}

/// Writes a string and its NUL if both fit into a buffer of `room` bytes; returns whether they did.
///
/// # Safety
///
/// `out` can be written for `room` bytes and does not overlap `text`.
#[inline]
#[must_use]
pub unsafe fn write(text: &[u8], out: *mut c_char, room: c_int) -> bool {
    if usize::try_from(room).unwrap_or(0) <= text.len() {
        return false;
    }
    // SAFETY: the check above shows that `text` and a NUL fit.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    true
}

/// Writes a string and its NUL into a buffer of `room` bytes; fails with `too_short` if they do not fit.
///
/// # Safety
///
/// As [`write()`].
#[inline]
pub unsafe fn copy(text: &[u8], out: *mut c_char, room: c_int, too_short: c_int) -> Outcome {
    // SAFETY: the caller guarantees it.
    if unsafe { write(text, out, room) } { Ok(()) } else { Err(too_short) }
}

/// Writes as much of a string as fits into a buffer of `room` bytes, with a NUL. Returns whether all of
/// it fitted.
///
/// # Safety
///
/// As [`write()`].
pub unsafe fn write_cut(text: &[u8], out: *mut c_char, room: c_int) -> bool {
    let Some(most) = usize::try_from(room).unwrap_or(0).checked_sub(1) else { return false };
    let cut = &text[..text.len().min(most)];
    // SAFETY: the string has been cut to fit.
    let _ = unsafe { write(cut, out, room) };
    cut.len() == text.len()
}

/// Stores a value in `*out` unless `out` is NULL.
///
/// # Safety
///
/// `out` is NULL or can be written.
pub unsafe fn store<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller guarantees it.
        unsafe { out.write(value) };
    }
}

/// Stores what `value` returns in `*out`; fails with `null`, without calling it, if `out` is NULL.
///
/// # Safety
///
/// `out` is NULL or can be written.
pub unsafe fn output<T>(out: *mut T, null: c_int, value: impl FnOnce() -> Outcome<T>) -> Outcome {
    not_null(out, null)?;
    // SAFETY: not NULL, so the caller guarantees it.
    unsafe { out.write(value()?) };
    Ok(())
}

/// Returns the `count` elements of an array; none if it is NULL.
///
/// # Safety
///
/// `array` is NULL or has `count` elements, which are not changed while the result is used.
pub unsafe fn array<'a, T>(array: *const T, count: usize) -> &'a [T] {
    if array.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees it.
    unsafe { slice::from_raw_parts(array, count) }
}

/// Converts a number to an int; a number that is too large becomes the largest int.
pub fn int(number: impl TryInto<c_int>) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

/// Runs the body of a C function and turns a panic, which is a bug of ours, into `failure`.
#[inline]
pub fn guarded<T>(failure: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(failure)
}

/// Runs the body of a C function that returns a code; a panic becomes [`FAIL`].
#[inline]
pub fn run(body: impl FnOnce() -> Outcome) -> c_int {
    guarded(FAIL, || body().err().unwrap_or(SUCCESS))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_read_up_to_their_bound() {
        // SAFETY: literals are terminated.
        unsafe {
            assert_eq!(argument(ptr::null(), 3, 1, 2), Err(1));
            assert_eq!(argument(c"abc".as_ptr(), 3, 1, 2), Ok(&b"abc"[..]));
            assert_eq!(argument(c"abcd".as_ptr(), 3, 1, 2), Err(2));
            assert_eq!(argument(c"".as_ptr(), 0, 1, 2), Ok(&b""[..]));
            assert!(equals(c"abc".as_ptr(), c"abc") && !equals(c"abcd".as_ptr(), c"abc"));
        }
    }

    #[test]
    fn no_byte_is_written_beyond_the_room() {
        let check = |room: c_int, whole: bool, cut: &[u8]| {
            let mut out = [b'.' as c_char; 6];
            // SAFETY: `room` is at most 5.
            assert_eq!(unsafe { write(b"abc", out.as_mut_ptr(), room) }, whole, "room {room}");
            let mut out = [b'.' as c_char; 6];
            // SAFETY: as above, `room` is at most 5.
            assert_eq!(unsafe { write_cut(b"abc", out.as_mut_ptr(), room) }, whole, "room {room}");
            assert_eq!(out.map(|byte| byte as u8), cut, "room {room}");
        };
        check(5, true, b"abc\0..");
        check(4, true, b"abc\0..");
        check(3, false, b"ab\0...");
        check(1, false, b"\0.....");
        check(0, false, b"......");
        check(-1, false, b"......");
    }

    #[test]
    fn a_panic_becomes_the_failure_value() {
        assert_eq!(guarded(-1, || 3), 3);
        assert_eq!(guarded(-1, || panic!("a bug")), -1);
    }
}
