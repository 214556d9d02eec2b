//! The form in which a rank hands its counts to its agent, in pieces; docs/profiling.md describes it.
//!
//! A piece is its length (u32, little-endian) and that many bytes: variable-length integers (LEB128), of which the last are
//! the traffic with some peers.

use std::fs::File;
use std::io::Write as _;
use std::mem::MaybeUninit;
use std::os::fd::FromRawFd as _;

pub use crate::counters::{Peer, Traffic};

/// The descriptor of the agent's file, which each rank inherits.
pub const PROFILE_FD: i32 = 12;
/// The link by which the kernel names that file. A descriptor that the program has replaced has another one.
const PROFILE_LINK: &str = "/memfd:scela-profile (deleted)";
/// The maximum number of peers in a piece. No piece is longer than 32 KiB.
pub const PIECE_PEERS_MAX: usize = 1000;

/// The counts of a rank.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// The rank.
    pub rank: u32,
    /// The number of ranks in the job.
    pub size: u32,
    /// Messages to processes that are not in the job.
    pub outside: Traffic,
    /// The traffic with each peer.
    pub peers: Vec<(Peer, Traffic)>,
}

impl Row {
    /// Returns the pieces. All but the last have [`PIECE_PEERS_MAX`] peers.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut left = self.peers.len();
        // A rank without peers has one piece, too.
        let mut chunks = self.peers.chunks(PIECE_PEERS_MAX);
        loop {
            let peers = chunks.next().unwrap_or_default();
            left -= peers.len();
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            let head = [u64::from(self.rank), u64::from(self.size), left as u64, peers.len() as u64];
            head.into_iter().for_each(|number| put(&mut out, number));
            put(&mut out, self.outside.bytes);
            put(&mut out, self.outside.messages);
            for (peer, traffic) in peers {
                put(&mut out, u64::from(peer.rank) << 1 | u64::from(peer.fetched));
                put(&mut out, traffic.bytes);
                put(&mut out, traffic.messages);
            }
            let bytes = (out.len() - start - 4) as u32;
            out[start..start + 4].copy_from_slice(&bytes.to_le_bytes());
            if left == 0 {
                return out;
            }
        }
    }

    /// Appends the pieces to the agent's file, if this process has it. Files in append mode take what one call writes without
    /// the bytes of other processes in between.
    pub fn hand_over(&self) {
        let link = std::fs::read_link(format!("/proc/self/fd/{PROFILE_FD}"));
        if !link.is_ok_and(|link| link.as_os_str() == PROFILE_LINK) {
            return;
        }
        let _blocked = FileSignalBlocked::new();
        // SAFETY: the descriptor is open, and stays open: it is not closed below.
        let mut file = std::mem::ManuallyDrop::new(unsafe { File::from_raw_fd(PROFILE_FD) });
        // A rank whose counts do not arrive is reported by the launcher.
        let _ = file.write_all(&self.encode());
    }
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Blocks SIGXFSZ in this thread: a write past RLIMIT_FSIZE then fails instead of ending the program.
struct FileSignalBlocked {
    before: libc::sigset_t,
}

impl FileSignalBlocked {
    fn new() -> Self {
        let mut set = MaybeUninit::uninit();
        let mut before = MaybeUninit::zeroed();
        // SAFETY: sigemptyset initialises the set; both pointers are to memory of this function. Zeros are a set, too.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
            libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), before.as_mut_ptr());
            Self { before: before.assume_init() }
        }
    }
}

impl Drop for FileSignalBlocked {
    fn drop(&mut self) {
        // SAFETY: the sets are in memory of this function; a zero timeout only takes a signal that is pending.
        unsafe {
            let mut set = MaybeUninit::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            libc::sigaddset(set.as_mut_ptr(), libc::SIGXFSZ);
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            if libc::sigismember(&raw const self.before, libc::SIGXFSZ) == 0 {
                libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const now);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}
