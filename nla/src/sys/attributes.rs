//! Reads extended attributes of files.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Reads an extended attribute of the file to which a path leads into `value`. Returns its length; `None` if there is no such file or
/// attribute, or if it is longer than `value`. Only returns the length if `value` is empty.
pub(super) fn attribute(path: &Path, name: &CStr, value: &mut [u8]) -> Option<usize> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: two NUL-terminated strings, and a buffer with its size.
    let length = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), value.as_mut_ptr().cast(), value.len()) };
    usize::try_from(length).ok()
}

/// Sets an extended attribute. Returns false without the right to do so, and on a file system without attributes.
#[cfg(test)]
pub(super) fn set_attribute(path: &Path, name: &CStr, value: &[u8]) -> bool {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: two NUL-terminated strings, and a buffer with its size.
    unsafe { libc::setxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) == 0 }
}
