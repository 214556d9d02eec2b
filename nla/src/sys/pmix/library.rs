//! The functions of libpmix, found at run time.

use std::ffi::{CStr, CString, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::abi::{RawBuffer, RawCpuset, RawInfo, RawProcess, Status};
use super::completion::OperationDone;
use super::upcalls::Module;

/// `pmix_dmodex_response_fn_t`.
type Response = unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void);

/// The functions of libpmix that a server calls.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    pub(super) init: unsafe extern "C" fn(*mut Module, *mut RawInfo, usize) -> Status,
    pub(super) register_nspace:
        unsafe extern "C" fn(*const c_char, i32, *mut RawInfo, usize, Option<OperationDone>, *mut c_void) -> Status,
    pub(super) deregister_nspace: unsafe extern "C" fn(*const c_char, Option<OperationDone>, *mut c_void),
    pub(super) register_client:
        unsafe extern "C" fn(*const RawProcess, u32, u32, *mut c_void, Option<OperationDone>, *mut c_void) -> Status,
    pub(super) deregister_client: unsafe extern "C" fn(*const RawProcess, Option<OperationDone>, *mut c_void),
    pub(super) setup_fork: unsafe extern "C" fn(*const RawProcess, *mut *mut *mut c_char) -> Status,
    pub(super) dmodex_request: unsafe extern "C" fn(*const RawProcess, Option<Response>, *mut c_void) -> Status,
    pub(super) generate_regex: unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status,
    pub(super) generate_ppn: unsafe extern "C" fn(*const c_char, *mut *mut c_char) -> Status,
    pub(super) data_pack: unsafe extern "C" fn(*const RawProcess, *mut RawBuffer, *const c_void, i32, u16) -> Status,
    pub(super) data_unpack:
        unsafe extern "C" fn(*const RawProcess, *mut RawBuffer, *mut c_void, *mut i32, u16) -> Status,
    pub(super) notify_event: unsafe extern "C" fn(
        Status,
        *const RawProcess,
        u8,
        *const RawInfo,
        usize,
        Option<OperationDone>,
        *mut c_void,
    ) -> Status,
    pub(super) parse_cpuset: unsafe extern "C" fn(*const c_char, *mut RawCpuset) -> Status,
    pub(super) locality: unsafe extern "C" fn(*const RawCpuset, *mut *mut c_char) -> Status,
    pub(super) error_string: unsafe extern "C" fn(Status) -> *const c_char,
    pub(super) version: unsafe extern "C" fn() -> *const c_char,
}

/// A failure of libpmix.
#[derive(Debug, thiserror::Error)]
#[error("{call}: {text}")]
pub struct PmixError {
    /// The function that has failed.
    pub(super) call: &'static str,
    /// The reason.
    pub(super) text: String,
}

/// Loads libpmix.
pub(super) fn load(library: &Path) -> Result<Functions, PmixError> {
    if cfg!(target_feature = "crt-static") {
        let text = "this scela-run is linked statically and can load no library; use one that is linked dynamically";
        return Err(PmixError { call: "dlopen", text: text.to_owned() });
    }
    if !super::accept::is_exported() {
        let text = "this scela-run does not export its function 'accept', so strangers could stop the ranks; build it as README says";
        return Err(PmixError { call: "dlopen", text: text.to_owned() });
    }
    let path = CString::new(library.as_os_str().as_bytes())
        .map_err(|error| PmixError { call: "dlopen", text: error.to_string() })?;
    // SAFETY: loading runs the library's constructors; the user has chosen it. It is never closed.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(last_error());
    }
    // SAFETY: the types of all fields are those of the functions in the headers.
    unsafe {
        Ok(Functions {
            init: symbol(handle, c"PMIx_server_init")?,
            register_nspace: symbol(handle, c"PMIx_server_register_nspace")?,
            deregister_nspace: symbol(handle, c"PMIx_server_deregister_nspace")?,
            register_client: symbol(handle, c"PMIx_server_register_client")?,
            deregister_client: symbol(handle, c"PMIx_server_deregister_client")?,
            setup_fork: symbol(handle, c"PMIx_server_setup_fork")?,
            dmodex_request: symbol(handle, c"PMIx_server_dmodex_request")?,
            generate_regex: symbol(handle, c"PMIx_generate_regex")?,
            generate_ppn: symbol(handle, c"PMIx_generate_ppn")?,
            data_pack: symbol(handle, c"PMIx_Data_pack")?,
            data_unpack: symbol(handle, c"PMIx_Data_unpack")?,
            notify_event: symbol(handle, c"PMIx_Notify_event")?,
            parse_cpuset: symbol(handle, c"PMIx_Parse_cpuset_string")?,
            locality: symbol(handle, c"PMIx_server_generate_locality_string")?,
            error_string: symbol(handle, c"PMIx_Error_string")?,
            version: symbol(handle, c"PMIx_Get_version")?,
        })
    }
}

/// Finds a function of a library.
///
/// # Safety
///
/// `F` must be the type of a pointer to that function.
unsafe fn symbol<F: Copy>(handle: *mut c_void, name: &CStr) -> Result<F, PmixError> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: the handle is open.
    let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if found.is_null() {
        return Err(last_error());
    }
    // SAFETY: the caller says so; the size was checked.
    Ok(unsafe { std::mem::transmute_copy(&found) })
}

/// Returns the last error of the dynamic loader.
fn last_error() -> PmixError {
    // SAFETY: dlerror returns null or a C string of this thread.
    let text = unsafe { libc::dlerror() };
    let text = if text.is_null() {
        "unknown error".to_owned()
    } else {
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    };
    PmixError { call: "dlopen", text }
}
