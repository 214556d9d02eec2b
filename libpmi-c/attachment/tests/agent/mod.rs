//! An agent of one node without a tree, for tests and measurements of libpmi that need no real agent.
//! It serves ranks over socket pairs by [`pmi::Conversation`] and shares its board with them.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

use pmi::segment::{ALIGNMENT, FAILED_AT, LOG_AT, MAGIC, PUBLISHED_AT, Published, RELEASED_AT, directory};
use pmi::{
    Answer, Board, Conversation, Epoch, JobAttributes, Mapping, NameError, PmixAnswer, Puts, Rank, Ranks, Request,
    RootRequest, SpawnedJob,
};

/// An agent, which serves each rank until the rank closes its connection.
#[derive(Clone)]
pub(crate) struct Agent(Arc<Shared>);

struct Shared {
    attributes: Arc<JobAttributes>,
    has_segment: bool,
    state: Mutex<State>,
    released: Condvar,
}

/// The state of an agent.
pub(crate) struct State {
    board: Board,
    segment: Memory,
    puts: Puts,
    arrived: u32,
    /// The next fence fails.
    pub(crate) fails: bool,
    failed: Option<u64>,
    epochs: u64,
    names: Vec<(Vec<u8>, Vec<u8>)>,
    node: Vec<(Vec<u8>, Vec<u8>)>,
    ring: Vec<Option<(Vec<u8>, Vec<u8>)>>,
    /// The groups whose fences are open, with their tags: how many ranks have arrived, and their puts.
    groups: BTreeMap<(Ranks, u32), (u32, Vec<u8>)>,
    /// How many fences of a group have ended, and the puts of the last one.
    groups_ended: BTreeMap<(Ranks, u32), (u64, Vec<u8>)>,
    /// The requests other than fences, as text with the rank.
    pub(crate) requests: Vec<String>,
}

impl Agent {
    /// Creates an agent for a job of `size` ranks; `has_segment` says whether it shares its board.
    pub(crate) fn new(size: u32, has_segment: bool) -> Self {
        let attributes = Arc::new(JobAttributes {
            kvsname: "fake-1_0".into(),
            spawner: None,
            size,
            universe_size: 16,
            mapping: Mapping::from_nodes(std::iter::repeat_n(0, size as usize)).wire_value(),
            preputs: Epoch::from_entries([(&b"PARENT"[..], &b"tag#0$"[..])]),
            puts_at_once: false,
        });
        let mut state = State {
            board: Board::new(),
            segment: Memory::new(),
            puts: Puts::new(),
            arrived: 0,
            fails: false,
            failed: None,
            epochs: 0,
            names: Vec::new(),
            node: Vec::new(),
            ring: vec![None; size as usize],
            groups: BTreeMap::new(),
            groups_ended: BTreeMap::new(),
            requests: Vec::new(),
        };
        let entries = attributes.entries();
        state.publish(entries);
        Self(Arc::new(Shared { attributes, has_segment, state: Mutex::new(state), released: Condvar::new() }))
    }

    /// Publishes entries that no rank has put.
    pub(crate) fn publish(&self, epoch: Epoch) {
        self.state().publish(epoch);
    }

    /// Closes the log: from now on the segment is incomplete.
    pub(crate) fn close_log(&self) {
        let state = self.state();
        let word = state.segment.word::<AtomicU64>(PUBLISHED_AT);
        word.store(Published::from_word(word.load(Ordering::Relaxed)).closed().to_word(), Ordering::Release);
    }

