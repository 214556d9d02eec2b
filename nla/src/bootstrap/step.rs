//! A step: one command of a resource manager that starts a task, and so an agent, on each of many nodes.
//!
//! All tasks read the same standard input, and their output is mixed. So all get the same order, connect to the port
//! that it names, and report there which node they are on. That connection is the agent's bootstrap channel. The
//! [`Roster`] decides what became of the tasks. The command lasts as long as the agents and exits with the last one.
//!
//! The first step does not send the program, since it would go to every node through the one command. A second step
//! sends it, to the nodes that lack it.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use litemap::LiteMap;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tracing::Span;

use super::attempt::{Channel, converse};
use super::callback::CallbackListener;
use super::decide::failure::{StartFailure, StartPhase};
use super::decide::roster::{Roster, RosterInput, StepOutcome, StepTargets};
use super::processes::Started;
use super::protocol::{BootOrder, BootReport, Method, RemoteProgram, Sent};
use super::shell::remote_command;
use super::starter::{END_TIME, Shared};
use super::{program, script};
use crate::core::limits::{HELLO_TIME, TEXT_BYTES_MAX};
use crate::link::{Accepted, HandshakeError};
use crate::wire::secret_frame;

/// Bound of the queues between tasks.
const QUEUE: usize = 64;

/// The parameters that all steps of a starter share.
pub(super) struct Step {
    pub(super) shared: Rc<Shared>,
    /// The addresses where the tasks find this process.
    pub(super) own: Vec<IpAddr>,
    /// Writes names of hosts as a host list.
    pub(super) fold: fn(&[&str]) -> String,
}

/// A step under way. Dropping it ends the command, unless its agents are needed.
struct Running {
    process: Started,
    is_needed: bool,
    /// The lines that the command writes to standard error.
    lines: mpsc::Receiver<String>,
    /// The address to which its tasks connect. A task that connects after the listener has closed exits.
    listener: CallbackListener,
    /// The agents that have reported, by node, with their first reports.
    agents: LiteMap<String, Box<(Accepted, BootReport)>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_needed {
            self.process.end();
        }
    }
}

impl Step {
    /// Starts agents on these nodes, each at its target.
    pub(super) async fn run(self, targets: StepTargets) {
        let without_program = self.start_all(targets, None).await;
        if without_program.is_empty() {
            return;
        }
        match program::own_program() {
            Ok(sent) => drop(self.start_all(without_program, Some(sent)).await),
            Err(error) => {
                let words = format!("the program is not there, and cannot be read here: {error}");
                let failure = StartFailure::new(StartPhase::Program, words);
                without_program.values().for_each(|target| self.fail(*target, failure.clone()));
            }
        }
    }

    /// Starts steps until each target has an agent or has failed. With `sent`, the program precedes the order. Returns
    /// the nodes that only lack the program.
    async fn start_all(&self, mut targets: StepTargets, sent: Option<Sent>) -> StepTargets {
        let may_send = sent.is_none() && self.runs_own_program();
        let mut without_program = StepTargets::new();
        while !targets.is_empty() {
            let mut running = match self.start(&targets, sent.as_ref()).await {
                Ok(running) => running,
                Err(failure) => {
                    targets.values().for_each(|target| self.fail(*target, failure.clone()));
                    break;
                }
            };
            let outcome = self.follow(targets, &mut running).await.conclude(may_send);
            let StepOutcome { started, failed, without_program: without, restart } = outcome;
            running.is_needed = !started.is_empty();
            failed.into_iter().for_each(|(target, failure)| self.fail(target, failure));
            for (node, target) in without {
                without_program.insert(node, target);
            }
            running.listener.close().await;
            for (node, target) in started {
                let Some((accepted, report)) = running.agents.remove(&node).map(|agent| *agent) else { continue };
                let mut channel = Channel::Callback(Box::new(accepted), StartPhase::Step);
                let shared = Rc::clone(&self.shared);
                self.shared.spawn(async move {
                    converse(&shared, target, 0, report, &mut channel).await;
                });
            }
            targets = restart;
        }
        without_program
    }

    /// Returns whether the tasks run this program, and not a command of the user's.
    fn runs_own_program(&self) -> bool {
        matches!(&self.shared.method, Method::Step { program: RemoteProgram::Own { .. }, .. })
    }

    fn fail(&self, target: u32, failure: StartFailure) {
        self.shared.report(target, BootReport::NotStarted(failure));
    }

    /// Starts the command and writes the order for all tasks to its standard input.
    async fn start(&self, targets: &StepTargets, sent: Option<&Sent>) -> Result<Running, StartFailure> {
        let shared = &self.shared;
        let Method::Step { words, program } = &shared.method else {
            return Err(StartFailure::new(StartPhase::Command, "there is no command that starts a step"));
        };
        let nodes: Vec<&str> = targets.keys().map(String::as_str).collect();
        let tasks = 1..=nodes.len() as u32;
        let listener = CallbackListener::open(shared, tasks, &self.own).await?;
        let order = BootOrder { target: 0, callback: listener.addresses.clone(), ..shared.order.clone() };

        let script = script::step_script(program, sent, &order.label, &order.dead_time.as_millis().to_string());
        let mut words = step_words(words, &(self.fold)(&nodes), nodes.len());
        words.push(script);
        tracing::debug!(?words, "a step is started");
        let (process, mut input, lines) = self
            .spawn(&words)
            .map_err(|error| StartFailure::new(StartPhase::Command, format!("{}: {error}", words[0])))?;

        let is_sent = sent.is_some();
        shared.spawn(async move {
            // A command that does not read its input exits, and says why. The input ends after the order.
            if is_sent && program::send(&mut input).await.is_err() {
                return;
            }
            let _ = input.write_all(&secret_frame(&order)).await;
        });
        let agents = LiteMap::new();
        Ok(Running { process, is_needed: false, lines, listener, agents })
    }

