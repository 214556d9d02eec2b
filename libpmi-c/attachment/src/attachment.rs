//! [`Attachment`]: a process's tie to its PMI server, as the C libraries need it.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use pmi::board::check_put;
use pmi::client::ClientError;
use pmi::limits::ABORT_MESSAGE_BYTES_MAX;
use pmi::v1::client::Maxes;
use pmi::v2::client::Ring;
use pmi::{Puts, SpawnRequest, SpawnedJob, v1, v2};

use crate::clique::ranks_beside;
use crate::environment::Environment;
use crate::error::Error;
use crate::joined::Joined;
use crate::own::Own;
use crate::segment::Segment;
use crate::wire::{OUR_MAXES, Opened, Version, Wire};
use crate::{forked, socket};

/// A process's tie to its PMI server. There is one per library, a static.
///
/// Any thread may call anything at any time. [`Attachment::joined`] and [`Attachment::get`] take no
/// lock as long as the segment answers; a fence that waits in the segment holds none that they or a
/// put need. Without a segment all that goes over the connection waits for its turn there, also for
/// the end of a fence.
///
/// In a child of the process that has joined every call says [`Error::NotJoined`], and touches
/// neither connection nor locks.
///
/// **Order of locks:** fencing, then connection. The one inside of `own` is held for nothing else.
#[derive(Debug)]
pub struct Attachment {
    version: Version,
    /// Null while PMI is not initialised.
    joined: AtomicPtr<Joined>,
    /// What that was last.
    last: AtomicPtr<Joined>,
    /// The process is about to exit.
    is_aborting: AtomicBool,
    /// What to watch to see the server go; -1: nothing.
    descriptor: AtomicI32,
    own: Own,
    connection: Mutex<Connection>,
    /// Held by the thread that is in a fence, or finalises.
    fencing: Mutex<()>,
}

#[derive(Debug)]
struct Connection {
    wire: Option<Wire>,
    /// Something went wrong on it, after which no reply could be told from the one to another request.
    is_lost: bool,
    /// All that ever was in [`Attachment::joined`]: one, unless a program changes its environment.
    known: Vec<&'static Joined>,
}

/// Keys and values, each key once.
pub type Entries = Box<dyn Iterator<Item = (Cow<'static, [u8]>, Cow<'static, [u8]>)> + Send>;

static NO_PUTS: Puts = Puts::new();

/// When who waits in the segment first looks whether its agent is still there; then after twice as
/// long, and so on: a rank may wait for hours for others that compute, and should not disturb them.
const LOOK_OUT: Duration = Duration::from_secs(1);
/// At least so often.
const LOOK_OUT_MAX: Duration = Duration::from_secs(32);

impl Attachment {
    /// Of a process that has not initialised PMI yet.
    pub const fn new(version: Version) -> Self {
        Self {
            version,
            joined: AtomicPtr::new(ptr::null_mut()),
            last: AtomicPtr::new(ptr::null_mut()),
            is_aborting: AtomicBool::new(false),
            descriptor: AtomicI32::new(-1),
            own: Own::new(),
            connection: Mutex::new(Connection { wire: None, is_lost: false, known: Vec::new() }),
            fencing: Mutex::new(()),
        }
    }

