//! Measures on this machine what entries cost on their way through the tree. Takes about a second.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use nla::core::limits::{PIECE_BYTES, RECORD_BYTES_MAX};
use nla::core::{AgentId, Blob, pack, unpack};
use nla::wire::{Assembler, Content, Established, Initiator, Lane, Responder, Role, Seen, SessionId, framed};
use pmi::{Epoch, Puts, Rank};
use sim::BoardCosts;

/// The bytes of each measurement.
const BYTES: usize = 16 << 20;
/// The bytes that are written to a socket at a time, as a link does. They fit its buffers.
const WRITE_BYTES: usize = 64 * 1024;
/// The entries that are merged: a large job's, which fit no processor's caches.
const ENTRIES: u32 = 1 << 20;
/// The length of their values.
const VALUE_BYTES: usize = 64;
/// Each measurement is repeated; the fastest counts, since everything else that runs only adds time.
const ROUNDS: usize = 3;

/// Measures the costs.
pub fn measure() -> io::Result<BoardCosts> {
    let links: Vec<(Duration, Duration)> = (0..ROUNDS).map(|_| link()).collect::<io::Result<_>>()?;
    let least = |times: &mut dyn Iterator<Item = Duration>| times.min().unwrap_or_default();
    let bytes = vec![7; BYTES];
    let cards = cards();
    let pieces = packed(&cards);
    Ok(BoardCosts {
        byte_sent_ps: per_byte(least(&mut links.iter().map(|(sent, _)| *sent))),
        byte_received_ps: per_byte(least(&mut links.iter().map(|(_, received)| *received))),
        byte_hashed_ps: per_byte(fastest(|| Blob::of(&bytes, piece_bytes()))),
        byte_copied_ps: per_byte(fastest(|| copied(&bytes))),
        byte_packed_ps: per_byte(fastest(|| packed(&cards))),
        byte_unpacked_ps: per_byte(fastest(|| unpacked(&pieces))),
        entry_merged: fastest(merged(ENTRIES)).as_nanos() as u64 / u64::from(ENTRIES),
    })
}

fn piece_bytes() -> NonZeroU32 {
    PIECE_BYTES.unwrap_or(NonZeroU32::MAX)
}

fn per_byte(time: Duration) -> u64 {
    (time.as_nanos() * 1000 / BYTES as u128) as u64
}

/// Returns the time of the fastest of several calls.
fn fastest<T>(mut work: impl FnMut() -> T) -> Duration {
    let timed = |_| {
        let begin = Instant::now();
        std::hint::black_box(work());
        begin.elapsed()
    };
    (0..ROUNDS).map(timed).min().unwrap_or_default()
}

/// Copies each piece twice, as an agent does: to fresh memory of the whole, and into a message.
fn copied(bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(bytes.len());
    for piece in bytes.chunks(piece_bytes().get() as usize) {
        whole.extend_from_slice(piece);
        std::hint::black_box(piece.to_vec());
    }
    whole
}

/// Returns [`BYTES`] of business cards as MPI libraries make them: neighbours differ in few parts.
fn cards() -> Vec<u8> {
    let card = |rank: u32| {
        let (node, port, number) = (rank / 64, 30_000 + rank % 9973, rank.wrapping_mul(0x9e37_79b9));
        let (high, low) = (node / 250, node % 250);
        format!("P{rank}-businesscarddescription#node{node:05}$port#{port}$ifname#10.1.{high}.{low}$key#{number:08X}$")
    };
    (0..).flat_map(|rank| card(rank).into_bytes()).take(BYTES).collect()
}

/// Packs pieces as the root does. One that does not become shorter is left out.
fn packed(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.chunks(piece_bytes().get() as usize).filter_map(pack).collect()
}

/// Unpacks pieces to memory that was reserved, as agents do.
fn unpacked(pieces: &[Vec<u8>]) -> Vec<u8> {
    let mut all = Vec::with_capacity(BYTES);
    let length = (piece_bytes().get() as usize).min(BYTES);
    let whole = pieces.iter().all(|piece| unpack(piece, length, &mut all).is_some());
    debug_assert!(whole, "what was packed can be unpacked");
    all
}