    /// Locks and returns the state.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("a thread has panicked")
    }

    /// Starts to serve a rank, and returns the rank's end of the connection.
    pub(crate) fn serve(&self, rank: u32) -> UnixStream {
        let (own, theirs) = UnixStream::pair().expect("socketpair failed");
        let agent = self.clone();
        thread::spawn(move || agent.converse(rank, own));
        theirs
    }

    fn converse(&self, rank: u32, mut stream: UnixStream) {
        let conversation = Conversation::new(Arc::clone(&self.0.attributes), Rank(rank), 3);
        let conversation = Arc::new(Mutex::new(conversation));
        let lock = || conversation.lock().expect("a thread has panicked");
        let mut chunk = [0; 64 * 1024];
        loop {
            let Ok(read @ 1..) = stream.read(&mut chunk) else { return };
            lock().receive(&chunk[..read]);
            loop {
                let mut out = Vec::new();
                let board = self.state().board.clone();
                let (request, is_waiting) = {
                    let mut conversation = lock();
                    (conversation.advance(&board, &mut out), conversation.is_waiting())
                };
                if stream.write_all(&out).is_err() {
                    return;
                }
                let Some(request) = request else { break };
                if !is_waiting
                    && matches!(request, Request::Fence { in_segment: false, .. } | Request::GroupFence { .. })
                {
                    let (agent, conversation) = (self.clone(), Arc::clone(&conversation));
                    let mut stream = stream.try_clone().expect("dup failed");
                    thread::spawn(move || {
                        let Some(answer) = agent.answer(rank, request) else { return };
                        let mut out = Vec::new();
                        conversation.lock().expect("a thread has panicked").answer(answer, &mut out);
                        let _ = stream.write_all(&out);
                    });
                    continue;
                }
                let descriptor = (request == Request::Segment && self.0.has_segment).then_some(());
                let Some(answer) = self.answer(rank, request) else { continue };
                let mut out = Vec::new();
                lock().answer(answer, &mut out);
                let sent = match descriptor {
                    Some(()) => self.state().segment.send(&stream, &out),
                    None => stream.write_all(&out),
                };
                if sent.is_err() {
                    return;
                }
            }
        }
    }

    fn answer(&self, rank: u32, request: Request) -> Option<Answer> {
        let size = self.0.attributes.size;
        let mut state = self.state();
        if !matches!(request, Request::Fence { .. }) {
            state.requests.push(format!("{rank}: {request:?}"));
        }
        Some(match request {
            Request::Fence { puts, in_segment } => {
                state.puts.append(&puts);
                state.arrived += 1;
                let epoch = state.epochs;
                if state.arrived == size {
                    state.arrived = 0;
                    state.epochs += 1;
                    let merged = Epoch::merge(&std::mem::take(&mut state.puts)).expect("the epoch is too large");
                    state.publish(merged);
                    let fails = std::mem::take(&mut state.fails);
                    state.failed = fails.then_some(epoch);
                    state.segment.release(fails);
                    self.0.released.notify_all();
                }
                if in_segment {
                    return None;
                }
                let state =
                    self.0.released.wait_while(state, |state| state.epochs == epoch).expect("a thread has panicked");
                if state.failed == Some(epoch) { Answer::FenceFailed } else { Answer::Released }
            }
            Request::GroupFence { ranks, tag, payload } => {
                let group = (ranks.clone(), tag);
                let ended = |state: &State| state.groups_ended.get(&group).map_or(0, |(count, _)| *count);
                let before = ended(&state);
                let open = state.groups.entry(group.clone()).or_default();
                open.0 += 1;
                open.1.extend_from_slice(&payload);
                if u64::from(open.0) == ranks.len() {
                    let all = state.groups.remove(&group).map(|(_, payload)| payload).unwrap_or_default();
                    state.groups_ended.insert(group.clone(), (before + 1, all));
                    self.0.released.notify_all();
                }
                let state =
                    self.0.released.wait_while(state, |state| ended(state) == before).expect("a thread has panicked");
                let payload = state.groups_ended.get(&group).map(|(_, payload)| payload.clone().into());
                Answer::GroupFenced { ranks, tag, payload }
            }
            Request::Ring { to_left, to_right } => {
                state.ring[rank as usize] = Some((to_left, to_right));
                self.0.released.notify_all();
                let state = self
                    .0
                    .released
                    .wait_while(state, |state| state.ring.iter().any(Option::is_none))
                    .expect("a thread has panicked");
                let at = |rank: u32| state.ring[(rank % size) as usize].clone().expect("a rank is missing");
                Answer::Ring { position: rank, from_left: at(rank + size - 1).1, from_right: at(rank + 1).0 }
            }
            Request::NodePut { key, value } => {
                state.node.push((key, value));
                self.0.released.notify_all();
                Answer::NodePut(true)
            }
            Request::NodeGet { key, wait } => {
                let find = |state: &State| {
                    state.node.iter().rev().find(|(name, _)| *name == key).map(|(_, value)| value.clone())
                };
                let state = self
                    .0
                    .released
                    .wait_while(state, |state| wait && find(state).is_none())
                    .expect("a thread has panicked");
                Answer::NodeGot(find(&state))
            }
            Request::Ask(RootRequest::Publish { service, port }) => {
                let taken = state.names.iter().any(|(name, _)| *name == service);
                state.names.push((service, port));
                Answer::Published(if taken { Err(NameError::Taken) } else { Ok(()) })
            }
            Request::Ask(RootRequest::Lookup { service }) => {
                let found = state.names.iter().find(|(name, _)| *name == service);
                Answer::Found(found.map(|(_, port)| port.clone()).ok_or(NameError::Unknown))
            }
            Request::Ask(RootRequest::Unpublish { service }) => {
                let before = state.names.len();
                state.names.retain(|(name, _)| *name != service);
                Answer::Unpublished(if state.names.len() < before { Ok(()) } else { Err(NameError::Unknown) })
            }
            Request::Ask(RootRequest::Spawn(order)) => {
                Answer::Spawned(Ok(SpawnedJob { job: "fake-1_1".into(), codes: vec![0; order.ranks() as usize] }))
            }
            Request::TopologyFile => Answer::Got(None),
            Request::Segment => Answer::Segment(self.0.has_segment),
            Request::Ask(RootRequest::GetFromJob { .. }) => Answer::GotFromJob(Some(b"theirs".to_vec())),
            Request::Ask(RootRequest::Pmix(_)) => Answer::Pmix(PmixAnswer::Modex(None)),
            Request::Ask(RootRequest::Connect { job }) => Answer::Connected(job == b"fake-2_0"),
            Request::Put { .. } | Request::Get { .. } => unreachable!("this board is complete"),
            Request::Joined | Request::Abort { .. } | Request::Finalized | Request::Broken { .. } => return None,
        })
    }
}

