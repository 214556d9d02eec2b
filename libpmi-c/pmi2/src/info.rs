//! Attributes of the node and of the job.

use std::ffi::{c_char, c_int};
use std::str;

use attachment::c::{self, Outcome, run};
use attachment::limits;

use crate::{
    ATTACHMENT, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_SIZE, PMI2_ERR_INVALID_VAL, PMI2_ERR_OTHER, check_room, failed,
    member, text,
};

/// The value of an attribute; `None` if it does not exist.
type Found = Option<Vec<u8>>;

/// Puts an attribute of the node, which the job's ranks on this node see at once.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_PutNodeAttr(name: *const c_char, value: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or strings.
        let (name, value) = unsafe { (key(name)?, text(value, limits::ATTRIBUTE_BYTES_MAX, PMI2_ERR_INVALID_VAL)?) };
        if name.is_empty() {
            return Err(PMI2_ERR_OTHER);
        }
        ATTACHMENT.node_put(name, value).map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetNodeAttr(
    name: *const c_char,
    value: *mut c_char,
    valuelen: c_int,
    found: *mut c_int,
    waitfor: c_int,
) -> c_int {
    let look_up = |name: &[u8]| {
        let got = ATTACHMENT.node_get(name, waitfor != 0).map_err(failed)?;
        // A singleton has no other rank that could put it.
        if got.is_none() && waitfor != 0 { Err(PMI2_ERR_OTHER) } else { Ok(got) }
    };
    // SAFETY: a string, a buffer of `valuelen` bytes and an int, each NULL or the caller's.
    run(|| unsafe { get_text(name, value, valuelen, found, look_up) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetNodeAttrIntArray(
    name: *const c_char,
    array: *mut c_int,
    arraylen: c_int,
    outlen: *mut c_int,
    found: *mut c_int,
) -> c_int {
    let look_up = |name: &[u8]| match ATTACHMENT.node_get(name, false).map_err(failed)? {
        Some(value) => Ok(Some(value)),
        None => predefined(name),
    };
    // SAFETY: a string, an array of `arraylen` elements and two ints, each NULL or the caller's.
    run(|| unsafe { get_numbers(name, array, arraylen, outlen, found, look_up) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetJobAttr(
    name: *const c_char,
    value: *mut c_char,
    valuelen: c_int,
    found: *mut c_int,
) -> c_int {
    // SAFETY: a string, a buffer of `valuelen` bytes and an int, each NULL or the caller's.
    run(|| unsafe { get_text(name, value, valuelen, found, of_job) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetJobAttrIntArray(
    name: *const c_char,
    array: *mut c_int,
    arraylen: c_int,
    outlen: *mut c_int,
    found: *mut c_int,
) -> c_int {
    // SAFETY: a string, an array of `arraylen` elements and two ints, each NULL or the caller's.
    run(|| unsafe { get_numbers(name, array, arraylen, outlen, found, of_job) })
}

/// Reads the name of an attribute.
///
/// # Safety
///
/// `name` is NULL or a string.
unsafe fn key<'a>(name: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    unsafe { text(name, limits::KEY_BYTES_MAX, PMI2_ERR_INVALID_ARG) }
}

/// Looks up an attribute of the job.
fn of_job(name: &[u8]) -> Outcome<Found> {
    ATTACHMENT.job_attribute(name).map_err(failed)
}

/// Computes the predefined attributes of a node, which no server knows.
fn predefined(name: &[u8]) -> Outcome<Found> {
    let clique = || ATTACHMENT.clique(member()?).map_err(failed);
    Ok(match name {
        b"localRanks" => {
            let ranks: Vec<String> = clique()?.iter().map(u32::to_string).collect();
            Some(ranks.join(",").into_bytes())
        }
        b"localRanksCount" => Some(clique()?.len().to_string().into_bytes()),
        _ => None,
    })
}

/// Copies an attribute that `look_up` returns, truncated to `room` bytes.
///
/// # Safety
///
/// `name` is NULL or a string, `value` NULL or a buffer of `room` bytes, `found` NULL or an int.
unsafe fn get_text(
    name: *const c_char,
    value: *mut c_char,
    room: c_int,
    found: *mut c_int,
    look_up: impl FnOnce(&[u8]) -> Outcome<Found>,
) -> Outcome {
    // SAFETY: the caller guarantees it.
    let name = unsafe { key(name)? };
    check_room(value, room, PMI2_ERR_INVALID_VAL)?;
    let got = look_up(name)?;
    // SAFETY: the caller guarantees it; the attribute lies in memory of this library.
    unsafe {
        if let Some(got) = &got {
            c::write_cut(got, value, room);
        }
        c::store(found, got.is_some().into());
    }
    Ok(())
}

/// Copies at most `room` numbers of an attribute that `look_up` returns.
///
/// # Safety
///
/// `name` is NULL or a string, `array` NULL or an array of `room` elements; `count` and `found` are
/// each NULL or an int.
unsafe fn get_numbers(
    name: *const c_char,
    array: *mut c_int,
    room: c_int,
    count: *mut c_int,
    found: *mut c_int,
    look_up: impl FnOnce(&[u8]) -> Outcome<Found>,
) -> Outcome {
    // SAFETY: the caller guarantees it.
    let got = look_up(unsafe { key(name)? })?;
    let room = usize::try_from(room).map_err(|_| PMI2_ERR_INVALID_SIZE)?;
    if array.is_null() && room > 0 {
        return Err(PMI2_ERR_INVALID_ARG);
    }
    let numbers = match &got {
        None => Vec::new(),
        Some(list) => numbers(list, room).ok_or(PMI2_ERR_OTHER)?,
    };
    // SAFETY: the caller guarantees it, and there are at most `room` numbers.
    unsafe {
        for (at, number) in numbers.iter().enumerate() {
            array.add(at).write(*number);
        }
        if got.is_some() {
            c::store(count, c::int(numbers.len()));
        }
        c::store(found, got.is_some().into());
    }
    Ok(())
}

/// Parses the first `most` numbers of a comma-separated list; `None` if one of them is malformed.
fn numbers(list: &[u8], most: usize) -> Option<Vec<c_int>> {
    let list = str::from_utf8(list).ok()?;
    list.split(',').take(most).map(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_lists_are_read_up_to_the_room() {
        assert_eq!(numbers(b"1,-2, 3", 9), Some(vec![1, -2, 3]));
        assert_eq!(numbers(b"1,2,x", 2), Some(vec![1, 2]));
        assert_eq!(numbers(b"1,,2", 3), None);
        assert_eq!(numbers(b"", 3), None);
    }
}
