//! The agent's `scela-pmix`: its process, its socket and its directory.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream as StdStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tracing::Span;

use crate::bootstrap::{Processes, Started};
use crate::core::{NamespaceId, PmixPlan, SessionPlan};
use crate::pmix::message::{ToAgent, ToHelper, frame_length, write_frame};
use crate::pmix::relay::Relay;
use crate::sys::pmix::NO_DIRECTORY;
use crate::sys::{self, AnnouncedDirectory, DirectoryNote};
use crate::tasks::Tasks;
use crate::wire::decode;

/// The argument that makes this program `scela-pmix`.
pub const PMIX_ARGUMENT: &str = "--pmix-server";
/// The beginning of the directory's name.
const PREFIX: &str = "scela-pmix-";
/// How long `scela-pmix` may take to register a namespace. It may have to load libpmix from a slow file system.
const ANSWER_TIME: Duration = Duration::from_secs(90);
/// How long `scela-pmix` may take to end.
const LEAVE_TIME: Duration = Duration::from_secs(2);
/// Messages that may wait in each direction. A rank has few calls under way.
const MESSAGES_MAX: usize = 1 << 16;

/// An event of `scela-pmix`.
pub(super) enum PmixEvent {
    /// It has sent a message.
    Message(Box<ToAgent>),
    /// It has ended, or has not answered in time. The text completes "its scela-pmix ...".
    Lost(String),
}

/// The process that serves PMIx, and the decisions about it.
pub(super) struct Pmix {
    pub(super) relay: Relay,
    to_helper: mpsc::Sender<ToHelper>,
    from_helper: mpsc::Receiver<ToAgent>,
    process: Started,
    directory: AnnouncedDirectory,
    /// Namespaces that are not registered yet.
    awaited: HashSet<NamespaceId>,
    /// The time by which all registrations under way must be completed.
    until: Instant,
    watch: Watch,
    has_ended: bool,
}

/// Notices a process that does not answer. It counts ticks of the agent, so that no time passes while both are stopped.
#[derive(Debug, Default, PartialEq)]
struct Watch {
    /// Registrations under way. They may take long, and later requests wait behind them.
    registering: u32,
    /// Ticks since the last answer.
    beats: u32,
    /// It was asked and has not answered.
    is_asked: bool,
}

/// The action at a tick.
#[derive(Debug, PartialEq)]
enum Beat {
    Wait,
    Ask,
    Lost,
}

impl Watch {
    /// A message is sent.
    fn on_sent(&mut self, message: &ToHelper) {
        if let ToHelper::Register(_) = message {
            self.registering += 1;
            (self.beats, self.is_asked) = (0, false);
        }
    }

    /// A message has arrived.
    fn on_received(&mut self, message: &ToAgent) {
        match message {
            ToAgent::Registered(..) => self.registering = self.registering.saturating_sub(1),
            ToAgent::Alive => {}
            _ => return,
        }
        (self.beats, self.is_asked) = (0, false);
    }

    /// Handles a tick; a dead time has `per_dead_time` of them. Asks after one silent dead time, and reports the loss after a
    /// second one. During a registration, only a process that stays stopped for a dead time counts as lost.
    fn beat(&mut self, per_dead_time: u32, is_stopped: impl FnOnce() -> bool) -> Beat {
        if self.registering > 0 {
            self.beats = if is_stopped() { self.beats + 1 } else { 0 };
            return if self.beats > per_dead_time { Beat::Lost } else { Beat::Wait };
        }
        self.beats += 1;
        match (self.beats > per_dead_time, self.is_asked) {
            (false, _) => Beat::Wait,
            (true, true) => Beat::Lost,
            (true, false) => {
                (self.beats, self.is_asked) = (0, true);
                Beat::Ask
            }
        }
    }
}

