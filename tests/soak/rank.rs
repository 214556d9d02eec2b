//! The ranks that misuse PMI. The launcher runs this same program as its ranks.

use std::process::ExitCode;

use pmi::v1::client::{Client, ClientError};

/// The first argument of a rank.
pub(crate) const ARGUMENT: &str = "--soak-rank";
/// `abort RANK CODE`: this rank aborts while the others wait for it in a fence.
pub(crate) const ABORT: &str = "abort";
/// `leave RANK`: this rank exits with 0 without finalizing, while the others wait for it in a fence.
pub(crate) const LEAVE: &str = "leave";

/// Runs one rank.
pub(crate) fn run(words: &[String]) -> ExitCode {
    match play(words) {
        Ok(()) => ExitCode::SUCCESS,
        // No drawn session expects this code.
        Err(error) => {
            eprintln!("soak rank: {error}");
            ExitCode::from(99)
        }
    }
}

fn play(words: &[String]) -> Result<(), ClientError> {
    let number = |word: Option<&String>| word.and_then(|word| word.parse::<i32>().ok()).unwrap_or_default();
    let own = number(std::env::var("PMI_RANK").ok().as_ref());
    let is_the_one = own == number(words.get(1));
    let mut pmi = Client::init(nla::sys::pmi_socket()?)?;
    pmi.put(format!("card-{own}").as_bytes(), b"here")?;
    pmi.barrier()?;
    match words.first().map(String::as_str) {
        Some(ABORT) if is_the_one => {
            pmi.abort(number(words.get(2)))?;
            // The launcher kills the rank that aborted, so this barrier never completes.
            pmi.barrier()
        }
        Some(LEAVE) if is_the_one => Ok(()),
        _ => {
            pmi.barrier()?;
            pmi.finalize()
        }
    }
}
