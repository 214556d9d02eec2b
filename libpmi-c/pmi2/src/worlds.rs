//! Names that other jobs look up, and the start of further jobs.

use std::ffi::{c_char, c_int, c_void};

use attachment::{SpawnCommand, SpawnRequest, c, limits};

use crate::{
    ATTACHMENT, Outcome, PMI2_ERR_INVALID_ARG, PMI2_ERR_INVALID_SIZE, PMI2_ERR_OTHER, check_room, failed, joined, run,
    text,
};

/// `struct MPID_Info`, of which only the last two matter.
#[repr(C)]
#[derive(Copy, Clone, Debug)]
struct Info {
    handle: c_int,
    pobj_mutex: c_int,
    ref_count: c_int,
    next: *mut Self,
    key: *const c_char,
    value: *const c_char,
}

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Nameserv_publish(
    service_name: *const c_char,
    _info_ptr: *const c_void,
    port: *const c_char,
) -> c_int {
    run(|| {
        // SAFETY: NULL or strings.
        let (service, port) =
            unsafe { (name(service_name)?, text(port, limits::PORT_BYTES_MAX, PMI2_ERR_INVALID_ARG)?) };
        ATTACHMENT.publish(service, port).map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Nameserv_lookup(
    service_name: *const c_char,
    _info_ptr: *const c_void,
    port: *mut c_char,
    port_len: c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let service = unsafe { name(service_name)? };
        check_room(port, port_len, PMI2_ERR_INVALID_ARG)?;
        let found = ATTACHMENT.lookup(service).map_err(failed)?.ok_or(PMI2_ERR_OTHER)?;
        // SAFETY: not NULL, so the caller's buffer of so many bytes; what was received lies elsewhere.
        unsafe { c::write_cut(&found, port, port_len) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Nameserv_unpublish(service_name: *const c_char, _info_ptr: *const c_void) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        ATTACHMENT.unpublish(unsafe { name(service_name)? }).map_err(failed)
    })
}

/// Starts further ranks. `errors` receives a code for each command: MPICH's buffer has room for one
/// for each rank, but what is documented is one for each command.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI2_Job_Spawn(
    count: c_int,
    cmds: *const *const c_char,
    argcs: *const c_int,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_keyval_sizes: *const c_int,
    info_keyval_vectors: *const *const Info,
    preput_keyval_size: c_int,
    preput_keyval_vector: *const *const Info,
    job_id: *mut c_char,
    job_id_size: c_int,
    errors: *mut c_int,
) -> c_int {
    run(|| {
        // SAFETY: NULL or arrays as the header describes them.
        let order = unsafe {
            let preputs = preputs(preput_keyval_vector, preput_keyval_size)?;
            let commands = commands(count, cmds, argcs, argvs, maxprocs, info_keyval_sizes, info_keyval_vectors)?;
            SpawnRequest { commands, preputs }
        };
        joined()?;
        order.check().map_err(|_| PMI2_ERR_INVALID_ARG)?;
        let spawned = ATTACHMENT.spawn(&order);
        // SAFETY: NULL, or the caller's array with an element for each command.
        unsafe { c::write_codes(&order, &spawned, errors) };
        let launched = spawned.map_err(failed)?;
        if !job_id.is_null() {
            // SAFETY: not NULL, so the caller's buffer of so many bytes.
            unsafe { c::write_cut(launched.job.as_bytes(), job_id, job_id_size) };
        }
        Ok(())
    })
}

/// # Safety
///
/// As of [`PMI2_Job_Spawn`].
unsafe fn commands(
    count: c_int,
    cmds: *const *const c_char,
    argcs: *const c_int,
    argvs: *const *const *const c_char,
    maxprocs: *const c_int,
    info_sizes: *const c_int,
    infos: *const *const Info,
) -> Outcome<Vec<SpawnCommand>> {
    let count = bounded(count, limits::SPAWN_COMMANDS_MAX)?;
    if cmds.is_null() || maxprocs.is_null() {
        return Err(PMI2_ERR_INVALID_ARG);
    }
    // SAFETY: arrays of `count` elements, or NULL where that may be.
    let (programs, nprocs, argcs, argvs, sizes, infos) = unsafe {
        let (argcs, argvs) = (c::array(argcs, count), c::array(argvs, count));
        let (sizes, infos) = (c::array(info_sizes, count), c::array(infos, count));
        (c::array(cmds, count), c::array(maxprocs, count), argcs, argvs, sizes, infos)
    };
    let command = |at: usize| {
        // SAFETY: elements are strings, arrays of so many strings, and arrays of so many pairs.
        let (program, args, info) = unsafe {
            let program = own(programs[at])?;
            let args = match (argvs.get(at), argcs.get(at)) {
                (Some(&argv), Some(&argc)) => words(argv, argc)?,
                (None, _) | (_, None) => Vec::new(),
            };
            let info = match (infos.get(at), sizes.get(at)) {
                (Some(&info), Some(&size)) => hints(info, size)?,
                (None, _) | (_, None) => Vec::new(),
            };
            (program, args, info)
        };
        let nprocs = u32::try_from(nprocs[at]).map_err(|_| PMI2_ERR_INVALID_SIZE)?;
        Ok(SpawnCommand { program, args, nprocs, info })
    };
    (0..count).map(command).collect()
}

/// # Safety
///
/// `argv` is NULL or has `argc` elements that are strings.
unsafe fn words(argv: *const *const c_char, argc: c_int) -> Outcome<Vec<Vec<u8>>> {
    let argc = bounded(argc, limits::SPAWN_ARGS_MAX)?;
    // SAFETY: the caller vouches for it.
    unsafe { c::array(argv, argc).iter().map(|&word| own(word)).collect() }
}

/// # Safety
///
/// `infos` is NULL or has `size` elements.
unsafe fn hints(infos: *const Info, size: c_int) -> Outcome<Pairs> {
    let size = bounded(size, limits::SPAWN_INFO_MAX)?;
    // SAFETY: the caller vouches for it.
    unsafe { c::array(infos, size).iter().map(|info| Ok((own(info.key)?, own(info.value)?))).collect() }
}

/// # Safety
///
/// `preputs` is NULL or has `size` elements, each NULL or a pointer to one pair.
unsafe fn preputs(preputs: *const *const Info, size: c_int) -> Outcome<Pairs> {
    let size = bounded(size, limits::SPAWN_PREPUTS_MAX)?;
    if preputs.is_null() && size > 0 {
        return Err(PMI2_ERR_INVALID_ARG);
    }
    // SAFETY: the caller vouches for it.
    unsafe {
        let pair = |&info: &*const Info| {
            let info = info.as_ref().ok_or(PMI2_ERR_INVALID_ARG)?;
            Ok((own(info.key)?, own(info.value)?))
        };
        c::array(preputs, size).iter().map(pair).collect()
    }
}

/// A string as one's own.
///
/// # Safety
///
/// `string` is NULL or a string.
unsafe fn own(string: *const c_char) -> Outcome<Vec<u8>> {
    // SAFETY: the caller vouches for it.
    unsafe { text(string, limits::SPAWN_BYTES_MAX, PMI2_ERR_INVALID_ARG) }.map(<[u8]>::to_vec)
}

/// A service's name.
///
/// # Safety
///
/// `service` is NULL or a string.
unsafe fn name<'a>(service: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller vouches for it.
    unsafe { text(service, limits::SERVICE_BYTES_MAX, PMI2_ERR_INVALID_ARG) }
}

/// A number of elements.
fn bounded(count: c_int, most: usize) -> Outcome<usize> {
    usize::try_from(count).ok().filter(|&count| count <= most).ok_or(PMI2_ERR_INVALID_SIZE)
}
