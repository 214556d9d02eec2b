//! What was typed.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::sections::Section;

/// What the command line asks for. Each section knows the sizes that it takes where none were typed.
#[derive(Clone, Debug)]
pub struct Options {
    /// The numbers of ranks, where typed.
    pub np: Option<Vec<u32>>,
    /// How many rounds a median is taken from.
    pub runs: u32,
    /// The sections, in the order in which they are printed.
    pub only: Vec<Section>,
    /// Launchers to leave out: `hydra` is all of them, `hydra 4.0.2` only that one.
    pub without: Vec<String>,
    /// How many fences of one run are measured.
    pub fences: u32,
    /// A run that has not ended after this long is ended.
    pub deadline: Duration,
    /// Where each single run is written, as comma-separated values.
    pub csv: Option<PathBuf>,
}

impl Options {
    /// Parses the command line; ends the program where it is wrong or asks for help.
    #[must_use]
    pub fn from_command_line() -> Self {
        Self::from_matches(&command().get_matches())
    }

    fn from_matches(matches: &ArgMatches) -> Self {
        let typed: Vec<Section> = matches.get_many("only").unwrap_or_default().copied().collect();
        Self {
            np: matches.get_many("np").map(|sizes| sizes.copied().collect()),
            runs: number(matches, "runs"),
            only: Section::ALL.into_iter().filter(|section| typed.is_empty() || typed.contains(section)).collect(),
            without: matches.get_many("without").unwrap_or_default().cloned().collect(),
            fences: number(matches, "fences"),
            deadline: Duration::from_secs(number(matches, "deadline").into()),
            csv: matches.get_one("csv").cloned(),
        }
    }
}

fn number(matches: &ArgMatches, name: &str) -> u32 {
    *matches.get_one(name).expect("the option has a default")
}

fn command() -> Command {
    let list = |name: &'static str, value: &'static str, parser: ValueParser| {
        Arg::new(name).long(name).value_name(value).value_delimiter(',').action(ArgAction::Append).value_parser(parser)
    };
    let count = |name: &'static str, default: &'static str, max: i64| {
        let parser = value_parser!(u32).range(1..=max);
        Arg::new(name).long(name).value_name("N").default_value(default).value_parser(parser)
    };
    Command::new("launch")
        .about("Times scela-run, the kernel's floor and every launcher installed here, in turns")
        .after_help(
            "SCELA_RUN=PATH times that scela-run instead of building one.\n\
             SCELA_BENCH_HYDRA=PATH adds a second mpiexec.hydra; one in a venv in target/ is found by itself.",
        )
        .arg(list("np", "N,...", value_parser!(u32).range(1..=RANKS_MAX).into()).help(
            "Numbers of ranks, for every section [default: 64,256,1024,4096 to launch; 64,128,256,512 to exchange; \
             64 for fences; 1024 for memory]",
        ))
        .arg(count("runs", "5", 1000).help("Rounds; the table shows their medians"))
        .arg(
            list("only", "SECTION,...", Section::parse_name.into())
                .help("Sections: empty, hello, 1:2, 1:p, fence, memory [default: all]"),
        )
        .arg(list("without", "LAUNCHER,...", value_parser!(String)).help("Launchers to leave out: hydra, srun, ..."))
        .arg(count("fences", "1000", 1_000_000).help("Fences measured in each run of the fence section"))
        .arg(count("deadline", "60", 86_400).value_name("SECONDS").help("A run that takes longer is ended"))
        .arg(
            Arg::new("csv")
                .long("csv")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Also write every single run to FILE"),
        )
        .arg(Arg::new("bench").long("bench").action(ArgAction::SetTrue).hide(true))
}

/// More ranks than any one machine is asked for; what is beyond is a slip of the finger.
const RANKS_MAX: i64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Options {
        Options::from_matches(&command().get_matches_from(line.split(' ')))
    }

    #[test]
    fn cargo_s_own_flag_is_ignored() {
        let options = parsed("launch --bench");
        assert_eq!((options.np, options.runs), (None, 5));
        assert_eq!(options.only, Section::ALL);
    }

    #[test]
    fn lists_are_separated_by_commas_and_sections_keep_their_order() {
        let options = parsed("launch --np 64,256 --runs 3 --only hello,empty --without hydra,srun --csv x.csv --bench");
        assert_eq!(options.np, Some(vec![64, 256]));
        assert_eq!(options.only, [Section::Empty, Section::Hello]);
        assert_eq!(options.without, ["hydra", "srun"]);
        assert_eq!(options.csv, Some(PathBuf::from("x.csv")));
    }

    #[test]
    fn no_ranks_and_unknown_sections_are_refused() {
        for line in ["launch --np 0", "launch --only latency", "launch --runs 0"] {
            assert!(command().try_get_matches_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
