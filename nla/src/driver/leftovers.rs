//! Notes which files in /dev/shm ranks have mapped, and removes those that killed ranks leave.
//!
//! [`ShmLedger`] decides. One thread reads the directory and the processes, because /proc/PID/maps blocks while a thread
//! of that process holds the lock of its memory, for example in a stalled file system. The thread is started when
//! /dev/shm has changed since the agent began: a job whose ranks use no shared memory costs one fstat per fence, for
//! the first few fences.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use pmi::Rank;
use tokio::sync::oneshot;

use crate::core::is_ending_signal;
use crate::core::{CleanShm, EndWatch, Exit, FileId, FileReport, Mapped, NamespaceId, ShmEntry, ShmLedger, Verdict};
use crate::sys::{self, FileNumbers, ProcessFiles, SharedFile, SharedMemory, ShmNote};
use crate::tasks::Tasks;

/// An agent does not look for its ranks' files if /dev/shm has more files than this.
const ENTRIES_MAX: usize = 65_536;
/// How many releases of fences are followed by a look at /dev/shm. MPI libraries map their files in MPI_Init.
const FENCES_NOTED: u32 = 16;
/// How long signals to ranks may wait for a look at their mappings. Those of a rank take about 0.1 ms to read.
const NOTE_TIME: Duration = Duration::from_secs(2);
/// After a signal has waited for a look, further ones do not wait for this long: ending the ranks may take one signal
/// for each of many namespaces.
const NOTE_PAUSE: Duration = Duration::from_millis(500);
/// How long the search for processes that still use a file may take.
const CLEAN_TIME: Duration = Duration::from_secs(1);
/// The same, with what a busy machine may add.
pub(super) const CLEAN_DEADLINE: Duration = Duration::from_millis(1500);
/// The most requests that wait for the thread. Further looks are left out.
const REQUESTS_MAX: usize = 32;
/// The most processes of ranks that one look reads.
const PROCESSES_MAX: usize = 4096;

enum Request {
    /// Note the files that these ranks and their descendants have mapped.
    Note { ranks: Vec<u32>, done: Option<SyncSender<()>> },
    /// Remove what the ranks have left.
    Clean { done: oneshot::Sender<FileReport> },
}

/// The files that exist in /dev/shm.
struct Listing {
    memory: SharedMemory,
    /// The time of the last change before the files were listed.
    changed: i128,
    inodes: BTreeSet<u64>,
}

impl Listing {
    fn take() -> io::Result<Self> {
        let memory = SharedMemory::open()?;
        let changed = memory.changed()?;
        let inodes = memory.list(ENTRIES_MAX)?.into_iter().map(|(_, inode)| inode).collect();
        Ok(Self { memory, changed, inodes })
    }

    fn is_current(&self) -> bool {
        self.memory.changed().is_ok_and(|changed| changed == self.changed)
    }
}

/// The state of /dev/shm when it was last looked at, and the thread that looks.
struct Watching {
    memory: SharedMemory,
    ledger: ShmLedger,
    /// The time of the last change before the agent's first rank was started.
    begun: i128,
    /// The time of the last change that was looked at.
    seen: i128,
    thread: Option<SyncSender<Request>>,
    announced: ShmNote,
    tasks: Tasks,
}

/// The files in /dev/shm that this agent's ranks use.
#[derive(Default)]
pub(super) struct SharedFiles {
    /// The files that existed when the agent joined.
    listing: Option<Listing>,
    /// `None` if the user wants no file removed, or /dev/shm cannot be read.
    watching: Option<Watching>,
    ends: EndWatch,
    fences_noted: u32,
    /// When a signal last waited for a look.
    waited_at: Option<Instant>,
    /// The thread was late once, so no signal waits for it any more.
    is_late: bool,
}

impl SharedFiles {
    /// Lists the files that exist, while the agent waits for the session. [`begin`](Self::begin) is then faster.
    pub(super) fn look_ahead(&mut self) {
        self.listing = Listing::take().ok();
    }

