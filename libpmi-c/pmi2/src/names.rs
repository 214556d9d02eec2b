//! The name service: ports that jobs publish under a name for other jobs to look up.

use std::ffi::{c_char, c_int, c_void};

use attachment::c::{self, Outcome, run};
use attachment::limits;

use crate::{ATTACHMENT, PMI2_ERR_INVALID_ARG, PMI2_ERR_OTHER, check_room, failed, text};

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
        // SAFETY: not NULL, so the caller's buffer of `port_len` bytes; the port lies in memory of this library.
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

/// Reads the name of a service.
///
/// # Safety
///
/// `service` is NULL or a string.
unsafe fn name<'a>(service: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    unsafe { text(service, limits::SERVICE_BYTES_MAX, PMI2_ERR_INVALID_ARG) }
}
