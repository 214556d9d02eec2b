//! The flow of the streams of channels. Each end reads some streams from descriptors and writes the others to descriptors.
//!
//! A reader has at most [`WINDOW_BYTES`] on the way that the other end has not taken. So a stream that stalls neither fills the
//! memory of the other end nor delays other streams.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tracing::Span;

use super::message::{ChannelNumber, Flow, PIECE_BYTES_MAX, Parcel, StreamName};
use crate::tasks::Tasks;

/// The most bytes of a stream that were sent and not taken.
const WINDOW_BYTES: usize = 256 * 1024;

/// One end of all channels of a connection.
pub(super) struct Relay {
    channels: Rc<RefCell<HashMap<ChannelNumber, Channel>>>,
    outgoing: mpsc::Sender<Parcel>,
    tasks: Tasks,
}

/// One end of a channel.
#[derive(Default)]
struct Channel {
    /// The window of each stream that is read here.
    windows: Vec<(StreamName, Rc<Semaphore>)>,
    /// The streams that are written here.
    sinks: Vec<(StreamName, Sink)>,
    tasks: Vec<AbortHandle>,
    /// The streams that go on.
    open: usize,
}

/// A stream that is written here.
struct Sink {
    /// Its bytes, bounded by the window.
    pieces: mpsc::UnboundedSender<Vec<u8>>,
    /// How many bytes have arrived and were not written.
    arrived: Rc<Cell<usize>>,
}

/// The other end has sent what it must not send.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error("it has sent more than {} KiB that were not taken, or an empty piece", WINDOW_BYTES / 1024)]
pub(super) struct Excess;

impl Drop for Channel {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// The descriptors of a channel at one end.
#[derive(Default)]
pub(super) struct Ends {
    /// Streams that are read here.
    pub sources: Vec<(StreamName, OwnedFd)>,
    /// Streams that are written here.
    pub sinks: Vec<(StreamName, OwnedFd)>,
}

impl Relay {
    /// Begins without channels. Parcels for the other end go to `outgoing`.
    pub(super) fn new(outgoing: mpsc::Sender<Parcel>, tasks: Tasks) -> Self {
        Self { channels: Rc::default(), outgoing, tasks }
    }

    /// Opens one end of a channel. It is closed when all its streams have ended, but for standard input: an agent whose output
    /// has ended reads none.
    pub(super) fn open(&self, number: ChannelNumber, ends: Ends) -> io::Result<()> {
        let mut channel = Channel::default();
        channel.open =
            ends.sources.iter().chain(&ends.sinks).filter(|(stream, _)| *stream != StreamName::Input).count();
        for (stream, fd) in ends.sources {
            let from = Receiver::from_owned_fd(fd)?;
            let window = Rc::new(Semaphore::new(WINDOW_BYTES));
            channel.windows.push((stream, Rc::clone(&window)));
            let (outgoing, channels) = (self.outgoing.clone(), Rc::clone(&self.channels));
            let task = async move {
                read(from, &window, number, stream, &outgoing).await;
                end_stream(&channels, number, stream);
            };
            channel.tasks.push(self.tasks.spawn("stream", Span::current(), task).abort_handle());
        }
        for (stream, fd) in ends.sinks {
            let to = Sender::from_owned_fd(fd)?;
            // Bounded by the window.
            let (sink, pieces) = mpsc::unbounded_channel();
            let arrived = Rc::<Cell<usize>>::default();
            channel.sinks.push((stream, Sink { pieces: sink, arrived: Rc::clone(&arrived) }));
            let (outgoing, channels) = (self.outgoing.clone(), Rc::clone(&self.channels));
            let task = async move {
                write(to, pieces, &arrived, number, stream, &outgoing).await;
                end_stream(&channels, number, stream);
            };
            channel.tasks.push(self.tasks.spawn("stream", Span::current(), task).abort_handle());
        }
        self.channels.borrow_mut().insert(number, channel);
        Ok(())
    }

    /// Takes a parcel of the other end. Those of closed channels are dropped. Fails if the other end ignores its window: the
    /// connection is of no use then.
    pub(super) fn on_parcel(&self, Parcel { channel, stream, flow }: Parcel) -> Result<(), Excess> {
        let mut channels = self.channels.borrow_mut();
        let Some(channel) = channels.get_mut(&channel) else { return Ok(()) };
        match flow {
            Flow::Data(bytes) => {
                if let Some((_, sink)) = channel.sinks.iter().find(|(name, _)| *name == stream) {
                    let arrived = sink.arrived.get() + bytes.len();
                    if arrived > WINDOW_BYTES || bytes.is_empty() {
                        return Err(Excess);
                    }
                    sink.arrived.set(arrived);
                    // The writer ends only with the channel.
                    let _ = sink.pieces.send(bytes);
                }
            }
            // The writer ends once it has written everything.
            Flow::End => channel.sinks.retain(|(name, _)| *name != stream),
            Flow::Taken(bytes) => {
                if let Some((_, window)) = channel.windows.iter().find(|(name, _)| *name == stream) {
                    let fits = WINDOW_BYTES.saturating_sub(window.available_permits());
                    window.add_permits((bytes as usize).min(fits));
                }
            }
        }
        Ok(())
    }

