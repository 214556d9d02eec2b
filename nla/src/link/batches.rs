//! Writes to a link's stream: staged files in small batches, where the network is slow.
//!
//! The kernel passes up to 64 KiB of a connection to the network at once. In front of a slow link, messages of all other connections
//! wait behind them: at 200 Mbit/s, 2.6 ms for each connection that does so.

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

/// Writes all bytes. `staged` says that bytes of staged files are among them.
pub(super) async fn write(stream: &mut WriteHalf, bytes: &[u8], staged: bool) -> io::Result<()> {
    match stream {
        Either::Left(connection) if staged && is_slow(connection.as_ref()) => {
            for batch in bytes.chunks(BATCH_BYTES) {
                send_all(connection.as_ref(), batch).await?;
            }
            Ok(())
        }
        // A pipe belongs to a remote shell, which has the connection.
        Either::Left(_) | Either::Right(_) => stream.write_all(bytes).await,
    }
}

/// Returns whether the network to the peer may be slow. There is none to this machine.
fn is_slow(connection: &TcpStream) -> bool {
    let is_local = match (connection.local_addr(), connection.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() == peer.ip(),
        (Err(_), _) | (_, Err(_)) => false,
    };
    !is_local && delivery_rate(connection).is_ok_and(|rate| rate < FAST_RATE)
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
        assert!(!is_slow(&near), "it leads to this machine");
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
