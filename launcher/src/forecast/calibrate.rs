//! `--calibrate`: measures what the [`crate::forecast::model`] goes by on the user's own hosts.
//!
//! Whatever it measures it takes from sessions like any others, whose phases are noted anyway: to one host alone,
//! with one rank and with many, and to all hosts at once. Their ranks print the number by which a kernel is
//! told from others, so that hosts that share one machine's cores are known as such.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nla::core::{PhaseTimes, TimedPhase};
use nla::link::Clock;
use thiserror::Error;

use crate::cluster::hosts::fold;
use crate::cluster::node_list::{Node, NodeList};
use crate::cluster::placement::MapBy;
use crate::exit::{self, EarlyEnd};
use crate::forecast::model::{self, Constants, Counted, Samples};
use crate::plan::launch::{AgentHosts, LaunchError, find_nodes, prepare_remote};
use crate::plan::machine::Machine;
use crate::plan::remote_launch::Recommended;
use crate::plan::request::{Command, LaunchShape, Options, Program, Request, StdinTo, TypedAt};
use crate::run::report::Reporter;
use crate::run::session::{self, Ended, Secrets};

/// Sessions to one host alone, beside the one with many ranks.
const ALONE: usize = 3;
/// Ranks by which the start of one is measured.
const RANKS: u32 = 32;
/// The most sessions that are opened at a time.
const CROWD_MAX: usize = 128;
/// Where a kernel has its number.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Why nothing was measured.
#[derive(Debug, Error)]
pub enum CalibrateError {
    /// There are no other hosts.
    #[error("--calibrate measures sessions to other hosts, and there are none in the list")]
    Here,
    /// The nodes are not known.
    #[error(transparent)]
    Nodes(#[from] LaunchError),
    /// This machine cannot be read.
    #[error("the job could not be launched: {0}")]
    Machine(io::Error),
    /// There is no place for what is measured.
    #[error("there is no place to keep what is measured: neither XDG_CACHE_HOME nor HOME is set")]
    NoPlace,
    /// What is measured cannot be kept.
    #[error("what is measured cannot be written to '{}': {error}", path.display().to_string().escape_debug())]
    Write {
        /// Where.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// A session could not begin.
    #[error("{0}")]
    Session(String),
    /// A session has failed, and the user knows why.
    #[error("nothing was measured, as a session has failed; --exclude leaves hosts out")]
    Failed {
        /// The session's exit code.
        code: u8,
    },
}

impl CalibrateError {
    /// Returns how scela-run ends after this error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Here => EarlyEnd::Usage.code(),
            Self::Nodes(error) => LaunchError::early_end(error).code(),
            Self::NoPlace | Self::Write { .. } | Self::Session(_) | Self::Machine(_) => EarlyEnd::NotLaunched.code(),
            Self::Failed { code } => *code,
        }
    }
}

/// Measures on the hosts of `options`, and stores the constants in the user's cache directory. Returns the text
/// to print.
pub fn measure(options: Options) -> Result<String, CalibrateError> {
    let path = model::store::path(|name| std::env::var_os(name)).ok_or(CalibrateError::NoPlace)?;
    let machine = Machine::of_process(0).map_err(CalibrateError::Machine)?;
    let (mut remarks, cores) = (Vec::new(), machine.cores);
    let request = Request { options, commands: Vec::new() };
    let nodes = find_nodes(&request, &machine, &mut remarks).map_err(LaunchError::from)?;
    Reporter::of(&request.options).notes(&remarks);
    // Each measurement is a session with secrets of its own.
    let run = |request: Request, nodes: NodeList| {
        let (session, secrets) = Secrets::random().map_err(|error| error.to_string())?;
        let clock = Clock::start();
        let machine = Machine { session, ..machine.clone() };
        let recommend = |nodes, ppn| Recommended::from(&model::recommend(nodes, ppn, &Constants::default()));
        let (plan, remote) = prepare_remote(request, machine, nodes, &recommend).map_err(|error| error.to_string())?;
        session::run(plan, AgentHosts::Remote(Box::new(remote)), session, secrets, clock)
            .map_err(|error| format!("the job could not be launched: {error}"))
    };
    calibrate(&request.options, &nodes, cores, &path, &run)
}

/// Runs a session on a part of the hosts.
pub type RunSession<'a> = &'a dyn Fn(Request, NodeList) -> Result<Ended, String>;

