//! Sends the communication profiles that the ranks of this agent have appended to their file.
//!
//! A thread reads the file twice: once to find the last row of each rank, since a rank that was started again may have written
//! two, and once to send the rows. Memory has at most a window of them.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use pmi::Rank;
use tokio::sync::{Semaphore, mpsc, oneshot};
use tracing::Span;

use super::uplink::Uplink;
use crate::core::limits::STREAM_BYTES_MAX;
use crate::core::{PIECE_LENGTH_BYTES, ProfilePiece, RowOrder, check_length};
use crate::link::Receipt;
use crate::sys::ProfileFile;
use crate::tasks::Tasks;
use crate::wire::Lane;

/// Messages that have been read and not been written to the link.
const MESSAGES: usize = 4;

/// Sends all rows to the parent. The returned channel closes when they are queued.
pub(super) fn send(file: Arc<ProfileFile>, parent: Uplink, tasks: &Tasks) -> oneshot::Receiver<()> {
    let (queued, sent) = oneshot::channel::<()>();
    let (messages, mut incoming) = mpsc::channel::<Vec<u8>>(1);
    let work = move || {
        for_each_message(&file, |message| messages.blocking_send(message).is_ok());
    };
    if let Err(error) = tasks.spawn_thread("profile", work) {
        tracing::warn!(%error, "the profiles of ranks are lost");
    }
    let forward = async move {
        let _queued = queued;
        let room = Arc::new(Semaphore::new(MESSAGES));
        while let Some(message) = incoming.recv().await {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            parent.send(Lane::Profile, Bytes::from(message), Receipt::holding(permit));
        }
    };
    tasks.spawn("profile messages", Span::current(), forward);
    sent
}

/// The position and length of a row's pieces.
type Row = (u64, u64);

/// Passes the rows to `send`, as many as fit in a message. `send` returns false if no more are wanted.
fn for_each_message(file: &ProfileFile, mut send: impl FnMut(Vec<u8>) -> bool) {
    let mut message = Vec::new();
    for (start, bytes) in rows(file) {
        let mut at = start;
        while at < start + bytes {
            let Some(piece) = piece_at(file, at, start + bytes) else { break };
            if message.len() + piece.len() > STREAM_BYTES_MAX && !send(std::mem::take(&mut message)) {
                return;
            }
            at += piece.len() as u64;
            message.extend_from_slice(&piece);
        }
    }
    if !message.is_empty() {
        send(message);
    }
}

/// Returns the last row of each rank, in the order of their positions. Nothing behind a damaged piece is found: the launcher
/// reports the ranks that are missing.
fn rows(file: &ProfileFile) -> Vec<Row> {
    let end = file.bytes().unwrap_or(0);
    let (mut found, mut order) = (HashMap::<Rank, Row>::new(), RowOrder::default());
    let (mut at, mut start) = (0, 0);
    while at < end {
        let piece = piece_at(file, at, end);
        let Some((bytes, piece)) = piece
            .and_then(|piece| Some((piece.len() as u64, ProfilePiece::decode(&piece[PIECE_LENGTH_BYTES..]).ok()?)))
        else {
            tracing::warn!(at, "the profiles of ranks are damaged");
            break;
        };
        match order.take(&piece) {
            Ok(begins) => start = if begins { at } else { start },
            Err(error) => {
                tracing::warn!(at, %error, "the profiles of ranks are damaged");
                break;
            }
        }
        at += bytes;
        if order.is_between_rows() {
            found.insert(piece.rank, (start, at - start));
        }
    }
    let mut rows: Vec<Row> = found.into_values().collect();
    rows.sort_unstable();
    rows
}

/// Returns a piece with its length; `None` if there is no whole one before `end`.
fn piece_at(file: &ProfileFile, at: u64, end: u64) -> Option<Vec<u8>> {
    let mut length = [0; PIECE_LENGTH_BYTES];
    file.read_at(&mut length, at).ok()?;
    let bytes = u32::from_le_bytes(length) as usize;
    check_length(bytes).ok()?;
    let mut piece = vec![0; PIECE_LENGTH_BYTES + bytes];
    if at + piece.len() as u64 > end {
        return None;
    }
    file.read_at(&mut piece, at).ok()?;
    Some(piece)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::sys::descriptors::SLOTS_IN_TEST;

    /// A piece of rank 5 of 128 that is followed by `left` others, whose only entry has `messages`.
    fn piece(rank: u8, left: u8, messages: u8) -> Vec<u8> {
        vec![9, 0, 0, 0, rank, 100, left, 1, 0, 0, 2, 0, messages]
    }

    fn sent(content: &[u8]) -> Vec<Vec<u8>> {
        let _alone = SLOTS_IN_TEST.lock();
        let file = ProfileFile::new().expect("descriptors are left");
        let mut writer = File::from(file.as_fd().try_clone_to_owned().expect("descriptors are left"));
        writer.write_all(content).expect("it is written");
        let mut messages = Vec::new();
        for_each_message(&file, |message| {
            messages.push(message);
            true
        });
        messages
    }

    #[test]
    fn the_last_row_of_each_rank_is_sent() {
        let (first, again) = ([piece(5, 1, 1), piece(5, 0, 1)].concat(), [piece(5, 1, 2), piece(5, 0, 2)].concat());
        let other = piece(6, 0, 1);
        assert_eq!(sent(&[&first[..], &other, &again].concat()), [[&other[..], &again].concat()]);
        assert_eq!(sent(b""), [b""; 0]);
    }

    #[test]
    fn what_follows_damage_is_not_sent() {
        let good = piece(5, 0, 1);
        for damage in [&b"\xff\xff\xff\xff"[..], b"\x09", &piece(6, 1, 1), &piece(200, 0, 1), &[1, 0, 0, 0, 7]] {
            assert_eq!(sent(&[&good[..], damage, &piece(7, 0, 1)].concat()), std::slice::from_ref(&good), "{damage:?}");
        }
    }

    #[test]
    fn messages_are_bounded() {
        let row = |rank: u8| piece(rank, 0, 1).to_vec();
        let long: Vec<u8> = (0..100).flat_map(row).collect();
        assert_eq!(sent(&long), [long]);
        // Rows as long as pieces may be: 200 entries of ten bytes twice.
        let longest = |rank: u8| {
            let number = [255, 255, 255, 255, 255, 255, 255, 255, 255, 1];
            let entries: Vec<u8> = (0..1000).flat_map(|_| [&[2][..], &number, &number].concat()).collect();
            let body = [&[rank, 100, 0, 0xe8, 7, 0, 0], &entries[..]].concat();
            [&(body.len() as u32).to_le_bytes()[..], &body].concat()
        };
        let all: Vec<u8> = (0..20).flat_map(longest).collect();
        let messages = sent(&all);
        assert!(messages.len() == 4 && messages.iter().all(|message| message.len() <= STREAM_BYTES_MAX));
        assert_eq!(messages.concat(), all);
    }
}
