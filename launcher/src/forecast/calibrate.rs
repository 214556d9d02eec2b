//! `--calibrate`: measures the constants of the [`crate::forecast::model`] on the user's own hosts.
//!
//! It runs ordinary sessions and takes the times from their phases: sessions on one host with one rank and with many,
//! and sessions on all hosts at once. The ranks print the boot ID of their kernel, which shows whether the hosts share
//! the cores of this machine.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nla::core::{PhaseTimes, TimedPhase};
use nla::link::Clock;
use nla::sys;
use thiserror::Error;

use crate::cluster::hosts::fold;
use crate::cluster::node_list::{Node, NodeList};
use crate::cluster::placement::MapBy;
use crate::exit::{self, EarlyEnd};
use crate::forecast::board;
use crate::forecast::model::{self, Constants, GroupTime, Samples};
use crate::plan::launch::{AgentHosts, find_nodes, prepare_remote};
use crate::plan::machine::Machine;
use crate::plan::remote_launch::Recommended;
use crate::plan::request::{Command, LaunchShape, Options, Program, Request, StdinTo, TypedAt};
use crate::refusal::Refusal;
use crate::run::front::Front;
use crate::run::report::Reporter;
use crate::run::session::{self, Ended, Planned, Secrets};

/// The number of sessions on a single host, in addition to the one with many ranks.
const SINGLE_SESSIONS: usize = 3;
/// The number of ranks of the session that measures the start of a rank.
const RANKS: u32 = 32;
/// The most remote shells that are opened at a time.
const SHELLS_MAX: usize = 128;
/// The file with the kernel's boot ID.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// The list names no other hosts.
    #[error("--calibrate measures remote shells to other hosts, and the list names none")]
    NoHosts,
    /// The nodes are not known.
    #[error("{}", .0.with_hint())]
    Nodes(#[from] Refusal),
    /// The properties of this machine cannot be read.
    #[error("the job could not be launched: {0}")]
    Machine(io::Error),
    /// No directory for the file of constants is known.
    #[error("the measured constants cannot be stored: neither XDG_CACHE_HOME nor HOME is set")]
    NoDirectory,
    /// The constants cannot be written.
    #[error("the measured constants cannot be written to '{}': {error}", path.display().to_string().escape_debug())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the last system call.
        error: io::Error,
    },
    /// A session could not be started.
    #[error("{0}")]
    Session(String),
    /// A session failed and has reported why.
    #[error("nothing was measured, because {}", why_failed(*code))]
    Failed {
        /// The session's exit code.
        code: u8,
    },
}

/// Returns why a session with this exit code has ended.
fn why_failed(code: u8) -> &'static str {
    match code {
        130 => "Ctrl-C interrupted it",
        _ => "a session failed; --exclude leaves hosts out",
    }
}

impl CalibrateError {
    /// Returns how scela-run ends after this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::NoHosts => EarlyEnd::Usage.code(),
            Self::Nodes(error) => error.early_end().code(),
            Self::NoDirectory | Self::Write { .. } | Self::Session(_) | Self::Machine(_) => {
                EarlyEnd::NotLaunched.code()
            }
            Self::Failed { code } => *code,
        }
    }
}

/// Measures on the hosts of `options`, and stores the constants in the user's cache directory. Returns the text
/// to print.
pub fn measure(options: Options) -> Result<String, CalibrateError> {
    let path = model::store::path(|name| std::env::var_os(name)).ok_or(CalibrateError::NoDirectory)?;
    let machine = Machine::of_process(0).map_err(CalibrateError::Machine)?;
    let (mut remarks, cores) = (Vec::new(), machine.cores);
    let request = Request { options, commands: Vec::new() };
    let nodes = find_nodes(&request, &machine, &mut remarks)?;
    Reporter::of(&request.options).notes(&remarks);
    // Each measurement is a session with its own secrets.
    let run = |request: Request, nodes: NodeList| {
        let (session, secrets) = Secrets::random().map_err(|error| error.to_string())?;
        let clock = Clock::start();
        let machine = Machine { session, ..machine.clone() };
        let recommend = |nodes, ppn| Recommended::from(&model::recommend(nodes, ppn, &Constants::default()));
        let (plan, remote) =
            prepare_remote(request, machine, nodes, None, &recommend).map_err(|error| error.with_hint())?;
        let planned = Planned { plan, agent_hosts: AgentHosts::Remote(Box::new(remote)), session, secrets };
        session::run(planned, sys::ForkedGuardians::default(), clock, &Front::Own, false)
            .map_err(|error| format!("the job could not be launched: {error}"))
    };
    calibrate(&request.options, &nodes, cores, &path, &run)
}

