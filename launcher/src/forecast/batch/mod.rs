//! `scela simulate-batch`: batches of jobs on a network whose hosts fail, by placement.

mod simgrid;

use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use clap::parser::ValueSource;
use clap::{Arg, Command, value_parser};
use nla::figures::counted;
use placement::batch::{Experiment, Result as Simulated, Strategy, messages_s, run};
use placement::limits::PLACES_MAX;
use placement::matrix::{Matrix, MatrixError};
use placement::patterns::{self, Pattern};
use placement::topology::Topology;

use self::simgrid::SimGrid;
use crate::plan::placing;

/// The most batches, and jobs of a batch.
const COUNT_MAX: i64 = 10_000;

/// The most ranks: the mapping is made for each batch.
const RANKS_MAX: i64 = 4096;

/// The highest probability: above it, most jobs would be given up.
const PROBABILITY_MAX: f64 = 0.99;

/// The most seconds of a job's computation, and of a link.
const SECONDS_MAX: f64 = 1_000_000.0;

/// The most bytes per second of a link.
const BANDWIDTH_MAX: f64 = 1e15;

/// The name of the subcommand.
pub const NAME: &str = "simulate-batch";

/// The models of messages.
const MODELS: [&str; 3] = ["auto", "simgrid", "links"];

/// The text of a simulation, and a warning that goes with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Said {
    /// The text for standard output.
    pub text: String,
    /// The reason why the messages were not simulated as usual, a sentence.
    pub warning: Option<String>,
}

/// The results of all placements.
type Results = Vec<(Strategy, Simulated)>;

/// Returns the command as clap describes it.
pub fn command() -> Command {
    let number = |name: &'static str, most: i64, default: &'static str| {
        Arg::new(name)
            .long(name)
            .value_name("N")
            .value_parser(value_parser!(u32).range(1..=most))
            .default_value(default)
    };
    let real = |name: &'static str, least: f64, most: f64, default: &'static str| {
        Arg::new(name).long(name).value_name("X").value_parser(within(least, most)).default_value(default)
    };
    let names: Vec<&str> = Pattern::ALL.iter().map(|pattern| pattern.name()).collect();
    Command::new(NAME)
        .bin_name(format!("scela {NAME}"))
        .about("Simulates batches of jobs on a network whose hosts fail, for each way to place ranks")
        .arg(
            Arg::new("matrix")
                .long("comm-matrix")
                .value_name("FILE")
                .value_parser(value_parser!(PathBuf))
                .conflicts_with_all(["pattern", "np"])
                .help("what ranks send to each other"),
        )
        .arg(
            Arg::new("pattern")
                .long("pattern")
                .value_name("NAME")
                .value_parser(PossibleValuesParser::new(names))
                .default_value("cg")
                .help("a pattern in place of a file"),
        )
        .arg(number("np", RANKS_MAX, "64").short('n').help("ranks of the pattern"))
        .arg(
            Arg::new("topology")
                .long("topology")
                .value_name("NETWORK")
                .default_value("torus:8x8x8")
                .help("the network, in words: torus:XxYxZ, mesh:XxY, fat-tree:LEVELS:PORTS, dragonfly:GROUPS:ROUTERS:HOSTS"),
        )
        .arg(number("faulty", i64::from(PLACES_MAX), "8").help("number of hosts that may fail, drawn again for each batch"))
        .arg(real("probability", 0.0, PROBABILITY_MAX, "0.02").help("probability that such a host fails during a job"))
        .arg(number("batches", COUNT_MAX, "10").help("batches"))
        .arg(number("jobs", COUNT_MAX, "100").help("jobs of a batch"))
        .arg(
            Arg::new("compute")
                .long("compute")
                .value_name("SECONDS")
                .value_parser(within(0.0, SECONDS_MAX))
                .help("computation of a job (default: as long as its messages take in block placement)"),
        )
        .arg(
            Arg::new("messages")
                .long("messages")
                .value_name("MODEL")
                .value_parser(PossibleValuesParser::new(MODELS))
                .default_value("auto")
                .help(
                    "the time of messages: by SimGrid's smpirun, or by a model of links, which counts the heaviest link and \
                     the latencies; auto: SimGrid where it is installed",
                ),
        )
        .arg(real("bandwidth", 1.0, BANDWIDTH_MAX, "1.25e9").help("bytes per second of a link"))
        .arg(real("latency", 0.0, SECONDS_MAX, "1e-6").help("seconds of a link"))
        .arg(
            Arg::new("seed")
                .long("seed")
                .value_name("N")
                .value_parser(value_parser!(u64))
                .default_value("1")
                .help("the seed"),
        )
}

