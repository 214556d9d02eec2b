//! Ranks that go on when others die, and check that no entry of a rank that lives is missing.

use std::env;
use std::io::Write;

use nix::sys::signal::{Signal, raise};
use pmi::client::ClientError;
use pmi::v1::client::Client;
use pmi::{Rank, Ranks};

use crate::Finding;
use crate::connection::{Stream, client};

/// Runs `rounds` rounds: each rank puts an entry, enters a fence and gets the entries of all ranks. An entry may be
/// missing only if its rank is listed as dead. Only the first fence may fail.
///
/// The word `after-death` makes the rounds count only once a rank has died, so that a test has time to kill one: a rank that
/// has seen enough says so in its entry, and then this round is the last one of all ranks.
///
/// Words `R@N` let rank R die of SIGKILL before it enters the fence of round N, at its first start. At the end each rank prints what it has seen.
pub(crate) fn survivors(rounds: u64, deaths: &[&str]) -> Result<(), Finding> {
    let (mut pmi, rank, size) = client()?;
    let is_first_start = env::var_os("SCELA_INCARNATION").is_none_or(|number| number == "0");
    let dies_in = |round: u64| is_first_start && deaths.contains(&format!("{rank}@{round}").as_str());
    let key = |rank: u32, round: u64| format!("card-{rank}-{round}");
    let after_death = deaths.contains(&"after-death");
    let (mut failed, mut counted, mut is_last) = (0, 0, false);
    for round in 0.. {
        if is_last {
            break;
        }
        if dies_in(round) {
            raise(Signal::SIGKILL)?;
        }
        let has_enough = counted + 1 >= rounds;
        let value = |peer, enough| if enough { format!("{} is enough", key(peer, round)) } else { key(peer, round) };
        pmi.put(key(rank, round).as_bytes(), value(rank, has_enough).as_bytes())?;
        match pmi.barrier() {
            Ok(()) => {}
            Err(ClientError::Refused { .. }) if round == 0 => failed += 1,
            Err(error) => return Err(format!("the fence of round {round}: {error}").into()),
        }
        let mut missing = Ranks::new();
        for peer in 0..size {
            match pmi.get(key(peer, round).as_bytes())? {
                Some(got) if got == value(peer, false).as_bytes() => {}
                Some(got) if got == value(peer, true).as_bytes() => is_last = true,
                Some(value) => return Err(format!("rank {peer} has {:?}", String::from_utf8_lossy(&value)).into()),
                None => drop(missing.insert(Rank(peer))),
            }
        }
        let dead = dead(&mut pmi)?;
        counted += u64::from(!after_death || !dead.is_empty());
        if !dead.contains_all(&missing) {
            return Err(format!("round {round}: entries of ranks {missing} are missing, dead are {dead}").into());
        }
    }
    let dead = dead(&mut pmi)?;
    pmi.finalize()?;
    // One write, so that lines of ranks are not mixed.
    let line = format!("rank {rank}: {rounds} rounds, {failed} failed, dead: {dead}\n");
    Ok(std::io::stdout().write_all(line.as_bytes())?)
}

/// Returns the ranks that have died. A session that starts its ranks again lists none.
fn dead(pmi: &mut Client<Box<dyn Stream>>) -> Result<Ranks, Finding> {
    match pmi.get(b"PMI_dead_processes")? {
        Some(dead) => Ok(String::from_utf8(dead)?.parse()?),
        None if env::var_os("SCELA_INCARNATION").is_some() => Ok(Ranks::new()),
        None => Err("the dead ranks are not listed".into()),
    }
}
