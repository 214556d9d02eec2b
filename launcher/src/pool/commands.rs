//! The subcommands of `scela`, but for `scela run`.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nla::core::Resources;
use nla::sys::{self, Packets};

use super::message::{JobNumber, JobRefusal, NodeChange, Request, ToClient, ToController, packed, unpacked};
use super::start::Options;
use super::states::Found;
use super::status::{self, Parts, Selection};
use super::watch::Watch;
use super::{changes, directory, live, map};
use crate::cli;
use crate::cluster::hosts::expand;
use crate::comm;
use crate::forecast::batch;
use crate::plan::pool_name::{POOL_DEFAULT, check_pool_name};
use crate::refusal::Refusal;

/// The meaning of the words after `scela`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Subcommand {
    /// Prints this text.
    Text(String),
    /// A subcommand is missing: prints this help, as an error.
    Help(String),
    /// Starts a pool.
    Start(Options),
    /// Attaches this process to this job of a pool.
    Attach(String, JobNumber),
    /// Asks pools that run.
    Ask(Question),
    /// Runs a list of commands over a pool.
    Map(map::Options),
}

/// A question to pools that run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Question {
    /// The state of a pool; of all pools if none is named.
    Status {
        /// The pool.
        pool: Option<String>,
        /// As JSON.
        json: bool,
        /// The parts besides the pool itself.
        parts: Parts,
        /// The jobs and nodes to show.
        selection: Selection,
        /// Shown on a terminal until the user quits.
        is_live: bool,
    },
    /// Sends a signal to jobs of a pool, or to all of them.
    Kill {
        /// The pool.
        pool: String,
        /// The jobs; all if empty.
        jobs: Vec<JobNumber>,
        /// The signal.
        signal: i32,
    },
    /// Changes the nodes of a pool.
    Nodes {
        /// The pool.
        pool: String,
        /// The change.
        change: NodeChange,
        /// The nodes, as a host list.
        list: String,
    },
    /// Ends a pool and waits for that.
    Stop {
        /// The pool.
        pool: String,
        /// Whether the launchers of its jobs are killed.
        kills: bool,
    },
}

/// How long a controller may take to answer.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(10);
/// How long a command waits before it looks whether the controller is stopped.
pub(super) const LOOK_TIME: Duration = Duration::from_millis(200);
/// The most jobs that one command names.
const JOBS_MAX: usize = 1000;

/// The options of scela-run that name hosts, with their values and meanings.
const HOST_OPTIONS: [(&str, &str, &str); 3] = [
    ("hosts", "LIST", "the hosts: node[1-4]:8,node9"),
    ("hostfile", "FILE", "a file with the hosts"),
    ("exclude", "LIST", "hosts to leave out"),
];
/// Those that say how agents are started.
const LAUNCH_OPTIONS: [(&str, &str, &str); 8] = [
    ("bootstrap", "NAME", "start agents by ssh, slurm, lsf, sge, or exec:COMMAND"),
    ("launcher-exec", "PROGRAM", "run this in place of ssh or srun"),
    ("launch-agent", "COMMAND", "the command to run on the nodes as the agent"),
    ("batch", "N", "open at most N remote shells at a time"),
    ("start-timeout", "TIME", "how long agents may take to report"),
    ("connect-back", "ADDRESS", "the address or name by which nodes reach this host"),
    ("iface", "NAME", "the network interface for links: ib0"),
    ("port-range", "FIRST:LAST", "listen on these ports only"),
];

const AFTER_HELP: &str = "'scela run' is scela-run. 'scela run --pool PROGRAM' runs a job in a pool.";

