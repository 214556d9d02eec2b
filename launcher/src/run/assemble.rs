//! The launcher's part in assembling the agents of other nodes: it makes the plan again when nodes fail, and reports
//! which hosts failed, why, and what to try. The decisions are in [`nla::bootstrap`].

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::Path;
use std::time::{Duration, Instant};

use litemap::LiteMap;
use nla::bootstrap::{
    self, Bootstrap, Launch, Method, NodeChoice, NotAssembled, PlannedTree, StartFailure, StartPhase, StartTimes,
};
use nla::core::limits::AGENTS_MAX;
use nla::core::{AgentId, Subtree, printable};
use nla::figures::counted;
use nla::sys;

use crate::cluster::fault_history;
use crate::cluster::hosts::{fold, fold_within};
use crate::exit;
use crate::plan::Plan;
use crate::plan::remote_launch::{RemoteLaunch, TIMEOUT_DEFAULT};
use crate::plan::request::LaunchOptions;
use crate::run::host_wait::{HostWait, WaitNote};
use crate::run::rank_locations::RankLocations;
use crate::run::report::Reporter;
use crate::run::signals::{Asked, Signals};
use crate::run::survey_text::agents_line;

/// The longest list of hosts, in bytes, that the answer to SIGQUIT names.
const SURVEY_BYTES_MAX: usize = 200;

/// A launch on other nodes, as [`bootstrap::assemble`] sees it.
struct Assembling<'a> {
    remote_launch: &'a mut RemoteLaunch,
    start: &'a dyn Fn(&RemoteLaunch, StartTimes) -> Bootstrap,
    plan: &'a mut Plan,
    reporter: Reporter,
    on_progress: &'a mut dyn FnMut(&Bootstrap),
    /// The user has asked how far the launch is.
    wants_survey: &'a Cell<bool>,
    host_wait: HostWait,
}

impl Launch for Assembling<'_> {
    fn nodes(&mut self) -> &mut NodeChoice {
        &mut self.remote_launch.choice
    }

    fn start(&self, times: StartTimes) -> Bootstrap {
        (self.start)(self.remote_launch, times)
    }

    fn replan(&mut self, failures: &BTreeMap<u32, StartFailure>, left_out: &BTreeSet<usize>) -> Result<(), String> {
        self.reporter
            .note(&format!("continuing without the failed hosts: {}", failures_text(self.remote_launch, failures)));
        *self.plan = (self.remote_launch.replan)(left_out)?;
        Ok(())
    }

    fn keep_spares(&mut self, agents_on: &[usize]) -> usize {
        let settings = &mut self.plan.settings;
        if !(settings.session.on_failure.starts_again() && settings.session.has_ports) {
            return 0;
        }
        let agents = self.plan.node_of_agent.len();
        let kept = agents_on.len().min((AGENTS_MAX as usize).saturating_sub(agents));
        let first = settings.nodes.values().copied().max().map_or(0, |node| node + 1);
        let mut nodes: Vec<usize> = agents_on[..kept].to_vec();
        let agents_on = nodes.clone();
        nodes.dedup();
        for (agent, node) in (agents as u32 + 1..).map(AgentId).zip(agents_on) {
            let at = nodes.iter().position(|other| *other == node).unwrap_or_default();
            settings.nodes.insert(agent, first + at as u32);
        }
        settings.tree = Subtree::whole((agents + kept) as u32, self.plan.options.fanout());
        kept
    }

    fn planned(&self) -> PlannedTree {
        PlannedTree {
            node_of_agent: self.plan.node_of_agent.clone(),
            tree: self.plan.settings.tree,
            fanout: self.plan.options.fanout(),
        }
    }

    fn on_progress(&mut self, bootstrap: &Bootstrap) {
        if self.wants_survey.take() {
            let names = bootstrap.unsettled().into_iter().map(|target| self.remote_launch.name(target));
            let waits_for = fold_within(names.collect::<BTreeSet<_>>(), SURVEY_BYTES_MAX);
            let waits_for = if waits_for.is_empty() { String::new() } else { format!(", waiting for {waits_for}") };
            self.reporter.note(&format!("{}{waits_for}", agents_line(bootstrap.progress())));
        }
        match self.host_wait.on_progress(Instant::now(), bootstrap.not_reached().is_empty()) {
            Some(WaitNote::Waits { time }) => {
                let causes = causes(self.remote_launch, bootstrap.not_reached());
                let (missing, all) = (distinct(causes.values().flatten()), host_count(self.remote_launch));
                let missing = format!("{missing} of {}", counted(all as u64, "host"));
                let most = self.remote_launch.times.hosts.as_secs_f32();
                let mut text = format!("waiting for {missing}: {} s of {most} s (--wait-for-hosts)", time.as_secs());
                for ((_, words), names) in &causes {
                    let _ = write!(text, "\n  {}: {words}", fold(names));
                }
                self.reporter.note(&text);
            }
            Some(WaitNote::AllReached) if bootstrap.failures().is_empty() => {
                self.reporter.note("all hosts can be reached");
            }
            Some(WaitNote::AllReached) | None => {}
        }
        (self.on_progress)(bootstrap);
    }
}

