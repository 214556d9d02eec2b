//! The bulletin board: what ranks put, on its way up, merged, on its way down, and looked up.
//!
//! - [`Puts`]: a batch on its way up the tree, appended to by each agent that it passes.
//! - [`Pending`]: what a rank put since its last fence, before it becomes such a batch.
//! - [`Epoch`]: what one fence made visible: one winner per key, encoded and indexed once at the
//!   root; the same bytes travel down and are looked up in.
//! - [`Board`]: what is looked up in: all epochs released so far, the newest entry of a key wins; or
//!   a part of them.
//! - [`NodeCache`]: what is kept of a board that is not held whole.
//! - [`Recent`]: those of its entries that were used last, a bounded number.
//! - [`Entry`], [`Keys`]: one key with its value; a list of keys.
//! - [`Finding`]: what has come of looking for a key.

mod cache;
mod entry;
mod epoch;
mod finding;
mod hash;
mod index;
mod keys;
mod node_cache;
mod pending;
mod puts;
mod recent;

pub use cache::{Board, LookUp};
pub use entry::Entry;
pub(crate) use epoch::Table;
pub use epoch::{Epoch, EpochError};
pub use finding::Finding;
pub use hash::KeyHashing;
#[cfg(test)]
pub(crate) use hash::colliding_keys;
pub use hash::hash as key_hash;
pub use keys::{Keys, KeysError};
pub use node_cache::{Known, NodeCache};
pub use pending::Pending;
pub use puts::{Put, PutRefusal, Puts, PutsError, RankPutsError, check_put};
pub use recent::Recent;
