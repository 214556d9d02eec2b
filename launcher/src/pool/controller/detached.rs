//! Jobs without a client. The controller takes the place of the client, and keeps the output.
//!
//! Each job has two files, which keep the last [`KEPT_BYTES`] of its standard output and error. A client that attaches itself reads
//! them. Files and exit codes of jobs that have ended are kept for the last [`ENDED_MAX`] of them, or fewer if their files have
//! more than [`ENDED_BYTES_MAX`].

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::signal::Signal;
use nla::sys::{Packets, WatchedPackets};
use tokio::task::AbortHandle;
use tokio::time::sleep;
use tracing::Span;

use super::{Actor, Event, until_left};
use crate::exit;
use crate::pool::handover::{loss_kind, refused};
use crate::pool::message::{Detached, JobNumber, JobRefusal, ToClient, memory_file, packed, unpacked};
use crate::pool::schedule::Input;
use crate::run::front::FromJob;

/// How many bytes of each stream are kept at least: the last ones.
const KEPT_BYTES: u64 = 64 << 20;
/// A multiple of the blocks of file systems.
const BLOCK_BYTES: u64 = 1 << 20;
/// How many bytes the files of jobs that have ended may have together.
const ENDED_BYTES_MAX: u64 = 1 << 30;
/// How often the lengths of the files are looked at.
const TRIM_PAUSE: Duration = Duration::from_secs(1);
/// How many jobs that have ended are kept.
const ENDED_MAX: usize = 256;
/// The places of standard output, standard error and the line among the descriptors of a job.
const OUTPUT: usize = 3;
const ERRORS: usize = 4;
const LINE: usize = 5;

/// A job without a client.
pub(super) struct DetachedJob {
    /// The files of its standard output and error.
    paths: [PathBuf; 2],
    /// How long it goes on while no client is attached.
    orphan_time: Option<Duration>,
    /// The attached clients, by their numbers.
    attached: Vec<(u64, Rc<WatchedPackets>)>,
    /// Counts attachments, so that a timer knows whether there was one meanwhile.
    attachments: u64,
    /// The task that bounds its files.
    trimming: AbortHandle,
    /// The schedule has accepted it, and its submitter knows its number.
    is_accepted: bool,
    /// Its exit code, once it has ended.
    code: Option<u8>,
    /// Texts that could not be stored with its standard error.
    unwritten: String,
    /// Its launcher has written an error.
    has_reported: bool,
}

impl DetachedJob {
    /// Tells a client the end of the job, which has ended.
    fn tell_end(&self, client: &WatchedPackets) {
        if !self.unwritten.is_empty() {
            let _ = client.try_send(&packed(&ToClient::Unwritten(self.unwritten.clone())), &[]);
        }
        if let Some(code) = self.code {
            let _ = client.try_send(&packed(&ToClient::Ended(code)), &[]);
        }
    }
}

/// Something that has happened to a job without a client.
pub(in crate::pool) enum DetachedEvent {
    /// Its launcher has sent a message, or has closed the line.
    Line(JobNumber, Option<FromJob>),
    /// An attached client has left.
    Left(JobNumber, u64),
    /// No client was attached since there had been so many attachments.
    Orphaned(JobNumber, u64),
}

impl Actor {
    /// Takes the place of the client of a job, whose descriptors these are, before the job is scheduled.
    pub(super) fn detach(&mut self, job: JobNumber, detached: Detached, descriptors: &mut [OwnedFd]) -> io::Result<()> {
        let directory = self.files.jobs();
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let [own, other] = Packets::pair()?;
        let line = WatchedPackets::of(own)?;
        let paths = ["out", "err"].map(|ending| directory.join(format!("{job}.{ending}")));
        // Last: nothing fails after the files exist, so a job that is refused leaves none.
        let [(output, output_trimmed), (errors, errors_trimmed)] = create_files(&paths)?;
        let trimming = trim([output_trimmed, errors_trimmed]);
        self.tasks.spawn("line", Span::current(), follow_line(job, line, self.events.clone()));
        let trimming = self.tasks.spawn("trim", Span::current(), trimming).abort_handle();
        (descriptors[OUTPUT], descriptors[ERRORS]) = (output.into(), errors.into());
        descriptors[LINE] = other.into();
        let orphan_time = detached.orphan_ms.map(Duration::from_millis);
        let state = DetachedJob {
            paths,
            orphan_time,
            attached: Vec::new(),
            attachments: 0,
            trimming,
            is_accepted: false,
            code: None,
            unwritten: String::new(),
            has_reported: false,
        };
        self.detached.insert(job, state);
        Ok(())
    }

    /// Answers the client of a job with the job's number, unless the schedule has refused the job. If the client has left, the job
    /// is withdrawn.
    pub(super) fn accept_detached(&mut self, client: &WatchedPackets, job: JobNumber) {
        let Some(state) = self.detached.get_mut(&job) else { return };
        state.is_accepted = true;
        self.watch_orphan(job);
        if client.try_send(&packed(&ToClient::Detached(job)), &[]).is_err() {
            self.handle(Input::Signal(vec![job], Signal::SIGTERM as i32));
        }
    }