/// Returns the commands as clap describes them.
pub fn command() -> Command {
    let pool = || Arg::new("pool").value_name("NAME").value_parser(pool_name).help("the pool (default: 'default')");
    let json = || Arg::new("json").long("json").action(ArgAction::SetTrue).help("print JSON");
    let every = "a pool (default: all pools of this user on this host)";
    let start =
        Command::new("start")
            .about("Starts a pool on this machine, on hosts, or on the nodes of an allocation")
            .arg(pool())
            .arg(
                at_least_one("slots", "N")
                    .help("how many ranks a node runs at a time (default: as the list of hosts says, else its cores)"),
            )
            .args(HOST_OPTIONS.iter().chain(&LAUNCH_OPTIONS).map(passed_on))
            .arg(
                Arg::new("topology").long("topology").value_name("NETWORK").value_parser(value_parser!(OsString)).help(
                    "the network between the hosts, so that jobs get near ones: as scela-run --topology reads it",
                ),
            )
            .arg(gres().help(
                "the devices of each node for which gres= names none: gpu:a100:4,fpga:1 \
                 (default in a Slurm job: the GPUs of --gpus-per-node)",
            ))
            .arg(
                Arg::new("idle")
                    .long("idle")
                    .value_name("TIME")
                    .value_parser(time)
                    .help("end the pool after TIME without a job: 90, 30s, 5m, 2h"),
            );
    let change = |name: &'static str, about| {
        let nodes = Arg::new("nodes").value_name("NODES").required(true).help("the nodes: node[1-4],node9");
        Command::new(name).about(about).arg(nodes).arg(pool())
    };
    let stop = Command::new("stop")
        .about("Ends a pool and its jobs, and waits until they have ended")
        .arg(pool())
        .arg(Arg::new("kill").long("kill").action(ArgAction::SetTrue).help("kill jobs instead of asking them to end"));
    let status = |name: &'static str, about| Command::new(name).about(about).arg(pool().help(every)).arg(json());
    let live = Arg::new("live")
        .long("live")
        .action(ArgAction::SetTrue)
        .conflicts_with("json")
        .help("show them until q is typed");
    let pool_command = Command::new("pool")
        .about("Starts, uses, shows and stops standing pools")
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(start)
        .subcommand(
            change("add", "Adds hosts to a pool that was started with --hosts")
                .arg(gres().help("the devices of each of these nodes: gpu:a100:4,fpga:1 (default: none)")),
        )
        .subcommand(change("drain", "Gives nodes no new jobs; jobs that run there go on"))
        .subcommand(change("resume", "Uses drained nodes again, and tries nodes that are down at once"))
        .subcommand(stop)
        .subcommand(status("status", "Shows pools"))
        .subcommand(map_command());
    let kill = Command::new("kill")
        .about("Sends a signal to jobs; TERM, INT and HUP withdraw those that wait")
        .arg(
            Arg::new("signal")
                .long("signal")
                .short('s')
                .value_name("SIGNAL")
                .value_parser(signal)
                .default_value("TERM")
                .help("TERM, INT and HUP end jobs; QUIT, USR1 and USR2 are passed on"),
        )
        .arg(in_pool())
        .arg(Arg::new("all").long("all").action(ArgAction::SetTrue).help("all jobs of the pool"))
        .arg(
            Arg::new("jobs")
                .value_name("JOB")
                .value_parser(job_number)
                .action(ArgAction::Append)
                .required_unless_present("all")
                .conflicts_with("all")
                .help("numbers of jobs, as 'scela jobs' shows them"),
        );
    let attach = Command::new("attach")
        .about("Shows the output of a job that was detached, passes signals on, and ends with the job")
        .arg(in_pool())
        .arg(
            Arg::new("job")
                .value_name("JOB")
                .required(true)
                .value_parser(job_number)
                .help("the number that --detach has printed"),
        );
    Command::new("scela")
        .about("Runs parallel programs, and keeps pools for many of them.")
        .version(env!("CARGO_PKG_VERSION"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .after_help(AFTER_HELP)
        .subcommand(Command::new("run").about("Runs a job: the same as scela-run").disable_help_flag(true))
        .subcommand(pool_command)
        .subcommand(select(status("jobs", "Shows the jobs of pools")))
        .subcommand(select(status("status", "Shows pools, their nodes and their jobs")).arg(live))
        .subcommand(kill)
        .subcommand(attach)
        .subcommand(comm::command())
        .subcommand(batch::command())
}

/// Parses the words after `scela`, which do not begin with `run`. The error is the text for the user.
pub fn parse(words: Vec<OsString>) -> Result<Subcommand, String> {
    // clap has no long options with one dash.
    let is_map = words.first().is_some_and(|word| word == "pool") && words.get(1).is_some_and(|word| word == "map");
    let word = |word: OsString| if is_map && word == "-np" { "--np".into() } else { word };
    let words = std::iter::once(OsString::from("scela")).chain(words.into_iter().map(word));
    let matches = match command().try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            return Ok(Subcommand::Help(error.render().to_string().trim_end().to_owned()));
        }
        Err(error) if error.use_stderr() => {
            let text = error.render().to_string();
            return Err(text.trim().trim_start_matches("error: ").to_owned());
        }
        Err(text) => return Ok(Subcommand::Text(format!("{}\n", text.render().to_string().trim_end()))),
    };
    Ok(match matches.subcommand() {
        Some(("pool", pool)) => match pool.subcommand() {
            Some(("start", given)) => Subcommand::Start(Options {
                name: name(given, "pool"),
                slots: given.get_one("slots").copied(),
                idle: given.get_one("idle").copied(),
                hosts: passed_words(given, &HOST_OPTIONS),
                launch: passed_words(given, &LAUNCH_OPTIONS),
                topology: given.get_one::<OsString>("topology").cloned(),
                gres: devices(given),
            }),
            Some(("stop", given)) => {
                Subcommand::Ask(Question::Stop { pool: name(given, "pool"), kills: given.get_flag("kill") })
            }
            Some(("map", given)) => Subcommand::Map(map_options(given)),
            Some(("status", given)) => Subcommand::Ask(status_question(given, Parts::default())),
            Some((change, given)) => Subcommand::Ask(Question::Nodes {
                pool: name(given, "pool"),
                change: match change {
                    "add" => NodeChange::Add { gres: devices(given) },
                    "drain" => NodeChange::Drain,
                    _ => NodeChange::Resume,
                },
                list: given.get_one::<String>("nodes").cloned().unwrap_or_default(),
            }),
            None => Subcommand::Text(String::new()),
        },
        Some(("attach", given)) => {
            Subcommand::Attach(name(given, "in"), given.get_one("job").copied().unwrap_or_default())
        }
        Some(("kill", given)) => Subcommand::Ask(Question::Kill {
            pool: name(given, "in"),
            jobs: match given.get_many("jobs").into_iter().flatten().copied().collect::<Vec<JobNumber>>() {
                jobs if jobs.len() > JOBS_MAX => return Err(format!("name at most {JOBS_MAX} jobs, or write --all")),
                jobs => jobs,
            },
            signal: given.get_one("signal").copied().unwrap_or(Signal::SIGTERM as i32),
        }),
        Some((name, given)) => Subcommand::Ask(status_question(given, Parts { jobs: true, nodes: name == "status" })),
        None => Subcommand::Text(String::new()),
    })
}

