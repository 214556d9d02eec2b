//! Further key-value spaces, created by `PMI_KVS_Create`.
//!
//! Servers have one board per job, so a further space is a part of that board: its keys carry a tag
//! with the rank that created the space and a number. The space's name contains both as well
//! (`NAME.RANK.NUMBER`, as in Slurm's library), so a rank that receives the name can use the space
//! without a request. Keys in such a space may be some ten bytes shorter than
//! `PMI_KVS_Get_key_length_max` says.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attachment::c::Outcome;
use attachment::{Entries, Member};

use crate::PMI_ERR_INVALID_LENGTH;

/// Begins and ends a tag. No MPI library uses this byte in a key.
const MARK: char = '\u{2}';

/// A key-value space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// The job's own space.
    Own,
    /// A space that a rank has created, with its tag.
    Created(String),
}

/// Whether each space that this rank has created still exists.
static CREATED: Mutex<Vec<bool>> = Mutex::new(Vec::new());

impl Space {
    /// Returns the key on the board.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match self {
            Self::Own => Cow::Borrowed(key),
            Self::Created(tag) => Cow::Owned([tag.as_bytes(), key].concat()),
        }
    }

    /// Selects the entries of this space among those of the board.
    pub(crate) fn entries(&self, all: Entries) -> Entries {
        match self.clone() {
            Self::Own => Box::new(all.filter(|(key, _)| key.first() != Some(&(MARK as u8)))),
            Self::Created(tag) => Box::new(all.filter_map(move |(key, value)| {
                let key = key.strip_prefix(tag.as_bytes())?.to_vec();
                Some((Cow::Owned(key), value))
            })),
        }
    }
}

/// Creates a space, unless `hand_out` returns that its name is too long.
pub(crate) fn create(own: &CStr, rank: u32, hand_out: impl FnOnce(&[u8]) -> bool) -> Outcome {
    let mut created = created();
    let mut name = own.to_bytes().to_vec();
    name.extend_from_slice(format!(".{rank}.{}", created.len()).as_bytes());
    if !hand_out(&name) {
        return Err(PMI_ERR_INVALID_LENGTH);
    }
    created.push(true);
    Ok(())
}

/// Destroys a space that this rank has created. Its entries stay on the board but are no longer found.
pub(crate) fn destroy(own: &CStr, member: &Member, name: &[u8]) -> Option<()> {
    let (rank, number) = parts(own, member.size(), name)?;
    let mut created = created();
    let exists = created.get_mut(number).filter(|exists| rank == member.rank() && **exists)?;
    *exists = false;
    Some(())
}

/// Returns the space of this name. Spaces of other ranks are assumed to exist.
pub(crate) fn named(own: &CStr, member: &Member, name: &[u8]) -> Option<Space> {
    if name == own.to_bytes() {
        return Some(Space::Own);
    }
    let (rank, number) = parts(own, member.size(), name)?;
    if rank == member.rank() && created().get(number) != Some(&true) {
        return None;
    }
    let mut tag = String::new();
    write!(tag, "{MARK}{rank:x}.{number:x}{MARK}").ok()?;
    Some(Space::Created(tag))
}

/// Drops all spaces.
pub(crate) fn forget() {
    *created() = Vec::new();
}

/// Parses rank and number from a name that [`create`] has built.
fn parts(own: &CStr, size: u32, name: &[u8]) -> Option<(u32, usize)> {
    let rest = name.strip_prefix(own.to_bytes())?.strip_prefix(b".")?;
    let (rank, number) = std::str::from_utf8(rest).ok()?.split_once('.')?;
    let (rank, number): (u32, u32) = (rank.parse().ok()?, number.parse().ok()?);
    let is_canonical = rest == format!("{rank}.{number}").as_bytes();
    (is_canonical && rank < size).then_some((rank, number as usize))
}

fn created() -> MutexGuard<'static, Vec<bool>> {
    // No panic can leave the list inconsistent.
    CREATED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_contain_rank_and_number_of_a_space() {
        let check = |name: &str, expected| assert_eq!(parts(c"kvs_1.0", 4, name.as_bytes()), expected, "{name}");
        check("kvs_1.0.3.17", Some((3, 17)));
        for wrong in ["kvs_1.0", "kvs_1.0.4.0", "kvs_1.0.3", "kvs_1.0.03.1", "kvs_1.0.+3.1", "kvs_1.0.3.1.1", "x.3.1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn entries_are_assigned_to_their_space() {
        let all = || -> Entries {
            let entries = [&b"a"[..], b"\x021.0\x02a", b"\x021.00\x02b", b"\x021.0\x02"];
            Box::new(entries.into_iter().map(|key| (Cow::Borrowed(key), Cow::Borrowed(&b"v"[..]))))
        };
        let keys = |space: Space| -> Vec<Vec<u8>> { space.entries(all()).map(|(key, _)| key.to_vec()).collect() };
        assert_eq!(keys(Space::Own), [b"a"]);
        let created = Space::Created("\u{2}1.0\u{2}".into());
        assert_eq!(created.key(b"a"), &b"\x021.0\x02a"[..]);
        assert_eq!(keys(created), [&b"a"[..], b""]);
    }
}
