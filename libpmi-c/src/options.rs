//! The parsing of command-line options, an obsolete part of the interface.
//!
//! Pairs are returned as one array from malloc, and each of their strings is from malloc too.

use std::ffi::{c_char, c_int};
use std::{mem, ptr};

use attachment::c::{self, Outcome, run};

use crate::{
    PMI_ERR_INVALID_ARG, PMI_ERR_INVALID_ARGS, PMI_ERR_INVALID_KEYVALP, PMI_ERR_INVALID_NUM_ARGS,
    PMI_ERR_INVALID_NUM_PARSED, PMI_ERR_INVALID_SIZE, PMI_ERR_NOMEM, PMI_FAIL, PMI_SUCCESS, string,
};

/// `PMI_keyval_t`.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
pub(crate) struct Keyval {
    pub(crate) key: *mut c_char,
    pub(crate) val: *mut c_char,
}

/// A key and a value, one of which may be missing.
type Pair<'a> = (Option<&'a [u8]>, Option<&'a [u8]>);

/// The longest word that is read.
const WORD_BYTES_MAX: usize = 64 * 1024;

const USAGE: &[u8] = b"PMI_NAME=VALUE   passes a pair to PMI; this library defines none\n";

/// Parses the options at the beginning of `args`.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Parse_option(
    num_args: c_int,
    args: *const *mut c_char,
    num_parsed: *mut c_int,
    keyvalp: *mut *mut Keyval,
    size: *mut c_int,
) -> c_int {
    run(|| {
        c::not_null(num_parsed, PMI_ERR_INVALID_NUM_PARSED)?;
        let count = usize::try_from(num_args).ok().filter(|&count| count > 0).ok_or(PMI_ERR_INVALID_NUM_ARGS)?;
        c::not_null(args, PMI_ERR_INVALID_ARGS)?;
        c::not_null(keyvalp, PMI_ERR_INVALID_KEYVALP)?;
        c::not_null(size, PMI_ERR_INVALID_SIZE)?;
        // SAFETY: the caller's array has `count` elements, each a string or NULL, and no output is NULL.
        unsafe {
            let options = c::array(args, count).iter().map_while(|&word| option(word));
            let options: Vec<Pair<'_>> = options.map(|(key, val)| (Some(key), Some(val))).collect();
            keyvalp.write(pairs(&options)?);
            num_parsed.write(c::int(options.len()));
            size.write(c::int(options.len()));
        }
        Ok(())
    })
}

