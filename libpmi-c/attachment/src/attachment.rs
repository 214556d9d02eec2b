//! [`Attachment`]: the connection of a process to its PMI server, for both C libraries.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::io::Write;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use pmi::board::{DEAD_PROCESSES, check_put};
use pmi::client::ClientError;
use pmi::limits::ABORT_MESSAGE_BYTES_MAX;
use pmi::v1::client::Maxes;
use pmi::v2::client::Ring;
use pmi::{Ranks, SpawnRequest, SpawnedJob, v1, v2};

use crate::client::{Client, SCELA_MAXES, Version};
use crate::clique::ranks_on_same_node;
use crate::environment::Environment;
use crate::error::Error;
use crate::member::Member;
use crate::own_puts::OwnPuts;
use crate::replies::FenceEnd;
use crate::segment::Segment;
use crate::{forked, socket};

/// The connection of this process to its PMI server. Each library has one, as a static.
///
/// All methods may be called from any thread at any time. [`Attachment::member`] and
/// [`Attachment::get`] take no lock while the shared segment can answer. A fence that waits for others
/// holds no lock: threads may be in fences of different groups, and in one of all ranks, in any order.
/// Only in PMI-2 without a segment, and on servers other than ScELA's, does every request over the
/// connection wait for the one before it, even for a fence.
///
/// In a child of the process that initialised PMI, every call fails with [`Error::NotInitialized`] and
/// touches neither the connection nor a lock.
///
/// **Lock order:** `fences`, then `connection`. No other lock is taken while the one inside `own_puts`
/// is held.
#[derive(Debug)]
pub struct Attachment {
    version: Version,
    /// Null before initialisation and after finalisation.
    member: AtomicPtr<Member>,
    /// The last value of `member` that was not null.
    last: AtomicPtr<Member>,
    /// Set by [`Attachment::abort`]: the process is about to exit.
    is_aborting: AtomicBool,
    /// The descriptor to poll for a closed connection; -1 without one.
    descriptor: AtomicI32,
    own_puts: OwnPuts,
    /// A fence of a group has shown puts that the segment does not have.
    has_group_puts: AtomicBool,
    connection: Mutex<Connection>,
    /// The fences that threads are in, of groups with their tags; `None` is that of all ranks.
    fences: Mutex<Vec<Option<(Ranks, u32)>>>,
    /// A thread has left a fence.
    left_fence: Condvar,
}

/// The place of one thread in a fence, which no other thread can be in meanwhile.
struct InFence<'a> {
    attachment: &'a Attachment,
    group: Option<(Ranks, u32)>,
}

#[derive(Debug)]
struct Connection {
    client: Option<Client>,
    /// Set by a failure after which a reply can no longer be matched to its request.
    is_lost: bool,
    /// Every value that [`Attachment::member`] has had: one, unless the program changes its environment.
    known: Vec<&'static Member>,
}

/// Keys with their values; each key occurs once.
pub type Entries = Box<dyn Iterator<Item = (Cow<'static, [u8]>, Cow<'static, [u8]>)> + Send>;

/// A rank that waits in the segment first checks after this time whether its agent has closed the
/// connection. Each further interval is twice as long: ranks may wait for hours while others compute,
/// and should not disturb them.
const AGENT_CHECK_MIN: Duration = Duration::from_secs(1);
/// The longest interval between two such checks.
const AGENT_CHECK_MAX: Duration = Duration::from_secs(32);

impl Attachment {
    /// Returns the attachment of a process that has not initialised PMI yet.
    pub const fn new(version: Version) -> Self {
        Self {
            version,
            member: AtomicPtr::new(ptr::null_mut()),
            last: AtomicPtr::new(ptr::null_mut()),
            is_aborting: AtomicBool::new(false),
            descriptor: AtomicI32::new(-1),
            own_puts: OwnPuts::new(),
            has_group_puts: AtomicBool::new(false),
            connection: Mutex::new(Connection { client: None, is_lost: false, known: Vec::new() }),
            fences: Mutex::new(Vec::new()),
            left_fence: Condvar::new(),
        }
    }