/// Describes an option that is passed on to scela-run.
fn passed_on((name, value, help): &(&'static str, &'static str, &'static str)) -> Arg {
    let arg = Arg::new(*name).long(*name).help(*help);
    if *name == "hostfile" {
        return arg.short('f').value_name(*value).value_parser(value_parser!(OsString));
    }
    arg.value_name(*value).value_parser(value_parser!(OsString))
}

/// Returns the words of such options, as scela-run reads them.
fn passed_words(given: &ArgMatches, options: &[(&'static str, &'static str, &'static str)]) -> Vec<OsString> {
    let words = options
        .iter()
        .filter_map(|(name, ..)| Some([format!("--{name}").into(), given.get_one::<OsString>(name)?.clone()]));
    words.flatten().collect()
}

const MAP_AFTER_HELP: &str = "\
Each line of FILE is run by 'sh -c' as one job. Blank lines, and lines that begin with #, are skipped.
Outputs are printed whole, in the order of the list.

Exit codes: 0 if all commands have succeeded, 1 to 100 the number of those that have failed, 101 for
more; 251 if nothing was run, 252 if the pool has ended, 128+n after signal n, 1 if the output or the
journal cannot be written";

fn map_command() -> Command {
    let number = |name: &'static str, most: u32| {
        Arg::new(name).long(name).value_name("N").value_parser(value_parser!(u32).range(..=i64::from(most)))
    };
    let flag = |name: &'static str| Arg::new(name).long(name).action(ArgAction::SetTrue);
    let path = |name: &'static str| Arg::new(name).value_name("FILE").value_parser(value_parser!(PathBuf));
    Command::new("map")
        .about("Runs a list of commands over a pool, as many at a time as it has slots for")
        .after_help(MAP_AFTER_HELP)
        .arg(path("list").required(true).help("the commands, one on each line; - is standard input"))
        .arg(in_pool())
        .arg(at_least_one("np", "N").help("ranks of each command (default: 1); also -np"))
        .arg(
            at_least_one("jobs", "N")
                .short('j')
                .help("commands that run at a time (default: as the pool has slots for)"),
        )
        .arg(flag("unordered").help("print outputs in the order in which commands end"))
        .arg(number("retries", map::RETRIES_MAX).help("run a command that fails up to N times again (default: 0)"))
        .arg(flag("halt").help("start no more commands once one has failed"))
        .arg(flag("progress").help("report progress also if standard error is not a terminal"))
        .arg(path("journal").long("journal").help("write a row for each command that has ended to FILE"))
        .arg(flag("resume").requires("journal").help("skip commands that have succeeded by the journal"))
}

fn map_options(given: &ArgMatches) -> map::Options {
    map::Options {
        pool: name(given, "in"),
        list: given.get_one::<PathBuf>("list").cloned().unwrap_or_default(),
        ranks: given.get_one("np").copied().unwrap_or(1),
        at_once: given.get_one("jobs").copied(),
        retries: given.get_one("retries").copied().unwrap_or(0),
        unordered: given.get_flag("unordered"),
        halts: given.get_flag("halt"),
        progress: given.get_flag("progress"),
        journal: given.get_one::<PathBuf>("journal").cloned(),
        resumes: given.get_flag("resume"),
    }
}

/// Adds the options that select jobs and nodes.
fn select(command: Command) -> Command {
    let option = |name: &'static str, value| Arg::new(name).long(name).value_name(value).value_delimiter(',');
    let nodes = Arg::new("nodes").long("nodes").value_name("NODES").value_parser(node_names);
    let state = option("state", "STATE").value_parser(status::STATES);
    command
        .arg(option("job", "JOB").value_parser(job_number).help("only these jobs, and their nodes"))
        .arg(nodes.help("only these nodes, and their jobs: node[1-4]"))
        .arg(state.help("only jobs and nodes in these states"))
        .arg(option("user", "USER").value_parser(no_user).hide(true))
}

/// The option for a number of at least 1.
fn at_least_one(name: &'static str, value: &'static str) -> Arg {
    let parser = value_parser!(u32).range(1..=i64::from(nla::core::limits::RANKS_MAX));
    Arg::new(name).long(name).value_name(value).value_parser(parser)
}

/// The option for the pool of commands whose other words are no pools.
fn in_pool() -> Arg {
    let help = "the pool (default: 'default')";
    Arg::new("in").long("pool").value_name("NAME").value_parser(pool_name).help(help)
}

fn status_question(given: &ArgMatches, parts: Parts) -> Question {
    let selects = parts.jobs || parts.nodes;
    Question::Status {
        pool: given.get_one::<String>("pool").cloned(),
        json: given.get_flag("json"),
        parts,
        selection: match selects {
            true => Selection {
                nodes: given.get_one::<Vec<String>>("nodes").cloned().unwrap_or_default(),
                states: given.get_many("state").into_iter().flatten().cloned().collect(),
                jobs: given.get_many("job").into_iter().flatten().copied().collect(),
            },
            false => Selection::default(),
        },
        is_live: parts.nodes && given.get_flag("live"),
    }
}

fn name(given: &ArgMatches, id: &str) -> String {
    given.get_one::<String>(id).cloned().unwrap_or_else(|| POOL_DEFAULT.to_owned())
}

fn pool_name(text: &str) -> Result<String, String> {
    check_pool_name(text).map_err(|refusal| refusal.hint().to_owned())?;
    Ok(text.to_owned())
}

fn job_number(text: &str) -> Result<JobNumber, String> {
    text.parse().map_err(|_| "a job has a number; 'scela jobs' shows it".to_owned())
}

/// Explains that jobs are not selected by their user.
fn no_user(_: &str) -> Result<String, String> {
    Err("all jobs of a pool belong to one user: leave the option out".to_owned())
}

/// Expands a list of nodes.
fn node_names(text: &str) -> Result<Vec<String>, String> {
    expand(text.as_bytes()).map_err(|error| error.problem().to_string())
}

/// The option for the devices of nodes.
fn gres() -> Arg {
    let parse = |text: &str| text.parse::<Resources>().map_err(|error| error.to_string());
    Arg::new("gres").long("gres").value_name("DEVICES").value_parser(parse)
}

fn devices(given: &ArgMatches) -> Resources {
    given.get_one("gres").cloned().unwrap_or_default()
}

fn time(text: &str) -> Result<Duration, String> {
    cli::time(text).map_err(|refusal| refusal.to_string())
}

/// Parses a signal that has a meaning for a job: `TERM`, `SIGTERM` or `15`.
fn signal(text: &str) -> Result<i32, String> {
    let known = text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    let upper = text.to_ascii_uppercase();
    let named = || Signal::from_str(&format!("SIG{}", upper.strip_prefix("SIG").unwrap_or(&upper))).ok();
    let signal = known.or_else(named).map(|signal| signal as i32);
    let fits = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];
    signal.filter(|signal| fits.iter().any(|fit| *fit as i32 == *signal)).ok_or_else(|| {
        "use TERM, INT, HUP, QUIT, USR1 or USR2; a job ends its ranks with KILL after its grace".to_owned()
    })
}

/// The answer to a question.
#[derive(Default, Debug)]
pub struct Answer {
    /// The text for the user.
    pub text: String,
    /// Why a part of the answer is missing.
    pub refusals: Vec<Refusal>,
    /// The signal that has interrupted the command.
    pub interrupted: Option<i32>,
}

/// Asks pools.
pub fn ask(question: &Question) -> Result<Answer, Refusal> {
    let done = match question {
        Question::Status { pool, selection, is_live: true, .. } => live::run(|| Found::of(pool.as_deref(), selection)),
        Question::Status { pool, json, parts, selection, is_live: false } => {
            return states(pool.as_deref(), *json, *parts, selection);
        }
        Question::Kill { pool, jobs, signal } => kill(pool, jobs, *signal),
        Question::Nodes { pool, change, list } => {
            let interrupted = changes::change_nodes(pool, change, list)?;
            return Ok(Answer { interrupted, ..Answer::default() });
        }
        Question::Stop { pool, kills } => stop(pool, *kills),
    };
    done.map(|()| Answer::default())
}

/// Shows the states of a pool, or of all pools.
fn states(pool: Option<&str>, json: bool, parts: Parts, selection: &Selection) -> Result<Answer, Refusal> {
    let Found { reports, mut refused, unknown } = Found::of(pool, selection)?;
    let text = match json {
        true => status::json(&reports, parts),
        false if reports.is_empty() && !refused.is_empty() => String::new(),
        false => status::text(&reports, parts, selection),
    };
    refused.extend(unknown);
    Ok(Answer { text, refusals: refused, interrupted: None })
}

/// Sends a signal to jobs.
fn kill(pool: &str, jobs: &[JobNumber], signal: i32) -> Result<(), Refusal> {
    let controller = asked(pool, &ToController::Signal(jobs.to_vec(), signal))?;
    match answer(&controller, pool)? {
        Some(ToClient::Unknown(unknown)) if unknown.is_empty() => Ok(()),
        Some(ToClient::Unknown(unknown)) => {
            let names: Vec<String> = unknown.iter().map(ToString::to_string).collect();
            let text = format!("there is no job {} in the pool '{pool}'", names.join(", "));
            Err(Refusal::new(text, "'scela jobs' lists those that wait or run").of_system())
        }
        _ => Err(broken(pool, &"it gave no answer")),
    }
}

/// Stops a pool. Returns when it has ended.
fn stop(pool: &str, kills: bool) -> Result<(), Refusal> {
    let controller = asked(pool, &ToController::Stop { kills })?;
    let answered = answer(&controller, pool);
    // A pool that ends at this time gives no answer, or resets the connection.
    if matches!(answered, Ok(Some(_))) || directory::connect(pool).is_err() {
        // It has accepted, so it may take its time.
        let mut watch = Watch::new(pool, "this command waits");
        watch.on_answer();
        loop {
            watch.wait(&controller, "scela");
            if !matches!(controller.receive(true), Ok(Some(_))) {
                return Ok(());
            }
        }
    }
    answered?;
    Err(broken(pool, &"it gave no answer; try again"))
}

/// Sends a question to a pool. A controller that is stopped gets none: it would answer it later.
pub(super) fn asked(pool: &str, question: &ToController) -> Result<Packets, Refusal> {
    let controller = directory::connect(pool)?;
    check_runs(pool)?;
    controller.send(&packed(&Request::of(question)), &[], true).map_err(|error| broken(pool, &error))?;
    Ok(controller)
}

/// Waits for the next message of the controller. Returns `None` at the end of the connection.
pub(super) fn answer(controller: &Packets, pool: &str) -> Result<Option<ToClient>, Refusal> {
    wait(controller, pool, Some(ANSWER_TIME))?;
    let packet = controller.receive(true).map_err(|error| broken(pool, &error))?;
    match packet.map(|packet| unpacked(&packet)).transpose().map_err(|error| broken(pool, &error))? {
        Some(ToClient::Refused(JobRefusal::OtherVersion(version))) => {
            Err(broken(pool, &format!("another version of this program, {version}, has started it")))
        }
        message => Ok(message),
    }
}

/// Waits for an answer, or the end of the connection. Fails at once if the controller is stopped.
pub(super) fn wait(controller: &Packets, pool: &str, limit: Option<Duration>) -> Result<(), Refusal> {
    let began = Instant::now();
    let pause = PollTimeout::try_from(LOOK_TIME).unwrap_or(PollTimeout::MAX);
    while poll(&mut [PollFd::new(controller.as_fd(), PollFlags::POLLIN)], pause) == Ok(0) {
        check_runs(pool)?;
        if limit.is_some_and(|limit| began.elapsed() >= limit) {
            return Err(broken(pool, &format!("it has not answered for {} s", began.elapsed().as_secs())));
        }
    }
    Ok(())
}

/// Fails if the controller of a pool is stopped.
pub(super) fn check_runs(pool: &str) -> Result<(), Refusal> {
    let stopped = directory::controller(pool).filter(|pid| sys::process_state(*pid) == Some(b'T'));
    stopped.map_or(Ok(()), |pid| {
        let text = format!("the pool '{pool}' does not answer: its controller, process {pid}, is stopped");
        Err(Refusal::new(text, format!("'kill -CONT {pid}' continues it")).of_system())
    })
}

pub(super) fn broken(pool: &str, why: &dyn std::fmt::Display) -> Refusal {
    Refusal::new(format!("the pool '{pool}' cannot be asked: {why}"), "").of_system()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Subcommand, String> {
        parse(line.split_ascii_whitespace().map(Into::into).collect())
    }

    #[test]
    fn clap_accepts_the_description() {
        command().debug_assert();
    }

    #[test]
    fn commands_are_understood() {
        let start = |name: &str, slots, idle| {
            let (hosts, launch) = (Vec::new(), Vec::new());
            let (name, gres) = (name.to_owned(), Resources::NONE);
            Ok(Subcommand::Start(Options { name, slots, idle, hosts, launch, topology: None, gres }))
        };
        assert_eq!(parsed("pool start"), start("default", None, None));
        let idle = Some(Duration::from_secs(300));
        assert_eq!(parsed("pool start night --slots 8 --idle 5m"), start("night", Some(8), idle));
        let stop = |kills| Ok(Subcommand::Ask(Question::Stop { pool: "default".to_owned(), kills }));
        assert_eq!([parsed("pool stop"), parsed("pool stop --kill")], [stop(false), stop(true)]);
        let status = |pool: Option<&str>, json, jobs, nodes| {
            let (parts, pool) = (Parts { jobs, nodes }, pool.map(str::to_owned));
            let selection = Selection::default();
            Ok(Subcommand::Ask(Question::Status { pool, json, parts, selection, is_live: false }))
        };
        assert_eq!(parsed("pool status a"), status(Some("a"), false, false, false));
        assert_eq!(parsed("jobs --json"), status(None, true, true, false));
        assert_eq!(parsed("status"), status(None, false, true, true));
        let line = "jobs --nodes n[1-2],n4 --state runs,waits --job 3";
        let Ok(Subcommand::Ask(Question::Status { selection, .. })) = parsed(line) else { panic!() };
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let (nodes, states) = (words(&["n1", "n2", "n4"]), words(&["runs", "waits"]));
        assert_eq!(selection, Selection { nodes, states, jobs: vec![3] });
        let line = "pool start --hosts n[1-2] -f list --iface ib0 --topology torus:4x4x4 --gres gpu:2@1+3";
        let Ok(Subcommand::Start(options)) = parsed(line) else { panic!() };
        assert_eq!((options.topology, options.gres.to_string()), (Some("torus:4x4x4".into()), "gpu:2@1+3".to_owned()));
        let Ok(Subcommand::Ask(Question::Nodes { change, .. })) = parsed("pool add n3 --gres fpga") else { panic!() };
        assert_eq!(change, NodeChange::Add { gres: "fpga:1".parse().unwrap() });
        assert!(
            parsed("pool start --gres gpu:0").unwrap_err().contains("'0' is not a number of devices from 1 to 1024")
        );
        assert_eq!(options.hosts, ["--hosts", "n[1-2]", "--hostfile", "list"]);
        assert_eq!(options.launch, ["--iface", "ib0"]);
        let kill = |jobs: &[JobNumber], signal| {
            Ok(Subcommand::Ask(Question::Kill { pool: "default".to_owned(), jobs: jobs.to_vec(), signal }))
        };
        assert_eq!(parsed("kill 1 2"), kill(&[1, 2], 15));
        assert_eq!(parsed("kill --all --signal sigint"), kill(&[], 2));
        assert_eq!(parsed("kill -s 10 3"), kill(&[3], 10));
        let plain = map::Options {
            pool: "default".to_owned(),
            list: "-".into(),
            ranks: 1,
            at_once: None,
            retries: 0,
            unordered: false,
            halts: false,
            progress: false,
            journal: None,
            resumes: false,
        };
        assert_eq!(parsed("pool map -"), Ok(Subcommand::Map(plain.clone())));
        let line =
            "pool map --pool night -np 4 -j 2 --unordered --retries 3 --halt --progress --journal j --resume list";
        let all = map::Options {
            pool: "night".to_owned(),
            list: "list".into(),
            ranks: 4,
            at_once: Some(2),
            retries: 3,
            unordered: true,
            halts: true,
            progress: true,
            journal: Some("j".into()),
            resumes: true,
        };
        assert_eq!(parsed(line), Ok(Subcommand::Map(all)));
        assert_eq!(parsed("pool map --np 2 -"), Ok(Subcommand::Map(map::Options { ranks: 2, ..plain })));
    }

    #[test]
    fn mistakes_are_explained() {
        for (line, words) in [
            ("", "Usage: scela"),
            ("pool", "Usage: scela pool"),
            ("comm", "Usage: scela comm"),
            ("attach abc", "'abc' for '<JOB>': a job has a number; 'scela jobs' shows it"),
            ("jobs --user root", "all jobs of a pool belong to one user: leave the option out"),
            ("bool", "unrecognized subcommand 'bool'"),
            ("kill", "required"),
            ("kill --all 1", "cannot be used with"),
            ("kill -s KILL 1", "use TERM, INT, HUP"),
            ("kill x", "invalid value 'x' for '[JOB]...': a job has a number"),
            ("pool start -- -a", "beginning with a letter or digit"),
            ("pool start --slots 0", "invalid value '0'"),
            ("pool start --idle 0", "invalid value '0'"),
            ("pool map", "<FILE>"),
            ("pool map -j 0 a", "invalid value '0'"),
            ("pool map --np 0 a", "invalid value '0'"),
            ("pool map --retries 1001 a", "invalid value '1001'"),
            ("pool map --resume a", "--journal <FILE>"),
        ] {
            let text = match parsed(line) {
                Ok(Subcommand::Text(text) | Subcommand::Help(text)) | Err(text) => text,
                Ok(other) => panic!("{line}: {other:?}"),
            };
            assert!(text.contains(words), "{line}: {text}");
        }
    }
}
