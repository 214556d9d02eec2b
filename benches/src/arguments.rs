//! The options that the benches share, and their parsing.

use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::error::BenchError;
use crate::results::replace_table;

/// Returns the option of a number.
#[must_use]
pub fn number(name: &'static str, default: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32)).default_value(default).help(help)
}

/// Returns the value of a [`number`].
#[must_use]
pub fn number_of(arguments: &ArgMatches, name: &str) -> u32 {
    *arguments.get_one(name).expect("the option has a default")
}

/// Returns `--write`, which renews a table in `page` or in another file.
#[must_use]
pub fn write_option(page: &'static str) -> Arg {
    let name = page.rsplit_once("/../").map_or(page, |(_, name)| name);
    Arg::new("write")
        .long("write")
        .num_args(0..=1)
        .require_equals(true)
        .value_name("FILE")
        .value_parser(value_parser!(PathBuf))
        .default_missing_value(page)
        .help(format!("also write the table of FILE, between its markers [default: {name}]"))
}

/// Renews the table at `place` if [`write_option`] asks for it.
pub fn write_table(arguments: &ArgMatches, place: &str, text: &str) -> Result<(), BenchError> {
    match arguments.get_one::<PathBuf>("write") {
        Some(page) => replace_table(page, place, text),
        None => Ok(()),
    }
}

/// Parses the command line of this process; ends the process if it cannot be parsed.
#[must_use]
pub fn parse(command: Command) -> ArgMatches {
    command.arg(bench_option()).get_matches()
}

/// Returns the option that Cargo passes to benchmarks.
#[must_use]
pub fn bench_option() -> Arg {
    Arg::new("bench").long("bench").hide(true).action(ArgAction::SetTrue)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn parsed(words: &[&str]) -> ArgMatches {
        let command = Command::new("bench").arg(number("runs", "5", "")).arg(write_option("/benches/../docs/pool.md"));
        command.arg(bench_option()).get_matches_from([&["bench"], words].concat())
    }

    #[test]
    fn a_page_is_written_on_request() {
        let page = |words: &[&str]| parsed(words).get_one::<PathBuf>("write").cloned();
        assert_eq!(page(&["--bench"]), None);
        assert_eq!(page(&["--write"]).as_deref(), Some(Path::new("/benches/../docs/pool.md")));
        assert_eq!(page(&["--write=x.md", "--bench"]).as_deref(), Some(Path::new("x.md")));
    }

    #[test]
    fn numbers_have_defaults() {
        assert_eq!(number_of(&parsed(&[]), "runs"), 5);
        assert_eq!(number_of(&parsed(&["--runs", "7"]), "runs"), 7);
    }
}