/// Returns the parser of a number within bounds.
fn within(least: f64, most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<f64>().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("it is no number from {least} to {most}"))
    }
}

/// Simulates what the words after `simulate-batch` ask for. The error is the text for the user.
pub fn simulate(words: impl Iterator<Item = OsString>) -> Result<Said, String> {
    let words = std::iter::once(OsString::from(NAME)).chain(words);
    let given = match command().try_get_matches_from(words) {
        Ok(given) => given,
        Err(error) if error.use_stderr() => {
            return Err(error.render().to_string().trim().trim_start_matches("error: ").to_owned());
        }
        Err(text) => return Ok(Said { text: format!("{}\n", text.render().to_string().trim_end()), warning: None }),
    };
    let number = |name: &str| given.get_one::<u32>(name).copied().unwrap_or(1);
    let real = |name: &str| given.get_one::<f64>(name).copied();
    let seed = given.get_one::<u64>("seed").copied().unwrap_or(1);
    let words = given.get_one::<String>("topology").map_or("", String::as_str);
    let topology = Topology::parse_words(words).map_err(|error| format!("--topology: {error}"))?;
    let (matrix, name) = match given.get_one::<PathBuf>("matrix") {
        Some(path) => {
            let refused =
                |error: &MatrixError| format!("--comm-matrix: '{}': {}", path.display(), placing::chain(error));
            let matrix = placing::matrix(path).map_err(|error| refused(&error))?;
            (matrix, path.display().to_string())
        }
        None => {
            let name = given.get_one::<String>("pattern").map_or("", String::as_str);
            let pattern = Pattern::named(name).unwrap_or(Pattern::Cg);
            (patterns::matrix(pattern, number("np"), seed), name.to_owned())
        }
    };
    let (ranks, hosts) = (matrix.ranks(), topology.places());
    if ranks == 0 || ranks > hosts || i64::from(ranks) > RANKS_MAX {
        return Err(format!(
            "{ranks} ranks do not fit: the network has {hosts} hosts with a rank each, and {RANKS_MAX} ranks are the most"
        ));
    }
    let probability = real("probability").unwrap_or_default();
    let faulty = match number("faulty") {
        faulty if faulty > hosts && given.value_source("faulty") == Some(ValueSource::CommandLine) => {
            return Err(format!(
                "--faulty: {faulty} hosts cannot fail: the network has {}",
                counted(hosts.into(), "host")
            ));
        }
        faulty => faulty.min(hosts),
    };
    let experiment = Experiment {
        topology,
        faulty,
        probability,
        batches: number("batches"),
        jobs: number("jobs"),
        compute_s: 0.0,
        rounds: 1.0,
        bandwidth: real("bandwidth").unwrap_or(BANDWIDTH_MAX),
        latency_s: real("latency").unwrap_or_default(),
        seed,
    };
    let model = given.get_one::<String>("messages").map_or("auto", String::as_str);
    let (results, model, warning) = simulated(&experiment, real("compute"), &matrix, model)?;
    Ok(Said { text: table(&experiment, &name, ranks, &model, results), warning })
}

