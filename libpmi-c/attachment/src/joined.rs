//! [`Joined`]: what is known of a process that has initialised PMI.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use pmi::Rank;
use pmi::v1::client::Maxes;

use crate::environment::Environment;
use crate::segment::Segment;
use crate::wire::Version;

/// What is known of this rank and its job. Once made it is never taken away: other threads read it
/// without a lock, whoever finalises PMI meanwhile.
#[derive(Debug)]
pub struct Joined {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) is_spawned: bool,
    /// The server is ours: it takes what our agent takes.
    pub(crate) is_ours: bool,
    /// What the server speaks; `None`: there is no server.
    pub(crate) protocol: Option<Version>,
    pub(crate) segment: Option<Segment>,
    pub(crate) environment: Environment,
    /// Asked for when first needed.
    pub(crate) name: OnceLock<CString>,
    pub(crate) appnum: OnceLock<i32>,
    pub(crate) maxes: OnceLock<Maxes>,
}

impl Joined {
    /// This process's rank.
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// How many ranks the job has.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Whether the job has a parent.
    pub fn is_spawned(&self) -> bool {
        self.is_spawned
    }

    /// Whether there is no server, and no other rank.
    pub fn is_alone(&self) -> bool {
        self.protocol.is_none()
    }

    /// The name of the board and the job, if it was asked for already.
    #[inline]
    pub fn known_name(&self) -> Option<&CStr> {
        self.name.get().map(CString::as_c_str)
    }

    /// Whether a later initialisation found the same again. What was learned by asking holds on.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let identity = |joined: &Self| joined.segment.as_ref().map(Segment::identity);
        self.environment == other.environment
            && (self.rank, self.size, self.is_spawned) == (other.rank, other.size, other.is_spawned)
            && identity(self) == identity(other)
    }
}
