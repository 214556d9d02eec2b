//! How a job is handed over to a pool, and the meaning of the messages about it: for `scela-run --pool` and `scela pool map`.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nla::figures::counted;
use nla::sys::{Packet, Packets};
use serde::de::DeserializeOwned;

use super::absences::Absent;
use super::message::{Ask, Description, JobNumber, JobRefusal, Request, ToClient, ToController, packed, unpacked};
use super::waits::Wait;
use crate::refusal::Refusal;
use crate::run::front::FromJob;

/// How long a job is sent again while the kernel has too many descriptors of this user on the way.
pub(super) const SEND_TIME: Duration = Duration::from_secs(10);
/// The pause between two attempts to send it.
pub(super) const SEND_PAUSE: Duration = Duration::from_millis(20);

/// A job that is ready to be sent to a controller.
pub(super) struct Submission<'a> {
    request: Vec<u8>,
    description: OwnedFd,
    directory: OwnedFd,
    /// Standard input, output and error.
    streams: [BorrowedFd<'a>; 3],
    line: Packets,
    /// The launcher's end of `line`.
    other: Packets,
}

impl<'a> Submission<'a> {
    /// Prepares a job in the working directory of this process.
    pub(super) fn new(ask: Ask, description: &Description, streams: [BorrowedFd<'a>; 3]) -> io::Result<Self> {
        let [line, other] = Packets::pair()?;
        Ok(Self {
            request: packed(&Request::of(&ToController::Run(ask))),
            description: description.to_file()?,
            directory: open(".", OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?,
            streams,
            line,
            other,
        })
    }

    /// Sends the job. Returns false if the kernel, which bounds the descriptors of a user that are on the way, has refused that: then
    /// the caller tries again after [`SEND_PAUSE`].
    pub(super) fn send(&self, controller: &Packets) -> io::Result<bool> {
        let [input, output, error] = self.streams;
        let descriptors = [self.description.as_fd(), self.directory.as_fd(), input, output, error, self.other.as_fd()];
        match controller.send(&self.request, &descriptors, true) {
            Err(error) if error.raw_os_error() == Some(Errno::ETOOMANYREFS as i32) => Ok(false),
            sent => sent.map(|()| true),
        }
    }

    /// Returns this process's end of the line to the launcher, once the job was sent.
    pub(super) fn into_line(self) -> Packets {
        self.line
    }
}

/// Something that has happened to a job.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// It waits, with the text for the user, and lacks these nodes.
    Waits(String, Absent),
    /// It has started.
    Started,
    /// It does not start.
    Refused(JobRefusal),
    /// The pool has ended before the job started.
    PoolEnded,
    /// Its ranks are stopped.
    Suspended,
    /// Its launcher could not begin, for this reason.
    NotLaunched(String),
    /// Some of its output could not be written, for this reason.
    OutputCut(String),
    /// It has ended with this code.
    Ended(u8),
    /// Its launcher was killed.
    Lost,
}

/// A job that was handed over.
#[derive(Debug)]
pub(super) struct Handed {
    pool: String,
    /// Its number, once it has started.
    job: Option<JobNumber>,
    /// Its launcher has reported an error to the user.
    has_reported: bool,
}

impl Handed {
    /// Follows a job of this pool.
    pub(super) fn new(pool: &str) -> Self {
        Self { pool: pool.to_owned(), job: None, has_reported: false }
    }

    /// Returns whether the job has started.
    pub(super) fn has_started(&self) -> bool {
        self.job.is_some()
    }

    /// Handles a packet of the controller, or the end of its connection. The connection has no meaning once the job has started.
    pub(super) fn on_controller(&mut self, packet: Option<&Packet>) -> Option<Event> {
        Some(match message(packet) {
            Some(ToClient::Started(job)) => {
                self.job = Some(job);
                Event::Started
            }
            Some(ToClient::Waits(job, wait, absent)) => {
                Event::Waits(waits_text(&self.pool, job, &wait, &absent), absent)
            }
            Some(ToClient::Refused(why)) => Event::Refused(why),
            // Answers to other questions.
            Some(
                ToClient::Pool(_)
                | ToClient::Node(_)
                | ToClient::Job(_)
                | ToClient::Unknown(_)
                | ToClient::Detached(_)
                | ToClient::Attached
                | ToClient::Unwritten(_)
                | ToClient::Ended(_)
                | ToClient::NodesRefused(_)
                | ToClient::Done,
            ) => return None,
            None => Event::PoolEnded,
        })
    }

