//! The messages between clients, the controller, and the launchers that serve clients.
//!
//! All of them are processes of one user on one machine. A client names its version first. Each message is one packet. The
//! part of a job that only its launcher reads, among it the environment, is in a file in memory, whose descriptor is in
//! the packet: packets are short.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use nix::sys::memfd::{MFdFlags, memfd_create};
use nla::bootstrap::agent_id;
use nla::core::Resources;
use nla::keeper::NodeState;
use nla::sys::{self, PACKET_BYTES_MAX, Packet, ShellState};
use nla::wire::{decode, encode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::absences::Absent;
use super::nodes::Health;
use super::waits::{Wait, Why};

/// The most bytes of a job's description: arguments, environment and configfile.
pub const DESCRIPTION_BYTES_MAX: u64 = 32 << 20;
/// The most characters of a job's words that the controller stores.
pub const WORDS_CHARS_MAX: usize = 400;

/// The most bytes of the names of nodes that a job avoids.
pub const AVOIDED_BYTES_MAX: usize = 16 * 1024;

/// The descriptors of a job.
pub const JOB_DESCRIPTORS: usize = 6;

/// The number of a job in its pool, from 1 on.
pub type JobNumber = u64;

/// The demands of a job on the pool.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Ask {
    /// The number of ranks, which is the number of slots that they need; all slots of the pool if `None`.
    pub ranks: Option<u32>,
    /// How many ranks each node gets.
    pub per_node: Option<u32>,
    /// How many nodes the ranks are spread over.
    pub nodes: Option<u32>,
    /// No other job runs on its nodes meanwhile.
    pub is_exclusive: bool,
    /// The accelerators and other devices that each rank gets.
    pub devices: Resources,
    /// Nodes that may fail: it gets others first.
    pub avoided: BTreeSet<String>,
    /// The job has no client.
    pub detached: Option<Detached>,
    /// Jobs with a higher priority start first.
    pub priority: i32,
    /// The job may wait for slots.
    pub waits: bool,
    /// The words of the command line, for people to recognize the job.
    pub words: String,
}

/// A job without a client, whose output the controller keeps.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Detached {
    /// How long it goes on while no client is attached, in milliseconds; without limit if `None`.
    pub orphan_ms: Option<u64>,
}

/// The first message on a client's connection.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// The version of the client's program.
    version: String,
    /// A [`ToController`], which is decoded only if it is of the same version.
    question: Vec<u8>,
}

impl Request {
    /// Makes a request of this program.
    pub fn of(question: &ToController) -> Self {
        Self { version: agent_id().to_string(), question: encode(question) }
    }

    /// Returns the question; `None` if the client has another version of this program.
    pub fn question(&self) -> Option<io::Result<ToController>> {
        let is_same = *self.version == *agent_id();
        is_same.then(|| decode(&self.question).map_err(io::Error::other))
    }
}

/// A question of a client to the controller.
#[derive(Debug, Serialize, Deserialize)]
pub enum ToController {
    /// Runs a job. Descriptors: the description, the working directory, standard input, output and error, and the line. The job
    /// is withdrawn if the connection ends before it has started.
    Run(Ask),
    /// Asks for the state of the pool.
    Status,
    /// Sends a signal to jobs; SIGINT, SIGTERM and SIGHUP withdraw those that wait; to all jobs if the list is empty.
    Signal(Vec<JobNumber>, i32),
    /// Attaches the client to a job that was detached. The answer is `Attached`, then `Ended` once the job has ended.
    Attach(JobNumber),
    /// Changes the nodes of the pool: those of this host list.
    Nodes(NodeChange, String),
    /// Ends all jobs and the pool. The answer is `Done`; then the connection ends with the controller.
    Stop {
        /// Kill the launchers of jobs, so that their agents end the ranks at once.
        kills: bool,
    },
}

/// A change of a pool's nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum NodeChange {
    /// Add them. The answer arrives once all of them are up, or one is down.
    Add {
        /// The accelerators and other devices of each of them.
        gres: Resources,
    },
    /// Give them no new jobs.
    Drain,
    /// Give drained nodes jobs again, and try those that are down at once.
    Resume,
}

/// A message of the controller to a client.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub enum ToClient {
    /// The job with this number waits, for this reason, and lacks these nodes.
    Waits(JobNumber, Wait, Absent),
    /// The job has started: its launcher answers on the line.
    Started(JobNumber),
    /// The job has this number, and no client.
    Detached(JobNumber),
    /// The descriptors are those of the files of a job's standard output and error.
    Attached,
    /// Texts of the job that the client is attached to, which could not be stored with its standard error.
    Unwritten(String),
    /// The job that the client is attached to has ended with this code.
    Ended(u8),
    /// The job is refused, or was ended before it started.
    Refused(JobRefusal),
    /// The state of the pool. One `Node` for each of its nodes and one `Job` for each of its jobs follow, then `Done`.
    Pool(PoolState),
    /// The state of a node.
    Node(NodeReport),
    /// The state of a job.
    Job(JobState),
    /// The jobs that a signal was to reach and that do not exist. Nothing follows.
    Unknown(Vec<JobNumber>),
    /// The nodes were not changed, or not all of them are up, for this reason.
    NodesRefused(String),
    /// Nothing follows.
    Done,
}