    /// Records which files exist. Call this before the first rank is started.
    pub(super) fn begin(&mut self, policy: CleanShm, announced: ShmNote, tasks: &Tasks) {
        announced.clear();
        let listing = self.listing.take().filter(Listing::is_current);
        if policy == CleanShm::None {
            return;
        }
        let watching = listing.map_or_else(Listing::take, Ok).map(|Listing { memory, changed, inodes }| {
            let ledger = ShmLedger::new(policy, sys::user(), inodes);
            Watching { memory, ledger, begun: changed, seen: changed, thread: None, announced, tasks: tasks.clone() }
        });
        let watching = watching.inspect_err(|error| {
            tracing::info!(%error, "files that killed ranks leave in /dev/shm are not removed");
        });
        self.watching = watching.ok();
    }

    /// The session has no other agent with ranks on this node. Call this before the first rank is started.
    pub(super) fn set_alone(&mut self) {
        if let Some(watching) = &mut self.watching {
            watching.ledger.set_alone();
        }
    }

    /// A rank has initialized PMI.
    pub(super) fn on_initialized(&mut self, namespace: NamespaceId, rank: Rank) {
        self.ends.on_initialized(namespace, rank);
    }

    /// A rank has finalized PMI.
    pub(super) fn on_finalized(&mut self, namespace: NamespaceId, rank: Rank) {
        self.ends.on_finalized(namespace, rank);
    }

    /// A rank has ended. After the first abnormal end, the files of the `others` are noted: they may end as well.
    pub(super) fn on_ended(&mut self, namespace: NamespaceId, rank: Rank, exit: &Exit, others: impl Fn() -> Vec<u32>) {
        if self.ends.on_ended(namespace, rank, exit) {
            self.note(others, None);
        }
    }

    /// A fence was released. Its ranks have mapped what they share through it.
    pub(super) fn on_release(&mut self, ranks: impl Fn() -> Vec<u32>) {
        if self.fences_noted < FENCES_NOTED {
            self.fences_noted += 1;
            self.note(ranks, None);
        }
    }

    /// A signal is about to be sent to ranks. If it ends them, notes their files first, for at most [`NOTE_TIME`].
    pub(super) fn before_signal(&mut self, signal: i32, ranks: impl Fn() -> Vec<u32>) {
        if !is_ending_signal(signal) {
            return;
        }
        self.ends.on_ending_signal();
        if self.is_late || self.waited_at.is_some_and(|at| at.elapsed() < NOTE_PAUSE) {
            return;
        }
        let (done, noted) = sync_channel(1);
        if self.note(ranks, Some(done)) {
            self.is_late = noted.recv_timeout(NOTE_TIME).is_err();
            self.waited_at = Some(Instant::now());
        }
    }

    /// Has the thread note the files of `ranks`, if /dev/shm has changed. Returns whether it will.
    fn note(&mut self, ranks: impl Fn() -> Vec<u32>, done: Option<SyncSender<()>>) -> bool {
        let Some(watching) = &mut self.watching else { return false };
        let Ok(changed) = watching.memory.changed() else { return false };
        // Before ranks end, look even if the time is that of the last look: it may hide a change in the same clock
        // tick.
        let is_due = changed != watching.seen || (done.is_some() && changed != watching.begun);
        if !is_due {
            return false;
        }
        watching.seen = changed;
        watching.request(Request::Note { ranks: ranks(), done })
    }

    /// Removes what the ranks have left, if they have ended abnormally. Returns `None` if there is nothing to do.
    pub(super) fn clean(&mut self) -> Option<oneshot::Receiver<FileReport>> {
        let watching = self.watching.as_mut().filter(|_| self.ends.is_abnormal())?;
        if watching.memory.changed().is_ok_and(|changed| changed == watching.begun) {
            return None;
        }
        let (done, report) = oneshot::channel();
        watching.request(Request::Clean { done }).then_some(report)
    }
}

impl Watching {
    fn request(&mut self, request: Request) -> bool {
        if self.thread.is_none() {
            self.thread = self.start().inspect_err(|error| tracing::info!(%error, "no thread for /dev/shm")).ok();
        }
        self.thread.as_ref().is_some_and(|thread| thread.try_send(request).is_ok())
    }

    fn start(&self) -> std::io::Result<SyncSender<Request>> {
        let (requests, incoming) = sync_channel(REQUESTS_MAX);
        let (memory, ledger, announced) = (SharedMemory::open()?, self.ledger.clone(), self.announced);
        let worker = Worker { memory, ledger, announced };
        self.tasks.spawn_thread("leftovers", move || {
            sys::leave_exit_signals();
            sys::set_thread_nice(5);
            worker.run(&incoming);
        })?;
        Ok(requests)
    }
}

