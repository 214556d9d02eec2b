//! A step: one command of a resource manager that starts agents at many targets, each a task on a node.
//!
//! The command's input goes to all tasks alike, and what they write comes back mingled. So all get the same
//! order, connect to the port that it names, and say there on which node they are: that connection, whose
//! ends have proved that they know the session's key, is the agent's bootstrap channel.
//!
//! A manager that cannot reach a node may take the step down on all others. So nothing is said of any target
//! before it is settled for all of them; and if it comes to that, the step is started again without those
//! nodes. The command lasts as long as the agents and ends with the last of them.
//!
//! The program is not sent at first: it would go to each node through the one command. Where it is not, a second
//! step, of those nodes only, takes it in.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::attempt::{Channel, converse};
use super::callback::{Member, Port};
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::slurm::{is_in_list, judge_step, step_word};
use super::processes::Children;
use super::protocol::{BootOrder, BootReport, Method, RemoteProgram, Sent};
use super::starter::{END_TIME, Shared};
use super::{program, script};
use crate::core::limits::{HELLO_TIME, TEXT_BYTES_MAX};
use crate::link::listener as reach;
use crate::link::{Accepted, HandshakeError};
use crate::wire::{encode, framed};

/// Lines of the command's errors that are kept: the last ones.
const LINES_KEPT: usize = 32;
/// How long a task that has ended may take to have said why.
const LAST_WORDS_TIME: Duration = Duration::from_millis(300);
/// Bound of the queues between tasks.
const QUEUE: usize = 64;

/// What all steps of a starter have in common.
pub(super) struct Step {
    pub(super) shared: Rc<Shared>,
    /// Where the tasks find this process.
    pub(super) own: Vec<IpAddr>,
    pub(super) fold: fn(&[&str]) -> String,
}

/// A step under way. Dropping it ends the command, unless its agents are there.
struct Running<'a> {
    children: &'a Children,
    pid: u32,
    is_needed: bool,
    /// What the command writes to its standard error.
    lines: mpsc::Receiver<String>,
    /// Where its tasks call. Who comes when it is closed finds nobody, and leaves.
    port: Port,
}

impl Running<'_> {
    /// Lets nobody in any more: the port is free for another step.
    async fn close(mut self) {
        self.port.close().await;
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.is_needed {
            self.children.end(self.pid);
        }
    }
}

impl Step {
    /// Starts agents on these nodes, each at its target.
    pub(super) async fn attend(self, targets: BTreeMap<String, u32>) {
        let without = self.start_all(targets, None).await;
        if without.is_empty() {
            return;
        }
        match program::own_program() {
            Ok(sent) => drop(self.start_all(without, Some(sent)).await),
            Err(error) => {
                let words = format!("the program is not there, and cannot be read here: {error}");
                let failure = StartFailure::new(StartPhase::Program, words);
                without.values().for_each(|target| self.fail(*target, failure.clone()));
            }
        }
    }

    /// The same, with the program in front of the order where one is given. Those are left where only the
    /// program was missing.
    async fn start_all(&self, mut targets: BTreeMap<String, u32>, sent: Option<Sent>) -> BTreeMap<String, u32> {
        let may_send = sent.is_none() && self.is_own();
        let mut without = BTreeMap::new();
        // Each time there are fewer.
        while !targets.is_empty() {
            let mut roster = Roster::of(&targets);
            let mut running = match self.start(&targets, sent.as_ref()).await {
                Ok(running) => running,
                Err(failure) => {
                    targets.values().for_each(|target| self.fail(*target, failure.clone()));
                    return without;
                }
            };
            roster.gather(&self.shared, &mut running).await;
            let Roster { present, failures, is_taken_down, .. } = roster;
            let again = is_taken_down && !failures.is_empty();
            running.is_needed = !again && !present.is_empty();
            for (node, failure) in failures {
                match targets.remove(&node) {
                    Some(target) if may_send && failure.phase == StartPhase::Program => {
                        without.insert(node, target);
                    }
                    Some(target) => self.fail(target, failure),
                    None => {}
                }
            }
            running.close().await;
            if again {
                continue;
            }
            for (node, (member, report)) in present {
                let Some(target) = targets.remove(&node) else { continue };
                let shared = Rc::clone(&self.shared);
                self.shared.spawn(async move {
                    converse(&shared, target, 0, report, &mut Channel::Member(member)).await;
                });
            }
            return without;
        }
        without
    }

    /// Whether it is this program that each task is to run, and not a command of the user's.
    fn is_own(&self) -> bool {
        matches!(&self.shared.method, Method::Step { program: RemoteProgram::Own { .. }, .. })
    }

    fn fail(&self, target: u32, failure: StartFailure) {
        self.shared.report(target, BootReport::NotStarted(failure));
    }

