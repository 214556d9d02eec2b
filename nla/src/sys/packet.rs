//! Unix sockets that keep the bounds of messages and pass descriptors (SOCK_SEQPACKET).
//!
//! A message arrives whole, with all its descriptors, or not at all. [`Packets::peer_user`] returns the user of the other end.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::path::Path;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr,
    accept4, bind, connect, getsockopt, listen, recv, recvmsg, sendmsg, shutdown, socket, socketpair, sockopt,
};

use super::descriptors::set_nonblocking;
use super::readiness::{Watched, watch};

/// The most bytes of a message.
pub const PACKET_BYTES_MAX: usize = 32 * 1024;
/// The most descriptors of a message.
pub const PACKET_DESCRIPTORS_MAX: usize = 8;

/// One end of a connection.
#[derive(Debug)]
pub struct Packets {
    socket: OwnedFd,
}

/// A message and its descriptors.
#[derive(Debug)]
pub struct Packet {
    /// The bytes of the message.
    pub bytes: Vec<u8>,
    /// Its descriptors, close-on-exec, in the order in which they were sent.
    pub descriptors: Vec<OwnedFd>,
}

impl Packets {
    /// Creates a connected pair, both ends blocking.
    pub fn pair() -> io::Result<[Self; 2]> {
        let (one, other) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        Ok([one, other].map(|socket| Self { socket }))
    }

    /// Connects to the listener at `path`, blocking.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self { socket })
    }

    /// Takes over the descriptor of such a socket.
    pub fn of(socket: OwnedFd) -> Self {
        Self { socket }
    }

    /// Returns the user that made the other end.
    pub fn peer_user(&self) -> io::Result<u32> {
        Ok(getsockopt(&self.socket, sockopt::PeerCredentials)?.uid())
    }

    /// Sends a message of at most [`PACKET_BYTES_MAX`] bytes with at most [`PACKET_DESCRIPTORS_MAX`] descriptors. If `waits`
    /// is false, fails with EAGAIN if the other end has too many unread messages.
    pub fn send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>], waits: bool) -> io::Result<()> {
        send(self.as_fd(), bytes, descriptors, waits)
    }

    /// Receives the next message; `None` at the end of the connection. If `waits` is false, fails with EAGAIN if there is none.
    /// Fails if the message, or its descriptors, exceed the bounds.
    pub fn receive(&self, waits: bool) -> io::Result<Option<Packet>> {
        receive(self.as_fd(), waits)
    }

    /// Ends the connection in this direction: the other end receives no more, and may still send.
    pub fn end_sending(&self) -> io::Result<()> {
        Ok(shutdown(self.socket.as_raw_fd(), Shutdown::Write)?)
    }

    /// Waits until there is a message, or the connection has ended, or `end` is readable. Returns false in the last case.
    pub fn wait_until(&self, end: BorrowedFd<'_>) -> bool {
        let mut both = [self.as_fd(), end].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        while poll(&mut both, PollTimeout::NONE) == Err(Errno::EINTR) {}
        both[1].any() == Some(false)
    }

    /// Returns another owner of the same end.
    pub fn duplicate(&self) -> io::Result<Self> {
        Ok(Self { socket: self.socket.try_clone()? })
    }
}

impl From<Packets> for OwnedFd {
    fn from(packets: Packets) -> Self {
        packets.socket
    }
}

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// One end of a connection that tokio watches.
#[derive(Debug)]
pub struct WatchedPackets {
    socket: Watched,
}

impl WatchedPackets {
    /// Watches the connection. Call it inside a tokio runtime.
    pub fn of(packets: Packets) -> io::Result<Self> {
        Ok(Self { socket: watch(packets.socket)? })
    }

    /// As [`Packets::receive`], for the task that waits. Cancel safe.
    pub async fn receive(&self) -> io::Result<Option<Packet>> {
        loop {
            let mut ready = self.socket.readable().await?;
            match receive(self.socket.as_fd(), false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                received => return received,
            }
        }
    }

