//! The byte stream of a link: a TCP connection, a Unix socket, or the input and output pipes of a remote shell.

use std::os::fd::{AsFd, AsRawFd, RawFd};

use bytes::BytesMut;
use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use tokio::net::unix::{self, pipe};
use tokio::net::{TcpStream, UnixStream, tcp};
use tokio_util::either::Either;

use super::silence::There;
use crate::sys;

/// The kernel's buffer for what is sent: urgent messages must not wait behind much more.
const BUFFER_BYTES: usize = 256 * 1024;

/// A byte stream in both directions.
pub(crate) struct Stream {
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
    /// Bytes that were read from the stream and not used.
    pub(crate) unread: BytesMut,
    pub(super) witness: Witness,
}

/// What tells of the other end's machine when the stream is silent.
#[derive(Copy, Clone, Debug)]
pub(super) enum Witness {
    /// The open stream: the other end is on this machine.
    Stream,
    /// The acknowledgements of the connection with this descriptor.
    Acks(RawFd),
    /// Nothing: processes of a remote shell are between the ends.
    Nothing,
}

impl Witness {
    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::Stream)
    }

    /// Returns what is known. The stream must be open.
    pub(super) fn look(self) -> There {
        match self {
            Self::Stream => There::Here,
            Self::Acks(connection) => sys::acks(connection).map_or(There::Unknown, There::Acks),
            Self::Nothing => There::Unknown,
        }
    }
}

/// The reading half: of a connection, or on this machine of a Unix socket or a pipe.
pub(crate) type ReadHalf = Either<tcp::OwnedReadHalf, Either<unix::OwnedReadHalf, pipe::Receiver>>;
/// The writing half of the same. None buffers in this process.
pub(crate) type WriteHalf = Either<tcp::OwnedWriteHalf, Either<unix::OwnedWriteHalf, pipe::Sender>>;

impl Stream {
    /// Prepares a connection for a link: sets TCP_NODELAY, and limits the send buffer so that urgent messages do not
    /// wait behind it for long.
    pub(crate) fn connection(stream: TcpStream) -> Self {
        // A failure costs speed, not correctness.
        let _ = stream.set_nodelay(true);
        let _ = setsockopt(&stream, sockopt::SndBuf, &BUFFER_BYTES);
        let witness = Witness::Acks(stream.as_raw_fd());
        let (read, write) = stream.into_split();
        Self { read: Either::Left(read), write: Either::Left(write), unread: BytesMut::new(), witness }
    }

    /// Prepares a Unix socket, whose other end is on this machine, for a link.
    pub(crate) fn local(stream: UnixStream) -> Self {
        // As above.
        let _ = setsockopt(&stream, sockopt::SndBuf, &BUFFER_BYTES);
        let (read, write) = stream.into_split();
        let (read, write) = (Either::Right(Either::Left(read)), Either::Right(Either::Left(write)));
        Self { read, write, unread: BytesMut::new(), witness: Witness::Stream }
    }

    /// Combines the pipes from and to a remote shell. `unread` was read from `input` before.
    pub(crate) fn pipes(input: pipe::Receiver, output: pipe::Sender, unread: &[u8]) -> Self {
        let (read, write) = (Either::Right(Either::Right(input)), Either::Right(Either::Right(output)));
        Self { read, write, unread: unread.into(), witness: Witness::Nothing }
    }

    /// Gives pipes as large a buffer as connections have, as far as the kernel permits it (pipe-user-pages-soft).
    pub(super) fn widen_pipes(&self) {
        let fds = [
            if let Either::Right(Either::Right(input)) = &self.read { Some(input.as_fd()) } else { None },
            if let Either::Right(Either::Right(output)) = &self.write { Some(output.as_fd()) } else { None },
        ];
        for pipe in fds.into_iter().flatten() {
            sys::widen_pipe(pipe, BUFFER_BYTES as u32);
        }
    }

    /// Returns whether it is a Unix socket. Pipes may lead to a remote shell.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.read, Either::Right(Either::Left(_)))
    }

    /// Returns the TCP connection, if it is one.
    pub(crate) fn as_connection(&self) -> Option<&TcpStream> {
        match &self.read {
            Either::Left(read) => Some(read.as_ref()),
            Either::Right(_) => None,
        }
    }
}