impl State {
    /// Returns how many fences of groups are open.
    pub(crate) fn open_groups(&self) -> usize {
        self.groups.len()
    }

    /// Returns how many ranks wait in the fence.
    pub(crate) fn arrived(&self) -> u32 {
        self.arrived
    }

    fn publish(&mut self, epoch: Epoch) {
        let segment = &mut self.segment;
        self.board.publish_with(epoch, |epoch| {
            segment.append(epoch.bytes());
            epoch
        });
        // Merging may have moved runs, so write all of them again. A real agent avoids that.
        let places: Vec<_> = self.board.runs().iter().rev().map(|run| segment.append(run.bytes())).collect();
        let (directory_at, _) = segment.append(&directory(places));
        segment.publish(directory_at as usize);
    }
}

/// The segment: its header is mapped, its log is written as a file.
struct Memory {
    file: OwnedFd,
    header: *mut u8,
    log_bytes: usize,
}

// SAFETY: the mapping belongs to the process, and is only accessed as atomics.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Self {
        // SAFETY: system calls on a descriptor and a mapping that they create themselves.
        unsafe {
            let file = libc::memfd_create(c"fake".as_ptr(), libc::MFD_ALLOW_SEALING | libc::MFD_CLOEXEC);
            assert!(file >= 0 && libc::ftruncate(file, LOG_AT as i64) == 0, "creating the memfd failed");
            assert!(libc::fcntl(file, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) == 0, "F_ADD_SEALS failed");
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let header = libc::mmap(ptr::null_mut(), LOG_AT, access, libc::MAP_SHARED, file, 0);
            assert!(header != libc::MAP_FAILED, "mmap failed");
            let memory = Self { file: OwnedFd::from_raw_fd(file), header: header.cast(), log_bytes: 0 };
            memory.word::<AtomicU32>(0).store(MAGIC, Ordering::Relaxed);
            memory
        }
    }

    fn word<T>(&self, at: usize) -> &T {
        // SAFETY: an atomic at one of the fixed offsets of the header, whose mapping is never removed.
        unsafe { &*self.header.add(at).cast() }
    }

    fn append(&mut self, bytes: &[u8]) -> (u64, u64) {
        let start = self.log_bytes.next_multiple_of(ALIGNMENT);
        let file = self.file.as_raw_fd();
        // SAFETY: the kernel reads `bytes`, which outlive the call.
        let written = unsafe { libc::pwrite(file, bytes.as_ptr().cast(), bytes.len(), (LOG_AT + start) as i64) };
        assert_eq!(written, bytes.len() as isize);
        self.log_bytes = start + bytes.len();
        (start as u64, bytes.len() as u64)
    }

    fn publish(&mut self, directory_at: usize) {
        // Readers see the log up to a multiple of the alignment.
        let end = self.log_bytes.next_multiple_of(ALIGNMENT);
        let file = self.file.as_raw_fd();
        // SAFETY: extends the file of this segment.
        assert_eq!(unsafe { libc::ftruncate(file, (LOG_AT + end) as i64) }, 0);
        let word = Published::new(end, directory_at).expect("the log is too long").to_word();
        self.word::<AtomicU64>(PUBLISHED_AT).store(word, Ordering::Release);
    }

    fn release(&self, fails: bool) {
        let released = self.word::<AtomicU32>(RELEASED_AT);
        if fails {
            self.word::<AtomicU32>(FAILED_AT).store(released.load(Ordering::Relaxed) + 1, Ordering::Release);
        }
        released.fetch_add(1, Ordering::Release);
        // SAFETY: the kernel uses only the address.
        unsafe { libc::syscall(libc::SYS_futex, released.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }

    /// Sends bytes together with the descriptor.
    fn send(&self, stream: &UnixStream, bytes: &[u8]) -> io::Result<()> {
        #[repr(align(8))]
        struct Control([u8; 64]);
        let mut control = Control([0; 64]);
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: the header points to buffers of these lengths and holds one descriptor.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(self.file.as_raw_fd());
            libc::sendmsg(stream.as_raw_fd(), &message, libc::MSG_NOSIGNAL)
        };
        if sent == bytes.len() as isize { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}
