//! The bounds and times of agents and launcher, all in one place. What exceeds a bound is refused with a message and
//! never stored.

use std::num::NonZeroU32;
use std::time::Duration;

use super::pieces::PieceBytes;

/// Ranks of one namespace.
pub const RANKS_MAX: u32 = 1 << 24;
/// Agents of one session.
pub const AGENTS_MAX: u32 = 1 << 20;
/// Namespaces of one session over its whole life, spawned ones included.
pub const NAMESPACES_MAX: u32 = 1 << 24;
/// Spawned namespaces whose ranks have all ended and whose entries can still be looked up. Older ones are forgotten.
pub const NAMESPACES_ENDED_MAX: usize = 8;
/// The most agents on the machine of a lost one that are told to end its guardian: some may be lost too.
pub const NEIGHBOURS_MAX: usize = 8;
/// Ranks that one agent serves by default. A node with more ranks gets more agents.
pub const RANKS_PER_AGENT: u32 = 1000;
/// Failures that are reported one by one; further ones are only counted.
pub const FAILURES_SINGLE_MAX: u32 = 64;
/// Names that MPI_Publish_name can have published in a session at a time.
pub const NAMES_MAX: usize = 65_536;
/// Attributes that a node stores for one namespace. MPI libraries put a few for each rank.
pub const NODE_ATTRIBUTES_MAX: usize = 65_536;
/// Bytes of these attributes, keys included.
pub const NODE_ATTRIBUTES_BYTES_MAX: usize = 16 << 20;
/// Bytes of the text in a message about a failure. Longer text is cut.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Meetings of PMIx that may be open at a time.
pub const MEETINGS_MAX: usize = 4096;
/// Lookups of PMIx that may wait for their keys at a time.
pub const READERS_MAX: usize = 65_536;
/// Bytes of all keys and values that a session has published by PMIx.
pub const POSTS_BYTES_MAX: usize = 64 << 20;
/// Bytes of the data of one rank in PMIx's direct modex.
pub const MODEX_BYTES_MAX: usize = 64 << 20;
/// Bytes of all puts of one fence of one namespace.
pub const FENCE_BYTES_MAX: usize = 1 << 30;

/// Processors, and memory nodes, of a node. Linux has at most 8192 of them.
pub const CPUS_MAX: u32 = 16_384;
/// Processors of a node whose bindings are drawn as pictures; those of larger ones are lists.
pub const PICTURE_CPUS_MAX: u32 = 256;

/// Accelerators and other devices of a node.
pub const DEVICES_MAX: u32 = 1024;
/// Kinds of devices of a node, and of those that a rank asks for.
pub const RESOURCES_MAX: usize = 64;
/// Bytes of the name and of the type of a device.
pub const RESOURCE_WORD_BYTES_MAX: usize = 64;

/// Bytes of all payloads of one group fence.
pub const GROUP_BYTES_MAX: usize = 64 << 20;
/// Group fences of one namespace that may be open at one place.
pub const GROUPS_OPEN_MAX: usize = 4096;

/// Values that an agent stores by default if the cache policy has a bound. MPI libraries look up a few dozen entries of
/// other nodes.
pub const CACHE_ENTRIES_DEFAULT: u32 = 4096;
/// Gets that may wait for an answer at one place, in addition to one for each rank below it: those of
/// other namespaces.
pub const FOREIGN_LOOK_UPS_MAX: usize = 65_536;

/// Fences that `--timing` reports one by one. All further ones are reported together.
pub const TIMED_FENCES_MAX: u32 = 8;
/// Agents that `--timing` names for each phase: those at which it ended last.
pub const TIMED_AGENTS_MAX: usize = 3;
/// Spans in the trace of a session, without the launcher's: a file of some 70 MB, which viewers still load.
pub const TRACE_SPANS_MAX: usize = 1 << 19;
/// Agents that a trace can have: each has room for its phases. In larger sessions only every second (third, ...) agent is traced.
pub const TRACED_AGENTS_MAX: u32 = 1 << 15;
/// Spans of one kind at an agent: more would not be seen side by side.
pub const TRACE_ROW_SPANS_MAX: u32 = 64;

