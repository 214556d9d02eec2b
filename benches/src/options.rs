//! The command line of the benches.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::ValueParser;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};

use crate::arguments::{bench_option, number_of};
use crate::suite::{Section, Suite};

/// The parsed command line. Sections have default sizes of their own.
#[derive(Clone, Debug)]
pub struct Options {
    /// The bench.
    pub suite: Suite,
    /// The numbers of ranks, if given.
    pub np: Option<Vec<u32>>,
    /// The number of rounds over which medians are taken.
    pub runs: u32,
    /// The sections, in the order of the output.
    pub only: Vec<Section>,
    /// Launchers to leave out: `hydra` means all versions, `hydra 4.0.2` one of them.
    pub without: Vec<String>,
    /// The number of fences measured in one run; 0 if the suite measures none.
    pub fences: u32,
    /// The time after which a run is killed.
    pub deadline: Duration,
    /// The CSV file for single runs.
    pub csv: Option<PathBuf>,
    /// README.md, or the directory for result files; `None` prints results only.
    pub write: Option<PathBuf>,
}

impl Options {
    /// Parses the command line; exits on an error or after printing the help.
    #[must_use]
    pub fn from_command_line(suite: Suite) -> Self {
        Self::from_matches(suite, &command(suite).get_matches())
    }

    fn from_matches(suite: Suite, matches: &ArgMatches) -> Self {
        let typed: Vec<Section> = matches.get_many("only").unwrap_or_default().copied().collect();
        let write: Option<PathBuf> = matches.get_one("write").cloned();
        // Without `--only`, a table of README.md needs only the sections that have a row in it.
        let is_for_overview = write.is_some() && suite.has_overview();
        let is_asked = |section: &Section| match () {
            () if typed.is_empty() => !is_for_overview || section.is_in_overview(),
            () => typed.contains(section),
        };
        Self {
            suite,
            np: matches.get_many("np").map(|sizes| sizes.copied().collect()),
            runs: number_of(matches, "runs"),
            only: suite.sections().iter().copied().filter(is_asked).collect(),
            without: matches.get_many("without").unwrap_or_default().cloned().collect(),
            fences: if suite == Suite::Launch { number_of(matches, "fences") } else { 0 },
            deadline: Duration::from_secs(number_of(matches, "deadline").into()),
            csv: matches.get_one("csv").cloned(),
            write,
        }
    }
}

fn command(suite: Suite) -> Command {
    let list = |name: &'static str, value: &'static str, parser: ValueParser| {
        Arg::new(name).long(name).value_name(value).value_delimiter(',').action(ArgAction::Append).value_parser(parser)
    };
    let count = |name: &'static str, default: &'static str, max: i64| {
        let parser = value_parser!(u32).range(1..=max);
        Arg::new(name).long(name).value_name("N").default_value(default).value_parser(parser)
    };
    let words = words(suite);
    let command = Command::new(suite.name())
        .about(words.about)
        .after_help(words.after_help)
        .arg(
            list("np", "N,...", value_parser!(u32).range(1..=RANKS_MAX).into())
                .help(format!("Numbers of ranks, for every section [default: {}]", words.sizes)),
        )
        .arg(count("runs", "5", 1000).help("Number of rounds; tables show medians over them"))
        .arg(
            list("only", "SECTION,...", ValueParser::new(move |name: &str| suite.parse_section(name)))
                .help(format!("Sections: {} [default: all]", suite.section_names())),
        )
        .arg(list("without", "LAUNCHER,...", value_parser!(String)).help(words.without))
        .arg(count("deadline", words.deadline, 86_400).value_name("SECONDS").help("Kill runs that take longer"))
        .arg(
            Arg::new("csv")
                .long("csv")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .help("Also write every single run to FILE"),
        )
        .arg(write_option(suite))
        .arg(bench_option());
    match suite {
        Suite::Launch => {
            command.arg(count("fences", "1000", 1_000_000).help("Fences measured in each run of the fence section"))
        }
        Suite::Pmi | Suite::Caches | Suite::Scale => command,
    }
}

fn write_option(suite: Suite) -> Arg {
    let option = Arg::new("write").long("write").num_args(0..=1).require_equals(true);
    let option = option.value_parser(value_parser!(PathBuf));
    if suite.has_overview() {
        let help = "Also write the table of FILE, between its markers, with the sections that have a row in it \
                    [default: README.md]";
        option.value_name("FILE").default_missing_value(README).conflicts_with("only").help(help)
    } else {
        let help = "Also write tables, numbers and plots to DIR [default: docs/results]";
        option.value_name("DIR").default_missing_value(RESULTS).help(help)
    }
}

/// The help texts and defaults of one suite.
struct Words {
    about: &'static str,
    after_help: &'static str,
    sizes: &'static str,
    without: &'static str,
    deadline: &'static str,
}

