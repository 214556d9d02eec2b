//! One session: from a command to an agent that is there, and what is said until it has joined.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::decide::deadline::Deadline;
use super::decide::failure::{StartFailure, StartPhase, judge};
use super::protocol::{BootCommand, BootOrder, BootReport, HostAt, Method, RemoteProgram};
use super::shell_channel::Reader;
use super::starter::END_TIME;
use super::step::forget_steps;
use super::{program, script};
use crate::link::SESSION_OPENER;
use crate::link::Stream;
use crate::wire::{encode, framed};

/// Bytes of a session's errors that are kept: the last ones.
const ERRORS_KEPT: usize = 4096;

/// A session that was opened.
pub(super) struct Session {
    input: Sender,
    reader: Reader,
    errors: Option<Errors>,
    /// What the shell at the other end is to do, where there is one.
    script: Option<Script>,
    /// It has become a program without a look at it, which has not shown yet that it is an agent.
    pub(super) was_trusted: bool,
    /// The process here lasts as long as the agent.
    pub(super) lasts: bool,
}

struct Script {
    /// What its lines begin with.
    mark: String,
    text: String,
    /// It becomes a program that is there without a look at it.
    trusts: bool,
}

/// The last words on a session's standard error, as they come in.
pub(super) struct Errors {
    kept: Rc<RefCell<Vec<u8>>>,
    reading: JoinHandle<()>,
}