/// Measures on the hosts of `field`, and keeps the constants in the file at `path`; the result is what the user
/// should read. `cores` are those of this machine.
pub fn calibrate(
    options: &Options,
    field: &NodeList,
    cores: u32,
    path: &Path,
    run: RunSession<'_>,
) -> Result<String, CalibrateError> {
    let nodes = field.nodes();
    if nodes.is_empty() {
        return Err(CalibrateError::Here);
    }
    let write = |error| CalibrateError::Write { path: path.to_owned(), error };
    let notes = Notes::beside(path).map_err(write)?;
    let trials = Trials { options, field, notes: &notes, run };
    let mut samples = Samples { cores, sessions_max: options.launch.batch, ..Samples::default() };
    let (mut joined, mut started) = (Duration::MAX, Duration::MAX);
    for at in 0..ALONE {
        let trial = trials.run(&[at % nodes.len()], 1)?;
        samples.alone.push(trial.bootstrap);
        (joined, started) = (joined.min(trial.join), started.min(trial.spawn));
    }
    let ranks = nodes[0].max_slots.map_or(RANKS, |most| most.min(RANKS));
    if ranks > 1 {
        let trial = trials.run(&[0], ranks)?;
        samples.alone.push(trial.bootstrap);
        samples.starts.push(Counted { count: ranks - 1, took: trial.spawn.saturating_sub(started) });
    }
    for count in crowds(nodes.len(), cores) {
        let trial = trials.run(&(0..count).collect::<Vec<_>>(), 1)?;
        samples.crowds.push(Counted { count: count as u32, took: trial.bootstrap });
        samples.joins.push(Counted { count: count as u32 - 1, took: trial.join.saturating_sub(joined) });
    }
    samples.are_shared = notes.are_of_this_kernel();
    let constants = model::calibrate(&samples);
    model::store::write(path, &constants).map_err(write)?;
    Ok(told(nodes, &samples, &constants, path))
}

/// How many sessions are opened at once: as many as there are hosts, and, where that tells something, half of them.
fn crowds(hosts: usize, cores: u32) -> Vec<usize> {
    let all = hosts.min(CROWD_MAX);
    let sizes = [all / 2, all];
    sizes.into_iter().filter(|size| *size > 1 && (*size == all || *size > cores as usize)).collect()
}

/// What all sessions have in common.
struct Trials<'a> {
    options: &'a Options,
    field: &'a NodeList,
    notes: &'a Notes,
    run: RunSession<'a>,
}

/// How long one session's phases took.
struct Trial {
    /// Until the last agent was there.
    bootstrap: Duration,
    /// Until the last one had joined.
    join: Duration,
    /// Until the last rank was started.
    spawn: Duration,
}

impl Trials<'_> {
    /// A session on the hosts at these places, with so many ranks on each.
    fn run(&self, places: &[usize], ppn: u32) -> Result<Trial, CalibrateError> {
        let chosen: BTreeSet<usize> = places.iter().copied().collect();
        let others = (0..self.field.nodes().len()).filter(|place| !chosen.contains(place)).collect();
        let request = self.request(chosen.len() as u32, ppn);
        let ended = (self.run)(request, self.field.without(&others)).map_err(CalibrateError::Session)?;
        if ended.code != exit::SUCCESS {
            return Err(CalibrateError::Failed { code: ended.code });
        }
        let longest = |times: Option<&PhaseTimes>| times.and_then(|times| times.took.max()).unwrap_or_default();
        Ok(Trial {
            bootstrap: longest(Some(ended.phases.arrivals.bootstrap())),
            join: longest(Some(ended.phases.arrivals.join())),
            spawn: longest(ended.timing.phases.get(&TimedPhase::Spawn)),
        })
    }

    /// What is typed about hosts and the way there holds; all else is ours.
    fn request(&self, hosts: u32, ppn: u32) -> Request {
        let mut options = Options {
            hosts: self.options.hosts.clone(),
            launch: self.options.launch.clone(),
            ppn: Some(ppn),
            agents_per_node: Some(1),
            outfile_pattern: Some(self.notes.path.clone().into_os_string()),
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
            env: Vec::new(),
            env_policy: None,
            place: TypedAt::CommandLine,
        };
        Request { options, commands: vec![command] }
    }
}

/// The file that ranks write to. Dropping it removes the file, and directories that were made for it if they are
/// empty.
struct Notes {
    path: PathBuf,
    /// Innermost first.
    directories: Vec<PathBuf>,
}

