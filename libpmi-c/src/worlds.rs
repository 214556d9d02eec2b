//! Names that other jobs look up, and the start of further jobs.

use std::ffi::{c_char, c_int};

use attachment::{ClientError, Error, SpawnCommand, SpawnRequest, c, limits};

use crate::options::Keyval;
use crate::{ATTACHMENT, Outcome, PMI_ERR_INVALID_ARG, PMI_FAIL, failed, joined, kvs};

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Publish_name(service: *const c_char, port: *const c_char) -> c_int {
    let body = || {
        // SAFETY: NULL or strings.
        let (service, port) = unsafe { (name(service)?, c::text(port, limits::PORT_BYTES_MAX)) };
        let port = port.bytes().ok_or(PMI_ERR_INVALID_ARG)?;
        joined()?;
        ATTACHMENT.publish(service, port).map_err(failed)
    };
    c::run(body)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Unpublish_name(service: *const c_char) -> c_int {
    let body = || {
        // SAFETY: NULL or a string.
        let service = unsafe { name(service)? };
        joined()?;
        ATTACHMENT.unpublish(service).map_err(failed)
    };
    c::run(body)
}

/// The port goes to a buffer whose length callers do not tell: they have room for a value.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Lookup_name(service: *const c_char, port: *mut c_char) -> c_int {
    let body = || {
        // SAFETY: NULL or a string.
        let service = unsafe { name(service)? };
        if port.is_null() {
            return Err(PMI_ERR_INVALID_ARG);
        }
        joined()?;
        let room = kvs::maxes().map_err(failed)?.value.min(limits::VALLEN_MAX);
        let found = ATTACHMENT.lookup(service).map_err(failed)?.ok_or(PMI_FAIL)?;
        // SAFETY: not NULL, so the caller's buffer of as many bytes as a value may have.
        if unsafe { c::write(&found, port, c::int(room)) } { Ok(()) } else { Err(PMI_FAIL) }
    };
    c::run(body)
}

/// Starts further ranks. `errors` receives a code for each command: MPICH's buffer has room for one
/// for each rank, but what is documented is one for each command.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Spawn_multiple(
    count: c_int,
    cmds: *const *const c_char,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_keyval_sizes: *const c_int,
    info_keyval_vectors: *const *const Keyval,
    preput_keyval_size: c_int,
    preput_keyval_vector: *const Keyval,
    errors: *mut c_int,
) -> c_int {
    let body = || {
        // SAFETY: NULL or arrays as the header describes them.
        let order = unsafe {
            let preputs = pairs(preput_keyval_vector, preput_keyval_size)?;
            let commands = commands(count, cmds, argvs, maxprocs, info_keyval_sizes, info_keyval_vectors)?;
            SpawnRequest { commands, preputs }
        };
        joined()?;
        order.check().map_err(|_| PMI_ERR_INVALID_ARG)?;
        let spawned = ATTACHMENT.spawn(&order);
        // SAFETY: NULL, or the caller's array with an element for each command.
        unsafe { c::write_codes(&order, &spawned, errors) };
        spawned.map(drop).map_err(|error| match error {
            Error::Server(ClientError::Unsendable(_) | ClientError::Spawn(_)) => PMI_ERR_INVALID_ARG,
            error => failed(error),
        })
    };
    c::run(body)
}

/// # Safety
///
/// As of [`PMI_Spawn_multiple`].
unsafe fn commands(
    count: c_int,
    cmds: *const *const c_char,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_sizes: *const c_int,
    infos: *const *const Keyval,
) -> Outcome<Vec<SpawnCommand>> {
    let count = usize::try_from(count).ok().filter(|&count| count <= limits::SPAWN_COMMANDS_MAX);
    let count = count.ok_or(PMI_ERR_INVALID_ARG)?;
    if cmds.is_null() || maxprocs.is_null() {
        return Err(PMI_ERR_INVALID_ARG);
    }
    // SAFETY: arrays of `count` elements, or NULL where that may be.
    let (programs, nprocs, argvs, sizes, infos) = unsafe {
        let (sizes, infos) = (c::array(info_sizes, count), c::array(infos, count));
        (c::array(cmds, count), c::array(maxprocs, count), c::array(argvs, count), sizes, infos)
    };
    let command = |at: usize| {
        // SAFETY: elements are strings, arrays with a NULL at their end, and arrays of so many pairs.
        let (program, args, info) = unsafe {
            let program = c::text(programs[at], limits::SPAWN_BYTES_MAX).bytes().ok_or(PMI_ERR_INVALID_ARG)?;
            let args = words(argvs.get(at).copied().unwrap_or(std::ptr::null()))?;
            let info = match (infos.get(at), sizes.get(at)) {
                (Some(&info), Some(&size)) => pairs(info, size)?,
                (None, _) | (_, None) => Vec::new(),
            };
            (program.to_vec(), args, info)
        };
        let nprocs = u32::try_from(nprocs[at]).map_err(|_| PMI_ERR_INVALID_ARG)?;
        Ok(SpawnCommand { program, args, nprocs, info })
    };
    (0..count).map(command).collect()
}

/// The words of an array that ends with NULL, or is NULL.
///
/// # Safety
///
/// It is one.
unsafe fn words(argv: *const *const c_char) -> Outcome<Vec<Vec<u8>>> {
    let mut words = Vec::new();
    if argv.is_null() {
        return Ok(words);
    }
    loop {
        // SAFETY: the end was not reached yet.
        let word = unsafe { *argv.add(words.len()) };
        if word.is_null() {
            return Ok(words);
        }
        if words.len() == limits::SPAWN_ARGS_MAX {
            return Err(PMI_ERR_INVALID_ARG);
        }
        // SAFETY: a string.
        let word = unsafe { c::text(word, limits::SPAWN_BYTES_MAX) }.bytes().ok_or(PMI_ERR_INVALID_ARG)?;
        words.push(word.to_vec());
    }
}

/// # Safety
///
/// `pairs` is NULL or has `size` elements, whose strings are strings or NULL.
unsafe fn pairs(pairs: *const Keyval, size: c_int) -> Outcome<Vec<(Vec<u8>, Vec<u8>)>> {
    let size = usize::try_from(size).map_err(|_| PMI_ERR_INVALID_ARG)?;
    if size > limits::SPAWN_PREPUTS_MAX || (pairs.is_null() && size > 0) {
        return Err(PMI_ERR_INVALID_ARG);
    }
    // SAFETY: the caller vouches for it.
    let pairs = unsafe { c::array(pairs, size) };
    let own = |text| {
        // SAFETY: a string or NULL.
        let text = unsafe { c::text(text, limits::SPAWN_BYTES_MAX) };
        text.bytes().map(<[u8]>::to_vec).ok_or(PMI_ERR_INVALID_ARG)
    };
    pairs.iter().map(|pair| Ok((own(pair.key)?, own(pair.val)?))).collect()
}

/// A service's name.
///
/// # Safety
///
/// `service` is NULL or a string.
unsafe fn name<'a>(service: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller vouches for it.
    unsafe { c::text(service, limits::SERVICE_BYTES_MAX) }.bytes().ok_or(PMI_ERR_INVALID_ARG)
}