/// Why a job does not start.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum JobRefusal {
    /// It would have to wait, for this reason, lacks these nodes, and may not wait.
    Busy(Why, Absent),
    /// The pool has as many jobs as it can have.
    Full,
    /// The pool is being stopped.
    Stopping,
    /// All nodes have been down for so long that this job of the resource manager must have ended. The pool ends.
    AllocationLost(String),
    /// A signal has ended it while it waited.
    Signalled(i32),
    /// No node of the pool has the devices that a rank asks for.
    NoDevices(Resources),
    /// It asks for more nodes than the pool has.
    TooFewNodes {
        /// The nodes that it asks for.
        asks: u32,
        /// The nodes of the pool.
        has: u32,
    },
    /// Its output cannot be kept, for this reason.
    NotKept(String),
    /// The controller cannot start launchers.
    NoLauncher,
    /// The controller's program has this other version.
    OtherVersion(String),
}

/// The state of a pool.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct PoolState {
    /// Its name.
    pub name: String,
    /// The controller.
    pub pid: u32,
    /// The host that it runs on.
    pub host: String,
    /// How long it has run, in milliseconds.
    pub age_ms: u64,
    /// Its slots.
    pub slots: u32,
    /// The jobs that have ended.
    pub ended: u64,
    /// After how long without a job it ends, in milliseconds.
    pub idle_ms: Option<u64>,
    /// It is being stopped.
    pub is_stopping: bool,
}

/// The state of a node.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its name.
    pub name: String,
    /// Its slots.
    pub slots: u32,
    /// Those that jobs have.
    pub busy: u32,
    /// The jobs that have slots there.
    pub jobs: Vec<JobNumber>,
    /// Whether it can have jobs.
    pub health: Health,
    /// It gets no new jobs.
    pub is_drained: bool,
    /// The state that its keeper has reported last.
    pub state: Option<NodeState>,
}

/// The state of a job.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct JobState {
    /// Its number.
    pub job: JobNumber,
    /// Its launcher's pid; `None` while it waits.
    pub launcher: Option<u32>,
    /// The slots that it has or needs.
    pub slots: u32,
    /// Its priority.
    pub priority: i32,
    /// How long it has run or waited, in milliseconds.
    pub age_ms: u64,
    /// Why it waits, if it does.
    pub wait: Option<Wait>,
    /// It waits again, because a launcher that was given it has not taken it.
    pub is_returned: bool,
    /// The words of its command line.
    pub words: String,
}

/// The description of a job, which only its launcher reads.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Description {
    /// The client's arguments, its name first.
    arguments: Vec<Vec<u8>>,
    /// The configfile that it has read: path and contents.
    configfile: Option<(Vec<u8>, Vec<u8>)>,
    /// Its environment.
    environment: Vec<(Vec<u8>, Vec<u8>)>,
    /// The attributes that its ranks get.
    pub shell: ShellState,
    /// It was started without standard output.
    pub stdout_is_closed: bool,
}

impl Description {
    /// Describes the job of this process.
    pub fn of_process(
        arguments: Vec<OsString>,
        configfile: Option<(PathBuf, Vec<u8>)>,
        environment: Vec<(OsString, OsString)>,
    ) -> Self {
        Self {
            arguments: arguments.into_iter().map(OsString::into_vec).collect(),
            configfile: configfile.map(|(path, bytes)| (path.into_os_string().into_vec(), bytes)),
            environment: environment.into_iter().map(|(name, value)| (name.into_vec(), value.into_vec())).collect(),
            // Agents of a pool may have higher limits than those that the client would have started.
            shell: ShellState { bounds_hard: true, ..ShellState::recorded() },
            stdout_is_closed: sys::stdout_was_closed(),
        }
    }

    /// The same for a job that has no client, whose output is kept.
    pub fn without_client(
        arguments: Vec<OsString>,
        configfile: Option<(PathBuf, Vec<u8>)>,
        environment: Vec<(OsString, OsString)>,
    ) -> Self {
        Self { stdout_is_closed: false, ..Self::of_process(arguments, configfile, environment) }
    }

    /// Returns the client's arguments, its name first.
    pub fn arguments(&self) -> Vec<OsString> {
        self.arguments.iter().map(|word| OsString::from_vec(word.clone())).collect()
    }

