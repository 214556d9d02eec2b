//! The name service: ports that jobs publish under a name for other jobs to look up.

use std::ffi::{c_char, c_int};

use attachment::c::{self, Outcome, run};
use attachment::limits;

use crate::{ATTACHMENT, PMI_ERR_INVALID_ARG, PMI_FAIL, failed, kvs, member, string};

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Publish_name(service: *const c_char, port: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or strings.
        let (service, port) = unsafe { (name(service)?, string(port, limits::PORT_BYTES_MAX, PMI_ERR_INVALID_ARG)?) };
        member()?;
        ATTACHMENT.publish(service, port).map_err(failed)
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Unpublish_name(service: *const c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let service = unsafe { name(service)? };
        member()?;
        ATTACHMENT.unpublish(service).map_err(failed)
    })
}

/// Copies the port to a buffer whose length the caller does not pass: it has room for a value.
#[unsafe(no_mangle)]
unsafe extern "C" fn PMI_Lookup_name(service: *const c_char, port: *mut c_char) -> c_int {
    run(|| {
        // SAFETY: NULL or a string.
        let service = unsafe { name(service)? };
        c::not_null(port, PMI_ERR_INVALID_ARG)?;
        member()?;
        let room = kvs::maxes().map_err(failed)?.value.min(limits::VALLEN_MAX);
        let found = ATTACHMENT.lookup(service).map_err(failed)?.ok_or(PMI_FAIL)?;
        // SAFETY: not NULL, so the caller's buffer, which has room for a value.
        unsafe { c::copy(&found, port, c::int(room), PMI_FAIL) }
    })
}

/// Reads the name of a service.
///
/// # Safety
///
/// `service` is NULL or a string.
unsafe fn name<'a>(service: *const c_char) -> Outcome<&'a [u8]> {
    // SAFETY: the caller guarantees it.
    unsafe { string(service, limits::SERVICE_BYTES_MAX, PMI_ERR_INVALID_ARG) }
}
