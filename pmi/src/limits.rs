//! Every bound of this crate, with the reason for its value.
//!
//! Bounds are inclusive: exactly so much is accepted and one more is refused. Lengths are in bytes.

/// The longest line of PMI-1 that is accepted from a rank, without its newline.
///
/// MPICH >= 4.1 sends lines of any length, older clients at most 1,023 bytes.
pub const LINE_BYTES_MAX: usize = 1024 * 1024;

/// The most bytes that a conversation buffers before they are handled: a line of the longest kind and bytes after it.
/// Only a client that keeps sending without waiting for replies reaches this.
pub const BACKLOG_BYTES_MAX: usize = 4 * LINE_BYTES_MAX;

/// The size of a C buffer for a key-value space's name, as `get_maxes` reports it: one more than the longest name.
///
/// Flux reports 64/64/1024 to MPICH, MVAPICH2, Intel MPI and Open MPI. With 674 and above MPICH fails an assertion. With
/// an odd sum of the first two it crashes when a value needs two segments. Above 1024 clients corrupt their memory.
pub const KVSNAME_MAX: usize = 64;
/// The size of a C buffer for a key, as `get_maxes` reports it; see [`KVSNAME_MAX`].
pub const KEYLEN_MAX: usize = 64;
/// The size of a C buffer for a value, as `get_maxes` reports it; see [`KVSNAME_MAX`].
pub const VALLEN_MAX: usize = 1024;

/// The longest key: [`KEYLEN_MAX`] without the terminating NUL.
pub const KEY_BYTES_MAX: usize = KEYLEN_MAX - 1;

/// The longest value: [`VALLEN_MAX`] without the terminating NUL.
///
/// A `get_result` adds 27 bytes, so values of up to 996 bytes fit the [line of a legacy client](LEGACY_LINE_BYTES_MAX).
/// Such a client never puts more than [865](MAPPING_BYTES_MAX) bytes itself. Longer values can only come from clients
/// without a line limit (MPICH >= 4.1 puts segments of 1,022 bytes). They are served whole, since all ranks of a job are
/// linked with the same library.
pub const VALUE_BYTES_MAX: usize = VALLEN_MAX - 1;

/// The longest reply, including its newline, that MPICH <= 4.0 and its descendants read as one line.
pub const LEGACY_LINE_BYTES_MAX: usize = 1023;

/// The longest `PMI_process_mapping` that ranks receive: MPICH <= 4.0 clips the advertised 1024 to
/// 1024 - 64 - 64 - 30 = 866, including the NUL.
pub const MAPPING_BYTES_MAX: usize = 865;

/// The most blocks of a mapping that are accepted from a peer.
pub const MAPPING_BLOCKS_MAX: usize = 1 << 20;

/// The most intervals of a set of ranks that are accepted from a peer or from text.
pub const RANKS_INTERVALS_MAX: usize = 1 << 21;

/// The most bytes of puts that one rank may make before its next fence.
pub const PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The most fences that one rank may be in at the same time, beside other requests: it has a thread in each.
pub const FENCES_BESIDE_MAX: usize = 1024;

/// The most keys that a node stores as absent from a board of which it has only a part. Probing for more absent keys is
/// not refused: the agent looks them up again.
pub const ABSENT_KEYS_MAX: usize = 65_536;

/// The longest value of a node's attribute, and of those that neighbours in a ring exchange: `PMI2_MAX_ATTRVALUE` without
/// the terminating NUL.
pub const ATTRIBUTE_BYTES_MAX: usize = 1023;

/// The longest name of a namespace that a rank may use in a request.
pub const JOB_BYTES_MAX: usize = 255;

/// The longest name that `MPI_Publish_name` may publish.
pub const SERVICE_BYTES_MAX: usize = 512;
/// The longest port that `MPI_Publish_name` may publish; its `lookup_result` must fit [`LEGACY_LINE_BYTES_MAX`].
pub const PORT_BYTES_MAX: usize = 960;

/// The most commands of one `MPI_Comm_spawn_multiple`.
pub const SPAWN_COMMANDS_MAX: usize = 1024;
/// The most ranks that one `MPI_Comm_spawn_multiple` may start.
pub const SPAWN_RANKS_MAX: u32 = 1 << 20;
/// The most arguments of one command of a spawn.
pub const SPAWN_ARGS_MAX: usize = 16 * 1024;
/// The most info pairs of one command of a spawn.
pub const SPAWN_INFO_MAX: usize = 256;
/// The longest key of such a pair that is found in memory of unknown layout: `MPI_MAX_INFO_KEY` without the terminating
/// NUL.
pub const SPAWN_KEY_BYTES_MAX: usize = 255;
/// The most entries that a spawn may put on its children's board.
pub const SPAWN_PREPUTS_MAX: usize = 1024;
/// The most bytes of names, arguments, infos and preputs of one spawn together.
pub const SPAWN_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The longest message of an abort that is reported; the rest is cut.
pub const ABORT_MESSAGE_BYTES_MAX: usize = 1024;

/// The longest part of a rank's own text that a reply's `msg=` repeats; the rest is cut.
pub const ECHO_BYTES_MAX: usize = 64;

/// The longest reason of a refusal in a reply's `msg=` of PMI-1; the rest is cut.
pub const REASON_BYTES_MAX: usize = 512;

// Libraries were seen to crash when these do not hold; see `KVSNAME_MAX`.
const _: () = {
    assert!(VALLEN_MAX.is_multiple_of(2) && VALLEN_MAX <= 1024);
    assert!((KVSNAME_MAX + KEYLEN_MAX).is_multiple_of(2));
    // MPICH <= 4.0 computes this from the advertised maxima.
    let clipped = 1024 - KVSNAME_MAX - KEYLEN_MAX - 30;
    assert!(clipped.is_multiple_of(2) && clipped > 256);
    assert!(MAPPING_BYTES_MAX == clipped - 1);
    assert!(KEY_BYTES_MAX <= ECHO_BYTES_MAX);
};
