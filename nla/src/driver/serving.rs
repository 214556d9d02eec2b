//! Serves PMI to one rank: connects the rank's socket with the board and the actor.
//!
//! The task answers gets itself, from the board that the core fills. Only a request that concerns other ranks becomes a
//! [`RankEvent`].

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::fmt::Display;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{self, Pid};
use pmi::{Answer, Conversation, Request, RootRequest};
use tokio::io::unix::AsyncFdReadyGuard;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;

use super::board::SharedBoard;
use super::joiners::{Joiners, Verdict};
use super::table::Key;
use super::topology_file::TopologyFile;
use super::turns::Turns;
use crate::core::{Exit, LastCall};
use crate::sys::{self, Watched};

/// Bytes read from a rank at a time: at first, and at most. Few ranks send more than the first number.
const READ_BYTES_MIN: usize = 4 * 1024;
const READ_BYTES_MAX: usize = 64 * 1024;

/// An event of a rank's task for the actor.
pub(super) enum RankEvent {
    /// The rank has sent a request. `answer` is set if the request has an answer.
    Asked { key: Key, request: Request, answer: Option<Waiter> },
    /// A second process has joined as the rank, and is refused for the first time.
    SecondJoiner { key: Key, text: String },
    /// The rank's process has exited, and all its requests have been read.
    Ended { key: Key, exit: Exit },
}

/// The receiver of a request's answer.
pub(super) enum Waiter {
    /// The rank makes no other request before the answer.
    Alone(oneshot::Sender<Answer>),
    /// The rank is in a fence, and makes other requests meanwhile.
    Beside(oneshot::Sender<Answer>),
}

/// A rank's PMI connection: an inherited socket, or in port mode an accepted one.
///
/// The task clears its readiness itself: a read that did not fill the buffer has emptied the socket. That saves each get
/// the read that would return EAGAIN. Only bytes of another process may be left, which the next request brings up.
pub(super) type Connection = Watched;

/// The source of a rank's connections.
pub(super) enum Connections {
    /// The rank has inherited the only one. A channel for it would have 1.5 KiB for each rank.
    Inherited(Option<Connection>),
    /// The rank connects to the port.
    Accepted(mpsc::Receiver<Connection>),
}

impl Connections {
    /// Waits for the next one; `None` if no other follows. Cancel-safe.
    async fn next(&mut self) -> Option<Connection> {
        match self {
            Self::Inherited(connection) => connection.take(),
            Self::Accepted(connections) => connections.recv().await,
        }
    }
}

/// Buffers that all ranks' tasks share: no task borrows them across an await.
pub(super) struct Scratch {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
    /// The last read has not filled the buffer, so it has emptied the socket.
    has_emptied: bool,
}

impl Scratch {
    pub(super) fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { incoming: vec![0; READ_BYTES_MIN], outgoing: Vec::new(), has_emptied: false }))
    }
}

/// The task that serves one rank.
pub(super) struct Serving {
    pub(super) key: Key,
    pub(super) conversation: Conversation,
    pub(super) board: Rc<RefCell<SharedBoard>>,
    /// Set in port mode: the connection is TCP, which cannot pass descriptors, and the port refuses further connections of a
    /// rank that has joined.
    pub(super) has_joined: Option<Rc<Cell<bool>>>,
    pub(super) joiners: Joiners,
    /// The rank has been sent the shared segment.
    pub(super) has_segment: bool,
    /// The answers to fences that the rank is in beside other requests.
    pub(super) fences: RefCell<Vec<oneshot::Receiver<Answer>>>,
    /// The rank's last request to the actor, for surveys.
    pub(super) last_call: Rc<Cell<LastCall>>,
    /// The file that describes the node to hwloc, if the rank may be given one.
    pub(super) topology_file: Option<Rc<TopologyFile>>,
    pub(super) scratch: Rc<RefCell<Scratch>>,
    pub(super) turns: Rc<Turns>,
    pub(super) events: mpsc::Sender<RankEvent>,
}

/// A process that is refused, and the process that is the rank. `is_new`: none was refused as this rank before.
struct SecondJoiner {
    second: u32,
    first: u32,
    is_new: bool,
}

/// The reason why the task stops serving a connection.
enum Stop {
    /// The rank has closed the connection, or the connection broke. The rank may still run.
    Closed,
    /// The rank's process has exited; `None` if the agent is leaving.
    Ended(Option<Exit>),
}