/// Parses a command line as Slurm's library does, without changing it: the program's name is a value
/// without a key; then follow keys, which begin with `-`, each with the next word as its value unless
/// that word is a key.
///
/// `argvp` points to an array, so also to its first element.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Args_to_keyval(
    argcp: *mut c_int,
    argvp: *const *mut c_char,
    keyvalp: *mut *mut Keyval,
    size: *mut c_int,
) -> c_int {
    run(|| {
        if argcp.is_null() || argvp.is_null() || keyvalp.is_null() || size.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        // SAFETY: no argument is NULL, so these are the caller's outputs, and the array has `count`
        // elements, each a string or NULL.
        unsafe {
            let count = usize::try_from(argcp.read()).unwrap_or(0);
            let words = c::array(argvp, count).iter();
            let words = words.map(|&word| string(word, WORD_BYTES_MAX, PMI_ERR_INVALID_ARG));
            let words = words.collect::<Outcome<Vec<&[u8]>>>()?;
            let options = parse(&words).ok_or(PMI_ERR_INVALID_ARG)?;
            keyvalp.write(pairs(&options)?);
            size.write(c::int(options.len()));
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Free_keyvals(keyvalp: *mut Keyval, size: c_int) -> c_int {
    c::guarded(PMI_FAIL, || {
        let Ok(count) = usize::try_from(size) else { return PMI_ERR_INVALID_ARG };
        if keyvalp.is_null() {
            return if count == 0 { PMI_SUCCESS } else { PMI_ERR_INVALID_ARG };
        }
        // SAFETY: an array that one of the functions above has returned, with its size.
        unsafe {
            for pair in c::array(keyvalp.cast_const(), count) {
                libc::free(pair.key.cast());
                libc::free(pair.val.cast());
            }
            libc::free(keyvalp.cast());
        }
        PMI_SUCCESS
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Get_options(str: *mut c_char, length: *mut c_int) -> c_int {
    c::guarded(PMI_FAIL, || {
        if str.is_null() || length.is_null() {
            return PMI_ERR_INVALID_ARG;
        }
        // SAFETY: neither is NULL, so the caller's int, and a buffer of that many bytes.
        unsafe {
            let is_whole = c::write_cut(USAGE, str, length.read());
            length.write(c::int(USAGE.len() + usize::from(!is_whole)));
            if is_whole { PMI_SUCCESS } else { PMI_ERR_NOMEM }
        }
    })
}

/// Splits a word into key and value if it is an option.
///
/// # Safety
///
/// `word` is NULL or a string, which is not changed while the result is used.
unsafe fn option<'a>(word: *const c_char) -> Option<(&'a [u8], &'a [u8])> {
    // SAFETY: the caller guarantees it.
    let word = unsafe { string(word, WORD_BYTES_MAX, PMI_ERR_INVALID_ARGS) }.ok()?;
    let end = word.iter().position(|&byte| byte == b'=')?;
    let (key, value) = (&word[..end], &word[end + 1..]);
    (key.starts_with(b"PMI_") && key.len() > 4).then_some((key, value))
}

/// Returns the pairs of a command line; `None` if there are none, or if a word belongs to no key.
fn parse<'a>(words: &[&'a [u8]]) -> Option<Vec<Pair<'a>>> {
    let is_key = |word: &&&'a [u8]| word.first() == Some(&b'-');
    let mut pairs = Vec::new();
    let mut rest = words.iter().peekable();
    let first = rest.next_if(|word| !is_key(word));
    pairs.extend(first.map(|&program| (None, Some(program))));
    while let Some(key) = rest.next() {
        if !is_key(&key) {
            return None;
        }
        pairs.push((Some(*key), rest.next_if(|word| !is_key(word)).copied()));
    }
    (!pairs.is_empty()).then_some(pairs)
}

/// Copies pairs to memory from malloc; NULL for none.
fn pairs(options: &[Pair<'_>]) -> Outcome<*mut Keyval> {
    if options.is_empty() {
        return Ok(ptr::null_mut());
    }
    let array = allocate::<Keyval>(options.len());
    c::not_null(array, PMI_ERR_NOMEM)?;
    for (at, (key, val)) in options.iter().enumerate() {
        let pair = Keyval { key: copy(*key), val: copy(*val) };
        let is_whole = pair.key.is_null() == key.is_none() && pair.val.is_null() == val.is_none();
        // SAFETY: `array` has room for all options. Those up to this one have been written, and
        // free(NULL) does nothing.
        unsafe {
            array.add(at).write(pair);
            if !is_whole {
                PMI_Free_keyvals(array, c::int(at + 1));
                return Err(PMI_ERR_NOMEM);
            }
        }
    }
    Ok(array)
}

/// Copies a text and a NUL to memory from malloc; NULL without memory, or without a text.
fn copy(text: Option<&[u8]>) -> *mut c_char {
    let Some(text) = text else { return ptr::null_mut() };
    let copy = allocate::<c_char>(text.len() + 1);
    if !copy.is_null() {
        // SAFETY: room for the text and its NUL.
        let _ = unsafe { c::write(text, copy, c::int(text.len() + 1)) };
    }
    copy
}

fn allocate<T>(count: usize) -> *mut T {
    // SAFETY: calloc accepts any numbers and checks their product for overflow.
    unsafe { libc::calloc(count, mem::size_of::<T>()).cast() }
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn a_command_line_is_split_into_pairs() {
        let check = |words: &[&CStr], expected: Option<&[(Option<&CStr>, Option<&CStr>)]>| {
            let words: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
            let (mut argc, mut found, mut size) = (words.len() as c_int, ptr::null_mut(), 0);
            // SAFETY: arguments as the header requires them.
            unsafe {
                let code = PMI_Args_to_keyval(&mut argc, words.as_ptr(), &mut found, &mut size);
                let Some(expected) = expected else {
                    assert_eq!(code, PMI_ERR_INVALID_ARG);
                    return;
                };
                assert_eq!((code, size as usize), (PMI_SUCCESS, expected.len()));
                let text = |text: *mut c_char| (!text.is_null()).then(|| CStr::from_ptr(text));
                let pairs: Vec<_> = (0..expected.len()).map(|at| found.add(at).read()).collect();
                let pairs: Vec<_> = pairs.iter().map(|pair| (text(pair.key), text(pair.val))).collect();
                assert_eq!(pairs, expected);
                assert_eq!(PMI_Free_keyvals(found, size), PMI_SUCCESS);
            }
        };
        check(&[c"prog"], Some(&[(None, Some(c"prog"))]));
        let pairs = [(None, Some(c"prog")), (Some(c"-k"), Some(c"v")), (Some(c"-f"), None)];
        check(&[c"prog", c"-k", c"v", c"-f"], Some(&pairs));
        check(&[c"-f", c""], Some(&[(Some(c"-f"), Some(c""))]));
        check(&[c"prog", c"other"], None);
        check(&[], None);
    }

    #[test]
    fn only_leading_options_are_parsed() {
        let words = [c"PMI_a=1", c"PMI_b=2", c"x", c"PMI_c=3"].map(|word| word.as_ptr().cast_mut());
        let (mut parsed, mut found, mut size) = (0, ptr::null_mut(), 0);
        // SAFETY: arguments as the header requires them.
        unsafe {
            assert_eq!(PMI_Parse_option(4, words.as_ptr(), &mut parsed, &mut found, &mut size), PMI_SUCCESS);
            assert_eq!((parsed, size), (2, 2));
            PMI_Free_keyvals(found, size);
            assert_eq!(PMI_Parse_option(2, words[2..].as_ptr(), &mut parsed, &mut found, &mut size), PMI_SUCCESS);
            assert_eq!((parsed, size, found), (0, 0, ptr::null_mut()));
            assert_eq!(PMI_Free_keyvals(found, size), PMI_SUCCESS);
            assert_eq!(
                PMI_Parse_option(0, words.as_ptr(), &mut parsed, &mut found, &mut size),
                PMI_ERR_INVALID_NUM_ARGS
            );
        }
    }

    #[test]
    fn a_short_buffer_truncates_the_usage_and_returns_its_length() {
        let (mut text, mut length) = ([1 as c_char; 200], 5);
        // SAFETY: arguments as the header requires them.
        unsafe {
            assert_eq!(PMI_Get_options(text.as_mut_ptr(), &mut length), PMI_ERR_NOMEM);
            assert_eq!((text[4], length as usize), (0, USAGE.len() + 1));
            assert_eq!(PMI_Get_options(text.as_mut_ptr(), &mut length), PMI_SUCCESS);
        }
    }
}