/// Starts agents on other nodes by `start` and gives them their positions in the tree. `plan` is made again if nodes
/// are left out. Returns the locations of all agents; or reports why agents are missing and returns the exit code.
pub(crate) async fn assemble(
    remote_launch: &mut RemoteLaunch,
    start: impl Fn(&RemoteLaunch, StartTimes) -> Bootstrap,
    plan: &mut Plan,
    signals: &mut Signals,
    reporter: Reporter,
    mut on_progress: impl FnMut(&Bootstrap),
) -> (Bootstrap, Result<RankLocations, u8>) {
    let times = remote_launch.times;
    let wants_survey = Cell::new(false);
    let mut launch = Assembling {
        remote_launch: &mut *remote_launch,
        start: &start,
        plan: &mut *plan,
        reporter,
        on_progress: &mut on_progress,
        wants_survey: &wants_survey,
        host_wait: HostWait::default(),
    };
    let (bootstrap, targets) = bootstrap::assemble(&mut launch, times, asked_to_end(signals, &wants_survey)).await;
    let failed = bootstrap.failures().iter().filter(|(_, failure)| is_unreachable(failure.phase, times.start));
    let lost = failed.map(|(target, _)| remote_launch.name(*target).to_owned()).collect();
    if let Some(note) = fault_history::remember(&plan.options.hosts, &lost) {
        reporter.note(&note);
    }
    let locations = match targets {
        Ok(targets) => {
            let names = targets.iter().map(|target| remote_launch.name(*target).to_owned()).collect();
            Ok(RankLocations::on_hosts(sys::host_name(), names, &plan.settings.first))
        }
        Err(why) => Err(give_up(why, remote_launch, bootstrap.failures(), reporter)),
    };
    (bootstrap, locations)
}

/// Returns whether a failure after at most this time shows that the host could not be reached.
fn is_unreachable(phase: StartPhase, timeout: Duration) -> bool {
    match phase {
        StartPhase::Connect | StartPhase::Refused => true,
        // A shorter --start-timeout is too short for hosts that are only slow.
        StartPhase::Answer => timeout >= TIMEOUT_DEFAULT,
        StartPhase::Command
        | StartPhase::Name
        | StartPhase::Busy
        | StartPhase::HostKey
        | StartPhase::Login
        | StartPhase::Program
        | StartPhase::ConnectBack
        | StartPhase::Join
        | StartPhase::Limits
        | StartPhase::Step
        | StartPhase::Keeper
        | StartPhase::Ended => false,
    }
}

/// Plans the next launch without the host of an agent that was lost before all agents had joined. Returns the plan and its
/// nodes; `None` if the job needs that host.
pub(crate) fn without_host(remote_launch: &RemoteLaunch, target: u32) -> Option<(Plan, NodeChoice)> {
    let mut choice = remote_launch.choice.clone();
    let left_out = choice.left_out([target])?;
    let plan = (remote_launch.replan)(&left_out).ok()?;
    choice.exclude([target]);
    if choice.is_one_tree {
        choice.restart(&plan.node_of_agent, &left_out, []);
    } else {
        choice.retarget();
    }
    Some((plan, choice))
}

/// Returns the note about a signal that ends a launch.
pub(crate) fn given_up_text(signal: i32) -> String {
    format!("{}: the launch is given up", sys::signal_name(signal))
}

/// Ends the report of a launch that was given up.
pub(crate) const NO_RANK: &str = "\n  no rank was started";

/// Reports why no tree could be assembled. Returns the exit code.
fn give_up(
    why: NotAssembled,
    remote_launch: &RemoteLaunch,
    failures: &BTreeMap<u32, StartFailure>,
    reporter: Reporter,
) -> u8 {
    let failures = || failures_text(remote_launch, failures);
    let text = match why {
        NotAssembled::Interrupted(signal) => {
            reporter.note(&given_up_text(signal));
            return exit::signalled(signal);
        }
        NotAssembled::TooFewNodes => format!("{}{NO_RANK}", failures()),
        NotAssembled::Replan(why) => {
            format!("without the hosts that could not be started, {why}{NO_RANK}")
        }
        NotAssembled::TooManyAgents => format!(
            "{}\n  the other hosts would need more agents than they have{NO_RANK}\n  \
             hint: --exclude the bad hosts, and start again",
            failures()
        ),
    };
    reporter.error(&text);
    exit::NOT_LAUNCHED
}