/// Ends a stream for the peer's reader. Dropping the half does that, except in the case here.
pub(super) fn end(write: WriteHalf) {
    if let Either::Right(Either::Right(output)) = &write {
        // If one socket serves as input and output, closing one of its descriptors does not end the stream.
        let _ = shutdown(output.as_raw_fd(), Shutdown::Write);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::mpsc;
    use tokio::task::{LocalSet, spawn_local};
    use tokio::time::{Instant, interval, timeout};

    use super::*;
    use crate::core::{AgentId, LossReason};
    use crate::link::SessionKey;
    use crate::link::handshake::{Accepted, Authenticator, accept_over, connect_over};
    use crate::link::lanes::{Link, LinkEvent, Liveness, Meter, Receipt};
    use crate::link::ticks::Ticks;
    use crate::tasks::Panics;
    use crate::wire::{Lane, Role, SessionId};

    const SESSION: SessionId = SessionId(7);
    const CHILD: AgentId = AgentId(3);

    fn pipes() -> [Stream; 2] {
        let (to_child, from_parent) = pipe::pipe().expect("descriptors are left");
        let (to_parent, from_child) = pipe::pipe().expect("descriptors are left");
        [Stream::pipes(from_child, to_child, &[]), Stream::pipes(from_parent, to_parent, &[])]
    }

    /// A connection between processes of one machine.
    fn local() -> [Stream; 2] {
        let (parent, child) = tokio::net::UnixStream::pair().expect("descriptors are left");
        [parent, child].map(Stream::local)
    }

    /// One socket pair for both directions, as some sshd versions use.
    fn sockets() -> [Stream; 2] {
        let (parent, child) = UnixStream::pair().expect("descriptors are left");
        [parent, child].map(|end| {
            end.set_nonblocking(true).expect("a socket can be set nonblocking");
            let other = OwnedFd::from(end.try_clone().expect("descriptors are left"));
            let input =
                pipe::Receiver::from_owned_fd_unchecked(OwnedFd::from(end)).expect("a socket can be waited for");
            Stream::pipes(input, pipe::Sender::from_owned_fd_unchecked(other).expect("a socket can be waited for"), &[])
        })
    }

    /// Runs the handshake. The parent has read `early` bytes of the stream before the handshake begins.
    async fn connected([mut parent, child]: [Stream; 2], early: usize, key: u8) -> Option<[Accepted; 2]> {
        let keys = [1, key].map(|byte| SessionKey::read_from(&mut &[byte; 32][..]).expect("a page"));
        let role = Role::Link { parent: AgentId::ROOT };
        let authenticator = RefCell::new(Authenticator::new(SESSION, keys[0].clone(), role, [CHILD]));
        let accepted = async {
            let mut leftover = vec![0; early];
            parent.read.read_exact(&mut leftover).await.expect("the child speaks first");
            parent.unread = BytesMut::from(&leftover[..]);
            accept_over(parent, &authenticator, || Duration::from_secs(9)).await
        };
        let connected = connect_over(child, role, CHILD, SESSION, &keys[1]);
        let (accepted, connected) = tokio::join!(accepted, connected);
        let (child, now) = connected.ok()?;
        assert_eq!(now, Duration::from_secs(9));
        Some([accepted.ok()?, child])
    }

    const LIVENESS: Liveness = Liveness {
        heartbeat: Duration::from_secs(5),
        dead_time: Duration::from_secs(20),
        stop_time: Duration::from_secs(600),
    };

    fn started(accepted: Accepted, liveness: Liveness) -> (Link, mpsc::Receiver<(AgentId, LinkEvent)>) {
        let (events, incoming) = mpsc::channel(16);
        let sink = Box::new(|_, _, _| {});
        let still = Rc::new(Cell::new(false));
        let tasks = Panics::new("test").tasks();
        // Neither end follows the other.
        let ticks = Ticks::start(AgentId::ROOT, liveness, &tasks);
        (Link::start(accepted, events, sink, &ticks, still, Meter::default(), &tasks), incoming)
    }

    #[tokio::test]
    async fn pipes_and_sockets_carry_a_link_to_its_end() {
        let carry = async |ends: [Stream; 2], early| {
            let [above, below] = connected(ends, early, 1).await.expect("both know the key");
            assert_eq!((above.peer, below.peer), (CHILD, AgentId::ROOT));
            let ((above, mut from_below), (below, mut from_above)) =
                (started(above, LIVENESS), started(below, LIVENESS));
            // More than a pipe holds.
            let message = Bytes::from(vec![5; 1 << 20]);
            for (link, incoming) in [(&above, &mut from_above), (&below, &mut from_below)] {
                link.send(Lane::Board, message.clone(), Receipt::default());
                let Some((_, LinkEvent::Message(heard))) = incoming.recv().await else { panic!("no message") };
                assert!(heard == message);
            }
            // The end that closes writes out what is queued first; the other end sees the end of the stream.
            above.send(Lane::Control, Bytes::from_static(b"last"), Receipt::default());
            above.close();
            let last = from_above.recv().await;
            assert!(matches!(&last, Some((_, LinkEvent::Message(heard))) if &heard[..] == b"last"), "{last:?}");
            for incoming in [&mut from_above, &mut from_below] {
                let end = incoming.recv().await;
                assert!(matches!(&end, Some((_, LinkEvent::Lost(LossReason::Closed)))), "{end:?}");
            }
        };
        let all = async {
            for early in [0, 1, 50] {
                carry(pipes(), early).await;
                carry(sockets(), early).await;
                carry(local(), early).await;
            }
        };
        LocalSet::new().run_until(all).await;
    }

    /// Passes bytes on, about 0.8 MB per second.
    async fn relay(mut from: ReadHalf, mut to: WriteHalf) {
        let (mut bytes, mut ticks) = (vec![0; 16 * 1024], interval(Duration::from_millis(20)));
        while let Ok(count @ 1..) = from.read(&mut bytes).await {
            ticks.tick().await;
            if to.write_all(&bytes[..count]).await.is_err() {
                return;
            }
        }
    }

    const SHORT: Liveness = Liveness {
        heartbeat: Duration::from_millis(100),
        dead_time: Duration::from_millis(400),
        stop_time: Duration::from_millis(1500),
    };

    #[tokio::test]
    async fn an_end_that_sends_or_receives_a_long_message_is_alive() {
        let ([parent, above], [below, child]) = (pipes(), pipes());
        let all = async {
            spawn_local(relay(above.read, below.write));
            spawn_local(relay(below.read, above.write));
            let [above, below] = connected([parent, child], 0, 1).await.expect("both know the key");
            let ((above, mut from_below), (below, mut from_above)) = (started(above, SHORT), started(below, SHORT));
            // First one way, so that the other carries only heartbeats, then both ways.
            let message = Bytes::from(vec![5; 1 << 20]);
            let began = Instant::now();
            above.send(Lane::Board, message.clone(), Receipt::default());
            let Some((_, LinkEvent::Message(heard))) = from_above.recv().await else { panic!("the link is lost") };
            assert!(heard == message && began.elapsed() > 2 * SHORT.dead_time, "{:?}", began.elapsed());
            for link in [&above, &below] {
                link.send(Lane::Board, message.clone(), Receipt::default());
            }
            for incoming in [&mut from_above, &mut from_below] {
                let event = incoming.recv().await;
                assert!(matches!(&event, Some((_, LinkEvent::Message(_)))), "{event:?}");
            }
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn a_silent_peer_is_lost_when_the_dead_time_is_over() {
        let all = async {
            let [above, _silent] = connected(pipes(), 0, 1).await.expect("both know the key");
            let began = Instant::now();
            let (_link, mut events) = started(above, SHORT);
            let event = timeout(Duration::from_secs(30), events.recv()).await.expect("the loss is noticed");
            let lost = LossReason::Silent(SHORT.dead_time);
            assert!(matches!(&event, Some((_, LinkEvent::Lost(why))) if *why == lost), "{event:?}");
            let time = began.elapsed();
            assert!(time >= SHORT.dead_time && time < SHORT.dead_time + Duration::from_secs(1), "{time:?}");
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn a_silent_peer_whose_machine_answers_is_told_and_lost_after_the_stop_time() {
        let all = async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("it has one");
            let (near, far) = tokio::join!(TcpStream::connect(address), listener.accept());
            let tcp = [near.expect("it listens"), far.expect("it is connected").0].map(Stream::connection);
            for ends in [local(), tcp] {
                let [above, _silent] = connected(ends, 0, 1).await.expect("both know the key");
                let began = Instant::now();
                let (_link, mut events) = started(above, SHORT);
                let event = timeout(Duration::from_secs(30), events.recv()).await.expect("the silence is noticed");
                assert!(matches!(&event, Some((_, LinkEvent::Silent(time))) if *time >= SHORT.dead_time), "{event:?}");
                let event = timeout(Duration::from_secs(30), events.recv()).await.expect("the loss is noticed");
                let lost = LossReason::Stopped(SHORT.stop_time);
                assert!(matches!(&event, Some((_, LinkEvent::Lost(why))) if *why == lost), "{event:?}");
                assert!(began.elapsed() >= SHORT.stop_time, "{:?}", began.elapsed());
            }
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn a_peer_with_the_wrong_key_is_refused() {
        assert!(connected(pipes(), 0, 2).await.is_none());
        assert!(connected(local(), 0, 2).await.is_none());
    }

    #[tokio::test]
    async fn records_are_in_clear_only_where_the_kernel_passes_them_to_this_users_process() {
        const WORDS: &str = "these words are sent";
        for (ends, in_clear) in [(local(), true), (pipes(), false), (sockets(), false)] {
            let [mut above, mut below] = connected(ends, 0, 1).await.expect("both know the key");
            above.send(&WORDS).await.expect("the other end is open");
            drop(above);
            let mut sent = Vec::new();
            below.stream.read.read_to_end(&mut sent).await.expect("it can be read to its end");
            let has_words = sent.windows(WORDS.len()).any(|bytes| bytes == WORDS.as_bytes());
            assert_eq!(has_words, in_clear, "{sent:?}");
        }
    }
}