impl Serving {
    /// Serves the rank over its connections, one after another, until its process has exited.
    ///
    /// Boxed: the future of an `async fn` has room for its arguments twice.
    pub(super) async fn run(mut self: Box<Self>, mut connections: Connections, mut ended: oneshot::Receiver<Exit>) {
        let mut more = true;
        let exit = loop {
            tokio::select! {
                biased;
                next = connections.next(), if more => match next {
                    None => more = false,
                    Some(connection) => {
                        let stop = self.serve(&connection, &mut ended).await;
                        self.has_joined.iter().for_each(|has_joined| has_joined.set(false));
                        if let Err(Stop::Ended(exit)) = stop {
                            break exit;
                        }
                    }
                },
                exit = &mut ended => break exit.ok(),
            }
        };
        if let Some(exit) = exit {
            let _ = self.events.send(RankEvent::Ended { key: self.key, exit }).await;
        }
    }

    async fn serve(
        &mut self,
        connection: &Connection,
        ended: &mut oneshot::Receiver<Exit>,
    ) -> Result<Infallible, Stop> {
        loop {
            while let Some(request) = self.advance(connection) {
                self.flush(connection, ended).await?;
                if request == Request::Segment {
                    self.send_segment(connection, ended).await?;
                } else if request == Request::TopologyFile {
                    let path = self.topology_file.as_ref().and_then(|file| file.path());
                    let answer = Answer::Got(path.map(|path| path.as_bytes().into()));
                    self.conversation.answer(answer, &mut self.scratch.borrow_mut().outgoing);
                } else if let Some(answer) = self.request(request, connection, ended).await? {
                    let mut scratch = self.scratch.borrow_mut();
                    self.conversation.answer(answer, &mut scratch.outgoing);
                    send(connection, &mut scratch.outgoing);
                }
            }
            self.flush(connection, ended).await?;
            tokio::select! {
                biased;
                // Before the connection: a child of a rank that has exited may keep it readable for ever.
                exit = &mut *ended => {
                    self.read_last_requests(connection).await;
                    return Err(Stop::Ended(exit.ok()));
                }
                answer = self.next_fence_end() => {
                    let mut scratch = self.scratch.borrow_mut();
                    self.conversation.answer(answer, &mut scratch.outgoing);
                    send(connection, &mut scratch.outgoing);
                }
                ready = self.when_due(connection) => match ready {
                    Ok(mut guard) => match self.read(connection) {
                        Ok((0, _)) => return Err(Stop::Closed),
                        Ok((_, Some(refusal))) => self.refuse(connection, refusal).await,
                        Ok(_) if self.scratch.borrow().has_emptied => guard.clear_ready(),
                        // `readable` has no budget: without this, a process that floods the socket stops the agent.
                        Ok(_) => yield_now().await,
                        Err(Errno::EAGAIN | Errno::EINTR) => guard.clear_ready(),
                        Err(_) => return Err(Stop::Closed),
                    },
                    Err(_) => return Err(Stop::Closed),
                },
            }
        }
    }

