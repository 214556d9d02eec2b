//! The demo: an MPI-like hello that needs no MPI installed, so that a first run shows something.
//!
//! The ranks are this same program. Each publishes a card, meets the others in a fence, reads the
//! cards of its two neighbours and checks them. The launcher then says what happened and how long
//! each phase took.

use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::time::Duration;

use nla::core::{NamespaceId, Notice};
use pmi::v1::client::{Client, ClientError};

/// The argument that makes this program a rank of the demo.
pub const RANK_ARGUMENT: &str = "--demo-rank";

/// Runs one rank of the demo. The connection is the one that PMI_FD names.
pub fn run_rank(connection: UnixStream) -> ExitCode {
    match hello(connection) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "demo rank: {error}");
            ExitCode::from(1)
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
            let _ = writeln!(io::stderr(), "rank {rank}: the card of rank {neighbour} is wrong");
            std::process::exit(1);
        }
    }
    pmi.barrier()?;
    pmi.finalize()
}

/// When each step of the session was done; for the demo and for `--timing`.
#[derive(Clone, Debug, Default)]
pub struct Phases {
    steps: Vec<(String, Duration)>,
}

impl Phases {
    /// Notes a step at the session's time `at`.
    pub fn note(&mut self, at: Duration, notice: &Notice) {
        let step = match notice {
            Notice::Joined => "agents started and joined in a tree".to_owned(),
            Notice::Started(NamespaceId::FIRST, size) => format!("{size} ranks started"),
            Notice::Contact(NamespaceId::FIRST) => "first rank spoke PMI".to_owned(),
            Notice::Released { namespace: NamespaceId::FIRST, number, entries, .. } => {
                format!("fence {number} done, {entries} new entries")
            }
            Notice::RanksEnded => "all ranks ended".to_owned(),
            _ => return,
        };
        self.steps.push((step, at));
    }

    /// Notes the end.
    pub fn end(&mut self, at: Duration) {
        self.steps.push(("session over, nothing left behind".to_owned(), at));
    }

    /// A table: when each step was done, and how long after the one before.
    pub fn table(&self) -> String {
        let mut table = String::from("      done at        took  phase\n");
        let mut before = Duration::ZERO;
        let mut steps = self.steps.clone();
        steps.sort_by_key(|(_, at)| *at);
        for (step, at) in &steps {
            let (done, took) = (at.as_secs_f64() * 1e3, at.saturating_sub(before).as_secs_f64() * 1e3);
            table.push_str(&format!("  {done:8.2} ms {took:8.2} ms  {step}\n"));
            before = *at;
        }
        table
    }
}
