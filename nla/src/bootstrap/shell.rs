//! One remote shell: the process of this machine that reaches a node, and the pipes to its other end.
//!
//! A forked agent on this machine is handled in the same way: its pipes lead to the agent itself. So is an agent that the keeper of a
//! node starts: its pipes lead to the controller of the pool.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::Span;

use super::decide::failure::{StartFailure, StartPhase};
use super::decide::schedule::Task;
use super::decide::ssh::judge;
use super::processes::Started;
use super::protocol::{BootOrder, BootReport, HostAt, Method, RemoteProgram};
use super::shell_channel::Reader;
use super::starter::{END_TIME, Shared};
use super::step::remove_step_variables;
use super::{program, script};
use crate::link::{SSH_CONNECTION, Stream};
use crate::sys::{self, ForkedGuardian};
use crate::tasks::Tasks;
use crate::wire::secret_frame;

/// How many bytes of standard error are kept: the last ones.
const ERRORS_KEPT: usize = 4096;

/// A remote shell that was opened.
pub(super) struct Shell {
    pub(super) input: Sender,
    pub(super) reader: Reader,
    /// The process of this machine; `None` if there is none, as for a keeper's agent.
    pub(super) process: Option<Started>,
    errors: Option<Errors>,
    /// The script for the shell at the other end; `None` if that is the agent.
    script: Option<Script>,
    /// The script executed a program without checking its version, and the program has not answered as an agent.
    pub(super) was_unchecked: bool,
    /// The process here lasts as long as the agent.
    pub(super) lasts: bool,
}

struct Script {
    /// The prefix of the script's own lines.
    mark: String,
    text: String,
    /// The script executes a program that is already on the node without checking its version.
    is_unchecked: bool,
}

/// The end of what a remote shell writes to standard error, read as it arrives.
pub(super) struct Errors {
    kept: Rc<RefCell<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Errors {
    fn read(mut from: Receiver, spawner: &Tasks) -> Self {
        let kept = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&kept);
        let reading = spawner.spawn("shell errors", Span::current(), async move {
            let mut piece = [0; 1024];
            while let Ok(length @ 1..) = from.read(&mut piece).await {
                let mut kept = into.borrow_mut();
                kept.extend_from_slice(&piece[..length]);
                let beyond = kept.len().saturating_sub(ERRORS_KEPT);
                kept.drain(..beyond);
            }
        });
        Self { kept, reading }
    }