/// Waits for a signal that asks the launcher to end. Notes that the user has asked how far the launch is.
async fn asked_to_end(signals: &mut Signals, wants_survey: &Cell<bool>) -> i32 {
    loop {
        match signals.next().await {
            Some(Asked::End(signal)) => return signal,
            Some(Asked::Survey) => wants_survey.set(true),
            Some(_) => {}
            None => return std::future::pending().await,
        }
    }
}

/// Describes all failures. Hosts with the same failure share a line; a hint follows each new kind of failure.
pub(crate) fn failures_text(remote_launch: &RemoteLaunch, failures: &BTreeMap<u32, StartFailure>) -> String {
    let by_cause = causes(remote_launch, failures);
    let (failed, all) = (distinct(by_cause.values().flatten()), host_count(remote_launch));
    let mut text = format!("{failed} of {} could not be started", counted(all as u64, "host"));
    let mut hinted = None;
    for ((phase, words), names) in &by_cause {
        let _ = write!(text, "\n  {}: {words}", fold(names));
        let hint = hint(*phase);
        if hinted.replace(hint) != Some(hint) {
            let hint = match other_shell(&remote_launch.method) {
                Some(command) => hint.replace("ssh NAME true", &format!("{command} true")),
                None => hint.to_owned(),
            };
            let _ = write!(text, "\n    hint: {}", printable(&hint.replace("NAME", names[0])));
        }
    }
    text
}

/// Returns the hosts of these targets by their failure.
fn causes<'a>(
    remote_launch: &'a RemoteLaunch,
    failures: &'a BTreeMap<u32, StartFailure>,
) -> LiteMap<(StartPhase, &'a str), Vec<&'a str>> {
    let mut by_cause: LiteMap<(StartPhase, &str), Vec<&str>> = LiteMap::new();
    for (target, failure) in failures {
        let names = by_cause.entry((failure.phase, &failure.words)).or_default();
        let name = remote_launch.name(*target);
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    by_cause
}

fn distinct<'a>(names: impl Iterator<Item = &'a &'a str>) -> usize {
    names.collect::<BTreeSet<_>>().len()
}

fn host_count(remote_launch: &RemoteLaunch) -> usize {
    remote_launch.choice.targets.iter().collect::<BTreeSet<_>>().len()
}

/// Returns the command that opens a remote shell on the host NAME, if that is not ssh.
fn other_shell(method: &Method) -> Option<String> {
    let Method::RemoteShell { words, .. } = method else { return None };
    let is_ssh = words.first().is_some_and(|word| Path::new(word).file_name() == Some(OsStr::new("ssh")));
    (!is_ssh).then(|| words.join(" ").replace("{host}", "NAME"))
}

/// Returns what the user may try after a failure in this phase. The caller replaces `NAME` by the host.
fn hint(phase: StartPhase) -> &'static str {
    match phase {
        StartPhase::Command => "is the command installed here, and in PATH? --bootstrap chooses another",
        StartPhase::Name => {
            "check the name: 'getent hosts NAME' must print an address; --wait-for-hosts 5m waits for it"
        }
        StartPhase::Connect | StartPhase::Refused => {
            "check that the host is up and its sshd listens: 'ssh NAME true'; --wait-for-hosts 5m waits for it"
        }
        StartPhase::Busy => {
            "its sshd refuses connections: --batch N opens fewer at a time, MaxStartups in sshd_config allows more"
        }
        StartPhase::HostKey => "run 'ssh NAME true', compare the key that it shows, and accept it",
        StartPhase::Login => {
            "check that you can log in without a password: 'ssh -o BatchMode=yes NAME true'; ssh-copy-id installs a key"
        }
        StartPhase::Program => {
            "is scela-run installed there, or is there a directory where you may execute a file? --launch-agent names it"
        }
        StartPhase::Answer => "does 'ssh NAME true' return? --start-timeout waits longer",
        StartPhase::ConnectBack => {
            "is there a firewall between the nodes? --connect-back, --iface and --port-range choose addresses and ports"
        }
        StartPhase::Join => {
            "does the command of --bootstrap pass its input and output on as they are, and for as long as the job runs?"
        }
        StartPhase::Limits => "'ulimit -a' on that host prints its limits",
        StartPhase::Step => {
            "'scontrol show node NAME' prints its state; --exclude leaves a node out, --min-nodes continues without failed nodes"
        }
        StartPhase::Keeper => "'scela status' shows the nodes of the pool; it starts lost keepers again",
        StartPhase::Ended => "'ssh NAME true' shows the remote shell's messages; SCELA_LOG=debug shows more",
    }
}