    /// Tells the roster what happens to a step until all its targets are settled.
    async fn follow(&self, targets: StepTargets, running: &mut Running) -> Roster {
        let shared = &self.shared;
        let deadline = shared.now() + shared.deadline.timeout(shared.now(), false);
        let mut roster = Roster::new(targets, deadline);
        let (introduced, mut introductions) = mpsc::channel(QUEUE);
        let process = running.process.clone();
        let mut ended = pin!(process.exit_code(Duration::MAX));
        while !roster.is_settled() {
            let input = tokio::select! {
                Some(accepted) = running.listener.arrivals.recv() => {
                    shared.spawn(introduce(accepted, introduced.clone()));
                    continue;
                }
                Some((node, accepted, report)) = introductions.recv() => {
                    running.agents.insert(node.clone(), Box::new((accepted, report)));
                    RosterInput::Reported(node)
                }
                Some(line) = running.lines.recv() => {
                    tracing::debug!(line, "the step's command wrote a line");
                    RosterInput::Line(line)
                }
                code = &mut ended => {
                    // The last lines may arrive after the exit.
                    while let Ok(Some(line)) = timeout(END_TIME, running.lines.recv()).await {
                        roster.handle(shared.now(), RosterInput::Line(line));
                    }
                    RosterInput::CommandEnded(code)
                }
                () = sleep(roster.wake_at().saturating_sub(shared.now())) => RosterInput::Timeout,
            };
            roster.handle(shared.now(), input);
        }
        roster
    }

    /// Starts the command. Returns its process, its input, and the lines that it writes to standard error.
    fn spawn(&self, words: &[String]) -> io::Result<(Started, Sender, mpsc::Receiver<String>)> {
        // All tasks inherit its environment.
        let mut child = remote_command(words).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()?;
        let pipes = child.stdin.take().zip(child.stderr.take()).ok_or_else(|| io::Error::other("no pipes"))?;
        let process = self.shared.processes.add(child.id(), true);
        let input = Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
        let errors = Receiver::from_owned_fd(OwnedFd::from(pipes.1))?;
        let (line, lines) = mpsc::channel(QUEUE);
        self.shared.spawner.spawn("step errors", Span::current(), read_lines(errors, line));
        Ok((process, input, lines))
    }
}

/// Returns the command that starts a step on these hosts, without its last word, the script.
pub fn step_words(words: &[String], hosts: &str, count: usize) -> Vec<String> {
    let words = words.iter().map(|word| word.replace("{hosts}", hosts).replace("{nodes}", &count.to_string()));
    words.chain(script::STEP_COMMAND.map(str::to_owned)).collect()
}

/// Receives the node of a task and its agent's first report.
async fn introduce(mut accepted: Accepted, introduced: mpsc::Sender<(String, Accepted, BootReport)>) {
    let reports = async { Ok((accepted.receive().await?, accepted.receive().await?)) };
    let reports: Result<Result<_, HandshakeError>, _> = timeout(HELLO_TIME, reports).await;
    match reports {
        Ok(Ok((BootReport::Task { node }, report))) => {
            // After the step is settled nothing receives this.
            let _ = introduced.send((node, accepted, report)).await;
        }
        other => tracing::warn!(task = %accepted.peer, ?other, "a task of the step sent no valid report"),
    }
}

/// Removes the variables of the step in which this process runs from a command's environment.
pub(super) fn remove_step_variables(command: &mut Command) {
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_of_step(name.as_encoded_bytes())) {
        command.env_remove(name);
    }
}

/// Returns whether a variable belongs to a step of Slurm, or sets an option of `srun`. Those that identify the job,
/// and the controller to ask for a step, do not.
fn is_of_step(name: &[u8]) -> bool {
    const STAYS: [&str; 6] =
        ["SLURM_JOB", "SLURM_CONF", "SLURM_CLUSTER", "SLURM_WORKING_CLUSTER", "SLURM_JWT", "SLURM_SACK_"];
    let begins = |prefix: &&str| name.starts_with(prefix.as_bytes());
    ["SLURM", "SRUN_"].iter().any(begins) && !STAYS.iter().any(begins)
}

/// Reads lines, each cut to [`TEXT_BYTES_MAX`] bytes, to the end even if nothing receives them: the command must not
/// find its standard error closed.
async fn read_lines(mut from: Receiver, lines: mpsc::Sender<String>) {
    let (mut piece, mut line) = ([0; 1024], Vec::new());
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        for &byte in &piece[..length] {
            match byte {
                b'\n' => {
                    let text = String::from_utf8_lossy(&line).trim().to_owned();
                    line.clear();
                    let _ = lines.send(text).await;
                }
                _ if line.len() < TEXT_BYTES_MAX => line.push(byte),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_inherits_the_job_and_no_other_step() {
        // `srun` refuses SLURM_DEBUG together with --quiet.
        for name in [
            "SLURM_DEBUG",
            "SLURM_NTASKS",
            "SLURM_PROCID",
            "SLURM_CPUS_PER_TASK",
            "SLURM_HOSTFILE",
            "SRUN_CPUS_PER_TASK",
        ] {
            assert!(is_of_step(name.as_bytes()), "{name}");
        }
        for name in ["SLURM_JOB_ID", "SLURM_JOBID", "SLURM_CONF", "PATH", "CUDA_VISIBLE_DEVICES"] {
            assert!(!is_of_step(name.as_bytes()), "{name}");
        }
    }
}
