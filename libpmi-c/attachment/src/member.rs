//! [`Member`]: the rank and job of a process that has initialised PMI.

use std::ffi::{CStr, CString};
use std::sync::OnceLock;

use pmi::Rank;
use pmi::v1::client::Maxes;

use crate::client::Version;
use crate::environment::Environment;
use crate::segment::Segment;

/// This process as a member of its job. Never freed: other threads read it without a lock, even while
/// one thread finalises PMI.
#[derive(Debug)]
pub struct Member {
    pub(crate) rank: Rank,
    pub(crate) size: u32,
    pub(crate) is_spawned: bool,
    /// The server is ScELA's: its limits are those of [`pmi::limits`].
    pub(crate) is_scela: bool,
    /// The protocol of the server; `None` without a server.
    pub(crate) protocol: Option<Version>,
    pub(crate) segment: Option<Segment>,
    pub(crate) environment: Environment,
    /// Requested from the server on first use, like the two fields below.
    pub(crate) name: OnceLock<CString>,
    pub(crate) appnum: OnceLock<i32>,
    pub(crate) maxes: OnceLock<Maxes>,
}

impl Member {
    /// Creates the member without a segment, of a server that is not ScELA's.
    pub(crate) fn new(
        environment: &Environment,
        protocol: Option<Version>,
        rank: Rank,
        size: u32,
        is_spawned: bool,
    ) -> Self {
        Self {
            rank,
            size,
            is_spawned,
            is_scela: false,
            protocol,
            segment: None,
            environment: environment.clone(),
            name: OnceLock::new(),
            appnum: OnceLock::new(),
            maxes: OnceLock::new(),
        }
    }

    /// Returns this process's rank.
    pub fn rank(&self) -> u32 {
        self.rank.0
    }

    /// Returns the number of ranks of the job.
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Returns whether another job spawned this one.
    pub fn is_spawned(&self) -> bool {
        self.is_spawned
    }

    /// Returns whether this process has no server and is the only rank of its job.
    pub fn is_singleton(&self) -> bool {
        self.protocol.is_none()
    }

    /// Returns the name of the board and the job, if it has been requested already.
    #[inline]
    pub fn known_name(&self) -> Option<&CStr> {
        self.name.get().map(CString::as_c_str)
    }

    /// Returns whether a later initialisation found the same rank and job, so that cached replies stay
    /// valid.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let identity = |member: &Self| member.segment.as_ref().map(Segment::identity);
        self.environment == other.environment
            && (self.rank, self.size, self.is_spawned) == (other.rank, other.size, other.is_spawned)
            && identity(self) == identity(other)
    }
}