    pub(super) fn on_detached(&mut self, event: DetachedEvent) {
        match event {
            DetachedEvent::Line(job, Some(FromJob::Ended(code))) => self.end_detached(job, code, ""),
            DetachedEvent::Line(job, Some(FromJob::Unwritten(text))) => {
                if let Some(state) = self.detached.get_mut(&job) {
                    state.unwritten = text;
                }
            }
            DetachedEvent::Line(job, Some(FromJob::Reported)) => {
                if let Some(state) = self.detached.get_mut(&job) {
                    state.has_reported = true;
                }
            }
            // A suspended job needs no action: SIGCONT to its launcher continues it. Cut output is visible in its files.
            DetachedEvent::Line(_, Some(FromJob::Begins(_) | FromJob::Suspended | FromJob::OutputCut(_))) => {}
            DetachedEvent::Line(job, Some(FromJob::NotStarted(why))) => {
                self.end_detached(
                    job,
                    exit::EarlyEnd::NotLaunched.code(),
                    &format!("the job could not be launched: {why}"),
                );
            }
            DetachedEvent::Line(job, None) => {
                self.end_detached(job, exit::LOST, "the launcher of the job was killed; its ranks were ended");
            }
            DetachedEvent::Left(job, number) => {
                if let Some(state) = self.detached.get_mut(&job) {
                    state.attached.retain(|(attached, _)| *attached != number);
                    self.watch_orphan(job);
                }
            }
            DetachedEvent::Orphaned(job, attachments) => {
                let is_orphan = |state: &DetachedJob| {
                    state.attached.is_empty() && state.attachments == attachments && state.code.is_none()
                };
                if self.detached.get(&job).is_some_and(is_orphan) {
                    self.handle(Input::Signal(vec![job], Signal::SIGHUP as i32));
                }
            }
        }
    }

    /// Notes that a job does not start, if it is one without a client. Forgets it if its client is told so.
    pub(super) fn refuse_detached(&mut self, job: JobNumber, why: &JobRefusal) {
        if self.detached.get(&job).is_some_and(|state| !state.is_accepted) {
            return self.forget_detached(job);
        }
        let (code, text) = not_started(&self.name, why);
        self.end_detached(job, code, &text);
    }

    /// Notes the end of a job, of which standard error says `why` unless that is empty, and tells the attached clients.
    fn end_detached(&mut self, job: JobNumber, code: u8, why: &str) {
        let Some(state) = self.detached.get_mut(&job).filter(|state| state.code.is_none()) else { return };
        if !why.is_empty() {
            let text = format!("scela-run: {}{why}\n", loss_kind(state.has_reported));
            let errors = OpenOptions::new().append(true).open(&state.paths[1]);
            if errors.and_then(|mut file| file.write_all(text.as_bytes())).is_err() {
                state.unwritten.push_str(&text);
            }
        }
        state.code = Some(code);
        state.trimming.abort();
        let attached: Vec<_> = state.attached.drain(..).collect();
        attached.iter().for_each(|(_, client)| state.tell_end(client));
        self.forget_oldest();
    }

    /// Forgets jobs that have ended, the oldest first, as far as there are too many, or their files are too long.
    fn forget_oldest(&mut self) {
        let stored = |state: &DetachedJob| {
            let bytes = |path| std::fs::metadata(path).map_or(0, |found: std::fs::Metadata| found.blocks() * 512);
            state.paths.iter().map(bytes).sum::<u64>()
        };
        let ended: Vec<(JobNumber, u64)> = self
            .detached
            .iter()
            .filter(|(_, state)| state.code.is_some())
            .map(|(job, state)| (*job, stored(state)))
            .collect();
        let mut bytes: u64 = ended.iter().map(|(_, bytes)| bytes).sum();
        for (at, (job, stored)) in ended.iter().enumerate() {
            let left = ended.len() - at;
            // The last one is kept, however long it is.
            if left == 1 || (left <= ENDED_MAX && bytes <= ENDED_BYTES_MAX) {
                break;
            }
            bytes -= stored;
            self.forget_detached(*job);
        }
    }

    fn forget_detached(&mut self, job: JobNumber) {
        if let Some(state) = self.detached.remove(&job) {
            state.trimming.abort();
            state.paths.iter().for_each(|path| remove(path));
        }
    }

    /// Returns whether a job without a client has not ended, as far as its launcher has said.
    pub(super) fn has_detached(&self) -> bool {
        self.detached.values().any(|state| state.code.is_none())
    }