    /// Initialises PMI, unless it is.
    pub fn join(&self, environment: &Environment) -> Result<&'static Joined, Error> {
        check_process()?;
        forked::mark();
        if let Ok(joined) = self.joined() {
            return Ok(joined);
        }
        let mut connection = self.connection()?;
        if let Ok(joined) = self.joined() {
            return Ok(joined);
        }
        let opened = Wire::open(self.version, environment)?;
        let (mut wire, joined) = known_as(opened, environment);
        let joined = match connection.known.iter().find(|known| known.is_same(&joined)) {
            Some(known) => known,
            None => {
                // Never freed: see `Joined`.
                let joined: &'static Joined = Box::leak(Box::new(joined));
                connection.known.push(joined);
                joined
            }
        };
        self.descriptor.store(wire.descriptor().unwrap_or(-1), Ordering::Relaxed);
        connection.wire = Some(wire);
        connection.is_lost = false;
        self.own.clear();
        self.last.store(ptr::from_ref(joined).cast_mut(), Ordering::Release);
        self.joined.store(ptr::from_ref(joined).cast_mut(), Ordering::Release);
        Ok(joined)
    }

    /// What is known of this process, if PMI is initialised in it.
    #[inline]
    pub fn joined(&self) -> Result<&'static Joined, Error> {
        check_process()?;
        let joined = self.joined.load(Ordering::Acquire);
        // SAFETY: null, or what `join` has leaked.
        unsafe { joined.as_ref() }.ok_or(Error::NotJoined)
    }

    /// What is known of this process since PMI was last initialised in it, also when it is finalised
    /// by now; `None` if it never was.
    pub fn last_joined(&self) -> Result<Option<&'static Joined>, Error> {
        check_process()?;
        // SAFETY: null, or what `join` has leaked.
        Ok(unsafe { self.last.load(Ordering::Acquire).as_ref() })
    }

    /// Finalises PMI, if it is initialised. An inherited connection stays open, for another program
    /// after this one, or for this one to initialise PMI again.
    pub fn finalize(&self) -> Result<(), Error> {
        if self.joined().is_err() || self.is_aborting.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Whoever is in a fence may be there for hours, and this be called on the way out.
        let _fencing = self.fencing.try_lock().map_err(|_| Error::Busy)?;
        let mut connection = self.connection()?;
        let told = connection.ask(Wire::finalize);
        connection.wire = None;
        self.joined.store(ptr::null_mut(), Ordering::Release);
        self.own.clear();
        self.descriptor.store(-1, Ordering::Relaxed);
        told
    }

    /// Puts a value under a key. This process sees it at once, others after the next fence.
    pub fn put(&self, joined: &Joined, key: &[u8], value: &[u8]) -> Result<(), Error> {
        check_process()?;
        if joined.segment.is_some() || joined.is_alone() {
            check_put(key, value).map_err(Error::Put)?;
            return if self.own.push(joined.rank, key, value) { Ok(()) } else { Err(Error::Full) };
        }
        self.wire(|wire| wire.put(key, value))?;
        // Not all servers show a rank its own puts. If there is no room for one, this server may.
        let _ = self.own.push(joined.rank, key, value);
        Ok(())
    }

    /// The value of a key, `None` if nobody has put it. Never waits for anybody to put it.
    ///
    /// The segment is all there is, as far as it goes: a key that is not in it is nowhere. `joined`
    /// was just asked for: it is not looked again whether this process is a child.
    #[inline]
    pub fn get(&self, joined: &'static Joined, key: &[u8]) -> Result<Option<Cow<'static, [u8]>>, Error> {
        if let Some(value) = self.own.get(key) {
            return Ok(Some(Cow::Owned(value)));
        }
        match joined.segment.as_ref().and_then(Segment::view) {
            Some(view) => Ok(view.get(key).map(Cow::Borrowed)),
            None => self.get_from_server(key),
        }
    }

    /// Waits until all ranks are here; what they put before is then seen by each.
    ///
    /// For ever, if need be: others may compute for hours. But not when the server is gone.
    pub fn fence(&self, joined: &Joined) -> Result<(), Error> {
        check_process()?;
        let _fencing = self.fencing.lock().map_err(|_| Error::Broken)?;
        let puts = self.own.depart();
        let puts = puts.as_deref().unwrap_or(&NO_PUTS);
        match &joined.segment {
            None => self.wire(|wire| wire.fence(puts))?,
            Some(segment) => {
                let before = segment.released();
                self.wire(|wire| wire.fence_in_segment(puts))?;
                self.wait_in(segment, before)?;
            }
        }
        self.own.arrive();
        Ok(())
    }

    /// The name of the board, which is that of the job.
    pub fn name(&self, joined: &'static Joined) -> Result<&'static CStr, Error> {
        let ask = |wire: &mut Wire| CString::new(wire.name()?).map_err(|_| Error::Unsupported);
        known_or(&joined.name, || self.wire(ask)).map(CString::as_c_str)
    }

    /// The number of the rank's command.
    pub fn appnum(&self, joined: &'static Joined) -> Result<i32, Error> {
        known_or(&joined.appnum, || self.wire(Wire::appnum)).copied()
    }

    /// How long names, keys and values may be: sizes of C buffers.
    pub fn maxes(&self, joined: &'static Joined) -> Result<Maxes, Error> {
        let ask = || if joined.is_ours { Ok(OUR_MAXES) } else { self.wire(Wire::maxes) };
        known_or(&joined.maxes, ask).copied()
    }

    /// The maxima, if they are known without asking.
    #[inline]
    pub fn known_maxes(joined: &Joined) -> Option<Maxes> {
        if joined.is_ours { Some(OUR_MAXES) } else { joined.maxes.get().copied() }
    }

    /// How many ranks there could be; negative if the server does not know.
    pub fn universe_size(&self) -> Result<i32, Error> {
        self.wire(Wire::universe_size)
    }

    /// The ranks on this node, ascending, this one among them. Who does not know the others is told
    /// to be alone.
    pub fn clique(&self, joined: &'static Joined) -> Result<Vec<u32>, Error> {
        let mapping = match self.version {
            Version::One => self.get(joined, b"PMI_process_mapping")?,
            Version::Two => self.job_attribute(b"PMI_process_mapping")?.map(Cow::Owned),
        };
        let mapping = mapping.as_deref().and_then(|mapping| std::str::from_utf8(mapping).ok());
        let ranks = mapping.and_then(|mapping| ranks_beside(joined.rank(), joined.size(), mapping));
        Ok(ranks.unwrap_or_else(|| vec![joined.rank()]))
    }

    /// All that is on the board now and was put by somebody, and what this rank put since.
    pub fn entries(&self, joined: &'static Joined) -> Result<Entries, Error> {
        let own: Vec<_> =
            self.own.entries().into_iter().map(|(key, value)| (Cow::Owned(key), Cow::Owned(value))).collect();
        let newer: HashSet<Vec<u8>> = own.iter().map(|(key, _): &(Cow<'_, [u8]>, _)| key.to_vec()).collect();
        let is_older = move |key: &[u8]| !newer.contains(key) && !is_provided(key);
        if let Some(view) = joined.segment.as_ref().and_then(Segment::view) {
            let shared = view.iter().filter(move |(key, _)| is_older(key));
            return Ok(Box::new(own.into_iter().chain(shared.map(|(key, value)| (key.into(), value.into())))));
        }
        let others = self.wire(|wire| wire.entries(joined.is_ours))?;
        let mut seen = HashSet::new();
        let others = others.into_iter().filter(move |(key, _)| is_older(key) && seen.insert(key.clone()));
        Ok(Box::new(own.into_iter().chain(others.map(|(key, value)| (key.into(), value.into())))))
    }

    /// An attribute of the job: something that the server provides.
    pub fn job_attribute(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.wire(|wire| wire.job_attribute(key))
    }

    /// Puts an attribute of the node: the job's ranks on it see it at once.
    pub fn node_put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        self.wire(|wire| wire.node_put(key, value))
    }

    /// An attribute of the node; with `wait` not before somebody has put it. It must be another rank
    /// then: this one's connection waits as well.
    pub fn node_get(&self, key: &[u8], wait: bool) -> Result<Option<Vec<u8>>, Error> {
        self.wire(|wire| wire.node_get(key, wait))
    }

    /// Publishes a port under a name.
    pub fn publish(&self, service: &[u8], port: &[u8]) -> Result<(), Error> {
        self.wire(|wire| wire.publish(service, port))
    }

    /// The port published under a name.
    pub fn lookup(&self, service: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.wire(|wire| wire.lookup(service))
    }

    /// Withdraws a published name.
    pub fn unpublish(&self, service: &[u8]) -> Result<(), Error> {
        self.wire(|wire| wire.unpublish(service))
    }

    /// Starts further ranks, in a job of their own, whose name is empty if it is not known.
    pub fn spawn(&self, order: &SpawnRequest) -> Result<SpawnedJob, Error> {
        self.wire(|wire| wire.spawn(order))
    }

    /// Meets all ranks, gives each neighbour something and takes what they give.
    pub fn ring(&self, to_left: &[u8], to_right: &[u8]) -> Result<Ring, Error> {
        self.wire(|wire| wire.ring(to_left, to_right))
    }

    /// Connects to another job.
    pub fn connect(&self, job: &[u8]) -> Result<(), Error> {
        self.wire(|wire| wire.connect(job))
    }

    /// Ends a connection to another job.
    pub fn disconnect(&self, job: &[u8]) -> Result<(), Error> {
        self.wire(|wire| wire.disconnect(job))
    }

    /// An entry on another job's board.
    pub fn get_elsewhere(&self, job: &[u8], source: i32, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.wire(|wire| wire.get_elsewhere(job, source, key))
    }

    /// Asks the server to end the job, without waiting for anything. The caller exits; what it
    /// calls on its way out finds PMI finalised.
    pub fn abort(&self, code: i32, message: &[u8]) {
        let Ok(joined) = self.joined() else { return };
        self.is_aborting.store(true, Ordering::Relaxed);
        // If it can be had: nobody is in the midst of writing then. Else another thread waits for a
        // reply, in a fence most likely, and what it has sent is whole.
        let _connection = self.connection.try_lock();
        if let Some(words) = last_words(joined.protocol, code, message) {
            socket::send_last_words(self.descriptor.load(Ordering::Relaxed), &words);
        }
        self.joined.store(ptr::null_mut(), Ordering::Release);
    }

    #[cold]
    fn get_from_server(&self, key: &[u8]) -> Result<Option<Cow<'static, [u8]>>, Error> {
        Ok(self.wire(|wire| wire.get(key))?.map(Cow::Owned))
    }

    fn wait_in(&self, segment: &Segment, before: u32) -> Result<(), Error> {
        let mut patience = LOOK_OUT;
        while !segment.wait_for_release(before, patience) {
            patience = LOOK_OUT_MAX.min(patience * 2);
            let is_gone = socket::is_hung_up(self.descriptor.load(Ordering::Relaxed));
            // It may have gone after it had released everybody.
            if is_gone && segment.released() == before {
                return Err(Error::Gone);
            }
        }
        // So that the gets that follow find nothing new to be looked into.
        segment.view();
        Ok(())
    }

    fn wire<T>(&self, ask: impl FnOnce(&mut Wire) -> Result<T, Error>) -> Result<T, Error> {
        check_process()?;
        self.connection()?.ask(ask)
    }

    fn connection(&self) -> Result<MutexGuard<'_, Connection>, Error> {
        self.connection.lock().map_err(|_| Error::Broken)
    }
}