/// Returns the work of merging one put of each of so many ranks.
fn merged(ranks: u32) -> impl FnMut() -> Option<Epoch> {
    let mut puts = Puts::new();
    for rank in 0..ranks {
        puts.push(Rank(rank), format!("P{rank}-businesscard").as_bytes(), &[b'v'; VALUE_BYTES]);
    }
    move || Epoch::merge(&puts).ok()
}

/// Sends messages over an encrypted connection of the loopback interface. Returns the times of both ends.
fn link() -> io::Result<(Duration, Duration)> {
    let (mut child, mut parent) = established().ok_or_else(|| io::Error::other("the handshake failed"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut input, _) = listener.accept()?;
    let message = framed(&vec![7; piece_bytes().get() as usize]);
    let (mut sent, mut received, mut done) = (Duration::ZERO, Duration::ZERO, 0);
    let (mut sealed, mut buffer) = (Vec::new(), vec![0; 2 * WRITE_BYTES]);
    let mut assembler = Assembler::new(Lane::Board);
    while done < BYTES {
        for batch in message.chunks(WRITE_BYTES - RECORD_BYTES_MAX / 16) {
            let begin = Instant::now();
            sealed.clear();
            for piece in batch.chunks(RECORD_BYTES_MAX) {
                child.sealer.seal_piece(Lane::Board, &mut sealed, |record| record.extend_from_slice(piece));
            }
            out.write_all(&sealed)?;
            let written = Instant::now();
            input.read_exact(&mut buffer[..sealed.len()])?;
            let mut used = 0;
            while let Ok(Some((Content::Piece(_, piece), length))) = parent.opener.open(&buffer[used..sealed.len()]) {
                assembler.push(piece);
                used += length;
            }
            while let Ok(Some(message)) = assembler.next_message() {
                std::hint::black_box(message);
            }
            sent += written - begin;
            received += written.elapsed();
            done += batch.len();
        }
    }
    Ok((sent, received))
}

/// Returns both ends of a handshake.
fn established() -> Option<(Established, Established)> {
    let (session, key, role) = (SessionId(0), [0; 32], Role::Link { parent: AgentId::ROOT });
    let (initiator, request) = Initiator::new(session, &key, role).ok()?;
    let (parent, answer) = Responder::answer(request[..].try_into().ok()?, session, &key, role, &mut Seen::default());
    let (verdict, message) = answer.split_first_chunk()?;
    initiator.verdict(verdict).ok()?;
    Some((initiator.finish(message).ok()?, parent.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::forecast::model::fence::PACKED_SHARE;

    #[test]
    fn cards_are_packed_and_unpacked_whole() {
        let cards = cards();
        let pieces = packed(&cards);
        assert_eq!(unpacked(&pieces), cards);
        let share = pieces.iter().map(Vec::len).sum::<usize>() as f64 / BYTES as f64;
        assert!(share < PACKED_SHARE, "{share}");
    }

    #[test]
    fn all_costs_are_measured() {
        let costs = measure().unwrap();
        let BoardCosts { byte_received_ps, byte_sent_ps, byte_hashed_ps, byte_copied_ps, .. } = costs;
        let BoardCosts { byte_packed_ps, byte_unpacked_ps, entry_merged, .. } = costs;
        for (name, cost) in [
            ("received", byte_received_ps),
            ("sent", byte_sent_ps),
            ("hashed", byte_hashed_ps),
            ("copied", byte_copied_ps),
            ("packed", byte_packed_ps),
            ("unpacked", byte_unpacked_ps),
            ("merged", entry_merged),
        ] {
            // A million is a microsecond for a byte, a millisecond for an entry.
            assert!((1..1_000_000).contains(&cost), "{name}: {costs:?}");
        }
        println!("{costs:?}");
    }
}