/// Returns the launcher's callback addresses, the likeliest first: those that the options name, else `own`.
pub(crate) fn addresses(options: &LaunchOptions, own: Vec<SocketAddr>) -> io::Result<Vec<SocketAddr>> {
    let port = own.first().map_or(0, SocketAddr::port);
    if let Some(address) = &options.connect_back {
        let name = address.to_string_lossy();
        let found = (name.as_ref(), port).to_socket_addrs();
        let failed = |error| {
            let hint =
                format!("'getent hosts {name}' must print an address of this host; 'ip -brief address' lists them");
            io::Error::other(format!("--connect-back {name}: {error}\n  hint: {}", printable(&hint)))
        };
        return found.map(Iterator::collect).map_err(failed);
    }
    let Some(name) = &options.iface else { return Ok(own) };
    let name = name.to_string_lossy();
    let found = sys::addresses_of(Some(&name));
    if found.is_empty() {
        return Err(io::Error::other(format!("--iface {name}: no interface of this name has an address")));
    }
    Ok(found.into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

#[cfg(test)]
mod tests {
    use nla::bootstrap::{Links, RemoteProgram};

    use super::*;
    use crate::cluster::node_list::Node;

    #[test]
    fn an_unknown_callback_address_has_a_hint() {
        let options = LaunchOptions { connect_back: Some("no such name".into()), ..LaunchOptions::default() };
        let text = addresses(&options, Vec::new()).unwrap_err().to_string();
        assert!(text.starts_with("--connect-back no such name: "), "{text}");
        assert!(text.contains("\n  hint: 'getent hosts no such name' must print an address of this host; "), "{text}");
    }

    #[test]
    fn hosts_that_had_too_little_time_are_not_unreachable() {
        assert!(is_unreachable(StartPhase::Answer, TIMEOUT_DEFAULT));
        assert!(!is_unreachable(StartPhase::Answer, Duration::from_secs(1)));
        assert!(is_unreachable(StartPhase::Connect, Duration::from_secs(1)));
        assert!(!is_unreachable(StartPhase::Login, TIMEOUT_DEFAULT));
    }

    #[test]
    fn a_hint_names_the_remote_shell_that_was_used() {
        let shell = |words: &[&str]| Method::RemoteShell {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            lasts: true,
            program: RemoteProgram::Command("agent".to_owned()),
        };
        let failures = [(2, StartFailure::new(StartPhase::Ended, "it has ended"))].into();
        let text = |words| failures_text(&launch_by(shell(words)), &failures);
        let with = |command: &str| {
            format!(
                "1 of 32 hosts could not be started\n  node002: it has ended\n    \
                 hint: '{command}' shows the remote shell's messages; SCELA_LOG=debug shows more"
            )
        };
        assert_eq!(text(&["/bin/rsh", "-n", "{host}"]), with("/bin/rsh -n node002 true"));
        assert_eq!(text(&["/usr/bin/ssh", "-q", "{host}"]), with("ssh node002 true"));
    }

    #[test]
    fn equal_failures_are_folded_and_have_one_hint() {
        let remote_launch = launch_by(Method::Fork);
        let login = StartFailure::new(StartPhase::Login, "Permission denied (publickey).");
        let name = StartFailure::new(StartPhase::Name, "Name or service not known");
        let failures = [(17, login.clone()), (30, login.clone()), (3, name), (31, login)].into();
        assert_eq!(
            failures_text(&remote_launch, &failures),
            "4 of 32 hosts could not be started\n\
             \x20 node003: Name or service not known\n\
             \x20   hint: check the name: 'getent hosts node003' must print an address; --wait-for-hosts 5m waits for it\n\
             \x20 node[017,030-031]: Permission denied (publickey).\n\
             \x20   hint: check that you can log in without a password: 'ssh -o BatchMode=yes node017 true'; ssh-copy-id installs a key"
        );
    }

    /// Returns a launch on 32 hosts.
    fn launch_by(method: Method) -> RemoteLaunch {
        let choice = NodeChoice {
            nodes: 32,
            targets: (0..32).collect(),
            pool: (0..32).collect(),
            passed_over: BTreeSet::new(),
            min: 32,
            max: 32,
            is_one_tree: false,
        };
        RemoteLaunch {
            nodes: (1..=32).map(|node| Node::named(format!("node{node:03}"))).collect(),
            here: BTreeSet::new(),
            choice,
            links: Links::Connections,
            method,
            is_fanout_typed: false,
            fanout: None,
            batch: None,
            times: StartTimes { hosts: Duration::ZERO, start: Duration::from_secs(1) },
            replan: Box::new(|_| Err(String::new())),
        }
    }
}