/// Runs a session on some of the hosts.
pub type RunSession<'a> = &'a dyn Fn(Request, NodeList) -> Result<Ended, String>;

/// Measures on the hosts of `node_list`, and stores the constants in the file at `path`. Returns the text to print.
/// `cores` is the number of cores of this machine.
pub fn calibrate(
    options: &Options,
    node_list: &NodeList,
    cores: u32,
    path: &Path,
    run: RunSession<'_>,
) -> Result<String, CalibrateError> {
    let nodes = node_list.nodes();
    if nodes.is_empty() {
        return Err(CalibrateError::NoHosts);
    }
    let write = |error| CalibrateError::Write { path: path.to_owned(), error };
    let boot_ids = BootIdFile::beside(path).map_err(write)?;
    let measurements = Measurements { options, node_list, boot_ids: &boot_ids, run };
    let board = board::measure().ok();
    let mut samples = Samples { board, cores, shells_max: options.launch.batch, ..Samples::default() };
    let (mut join, mut spawn) = (Duration::MAX, Duration::MAX);
    for number in 0..SINGLE_SESSIONS {
        let times = measurements.run(&[number % nodes.len()], 1)?;
        samples.single.push(times.bootstrap);
        (join, spawn) = (join.min(times.join), spawn.min(times.spawn));
    }
    let ranks = nodes[0].max_slots.map_or(RANKS, |most| most.min(RANKS));
    if ranks > 1 {
        let times = measurements.run(&[0], ranks)?;
        samples.single.push(times.bootstrap);
        samples.starts.push(GroupTime { count: ranks - 1, took: times.spawn.saturating_sub(spawn) });
    }
    for count in group_sizes(nodes.len(), cores) {
        let times = measurements.run(&(0..count).collect::<Vec<_>>(), 1)?;
        samples.concurrent.push(GroupTime { count: count as u32, took: times.bootstrap });
        samples.joins.push(GroupTime { count: count as u32 - 1, took: times.join.saturating_sub(join) });
    }
    samples.are_shared = boot_ids.are_of_this_kernel();
    let constants = model::calibrate(&samples);
    model::store::write(path, &constants).map_err(write)?;
    Ok(summary(nodes, &samples, &constants, path))
}

/// Returns the numbers of remote shells that are opened at once: one for each host, and before that half as many if
/// that is more than the cores.
fn group_sizes(hosts: usize, cores: u32) -> Vec<usize> {
    let all = hosts.min(SHELLS_MAX);
    let sizes = [all / 2, all];
    sizes.into_iter().filter(|size| *size > 1 && (*size == all || *size > cores as usize)).collect()
}

/// Runs the sessions of a calibration.
struct Measurements<'a> {
    options: &'a Options,
    node_list: &'a NodeList,
    boot_ids: &'a BootIdFile,
    run: RunSession<'a>,
}

/// The durations of one session's phases, each for the slowest agent.
struct SessionTimes {
    /// The start of an agent.
    bootstrap: Duration,
    /// The joining of the tree.
    join: Duration,
    /// The start of an agent's ranks.
    spawn: Duration,
}

impl Measurements<'_> {
    /// Runs a session with `ppn` ranks on each of the hosts with these indices.
    fn run(&self, hosts: &[usize], ppn: u32) -> Result<SessionTimes, CalibrateError> {
        let chosen: BTreeSet<usize> = hosts.iter().copied().collect();
        let others = (0..self.node_list.nodes().len()).filter(|host| !chosen.contains(host)).collect();
        let request = self.request(chosen.len() as u32, ppn);
        let ended = (self.run)(request, self.node_list.without(&others)).map_err(CalibrateError::Session)?;
        if ended.code != exit::SUCCESS {
            return Err(CalibrateError::Failed { code: ended.code });
        }
        let longest = |times: Option<&PhaseTimes>| times.and_then(|times| times.took.max()).unwrap_or_default();
        Ok(SessionTimes {
            bootstrap: longest(Some(ended.phases.arrivals.bootstrap())),
            join: longest(Some(ended.phases.arrivals.join())),
            spawn: longest(ended.timing.phases.get(&TimedPhase::Spawn)),
        })
    }

    /// Returns the request for a session. It keeps the typed options about hosts and about starting agents there.
    fn request(&self, hosts: u32, ppn: u32) -> Request {
        let mut options = Options {
            hosts: self.options.hosts.clone(),
            launch: self.options.launch.clone(),
            ppn: Some(ppn),
            agents_per_node: Some(1),
            outfile_pattern: Some(self.boot_ids.path.clone().into_os_string()),
            stdin: Some(StdinTo::None),
            verbose: self.options.verbose,
            quiet: self.options.verbose == 0,
            label: self.options.label.clone(),
            ..Options::default()
        };
        (options.hosts.map_by, options.hosts.rankmap) = (MapBy::Slot, None);
        options.launch.shape = LaunchShape::Flat;
        options.launch.batch = options.launch.batch.or(Some(hosts));
        (options.launch.spares, options.launch.min_nodes) = (0, None);
        let command = Command {
            nprocs: Some(hosts * ppn),
            program: Program::Named("cat".into()),
            args: vec![BOOT_ID.into()],
            wdir: Some("/".into()),
            path: None,
            env: Vec::new(),
            env_policy: None,
            place: TypedAt::CommandLine,
        };
        Request { options, commands: vec![command] }
    }
}