impl Notes {
    /// Creates the file beside the file that will hold the constants: so that one can be written too.
    fn beside(path: &Path) -> io::Result<Self> {
        let parents = path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty());
        let directories: Vec<PathBuf> = parents.take_while(|parent| !parent.exists()).map(Path::to_owned).collect();
        let notes = Self { path: path.with_extension(format!("kernels-{}", std::process::id())), directories };
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::write(&notes.path, "")?;
        Ok(notes)
    }

    /// Whether all ranks that wrote there run on the kernel that runs this.
    fn are_of_this_kernel(&self) -> bool {
        let own = fs::read_to_string(BOOT_ID).unwrap_or_default();
        let theirs = fs::read_to_string(&self.path).unwrap_or_default();
        !own.is_empty() && !theirs.is_empty() && theirs.lines().all(|line| line == own.trim_end())
    }
}

impl Drop for Notes {
    fn drop(&mut self) {
        // What cannot be removed is left.
        let _ = fs::remove_file(&self.path);
        self.directories.iter().for_each(|directory| drop(fs::remove_dir(directory)));
    }
}

fn told(nodes: &[Node], samples: &Samples, constants: &Constants, path: &Path) -> String {
    let Constants { tc, tssh, trecv, tclient, tlogin, cores, shared_cores, sessions_max, measured: _ } = constants;
    let seconds = |time: &Duration| format!("{:.6} s", time.as_secs_f64());
    let mut text = format!("measured on {}:\n", fold(nodes.iter().map(|node| node.name.as_str())));
    let mut line = |name: String, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {name:<44} {value:>14}");
    };
    samples.alone.iter().for_each(|took| line("one session alone".to_owned(), seconds(took)));
    for Counted { count, took } in &samples.crowds {
        line(format!("{count} sessions at once"), seconds(took));
    }
    line("Tc, what a session waits for".to_owned(), seconds(tc));
    line("Tssh, its processor time here".to_owned(), seconds(tssh));
    line("Tlogin, its processor time there".to_owned(), seconds(tlogin));
    line("Trecv, to take in an agent".to_owned(), seconds(trecv));
    line("Tclient, to start a rank".to_owned(), seconds(tclient));
    line("cores for the sessions of one host".to_owned(), cores.to_string());
    if let Some(shared) = shared_cores {
        line("cores that all hosts share".to_owned(), shared.to_string());
    }
    line("sessions at a time, at most".to_owned(), sessions_max.to_string());
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

    fn field(hosts: usize) -> NodeList {
        let nodes = (1..=hosts).map(|host| Node::named(format!("n{host}"))).collect();
        NodeList::Named { nodes, allocation: None }
    }

    /// What a session on hosts of one core, which is this one's, takes: 100 ms for each session and 20 ms of waiting.
    fn session(request: &Request, field: &NodeList) -> Ended {
        let (hosts, ranks) = (field.nodes().len() as u32, request.commands[0].nprocs.unwrap());
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
    fn constants_come_from_phases_of_sessions() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/model.json");
        let seen = RefCell::new(Vec::new());
        let run = |request: Request, field: NodeList| {
            let command = &request.commands[0];
            seen.borrow_mut().push((field.nodes().len(), command.nprocs.unwrap()));
            let notes = request.options.outfile_pattern.clone().unwrap();
            fs::copy(BOOT_ID, notes).unwrap();
            Ok(session(&request, &field))
        };
        let text = calibrate(&Options::default(), &field(8), 1, &path, &run).unwrap();
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
            sessions_max: Constants::default().sessions_max,
            measured: true,
        };
        assert_eq!(constants, expected);
        assert!(text.starts_with("measured on n[1-8]:\n") && text.contains("8 sessions at once"), "{text}");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no note is left");
    }

    #[test]
    fn a_failed_session_is_reported_and_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cache/scela/model.json");
        let fails = |code| move |request: Request, field: NodeList| Ok(Ended { code, ..session(&request, &field) });
        let calibrate = |field: &NodeList| calibrate(&Options::default(), field, 2, &path, &fails(251));
        assert!(matches!(calibrate(&field(2)), Err(CalibrateError::Failed { code: 251 })));
        assert!(matches!(calibrate(&NodeList::HERE), Err(CalibrateError::Here)));
        assert!(!directory.path().join("cache").exists(), "no empty directory is left");
    }

    #[test]
    fn crowds_are_larger_than_the_cores_are_many() {
        assert_eq!(crowds(1, 2), [] as [usize; 0]);
        assert_eq!(crowds(2, 2), [2]);
        assert_eq!(crowds(4, 2), [4]);
        assert_eq!(crowds(8, 2), [4, 8]);
        assert_eq!(crowds(8, 64), [8]);
        assert_eq!(crowds(1000, 2), [64, 128]);
    }
}
