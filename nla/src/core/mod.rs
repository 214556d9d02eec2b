//! The decisions of the agents and of the launcher, as values without I/O.
//!
//! [`Agent`] decides for a node-level agent, [`Root`] for the launcher at the root of the tree. Each has one entry
//! point, `handle(now, input, actions)`: inputs are facts that have happened, actions are commands to the driver.
//! `handle` never fails and never blocks; a fault of a peer or of a rank becomes an action. `now` is the time since the
//! session began, as the driver measured it: this module reads no clock, opens no descriptor and draws no random
//! number, so the simulator runs the same values.

mod accelerators;
mod agent;
mod binding;
mod cache;
mod cause;
mod children;
mod collect;
mod exchange;
mod failure_policy;
mod fence;
mod forgotten;
mod group;
mod heritage;
mod ids;
mod leftovers;
pub mod limits;
mod lookup;
mod low_limits;
mod message;
mod parent;
mod pieces;
mod placement;
mod plan;
mod profile;
mod reason;
mod ring;
mod root;
mod spawning;
mod stage;
mod stats;
mod survey;
#[cfg(test)]
mod tests;
mod timing;
mod topology;
mod trace;
mod turn;
mod words;

pub use accelerators::{
    AcceleratorPlan, Device, DeviceRemedy, FoundDevice, FoundDevices, GPU, Holding, LackOfDevices, Resource,
    ResourceError, Resources, TooFew, Vendor, listed, offered, share, variables,
};
pub use agent::{Action, Agent, Input, SignalWay};
pub use binding::{
    Allowed, BindTo, BindingError, BindingNote, BindingPolicy, BindingReport, BoundRanks, Cache, CpuSet, CpuSetError,
    Hardware, Level, MapWithin, Memory, MemoryPolicy, PartKind, Seat, Seating, Topology, describe, picture, seats,
};
pub use cache::{CachePeaks, CachePolicy, UnknownPolicy};
pub use cause::{Cause, Exit, Failure, Outcome, elect};
pub use collect::{CollectError, CollectPattern, CollectPlan, Matching, UNFINISHED_PREFIX, is_like, matching};
pub use failure_policy::FailurePolicy;
pub use fence::{Fence, FenceError, RingPart};
pub use group::{GroupError, RankGroup};
pub use ids::{AgentId, GuardianAt, NamespaceId, Time};
pub use leftovers::{
    CleanShm, EndWatch, FileId, FileReport, LeftProcesses, Mapped, ShmEntry, ShmLedger, Verdict, is_ending_signal,
    library_of,
};
pub use lookup::GetCounts;
pub use low_limits::{LowLimit, LowLimits, is_worth_telling};
pub use message::{
    Contribution, Down, Inquiry, InquiryKind, Killed, NODE_REQUESTS_FROM, OpenFence, ReleaseContent, Reply, Requester,
    Up, Update,
};
pub(crate) use pieces::BorrowedPiece;
pub use pieces::{Blob, Incoming, Piece, PieceBytes, PieceError, Taken, pack, unpack};
pub use placement::{owners, place};
pub use plan::{
    CommandPlan, DirectOutput, Inherit, NamespacePlan, PmixPlan, RankSessions, SessionPlan, Variable, is_bound_to_host,
};
pub use profile::{
    PIECE_LENGTH_BYTES, ProfileEntry, ProfileError, ProfilePiece, ProfileRows, ProfileTraffic, RowOrder, check_length,
};
pub use reason::{LossReason, NotStartedReason, Violation};
pub use ring::{RingPosition, RingSegment};
pub use root::{INCARNATION, Notice, RankProgress, Root, RootAction, RootInput, RootSettings};
pub use stage::{
    BLOCK_BYTES, CacheBounds, Chunk, ChunkSet, Chunks, Collected, CollectedFile, Content, ContentPlace, DIGEST_BYTES,
    DIGESTS_PER_MESSAGE, Digest, InMemory, Room, STAGE_DIRECTORY, StageDown, StageError, StagePlan, StageUp,
    StagedFile, StagedKind, StagedTree, TreeEntry, TreeKind, hashes_message, in_directory, in_stage_directory,
    is_inside, is_relative, is_staged_program, part_header, staged_file_word, staged_program,
};
pub use stats::{DriverCounts, DurationHistogram, LaneTraffic, LevelStats, Stats, Traffic};
pub use survey::{Activity, Group, LastCall, NamespaceSurvey, ProcessState, SURVEY_TIME, Survey, SurveyCause, Wait};
pub use timing::{PhaseTimes, TimedPhase, Timing};
pub use topology::Subtree;
pub use trace::{FenceSpans, SpanKind, SpanRow, TraceScope, TraceSpan};
pub(crate) use words::deserialize_one_line;
pub use words::{one_line, printable};