    /// Waits until the rank has sent something and it is its turn. Cancel-safe.
    async fn when_due<'a>(&self, connection: &'a Connection) -> io::Result<AsyncFdReadyGuard<'a, OwnedFd>> {
        let ready = connection.readable().await?;
        self.turns.next().await;
        Ok(ready)
    }

    /// Waits for the end of a fence that the rank is in beside other requests. Cancel-safe.
    async fn next_fence_end(&self) -> Answer {
        poll_fn(|context| {
            let mut fences = self.fences.borrow_mut();
            for at in (0..fences.len()).rev() {
                if let Poll::Ready(answer) = Pin::new(&mut fences[at]).poll(context) {
                    fences.swap_remove(at);
                    if let Ok(answer) = answer {
                        return Poll::Ready(answer);
                    }
                }
            }
            Poll::Pending
        })
        .await
    }

    /// Handles buffered lines up to a request for the actor. Sends as much of the replies as the connection takes
    /// without blocking, and leaves the rest in the scratch buffer.
    fn advance(&mut self, connection: &Connection) -> Option<Request> {
        let mut scratch = self.scratch.borrow_mut();
        let request = self.conversation.advance(self.board.borrow().board(), &mut scratch.outgoing);
        self.has_joined.iter().for_each(|has_joined| has_joined.set(self.conversation.is_active()));
        if !scratch.outgoing.is_empty() {
            tracing::trace!(rank = %self.key.1, S = %shown(&scratch.outgoing), "PMI");
        }
        send(connection, &mut scratch.outgoing);
        request
    }

    /// Reads from the connection. Returns the number of bytes, and whether they are of a second process that is refused.
    fn read(&mut self, connection: &Connection) -> Result<(usize, Option<SecondJoiner>), Errno> {
        let mut scratch = self.scratch.borrow_mut();
        let (count, sender) = sys::read_with_sender(connection.get_ref().as_fd(), &mut scratch.incoming)?;
        let received = &scratch.incoming[..count];
        tracing::trace!(rank = %self.key.1, C = %shown(received), "PMI");
        let is_alive = |pid| !matches!(sys::process_state(pid), None | Some(b'Z' | b'X' | b'x'));
        let refused = match self.joiners.judge(sender, received, self.conversation.is_active(), is_alive) {
            Verdict::Take => {
                self.conversation.receive(received);
                None
            }
            Verdict::Drop => None,
            Verdict::Refuse { first, is_new } => sender.map(|second| SecondJoiner { second, first, is_new }),
        };
        let length = scratch.incoming.len();
        scratch.has_emptied = count < length;
        if !scratch.has_emptied {
            scratch.incoming.resize((2 * length).min(READ_BYTES_MAX), 0);
        }
        Ok((count, refused))
    }

    /// Refuses a second process that has joined as this rank over the inherited socket.
    ///
    /// Both processes read from one socket. While the first one waits for a reply, each might read what is for the other, so
    /// the second one is killed instead.
    async fn refuse(&self, connection: &Connection, SecondJoiner { second, first, is_new }: SecondJoiner) {
        let must_end = self.conversation.is_waiting() || !self.fences.borrow().is_empty();
        let text = sys::refusal_text(Some(second), Some(first), if must_end { "killed" } else { "refused" });
        if must_end {
            let _ = kill(Pid::from_raw(second as i32), Signal::SIGKILL);
        } else {
            send(connection, &mut INIT_REFUSED.to_vec());
        }
        if is_new {
            let _ = self.events.send(RankEvent::SecondJoiner { key: self.key, text }).await;
        }
    }

    /// Handles the requests that the rank sent before it exited, most importantly an abort.
    ///
    /// Reads no more than the socket contains at the beginning: a child of the rank may still write to it.
    async fn read_last_requests(&mut self, connection: &Connection) {
        let mut unread = sys::unread_bytes(connection.get_ref().as_fd()).unwrap_or(0);
        while unread > 0
            && let Ok((count @ 1.., _)) = self.read(connection)
        {
            unread = unread.saturating_sub(count);
            while let Some(request) = self.advance(connection) {
                if !matches!(request, Request::Segment | Request::TopologyFile) {
                    self.ask(request, None).await;
                }
                if self.conversation.is_waiting() {
                    return;
                }
            }
            self.scratch.borrow_mut().outgoing.clear();
            // Other ranks are served between two pieces.
            yield_now().await;
        }
    }

    /// Replies to the request for the shared segment, with the segment's descriptor if the board is shared. All earlier
    /// replies have been sent.
    async fn send_segment(&mut self, connection: &Connection, ended: &mut oneshot::Receiver<Exit>) -> Result<(), Stop> {
        let descriptor = if self.has_joined.is_some() { None } else { self.board.borrow_mut().open() };
        let mut reply = Vec::new();
        self.conversation.answer(Answer::Segment(descriptor.is_some()), &mut reply);
        if let Some(descriptor) = descriptor {
            let send = || sys::send_descriptor(connection.get_ref(), &reply, &descriptor);
            let sent = when_writable(connection, ended, send).await?;
            reply.drain(..sent);
            if !std::mem::replace(&mut self.has_segment, true) {
                self.board.borrow_mut().readers += 1;
            }
        }
        self.scratch.borrow_mut().outgoing.extend_from_slice(&reply);
        self.flush(connection, ended).await
    }

    /// Sends the bytes that the connection did not take before.
    async fn flush(&self, connection: &Connection, ended: &mut oneshot::Receiver<Exit>) -> Result<(), Stop> {
        // Other tasks use the scratch buffer while this one waits.
        let mut unsent = {
            let mut scratch = self.scratch.borrow_mut();
            if scratch.outgoing.is_empty() {
                return Ok(());
            }
            std::mem::take(&mut scratch.outgoing)
        };
        while !unsent.is_empty() {
            let sent = when_writable(connection, ended, || unistd::write(connection.get_ref(), &unsent)).await?;
            unsent.drain(..sent);
        }
        Ok(())
    }

    /// Sends a request to the actor, and waits for the answer if the request has one.
    ///
    /// Reads meanwhile what a second process of the rank sends: it would take the rank's reply. Of the rank itself, which
    /// waits as well, it reads no more than once.
    async fn request(
        &mut self,
        request: Request,
        connection: &Connection,
        ended: &mut oneshot::Receiver<Exit>,
    ) -> Result<Option<Answer>, Stop> {
        let is_fence = matches!(request, Request::Fence { in_segment: false, .. } | Request::GroupFence { .. });
        let (answer, mut answered) = oneshot::channel();
        if !self.conversation.is_waiting() {
            if is_fence {
                self.fences.borrow_mut().push(answered);
            }
            self.ask(request, is_fence.then_some(Waiter::Beside(answer))).await;
            return Ok(None);
        }
        self.ask(request, Some(Waiter::Alone(answer))).await;
        let (mut is_open, mut watches) = (true, self.has_joined.is_none());
        loop {
            tokio::select! {
                biased;
                answer = &mut answered, if is_open => match answer {
                    Ok(answer) => return Ok(Some(answer)),
                    Err(_) => is_open = false,
                },
                exit = &mut *ended => return Err(Stop::Ended(exit.ok())),
                ready = connection.readable(), if watches => match ready {
                    Ok(mut guard) => match self.read(connection) {
                        Ok((1.., Some(refusal))) => self.refuse(connection, refusal).await,
                        Err(Errno::EAGAIN | Errno::EINTR) => guard.clear_ready(),
                        // The main loop handles it after the answer.
                        Ok(_) | Err(_) => watches = false,
                    },
                    Err(_) => watches = false,
                },
            }
        }
    }

    async fn ask(&self, request: Request, answer: Option<Waiter>) {
        self.last_call.set(call_of(&request));
        // The queue is closed only when the agent is leaving.
        let _ = self.events.send(RankEvent::Asked { key: self.key, request, answer }).await;
    }
}

