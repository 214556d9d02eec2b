//! Writes to a link's stream: staged files in small batches, where the network is slow.
//!
//! The kernel passes up to 64 KiB of a connection to the network at once. In front of a slow link, messages of all other connections
//! wait behind them: at 200 Mbit/s, 2.6 ms for each connection that does so. The addresses of a connection are asked for once, and
//! its rate once for every [`RATE_BYTES`] of staged files.

use std::io;
use std::os::fd::AsRawFd as _;

use nix::sys::socket::{MsgFlags, send};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::stream::WriteHalf;
use crate::sys::delivery_rate;

/// Three segments of Ethernet.
const BATCH_BYTES: usize = 3 * 1448;
/// From this rate on, in bytes per second, a network passes 64 KiB on in half a millisecond. Small batches would only cost
/// processor time.
const FAST_RATE: u64 = 125_000_000;
/// The bytes of staged files after which the rate is read again: 8 ms at [`FAST_RATE`].
const RATE_BYTES: usize = 1 << 20;

/// Decides for a link's stream in which batches it is written.
#[derive(Default)]
pub(super) struct Batches {
    /// Whether a network is between the ends of the connection. `None` before the first staged bytes.
    has_network: Option<bool>,
    is_slow: bool,
    /// The staged bytes that are written before the rate is read again.
    until_rate: usize,
}

impl Batches {
    /// Writes all bytes. `staged` says that bytes of staged files are among them.
    pub(super) async fn write(&mut self, stream: &mut WriteHalf, bytes: &[u8], staged: bool) -> io::Result<()> {
        match stream {
            Either::Left(connection) if staged && self.are_small(connection.as_ref(), bytes.len()) => {
                for batch in bytes.chunks(BATCH_BYTES) {
                    send_all(connection.as_ref(), batch).await?;
                }
                Ok(())
            }
            // A pipe belongs to a remote shell, which has the connection.
            Either::Left(_) | Either::Right(_) => stream.write_all(bytes).await,
        }
    }

    /// Returns whether the next staged bytes go in small batches: a network to the peer may be slow.
    fn are_small(&mut self, connection: &TcpStream, bytes: usize) -> bool {
        if !*self.has_network.get_or_insert_with(|| has_network(connection)) {
            return false;
        }
        if self.until_rate == 0 {
            self.is_slow = delivery_rate(connection).is_ok_and(|rate| rate < FAST_RATE);
            self.until_rate = RATE_BYTES;
        }
        self.until_rate = self.until_rate.saturating_sub(bytes);
        self.is_slow
    }
}

/// Returns whether a network is between the ends of a connection: the peer is not on this machine.
fn has_network(connection: &TcpStream) -> bool {
    match (connection.local_addr(), connection.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() != peer.ip(),
        (Err(_), _) | (_, Err(_)) => true,
    }
}

/// Sends a batch, to which the kernel joins no other bytes.
async fn send_all(connection: &TcpStream, mut batch: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_EOR | MsgFlags::MSG_NOSIGNAL;
    while !batch.is_empty() {
        let sent = connection.async_io(Interest::WRITABLE, || Ok(send(connection.as_raw_fd(), batch, flags)?)).await?;
        batch = &batch[sent..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn batches_carry_all_bytes_in_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        assert!(!Batches::default().are_small(&near, 1), "it leads to this machine");
        // As if a network were between them. The first rate is read at once, and the next one after so many bytes.
        let mut batches = Batches { has_network: Some(true), ..Batches::default() };
        assert!(batches.are_small(&near, RATE_BYTES - 1), "nothing was delivered yet");
        batches.is_slow = false;
        assert!(!batches.are_small(&near, 1), "the rate is not read again yet");
        assert!(batches.are_small(&near, 1), "it is read again");
        let content: Vec<u8> = (0..5_000_000_u32).map(|index| (index % 251) as u8).collect();
        let reading = async {
            let mut read = vec![0; content.len()];
            far.read_exact(&mut read).await.unwrap();
            read
        };
        let writing = async {
            for batch in content.chunks(BATCH_BYTES) {
                send_all(&near, batch).await.unwrap();
            }
        };
        let (read, ()) = tokio::join!(reading, writing);
        assert!(read == content);
    }
}