    /// Starts the command and gives it the order for all.
    async fn start(&self, targets: &BTreeMap<String, u32>, sent: Option<&Sent>) -> Result<Running<'_>, StartFailure> {
        let shared = &self.shared;
        let Method::Step { words, program } = &shared.method else {
            return Err(StartFailure::new(StartPhase::Command, "there is no command that starts a step"));
        };
        let nodes: Vec<&str> = targets.keys().map(String::as_str).collect();
        let tasks = 1..=nodes.len() as u32;
        let port = Port::open(&shared.order, tasks, &self.own).await?;
        let order = BootOrder { target: 0, callback: port.addresses.clone(), ..shared.order.clone() };

        let script = script::step_script(program, sent, &order.label, &order.dead_time.as_millis().to_string());
        let mut words = step_words(words, &(self.fold)(&nodes), nodes.len());
        words.push(script);
        tracing::debug!(?words, "a step is started");
        let (pid, mut input, lines) = spawn(&words, &shared.children)
            .map_err(|error| StartFailure::new(StartPhase::Command, format!("{}: {error}", words[0])))?;

        let is_sent = sent.is_some();
        shared.spawn(async move {
            // Who does not take it ends, and says why. Nothing follows: the input ends here.
            if is_sent && program::send(&mut input).await.is_err() {
                return;
            }
            let _ = input.write_all(&framed(&encode(&order))).await;
        });
        Ok(Running { children: &shared.children, pid, is_needed: false, lines, port })
    }
}

/// The command that starts a step on these hosts, without its last word: a script.
pub fn step_words(words: &[String], hosts: &str, count: usize) -> Vec<String> {
    let words = words.iter().map(|word| word.replace("{hosts}", hosts).replace("{nodes}", &count.to_string()));
    words.chain(script::STEP_COMMAND.map(str::to_owned)).collect()
}

/// What has become of a step's tasks.
struct Roster<'a> {
    targets: &'a BTreeMap<String, u32>,
    /// Agents that are there, by node, and what they have said.
    present: BTreeMap<String, (Member, BootReport)>,
    failures: BTreeMap<String, StartFailure>,
    /// Tasks that have ended. Why may be known better in a moment.
    ends: BTreeMap<String, StartFailure>,
    /// The command's last lines.
    said: VecDeque<String>,
    /// The manager ends all tasks because of those nodes that have failed.
    is_taken_down: bool,
}

impl<'a> Roster<'a> {
    fn of(targets: &'a BTreeMap<String, u32>) -> Self {
        Self {
            targets,
            present: BTreeMap::new(),
            failures: BTreeMap::new(),
            ends: BTreeMap::new(),
            said: VecDeque::new(),
            is_taken_down: false,
        }
    }

    /// Waits until each target has an agent or has failed; or until the command has ended, or it is too
    /// late, and so they have. But if the step is taken down, only those have failed that it is because of.
    async fn gather(&mut self, shared: &Shared, running: &mut Running<'_>) {
        let deadline = Instant::now() + shared.deadline.patience(false);
        let mut words_until = deadline;
        let (introduced, mut introductions) = mpsc::channel(QUEUE);
        let mut ended = pin!(running.children.exit_code(running.pid, Duration::MAX));
        let code = loop {
            if !self.is_taken_down && self.present.len() + self.failures.len() == self.targets.len() {
                return;
            }
            tokio::select! {
                Some(accepted) = running.port.arrivals.recv() => shared.spawn(introduce(accepted, introduced.clone())),
                Some((node, member, report)) = introductions.recv() => {
                    if self.targets.contains_key(&node) && !self.failures.contains_key(&node) {
                        self.present.insert(node, (member, report));
                    }
                }
                Some(line) = running.lines.recv() => {
                    self.take(line);
                    if !self.ends.is_empty() {
                        words_until = words_until.min(Instant::now() + LAST_WORDS_TIME);
                    }
                }
                code = &mut ended => break code,
                () = sleep_until(words_until), if words_until < deadline => {
                    self.count_ends();
                    words_until = deadline;
                }
                () = sleep_until(deadline) => {
                    self.is_taken_down = false;
                    return self.fail_rest(&StartFailure { phase: StartPhase::Step, ..StartFailure::late() });
                }
            }
        };
        // What it said last may still be on its way.
        while let Ok(Some(line)) = timeout(END_TIME, running.lines.recv()).await {
            self.take(line);
        }
        self.count_ends();
        if !self.is_taken_down || self.failures.is_empty() {
            let failure = judge_step(code, self.said.make_contiguous());
            self.fail_rest(&failure);
        }
    }

    /// Takes a line of the command's errors.
    fn take(&mut self, line: String) {
        if let Some(word) = step_word(&line) {
            self.is_taken_down |= word.is_fatal;
            let into = if word.is_end { &mut self.ends } else { &mut self.failures };
            for node in self.targets.keys().filter(|node| is_in_list(node, word.nodes)) {
                if !self.present.contains_key(node) {
                    into.entry(node.clone()).or_insert_with(|| word.failure.clone());
                }
            }
        }
        if self.said.len() == LINES_KEPT {
            self.said.pop_front();
        }
        self.said.push_back(line);
    }