/// The reply to the `init` of a second process.
pub(super) const INIT_REFUSED: &[u8] =
    b"cmd=response_to_init rc=-1 pmi_version=1 pmi_subversion=1 msg=another_process_is_this_rank\n";

/// Formats bytes of a rank for the log, without characters that a terminal acts on.
fn shown(bytes: &[u8]) -> impl Display {
    bytes.trim_ascii_end().escape_ascii()
}

/// Returns the name of a request in surveys.
pub(super) fn call_of(request: &Request) -> LastCall {
    match request {
        Request::Joined => LastCall::Init,
        Request::Fence { .. } | Request::GroupFence { .. } => LastCall::Fence,
        Request::Put { .. } => LastCall::Put,
        Request::Get { .. } | Request::TopologyFile | Request::Segment => LastCall::Get,
        Request::Ring { .. } => LastCall::Ring,
        Request::NodePut { .. } | Request::NodeGet { .. } => LastCall::NodeAttribute,
        Request::Ask(RootRequest::Spawn(_)) => LastCall::Spawn,
        Request::Ask(_) => LastCall::Name,
        Request::Abort { .. } | Request::Broken { .. } => LastCall::Abort,
        Request::Finalized => LastCall::Finalize,
    }
}

/// Calls `send` whenever the connection is writable, until some bytes have been sent. Returns their number.
async fn when_writable(
    connection: &Connection,
    ended: &mut oneshot::Receiver<Exit>,
    mut send: impl FnMut() -> Result<usize, Errno>,
) -> Result<usize, Stop> {
    loop {
        tokio::select! {
            biased;
            exit = &mut *ended => return Err(Stop::Ended(exit.ok())),
            ready = connection.writable() => {
                let Ok(mut guard) = ready else { return Err(Stop::Closed) };
                match send() {
                    Ok(count) => return Ok(count),
                    Err(Errno::EAGAIN | Errno::EINTR) => guard.clear_ready(),
                    Err(_) => return Err(Stop::Closed),
                }
            }
        }
    }
}

/// Sends as much as the connection takes without blocking, and leaves the rest in `bytes`.
fn send(connection: &Connection, bytes: &mut Vec<u8>) {
    if !bytes.is_empty() {
        // After an error the next read fails too, and closes the connection.
        let sent = unistd::write(connection.get_ref(), bytes).unwrap_or(0);
        bytes.drain(..sent);
    }
}