    /// Closes a channel at this end.
    pub(super) fn close(&self, channel: ChannelNumber) {
        self.channels.borrow_mut().remove(&channel);
    }

    /// Ends all channels, since the connection is lost: their standard error says `why`, if it is written here. Returns their numbers.
    pub(super) fn lose(&self, why: &str) -> Vec<ChannelNumber> {
        let mut channels = self.channels.borrow_mut();
        for channel in channels.values_mut() {
            // The writers end once they have written everything, and the channel with them.
            for (stream, sink) in std::mem::take(&mut channel.sinks) {
                if stream == StreamName::Errors {
                    let _ = sink.pieces.send(format!("scela: {why}\n").into_bytes());
                }
            }
        }
        channels.keys().copied().collect()
    }

    /// Returns whether the channel is open at this end.
    #[cfg(test)]
    pub(super) fn has(&self, channel: ChannelNumber) -> bool {
        self.channels.borrow().contains_key(&channel)
    }

    /// Returns whether a stream of the channel waits for the other end.
    #[cfg(test)]
    fn is_stalled(&self, channel: ChannelNumber) -> bool {
        let channels = self.channels.borrow();
        channels[&channel].windows.iter().any(|(_, window)| window.available_permits() < PIECE_BYTES_MAX)
    }
}

fn end_stream(channels: &RefCell<HashMap<ChannelNumber, Channel>>, number: ChannelNumber, stream: StreamName) {
    let mut channels = channels.borrow_mut();
    if stream != StreamName::Input
        && let Some(channel) = channels.get_mut(&number)
    {
        channel.open -= 1;
        if channel.open == 0 {
            channels.remove(&number);
        }
    }
}

/// Sends what a descriptor yields, to its end.
async fn read(
    mut from: Receiver,
    window: &Semaphore,
    channel: ChannelNumber,
    stream: StreamName,
    outgoing: &mpsc::Sender<Parcel>,
) {
    let mut bytes = vec![0; PIECE_BYTES_MAX];
    loop {
        let Ok(room) = window.acquire_many(PIECE_BYTES_MAX as u32).await else { return };
        let length = from.read(&mut bytes).await.unwrap_or(0);
        room.forget();
        window.add_permits(PIECE_BYTES_MAX - length);
        let flow = if length == 0 { Flow::End } else { Flow::Data(bytes[..length].to_vec()) };
        if outgoing.send(Parcel { channel, stream, flow }).await.is_err() || length == 0 {
            return;
        }
    }
}

/// Writes what arrives. If the descriptor has no reader any more, drops the rest.
async fn write(
    to: Sender,
    mut pieces: mpsc::UnboundedReceiver<Vec<u8>>,
    arrived: &Cell<usize>,
    channel: ChannelNumber,
    stream: StreamName,
    outgoing: &mpsc::Sender<Parcel>,
) {
    let mut to = Some(to);
    while let Some(piece) = pieces.recv().await {
        if let Some(open) = &mut to
            && open.write_all(&piece).await.is_err()
        {
            to = None;
        }
        arrived.set(arrived.get().saturating_sub(piece.len()));
        // A connection that is lost needs no answer; what it has sent is still written.
        let _ = outgoing.send(Parcel { channel, stream, flow: Flow::Taken(piece.len() as u32) }).await;
    }
}

#[cfg(test)]
mod receipts;

#[cfg(test)]
mod tests {
    use tokio::task::LocalSet;

    use super::*;
    use crate::sys;
    use crate::tasks::Panics;

    /// Passes the parcels of one relay on to the other.
    fn connect(tasks: &Tasks, mut from: mpsc::Receiver<Parcel>, to: &Rc<Relay>) {
        let to = Rc::clone(to);
        tasks.spawn("test", Span::current(), async move {
            while let Some(parcel) = from.recv().await {
                to.on_parcel(parcel).unwrap();
            }
        });
    }

