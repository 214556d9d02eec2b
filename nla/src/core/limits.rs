//! Every bound of the agent in one place. What is beyond is refused with words, never stored.

use std::time::Duration;

/// Ranks that one namespace may have.
pub const RANKS_MAX: u32 = 1 << 24;
/// Agents that one session may have.
pub const AGENTS_MAX: u32 = 1 << 20;
/// Namespaces that one session may have had, spawned ones included.
pub const NAMESPACES_MAX: u32 = 1 << 16;
/// Ranks that an agent serves, by default: a node with more gets more agents.
pub const RANKS_PER_AGENT: u32 = 1000;
/// Failures that travel one by one; further ones are only counted.
pub const FAILURES_SINGLE_MAX: u32 = 64;
/// Names that MPI_Publish_name may hold in a session.
pub const NAMES_MAX: usize = 65_536;
/// Attributes that a node holds for one namespace. MPI libraries put a few for each rank.
pub const NODE_ATTRIBUTES_MAX: usize = 65_536;
/// Bytes of these attributes, keys included.
pub const NODE_ATTRIBUTES_BYTES_MAX: usize = 16 << 20;
/// Bytes of text that a message carries about a failure; longer text is cut.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Bytes of all puts of one fence of one namespace.
pub const FENCE_BYTES_MAX: usize = 1 << 30;

/// Values that an agent keeps by default where the cache policy sets a bound: MPI libraries look up a
/// few dozen of other nodes' entries.
pub const CACHE_ENTRIES_DEFAULT: u32 = 4096;
/// Look-ups that may wait for an answer at a place, beside one for each rank below it: those of
/// other namespaces.
pub const FOREIGN_LOOK_UPS_MAX: usize = 65_536;

/// Fences of which `--timing` tells one by one. Of all further ones it tells together.
pub const TIMED_FENCES_MAX: u32 = 8;
/// Agents that `--timing` names of each phase, the last ones.
pub const TIMED_AGENTS_MAX: usize = 3;

/// How long the root listens for more failures before it elects the first cause.
pub const GATHER_WINDOW: Duration = Duration::from_millis(100);
/// How long an agent collects the ends of ranks before it tells its parent in one message.
pub const EXIT_BATCH: Duration = Duration::from_millis(20);
/// A fence open for longer is made known to the root, so that it can tell who is missing.
pub const FENCE_SLOW: Duration = Duration::from_millis(250);
/// A rank that spoke PMI and ended with 0 without finalizing fails the job if others still run so
/// long after: they may be waiting for it inside of MPI, where nobody can see them.
pub const UNFINALIZED_TIME: Duration = Duration::from_secs(2);
/// How long after KILL a subtree may take to be over before it counts as lost.
pub const END_MARGIN: Duration = Duration::from_secs(10);
/// A link on which nothing was heard for so long is lost.
pub const DEAD_TIME: Duration = Duration::from_secs(20);
/// All agents must have joined by then.
pub const JOIN_TIME: Duration = Duration::from_secs(60);

/// Bytes of one record on a link before encryption. Small enough that an urgent message waits for
/// at most one of them, large enough that encryption and system calls do not dominate.
pub const RECORD_BYTES_MAX: usize = 32 * 1024;
/// Bytes of one message of the control lane. A launch carries the whole environment.
pub const CONTROL_BYTES_MAX: usize = 64 << 20;
/// Bytes of one message of the board lane: all entries of a fence.
pub const BOARD_BYTES_MAX: usize = FENCE_BYTES_MAX + (FENCE_BYTES_MAX >> 1);
/// Bytes of one message of the lanes that carry output and input.
pub const STREAM_BYTES_MAX: usize = 128 * 1024;
/// Bytes of output or input that may be under way on one lane of one link before the receiver has
/// passed them on.
pub const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
/// Bytes that may wait to be written to one link in the lanes without a window. Who does not take
/// in what it is sent is content up.
pub const LINK_QUEUE_BYTES_MAX: usize = 2 << 30;
/// Connections that may be unauthenticated at a time.
pub const UNAUTHENTICATED_MAX: usize = 256;
/// Time in which a connection must have proved who it is.
pub const HELLO_TIME: Duration = Duration::from_secs(10);
/// First handshake messages remembered, so that a replayed one is told from a new one.
pub const HANDSHAKES_REMEMBERED: usize = 65_536;
/// Bytes that a bootstrap channel may say before its marker: greetings of shells.
pub const SHELL_GREETING_BYTES_MAX: usize = 64 * 1024;
/// Bytes of a message on a bootstrap channel: the names of all hosts below an agent are in one.
pub const BOOT_BYTES_MAX: usize = 64 << 20;
/// Bytes of an output line that is held back for its end; longer ones are shown in pieces.
pub const PARTIAL_LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all held-back lines of an agent together; beyond, lines are shown in pieces.
pub const PARTIAL_LINES_BYTES_MAX: usize = 16 << 20;
/// A line without its end is shown after so much quiet, where it is shown at all.
pub const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(50);
/// How long, after all processes are gone, their output may take to be read to its end.
pub const DRAIN_TIME: Duration = Duration::from_secs(2);
