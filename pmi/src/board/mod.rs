//! The bulletin board: what ranks put, on its way up, merged, on its way down, and looked up.
//!
//! - [`Puts`]: a batch on its way up the tree, appended to by each agent that it passes.
//! - [`PendingPuts`]: what a rank put since its last fence, before it becomes such a batch.
//! - [`Epoch`]: what one fence made visible: one winner per key, encoded and indexed once at the
//!   root; the same bytes travel down and are looked up in.
//! - [`Board`]: what is looked up in: all epochs released so far, the newest entry of a key wins; or
//!   a part of them.
//! - [`NodeCache`]: what is kept of a board that is not held whole.
//! - [`LruEntries`]: those of its entries that were used last, a bounded number.
//! - [`Entry`], [`Keys`]: one key with its value; a list of keys.
//! - [`LookUpResult`]: what has come of looking for a key.

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

pub use entry::Entry;
pub(crate) use epoch::Table;
pub use epoch::{Epoch, EpochError};
pub use hash::KeyBuildHasher;
#[cfg(test)]
pub(crate) use hash::colliding_keys;
pub use hash::hash as key_hash;
pub use keys::{Keys, KeysError};
pub use look_up_result::LookUpResult;
pub use lru_entries::LruEntries;
pub use node_board::{Board, LookUp};
pub use node_cache::{CacheLookUp, NodeCache};
pub use pending_puts::PendingPuts;
pub use puts::{EncodedPutsError, Put, PutRefusal, Puts, PutsError, check_put};