/// The file to which the ranks write their boot IDs. Dropping it removes the file, and those directories created for it
/// that are empty.
struct BootIdFile {
    path: PathBuf,
    /// The created directories, innermost first.
    directories: Vec<PathBuf>,
}

impl BootIdFile {
    /// Creates the file in the directory of the constants, which checks that the constants can be written there.
    fn beside(path: &Path) -> io::Result<Self> {
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        let directories: Vec<PathBuf> = parents.take_while(|parent| !parent.exists()).map(Path::to_owned).collect();
        // There is no file yet: dropping it removes the directories only.
        let mut file = Self { path: PathBuf::new(), directories };
        if let Some(directory) = path.parent() {
            sys::Below::make(directory)?;
        }
        file.path = sys::create_beside(&path.with_extension("kernels"))?;
        Ok(file)
    }

    /// Returns whether all ranks wrote the boot ID of this machine's kernel.
    fn are_of_this_kernel(&self) -> bool {
        let own = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let theirs = fs::read_to_string(&self.path).unwrap_or_default();
        !own.is_empty() && !theirs.is_empty() && theirs.lines().all(|line| line == own.trim_end())
    }
}

impl Drop for BootIdFile {
    fn drop(&mut self) {
        // Errors are ignored: a file that stays is harmless.
        let _ = fs::remove_file(&self.path);
        self.directories.iter().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

/// Returns the text to print: the measured times, the constants and the file.
fn summary(nodes: &[Node], samples: &Samples, constants: &Constants, path: &Path) -> String {
    let Constants { tc, tssh, trecv, tclient, tlogin, cores, shared_cores, shells_max, board, measured: _ } = constants;
    let seconds = |time: &Duration| format!("{:.6} s", time.as_secs_f64());
    let mut text = format!("measured on {}:\n", fold(nodes.iter().map(|node| node.name.as_str())));
    let mut line = |name: String, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<44} {value:>14}");
    };
    samples.single.iter().for_each(|took| line("a single remote shell".to_owned(), seconds(took)));
    for GroupTime { count, took } in &samples.concurrent {
        line(format!("{count} remote shells at once"), seconds(took));
    }
    line("Tc, wait of a remote shell".to_owned(), seconds(tc));
    line("Tssh, its processor time on this host".to_owned(), seconds(tssh));
    line("Tlogin, its processor time on the other host".to_owned(), seconds(tlogin));
    line("Trecv, to accept an agent".to_owned(), seconds(trecv));
    line("Tclient, to start a rank".to_owned(), seconds(tclient));
    line("cores for the remote shells of one host".to_owned(), cores.to_string());
    if let Some(shared) = shared_cores {
        line("cores that all hosts share".to_owned(), shared.to_string());
    }
    line("remote shells at a time, at most".to_owned(), shells_max.to_string());
    for (name, ps) in [
        ("a byte of entries: to receive it", board.byte_received_ps),
        ("to send it to one child", board.byte_sent_ps),
        ("to hash it", board.byte_hashed_ps),
        ("to copy it", board.byte_copied_ps),
        ("to pack it", board.byte_packed_ps),
        ("to unpack it", board.byte_unpacked_ps),
    ] {
        line(name.to_owned(), format!("{:.2} ns", ps as f64 / 1000.0));
    }
    line("an entry: to merge, encode and index it".to_owned(), format!("{} ns", board.entry_merged));
    let _ = writeln!(text, "written to '{}'", path.display().to_string().escape_debug());
    text
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use nla::bootstrap::ArrivalTimes;
    use nla::core::{AgentId, Timing};