    fn run(test: impl AsyncFnOnce(Rc<Relay>, Rc<Relay>)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let tasks = Panics::new("test").tasks();
            let [(near_out, from_near), (far_out, from_far)] = [mpsc::channel(16), mpsc::channel(16)];
            let [near, far] = [near_out, far_out].map(|out| Rc::new(Relay::new(out, tasks.clone())));
            connect(&tasks, from_near, &far);
            connect(&tasks, from_far, &near);
            test(near, far).await;
        });
    }

    /// Opens a channel with standard output. Returns the end that the agent writes to, and the one that its session reads from.
    fn output(near: &Relay, far: &Relay) -> (Sender, Receiver) {
        let (from, to) = (sys::pipe().unwrap(), sys::pipe().unwrap());
        let output = |fd| vec![(StreamName::Output, fd)];
        far.open(1, Ends { sources: output(from.0), ..Ends::default() }).unwrap();
        near.open(1, Ends { sinks: output(to.1), ..Ends::default() }).unwrap();
        (Sender::from_owned_fd(from.1).unwrap(), Receiver::from_owned_fd(to.0).unwrap())
    }

    #[test]
    fn a_stream_longer_than_the_window_arrives_whole_and_ends_the_channel() {
        run(async |near, far| {
            let (mut agent, mut session) = output(&near, &far);
            let sent: Vec<u8> = (0..WINDOW_BYTES as u32 * 3).map(|at| (at / 3) as u8).collect();
            let mut received = Vec::new();
            let writing = async {
                agent.write_all(&sent).await.unwrap();
                drop(agent);
            };
            tokio::join!(writing, async { session.read_to_end(&mut received).await.unwrap() });
            assert!(received == sent);
            while near.has(1) || far.has(1) {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_stream_that_nothing_reads_any_more_is_drained() {
        run(async |near, far| {
            let (mut agent, session) = output(&near, &far);
            drop(session);
            agent.write_all(&vec![1; WINDOW_BYTES * 3]).await.unwrap();
        });
    }

    #[test]
    fn a_stream_that_stalls_takes_no_more_than_its_window() {
        run(async |near, far| {
            let (agent, session) = output(&near, &far);
            let mut sent = 0;
            // Two pipes and the window.
            while sent < 4 * WINDOW_BYTES {
                match agent.try_write(&[1; PIECE_BYTES_MAX]) {
                    Ok(bytes) => sent += bytes,
                    Err(_) if far.is_stalled(1) => break,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
            assert!((WINDOW_BYTES..WINDOW_BYTES * 2).contains(&sent), "{sent}");
            drop(session);
        });
    }

    #[test]
    fn a_peer_that_ignores_its_window_is_refused() {
        run(async |near, far| {
            let (_agent, mut session) = output(&near, &far);
            let data =
                |bytes: usize| Parcel { channel: 1, stream: StreamName::Output, flow: Flow::Data(vec![1; bytes]) };
            // Nothing is written meanwhile: this task does not wait.
            (0..WINDOW_BYTES / PIECE_BYTES_MAX).for_each(|_| near.on_parcel(data(PIECE_BYTES_MAX)).unwrap());
            assert_eq!(near.on_parcel(data(1)), Err(Excess));
            let mut taken = vec![0; WINDOW_BYTES];
            session.read_exact(&mut taken).await.unwrap();
            tokio::task::yield_now().await;
            assert_eq!(near.on_parcel(data(PIECE_BYTES_MAX)), Ok(()));
            assert_eq!(near.on_parcel(data(0)), Err(Excess));
            let why = "it has sent more than 256 KiB that were not taken, or an empty piece";
            assert_eq!(Excess.to_string(), why);
        });
    }

    #[test]
    fn the_channels_of_a_lost_connection_end_with_the_reason() {
        run(async |near, _| {
            let (output, errors) = (sys::pipe().unwrap(), sys::pipe().unwrap());
            let sinks = vec![(StreamName::Output, output.1), (StreamName::Errors, errors.1)];
            near.open(1, Ends { sinks, ..Ends::default() }).unwrap();
            near.lose("the keeper was lost");
            let (mut said, mut errors) = (String::new(), Receiver::from_owned_fd(errors.0).unwrap());
            errors.read_to_string(&mut said).await.unwrap();
            assert_eq!(said, "scela: the keeper was lost\n");
            assert_eq!(Receiver::from_owned_fd(output.0).unwrap().read(&mut [0]).await.unwrap(), 0);
            while near.has(1) {
                tokio::task::yield_now().await;
            }
        });
    }

    #[test]
    fn a_closed_channel_closes_its_descriptors() {
        run(async |near, far| {
            let (agent, mut session) = output(&near, &far);
            near.close(1);
            assert_eq!(session.read(&mut [0]).await.unwrap(), 0);
            far.close(1);
            while agent.try_write(b"x").is_ok() {
                tokio::task::yield_now().await;
            }
        });
    }
}