    /// Initialises PMI, or returns the existing member if it is initialised already.
    pub fn initialize(&self, environment: &Environment) -> Result<&'static Member, Error> {
        check_process()?;
        forked::mark();
        if let Ok(member) = self.member() {
            return Ok(member);
        }
        let mut connection = self.connection()?;
        if let Ok(member) = self.member() {
            return Ok(member);
        }
        let (mut client, member) = Client::open(self.version, environment)?;
        let member = match connection.known.iter().find(|known| known.is_same(&member)) {
            Some(known) => known,
            None => {
                // Never freed, see `Member`.
                let member: &'static Member = Box::leak(Box::new(member));
                connection.known.push(member);
                member
            }
        };
        self.descriptor.store(client.descriptor().unwrap_or(-1), Ordering::Relaxed);
        connection.client = Some(client);
        connection.is_lost = false;
        self.own_puts.clear();
        self.last.store(ptr::from_ref(member).cast_mut(), Ordering::Release);
        self.member.store(ptr::from_ref(member).cast_mut(), Ordering::Release);
        Ok(member)
    }

    /// Returns this process's rank and job; fails if PMI is not initialised.
    #[inline]
    pub fn member(&self) -> Result<&'static Member, Error> {
        check_process()?;
        let member = self.member.load(Ordering::Acquire);
        // SAFETY: null, or a pointer that `initialize` has leaked.
        unsafe { member.as_ref() }.ok_or(Error::NotInitialized)
    }

    /// Returns the rank and job of the last initialisation, also after finalisation; `None` if PMI was
    /// never initialised.
    pub fn last_member(&self) -> Result<Option<&'static Member>, Error> {
        check_process()?;
        // SAFETY: null, or a pointer that `initialize` has leaked.
        Ok(unsafe { self.last.load(Ordering::Acquire).as_ref() })
    }

    /// Finalises PMI if it is initialised.
    ///
    /// An inherited connection stays open: a later program in the same script may use it, or this one
    /// may initialise PMI again.
    pub fn finalize(&self) -> Result<(), Error> {
        if self.member().is_err() || self.is_aborting.load(Ordering::Relaxed) {
            return Ok(());
        }
        // A fence may last for hours, and an exit handler may call this: fail rather than wait.
        // Held until the end, so that no fence begins meanwhile.
        let fences = self.fences.lock().map_err(|_| Error::Broken)?;
        if !fences.is_empty() {
            return Err(Error::Busy);
        }
        let mut connection = self.connection()?;
        let finalized = connection.ask(Client::finalize);
        connection.client = None;
        self.member.store(ptr::null_mut(), Ordering::Release);
        self.own_puts.clear();
        self.descriptor.store(-1, Ordering::Relaxed);
        finalized
    }

    /// Puts a value under a key. This process sees it at once, other ranks after the next fence.
    pub fn put(&self, member: &Member, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_process()?;
        if member.segment.is_some() || member.is_singleton() {
            check_put(key, value).map_err(Error::Put)?;
            return if self.own_puts.push(member.rank, key, value) { Ok(()) } else { Err(Error::Full) };
        }
        self.ask(|client| client.put(key, value))?;
        // Not all servers return a rank's own puts to it, so keep a copy. If the copy does not fit, a
        // server that does still finds the value.
        let _ = self.own_puts.push(member.rank, key, value);
        Ok(())
    }

    /// Returns the value of a key, `None` if no rank has put it. Does not wait for a put.
    ///
    /// While the segment is complete it is authoritative: a key that it lacks does not exist. `member`
    /// comes from a call to [`Attachment::member`] just before, so this does not check again for a
    /// forked child.
    #[inline]
    pub fn get(&self, member: &'static Member, key: &[u8]) -> Result<Option<Cow<'static, [u8]>>, Error> {
        if let Some(value) = self.own_puts.get(key) {
            return Ok(Some(Cow::Owned(value)));
        }
        match member.segment.as_ref().and_then(Segment::view) {
            // The agent's list changes at any time; the segment only with a fence.
            Some(_) if key == DEAD_PROCESSES || self.has_group_puts.load(Ordering::Acquire) => {
                self.get_from_server(key)
            }
            Some(view) => Ok(view.get(key).map(Cow::Borrowed)),
            None => self.get_from_server(key),
        }
    }

    /// Waits until all ranks have arrived. All puts made before are then visible to every rank.
    ///
    /// There is no timeout, since other ranks may compute for hours. Fails when the server closes the
    /// connection.
    pub fn fence(&self, member: &Member) -> Result<(), Error> {
        check_process()?;
        let _in_fence = self.enter(None)?;
        // The lock of the connection is held meanwhile, so that a group's fence sends no put after this one has.
        let begin = || self.own_puts.begin_fence().unwrap_or_default();
        match &member.segment {
            None => {
                let entered = self.ask(|client| {
                    let puts = begin();
                    let entered = if member.is_scela { client.enter_fence(&[], None)? } else { None };
                    if entered.is_none() {
                        client.fence(&puts)?;
                    }
                    Ok(entered)
                })?;
                entered.map_or(Ok(()), FenceEnd::wait)?;
            }
            Some(segment) => {
                let before = segment.released();
                self.ask(|client| client.fence_in_segment(&begin()))?;
                self.wait_in(segment, before)?;
                if segment.has_failed(before) {
                    self.own_puts.end_fence();
                    return Err(Error::RankDied);
                }
            }
        }
        self.own_puts.end_fence();
        // The release has the puts of all groups.
        self.has_group_puts.store(false, Ordering::Release);
        Ok(())
    }

    /// Waits until these ranks, this one among them, have arrived with the same tag. Their puts are then visible to each
    /// other, and after the next [`Attachment::fence`] to all ranks.
    ///
    /// Until that fence, [`Attachment::get`] asks the server, because the segment does not have these puts. Fails on servers
    /// other than ScELA's, and if a rank of the group has died.
    pub fn fence_group(&self, member: &Member, ranks: &Ranks, tag: u32) -> Result<(), Error> {
        check_process()?;
        if member.is_singleton() {
            return Ok(());
        }
        if !member.is_scela {
            return Err(Error::Unsupported);
        }
        let _in_fence = self.enter(Some((ranks.clone(), tag)))?;
        let entered = self.ask(|client| {
            // Without a segment, they were sent when they were put.
            let unsent = if member.segment.is_some() { self.own_puts.unsent() } else { Vec::new() };
            client.enter_fence(&unsent, Some((ranks, tag)))
        })?;
        entered.ok_or(Error::Unsupported)?.wait()?;
        self.has_group_puts.store(true, Ordering::Release);
        Ok(())
    }

    /// Enters a fence once no other thread is in the same one.
    fn enter(&self, group: Option<(Ranks, u32)>) -> Result<InFence<'_>, Error> {
        let mut fences = self.fences.lock().map_err(|_| Error::Broken)?;
        while fences.contains(&group) {
            fences = self.left_fence.wait(fences).map_err(|_| Error::Broken)?;
        }
        fences.push(group.clone());
        Ok(InFence { attachment: self, group })
    }

    /// Returns the name of the board, which is also the name of the job.
    pub fn name(&self, member: &'static Member) -> Result<&'static CStr, Error> {
        let ask = |client: &mut Client| CString::new(client.name()?).map_err(|_| Error::Unsupported);
        cached_or(&member.name, || self.ask(ask)).map(CString::as_c_str)
    }

    /// Returns the number of the rank's command in the job.
    pub fn appnum(&self, member: &'static Member) -> Result<i32, Error> {
        cached_or(&member.appnum, || self.ask(Client::appnum)).copied()
    }

    /// Returns the buffer sizes for names, keys and values, with the terminating NUL.
    pub fn maxes(&self, member: &'static Member) -> Result<Maxes, Error> {
        let ask = || if member.is_scela { Ok(SCELA_MAXES) } else { self.ask(Client::maxes) };
        cached_or(&member.maxes, ask).copied()
    }

    /// Returns the buffer sizes if they are known without a request.
    #[inline]
    pub fn known_maxes(member: &Member) -> Option<Maxes> {
        if member.is_scela { Some(SCELA_MAXES) } else { member.maxes.get().copied() }
    }

    /// Returns the largest number of ranks that could run; negative if the server does not know.
    pub fn universe_size(&self) -> Result<i32, Error> {
        self.ask(Client::universe_size)
    }

    /// Returns the ranks on this node in ascending order, including this one. Without a valid mapping
    /// it returns only this rank.
    pub fn clique(&self, member: &'static Member) -> Result<Vec<u32>, Error> {
        let mapping = match self.version {
            Version::One => self.get(member, b"PMI_process_mapping")?,
            Version::Two => self.job_attribute(b"PMI_process_mapping")?.map(Cow::Owned),
        };
        let mapping = mapping.as_deref().and_then(|mapping| std::str::from_utf8(mapping).ok());
        let ranks = mapping.and_then(|mapping| ranks_on_same_node(member.rank(), member.size(), mapping));
        Ok(ranks.unwrap_or_else(|| vec![member.rank()]))
    }

    /// Returns a snapshot of the entries that ranks have put: those on the board, overlaid with this
    /// rank's puts that are not released yet.
    pub fn entries(&self, member: &'static Member) -> Result<Entries, Error> {
        let own: Vec<_> =
            self.own_puts.entries().into_iter().map(|(key, value)| (Cow::Owned(key), Cow::Owned(value))).collect();
        let newer: HashSet<Vec<u8>> = own.iter().map(|(key, _): &(Cow<'_, [u8]>, _)| key.to_vec()).collect();
        let is_older = move |key: &[u8]| !newer.contains(key) && !is_provided(key);
        if let Some(view) = member.segment.as_ref().and_then(Segment::view) {
            let shared = view.iter().filter(move |(key, _)| is_older(key));
            return Ok(Box::new(own.into_iter().chain(shared.map(|(key, value)| (key.into(), value.into())))));
        }
        let others = self.ask(|client| client.entries(member.is_scela))?;
        let mut seen = HashSet::new();
        let others = others.into_iter().filter(move |(key, _)| is_older(key) && seen.insert(key.clone()));
        Ok(Box::new(own.into_iter().chain(others.map(|(key, value)| (key.into(), value.into())))))
    }

    /// Returns an attribute of the job, which the server provides.
    pub fn job_attribute(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.ask(|client| client.job_attribute(key))
    }

    /// Puts an attribute of the node. The job's ranks on this node see it at once.
    pub fn node_put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.ask(|client| client.node_put(key, value))
    }

    /// Returns an attribute of the node. With `wait`, blocks until another rank puts it; this rank's
    /// connection is blocked meanwhile.
    pub fn node_get(&self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, Error> {
        self.ask(|client| client.node_get(key, wait))
    }

    /// Publishes a port under a name.
    pub fn publish(&self, service: &[u8], port: &[u8]) -> Result<(), Error> {
        self.ask(|client| client.publish(service, port))
    }

    /// Returns the port that is published under a name.
    pub fn lookup(&self, service: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.ask(|client| client.lookup(service))
    }

    /// Unpublishes a name.
    pub fn unpublish(&self, service: &[u8]) -> Result<(), Error> {
        self.ask(|client| client.unpublish(service))
    }

    /// Spawns ranks in a new job. The job's name is empty if the server does not return it.
    pub fn spawn(&self, order: &SpawnRequest) -> Result<SpawnedJob, Error> {
        self.ask(|client| client.spawn(order))
    }

    /// Waits for all ranks, sends a value to each neighbour in the ring and returns the values they sent.
    pub fn ring(&self, to_left: &[u8], to_right: &[u8]) -> Result<Ring, Error> {
        self.ask(|client| client.ring(to_left, to_right))
    }

    /// Connects to another job.
    pub fn connect(&self, job: &[u8]) -> Result<(), Error> {
        self.ask(|client| Ok(client.v2()?.connect(job)?))
    }

    /// Disconnects from another job.
    pub fn disconnect(&self, job: &[u8]) -> Result<(), Error> {
        self.ask(|client| Ok(client.v2()?.disconnect(job)?))
    }

    /// Returns the value of a key on another job's board.
    pub fn get_from_job(&self, job: &[u8], source: i32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.ask(|client| Ok(client.v2()?.get(job, source, key)?))
    }

    /// Sends an abort request without waiting for a reply. The caller then exits; exit handlers find
    /// PMI finalised.
    pub fn abort(&self, code: i32, message: &[u8]) {
        let Ok(member) = self.member() else { return };
        self.is_aborting.store(true, Ordering::Relaxed);
        // With the lock, no other thread is in the middle of a write. Without it, another thread waits
        // for a reply, most likely in a fence, and has sent its request completely.
        let _connection = self.connection.try_lock();
        if let Some(request) = abort_request(member.protocol, code, message) {
            socket::send_without_waiting(self.descriptor.load(Ordering::Relaxed), &request);
        }
        self.member.store(ptr::null_mut(), Ordering::Release);
    }

    /// Prints the message of an abort, if there is one, as a line on standard error.
    pub fn print_abort(&self, function: &str, argument: i32, message: Option<&[u8]>) {
        let Some(message) = message else { return };
        let rank = self.member().map_or(String::new(), |member| format!("rank {}: ", member.rank()));
        let line = [format!("{rank}{function}({argument}, ").as_bytes(), message, b")\n"].concat();
        // One write, so that lines of other ranks do not mix with it. A failure cannot be reported.
        let _ = std::io::stderr().write_all(&line);
    }

    #[cold]
    fn get_from_server(&self, key: &[u8]) -> Result<Option<Cow<'static, [u8]>>, Error> {
        Ok(self.ask(|client| client.get(key))?.map(Cow::Owned))
    }

    fn wait_in(&self, segment: &Segment, before: u32) -> Result<(), Error> {
        let mut timeout = AGENT_CHECK_MIN;
        while !segment.wait_for_release(before, timeout) {
            timeout = AGENT_CHECK_MAX.min(timeout * 2);
            let is_disconnected = socket::is_hung_up(self.descriptor.load(Ordering::Relaxed));
            // The agent may release the fence and then close the connection.
            if is_disconnected && segment.released() == before {
                return Err(Error::Disconnected);
            }
        }
        // Map what the fence published now, so that the gets that follow need not.
        segment.view();
        Ok(())
    }

    fn ask<T>(&self, ask: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T, Error> {
        check_process()?;
        self.connection()?.ask(ask)
    }

    fn connection(&self) -> Result<MutexGuard<'_, Connection>, Error> {
        self.connection.lock().map_err(|_| Error::Broken)
    }
}

impl Drop for InFence<'_> {
    fn drop(&mut self) {
        let mut fences = self.attachment.fences.lock().unwrap_or_else(PoisonError::into_inner);
        fences.retain(|group| *group != self.group);
        self.attachment.left_fence.notify_all();
    }
}