    /// Reads to the end, but for at most `limit`. Returns the last bytes.
    pub(super) async fn last_words(&mut self, limit: Duration) -> String {
        let _ = timeout(limit, &mut self.reading).await;
        String::from_utf8_lossy(&self.kept.borrow()).into_owned()
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Shell {
    /// Starts the process that reaches the node of a task.
    pub(super) fn open(shared: &Shared, task: &Task, order: &BootOrder) -> Result<Self, StartFailure> {
        let dead_ms = order.dead_time.as_millis().to_string();
        match &shared.method {
            Method::Fork => {
                let forked = shared.forked.borrow_mut().pop();
                let forked =
                    forked.ok_or_else(|| StartFailure::new(StartPhase::Limits, "no guardian was forked for it"))?;
                let (guardian, process) = forked;
                let shell = Self::of_forked(guardian, process.clone()).map_err(|error| {
                    StartFailure::new(StartPhase::Limits, format!("its pipes could not be used: {error}"))
                })?;
                shared.guardians.borrow_mut().push((task.target, process));
                Ok(shell)
            }
            Method::Keeper => {
                let failed =
                    |error| StartFailure::new(StartPhase::Command, format!("the keeper cannot be asked: {error}"));
                let host = task.host.as_ref().map_or("", |host| &host.name);
                Self::of_keeper(shared, host, order).map_err(failed)
            }
            // Steps are started as a whole: `Starter::start_steps`.
            Method::Step { .. } => Err(StartFailure::new(StartPhase::Command, "a step starts all agents or none")),
            Method::RemoteShell { words, lasts, program } => {
                let mark = program::hex(order.marker);
                let text = script::script(program, task.checks_version, &mark, &order.label, &dead_ms);
                let is_unchecked = !task.checks_version && matches!(program, RemoteProgram::Own { .. });
                // On this machine the shell itself becomes the guardian.
                let lasts = *lasts || task.host.as_ref().is_some_and(|host| host.is_here);
                let words = words_for(words, task.host.as_ref());
                Self::spawn(shared, remote_command(&words), Script { mark, text, is_unchecked }, lasts)
                    .map_err(|error| StartFailure::new(StartPhase::Command, format!("{}: {error}", words[0])))
            }
        }
    }

    fn of_forked(forked: ForkedGuardian, process: Started) -> io::Result<Self> {
        Self::to_agent(forked.input, forked.output, None, Some(process))
    }

    fn of_keeper(shared: &Shared, host: &str, order: &BootOrder) -> io::Result<Self> {
        let keepers = shared.keepers.as_ref().ok_or(io::ErrorKind::Unsupported)?;
        let (theirs_in, input) = sys::input_pipe()?;
        let [(output, theirs_out), (errors, theirs_err)] = [sys::pipe()?, sys::pipe()?];
        keepers.ask(host, &order.label, order.dead_time, [theirs_in, theirs_out, theirs_err])?;
        let errors = Errors::read(Receiver::from_owned_fd(errors)?, &shared.spawner);
        Self::to_agent(input, output, Some(errors), None)
    }

    fn to_agent(input: OwnedFd, output: OwnedFd, errors: Option<Errors>, process: Option<Started>) -> io::Result<Self> {
        let input = Sender::from_owned_fd(input)?;
        let reader = Reader::new(Receiver::from_owned_fd(output)?);
        Ok(Self { input, reader, process, errors, script: None, was_unchecked: false, lasts: true })
    }

    fn spawn(shared: &Shared, mut command: Command, script: Script, lasts: bool) -> io::Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or_else(|| io::Error::other("no pipes"))?;
        let input = Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
        let reader = Reader::new(Receiver::from_owned_fd(OwnedFd::from(pipes.1))?);
        let errors = child.stderr.take().map(|errors| Receiver::from_owned_fd(OwnedFd::from(errors))).transpose()?;
        let errors = errors.map(|errors| Errors::read(errors, &shared.spawner));
        let process = shared.processes.add(child.id(), false);
        Ok(Self { input, reader, process: Some(process), errors, script: Some(script), was_unchecked: false, lasts })
    }

    /// Runs the script, sends the program if the node lacks it, sends the order, and waits for the agent's first
    /// report. `order` is called when the order is written, since it contains the remaining time. `None` if the remote
    /// shell ends before.
    pub(super) async fn first_report(
        &mut self,
        limit: Duration,
        order: impl Fn() -> BootOrder,
    ) -> Result<Option<BootReport>, StartFailure> {
        timeout(limit, self.send_order(order)).await.unwrap_or_else(|_| Err(StartFailure::late()))
    }

    async fn send_order(&mut self, order: impl Fn() -> BootOrder) -> Result<Option<BootReport>, StartFailure> {
        let Self { input, reader, script, was_unchecked, lasts, .. } = self;
        if let Some(Script { mark, text, is_unchecked }) = script {
            // A shell that does not read its input says why when it ends.
            let _ = input.write_all(text.as_bytes()).await;
            let Some(mut word) = reader.word_behind(mark).await? else { return Ok(None) };
            *was_unchecked = *is_unchecked && word != "need";
            if word == "need" {
                if program::send(input).await.is_err() {
                    return Ok(None);
                }
                let Some(then) = reader.word_behind(mark).await? else { return Ok(None) };
                word = then;
            }
            if word == script::HERE_LASTS {
                tracing::debug!("the remote shell stays open: logind would kill the agent if it closed");
                *lasts = true;
            }
        }
        let order = order();
        if input.write_all(&secret_frame(&order)).await.is_err() || !reader.skip_to(&order.marker).await? {
            return Ok(None);
        }
        *was_unchecked = false;
        reader.next().await
    }

    /// Returns the stream for a link, and the reader of standard error.
    pub(super) fn into_parts(self) -> (Stream, Option<Errors>) {
        let (output, unread) = self.reader.into_parts();
        (Stream::pipes(output, self.input, &unread), self.errors)
    }

    /// Returns why a remote shell ended, by its exit code and its last words.
    pub(super) async fn end_reason(&mut self) -> StartFailure {
        let code = match &self.process {
            Some(process) => process.exit_code(END_TIME).await,
            None => None,
        };
        let Some(errors) = &mut self.errors else {
            let rest = self.reader.rest();
            let words = if rest.is_empty() {
                "it ended before it wrote anything".to_owned()
            } else {
                format!("it ended; its last words: {rest}")
            };
            return StartFailure::new(StartPhase::Ended, words);
        };
        let said = errors.last_words(END_TIME).await;
        tracing::debug!(?code, ?said, "a remote shell has ended");
        judge(code, &said)
    }
}

/// Returns a command that reaches other nodes, with a pipe from its standard error.
pub(super) fn remote_command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    // Its own process group: SIGINT from the terminal is for the launcher, which tells the agents itself.
    command.args(&words[1..]).stderr(Stdio::piped()).process_group(0);
    sys::end_with_this_thread(&mut command);
    // SSH_CONNECTION describes how this process was reached. A command other than ssh would pass it on to the other
    // nodes, where it is wrong.
    command.env_remove(SSH_CONNECTION);
    remove_step_variables(&mut command);
    command
}

/// Returns the command that a starter runs for an agent on `host`, word by word; `None`
/// for a fork, for a keeper and for [a step](super::step::step_words), which starts many agents.
pub fn opening_words(method: &Method, host: &HostAt) -> Option<Vec<String>> {
    match method {
        Method::Fork | Method::Keeper | Method::Step { .. } => None,
        Method::RemoteShell { words, .. } => Some(words_for(words, Some(host))),
    }
}

/// Returns the words that open a remote shell to `host`, and what it runs there. On this machine nothing has to be opened.
fn words_for(words: &[String], host: Option<&HostAt>) -> Vec<String> {
    let name = host.map_or(String::new(), |host| match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    });
    let words = if host.is_some_and(|host| host.is_here) { &[] } else { words };
    let opening = words.iter().map(|word| word.replace("{host}", &name));
    opening.chain(script::COMMAND.map(str::to_owned)).collect()
}