    use super::*;
    use crate::run::timing::Phases;

    fn ms(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    fn node_list(hosts: usize) -> NodeList {
        let nodes = (1..=hosts).map(|host| Node::named(format!("n{host}"))).collect();
        NodeList::Named { nodes, allocation: None }
    }

    /// Returns the end of a session on hosts that share one core with this machine. Each remote shell takes 100 ms of
    /// work; in addition 20 ms pass in waiting.
    fn session(request: &Request, node_list: &NodeList) -> Ended {
        let (hosts, ranks) = (node_list.nodes().len() as u32, request.commands[0].nprocs.unwrap());
        let mut arrivals = ArrivalTimes::from(ms(1));
        let mut spawn = PhaseTimes::default();
        for host in 1..=hosts {
            arrivals.on_here(ms(21 + 100 * u64::from(host)), host);
            arrivals.on_joined(ms(9000), host, ms(u64::from(host)));
            spawn.note(AgentId(host), ms(3 + u64::from(ranks / hosts) * 2), ms(9999));
        }
        let timing = Timing { agents: hosts, phases: [(TimedPhase::Spawn, spawn)].into() };
        Ended { code: 0, phases: Phases::of_launch(arrivals, ms(10_000)), timing }
    }

    #[test]
    fn constants_are_derived_from_the_phases_of_sessions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/model.json");
        let seen = RefCell::new(Vec::new());
        let run = |request: Request, node_list: NodeList| {
            let command = &request.commands[0];
            seen.borrow_mut().push((node_list.nodes().len(), command.nprocs.unwrap()));
            let output = request.options.outfile_pattern.clone().unwrap();
            fs::copy(BOOT_ID, output).unwrap();
            Ok(session(&request, &node_list))
        };
        let text = calibrate(&Options::default(), &node_list(8), 1, &path, &run).unwrap();
        assert_eq!(*seen.borrow(), [(1, 1), (1, 1), (1, 1), (1, 32), (4, 4), (8, 8)]);
        let constants = model::store::read(&path).unwrap().unwrap();
        let expected = Constants {
            tc: ms(70),
            tssh: ms(50),
            tlogin: ms(50),
            trecv: ms(1),
            tclient: ms(2),
            cores: 1,
            shared_cores: Some(1),
            shells_max: Constants::default().shells_max,
            // Measured on this machine.
            board: constants.board,
            measured: true,
        };
        assert_eq!(constants, expected);
        assert!(constants.is_valid());
        assert!(text.starts_with("measured on n[1-8]:\n") && text.contains("8 remote shells at once"), "{text}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the file of boot IDs is removed");
    }

    #[test]
    fn a_link_with_the_name_of_the_file_of_boot_ids_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        let (path, other) = (directory.path().join("model.json"), directory.path().join("other"));
        fs::write(&other, "other").unwrap();
        for name in ["model.kernels-PID", "model.kernels.PID-0"] {
            let name = name.replace("PID", &std::process::id().to_string());
            std::os::unix::fs::symlink(&other, directory.path().join(name)).unwrap();
        }
        let file = BootIdFile::beside(&path).unwrap();
        assert!(fs::symlink_metadata(&file.path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&other).unwrap(), "other");
        drop(file);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 3, "the file is removed");
    }

    #[test]
    fn a_failed_session_is_reported_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache/scela/model.json");
        let fails = |code| move |request: Request, nodes: NodeList| Ok(Ended { code, ..session(&request, &nodes) });
        let calibrate = |node_list: &NodeList| calibrate(&Options::default(), node_list, 2, &path, &fails(251));
        assert!(matches!(calibrate(&node_list(2)), Err(CalibrateError::Failed { code: 251 })));
        assert!(matches!(calibrate(&NodeList::HERE), Err(CalibrateError::NoHosts)));
        assert!(!directory.path().join("cache").exists(), "no empty directory is left");
    }

    #[test]
    fn groups_have_more_remote_shells_than_cores() {
        assert_eq!(group_sizes(1, 2), [] as [usize; 0]);
        assert_eq!(group_sizes(2, 2), [2]);
        assert_eq!(group_sizes(4, 2), [4]);
        assert_eq!(group_sizes(8, 2), [4, 8]);
        assert_eq!(group_sizes(8, 64), [8]);
        assert_eq!(group_sizes(1000, 2), [64, 128]);
    }
}