impl Connection {
    fn ask<T>(&mut self, ask: impl FnOnce(&mut Wire) -> Result<T, Error>) -> Result<T, Error> {
        let wire = self.wire.as_mut().ok_or(Error::NotJoined)?;
        if self.is_lost {
            return Err(Error::Gone);
        }
        let answered = ask(wire);
        self.is_lost = matches!(&answered, Err(Error::Server(error)) if is_fatal(error));
        answered
    }
}

/// Whether it is unknown after this what the server has heard, or what it says next.
fn is_fatal(error: &ClientError) -> bool {
    match error {
        ClientError::Io(_) | ClientError::Closed | ClientError::Line(_) | ClientError::Frame(_) => true,
        // Slurm's plug-in answers a look-up in vain by a reply without a port, for one.
        ClientError::Unexpected { .. } | ClientError::Refused { .. } | ClientError::Unsendable(_) => false,
        ClientError::TooLong(_) | ClientError::Spawn(_) => false,
    }
}

/// Fails in a child of the process that has joined.
#[inline]
fn check_process() -> Result<(), Error> {
    if forked::is_child() { Err(Error::NotJoined) } else { Ok(()) }
}

/// What is known of a connection that was just opened, its segment mapped.
fn known_as(opened: Opened, environment: &Environment) -> (Wire, Joined) {
    let Opened { wire, rank, size, is_spawned, appnum, is_ours, segment } = opened;
    let joined = Joined {
        rank,
        size,
        is_spawned,
        is_ours,
        protocol: wire.protocol(),
        // One that cannot be mapped is none: the server answers instead.
        segment: segment.and_then(|file| Segment::map(file).ok()),
        environment: environment.clone(),
        name: OnceLock::new(),
        appnum: appnum.map_or_else(OnceLock::new, OnceLock::from),
        maxes: OnceLock::new(),
    };
    (wire, joined)
}

/// What a cell holds, or is filled with by asking. Two threads may both ask.
fn known_or<T>(cell: &'static OnceLock<T>, ask: impl FnOnce() -> Result<T, Error>) -> Result<&'static T, Error> {
    if let Some(known) = cell.get() {
        return Ok(known);
    }
    let asked = ask()?;
    Ok(cell.get_or_init(|| asked))
}

/// Is it there without anybody having put it?
fn is_provided(key: &[u8]) -> bool {
    key.starts_with(b"PMI_") || key == b"universeSize"
}

/// An abort as a server reads it. Who cannot be told learns it from the exit code.
fn last_words(protocol: Option<Version>, code: i32, message: &[u8]) -> Option<Vec<u8>> {
    let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
    let message: Vec<u8> = message.iter().map(|&byte| if byte == b'\n' { b' ' } else { byte }).collect();
    let mut words = Vec::new();
    match protocol? {
        Version::One => v1::command::Command::Abort { code: Some(code), message: &message }.write(&mut words),
        Version::Two => {
            let abort = v2::command::Command::Abort { code: Some(code), message: message.into() };
            if !abort.write(&mut words) {
                return None;
            }
        }
    }
    Some(words)
}