    /// As [`Packets::end_sending`].
    pub fn end_sending(&self) -> io::Result<()> {
        Ok(shutdown(self.socket.as_fd().as_raw_fd(), Shutdown::Write)?)
    }

    /// Returns whether a message has arrived that was not received. The end of the connection is none.
    pub fn has_message(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        recv(self.socket.as_fd().as_raw_fd(), &mut [0], flags).is_ok_and(|length| length > 0)
    }

    /// Returns whether the other end is closed, or has ended its sending, and all messages were received.
    pub fn has_ended(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        !matches!(recv(self.socket.as_fd().as_raw_fd(), &mut [0], flags), Ok(1..) | Err(Errno::EAGAIN | Errno::EINTR))
    }

    /// As [`Packets::send`], for the task that waits.
    pub async fn send(&self, bytes: &[u8]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            match send(self.socket.as_fd(), bytes, &[], false) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                sent => return sent,
            }
        }
    }

    /// As [`Packets::send`], without waiting.
    pub fn try_send(&self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        send(self.socket.as_fd(), bytes, descriptors, false)
    }
}

fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[BorrowedFd<'_>], waits: bool) -> io::Result<()> {
    if bytes.is_empty() || bytes.len() > PACKET_BYTES_MAX || descriptors.len() > PACKET_DESCRIPTORS_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let rights = [ControlMessage::ScmRights(&raw)];
    let control = if raw.is_empty() { &[][..] } else { &rights };
    let flags = if waits { MsgFlags::MSG_NOSIGNAL } else { MsgFlags::MSG_NOSIGNAL | MsgFlags::MSG_DONTWAIT };
    loop {
        match sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn receive(socket: BorrowedFd<'_>, waits: bool) -> io::Result<Option<Packet>> {
    let mut bytes = vec![0; PACKET_BYTES_MAX];
    let mut control = nix::cmsg_space!([RawFd; PACKET_DESCRIPTORS_MAX]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | if waits { MsgFlags::empty() } else { MsgFlags::MSG_DONTWAIT };
    let mut parts = [IoSliceMut::new(&mut bytes)];
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags) {
            Err(Errno::EINTR) => {}
            received => break received?,
        }
    };
    let mut descriptors = Vec::new();
    for control in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(raw) = control {
            // SAFETY: the kernel has just made these descriptors for this process; they have no other owner.
            descriptors.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    let (length, received) = (message.bytes, message.flags);
    if received.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a message is too long"));
    }
    bytes.truncate(length);
    Ok((length > 0).then_some(Packet { bytes, descriptors }))
}

/// Accepts connections at a path.
#[derive(Debug)]
pub struct PacketListener {
    socket: OwnedFd,
}

/// Such a listener that tokio watches.
#[derive(Debug)]
pub struct WatchedListener {
    socket: Watched,
}

impl WatchedListener {
    /// Watches the listener. Call it inside a tokio runtime.
    pub fn of(listener: PacketListener) -> io::Result<Self> {
        set_nonblocking(listener.as_fd())?;
        Ok(Self { socket: watch(listener.socket)? })
    }

    /// Accepts the next connection. Cancel safe.
    pub async fn accept(&self) -> io::Result<Packets> {
        loop {
            let mut ready = self.socket.readable().await?;
            match accept(self.socket.as_fd()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => ready.clear_ready(),
                accepted => return accepted,
            }
        }
    }
}

fn accept(listener: BorrowedFd<'_>) -> io::Result<Packets> {
    let socket = accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC)?;
    // SAFETY: the kernel has just made this descriptor for this process; it has no other owner.
    Ok(Packets { socket: unsafe { OwnedFd::from_raw_fd(socket) } })
}