impl Pmix {
    /// Starts the process, on the node of this name.
    pub(super) fn start(
        plan: &PmixPlan,
        host: String,
        session: &SessionPlan,
        note: DirectoryNote,
        processes: &Processes,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let directory = make_directory(&std::env::temp_dir(), note)?;
        let (ours, theirs) = StdStream::pair()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("scela-pmix").arg(PMIX_ARGUMENT).process_group(0);
        command.stdin(Stdio::from(std::os::fd::OwnedFd::from(theirs))).stdout(Stdio::null());
        // The variables of an enclosing launcher must not reach libpmix.
        command.env_clear();
        for (name, value) in &session.environment {
            if [&b"LD_LIBRARY_PATH"[..], b"HOME", b"PATH"].contains(&name.as_slice()) {
                command.env(OsStr::from_bytes(name), OsStr::from_bytes(value));
            }
        }
        // Its shared memory at fixed addresses fails in some ranks (openpmix 3886, 3889, 4156).
        command.env("PMIX_MCA_gds", "hash").env("TMPDIR", directory.path());
        match std::env::var_os("SCELA_LOG") {
            Some(filter) => drop(command.env("SCELA_LOG", filter)),
            None => drop(command.stderr(Stdio::null())),
        }
        sys::end_with_this_thread(&mut command);
        let child = command.spawn()?;
        let process = processes.add(child.id(), false);
        ours.set_nonblocking(true)?;
        let (read, write) = UnixStream::from_std(ours)?.into_split();
        let (to_helper, to_write) = mpsc::channel(MESSAGES_MAX);
        let (have_read, from_helper) = mpsc::channel(MESSAGES_MAX);
        tasks.spawn("pmix reader", Span::current(), read_all(read, have_read));
        tasks.spawn("pmix writer", Span::current(), write_all(write, to_write));
        let begin = ToHelper::Begin {
            library: plan.library.clone(),
            directory: directory.path().display().to_string(),
            host,
            namespace: plan.name_of("server"),
        };
        let mut pmix = Self {
            relay: Relay::new(plan.clone()),
            to_helper,
            from_helper,
            process,
            directory,
            awaited: HashSet::new(),
            until: Instant::now(),
            watch: Watch::default(),
            has_ended: false,
        };
        pmix.send(begin);
        Ok(pmix)
    }

    /// Returns the pid of the process.
    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Sends a message.
    pub(super) fn send(&mut self, message: ToHelper) {
        self.watch.on_sent(&message);
        if let ToHelper::Register(_) = message {
            self.until = Instant::now() + ANSWER_TIME;
        }
        if let Err(error) = self.to_helper.try_send(message) {
            // Either it has ended, which is reported, or it does not read, and waiting ranks would never be answered.
            tracing::error!(%error, "scela-pmix takes no message");
            self.process.end();
        }
    }

    /// A tick of the agent; see [`Ticks`](crate::link::Ticks). Returns the loss of the process if it has not answered.
    pub(super) fn beat(&mut self, per_dead_time: u32, dead_time: Duration) -> Option<PmixEvent> {
        if self.has_ended {
            return None;
        }
        let (pid, registers) = (self.process.pid(), self.watch.registering > 0);
        let is_stopped = || sys::process_state(pid).is_some_and(|state| b"Tt".contains(&state));
        match self.watch.beat(per_dead_time, is_stopped) {
            Beat::Wait => None,
            Beat::Ask => {
                self.send(ToHelper::Ping);
                None
            }
            Beat::Lost => {
                // It ends after the ranks: one that loses it in MPI_Init goes on alone, with a directory of its own that stays.
                self.has_ended = true;
                let time = dead_time.as_secs_f64();
                Some(PmixEvent::Lost(match registers {
                    true => {
                        format!("(process {pid}) was stopped for {time} s before it had registered the ranks")
                    }
                    false => format!("has not answered for {time} s; was it stopped, or does libpmix hang?"),
                }))
            }
        }
    }

    /// Expects that a namespace is registered.
    pub(super) fn await_registration(&mut self, namespace: NamespaceId) {
        self.awaited.insert(namespace);
    }

    /// Notes that the registration of a namespace has succeeded or failed.
    pub(super) fn note_registered(&mut self, namespace: NamespaceId) {
        self.awaited.remove(&namespace);
    }

    /// Takes the namespaces that are not registered yet.
    pub(super) fn take_awaited(&mut self) -> Vec<NamespaceId> {
        self.awaited.drain().collect()
    }

    /// Waits for the next event. Cancel-safe. Yields nothing after a loss.
    pub(super) async fn next(&mut self) -> PmixEvent {
        if self.has_ended {
            return std::future::pending().await;
        }
        let event = tokio::select! {
            biased;
            message = self.from_helper.recv() => match message {
                Some(message) => {
                    self.watch.on_received(&message);
                    return PmixEvent::Message(Box::new(message));
                }
                None => PmixEvent::Lost("ended; was it killed?".to_owned()),
            },
            () = sleep_until(self.until), if self.watch.registering > 0 =>
                PmixEvent::Lost(format!("has not registered the ranks within {} s", ANSWER_TIME.as_secs())),
        };
        self.has_ended = true;
        event
    }
}