    /// Returns the contents of the configfile that the client has read from `path`. Fails for any other path.
    pub fn configfile(&self, path: &Path) -> io::Result<Vec<u8>> {
        let known = self.configfile.as_ref().filter(|(known, _)| known == path.as_os_str().as_bytes());
        known.map(|(_, bytes)| bytes.clone()).ok_or(io::ErrorKind::NotFound.into())
    }

    /// Returns the environment, without what cannot be in one.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let fits = |(name, value): &&(Vec<u8>, Vec<u8>)| {
            !name.is_empty() && !name.contains(&b'=') && !name.contains(&0) && !value.contains(&0)
        };
        let variable =
            |(name, value): &(Vec<u8>, Vec<u8>)| (OsString::from_vec(name.clone()), OsString::from_vec(value.clone()));
        self.environment.iter().filter(fits).map(variable).collect()
    }

    /// Writes the description to a file in memory. Fails with `InvalidInput` if it is longer than [`DESCRIPTION_BYTES_MAX`].
    pub fn to_file(&self) -> io::Result<OwnedFd> {
        let bytes = encode(self);
        if bytes.len() as u64 > DESCRIPTION_BYTES_MAX {
            let text = format!(
                "its arguments and environment have {} MiB, the most is {}",
                bytes.len() >> 20,
                DESCRIPTION_BYTES_MAX >> 20
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        memory_file(&bytes)
    }

    /// Reads a description from a file.
    pub fn from_file(file: OwnedFd) -> io::Result<Self> {
        let mut file = File::from(file);
        let mut bytes = Vec::new();
        match file.rewind() {
            // It is a pipe.
            Err(error) if error.kind() == io::ErrorKind::NotSeekable => {}
            rewound => rewound?,
        }
        (&mut file).take(DESCRIPTION_BYTES_MAX).read_to_end(&mut bytes)?;
        decode(&bytes).map_err(io::Error::other)
    }
}

/// Returns a file in memory with these bytes; a pipe if the limit on file sizes, which applies to memory, too, is lower than that.
pub fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create(c"scela-job", MFdFlags::MFD_CLOEXEC)?);
    match file.write_all(bytes) {
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {}
        written => return written.map(|()| file.into()),
    }
    let (read, write) = sys::input_pipe()?;
    sys::widen_pipe(write.as_fd(), u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    // It does not wait: nothing reads yet.
    File::from(write).write_all(bytes).map_err(|_| {
        let text = "the limit on file sizes (ulimit -f) is lower than its arguments and environment";
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    })?;
    Ok(read)
}

/// Encodes a message as a packet.
pub fn packed<M: Serialize>(message: &M) -> Vec<u8> {
    let bytes = encode(message);
    debug_assert!(bytes.len() <= PACKET_BYTES_MAX);
    bytes
}

/// Decodes a packet.
pub fn unpacked<M: DeserializeOwned>(packet: &Packet) -> io::Result<M> {
    decode(&packet.bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(environment: &[(&str, &str)]) -> Description {
        let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        Description::of_process(vec!["scela-run".into(), "true".into()], None, environment)
    }

    #[test]
    fn a_description_passes_through_a_file() {
        let sent = description(&[("A", "1")]);
        let received = Description::from_file(sent.to_file().unwrap()).unwrap();
        assert_eq!(received, sent);
        assert_eq!(received.arguments(), ["scela-run", "true"]);
        let too_long = description(&[("A", &"x".repeat(DESCRIPTION_BYTES_MAX as usize))]);
        let error = too_long.to_file().unwrap_err().to_string();
        assert_eq!(error, "its arguments and environment have 32 MiB, the most is 32");
    }

    #[test]
    fn an_environment_has_only_what_the_kernel_accepts() {
        let variables = [("", "a"), ("B=", "b"), ("C\0", "c"), ("D", "d\0"), ("E", "e=")];
        assert_eq!(description(&variables).environment(), [("E".into(), "e=".into())]);
    }

    #[test]
    fn the_longest_words_of_a_job_fit_into_a_packet() {
        let words = "\u{10ffff}".repeat(WORDS_CHARS_MAX);
        let most = Some(u32::MAX);
        let ask = Ask {
            ranks: most,
            per_node: most,
            nodes: most,
            is_exclusive: true,
            devices: format!("gpu:{}", nla::core::limits::DEVICES_MAX).parse().unwrap(),
            // A name of one byte takes two.
            avoided: (0..AVOIDED_BYTES_MAX / 4).map(|at| format!("{at:04}")).collect(),
            detached: Some(Detached { orphan_ms: Some(u64::MAX) }),
            priority: i32::MIN,
            waits: true,
            words,
        };
        assert!(encode(&ToController::Run(ask)).len() < PACKET_BYTES_MAX);
    }
}
