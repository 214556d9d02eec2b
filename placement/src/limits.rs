//! The bounds of everything that comes from files and command lines.

/// The most ranks of a communication matrix. The same as the agents' `RANKS_MAX` would allow arrays of gigabytes.
pub const MATRIX_RANKS_MAX: u32 = 1 << 20;

/// The most pairs of ranks with traffic in a matrix: all pairs of 4,096 ranks. They occupy 24 bytes each.
pub const MATRIX_PAIRS_MAX: usize = 1 << 24;

/// The longest line of a matrix file: a row of a plain matrix of 32,768 ranks with 30 digits for each number.
pub const MATRIX_LINE_BYTES_MAX: usize = 1 << 20;

/// The most remarks of a matrix file.
pub const MATRIX_REMARKS_MAX: usize = 64;

/// The longest remark of a matrix file. A reader cuts longer ones.
pub const MATRIX_REMARK_BYTES_MAX: usize = 200;

/// The most hosts of a topology: as many as a host list may have.
pub const PLACES_MAX: u32 = 1 << 20;

/// The most links of a topology, each direction counted.
pub const LINKS_MAX: u64 = 1 << 26;

/// The most dimensions of a torus. The largest torus networks have six.
pub const DIMENSIONS_MAX: usize = 8;

/// The most levels of switches above a host. The distance of two hosts is found by climbing them.
pub const LEVELS_MAX: u32 = 32;

/// The longest topology file, in bytes.
pub const TOPOLOGY_BYTES_MAX: usize = 16 << 20;

/// The most events of a fault history.
pub const FAULT_EVENTS_MAX: usize = 1000;

/// The most hosts of one event that are stored.
pub const FAULT_HOSTS_MAX: usize = 256;

/// The longest fault history, in bytes.
pub const FAULT_BYTES_MAX: usize = 4 << 20;

/// The longest file of a fault history that is read, in bytes. Older versions bounded a file before they added an event.
pub const FAULT_READ_BYTES_MAX: usize = FAULT_BYTES_MAX + FAULT_HOSTS_MAX * (FAULT_NAME_BYTES_MAX + 1) + 32;

/// The longest name of a host in a fault history.
pub const FAULT_NAME_BYTES_MAX: usize = 255;

/// About the most messages of one simulation by SimGrid, which simulates some 100,000 in a second.
pub const SIMULATED_MESSAGES: u64 = 20_000;

/// The longest message that SimGrid simulates, in bytes: MPI counts them in 31 bits.
pub const SIMULATED_BYTES_MAX: u64 = 1 << 30;
