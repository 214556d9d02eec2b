//! This program, as it is sent to nodes that lack it.
//!
//! Only the part that the kernel loads is sent. The headers of an ELF file say how far that reaches; debug information
//! lies behind it, four fifths of a release build.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe::Sender;

use super::protocol::Sent;

/// How many bytes are read at a time.
const PIECE: usize = 64 * 1024;

/// The user that the kernel shows for an owner that a namespace or a file server does not know
/// (`/proc/sys/kernel/overflowuid` by default): it stands for many users.
const UNKNOWN_USER: u32 = 65534;

/// Describes the program of this process as it may be sent. Reads all of it.
pub fn own_program() -> io::Result<Sent> {
    let mut program = Vec::new();
    loaded()?.read_to_end(&mut program)?;
    Ok(Sent { digest: hex(Sha256::digest(&program)), size: program.len() as u64 })
}

/// Writes bytes as hexadecimal digits.
pub(super) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Returns the owner of this process's program; `None` if the kernel shows it as [`UNKNOWN_USER`].
pub(super) fn owner() -> Option<u32> {
    let owner = std::fs::metadata("/proc/self/exe").ok()?.uid();
    (owner != UNKNOWN_USER).then_some(owner)
}

/// Writes the program to the input of a remote shell or a step.
pub(super) async fn send(input: &mut Sender) -> io::Result<()> {
    let mut file = loaded()?;
    let mut piece = vec![0; PIECE];
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(()),
            length => input.write_all(&piece[..length]).await?,
        }
    }
}

/// Opens this process's program, cut behind the part that the kernel loads.
fn loaded() -> io::Result<impl Read> {
    let mut file = File::open("/proc/self/exe")?;
    let mut head = vec![0; 4096];
    let length = file.read(&mut head)?;
    let extent = loaded_bytes(&head[..length]).unwrap_or(u64::MAX);
    Ok(io::Read::chain(io::Cursor::new(head).take(length as u64), file).take(extent))
}

/// Returns the end of the last segment that the kernel loads, by the `head` of a file. `None` unless it is a 64-bit
/// little-endian ELF file whose program headers are in `head`.
fn loaded_bytes(head: &[u8]) -> Option<u64> {
    const LITTLE_64: &[u8] = b"\x7fELF\x02\x01";
    const LOAD: u32 = 1;
    let number = |at: usize| Some(u64::from_le_bytes(*head.get(at..)?.first_chunk()?));
    let half = |at: usize| Some(usize::from(u16::from_le_bytes(*head.get(at..)?.first_chunk()?)));
    head.starts_with(LITTLE_64).then_some(())?;
    let (first, size, count) = (usize::try_from(number(32)?).ok()?, half(54)?, half(56)?);
    let mut end = None;
    for at in (0..count).map(|i| first.checked_add(i.checked_mul(size)?)) {
        let at = at?;
        let kind = u32::from_le_bytes(*head.get(at..)?.first_chunk()?);
        if kind == LOAD {
            end = end.max(Some(number(at + 8)?.checked_add(number(at + 32)?)?));
        }
    }
    end
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;
    use std::path::Path;
    use std::process::{Command, Stdio};

    use super::*;

    /// Writes an executable file. A separate process writes it: execve fails with ETXTBSY while any process has the
    /// file open for writing, and a process that another test forks meanwhile would inherit the descriptor.
    pub(in crate::bootstrap) fn install(path: &Path, bytes: &[u8]) {
        let mut command = Command::new("sh");
        command.args(["-c", "cat > \"$0\" && chmod 700 \"$0\""]).arg(path).stdin(Stdio::piped());
        let mut writer = command.spawn().unwrap();
        writer.stdin.take().unwrap().write_all(bytes).unwrap();
        assert!(writer.wait().unwrap().success());
    }

    #[test]
    fn the_owner_of_the_program_is_that_of_its_file() {
        let file = std::fs::metadata(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(owner(), Some(file.uid()));
    }

    #[test]
    fn the_part_that_is_loaded_runs() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cut");
        let bytes = std::fs::read("/bin/sh").unwrap();
        let extent = loaded_bytes(&bytes[..4096]).unwrap() as usize;
        assert!(extent <= bytes.len());
        install(&path, &bytes[..extent]);
        let said = Command::new(&path).args(["-c", "echo it runs"]).output().unwrap();
        assert_eq!(said.stdout, b"it runs\n");
    }

    #[test]
    fn a_broken_head_of_a_file_is_harmless() {
        let head = std::fs::read("/bin/sh").unwrap()[..4096].to_vec();
        for length in [0, 5, 16, 63, 64, 100, 200] {
            assert_eq!(loaded_bytes(&head[..length]), None, "{length} bytes");
        }
        assert_eq!(loaded_bytes(b"#!/bin/sh\n"), None);
        for at in 32..600 {
            let mut broken = head.clone();
            broken[at] ^= 0xff;
            // Any result is fine; it must not panic.
            let _ = loaded_bytes(&broken);
        }
    }

    #[test]
    fn the_digest_is_that_of_sha256sum() {
        let own = own_program().unwrap();
        let mut bytes = Vec::new();
        loaded().unwrap().read_to_end(&mut bytes).unwrap();
        assert_eq!(own.size, bytes.len() as u64);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("loaded");
        std::fs::write(&path, bytes).unwrap();
        let said = Command::new("sha256sum").arg(path).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&said.stdout).split(' ').next(), Some(&*own.digest));
    }
}
