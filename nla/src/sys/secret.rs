//! Memory for a secret: one page that core dumps leave out, wiped before it is unmapped.
//!
//! MADV_DONTDUMP keeps the page out of core dumps and leaves the process dumpable, so its user can still attach a
//! debugger. The debugger can read the page. MADV_WIPEONFORK fills the page of a forked child with zeros: a guardian that the
//! launcher forks never has the session's key.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use zeroize::Zeroize;

/// The length of a secret in bytes.
pub const SECRET_BYTES: usize = 32;

/// The length of the mapping that is asked for. The kernel rounds it up to one page.
const MAPPED: NonZeroUsize = NonZeroUsize::new(SECRET_BYTES).expect("a secret has bytes");

/// A page with a secret. It never moves, so it leaves no copies of the secret.
pub struct SecretPage(NonNull<[u8; SECRET_BYTES]>);

// SAFETY: the page belongs to this value alone. It is written only by `new`, before it is shared, and by `drop`.
unsafe impl Send for SecretPage {}
// SAFETY: as above; shared references only read.
unsafe impl Sync for SecretPage {}

impl SecretPage {
    /// Maps a page, and writes a secret into it with `fill`.
    pub fn new<E: From<io::Error>>(fill: impl FnOnce(&mut [u8; SECRET_BYTES]) -> Result<(), E>) -> Result<Self, E> {
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new private mapping, which overlaps no other.
        let page = unsafe { mmap_anonymous(None, MAPPED, access, MapFlags::MAP_PRIVATE) }.map_err(io::Error::from)?;
        let mut page = Self(page.cast());
        for advice in [MmapAdvise::MADV_DONTDUMP, MmapAdvise::MADV_WIPEONFORK] {
            // SAFETY: the range is the mapping above. The advice changes no byte of it in this process.
            unsafe { madvise(page.0.cast(), SECRET_BYTES, advice) }.map_err(io::Error::from)?;
        }
        fill(page.bytes_mut())?;
        Ok(page)
    }

    /// Returns the secret. The caller wipes each copy that it makes.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        // SAFETY: the page is mapped as long as `self` exists, is initialized (the kernel fills it with zeros), and is
        // not written while it is shared.
        unsafe { self.0.as_ref() }
    }

    fn bytes_mut(&mut self) -> &mut [u8; SECRET_BYTES] {
        // SAFETY: as in `bytes`; the exclusive reference excludes other readers.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for SecretPage {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        // SAFETY: the mapping was made by `new`, and no reference to it is left.
        let _ = unsafe { munmap(self.0.cast(), SECRET_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the VmFlags of the mapping of /proc/self/smaps that contains `address`.
    fn flags_at(address: usize) -> Option<String> {
        let text = std::fs::read_to_string("/proc/self/smaps").expect("/proc is readable");
        let mut is_here = false;
        for line in text.lines() {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            if let Some((Ok(from), Ok(to))) =
                range.map(|(from, to)| (usize::from_str_radix(from, 16), usize::from_str_radix(to, 16)))
            {
                is_here = (from..to).contains(&address);
            } else if let Some(flags) = line.strip_prefix("VmFlags:").filter(|_| is_here) {
                return Some(flags.to_owned());
            }
        }
        None
    }

    #[test]
    fn the_page_is_left_out_of_core_dumps_and_forks() {
        let page = SecretPage::new(|bytes| {
            bytes.fill(7);
            io::Result::Ok(())
        })
        .expect("memory for a page");
        assert_eq!(page.bytes(), &[7; SECRET_BYTES]);
        let address = page.0.as_ptr() as usize;
        let flags = flags_at(address).expect("the page is mapped");
        for expected in ["dd", "wf"] {
            assert!(flags.split_ascii_whitespace().any(|flag| flag == expected), "{expected} in VmFlags:{flags}");
        }
    }

    #[test]
    fn a_secret_that_cannot_be_read_is_an_error() {
        let error = SecretPage::new(|_| Err(io::Error::from(io::ErrorKind::UnexpectedEof))).err();
        assert_eq!(error.map(|error| error.kind()), Some(io::ErrorKind::UnexpectedEof));
    }
}
