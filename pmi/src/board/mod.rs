//! The bulletin board: puts that go up the tree, the epochs that they are merged into, and look-ups.
//!
//! - [`Puts`]: a batch of puts, to which each agent on the way up appends.
//! - [`PendingPuts`]: the puts of a rank since its last fence, before they become such a batch.
//! - [`Epoch`]: the entries that one fence made visible: one winner per key, encoded and indexed once at the root. The same
//!   bytes are sent down and serve look-ups.
//! - [`Board`]: a node's board for look-ups: all epochs released so far, of which the newest entry of a key wins, or a part.
//! - [`NodeCache`]: the entries of a partial board.
//! - [`LruEntries`]: a bounded cache of the most recently used entries.
//! - [`Entry`], [`Keys`]: one key with its value; a list of keys.
//! - [`LookUpResult`]: the final result of a look-up.

mod entry;
mod epoch;
mod hash;
mod index;
mod keys;
mod look_up_result;
mod lru_entries;
mod node_board;
mod node_cache;
mod pending_puts;
mod puts;
mod regions;

pub use entry::Entry;
pub(crate) use epoch::Table;
pub use epoch::{Epoch, EpochError};
pub use hash::KeyBuildHasher;
#[cfg(test)]
pub(crate) use hash::colliding_keys;
pub use hash::{hash as key_hash, hash_long};
pub use keys::{Keys, KeysError};
pub use look_up_result::LookUpResult;
pub use lru_entries::LruEntries;
pub use node_board::{Board, DEAD_PROCESSES, LookUp};
pub use node_cache::{CacheLookUp, NodeCache};
pub use pending_puts::PendingPuts;
pub use puts::{EncodedPutsError, Put, PutRefusal, Puts, PutsError, check_put};