    /// Handles a packet of the launcher, or the end of its connection.
    pub(super) fn on_launcher(&mut self, packet: Option<&Packet>) -> Option<Event> {
        Some(match message(packet) {
            // The controller may say so later than the job's first output.
            Some(FromJob::Begins(job)) => {
                self.job = Some(job);
                return None;
            }
            Some(FromJob::Suspended) => Event::Suspended,
            Some(FromJob::Reported) => {
                self.has_reported = true;
                return None;
            }
            Some(FromJob::NotStarted(why)) => Event::NotLaunched(why),
            Some(FromJob::OutputCut(why)) => Event::OutputCut(why),
            Some(FromJob::Ended(code)) => Event::Ended(code),
            // The standard error is the client's own.
            Some(FromJob::Unwritten(_)) => return None,
            // While the job waits, the controller has the other end, and the end of its connection says more.
            None => return self.job.map(|_| Event::Lost),
        })
    }

    /// Reports the loss of the launcher: as an error, unless the launcher has reported one, since a job has one report.
    pub(super) fn lost_text(&self) -> String {
        let (job, kind) = (self.job.unwrap_or_default(), loss_kind(self.has_reported));
        format!(
            "scela-run: {kind}the launcher of job {job} in the pool '{}' was killed; its ranks were ended",
            self.pool
        )
    }
}

/// Returns the prefix of the report on a lost launcher: `error: `, unless the launcher has reported an error already.
pub(super) fn loss_kind(has_reported: bool) -> &'static str {
    if has_reported { "" } else { "error: " }
}

/// Decodes a packet. Something else than a message counts as the end of the connection.
fn message<M: DeserializeOwned>(packet: Option<&Packet>) -> Option<M> {
    packet.and_then(|packet| unpacked(packet).ok())
}

/// Describes the wait of a job, which lacks these nodes.
pub(super) fn waits_text(pool: &str, job: JobNumber, wait: &Wait, absent: &Absent) -> String {
    let text = format!("job {job} waits in the pool '{pool}': {wait}{absent}");
    if absent.is_empty() { text } else { format!("{text}\n  hint: {}", absent.hint(pool)) }
}

/// Returns why a job cannot be handed over.
pub(super) fn failed(pool: &str, error: &io::Error) -> Refusal {
    Refusal::new(format!("the job cannot be handed over to the pool '{pool}': {error}"), "").of_system()
}

/// Returns why a job does not run whose launcher could not begin.
pub(super) fn not_launched_text(why: &str) -> String {
    format!("the job could not be launched: {why}")
}

/// Returns why a job does not start in a pool that has ended. `when` follows that.
pub(super) fn pool_ended(pool: &str, when: &str) -> Refusal {
    let text = format!("the pool '{pool}' has ended{when}");
    Refusal::new(text, format!("'scela pool start {pool}' starts it again")).of_system()
}

/// Returns why a job does not start.
pub(super) fn refused(pool: &str, why: &JobRefusal) -> Refusal {
    let (text, hint) = match why {
        JobRefusal::Busy(why, absent) => {
            let text = format!("the job cannot start at once in the pool '{pool}': {why}{absent}");
            let hint = if absent.is_empty() { "without --no-wait it waits".to_owned() } else { absent.hint(pool) };
            return Refusal::new(text, hint).of_system();
        }
        JobRefusal::OtherVersion(version) => (
            format!("the pool '{pool}' was started by another version of this program, {version}"),
            "stop it and start it again",
        ),
        JobRefusal::TooFewNodes { asks, has } => (
            format!("the job asks for {}, and the pool '{pool}' has {has}", counted((*asks).into(), "node")),
            match has {
                // This machine is the only node of a pool that was not started on hosts.
                1 => "'scela pool add' adds nodes to a pool that was started with --hosts",
                _ => "'scela pool add' adds nodes",
            },
        ),
        JobRefusal::NoDevices(devices) => (
            format!("no node of the pool '{pool}' has {devices}"),
            "gres= in the file of 'scela pool start -f', or --gres, says what nodes have",
        ),
        JobRefusal::NotKept(why) => (why.clone(), "the directory of the pool may be full"),
        JobRefusal::Full => (format!("too many jobs wait in the pool '{pool}'"), "try again when some have started"),
        JobRefusal::Stopping => (format!("the pool '{pool}' is being stopped"), ""),
        JobRefusal::AllocationLost(allocation) => (
            format!("the pool '{pool}' ends, because all its nodes are down: {allocation} seems to have ended"),
            "start a pool in another allocation",
        ),
        JobRefusal::NoLauncher => (
            format!("the pool '{pool}' can start no launcher"),
            "'ulimit -u' and the memory of this machine may be too low; its log is beside its socket",
        ),
        JobRefusal::Signalled(signal) => (format!("signal {signal} has ended the job"), ""),
    };
    Refusal::new(text, hint).of_system()
}

#[cfg(test)]
mod tests {
    use super::super::absences::{AbsenceKind, AbsentNodes};
    use super::super::waits::Why;
    use super::*;
    use serde::Serialize;

