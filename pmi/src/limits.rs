//! Every bound of this crate, with the reason for its value.
//!
//! Lengths are in bytes and inclusive: a thing of exactly the limit is accepted, one byte more is
//! refused.

/// Longest line of PMI-1 accepted from a rank, without its newline.
///
/// MPICH >= 4.1 sends lines of any length, older clients at most 1,023 bytes.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// Most bytes that a conversation holds unhandled: one line of the longest kind, and what came
/// with it. Only a client that sends on without waiting for its answers gets there.
pub const BACKLOG_BYTES_MAX: usize = 4 * LINE_BYTES_MAX;

/// What `get_maxes` says of names of key-value spaces; a C buffer's size, so one more than the longest.
///
/// 64/64/1024 is what Flux serves to MPICH, MVAPICH2, Intel MPI and Open MPI. With 674 and above
/// MPICH dies in an assertion; with an odd sum of the first two it dies when a value needs two
/// segments; above 1024 clients corrupt their memory.
pub const KVSNAME_MAX: usize = 64;
/// What `get_maxes` says of keys; see [`KVSNAME_MAX`].
pub const KEYLEN_MAX: usize = 64;
/// What `get_maxes` says of values; see [`KVSNAME_MAX`].
pub const VALLEN_MAX: usize = 1024;

/// Longest key: [`KEYLEN_MAX`] without the terminating NUL.
pub const KEY_BYTES_MAX: usize = KEYLEN_MAX - 1;

/// Longest value: [`VALLEN_MAX`] without the terminating NUL.
///
/// A `get_result` adds 27 bytes, so that values up to 996 bytes fit the
/// [line of a legacy client](LEGACY_LINE_BYTES_MAX). Such a client never puts more than
/// [865](MAPPING_BYTES_MAX) itself. Longer values can only come from clients without a line limit
/// (MPICH >= 4.1 puts segments of 1,022 bytes), and all ranks of a job are linked with the same
/// library; they are served whole.
pub const VALUE_BYTES_MAX: usize = VALLEN_MAX - 1;

/// Longest reply, newline included, that MPICH <= 4.0 and its descendants read as one line.
pub const LEGACY_LINE_BYTES_MAX: usize = 1023;

/// Longest `PMI_process_mapping` handed out: MPICH <= 4.0 clips the advertised 1024 to
/// 1024 - 64 - 64 - 30 = 866, NUL included.
pub const MAPPING_BYTES_MAX: usize = 865;

/// Most blocks of a mapping accepted from a peer.
pub const MAPPING_BLOCKS_MAX: usize = 1 << 20;

/// Most intervals of a set of ranks accepted from a peer or from text.
pub const RANKS_INTERVALS_MAX: usize = 1 << 21;

/// Most bytes of puts that one rank may have waiting for its next fence.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Most keys that a node remembers to be absent from a board that it does not hold whole. A rank
/// that probes for more of them is not refused: they are asked for again.
pub const ABSENT_KEYS_MAX: usize = 65_536;

/// Longest value of an attribute of a node, and of what neighbours in a ring exchange:
/// `PMI2_MAX_ATTRVALUE` without the terminating NUL.
pub const ATTRIBUTE_BYTES_MAX: usize = 1023;

/// Longest name of a namespace that a rank may ask about.
pub const JOB_BYTES_MAX: usize = 255;

/// Longest name given to `MPI_Publish_name`.
pub const SERVICE_BYTES_MAX: usize = 512;
/// Longest port given to `MPI_Publish_name`; the `lookup_result` must fit [`LEGACY_LINE_BYTES_MAX`].
pub const PORT_BYTES_MAX: usize = 960;

/// Most commands of one `MPI_Comm_spawn_multiple`.
pub const SPAWN_COMMANDS_MAX: usize = 1024;
/// Most ranks that one `MPI_Comm_spawn_multiple` may start.
pub const SPAWN_RANKS_MAX: u32 = 1 << 20;
/// Most arguments of one command of a spawn.
pub const SPAWN_ARGS_MAX: usize = 16 * 1024;
/// Most info pairs of one command of a spawn.
pub const SPAWN_INFO_MAX: usize = 256;
/// Most entries that a parent puts on its children's board.
pub const SPAWN_PREPUTS_MAX: usize = 1024;
/// Most bytes of names, arguments, infos and preputs of one spawn together.
pub const SPAWN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Longest message of an abort kept for the report; the rest is cut.
pub const ABORT_MESSAGE_BYTES_MAX: usize = 1024;

/// Longest part of a rank's own text that is repeated inside a reply's `msg=`; the rest is cut.
pub const ECHO_BYTES_MAX: usize = 64;

// What libraries were seen to die of when it does not hold; see `KVSNAME_MAX`.
const _: () = {
    assert!(VALLEN_MAX.is_multiple_of(2) && VALLEN_MAX <= 1024);
    assert!((KVSNAME_MAX + KEYLEN_MAX).is_multiple_of(2));
    // What MPICH <= 4.0 makes of the advertised maxima.
    let clipped = 1024 - KVSNAME_MAX - KEYLEN_MAX - 30;
    assert!(clipped.is_multiple_of(2) && clipped > 256);
    assert!(MAPPING_BYTES_MAX == clipped - 1);
    assert!(KEY_BYTES_MAX <= ECHO_BYTES_MAX);
};