/// Simulates all placements. Returns the name of the model of messages, and a warning if it is not the one that was meant.
fn simulated(
    experiment: &Experiment,
    compute_s: Option<f64>,
    matrix: &Matrix,
    model: &str,
) -> Result<(Results, String, Option<String>), String> {
    let found = if model == "links" { None } else { Some(simgrid::version()) };
    let (reason, warning) = match found {
        Some(Ok(version)) => {
            let mut simgrid = SimGrid::new(experiment, matrix);
            let results = match &mut simgrid {
                Ok(simgrid) => all(experiment, compute_s, matrix, &mut |place_of| simgrid.seconds(place_of)),
                Err(why) => Err(why.clone()),
            };
            match results {
                Ok(results) => return Ok((results, format!("{version} (SMPI)"), None)),
                Err(why) if model == "simgrid" => {
                    return Err(format!("--messages simgrid: {version} cannot simulate the messages: {why}"));
                }
                Err(why) => {
                    let warning =
                        format!("{version} cannot simulate the messages: {why}; all times are by the model of links");
                    (", as SimGrid failed".to_owned(), Some(warning))
                }
            }
        }
        Some(Err(why)) if model == "simgrid" => return Err(format!("--messages simgrid: {why}")),
        Some(Err(why)) => (format!(", as {why}"), None),
        None => (String::new(), None),
    };
    let by_links = &mut |place_of: &[u32]| Ok::<f64, Infallible>(messages_s(experiment, matrix, place_of));
    let results = all(experiment, compute_s, matrix, by_links).unwrap_or_else(|never| match never {});
    Ok((results, format!("the model of links{reason}"), warning))
}

/// Simulates all placements with one model of messages. Without `compute_s`, a job computes as long as its messages take in
/// block placement.
fn all<E>(
    experiment: &Experiment,
    compute_s: Option<f64>,
    matrix: &Matrix,
    messages_s: &mut dyn FnMut(&[u32]) -> Result<f64, E>,
) -> Result<Results, E> {
    let block: Vec<u32> = (0..matrix.ranks()).collect();
    let compute_s = compute_s.map_or_else(|| messages_s(&block), Ok)?;
    let experiment = Experiment { compute_s, ..experiment.clone() };
    Strategy::ALL.into_iter().map(|strategy| Ok((strategy, run(&experiment, matrix, strategy, messages_s)?))).collect()
}