fn words(suite: Suite) -> Words {
    match suite {
        Suite::Launch => Words {
            about: "Measures scela-run, the kernel's floor and every launcher installed here, in turns",
            after_help: "SCELA_RUN=PATH measures that scela-run instead of building one.\n\
                                  SCELA_BENCH_HYDRA=PATH adds a second mpiexec.hydra; those in virtual environments in target/ are found.\n\
                                  SCELA_BENCH_FLUX=PATH measures that Flux instead of the one in PATH.\n\
                                  Slurm (unless a controller replies: SLURM_CONF) and Flux are started by the bench.\n\
                                  A run that takes more than 20 s is not repeated.",
            sizes: "1,4,64,1024,4096 for the empty program; 64,1024 for hello; 512 to exchange; 64 for fences; 1024 for \
                    memory; 8 for quiet",
            without: "Launchers to leave out: hydra, srun, flux, ...",
            deadline: "60",
        },
        Suite::Pmi => Words {
            about: "Measures PMI over scela-run's wire, through libpmi.so, and over the wires of Hydra and srun, in turns",
            after_help: "SCELA_RUN=PATH and SCELA_PMI_LIBRARY=PATH measure those instead of building them.\n\
                                  SCELA_BENCH_HYDRA=PATH adds a second mpiexec.hydra; those in virtual environments in target/ are found.\n\
                                  SCELA_BENCH_FLUX=PATH measures that Flux instead of the one in PATH.\n\
                                  Slurm (unless a controller replies: SLURM_CONF) and Flux are started by the bench.\n\
                                  A run that takes more than 20 s is not repeated.",
            sizes: "256,1024 to exchange; 64 for get; 4096 for memory",
            without: "Launchers to leave out: hydra, srun, libpmi (scela-run with it), wire (scela-run without it), ...",
            deadline: "300",
        },
        Suite::Caches => Words {
            about: "Measures exchanges and the memory of the board under each cache policy of scela-run, over trees of \
                                many agents, in turns",
            after_help: "SCELA_RUN=PATH and SCELA_PMI_LIBRARY=PATH measure those instead of building them.",
            sizes: "64,128,256,512 to exchange; 256 for memory",
            without: "Policies to leave out: hcs, hcma, \"hcmab-lru p/8\", libpmi (hcmab with it), ...",
            deadline: "120",
        },
        Suite::Scale => Words {
            about: "Measures how the time, memory and messages of scela-run grow with the number of ranks, beside the \
                    kernel's floor, in turns. Fails if the cost of a rank grows by more than a third",
            after_help: "SCELA_RUN=PATH and SCELA_PMI_LIBRARY=PATH measure those instead of building them.",
            sizes: "256,1024,4096,16384",
            without: "What to leave out: libpmi",
            deadline: "300",
        },
    }
}

/// The default page for tables of launchers.
const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
/// The default directory for results.
const RESULTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/results");
/// More ranks than one machine can run; larger numbers are taken for typing errors.
const RANKS_MAX: i64 = 65_536;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Options {
        let suites = [Suite::Launch, Suite::Pmi, Suite::Caches, Suite::Scale];
        let suite = suites.into_iter().find(|suite| line.starts_with(suite.name())).unwrap();
        Options::from_matches(suite, &command(suite).get_matches_from(line.split(' ')))
    }

    #[test]
    fn cargo_s_option_for_benchmarks_is_ignored() {
        let options = parsed("launch --bench");
        assert_eq!((options.np, options.runs), (None, 5));
        assert_eq!(options.only, Suite::Launch.sections());
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
    fn each_suite_has_its_own_sections_and_deadline() {
        let options = parsed("pmi --only memory,get");
        assert_eq!(options.only, [Section::Get, Section::PrivateMemory]);
        assert_eq!((options.deadline, options.fences), (Duration::from_secs(300), 0));
        let command = command(Suite::Pmi);
        assert!(command.try_get_matches_from(["pmi", "--only", "fence"]).is_err());
    }

    #[test]
    fn results_are_written_to_the_given_directory_or_the_repository() {
        assert_eq!(parsed("caches --bench").write, None);
        assert!(parsed("caches --write --runs 1").write.unwrap().ends_with("docs/results"));
        assert_eq!(parsed("caches --write=elsewhere").write, Some(PathBuf::from("elsewhere")));
    }

    #[test]
    fn a_table_of_the_readme_has_every_row() {
        let options = parsed("launch --write");
        assert!(options.write.unwrap().ends_with("README.md"));
        assert!(options.only.contains(&Section::Empty) && !options.only.contains(&Section::Quiet));
        assert!(command(Suite::Pmi).try_get_matches_from(["pmi", "--write", "--only", "get"]).is_err());
    }

    #[test]
    fn zero_counts_and_unknown_sections_are_refused() {
        for line in ["launch --np 0", "launch --only latency", "launch --runs 0"] {
            assert!(command(Suite::Launch).try_get_matches_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