    /// Nothing better will be known of the tasks that have ended, unless somebody has ended all of them.
    fn count_ends(&mut self) {
        for (node, failure) in std::mem::take(&mut self.ends) {
            if !self.is_taken_down && !self.present.contains_key(&node) {
                self.failures.entry(node).or_insert(failure);
            }
        }
    }

    fn fail_rest(&mut self, failure: &StartFailure) {
        for node in self.targets.keys().filter(|node| !self.present.contains_key(*node)) {
            self.failures.entry(node.clone()).or_insert_with(|| failure.clone());
        }
    }
}

/// Hears which task somebody is, and its agent's first words.
async fn introduce(mut accepted: Accepted, introduced: mpsc::Sender<(String, Member, BootReport)>) {
    let words = async { Ok((accepted.receive().await?, accepted.receive().await?)) };
    let words: Result<Result<_, HandshakeError>, _> = timeout(HELLO_TIME, words).await;
    match words {
        Ok(Ok((BootReport::Task { node }, report))) => {
            // Nobody hears it when the step is over.
            let _ = introduced.send((node, Member::new(accepted, StartPhase::Step), report)).await;
        }
        other => tracing::warn!(task = %accepted.peer, ?other, "a task of the step does not say what it should"),
    }
}

/// Starts the command: its pid, its input, and the lines that it writes to its standard error.
fn spawn(words: &[String], children: &Children) -> io::Result<(u32, Sender, mpsc::Receiver<String>)> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Ctrl-C at the terminal is for the launcher, which tells the agents itself.
    command.process_group(0);
    // All tasks get this environment.
    command.env_remove(reach::SESSION_OPENER);
    forget_steps(&mut command);
    let mut child = command.spawn()?;
    let pipes = child.stdin.take().zip(child.stderr.take()).ok_or_else(|| io::Error::other("no pipes"))?;
    let pid = child.id();
    children.add(child, true);
    let input = Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
    Ok((pid, input, lines(Receiver::from_owned_fd(OwnedFd::from(pipes.1))?)))
}

/// Lets a command know nothing of the step in which this process runs.
pub(super) fn forget_steps(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_about_steps(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
}

/// Variables that say to `srun` how a step is to be, or that are of the step in which the launcher runs. What
/// says which job this is, and where to ask for a step, stays.
fn is_about_steps(name: &[u8]) -> bool {
    const STAYS: [&str; 7] = [
        "SLURM_JOB",
        "SLURM_CONF",
        "SLURM_CLUSTER",
        "SLURM_WORKING_CLUSTER",
        "SLURM_JWT",
        "SLURM_SACK_",
        "SLURM_DEBUG",
    ];
    let begins = |prefix: &&str| name.starts_with(prefix.as_bytes());
    ["SLURM", "SRUN_"].iter().any(begins) && !STAYS.iter().any(begins)
}

/// Lines, each up to its bound. They are read until they end, whoever wants them: the command must not find
/// its errors closed.
fn lines(mut from: Receiver) -> mpsc::Receiver<String> {
    let (line, lines) = mpsc::channel(QUEUE);
    tokio::task::spawn_local(async move {
        let (mut piece, mut held) = ([0; 1024], Vec::new());
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            for &byte in &piece[..length] {
                match byte {
                    b'\n' => {
                        let text = String::from_utf8_lossy(&held).trim().to_owned();
                        held.clear();
                        let _ = line.send(text).await;
                    }
                    _ if held.len() < TEXT_BYTES_MAX => held.push(byte),
                    _ => {}
                }
            }
        }
    });
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_not_told_of_another() {
        for name in ["SLURM_NTASKS", "SLURM_PROCID", "SLURM_CPUS_PER_TASK", "SLURM_HOSTFILE", "SRUN_CPUS_PER_TASK"] {
            assert!(is_about_steps(name.as_bytes()), "{name}");
        }
        for name in ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "PATH", "CUDA_VISIBLE_DEVICES"] {
            assert!(!is_about_steps(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn only_those_fail_that_it_is_because_of() {
        let targets: BTreeMap<String, u32> = ["n1", "n2", "n3"].into_iter().map(str::to_owned).zip(1..).collect();
        let failed = |lines: &[&str]| {
            let mut roster = Roster::of(&targets);
            lines.iter().for_each(|line| roster.take((*line).to_owned()));
            roster.count_ends();
            roster.failures.into_iter().map(|(node, failure)| format!("{node}: {}", failure.words)).collect::<Vec<_>>()
        };
        let end = "its agent ended before it had said anything: Exited with exit code 1";
        assert_eq!(
            failed(&["srun: error: n[1-2]: tasks 0-1: Exited with exit code 1", "scela: n2: there is no it"]),
            [format!("n1: {end}"), "n2: there is no it".to_owned()]
        );
        assert_eq!(
            failed(&[
                "srun: error: Task launch for StepId=1.0 failed on node n3: no",
                "srun: error: n1: task 0: Killed"
            ]),
            ["n3: its slurmd did not start the agent: no"]
        );
    }
}