/// Returns the text of the results.
fn table(experiment: &Experiment, name: &str, ranks: u32, model: &str, results: Results) -> String {
    let Experiment { batches, jobs, faulty, probability, topology, .. } = experiment;
    let mut text = format!(
        "{} of {}: {name}, {} on {}; {} may fail, each with probability {probability} during a job\n\
         time of messages: {model}\n\
         {:<22} {:>14} {:>10} {:>10}\n",
        counted((*batches).into(), "batch"),
        counted((*jobs).into(), "job"),
        counted(ranks.into(), "rank"),
        topology.text(),
        counted((*faulty).into(), "host"),
        "",
        "batch",
        "of block",
        "aborted"
    );
    let base = results.first().map_or(1.0, |(_, block)| block.batch_s);
    for (strategy, Simulated { batch_s, aborted, windows }) in results {
        let share = if base > 0.0 { batch_s / base * 100.0 } else { 100.0 };
        let note = match strategy {
            Strategy::Faults => {
                format!("  sound consecutive hosts in {windows} of {}", counted((*batches).into(), "batch"))
            }
            _ => String::new(),
        };
        // Writing to a string cannot fail.
        let _ =
            writeln!(text, "{:<22} {batch_s:>12.3} s {share:>8.1} % {:>8.2} %{note}", strategy.name(), aborted * 100.0);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates without SimGrid, which may be installed.
    fn said(words: &str) -> Result<String, String> {
        let words = format!("{words} --messages links");
        let said = simulate(words.split(' ').filter(|word| !word.is_empty()).map(OsString::from))?;
        assert_eq!(said.warning, None);
        Ok(said.text)
    }

    #[test]
    fn all_placements_are_simulated() {
        let text = said("--pattern halo3d -n 16 --topology torus:4x4x4 --faulty 4 --batches 2 --jobs 10").unwrap();
        assert_eq!(text.lines().nth(1), Some("time of messages: the model of links"), "{text}");
        let names: Vec<&str> = text.lines().skip(3).map(|line| line[..22].trim()).collect();
        assert_eq!(names, ["block", "random", "greedy", "topology", "topology and faults"], "{text}");
        assert_eq!(said("--pattern halo3d -n 16 --topology torus:4x4x4 --faulty 4 --batches 2 --jobs 10"), Ok(text));
        assert!(said("--help").unwrap().contains("--faulty"));
    }

    #[test]
    fn a_failure_of_a_model_ends_the_simulation() {
        let matrix = patterns::matrix(Pattern::Ring, 4, 1);
        let topology = Topology::torus(&[4, 4]).unwrap();
        let experiment = Experiment {
            topology,
            faulty: 0,
            probability: 0.0,
            batches: 1,
            jobs: 2,
            compute_s: 0.0,
            rounds: 1.0,
            bandwidth: 1e9,
            latency_s: 0.0,
            seed: 1,
        };
        let mut asked = 0;
        let mut model = |_: &[u32]| {
            asked += 1;
            if asked < 3 { Ok(2.0) } else { Err("no") }
        };
        assert_eq!(all(&experiment, None, &matrix, &mut model), Err("no"));
        assert_eq!(asked, 3);
        // Jobs of block placement compute as long as their messages take.
        let results = all(&experiment, None, &matrix, &mut |_: &[u32]| Ok::<f64, ()>(2.0)).unwrap();
        assert_eq!(results[0].1.batch_s, 8.0);
        let results = all(&experiment, Some(1.0), &matrix, &mut |_: &[u32]| Ok::<f64, ()>(2.0)).unwrap();
        assert_eq!(results[0].1.batch_s, 6.0);
    }

    #[test]
    fn wrong_words_are_refused() {
        assert!(said("--pattern board").unwrap_err().starts_with("invalid value 'board' for '--pattern <NAME>'"));
        assert_eq!(said("--topology ring:4").unwrap_err(), "--topology: 'ring:4' is no topology");
        let fit = "64 ranks do not fit: the network has 4 hosts with a rank each, and 4096 ranks are the most";
        assert_eq!(said("--topology torus:4 --pattern ring").unwrap_err(), fit);
        assert!(said("--probability x").unwrap_err().contains("it is no number from 0 to 0.99"));
    }

    #[test]
    fn values_that_cannot_be_simulated_are_refused() {
        let refused = |words: &str| said(words).unwrap_err();
        assert!(refused("--probability 2").contains("it is no number from 0 to 0.99"));
        assert!(refused("--probability NaN").contains("it is no number from 0 to 0.99"));
        assert!(refused("--bandwidth 0").contains("it is no number from 1 to 1000000000000000"));
        assert!(refused("--latency=-1").contains("it is no number from 0 to 1000000"));
        assert!(refused("--compute inf").contains("it is no number from 0 to 1000000"));
        let hosts = "--faulty: 17 hosts cannot fail: the network has 16 hosts";
        assert_eq!(refused("--topology torus:4x4 -n 4 --faulty 17"), hosts);
        // The default is for larger networks.
        assert!(said("--topology torus:4 -n 2 --batches 1 --jobs 1").unwrap().contains("4 hosts may fail"));
        let missing = "the communication matrix cannot be read: No such file or directory (os error 2)";
        assert_eq!(refused("--comm-matrix /nowhere"), format!("--comm-matrix: '/nowhere': {missing}"));
        let both = refused("--comm-matrix F -n 5");
        assert!(both.starts_with("the argument '--comm-matrix <FILE>' cannot be used with '--np <N>'"), "{both}");
        let both = refused("--pattern cg --comm-matrix F");
        assert!(both.contains("cannot be used with") && both.contains("--pattern"), "{both}");
    }
}