impl Pmix {
    /// Closes the socket, so that the process handles its last messages and ends. Then removes the directory.
    pub(super) async fn leave(self) {
        let Self { process, to_helper, from_helper, directory, has_ended, .. } = self;
        drop((to_helper, from_helper));
        if has_ended {
            process.end();
        }
        if process.exit_code(LEAVE_TIME).await.is_none() {
            process.end();
        }
        if let Err(left) = directory.remove() {
            tracing::warn!(%left, "the directory of scela-pmix cannot be removed");
        }
    }
}

/// Makes the directory of a session's files on this node.
fn make_directory(parent: &Path, note: DirectoryNote) -> io::Result<AnnouncedDirectory> {
    AnnouncedDirectory::make(parent, PREFIX, note)
        .map_err(|error| io::Error::new(error.kind(), format!("{NO_DIRECTORY} {}: {error}", parent.display())))
}

async fn read_all(read: OwnedReadHalf, messages: mpsc::Sender<ToAgent>) {
    let mut read = BufReader::new(read);
    let next = async |read: &mut BufReader<OwnedReadHalf>| -> io::Result<ToAgent> {
        let mut length = [0; 4];
        read.read_exact(&mut length).await?;
        let mut bytes = vec![0; frame_length(length)?];
        read.read_exact(&mut bytes).await?;
        decode(&bytes).map_err(io::Error::other)
    };
    loop {
        match next(&mut read).await {
            Ok(message) => {
                if messages.send(message).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                if error.kind() != ErrorKind::UnexpectedEof {
                    tracing::error!(%error, "scela-pmix cannot be read");
                }
                return;
            }
        }
    }
}

async fn write_all(mut write: OwnedWriteHalf, mut messages: mpsc::Receiver<ToHelper>) {
    while let Some(message) = messages.recv().await {
        let mut bytes = Vec::new();
        // The reader reports the end of the socket.
        if write_frame(&mut bytes, &message).is_err() || write.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::message::Registration;

    const BEATS: u32 = 3;

    #[test]
    fn a_missing_parent_of_the_directory_is_named() {
        let error = make_directory(Path::new("/nonexistent"), DirectoryNote::new().unwrap()).unwrap_err();
        let expected = "no directory can be made in /nonexistent: No such file or directory (os error 2)";
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::NotFound, expected));
    }

    #[track_caller]
    fn beats(watch: &mut Watch, last: Beat) {
        (0..BEATS).for_each(|_| assert_eq!(watch.beat(BEATS, || false), Beat::Wait));
        assert_eq!(watch.beat(BEATS, || false), last);
    }

    #[test]
    fn a_process_that_does_not_answer_is_lost() {
        let mut watch = Watch::default();
        beats(&mut watch, Beat::Ask);
        watch.on_received(&ToAgent::Alive);
        beats(&mut watch, Beat::Ask);
        // A message of libpmix's threads is no answer to a ping.
        watch.on_received(&ToAgent::Got(1, None));
        beats(&mut watch, Beat::Lost);
    }

    #[test]
    fn no_answer_is_expected_during_a_registration() {
        let mut watch = Watch::default();
        let job = pmi::JobDescription {
            kvsname: "job".to_owned(),
            size: 1,
            universe: 1,
            spawner: None,
            mapping: pmi::Mapping::from_nodes([0]),
            programs: Vec::new(),
        };
        let (name, hosts) = ("job".to_owned(), Vec::new());
        let registration = Registration { name, hosts, node: 0, spawner: None, job, cpus: Vec::new() };
        beats(&mut watch, Beat::Ask);
        watch.on_sent(&ToHelper::Register(Box::new(registration)));
        (0..3 * BEATS).for_each(|_| assert_eq!(watch.beat(BEATS, || false), Beat::Wait));
        (0..BEATS).for_each(|_| assert_eq!(watch.beat(BEATS, || true), Beat::Wait));
        assert_eq!(watch.beat(BEATS, || false), Beat::Wait, "it has gone on");
        (0..BEATS).for_each(|_| assert_eq!(watch.beat(BEATS, || true), Beat::Wait));
        assert_eq!(watch.beat(BEATS, || true), Beat::Lost);
        watch.on_received(&ToAgent::Registered("job".to_owned(), Ok(Vec::new())));
        beats(&mut watch, Beat::Ask);
    }
}
