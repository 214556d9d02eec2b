//! Attributes of the node and of the job.

use std::ffi::{c_char, c_int};
use std::str;

use attachment::{c, limits};

use crate::{
    ATTACHMENT, Outcome, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_SIZE, PMI2_ERR_INVALID_VAL, PMI2_ERR_OTHER, check_room,
    failed, joined, run, text,
};

/// What an attribute was found to be.
type Found = Option<Vec<u8>>;

/// Puts an attribute that the job's ranks on this node see at once.
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
    run(|| {
        // SAFETY: NULL or a string.
        let name = unsafe { key(name)? };
        check_room(value, valuelen, PMI2_ERR_INVALID_VAL)?;
        let got = ATTACHMENT.node_get(name, waitfor != 0).map_err(failed)?;
        if got.is_none() && waitfor != 0 {
            // There is nobody who could put it.
            return Err(PMI2_ERR_OTHER);
        }
        // SAFETY: not NULL, so the caller's buffer of so many bytes, and NULL or a place for an int.
        unsafe { hand_out(&got, value, valuelen, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetNodeAttrIntArray(
    name: *const c_char,
    array: *mut c_int,
    arraylen: c_int,
    outlen: *mut c_int,
    found: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let name = unsafe { key(name)? };
        let got = match ATTACHMENT.node_get(name, false).map_err(failed)? {
            Some(value) => Some(value),
            None => provided(name)?,
        };
        // SAFETY: NULL or the caller's places, and an array of so many elements.
        unsafe { hand_out_numbers(&got, array, arraylen, outlen, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetJobAttr(
    name: *const c_char,
    value: *mut c_char,
    valuelen: c_int,
    found: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let name = unsafe { key(name)? };
        check_room(value, valuelen, PMI2_ERR_INVALID_VAL)?;
        let got = ATTACHMENT.job_attribute(name).map_err(failed)?;
        // SAFETY: not NULL, so the caller's buffer of so many bytes, and NULL or a place for an int.
        unsafe { hand_out(&got, value, valuelen, found) }
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Info_GetJobAttrIntArray(
    name: *const c_char,
    array: *mut c_int,
    arraylen: c_int,
    outlen: *mut c_int,
    found: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let name = unsafe { key(name)? };
        let got = ATTACHMENT.job_attribute(name).map_err(failed)?;
        // SAFETY: NULL or the caller's places, and an array of so many elements.
        unsafe { hand_out_numbers(&got, array, arraylen, outlen, found) }
    })
}

/// The name of an attribute.
///
/// # Safety
///
/// `name` is NULL or a string.
unsafe fn key<'a>(name: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller vouches for it.
    unsafe { text(name, limits::KEY_BYTES_MAX, PMI2_ERR_INVALID_ARG) }
}

/// The predefined attributes of a node, which no server knows.
fn provided(name: &[u8]) -> Outcome<Found> {
    let clique = || ATTACHMENT.clique(joined()?).map_err(failed);
    Ok(match name {
        b"localRanks" => {
            let ranks: Vec<String> = clique()?.iter().map(u32::to_string).collect();
            Some(ranks.join(",").into_bytes())
        }
        b"localRanksCount" => Some(clique()?.len().to_string().into_bytes()),
        _ => None,
    })
}

/// # Safety
///
/// `value` can be written for `room` bytes, and `found` is NULL or can be written.
unsafe fn hand_out(got: &Found, value: *mut c_char, room: c_int, found: *mut c_int) -> Outcome {
    // SAFETY: the caller vouches for it; what was received lies elsewhere.
    unsafe {
        if let Some(got) = got {
            c::write_cut(got, value, room);
        }
        c::store(found, got.is_some().into());
    }
    Ok(())
}

/// # Safety
///
/// `array` is NULL or has `room` elements; the other two are NULL or can be written.
unsafe fn hand_out_numbers(
    got: &Found,
    array: *mut c_int,
    room: c_int,
    count: *mut c_int,
    found: *mut c_int,
) -> Outcome {
    let room = usize::try_from(room).map_err(|_| PMI2_ERR_INVALID_SIZE)?;
    if array.is_null() && room > 0 {
        return Err(PMI2_ERR_INVALID_ARG);
    }
    let numbers = match got {
        None => Vec::new(),
        Some(list) => numbers(list, room).ok_or(PMI2_ERR_OTHER)?,
    };
    // SAFETY: the caller vouches for it, and there are at most `room` numbers.
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

/// The first numbers of a list with commas; `None` if one of them is none.
fn numbers(list: &[u8], most: usize) -> Option<Vec<c_int>> {
    let list = str::from_utf8(list).ok()?;
    list.split(',').take(most).map(|number| number.trim().parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_numbers_are_read_up_to_the_room() {
        assert_eq!(numbers(b"1,-2, 3", 9), Some(vec![1, -2, 3]));
        assert_eq!(numbers(b"1,2,x", 2), Some(vec![1, 2]));
        assert_eq!(numbers(b"1,,2", 3), None);
        assert_eq!(numbers(b"", 3), None);
    }
}
