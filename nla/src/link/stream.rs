//! What a link goes over: a connection, or the input and output of a session that started an agent.

use std::io;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::task::{Context, Poll};

use nix::sys::socket::{Shutdown, setsockopt, shutdown, sockopt};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::unix::pipe;

/// Both directions.
pub(crate) struct Stream {
    pub(crate) read: ReadHalf,
    pub(crate) write: WriteHalf,
}

/// The direction to here.
pub(crate) enum ReadHalf {
    Connection(OwnedReadHalf),
    Session(pipe::Receiver),
}

/// The direction from here.
pub(crate) enum WriteHalf {
    Connection(OwnedWriteHalf),
    Session(pipe::Sender),
}

impl Stream {
    /// A connection prepared for a link: no delay for small messages, and no more in the kernel's buffer than
    /// urgent messages may wait for.
    pub(crate) fn connection(stream: TcpStream) -> Self {
        // Either failing costs speed, not correctness. A pipe holds less anyway.
        let _ = stream.set_nodelay(true);
        let _ = setsockopt(&stream, sockopt::SndBuf, &(256 * 1024));
        let (read, write) = stream.into_split();
        Self { read: ReadHalf::Connection(read), write: WriteHalf::Connection(write) }
    }

    /// What a session takes in and says.
    pub(crate) fn session(input: pipe::Receiver, output: pipe::Sender) -> Self {
        Self { read: ReadHalf::Session(input), write: WriteHalf::Session(output) }
    }

    /// The connection, if it is one.
    pub(crate) fn as_connection(&self) -> Option<&TcpStream> {
        match &self.read {
            ReadHalf::Connection(read) => Some(read.as_ref()),
            ReadHalf::Session(_) => None,
        }
    }
}

fn poll_end(output: &pipe::Sender) -> Poll<io::Result<()>> {
    // Where one socket is both input and output, closing a descriptor of it ends nothing.
    let _ = shutdown(output.as_raw_fd(), Shutdown::Write);
    Poll::Ready(Ok(()))
}

impl AsyncRead for ReadHalf {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Connection(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Session(input) => Pin::new(input).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for WriteHalf {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Connection(stream) => Pin::new(stream).poll_write(cx, bytes),
            Self::Session(output) => Pin::new(output).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Neither holds anything back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Connection(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Session(output) => poll_end(output),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::rc::Rc;
    use std::time::Duration;

    use bytes::{Bytes, BytesMut};
    use tokio::io::AsyncReadExt;
    use tokio::sync::mpsc;
    use tokio::task::LocalSet;

    use super::*;
    use crate::core::AgentId;
    use crate::link::handshake::{Accepted, Authenticator, accept_over, connect_over};
    use crate::link::lanes::{Link, LinkEvent, Meter, Receipt};
    use crate::wire::{Lane, SessionId, SessionKey};

    const SESSION: SessionId = SessionId(7);
    const CHILD: AgentId = AgentId(3);

    fn pipes() -> [Stream; 2] {
        let (to_child, from_parent) = pipe::pipe().expect("descriptors are left");
        let (to_parent, from_child) = pipe::pipe().expect("descriptors are left");
        [Stream::session(from_child, to_child), Stream::session(from_parent, to_parent)]
    }

    /// As an sshd does it that has one socket for both directions.
    fn sockets() -> [Stream; 2] {
        let (parent, child) = UnixStream::pair().expect("descriptors are left");
        [parent, child].map(|end| {
            end.set_nonblocking(true).expect("a socket can be told");
            let other = OwnedFd::from(end.try_clone().expect("descriptors are left"));
            let input =
                pipe::Receiver::from_owned_fd_unchecked(OwnedFd::from(end)).expect("a socket can be waited for");
            Stream::session(input, pipe::Sender::from_owned_fd_unchecked(other).expect("a socket can be waited for"))
        })
    }

    /// Both ends of a link over a session, from which the parent has read so many bytes before it knew that.
    async fn greeted([mut parent, child]: [Stream; 2], early: usize, key: u8) -> Option<[Accepted; 2]> {
        let keys = [SessionKey([1; 32]), SessionKey([key; 32])];
        let authenticator = RefCell::new(Authenticator::new(SESSION, keys[0].clone(), [CHILD]));
        let accepted = async {
            let mut said = vec![0; early];
            parent.read.read_exact(&mut said).await.expect("the child speaks first");
            accept_over(parent, BytesMut::from(&said[..]), &authenticator, || Duration::from_secs(9)).await
        };
        let connected = connect_over(child, BytesMut::new(), AgentId::ROOT, CHILD, SESSION, &keys[1]);
        let (accepted, connected) = tokio::join!(accepted, connected);
        let (connected, now) = connected.ok()?;
        assert_eq!(now, Duration::from_secs(9));
        Some([accepted.ok()?, connected])
    }

    fn started(accepted: Accepted) -> (Link, mpsc::Receiver<(AgentId, LinkEvent)>) {
        let (events, incoming) = mpsc::channel(16);
        let sink = Box::new(|_, _, _| {});
        let still = Rc::new(Cell::new(false));
        (Link::start(accepted, events, sink, Duration::from_secs(20), still, Meter::default()), incoming)
    }

    #[tokio::test]
    async fn a_session_carries_a_link_to_its_end() {
        let carry = async |ends: [Stream; 2], early| {
            let [above, below] = greeted(ends, early, 1).await.expect("they know each other");
            assert_eq!((above.peer, below.peer), (CHILD, AgentId::ROOT));
            let ((above, mut from_below), (below, mut from_above)) = (started(above), started(below));
            // More than a pipe holds.
            let message = Bytes::from(vec![5; 1 << 20]);
            for (link, incoming) in [(&above, &mut from_above), (&below, &mut from_below)] {
                link.send(Lane::Board, message.clone(), Receipt::default());
                let Some((_, LinkEvent::Message(heard))) = incoming.recv().await else { panic!("no message") };
                assert!(heard == message);
            }
            // Who closes writes out first; the other sees the end and lets go.
            above.send(Lane::Control, Bytes::from_static(b"last"), Receipt::default());
            above.close();
            let last = from_above.recv().await;
            assert!(matches!(&last, Some((_, LinkEvent::Message(heard))) if &heard[..] == b"last"), "{last:?}");
            for incoming in [&mut from_above, &mut from_below] {
                let end = incoming.recv().await;
                assert!(matches!(&end, Some((_, LinkEvent::Lost(crate::core::LossReason::Closed)))), "{end:?}");
            }
        };
        let all = async {
            for early in [0, 1, 50] {
                carry(pipes(), early).await;
                carry(sockets(), early).await;
            }
        };
        LocalSet::new().run_until(all).await;
    }

    #[tokio::test]
    async fn who_does_not_know_the_key_gets_no_link() {
        assert!(greeted(pipes(), 0, 2).await.is_none());
    }
}
