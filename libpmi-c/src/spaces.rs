//! Further key-value spaces, made by `PMI_KVS_Create`.
//!
//! Servers have one board per job. So a further space is a part of it: its keys carry a tag that says
//! whose space it is and which. Its name does too (`NAME.RANK.NUMBER`, as in Slurm's library), so that
//! a rank that was told the name can use the space without asking anybody. Its keys have some ten
//! bytes less than `PMI_KVS_Get_key_length_max` says.

use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};

use attachment::{Entries, Joined};

use crate::{Outcome, PMI_ERR_INVALID_LENGTH};

/// Begins and ends a tag. No MPI library has such a byte in its keys.
const MARK: char = '\u{2}';

/// A key-value space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Space {
    /// The job's own.
    Own,
    /// One that a rank has made; its tag.
    Made(String),
}

/// The spaces that this rank has made: whether each still exists.
static MADE: Mutex<Vec<bool>> = Mutex::new(Vec::new());

impl Space {
    /// The key on the board.
    pub(crate) fn key<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        match self {
            Self::Own => Cow::Borrowed(key),
            Self::Made(tag) => Cow::Owned([tag.as_bytes(), key].concat()),
        }
    }

    /// Those of the board's entries that are in this space.
    pub(crate) fn entries(&self, all: Entries) -> Entries {
        match self.clone() {
            Self::Own => Box::new(all.filter(|(key, _)| key.first() != Some(&(MARK as u8)))),
            Self::Made(tag) => Box::new(all.filter_map(move |(key, value)| {
                let key = key.strip_prefix(tag.as_bytes())?.to_vec();
                Some((Cow::Owned(key), value))
            })),
        }
    }
}

/// Makes a space, unless `hand_out` says that its name is too long.
pub(crate) fn create(own: &CStr, rank: u32, hand_out: impl FnOnce(&[u8]) -> bool) -> Outcome {
    let mut made = made();
    let mut name = own.to_bytes().to_vec();
    name.extend_from_slice(format!(".{rank}.{}", made.len()).as_bytes());
    if !hand_out(&name) {
        return Err(PMI_ERR_INVALID_LENGTH);
    }
    made.push(true);
    Ok(())
}

/// Unmakes a space that this rank has made. What was put there stays on the board, unseen.
pub(crate) fn destroy(own: &CStr, joined: &Joined, name: &[u8]) -> Option<()> {
    let (rank, number) = parts(own, joined.size(), name)?;
    let mut made = made();
    let exists = made.get_mut(number).filter(|exists| rank == joined.rank() && **exists)?;
    *exists = false;
    Some(())
}

/// The space of this name. Those of other ranks are taken to exist.
pub(crate) fn named(own: &CStr, joined: &Joined, name: &[u8]) -> Option<Space> {
    if name == own.to_bytes() {
        return Some(Space::Own);
    }
    let (rank, number) = parts(own, joined.size(), name)?;
    if rank == joined.rank() && made().get(number) != Some(&true) {
        return None;
    }
    let mut tag = String::new();
    write!(tag, "{MARK}{rank:x}.{number:x}{MARK}").ok()?;
    Some(Space::Made(tag))
}

/// Forgets all spaces.
pub(crate) fn forget() {
    *made() = Vec::new();
}

/// Rank and number in a name as [`create`] makes them.
fn parts(own: &CStr, size: u32, name: &[u8]) -> Option<(u32, usize)> {
    let rest = name.strip_prefix(own.to_bytes())?.strip_prefix(b".")?;
    let (rank, number) = std::str::from_utf8(rest).ok()?.split_once('.')?;
    let (rank, number): (u32, u32) = (rank.parse().ok()?, number.parse().ok()?);
    let is_canonical = rest == format!("{rank}.{number}").as_bytes();
    (is_canonical && rank < size).then_some((rank, number as usize))
}

fn made() -> MutexGuard<'static, Vec<bool>> {
    // Nothing in here is left half done by a panic.
    MADE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_whose_space_it_is_and_which() {
        let check = |name: &str, expected| assert_eq!(parts(c"kvs_1.0", 4, name.as_bytes()), expected, "{name}");
        check("kvs_1.0.3.17", Some((3, 17)));
        for wrong in ["kvs_1.0", "kvs_1.0.4.0", "kvs_1.0.3", "kvs_1.0.03.1", "kvs_1.0.+3.1", "kvs_1.0.3.1.1", "x.3.1"] {
            check(wrong, None);
        }
    }

    #[test]
    fn entries_are_told_apart() {
        let all = || -> Entries {
            let entries = [&b"a"[..], b"\x021.0\x02a", b"\x021.00\x02b", b"\x021.0\x02"];
            Box::new(entries.into_iter().map(|key| (Cow::Borrowed(key), Cow::Borrowed(&b"v"[..]))))
        };
        let keys = |space: Space| -> Vec<Vec<u8>> { space.entries(all()).map(|(key, _)| key.to_vec()).collect() };
        assert_eq!(keys(Space::Own), [b"a"]);
        let made = Space::Made("\u{2}1.0\u{2}".into());
        assert_eq!(made.key(b"a"), &b"\x021.0\x02a"[..]);
        assert_eq!(keys(made), [&b"a"[..], b""]);
    }
}
