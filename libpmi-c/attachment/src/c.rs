//! C strings and arrays in, C strings out.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{self, AssertUnwindSafe};
use std::{ptr, slice};

use pmi::{SpawnRequest, SpawnedJob};

use crate::error::Error;

/// An argument that is a string.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Text<'a> {
    /// It is NULL.
    Null,
    /// It is longer than it may be.
    TooLong,
    /// Its bytes, without the NUL.
    Bytes(&'a [u8]),
}

impl<'a> Text<'a> {
    /// The bytes, if there are any to be had.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Self::Null | Self::TooLong => None,
            Self::Bytes(bytes) => Some(bytes),
        }
    }
}

/// A string of at most `bytes_max` bytes; not more than that is read.
///
/// # Safety
///
/// `text` is NULL, or can be read up to its NUL, and is not changed while the result is used.
#[inline]
pub unsafe fn text<'a>(text: *const c_char, bytes_max: usize) -> Text<'a> {
    if text.is_null() {
        return Text::Null;
    }
    // SAFETY: reads up to the NUL, which the caller vouches for, and no further.
    let bytes = unsafe { libc::strnlen(text, bytes_max + 1) };
    if bytes > bytes_max {
        return Text::TooLong;
    }
    // SAFETY: so many bytes were just read.
    Text::Bytes(unsafe { slice::from_raw_parts(text.cast(), bytes) })
}

/// A string, or its first `bytes_max` bytes; `None` if it is NULL.
///
/// # Safety
///
/// As for [`text`].
pub unsafe fn text_cut<'a>(text: *const c_char, bytes_max: usize) -> Option<&'a [u8]> {
    if text.is_null() {
        return None;
    }
    // SAFETY: reads up to the NUL, which the caller vouches for, and no further.
    Some(unsafe { slice::from_raw_parts(text.cast(), libc::strnlen(text, bytes_max)) })
}

/// Whether `text` is the string `expected`.
///
/// # Safety
///
/// `text` is not NULL and can be read up to its NUL.
#[inline]
pub unsafe fn is(text: *const c_char, expected: &CStr) -> bool {
    // SAFETY: both have an end.
    unsafe { libc::strcmp(text, expected.as_ptr()) == 0 }
}

/// Writes a string, and its NUL, if both fit into a buffer of `room` bytes.
///
/// # Safety
///
/// `out` can be written for `room` bytes, and `text` lies elsewhere.
#[inline]
#[must_use]
pub unsafe fn write(text: &[u8], out: *mut c_char, room: c_int) -> bool {
    if usize::try_from(room).unwrap_or(0) <= text.len() {
        return false;
    }
    // SAFETY: `text` and a NUL fit in there, as was just seen.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    true
}

/// Writes as much of a string as fits into a buffer of `room` bytes, with a NUL. Whether that was
/// all of it.
///
/// # Safety
///
/// As for [`write()`].
pub unsafe fn write_cut(text: &[u8], out: *mut c_char, room: c_int) -> bool {
    let Some(most) = usize::try_from(room).unwrap_or(0).checked_sub(1) else { return false };
    let cut = &text[..text.len().min(most)];
    // SAFETY: it fits now.
    let _ = unsafe { write(cut, out, room) };
    cut.len() == text.len()
}

/// Writes a number where the caller wants it.
///
/// # Safety
///
/// `out` is NULL or can be written.
pub unsafe fn store<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: the caller vouches for it.
        unsafe { out.write(value) };
    }
}

/// An array of `count` elements, of none if it is NULL.
///
/// # Safety
///
/// `array` is NULL or has `count` elements, which are not changed while the result is used.
pub unsafe fn array<'a, T>(array: *const T, count: usize) -> &'a [T] {
    if array.is_null() || count == 0 {
        return &[];
    }
    // SAFETY: the caller vouches for it.
    unsafe { slice::from_raw_parts(array, count) }
}

/// A number that C has an int for; the largest there is in place of a larger one.
pub fn int(number: impl TryInto<c_int>) -> c_int {
    number.try_into().unwrap_or(c_int::MAX)
}

/// Runs the body of a C function: a panic, which is a bug of ours, becomes `failure`.
#[inline]
pub fn guarded<T>(failure: T, body: impl FnOnce() -> T) -> T {
    panic::catch_unwind(AssertUnwindSafe(body)).unwrap_or(failure)
}

/// Runs the body of a C function that returns a code. Success and failure without a code of its own
/// have the same codes in both interfaces.
#[inline]
pub fn run(body: impl FnOnce() -> Result<(), c_int>) -> c_int {
    guarded(FAIL, || body().err().unwrap_or(SUCCESS))
}

const SUCCESS: c_int = 0;
const FAIL: c_int = -1;

/// Writes a code for each command of a spawn, as both interfaces have it: the first of its ranks'
/// codes that is not 0, else whether the spawn as a whole has succeeded.
///
/// # Safety
///
/// `errors` is NULL or has room for as many ints as there are commands.
pub unsafe fn write_codes(order: &SpawnRequest, spawned: &Result<SpawnedJob, Error>, errors: *mut c_int) {
    if errors.is_null() {
        return;
    }
    let (whole, mut rest) = match spawned {
        Ok(launched) => (SUCCESS, &launched.codes[..]),
        Err(_) => (FAIL, &[][..]),
    };
    for (at, command) in order.commands.iter().enumerate() {
        let (own, behind) = rest.split_at_checked(command.nprocs as usize).unwrap_or_default();
        rest = behind;
        let code = own.iter().copied().find(|&code| code != 0).unwrap_or(whole);
        // SAFETY: the caller's array has an element for each command.
        unsafe { errors.add(at).write(code) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_up_to_their_bound() {
        // SAFETY: literals with an end.
        unsafe {
            assert_eq!(text(ptr::null(), 3), Text::Null);
            assert_eq!(text(c"abc".as_ptr(), 3), Text::Bytes(b"abc"));
            assert_eq!(text(c"abcd".as_ptr(), 3), Text::TooLong);
            assert_eq!(text(c"".as_ptr(), 0), Text::Bytes(b""));
            assert!(is(c"abc".as_ptr(), c"abc") && !is(c"abcd".as_ptr(), c"abc"));
        }
    }

    #[test]
    fn no_byte_is_written_beyond_the_room() {
        let check = |room: c_int, whole: bool, cut: &[u8]| {
            let mut out = [b'.' as c_char; 6];
            // SAFETY: `room` is at most 5.
            assert_eq!(unsafe { write(b"abc", out.as_mut_ptr(), room) }, whole, "room {room}");
            let mut out = [b'.' as c_char; 6];
            // SAFETY: as above.
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
    fn a_panic_does_not_get_through() {
        assert_eq!(guarded(-1, || 3), 3);
        assert_eq!(guarded(-1, || panic!("a bug")), -1);
    }
}
