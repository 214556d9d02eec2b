//! Ranks that read and write much, in pieces of any size.

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::thread;

use tests::lines::{Draw, Sum, line};

use crate::Finding;
use crate::connection::{client, rank};

/// Writes lines, many in one write.
pub(crate) fn lines(count: u64, bytes_max: u64) -> Result<(), Finding> {
    let mut out = BufWriter::with_capacity(16 * 1024, io::stdout().lock());
    for number in 0..count {
        out.write_all(line(rank(), number, bytes_max).as_bytes())?;
    }
    Ok(out.flush()?)
}

/// Writes lines in pieces of random length, regardless of where lines end.
pub(crate) fn pieces(count: u64, bytes_max: u64) -> Result<(), Finding> {
    let mut draw = Draw::new(u64::from(rank()));
    let text: String = (0..count).map(|number| line(rank(), number, bytes_max)).collect();
    let mut rest = text.as_bytes();
    // Write to a file without a buffer: `stdout` would hold back the beginning of a line.
    let mut out = File::options().write(true).open("/dev/stdout")?;
    while !rest.is_empty() {
        let size = 1 + draw.below(bytes_max * 3 / 2) as usize;
        let (piece, later) = rest.split_at(size.min(rest.len()));
        out.write_all(piece)?;
        thread::yield_now();
        rest = later;
    }
    Ok(())
}

/// Writes lines while it goes through fences. Rank 0 then creates `file`.
pub(crate) fn fences_beside_lines(fences: u64, file: &str, count: u64) -> Result<(), Finding> {
    let (mut pmi, rank, _) = client()?;
    let writer = thread::spawn(move || lines(count, 80).map_err(|error| error.to_string()));
    for _ in 0..fences {
        pmi.barrier()?;
    }
    if rank == 0 {
        File::create(file)?;
    }
    writer.join().map_err(|_| "the writer panicked")??;
    pmi.barrier()?;
    Ok(pmi.finalize()?)
}

/// Reads standard input to its end and prints its checksum.
pub(crate) fn sum(slowly: bool) -> Result<(), Finding> {
    let mut block = vec![0; if slowly { 997 } else { 64 * 1024 }];
    let (mut input, mut sum) = (io::stdin().lock(), Sum::default());
    loop {
        let count = input.read(&mut block)?;
        if count == 0 {
            println!("{}: {sum}", rank());
            return Ok(());
        }
        sum.add(&block[..count]);
        if slowly {
            (0..50).for_each(|_| thread::yield_now());
        }
    }
}