    /// Attaches a client to a job without one.
    pub(super) fn attach(&mut self, client: Rc<WatchedPackets>, job: JobNumber) {
        let Some(state) = self.detached.get_mut(&job) else {
            let _ = client.try_send(&packed(&ToClient::Unknown(vec![job])), &[]);
            return;
        };
        // If they were removed, the code is left.
        let opened =
            state.paths.each_ref().map(|path| File::open(path).map(OwnedFd::from).or_else(|_| memory_file(b"")));
        let [Ok(output), Ok(errors)] = opened else {
            let _ = client.try_send(&packed(&ToClient::Unknown(vec![job])), &[]);
            return;
        };
        let _ = client.try_send(&packed(&ToClient::Attached), &[output.as_fd(), errors.as_fd()]);
        if state.code.is_some() {
            return state.tell_end(&client);
        }
        state.attachments += 1;
        let number = state.attachments;
        state.attached.push((number, Rc::clone(&client)));
        if let Some((wait, absent)) = self.schedule.lack(self.began.elapsed(), job) {
            let _ = client.try_send(&packed(&ToClient::Waits(job, wait, absent)), &[]);
        }
        self.report_after("client", until_left(client), Event::Detached(DetachedEvent::Left(job, number)));
    }

    /// Tells the clients that are attached to a job why it waits.
    pub(super) fn tell_attached(&self, job: JobNumber, message: &ToClient) {
        if let (Some(state), ToClient::Waits(..)) = (self.detached.get(&job), message) {
            // The end of the connection reports a lost client.
            state.attached.iter().for_each(|(_, client)| drop(client.try_send(&packed(message), &[])));
        }
    }

    /// Ends a job after its orphan time, if no client is attached then.
    fn watch_orphan(&self, job: JobNumber) {
        let Some(state) = self.detached.get(&job).filter(|state| state.attached.is_empty()) else { return };
        let Some(orphan_time) = state.orphan_time else { return };
        let event = Event::Detached(DetachedEvent::Orphaned(job, state.attachments));
        self.report_after("orphan", sleep(orphan_time), event);
    }
}

/// Returns the exit code of a job that does not start, and the reason.
fn not_started(pool: &str, why: &JobRefusal) -> (u8, String) {
    match why {
        JobRefusal::Signalled(signal) => (exit::signalled(*signal), "the job was ended before it started".to_owned()),
        why => (exit::EarlyEnd::NotLaunched.code(), refused(pool, why).with_hint()),
    }
}

/// Creates the files of a job, with two descriptors for each. If one cannot be created, this call leaves neither.
fn create_files(paths: &[PathBuf; 2]) -> io::Result<[(File, File); 2]> {
    let output = create_file(&paths[0])?;
    let errors = create_file(&paths[1]).inspect_err(|_| remove(&paths[0]))?;
    Ok([output, errors])
}

fn create_file(path: &Path) -> io::Result<(File, File)> {
    let file = OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?;
    match file.try_clone() {
        Ok(other) => Ok((file, other)),
        Err(error) => {
            remove(path);
            Err(error)
        }
    }
}

/// Removes a file, if that is possible.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Passes on what a launcher says to the client of its job.
async fn follow_line(job: JobNumber, line: WatchedPackets, events: tokio::sync::mpsc::Sender<Event>) {
    loop {
        let message = match line.receive().await {
            Ok(Some(packet)) => unpacked(&packet).ok(),
            Ok(None) | Err(_) => None,
        };
        let is_over = message.is_none();
        if events.send(Event::Detached(DetachedEvent::Line(job, message))).await.is_err() || is_over {
            return;
        }
    }
}

/// Frees the beginnings of files that have become too long.
async fn trim(files: [File; 2]) {
    loop {
        sleep(TRIM_PAUSE).await;
        for file in &files {
            let length = file.metadata().map_or(0, |found| found.len());
            // In whole blocks: a part of a block is not freed, and reads as zeros.
            let beyond = length.saturating_sub(KEPT_BYTES) / BLOCK_BYTES * BLOCK_BYTES;
            if beyond > 0 {
                let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
                // A file system that cannot do this keeps everything.
                let _ = fallocate(file.as_fd(), flags, 0, beyond.cast_signed());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_job_leaves_no_file_if_another_one_cannot_be_created() {
        let place = tempfile::tempdir().unwrap();
        let paths = ["7.out", "7.err"].map(|name| place.path().join(name));
        let left = || fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
        fs::write(&paths[1], "another job's").unwrap();
        assert_eq!(create_files(&paths).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(left(), [paths[1].clone()]);
        fs::rename(&paths[1], &paths[0]).unwrap();
        assert_eq!(create_files(&paths).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(left(), [paths[0].clone()]);
        fs::remove_file(&paths[0]).unwrap();
        assert!(create_files(&paths).is_ok());
        assert_eq!(left().len(), 2);
    }

    #[test]
    fn the_reason_of_a_job_that_does_not_start_is_kept() {
        let text = "the pool 'night' can start no launcher\n  hint: 'ulimit -u' and the memory of this machine may be too low; \
                    its log is beside its socket";
        assert_eq!(not_started("night", &JobRefusal::NoLauncher), (251, text.to_owned()));
        let text = "the job was ended before it started";
        assert_eq!(not_started("night", &JobRefusal::Signalled(15)), (143, text.to_owned()));
    }
}