/// How long the root waits for more failures before it elects the first cause.
pub const GATHER_WINDOW: Duration = Duration::from_millis(100);
/// How long an agent collects ends of ranks before it reports them to its parent in one message.
pub const EXIT_BATCH: Duration = Duration::from_millis(20);
/// A fence that is open for longer is reported to the root, so that the root can name the ranks that are missing.
pub const FENCE_SLOW: Duration = Duration::from_millis(250);
/// A rank that spoke PMI and ended with code 0 without finalizing fails the job if others still run after this time:
/// they may wait for it inside of MPI, which no agent can see. So does a rank that ended without joining PMIx, if others of
/// its node have joined it: they wait for it inside of libpmix.
pub const UNFINALIZED_TIME: Duration = Duration::from_secs(2);
/// The time from the first exit of a rank to the note that names the ranks which run on.
pub const LEFT_TIME: Duration = Duration::from_secs(60);
/// The time from the start of all ranks to the note that names those which have not spoken PMI, if they are to speak it.
pub const SILENT_TIME: Duration = Duration::from_secs(30);
/// The time between SIGKILL and the report of the end after which a subtree counts as lost.
pub const END_MARGIN: Duration = Duration::from_secs(10);
/// When a session that did not succeed has ended its ranks, output that no byte of which has moved for the grace and this
/// margin is dropped.
pub const UNREAD_MARGIN: Duration = Duration::from_secs(2);
/// Messages with a duration of this length or longer are refused, so that a peer's duration can be added to a time
/// without overflow. In seconds: 136 years.
pub const DURATION_SECONDS_MAX: u64 = 1 << 32;
/// An order with a shorter dead time is refused.
pub const DEAD_TIME_MIN: Duration = Duration::from_millis(100);
/// An order with a longer dead time is refused.
pub const DEAD_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// A link on which nothing was received for this time is lost, unless the user asks for another time.
pub const DEAD_TIME: Duration = Duration::from_secs(20);
/// The same where the session goes on after the loss.
pub const DEAD_TIME_SURVIVED: Duration = Duration::from_secs(5);
/// A process that is silent for this time is lost although its machine answers, unless the user asks for another time: it is
/// stopped, starved or hangs. Longer than a manager suspends a job to let another one pass, or a machine swaps.
pub const STOP_TIME: Duration = Duration::from_secs(600);
/// How often the user is told of such processes.
pub const SILENCE_TOLD: Duration = Duration::from_secs(60);
/// How long the root waits for reports of others that are silent before it tells the user of them together.
pub const SILENCE_WINDOW: Duration = Duration::from_secs(1);
/// An agent whose parent was lost tries to join an ancestor for two dead times and this margin. Two, because the agent
/// and the ancestor may notice the loss up to one dead time apart.
pub const REJOIN_MARGIN: Duration = Duration::from_secs(2);
/// The ancestor waits for that agent for one dead time and this margin longer. By then the agent has joined, or has
/// given up and killed its ranks.
pub const ORPHAN_MARGIN: Duration = Duration::from_secs(3);
/// The time in which all agents must have joined.
pub const JOIN_TIME: Duration = Duration::from_secs(60);

/// Bytes of one record on a link before encryption. Small enough that an urgent message waits for at most one of them,
/// large enough that encryption and system calls do not dominate.
pub const RECORD_BYTES_MAX: usize = 32 * 1024;
/// Bytes of one message of the control lane. A launch carries the whole environment.
pub const CONTROL_BYTES_MAX: usize = 64 << 20;
/// Bytes of one message of the board lane: all entries of a fence.
pub const BOARD_BYTES_MAX: usize = FENCE_BYTES_MAX + (FENCE_BYTES_MAX >> 1);
/// Bytes of one piece of a long epoch. Small enough that a tree of many levels is filled soon, even over slow links; large
/// enough that the cost per message is negligible.
pub const PIECE_BYTES: PieceBytes = NonZeroU32::new(256 * 1024);
/// Bytes of one message of the lanes that carry output and input.
pub const STREAM_BYTES_MAX: usize = 128 * 1024;
/// Bytes of output or input that may be in flight on one lane of one link until the receiver has passed them on.
pub const STREAM_WINDOW_BYTES: u32 = 512 * 1024;
/// Bytes that may wait to be written to one link in the lanes without a window. A peer that does not read what it is
/// sent is lost.
pub const LINK_QUEUE_BYTES_MAX: usize = 2 << 30;
/// Connections that the kernel stores for a listener until they are accepted, if `net.core.somaxconn` allows as many.
pub const LISTEN_BACKLOG: u32 = 4096;
/// Connections that may be unauthenticated at a time; more if more agents are expected. The oldest one is closed for a
/// new one.
pub const UNAUTHENTICATED_MAX: usize = 256;

/// Returns the same bound in a process that may have `open_files` files open. Strangers take a sixteenth of them at most,
/// so that they keep no rank from starting.
pub fn unauthenticated_max(open_files: u64) -> usize {
    (open_files / 16).clamp(16, UNAUTHENTICATED_MAX as u64) as usize
}