impl Connection {
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Client) -> Result<T, Error>) -> Result<T, Error> {
        let client = self.client.as_mut().ok_or(Error::NotInitialized)?;
        if self.is_lost {
            return Err(Error::Disconnected);
        }
        let answered = ask(client);
        self.is_lost = matches!(&answered, Err(Error::Server(error)) if is_fatal(error));
        answered
    }
}

/// Returns whether, after this error, requests and replies can no longer be matched.
fn is_fatal(error: &ClientError) -> bool {
    match error {
        ClientError::Io(_) | ClientError::Closed | ClientError::Line(_) | ClientError::Frame(_) => true,
        // For one, Slurm's plug-in answers a failed look-up with a reply that has no port.
        ClientError::Unexpected { .. } | ClientError::Refused { .. } | ClientError::Unsendable(_) => false,
        ClientError::TooLong(_) | ClientError::Spawn(_) => false,
    }
}

/// Fails in a child of the process that initialised PMI.
#[inline]
fn check_process() -> Result<(), Error> {
    if forked::is_child() { Err(Error::NotInitialized) } else { Ok(()) }
}

/// Returns the value of a cell, which `ask` fills first if it is empty. Two threads may both ask.
fn cached_or<T>(cell: &'static OnceLock<T>, ask: impl FnOnce() -> Result<T, Error>) -> Result<&'static T, Error> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let asked = ask()?;
    Ok(cell.get_or_init(|| asked))
}

/// Returns whether the server provides this key rather than a rank.
fn is_provided(key: &[u8]) -> bool {
    key.starts_with(b"PMI_") || key == b"universeSize"
}

/// Encodes an abort request. `None` without a server, or if the message cannot be encoded; the launcher
/// then learns of the abort from the exit code.
fn abort_request(protocol: Option<Version>, code: i32, message: &[u8]) -> Option<Vec<u8>> {
    let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
    let message: Vec<u8> = message.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
    let mut request = Vec::new();
    match protocol? {
        Version::One => v1::command::Command::Abort { code: Some(code), message: &message }.write(&mut request),
        Version::Two => {
            let abort = v2::command::Command::Abort { code: Some(code), message: message.into() };
            if !abort.write(&mut request) {
                return None;
            }
        }
    }
    Some(request)
}
