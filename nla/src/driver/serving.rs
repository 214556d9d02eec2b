//! Serving PMI to one rank: its connection on one side, the board and the agent on the other.
//!
//! Gets never leave this task: they are answered from the board that the core fills. Only what
//! concerns others becomes a [`RankEvent`].

use std::cell::RefCell;
use std::rc::Rc;

use nix::errno::Errno;
use nix::unistd;
use pmi::{Answer, Conversation, Request};
use tokio::sync::{mpsc, oneshot};

use super::board::SharedBoard;
use super::table::Key;
use crate::core::Exit;
use crate::sys::{self, Watched};

/// Bytes read from a rank at a time.
const READ_BYTES: usize = 64 * 1024;

/// What a rank's task tells the agent.
pub(super) enum RankEvent {
    /// The rank asks something; where an answer is owed, it goes to `answer`.
    Asked { key: Key, request: Request, answer: Option<oneshot::Sender<Answer>> },
    /// The rank's process has ended, and nothing that it asked is left unread.
    Ended { key: Key, exit: Exit },
}

/// A connection that speaks PMI-1: an inherited socket, or one that came in in port mode.
///
/// Read and written by hand: after a read that did not fill the buffer nothing more can be there,
/// and saying so saves the system call that would find that out, at each get.
pub(super) type Connection = Watched;

/// Buffers that all ranks' tasks use in turn: a task never holds one across a wait.
pub(super) struct Scratch {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Scratch {
    /// To be shared by all tasks of the thread.
    pub(super) fn new() -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self { incoming: vec![0; READ_BYTES], outgoing: Vec::new() }))
    }
}

/// One rank's task, before it runs.
pub(super) struct Serving {
    pub(super) key: Key,
    pub(super) conversation: Conversation,
    pub(super) board: Rc<RefCell<SharedBoard>>,
    /// The rank comes over TCP, which passes no descriptors.
    pub(super) by_port: bool,
    /// The rank has the segment.
    pub(super) has_segment: bool,
    pub(super) scratch: Rc<RefCell<Scratch>>,
    pub(super) events: mpsc::Sender<RankEvent>,
}

/// Why a connection is served no longer.
enum Stop {
    /// The rank closed it, or it broke. That alone says nothing about the rank.
    Closed,
    /// The rank's process has ended; how, unless the agent is leaving.
    Ended(Option<Exit>),
}

impl Serving {
    /// Serves the rank until its process has ended. `connections` brings its connection, in port
    /// mode one after another.
    pub(super) async fn run(mut self, mut connections: mpsc::Receiver<Connection>, mut ended: oneshot::Receiver<Exit>) {
        let mut more = true;
        let exit = loop {
            tokio::select! {
                biased;
                next = connections.recv(), if more => match next {
                    None => more = false,
                    Some(connection) => if let Stop::Ended(exit) = self.serve(&connection, &mut ended).await {
                        break exit;
                    },
                },
                exit = &mut ended => break exit.ok(),
            }
        };
        if let Some(exit) = exit {
            let _ = self.events.send(RankEvent::Ended { key: self.key, exit }).await;
        }
    }

    async fn serve(&mut self, connection: &Connection, ended: &mut oneshot::Receiver<Exit>) -> Stop {
        loop {
            while let Some(request) = self.advance(connection) {
                if let Err(stop) = self.flush(connection, ended).await {
                    return stop;
                }
                if request == Request::Segment {
                    if let Err(stop) = self.hand_over_segment(connection, ended).await {
                        return stop;
                    }
                    continue;
                }
                match self.consult(request, ended).await {
                    Ok(Some(answer)) => {
                        let mut scratch = self.scratch.borrow_mut();
                        self.conversation.answer(answer, &mut scratch.outgoing);
                        send(connection, &mut scratch.outgoing);
                    }
                    Ok(None) => {}
                    Err(stop) => return stop,
                }
            }
            if let Err(stop) = self.flush(connection, ended).await {
                return stop;
            }
            tokio::select! {
                biased;
                ready = connection.readable() => match ready {
                    Ok(mut guard) => match self.read(connection) {
                        Ok(0) => return Stop::Closed,
                        Ok(count) => if count < READ_BYTES {
                            guard.clear_ready();
                        },
                        Err(Errno::EAGAIN | Errno::EINTR) => guard.clear_ready(),
                        Err(_) => return Stop::Closed,
                    },
                    Err(_) => return Stop::Closed,
                },
                exit = &mut *ended => {
                    self.hear_last_words(connection).await;
                    return Stop::Ended(exit.ok());
                }
            }
        }
    }