/// The same for the connections from one address.
pub const UNAUTHENTICATED_PER_SOURCE_MAX: usize = 64;
/// The time in which the first message of a connection must arrive: an agent sends it as soon as it is connected.
pub const FIRST_MESSAGE_TIME: Duration = Duration::from_secs(2);
/// How many refused connections a listener logs per second. It counts the others.
pub const REFUSALS_LOGGED_MAX: u32 = 10;
/// How long an agent tries to reach the process above it if its connections are closed: strangers may have taken their
/// places.
pub const RECONNECT_TIME: Duration = JOIN_TIME;
/// The time in which an agent must get its order, however short the dead time.
pub const ORDER_TIME_MIN: Duration = Duration::from_secs(3);
/// The time in which a connection must be authenticated.
pub const HELLO_TIME: Duration = Duration::from_secs(10);
/// First handshake messages that are remembered, so that a replayed one is recognized.
pub const HANDSHAKES_REMEMBERED: usize = 65_536;
/// Bytes that a bootstrap channel may carry before its marker: greetings of shells.
pub const SHELL_GREETING_BYTES_MAX: usize = 64 * 1024;
/// Bytes of one message on a bootstrap channel. One message has the names of all hosts below an agent.
pub const BOOT_BYTES_MAX: usize = 64 << 20;
/// Bytes of one report of an agent on it: one host's name, addresses or last words.
pub const REPORT_BYTES_MAX: usize = 64 * 1024;
/// Addresses of one process in a message. A receiver ignores the others: the likeliest are first.
pub const ADDRESSES_MAX: usize = 64;
/// Ancestors of an agent, without its parent, in a message. With a fan-out of 2, trees are at most 20 deep.
pub const ANCESTORS_MAX: usize = 64;
/// Reports of one agent on its bootstrap channel. An agent that makes more has failed.
pub const REPORTS_PER_AGENT_MAX: u32 = 8;
/// Bytes of an output line that are stored until its end; a longer line is shown in pieces.
pub const PARTIAL_LINE_BYTES_MAX: usize = 64 * 1024;
/// Bytes of all such lines of an agent together; beyond, lines are shown in pieces.
pub const PARTIAL_LINES_BYTES_MAX: usize = 16 << 20;
/// Lines of a rank's standard error that the report on its failure quotes.
pub const QUOTED_LINES_MAX: usize = 10;
/// Upper bound on the bytes of a quote. An agent stores up to twice as many for each rank that writes to standard error.
pub const QUOTED_BYTES_MAX: usize = 4096;
/// A line without its end is shown after this time without output, where such lines are shown at all.
pub const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(50);
/// Files that travel to the nodes before ranks start. A program with all its libraries has some hundreds.
pub const STAGED_FILES_MAX: usize = 1024;
/// Bytes of all of them together: more than the memory of any node. It keeps sums of lengths from overflowing.
pub const STAGED_BYTES_MAX: u64 = 1 << 42;
/// Bytes of the name of one of them, as file systems have it (NAME_MAX).
pub const STAGED_NAME_BYTES_MAX: usize = 255;
/// Files, directories and links of all staged directories together. A Python environment has some thousands.
pub const STAGED_ENTRIES_MAX: usize = 1 << 18;
/// Bytes of their names, the targets of links and the texts that agents complete: they travel in one message of the control lane.
pub const STAGED_WORDS_BYTES_MAX: usize = 32 << 20;
/// Directories above an entry of a staged directory.
pub const STAGED_DEPTH_MAX: usize = 64;
/// Bytes of the path of an entry, relative to the directory of the staged files. Together with that directory's path it must be
/// shorter than PATH_MAX.
pub const STAGED_PATH_BYTES_MAX: usize = 3000;
/// Bytes of a chunk of staged files, which has a SHA-256 and is stored or skipped as a whole. Small enough that a file that has
/// changed a little is mostly found in a cache, large enough that the cost per chunk is negligible.
pub const STAGED_CHUNK_BYTES: u64 = 1 << 20;
/// Smaller files share chunks.
pub const STAGED_PACKED_BYTES: u64 = 64 * 1024;
/// Chunks of a session whose nodes have caches: a set of them must fit in one message.
pub const STAGED_CHUNKS_MAX: usize = 1 << 19;
/// Files that `--collect` brings back.
pub const COLLECTED_FILES_MAX: usize = 1 << 18;
/// Bytes of the name of one of them, relative to the rank's working directory.
pub const COLLECTED_NAME_BYTES_MAX: usize = 3000;
/// Patterns of `--collect`.
pub const COLLECT_PATTERNS_MAX: usize = 64;
/// Directories and files that an agent looks at for one pattern of `--collect` of one rank.
pub const COLLECT_ENTRIES_MAX: usize = 1 << 20;
/// Names of files that ranks have left in /dev/shm, in an agent's report; beyond, files are only counted.
pub const FILE_NAMES_MAX: usize = 8;
/// Programs of processes that ranks have left, in an agent's report; beyond, processes are only counted.
pub const LEFT_PROGRAMS_MAX: usize = 8;
/// Namespaces whose killed ranks the launcher names.
pub const KILLED_KINDS_MAX: usize = 8;
/// Bytes of a piece of a communication profile: 1,000 entries of the longest numbers.
pub const PROFILE_PIECE_BYTES_MAX: usize = 32 * 1024;
/// How long the output of processes that have all ended may take to be read to its end.
pub const DRAIN_TIME: Duration = Duration::from_secs(2);

/// The most orders to move ranks that an agent keeps for namespaces whose plans have not arrived.
pub(super) const EARLY_MOVES_MAX: usize = 64;
/// The most bytes of puts that an agent holds back for a rank that has started again and has not caught up with the others.
pub(super) const HELD_BYTES_MAX: usize = 16 << 20;