impl PacketListener {
    /// Listens at `path`, which must not exist. Only a process that may write to the socket's file can connect.
    pub fn bind(path: &Path) -> io::Result<Self> {
        let socket = new_socket()?;
        bind(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        listen(&socket, Backlog::MAXCONN)?;
        Ok(Self { socket })
    }

    /// Accepts the next connection, for the thread that waits.
    pub fn accept(&self) -> io::Result<Packets> {
        accept(self.as_fd())
    }
}

impl AsFd for PacketListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Write};

    use nix::unistd::pipe;

    use super::*;

    #[test]
    fn messages_keep_their_bounds_and_their_descriptors() {
        let [one, other] = Packets::pair().expect("descriptors are left");
        let (read, write) = pipe().expect("descriptors are left");
        one.send(b"first", &[write.as_fd(), read.as_fd()], true).expect("it is sent");
        one.send(b"second", &[], true).expect("it is sent");
        drop((one, read, write));
        let first = other.receive(true).expect("it arrives").expect("it is no end");
        let second = other.receive(true).expect("it arrives").expect("it is no end");
        assert_eq!((&first.bytes[..], &second.bytes[..], second.descriptors.len()), (&b"first"[..], &b"second"[..], 0));
        let [write, read] = <[OwnedFd; 2]>::try_from(first.descriptors).expect("there are two");
        File::from(write).write_all(b"through").expect("it is the writing end");
        let mut text = String::new();
        File::from(read).read_to_string(&mut text).expect("it is the reading end");
        assert_eq!(text, "through");
        assert!(other.receive(true).expect("the end is no error").is_none());
    }

    #[tokio::test]
    async fn the_end_of_a_connection_is_seen_without_waiting() {
        let [one, other] = Packets::pair().expect("descriptors are left");
        one.send(b"first", &[], true).expect("it is sent");
        let other = WatchedPackets::of(other).expect("descriptors are left");
        one.end_sending().expect("it is connected");
        assert!(!other.has_ended(), "a message is left");
        assert_eq!(other.receive().await.expect("it arrives").expect("it is no end").bytes, b"first");
        assert!(other.has_ended());
        assert!(other.receive().await.expect("the end is no error").is_none());
        other.try_send(b"answer", &[]).expect("the other direction is open");
        assert_eq!(one.receive(true).expect("it arrives").expect("it is no end").bytes, b"answer");
        let [one, other] = Packets::pair().expect("descriptors are left");
        let other = WatchedPackets::of(other).expect("descriptors are left");
        assert!(!other.has_ended());
        drop(one);
        assert!(other.has_ended());
    }

    #[test]
    fn a_wait_ends_with_another_descriptor() {
        let [one, other] = Packets::pair().expect("descriptors are left");
        let (end, alive) = pipe().expect("descriptors are left");
        one.send(b"first", &[], true).expect("it is sent");
        assert!(other.wait_until(end.as_fd()));
        drop(alive);
        assert!(!other.wait_until(end.as_fd()), "it has ended, although a message has arrived");
    }

    #[test]
    fn a_message_beyond_the_bounds_is_neither_sent_nor_received() {
        let [one, other] = Packets::pair().expect("descriptors are left");
        for bytes in [0, PACKET_BYTES_MAX + 1] {
            assert_eq!(one.send(&vec![1; bytes], &[], true).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        }
        one.send(&vec![1; PACKET_BYTES_MAX], &[], true).expect("it is sent");
        assert_eq!(other.receive(true).expect("it arrives").expect("it is no end").bytes.len(), PACKET_BYTES_MAX);
        nix::unistd::write(&one, &vec![1; PACKET_BYTES_MAX + 1]).expect("another program sends it");
        assert_eq!(other.receive(true).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(other.receive(false).unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }

    #[test]
    fn the_kernel_names_the_users_of_both_ends() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        assert!(Packets::connect(&path).is_err());
        let listener = PacketListener::bind(&path).expect("the path is free");
        assert_eq!(PacketListener::bind(&path).unwrap_err().raw_os_error(), Some(libc::EADDRINUSE));
        let client = Packets::connect(&path).expect("it listens");
        let accepted = listener.accept().expect("a client has connected");
        let own = nix::unistd::geteuid().as_raw();
        assert_eq!([&client, &accepted].map(|end| end.peer_user().expect("the kernel knows")), [own; 2]);
    }
}
