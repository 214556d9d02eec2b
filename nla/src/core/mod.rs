//! What agents and the launcher decide, as values.
//!
//! [`Agent`] is a node-level agent, [`Root`] the launcher at the root of the tree. Both have one
//! entrance, `handle(now, input, actions)`: inputs are facts that have happened, actions are
//! commands to whoever drives the value. `handle` never fails and never blocks; what a peer or a
//! rank does wrong becomes an action. `now` is the time since the session began, content by the
//! driver: nothing in here reads a clock, opens a descriptor or draws a random number, so the same
//! values run in a simulator.

mod agent;
mod cache;
mod cause;
mod fence;
mod ids;
pub mod limits;
mod lookup;
mod message;
mod namespace;
mod node;
mod placement;
mod plan;
mod ring;
mod root;
mod spawning;
mod stats;
#[cfg(test)]
mod tests;
mod timing;
mod topology;

pub use agent::{Action, Agent, Input};
pub use cache::{CachePeaks, CachePolicy, UnknownPolicy};
pub(crate) use cause::bounded;
pub use cause::{Cause, Exit, Failure, Outcome, elect};
pub use fence::{Fence, FenceError, Part};
pub use ids::{AgentId, NamespaceId, Time};
pub use lookup::GetCounts;
pub use message::{Contribution, Down, Inquiry, InquiryKind, Question, ReleaseContent, Reply, Requester, Up, Update};
pub use placement::{owners, place};
pub use plan::{CommandPlan, Inherit, NamespacePlan, SessionPlan, Variable, is_bound_to_host};
pub use ring::{RingPosition, RingSegment};
pub use root::{Notice, RankProgress, Root, RootAction, RootInput, RootSettings};
pub use stats::{DriverCounts, DurationHistogram, LaneTraffic, LevelStats, Stats, Traffic};
pub use timing::{PhaseTimes, TimedPhase, Timing};
pub use topology::Subtree;
