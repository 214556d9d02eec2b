//! The rank program of the process tests: its arguments say what it does, correct or faulty.
//!
//! `rank script STEP...` sends PMI line by line ([`script`]). The other modes check their results themselves and exit
//! with 1 and a message on standard error if a result is wrong.

mod board;
mod connection;
mod script;
mod streams;
mod survivors;

use std::env;
use std::process::ExitCode;

/// A wrong result that a rank has found.
type Finding = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        ["script", steps @ ..] => script::run(steps),
        ["neighbours", rounds] => number(rounds).and_then(board::neighbours),
        ["everybody", rounds] => number(rounds).and_then(board::everybody),
        ["cards", "1:2"] => board::cards(false),
        ["cards", "1:p"] => board::cards(true),
        ["fences", count] => number(count).and_then(board::fences),
        ["values"] => board::values(),
        ["lines", count, bytes_max] => pair(count, bytes_max).and_then(|(count, max)| streams::lines(count, max)),
        ["pieces", count, bytes_max] => pair(count, bytes_max).and_then(|(count, max)| streams::pieces(count, max)),
        ["fences-beside-lines", fences, file, count] => {
            pair(fences, count).and_then(|(fences, count)| streams::fences_beside_lines(fences, file, count))
        }
        ["survivors", rounds, deaths @ ..] => number(rounds).and_then(|rounds| survivors::survivors(rounds, deaths)),
        ["sum"] => streams::sum(false),
        ["sum", "slowly"] => streams::sum(true),
        words => Err(format!("there is no mode {words:?}").into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rank {}: {error}", connection::rank());
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> Result<u64, Finding> {
    word.parse().map_err(|_| format!("{word:?} is no number").into())
}

fn pair(first: &str, second: &str) -> Result<(u64, u64), Finding> {
    Ok((number(first)?, number(second)?))
}