/// The thread that reads the directory and the processes.
struct Worker {
    memory: SharedMemory,
    ledger: ShmLedger,
    /// The files that the guardian is to remove if this agent is killed.
    announced: ShmNote,
}

impl Worker {
    fn run(mut self, incoming: &Receiver<Request>) {
        while let Ok(request) = incoming.recv() {
            match request {
                Request::Note { ranks, done } => {
                    self.note(ranks);
                    // The agent may have stopped waiting.
                    done.map(|done| done.try_send(()));
                }
                Request::Clean { done } => drop(done.send(self.clean(Instant::now() + CLEAN_TIME))),
            }
        }
    }

    /// Returns the files that are newer than the agent.
    fn new_entries(&self) -> Vec<ShmEntry> {
        let listed = self.memory.list(ENTRIES_MAX).unwrap_or_default();
        let new = listed.into_iter().filter(|(_, inode)| !self.ledger.is_old(*inode));
        new.filter_map(|(name, _)| Some(entry(name.clone(), &self.memory.file(&name)?))).collect()
    }

    fn note(&mut self, ranks: Vec<u32>) {
        let entries = self.new_entries();
        let mut wanted = self.ledger.unexplained(&entries);
        let me = std::process::id();
        let mut left: VecDeque<(u32, u32)> = ranks.into_iter().map(|rank| (rank, me)).collect();
        for _ in 0..PROCESSES_MAX {
            if wanted.is_empty() {
                return;
            }
            let Some((pid, parent)) = left.pop_front() else { return };
            // A rank may have ended. A process that got its pid has another parent.
            let Ok(process) = ProcessFiles::open(pid) else { continue };
            if process.parent() != Some(parent) {
                continue;
            }
            let maps = process.maps().unwrap_or_default();
            let mapped = sys::mapped_files(&maps).map(|(device, inode)| FileId { device, inode });
            for id in mapped.filter(|id| wanted.remove(id)).collect::<Vec<_>>() {
                self.ledger.note(id);
                let may_remove = |entry: &ShmEntry| self.ledger.judge(entry, Mapped::No) == Verdict::Remove;
                if entries.iter().any(|entry| entry.id == id && may_remove(entry)) {
                    self.announced.add(id.inode);
                }
                tracing::debug!(pid, inode = id.inode, "noted a file in /dev/shm");
            }
            left.extend(process.children().into_iter().map(|child| (child, pid)));
        }
    }

    fn clean(&self, until: Instant) -> FileReport {
        let mut report = FileReport::default();
        let entries: Vec<_> = self.new_entries().into_iter().filter(|entry| self.ledger.needs_mapped(entry)).collect();
        if entries.is_empty() {
            return report;
        }
        let wanted = entries.iter().map(|entry| numbers(entry.id)).collect();
        let (in_use, is_complete) = sys::files_in_use(&wanted, until);
        for entry in entries {
            let mapped = match in_use.contains(&numbers(entry.id)) {
                true => Mapped::Yes,
                false if is_complete => Mapped::No,
                false => Mapped::Unknown,
            };
            match self.ledger.judge(&entry, mapped) {
                Verdict::Remove if self.memory.remove(&entry.name, &file(&entry)) => report.note_removed(entry.bytes),
                // Removed by another process, or not removable.
                Verdict::Remove if self.memory.file(&entry.name).is_none() => {}
                Verdict::Remove | Verdict::Report => report.note_left(&entry.name),
                Verdict::Ignore => {}
            }
        }
        tracing::debug!(?report, "files that ranks have left in /dev/shm");
        report
    }
}

fn numbers(id: FileId) -> FileNumbers {
    (id.device, id.inode)
}

fn entry(name: Vec<u8>, file: &SharedFile) -> ShmEntry {
    let SharedFile { device, inode, owner, is_regular, bytes } = *file;
    ShmEntry { name, id: FileId { device, inode }, owner, is_regular, bytes }
}

fn file(entry: &ShmEntry) -> SharedFile {
    let ShmEntry { id, owner, is_regular, bytes, .. } = *entry;
    SharedFile { device: id.device, inode: id.inode, owner, is_regular, bytes }
}
