//! The demo: a hello by PMI that needs no MPI library, for a first run.
//!
//! Its ranks are scela-run itself. Each stores a value, enters a fence, reads the values of its two neighbours and
//! checks them. The launcher then prints a summary and the duration of each phase.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;

use pmi::v1::client::{Client, ClientError};

/// Runs one rank of the demo. `connection` is the socket that PMI_FD names.
pub fn run_rank(connection: UnixStream) -> u8 {
    match hello(connection) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "demo rank: {error}");
            1
        }
    }
}

fn card(rank: u32) -> String {
    format!("rank {rank} greets its neighbours")
}

fn hello(connection: UnixStream) -> Result<(), ClientError> {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u32>().ok()).unwrap_or_default();
    let (rank, size) = (number("PMI_RANK"), number("PMI_SIZE").max(1));
    let mut pmi = Client::init(connection)?;
    pmi.put(format!("card-{rank}").as_bytes(), card(rank).as_bytes())?;
    pmi.barrier()?;
    for neighbour in [(rank + 1) % size, (rank + size - 1) % size] {
        let found = pmi.get(format!("card-{neighbour}").as_bytes())?;
        if found.as_deref() != Some(card(neighbour).as_bytes()) {
            let _ = writeln!(io::stderr(), "rank {rank}: the value of rank {neighbour} is wrong");
            std::process::exit(1);
        }
    }
    pmi.barrier()?;
    pmi.finalize()
}