impl Errors {
    fn follow(mut from: Receiver) -> Self {
        let kept = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&kept);
        let reading = tokio::task::spawn_local(async move {
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

    /// Waits for their end, and forgets all but the last: whoever writes there must not have to wait.
    pub(super) async fn follow_to_end(&mut self) -> String {
        let _ = (&mut self.reading).await;
        String::from_utf8_lossy(&self.kept.borrow()).into_owned()
    }

    /// All that was said before the end, which is near.
    pub(super) async fn last_words(&mut self) -> String {
        let _ = timeout(END_TIME, &mut self.reading).await;
        String::from_utf8_lossy(&self.kept.borrow()).into_owned()
    }
}

impl Drop for Errors {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

impl Session {
    /// Starts the process that opens the session. With `looks`, a program at its other end is asked for its version.
    pub(super) fn open(
        method: &Method,
        host: Option<&HostAt>,
        order: &BootOrder,
        looks: bool,
    ) -> Result<(Self, Child), StartFailure> {
        let dead_ms = order.dead_time.as_millis().to_string();
        match method {
            Method::Fork => {
                let mut command = Command::new("/proc/self/exe");
                command.arg0("scela-run").args(["--guard", &script::agent_id(), &order.label, &dead_ms]);
                Self::spawn(command, false, None, true).map_err(|error| {
                    StartFailure::new(StartPhase::Limits, format!("its process could not be started: {error}"))
                })
            }
            // Only whole steps are started: `Starter::start_steps`.
            Method::Step { .. } => Err(StartFailure::new(StartPhase::Command, "a step starts all agents or none")),
            Method::RemoteShell { words, lasts, program } => {
                let mark: String = order.marker.iter().map(|byte| format!("{byte:02x}")).collect();
                let text = script::script(program, looks, &mark, &order.label, &dead_ms);
                let trusts = !looks && matches!(program, RemoteProgram::Own { .. });
                let script = Script { mark, text, trusts };
                let words = words_for(words, host);
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                Self::spawn(command, true, Some(script), *lasts)
                    .map_err(|error| StartFailure::new(StartPhase::Command, format!("{}: {error}", words[0])))
            }
        }
    }

    fn spawn(
        mut command: Command,
        with_errors: bool,
        script: Option<Script>,
        lasts: bool,
    ) -> io::Result<(Self, Child)> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        if with_errors {
            // Ctrl-C at the terminal is for the launcher, which tells the agents itself.
            command.stderr(Stdio::piped()).process_group(0);
            // Where this process was reached from says nothing about the other node; a session by other
            // means than the secure shell would pass it on.
            command.env_remove(SESSION_OPENER);
            forget_steps(&mut command);
        }
        let mut child = command.spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or_else(|| io::Error::other("no pipes"))?;
        let input = Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
        let reader = Reader::new(Receiver::from_owned_fd(OwnedFd::from(pipes.1))?);
        let errors = child.stderr.take().map(|errors| Receiver::from_owned_fd(OwnedFd::from(errors))).transpose()?;
        let errors = errors.map(Errors::follow);
        Ok((Self { input, reader, errors, script, was_trusted: false, lasts }, child))
    }

    /// From the opened session to the agent's first words: its order is given, its program sent if it has
    /// to be. `None` if the session ends before.
    pub(super) async fn begin(
        &mut self,
        order: &BootOrder,
        deadline: &Deadline,
    ) -> Result<Option<BootReport>, StartFailure> {
        let patience = deadline.patience(order.below.is_some());
        timeout(patience, self.greet(order, deadline)).await.unwrap_or_else(|_| Err(StartFailure::late()))
    }

    async fn greet(&mut self, order: &BootOrder, deadline: &Deadline) -> Result<Option<BootReport>, StartFailure> {
        let Self { input, reader, script, was_trusted, .. } = self;
        if let Some(Script { mark, text, trusts }) = script {
            // Who does not take it says why when it ends.
            let _ = input.write_all(text.as_bytes()).await;
            let Some(word) = reader.word_behind(mark).await? else { return Ok(None) };
            *was_trusted = *trusts && word == "here";
            if word == "need" && (program::send(input).await.is_err() || reader.word_behind(mark).await?.is_none()) {
                return Ok(None);
            }
        }
        if input.write_all(&framed(&encode(&deadline.passed_on(order)))).await.is_err()
            || !reader.skip_to(&order.marker).await?
        {
            return Ok(None);
        }
        *was_trusted = false;
        reader.next().await
    }

    /// Waits for a report, or for something to tell.
    pub(super) async fn next_of(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<BootCommand>,
    ) -> Result<Option<BootReport>, StartFailure> {
        loop {
            let command = tokio::select! {
                report = self.reader.next() => return report,
                Some(command) = commands.recv() => command,
            };
            // If it does not listen any more, what it says next tells why.
            let _ = self.input.write_all(&framed(&encode(&command))).await;
        }
    }

    /// What links go over, with what has come that way already, and who follows the session's errors.
    pub(super) fn into_parts(self) -> (Stream, BytesMut, Option<Errors>) {
        let (output, said) = self.reader.into_parts();
        (Stream::pipes(output, self.input), BytesMut::from(&said[..]), self.errors)
    }

    /// What a session that is over says by its end: its process's exit code, and its last words.
    pub(super) async fn ended(&mut self, code: Option<i32>) -> StartFailure {
        let Some(errors) = &mut self.errors else {
            let rest = self.reader.rest();
            let words = if rest.is_empty() {
                "it ended before it had said anything".to_owned()
            } else {
                format!("it ended; its last words: {rest}")
            };
            return StartFailure::new(StartPhase::Ended, words);
        };
        let said = errors.last_words().await;
        tracing::debug!(?code, %said, "a session has ended");
        judge(code, &said)
    }
}

/// The command that a [`Starter`](super::starter::Starter) runs for an agent on `host`, to the byte; none where it
/// starts one of its own kind on this machine, or many by [one command](super::step::step_words).
pub fn opening_words(method: &Method, host: &HostAt) -> Option<Vec<String>> {
    match method {
        Method::Fork | Method::Step { .. } => None,
        Method::RemoteShell { words, .. } => Some(words_for(words, Some(host))),
    }
}

/// The words that open a session to `host`, and what it runs.
fn words_for(words: &[String], host: Option<&HostAt>) -> Vec<String> {
    let name = host.map_or(String::new(), |host| match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    });
    let opening = words.iter().map(|word| word.replace("{host}", &name));
    opening.chain(script::COMMAND.map(str::to_owned)).collect()
}