    fn packet(message: &impl Serialize) -> Packet {
        Packet { bytes: packed(message), descriptors: Vec::new() }
    }

    #[test]
    fn the_end_of_a_connection_means_what_has_happened_before() {
        let mut handed = Handed::new("night");
        assert_eq!(handed.on_launcher(None), None, "the controller has the other end");
        assert_eq!(handed.on_controller(None), Some(Event::PoolEnded));
        assert_eq!(handed.on_controller(Some(&packet(&ToClient::Started(7)))), Some(Event::Started));
        assert!(handed.has_started());
        assert_eq!(handed.on_launcher(None), Some(Event::Lost));
        let text = "the launcher of job 7 in the pool 'night' was killed; its ranks were ended";
        assert_eq!(handed.lost_text(), format!("scela-run: error: {text}"));
        assert_eq!(handed.on_launcher(Some(&packet(&FromJob::Reported))), None);
        assert_eq!(handed.lost_text(), format!("scela-run: {text}"), "it is no second error");
        let garbage = Packet { bytes: vec![0xc1], descriptors: Vec::new() };
        assert_eq!(handed.on_launcher(Some(&garbage)), Some(Event::Lost));
    }

    #[test]
    fn a_job_is_sent_once_more_only_if_the_kernel_has_refused_its_descriptors() {
        let [controller, other] = Packets::pair().unwrap();
        let streams = std::fs::File::open("/dev/null").unwrap();
        let description = Description::of_process(Vec::new(), None, Vec::new());
        let job = Submission::new(Ask::default(), &description, [streams.as_fd(); 3]).unwrap();
        assert!(job.send(&controller).unwrap());
        drop(other);
        assert!(job.send(&controller).is_err());
    }

    #[test]
    fn the_reason_of_a_launcher_that_cannot_begin_is_told() {
        assert_eq!(not_launched_text("no memory"), "the job could not be launched: no memory");
    }

    #[test]
    fn a_pool_of_one_node_may_be_on_this_machine_only() {
        let hint = |has| refused("night", &JobRefusal::TooFewNodes { asks: 3, has }).hint().to_owned();
        assert_eq!(hint(2), "'scela pool add' adds nodes");
        assert_eq!(hint(1), "'scela pool add' adds nodes to a pool that was started with --hosts");
    }

    #[test]
    fn messages_become_events() {
        let mut handed = Handed::new("night");
        let waits = |absent| ToClient::Waits(3, Wait { why: Why::Kept(1), ahead: 2 }, absent);
        let text = "job 3 waits in the pool 'night': the slots for it are kept for job 1, which has waited longer; 2 jobs are \
                    before it";
        let none = Absent::default();
        let told = Event::Waits(text.to_owned(), none.clone());
        assert_eq!(handed.on_controller(Some(&packet(&waits(none)))), Some(told));
        let nodes = AbsentNodes {
            names: "n[1-2]".to_owned(),
            count: 2,
            kind: AbsenceKind::Drained,
            why: String::new(),
            age_ms: 5000,
        };
        let some = Absent { groups: vec![nodes], others: 0 };
        let hint = "'scela pool resume \"n[1-2]\" night' uses drained nodes again and tries those that are down at once; \
                    'scela jobs night' lists the jobs that wait";
        let text = format!("{text}\n  n[1-2] have been drained for up to 5 s\n  hint: {hint}");
        let told = Event::Waits(text, some.clone());
        assert_eq!(handed.on_controller(Some(&packet(&waits(some.clone())))), Some(told));
        let busy = self::refused("night", &JobRefusal::Busy(Why::Kept(1), some));
        let text = "the job cannot start at once in the pool 'night': the slots for it are kept for job 1, which has waited \
                    longer\n  n[1-2] have been drained for up to 5 s";
        assert_eq!(busy.with_hint(), format!("{text}\n  hint: {hint}"));
        let refused = packet(&ToClient::Refused(JobRefusal::Full));
        assert_eq!(handed.on_controller(Some(&refused)), Some(Event::Refused(JobRefusal::Full)));
        assert_eq!(handed.on_controller(Some(&packet(&ToClient::Done))), None);
        let cut = packet(&FromJob::OutputCut("full".to_owned()));
        assert_eq!(handed.on_launcher(Some(&cut)), Some(Event::OutputCut("full".to_owned())));
        assert_eq!(handed.on_launcher(Some(&packet(&FromJob::Ended(3)))), Some(Event::Ended(3)));
        let mut early = Handed::new("p");
        assert_eq!(early.on_launcher(Some(&packet(&FromJob::Begins(7)))), None);
        assert!(early.has_started());
        let why = FromJob::NotStarted("no".to_owned());
        assert_eq!(handed.on_launcher(Some(&packet(&why))), Some(Event::NotLaunched("no".to_owned())));
    }
}
