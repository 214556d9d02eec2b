//! Communication profiles: messages of the lane Profile, whose pieces ranks have written.

use nla::core::limits::PROFILE_PIECE_BYTES_MAX;
use nla::core::{ProfileEntry, ProfilePiece, ProfileRows};
use pmi::Rank;

/// The number of ranks of the job.
const RANKS: u32 = 100;

/// Checks the bytes as a piece, and as a message to the root.
pub(super) fn check(data: &[u8]) {
    match ProfilePiece::decode(data) {
        Ok(piece) => {
            assert!(data.len() <= PROFILE_PIECE_BYTES_MAX && piece.entries.len() <= data.len() / 3);
            assert!(piece.rank.0 < piece.size);
            let ends = |entry: &ProfileEntry| [entry.from, entry.to];
            assert!(piece.entries.iter().all(|entry| ends(entry).contains(&piece.rank)));
            assert!(piece.entries.iter().flat_map(ends).all(|rank| rank.0 < piece.size));
            let written = written(&piece);
            assert_eq!(ProfilePiece::decode(&written), Ok(piece));
        }
        Err(error) => super::check_shown(&error.to_string()),
    }
    check_message(data);
}

/// The root takes no entry that is not of the job, and a rank's row at most once, however messages are split.
fn check_message(message: &[u8]) {
    let (mut rows, mut entries) = (ProfileRows::new(RANKS), 0);
    let mut add = |entry: ProfileEntry| {
        assert!(entry.from.0 < RANKS && entry.to.0 < RANKS);
        entries += 1;
    };
    let taken = rows.take(message, &mut add);
    let missing = rows.missing();
    assert!(missing.len() <= u64::from(RANKS));
    // Again, each whole row is refused, so the bytes change nothing.
    let whole: Vec<Rank> = (0..RANKS).map(Rank).filter(|rank| !missing.contains(*rank)).collect();
    if taken.is_ok() && !whole.is_empty() {
        assert!(rows.take(message, &mut add).is_err());
    }
    assert!(entries <= message.len());
    assert_eq!(rows.missing(), missing);
}

/// Writes a piece as libscela-trace.so does.
fn written(piece: &ProfilePiece) -> Vec<u8> {
    let mut out = Vec::new();
    let mut put = |mut number: u64| {
        while number >= 0x80 {
            out.push(number as u8 | 0x80);
            number >>= 7;
        }
        out.push(number as u8);
    };
    for number in [piece.rank.0, piece.size, piece.left, piece.entries.len() as u32] {
        put(number.into());
    }
    put(piece.outside.bytes);
    put(piece.outside.messages);
    for entry in &piece.entries {
        let fetched = entry.from != piece.rank;
        let peer = if fetched { entry.from } else { entry.to };
        put(u64::from(peer.0) << 1 | u64::from(fetched));
        put(entry.traffic.bytes);
        put(entry.traffic.messages);
    }
    out
}
