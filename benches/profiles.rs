//! The time that the launcher takes to put the rows of `--profile-comm` together and to write the matrix: synthetic rows in the form of
//! libscela-trace.so, without a session around them.
//!
//! `cargo bench -p benches --bench profiles` prints a line for each size of a job.

use std::time::{Duration, Instant};

use nla::core::ProfileRows;
use placement::matrix::{Collector, Traffic};

/// The sizes of jobs, and the ranks to which each rank of them sends.
const SIZES: [(u32, u32); 3] = [(512, 26), (4096, 26), (16_384, 26)];
/// The rows in a message of an agent.
const ROWS_PER_MESSAGE: usize = 64;
const REPEATS: usize = 9;

fn main() {
    for (ranks, peers) in SIZES {
        let messages = messages(ranks, peers);
        let mut times: Vec<Duration> = (0..REPEATS).map(|_| put_together(ranks, peers, &messages)).collect();
        times.sort_unstable();
        println!("{ranks} ranks that send to {peers} others each: {:.1?}, median of {REPEATS}", times[REPEATS / 2]);
    }
}

/// Returns the rows of all ranks, in the messages of agents.
fn messages(ranks: u32, peers: u32) -> Vec<Vec<u8>> {
    let rows: Vec<Vec<u8>> = (0..ranks).map(|rank| row(rank, ranks, peers)).collect();
    rows.chunks(ROWS_PER_MESSAGE).map(<[Vec<u8>]>::concat).collect()
}

/// Returns a row of one piece, which docs/profiling.md describes.
fn row(rank: u32, ranks: u32, peers: u32) -> Vec<u8> {
    let mut piece = Vec::new();
    [rank, ranks, 0, peers, 0, 0].into_iter().for_each(|number| put(&mut piece, number.into()));
    for hop in 1..=peers {
        let peer = (rank + hop * (hop + 1) / 2) % ranks;
        [u64::from(peer) << 1, 1 << 20, 100].into_iter().for_each(|number| put(&mut piece, number));
    }
    [&(piece.len() as u32).to_le_bytes()[..], &piece].concat()
}

/// Appends a variable-length integer.
fn put(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn put_together(ranks: u32, peers: u32, messages: &[Vec<u8>]) -> Duration {
    let began = Instant::now();
    let (mut rows, mut matrix) = (ProfileRows::new(ranks), Collector::new(ranks).expect("a size of jobs"));
    for message in messages {
        let taken = rows.take(message, |entry| {
            let traffic = Traffic { bytes: entry.traffic.bytes, messages: entry.traffic.messages };
            matrix.add(entry.from.0, entry.to.0, traffic).expect("two ranks of the job");
        });
        taken.expect("rows of the job");
    }
    let mut file = Vec::new();
    let matrix = matrix.finish();
    matrix.write(&mut file).expect("memory takes all bytes");
    let took = began.elapsed();
    assert_eq!((matrix.pairs().len() as u64, rows.missing().len()), (u64::from(ranks) * u64::from(peers), 0));
    took
}
