//! The counts, and the messages that each function adds to them.

use std::cell::{Cell, UnsafeCell};
use std::collections::HashMap;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::arguments::{Arguments, Language, Word};
use crate::counters::{Counters, Peer, Traffic};
use crate::mpi::mpi;
use crate::peers::{Handles, Job, Outside, Peers, neighbours};
use crate::row::Row;
use crate::schedule;

/// A variable with the value `none` if collective operations are not counted.
const COLLECTIVES: &str = "SCELA_PROFILE_COLLECTIVES";

/// The effect of a function on the counts.
pub(crate) enum Effect {
    /// Its messages are counted when the call has succeeded.
    Messages(Plan),
    /// The same for its only message, in fewer steps: programs send many, and a send may take less than 100 ns.
    Message(fn(&mut State, &Arguments<'_>) -> Option<()>),
    /// Its messages are counted each time that the request in its last argument is started.
    Request(Plan),
    /// After a call that has succeeded.
    After(fn(&mut State, &Arguments<'_>)),
    /// Before the call, which may fail.
    Before(fn(&mut State, &Arguments<'_>)),
}

/// Returns the messages of a call in its last argument. `None` if MPI does not say what is needed for that.
pub(crate) type Plan = fn(&mut State, &Arguments<'_>, &mut Messages) -> Option<()>;

/// A message: its receiver, or the rank that it is fetched from, and its bytes.
type Message = (Result<Peer, Outside>, u64);

/// The messages of one call.
#[derive(Default)]
pub(crate) struct Messages(Vec<Message>);

impl Messages {
    fn add(&mut self, peers: &Peers, rank: c_int, bytes: u64, fetched: bool) {
        if let Some(found) = peers.rank(rank) {
            self.0.push((found.map(|rank| Peer { rank, fetched }), bytes));
        }
    }

    fn send(&mut self, peers: &Peers, rank: c_int, bytes: u64) {
        self.add(peers, rank, bytes, false);
    }
}

/// All that this process has counted.
pub(crate) struct State {
    job: Option<Job>,
    handles: Handles,
    /// The messages of each request that can be started again.
    requests: Option<HashMap<Word, Vec<Message>>>,
    counters: Counters,
    outside: Traffic,
    /// Memory for the messages of the next call.
    messages: Messages,
}

/// The state, and what protects it.
struct Shared {
    state: UnsafeCell<State>,
    lock: Mutex<()>,
}

// SAFETY: `with_state` gives access to one thread at a time.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared {
    state: UnsafeCell::new(State {
        job: None,
        handles: Handles::new(),
        requests: None,
        counters: Counters::new(),
        outside: Traffic { bytes: 0, messages: 0 },
        messages: Messages(Vec::new()),
    }),
    lock: Mutex::new(()),
};

/// Whether only one thread at a time calls MPI, as the program has promised by a level below MPI_THREAD_MULTIPLE. Then neither
/// a lock nor memory of the thread is needed, which would take as long as the counting.
static IS_SERIAL: AtomicBool = AtomicBool::new(false);

/// With [`IS_SERIAL`]: the program is in a function of MPI.
static IS_INSIDE: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Without [`IS_SERIAL`]: this thread is in a function of MPI.
    static IS_THREAD_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// A call of MPI by the program itself: the functions that MPI then calls are not counted.
pub(crate) struct Outermost {
    is_serial: bool,
}

impl Outermost {
    /// `None` if MPI makes the call.
    #[inline]
    pub(crate) fn begin() -> Option<Self> {
        if IS_SERIAL.load(Ordering::Relaxed) {
            let is_inside = IS_INSIDE.load(Ordering::Relaxed);
            IS_INSIDE.store(true, Ordering::Relaxed);
            return (!is_inside).then_some(Self { is_serial: true });
        }
        // Without memory of the thread, the thread is ending.
        let is_first = IS_THREAD_INSIDE.try_with(|inside| !inside.replace(true)).unwrap_or(false);
        is_first.then_some(Self { is_serial: false })
    }
}

impl Drop for Outermost {
    #[inline]
    fn drop(&mut self) {
        if self.is_serial {
            IS_INSIDE.store(false, Ordering::Relaxed);
        } else {
            let _ = IS_THREAD_INSIDE.try_with(|inside| inside.set(false));
        }
    }
}

/// Acts before a call.
#[inline]
pub(crate) fn before(effect: &Effect, words: &[Word], language: Language) {
    if let Effect::Before(act) = effect {
        with_state(words, language, act);
    }
}

/// Acts after a call that has succeeded.
#[inline]
pub(crate) fn after(effect: &Effect, words: &[Word], language: Language) {
    match effect {
        Effect::Before(_) => {}
        // The compiler sees that this is always the same function, and puts it into this instance of `with_state`.
        Effect::Message(count) => with_state(words, language, |state, arguments| {
            let _ = count(state, arguments);
        }),
        _ => with_state(words, language, |state, arguments| state.after(effect, arguments)),
    }
}

fn with_state(words: &[Word], language: Language, act: impl FnOnce(&mut State, &Arguments<'_>)) {
    // A panic is a bug of ours: the program goes on, with counts that are too low.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        let Some(mpi) = mpi() else { return };
        let _lock = if IS_SERIAL.load(Ordering::Relaxed) {
            None
        } else {
            Some(SHARED.lock.lock().unwrap_or_else(PoisonError::into_inner))
        };
        // SAFETY: this thread has the lock, or the program lets no other thread call MPI meanwhile. MPI's own calls of the
        // functions of this library do not get here, so no other reference to the state is in use.
        let state = unsafe { &mut *SHARED.state.get() };
        act(state, &Arguments::new(mpi, words, language));
    }));
}

impl State {
    fn after(&mut self, effect: &Effect, arguments: &Arguments<'_>) {
        match effect {
            Effect::Before(_) | Effect::Message(_) => {}
            Effect::After(act) => act(self, arguments),
            Effect::Messages(plan) => {
                let mut messages = std::mem::take(&mut self.messages);
                plan(self, arguments, &mut messages);
                messages.0.drain(..).for_each(|message| self.count(message));
                self.messages = messages;
            }
            Effect::Request(plan) => {
                let mut messages = Messages::default();
                plan(self, arguments, &mut messages);
                let request = arguments.request(arguments.last(), 0);
                self.requests.get_or_insert_default().insert(request, messages.0);
            }
        }
    }

    fn count(&mut self, (peer, bytes): Message) {
        match peer {
            Ok(peer) => self.counters.add(peer, bytes),
            Err(Outside) => self.outside.add(bytes),
        }
    }

    #[inline]
    fn job(&mut self, arguments: &Arguments<'_>) -> Option<Job> {
        if self.job.is_none() {
            self.find_job(arguments);
        }
        self.job
    }

    #[cold]
    fn find_job(&mut self, arguments: &Arguments<'_>) {
        self.job = Job::find(arguments.mpi);
        let is_serial = self.job.is_some_and(|job| job.is_serial);
        // The current call keeps the locking mode that it started with.
        IS_SERIAL.store(is_serial, Ordering::Relaxed);
    }

    fn comm(&mut self, arguments: &Arguments<'_>, at: usize) -> Option<Arc<Peers>> {
        let job = self.job(arguments)?;
        self.handles.comm(&job, arguments.comm(at)).map(Arc::clone)
    }
}

/// MPI_Finalize: hands over the counts, since MPI may end the process in this function.
pub(crate) fn finalize(state: &mut State, arguments: &Arguments<'_>) {
    let Some(job) = state.job(arguments) else { return };
    let row = Row { rank: job.rank, size: job.size, outside: state.outside, peers: state.counters.sorted() };
    row.hand_over();
    job.free();
    state.job = None;
}

pub(crate) fn free_comm(state: &mut State, arguments: &Arguments<'_>) {
    state.handles.drop_comm(arguments.comm_at(0));
}

pub(crate) fn free_win(state: &mut State, arguments: &Arguments<'_>) {
    state.handles.drop_win(arguments.win_at(0));
}

pub(crate) fn free_request(state: &mut State, arguments: &Arguments<'_>) {
    if let Some(requests) = &mut state.requests {
        requests.remove(&arguments.request(0, 0));
    }
}

/// MPI_Start(request)
pub(crate) fn start(state: &mut State, arguments: &Arguments<'_>) {
    start_request(state, arguments.request(0, 0));
}

/// MPI_Startall(count, requests)
pub(crate) fn start_all(state: &mut State, arguments: &Arguments<'_>) {
    let count = usize::try_from(arguments.int(0)).unwrap_or(0);
    (0..count).for_each(|index| start_request(state, arguments.request(1, index)));
}

fn start_request(state: &mut State, request: Word) {
    let messages = state.requests.as_mut().and_then(|requests| requests.get_mut(&request)).map(std::mem::take);
    let Some(messages) = messages else { return };
    messages.iter().for_each(|message| state.count(*message));
    state.requests.get_or_insert_default().insert(request, messages);
}

/// (buf, count, datatype, dest, tag, comm)
pub(crate) fn send(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    out.send(&*state.comm(a, 5)?, a.int(3), a.bytes(1, 2));
    Some(())
}

/// Counts the message of [`send`].
#[inline]
pub(crate) fn send_now(state: &mut State, a: &Arguments<'_>) -> Option<()> {
    let comm = a.comm(5);
    let peers = match state.handles.last_comm(comm) {
        Some(peers) => peers,
        None => {
            let job = state.job(a)?;
            state.handles.comm(&job, comm)?
        }
    };
    match peers.rank(a.int(3))? {
        Ok(rank) => state.counters.add(Peer { rank, fetched: false }, a.bytes(1, 2)),
        Err(Outside) => state.outside.add(a.bytes(1, 2)),
    }
    Some(())
}

/// (buf, partitions, count, datatype, dest, tag, comm): one message.
pub(crate) fn partitioned_send(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let partitions = u64::try_from(a.int(1)).unwrap_or(0);
    let bytes = partitions.saturating_mul(a.long(2)).saturating_mul(a.type_bytes(3));
    out.send(&*state.comm(a, 6)?, a.int(4), bytes);
    Some(())
}

/// (sendbuf, sendcount, sendtype, dest, sendtag, recvbuf, recvcount, recvtype, source, recvtag, comm)
pub(crate) fn sendrecv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    out.send(&*state.comm(a, 10)?, a.int(3), a.bytes(1, 2));
    Some(())
}

/// (buf, count, datatype, dest, sendtag, source, recvtag, comm)
pub(crate) fn sendrecv_replace(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    out.send(&*state.comm(a, 7)?, a.int(3), a.bytes(1, 2));
    Some(())
}

fn one_sided(
    (state, a, out): (&mut State, &Arguments<'_>, &mut Messages),
    (target, win): (usize, usize),
    sent: Option<u64>,
    fetched: Option<u64>,
) -> Option<()> {
    let job = state.job(a)?;
    let peers = state.handles.win(&job, a.win(win))?;
    sent.into_iter().for_each(|bytes| out.add(peers, a.int(target), bytes, false));
    fetched.into_iter().for_each(|bytes| out.add(peers, a.int(target), bytes, true));
    Some(())
}

/// (origin_addr, origin_count, origin_datatype, target_rank, target_disp, target_count, target_datatype, win)
pub(crate) fn put(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    one_sided((state, a, out), (3, 7), Some(a.bytes(1, 2)), None)
}

/// The same arguments as [`put`].
pub(crate) fn get(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    one_sided((state, a, out), (3, 7), None, Some(a.bytes(1, 2)))
}

/// Those of [`put`], with op before win.
pub(crate) fn accumulate(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    one_sided((state, a, out), (3, 8), Some(a.bytes(1, 2)), None)
}

/// (origin_addr, origin_count, origin_datatype, result_addr, result_count, result_datatype, target_rank, target_disp,
/// target_count, target_datatype, op, win)
pub(crate) fn get_accumulate(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let sent = (!a.is_no_op(10)).then(|| a.bytes(8, 9));
    one_sided((state, a, out), (6, 11), sent, Some(a.bytes(4, 5)))
}

/// (origin_addr, result_addr, datatype, target_rank, target_disp, op, win)
pub(crate) fn fetch_and_op(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let bytes = a.type_bytes(2);
    one_sided((state, a, out), (3, 6), (!a.is_no_op(5)).then_some(bytes), Some(bytes))
}

/// (origin_addr, compare_addr, result_addr, datatype, target_rank, target_disp, win): two values go, one comes.
pub(crate) fn compare_and_swap(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let bytes = a.type_bytes(3);
    one_sided((state, a, out), (4, 6), Some(2 * bytes), Some(bytes))
}

/// The communicator of a collective operation; `None` if such operations are not counted.
fn collective(state: &mut State, a: &Arguments<'_>, at: usize) -> Option<Arc<Peers>> {
    static ARE_COUNTED: OnceLock<bool> = OnceLock::new();
    if *ARE_COUNTED.get_or_init(|| std::env::var_os(COLLECTIVES).is_none_or(|value| value != "none")) {
        state.comm(a, at)
    } else {
        None
    }
}

/// Sends to all of the other group.
fn to_all(peers: &Peers, out: &mut Messages, bytes: impl Fn(u32) -> u64) {
    schedule::linear(0..peers.len(), bytes, |to, bytes| out.send(peers, to as c_int, bytes));
}

/// The kinds of processes in an operation with a root.
enum Role {
    /// All are in one group, with this root.
    Group { root: u32 },
    /// The root, between two groups.
    Root,
    /// A process of the other group, whose root is this.
    Other { root: c_int },
}

/// `None` for a process that only belongs to the root's group.
fn role(peers: &Peers, a: &Arguments<'_>, at: usize) -> Option<Role> {
    let root = a.int(at);
    if !peers.is_inter {
        return Some(Role::Group { root: u32::try_from(root).ok().filter(|root| *root < peers.group.size)? });
    }
    if root == a.mpi.root { Some(Role::Root) } else { (root >= 0).then_some(Role::Other { root }) }
}

/// (comm)
pub(crate) fn barrier(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 0)?;
    if peers.is_inter {
        to_all(peers, out, |_| 0);
    } else {
        schedule::dissemination(peers.group, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// (buf, count, datatype, root, comm)
pub(crate) fn bcast(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let (peers, bytes) = (&*collective(state, a, 4)?, a.bytes(1, 2));
    match role(peers, a, 3)? {
        Role::Group { root } => {
            schedule::binomial_broadcast(peers.group, root, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
        }
        Role::Root => to_all(peers, out, |_| bytes),
        Role::Other { .. } => {}
    }
    Some(())
}

/// Sends to the root of an operation: between two groups directly, in a group as `in_group` does. The root sends nothing; its
/// arguments of sending may be invalid, as with MPI_IN_PLACE.
fn to_root(
    (state, a, out): (&mut State, &Arguments<'_>, &mut Messages),
    (root, comm): (usize, usize),
    (count, datatype): (usize, usize),
    in_group: impl FnOnce(&Peers, u32, u64, &mut Messages),
) -> Option<()> {
    let peers = &*collective(state, a, comm)?;
    match role(peers, a, root)? {
        Role::Group { root } if root == peers.group.rank => {}
        Role::Group { root } => in_group(peers, root, a.bytes(count, datatype), out),
        Role::Root => {}
        Role::Other { root } => out.send(peers, root, a.bytes(count, datatype)),
    }
    Some(())
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm)
pub(crate) fn gather(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    to_root((state, a, out), (6, 7), (1, 2), |peers, root, bytes, out| {
        schedule::binomial_gather(peers.group, root, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    })
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, root, comm)
pub(crate) fn gatherv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    to_root((state, a, out), (7, 8), (1, 2), |peers, root, bytes, out| out.send(peers, root as c_int, bytes))
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, root, comm)
pub(crate) fn scatter(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 7)?;
    match role(peers, a, 6)? {
        Role::Group { root } => {
            // At the root recvbuf may be MPI_IN_PLACE; elsewhere the arguments of sending mean nothing.
            let block = if root == peers.group.rank { a.bytes(1, 2) } else { a.bytes(4, 5) };
            schedule::binomial_scatter(peers.group, root, block, |to, bytes| out.send(peers, to as c_int, bytes));
        }
        Role::Root => to_all(peers, out, |_| a.bytes(1, 2)),
        Role::Other { .. } => {}
    }
    Some(())
}

/// (sendbuf, sendcounts, displs, sendtype, recvbuf, recvcount, recvtype, root, comm)
pub(crate) fn scatterv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 8)?;
    let block = |to| a.count_in(1, to).saturating_mul(a.type_bytes(3));
    match role(peers, a, 7)? {
        Role::Group { root } if root == peers.group.rank => {
            let others = (0..peers.group.size).filter(|to| *to != root);
            schedule::linear(others, block, |to, bytes| out.send(peers, to as c_int, bytes));
        }
        Role::Group { .. } | Role::Other { .. } => {}
        Role::Root => to_all(peers, out, block),
    }
    Some(())
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm)
pub(crate) fn allgather(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 6)?;
    if peers.is_inter {
        let bytes = a.bytes(1, 2);
        to_all(peers, out, |_| bytes);
    } else {
        // The arguments of receiving count even if sendbuf is MPI_IN_PLACE.
        let bytes = a.bytes(4, 5);
        schedule::ring(peers.group, |_| bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm)
pub(crate) fn allgatherv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 7)?;
    if peers.is_inter {
        let bytes = a.bytes(1, 2);
        to_all(peers, out, |_| bytes);
    } else {
        let element = a.type_bytes(6);
        let block = |from| a.count_in(4, from).saturating_mul(element);
        schedule::ring(peers.group, block, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm)
pub(crate) fn alltoall(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 6)?;
    if peers.is_inter {
        let bytes = a.bytes(1, 2);
        to_all(peers, out, |_| bytes);
    } else {
        let bytes = a.bytes(4, 5);
        schedule::pairwise(peers.group, |_| bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

fn to_each(peers: &Peers, out: &mut Messages, bytes: impl Fn(u32) -> u64) {
    if peers.is_inter {
        to_all(peers, out, bytes);
    } else {
        schedule::pairwise(peers.group, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    }
}

/// (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm)
pub(crate) fn alltoallv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 8)?;
    // In place, a rank sends as much to another one as it gets from it.
    let (counts, datatype) = if !peers.is_inter && a.is_in_place(0) { (5, 7) } else { (1, 3) };
    let element = a.type_bytes(datatype);
    to_each(peers, out, |to| a.count_in(counts, to).saturating_mul(element));
    Some(())
}

/// (sendbuf, sendcounts, sdispls, sendtypes, recvbuf, recvcounts, rdispls, recvtypes, comm)
pub(crate) fn alltoallw(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let peers = &*collective(state, a, 8)?;
    let (counts, datatypes) = if !peers.is_inter && a.is_in_place(0) { (5, 7) } else { (1, 3) };
    to_each(peers, out, |to| block_of(a, counts, datatypes, to));
    Some(())
}

/// The bytes of a block with a datatype of its own. The datatype of an empty block need not be valid.
fn block_of(a: &Arguments<'_>, counts: usize, datatypes: usize, at: u32) -> u64 {
    match a.count_in(counts, at) {
        0 => 0,
        count => count.saturating_mul(a.type_bytes_in(datatypes, at)),
    }
}

/// (sendbuf, recvbuf, count, datatype, op, root, comm)
pub(crate) fn reduce(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    to_root((state, a, out), (5, 6), (2, 3), |peers, root, bytes, out| {
        schedule::binomial_reduce(peers.group, root, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    })
}

/// (sendbuf, recvbuf, count, datatype, op, comm)
pub(crate) fn allreduce(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let (peers, bytes) = (&*collective(state, a, 5)?, a.bytes(2, 3));
    if peers.is_inter {
        to_all(peers, out, |_| bytes);
    } else {
        schedule::recursive_doubling(peers.group, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// (sendbuf, recvbuf, recvcounts, datatype, op, comm)
pub(crate) fn reduce_scatter(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let (peers, element) = (&*collective(state, a, 5)?, a.type_bytes(3));
    if peers.is_inter {
        // The counts are those of this group, and their sum is that of the other one.
        let all = (0..peers.group.size).fold(0_u64, |all, rank| all.saturating_add(a.count_in(2, rank)));
        to_all(peers, out, |_| all.saturating_mul(element));
    } else {
        let block = |to| a.count_in(2, to).saturating_mul(element);
        schedule::pairwise(peers.group, block, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// (sendbuf, recvbuf, recvcount, datatype, op, comm)
pub(crate) fn reduce_scatter_block(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let (peers, bytes) = (&*collective(state, a, 5)?, a.bytes(2, 3));
    if peers.is_inter {
        to_all(peers, out, |_| bytes.saturating_mul(u64::from(peers.group.size)));
    } else {
        schedule::pairwise(peers.group, |_| bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    }
    Some(())
}

/// The arguments of [`allreduce`].
pub(crate) fn scan(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let (peers, bytes) = (&*collective(state, a, 5)?, a.bytes(2, 3));
    schedule::scan(peers.group, bytes, |to, bytes| out.send(peers, to as c_int, bytes));
    Some(())
}

/// Sends a block to each neighbour. `bytes` takes the neighbour's index. Neighbours are the program's choice, so this is exact.
fn to_neighbours(
    (state, a, out): (&mut State, &Arguments<'_>, &mut Messages),
    comm: usize,
    bytes: impl Fn(u32) -> u64,
) -> Option<()> {
    let peers = state.comm(a, comm)?;
    let targets = neighbours(a.mpi, a.comm(comm), peers.group.rank)?;
    (0..).zip(targets).for_each(|(index, target)| out.send(&peers, target, bytes(index)));
    Some(())
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcount, recvtype, comm): also MPI_Neighbor_alltoall.
pub(crate) fn neighbor_allgather(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let bytes = a.bytes(1, 2);
    to_neighbours((state, a, out), 6, |_| bytes)
}

/// (sendbuf, sendcount, sendtype, recvbuf, recvcounts, displs, recvtype, comm)
pub(crate) fn neighbor_allgatherv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let bytes = a.bytes(1, 2);
    to_neighbours((state, a, out), 7, |_| bytes)
}

/// (sendbuf, sendcounts, sdispls, sendtype, recvbuf, recvcounts, rdispls, recvtype, comm)
pub(crate) fn neighbor_alltoallv(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    let element = a.type_bytes(3);
    to_neighbours((state, a, out), 8, |to| a.count_in(1, to).saturating_mul(element))
}

/// The same with an array of sendtypes.
pub(crate) fn neighbor_alltoallw(state: &mut State, a: &Arguments<'_>, out: &mut Messages) -> Option<()> {
    to_neighbours((state, a, out), 8, |to| block_of(a, 1, 3, to))
}