    /// Handles buffered lines up to a request for the agent. Replies go out as far as the
    /// connection takes them at once; the rest is left in the scratch buffer.
    fn advance(&mut self, connection: &Connection) -> Option<Request> {
        let mut scratch = self.scratch.borrow_mut();
        let request = self.conversation.advance(self.board.borrow().board(), &mut scratch.outgoing);
        if !scratch.outgoing.is_empty() {
            tracing::trace!(rank = %self.key.1, S = %String::from_utf8_lossy(&scratch.outgoing).trim_end(), "PMI");
        }
        send(connection, &mut scratch.outgoing);
        request
    }

    fn read(&mut self, connection: &Connection) -> Result<usize, Errno> {
        let mut scratch = self.scratch.borrow_mut();
        let count = unistd::read(connection.get_ref(), &mut scratch.incoming)?;
        let heard = &scratch.incoming[..count];
        tracing::trace!(rank = %self.key.1, C = %String::from_utf8_lossy(heard).trim_end(), "PMI");
        self.conversation.receive(heard);
        Ok(count)
    }

    /// The rank is gone; what it said before counts, an abort above all.
    async fn hear_last_words(&mut self, connection: &Connection) {
        while matches!(self.read(connection), Ok(1..)) {
            while let Some(request) = self.advance(connection) {
                if request != Request::Segment {
                    self.ask(request, None).await;
                }
                if self.conversation.is_waiting() {
                    return;
                }
            }
            self.scratch.borrow_mut().outgoing.clear();
        }
    }

    /// Replies to the request for the segment, with its descriptor if there is one. All replies
    /// before this one have been sent.
    async fn hand_over_segment(
        &mut self,
        connection: &Connection,
        ended: &mut oneshot::Receiver<Exit>,
    ) -> Result<(), Stop> {
        let descriptor = if self.by_port { None } else { self.board.borrow_mut().open() };
        let mut reply = Vec::new();
        self.conversation.answer(Answer::Segment(descriptor.is_some()), &mut reply);
        if let Some(descriptor) = descriptor {
            let send = || sys::send_descriptor(connection.get_ref(), &reply, &descriptor);
            let sent = when_writable(connection, ended, send).await?;
            reply.drain(..sent);
            if !std::mem::replace(&mut self.has_segment, true) {
                self.board.borrow_mut().note_reader();
            }
        }
        self.scratch.borrow_mut().outgoing.extend_from_slice(&reply);
        self.flush(connection, ended).await
    }

    /// Sends what the connection would not take at once.
    async fn flush(&self, connection: &Connection, ended: &mut oneshot::Receiver<Exit>) -> Result<(), Stop> {
        // Taken out of the scratch buffer: other tasks use it while this one waits.
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

    /// Asks the agent, and waits for the answer if one is owed.
    async fn consult(&self, request: Request, ended: &mut oneshot::Receiver<Exit>) -> Result<Option<Answer>, Stop> {
        if !self.conversation.is_waiting() {
            self.ask(request, None).await;
            return Ok(None);
        }
        let (answer, answered) = oneshot::channel();
        self.ask(request, Some(answer)).await;
        tokio::select! {
            biased;
            Ok(answer) = answered => Ok(Some(answer)),
            exit = &mut *ended => Err(Stop::Ended(exit.ok())),
        }
    }

    async fn ask(&self, request: Request, answer: Option<oneshot::Sender<Answer>>) {
        // The receiver is gone only when the agent is leaving.
        let _ = self.events.send(RankEvent::Asked { key: self.key, request, answer }).await;
    }
}

/// Tries `send` when the connection takes bytes again, until it has sent some; how many.
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

/// Sends as much as the connection takes at once and keeps the rest.
fn send(connection: &Connection, bytes: &mut Vec<u8>) {
    if !bytes.is_empty() {
        // An error shows again at the next read; there the connection is given up.
        let sent = unistd::write(connection.get_ref(), bytes).unwrap_or(0);
        bytes.drain(..sent);
    }
}
