//! Writes to a link's stream. Staged files are written at the pace that [`super::pace`] decides.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use litemap::LiteMap;
use nix::sys::socket::{MsgFlags, send};
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::TcpStream;
use tokio_util::either::Either;

use super::pace::{Deliveries, Limits, Pace, Step};
use super::stream::WriteHalf;
use crate::core::AgentId;
use crate::sys::{Delivery, delivery, limit_rate};

/// Staging ends once a link has had nothing staged to send for this time.
const STAGING_END: Duration = Duration::from_millis(200);
/// A limited link writes at once what its limit permits in this time, since the kernel sends it in one burst.
const PIECE_TIME: Duration = Duration::from_millis(1);
/// It writes at least so many full packets at once.
const PIECE_PACKETS_MIN: usize = 2;

/// The links of a process that send staged files now, and their pace.
#[derive(Default, Debug)]
pub(super) struct PacedLinks {
    links: LiteMap<AgentId, PacedLink>,
    pace: Pace,
    limits: Limits,
}

#[derive(Debug)]
struct PacedLink {
    connection: OwnedFd,
    /// The most bytes to be written at once. `None` if there is no limit.
    piece_bytes_max: Option<usize>,
}

impl PacedLink {
    /// Applies a limit in bytes per second. A failure costs speed, not correctness.
    fn limit(&mut self, limit: Option<u64>, delivery: Option<&Delivery>) {
        let segment_bytes = delivery.map_or(1, |delivery| delivery.segment_bytes.max(1));
        self.piece_bytes_max = limit.map(|limit| {
            let packets = (limit as f64 * PIECE_TIME.as_secs_f64()) as usize / segment_bytes;
            segment_bytes * packets.max(PIECE_PACKETS_MIN)
        });
        let _ = limit_rate(&self.connection, limit);
    }
}

impl PacedLinks {
    /// Asks the kernel for the state of all links.
    fn deliveries(&self) -> Deliveries {
        self.links.iter().filter_map(|(peer, link)| Some((*peer, delivery(&link.connection).ok()?))).collect()
    }

    /// Begins or ends a measurement of all links.
    fn advance(&mut self, now: Instant, is_root: bool, deliveries: &Deliveries) {
        match self.pace.advance(now, is_root, deliveries) {
            Step::GoOn => return,
            Step::Measure => self.limits = Limits::default(),
            Step::Limit(limits) => self.limits = limits,
        }
        for (peer, link) in self.links.iter_mut() {
            link.limit(self.limits.of(*peer), deliveries.get(peer));
        }
    }
}

/// Writes to a link's stream.
pub(super) struct Pacer {
    here: AgentId,
    peer: AgentId,
    paced: Arc<Mutex<PacedLinks>>,
    /// The time at which the last staged bytes were written.
    staged: Option<Instant>,
    /// The link is one of the paced ones.
    is_paced: bool,
    /// Whether staged bytes are paced on this link. `None` before the first ones.
    may_be_paced: Option<bool>,
}

impl Pacer {
    /// Creates the pacer of the link from the agent `here`, or the root, to this peer. All links of a process share `paced`.
    pub(super) fn new(here: AgentId, peer: AgentId, paced: Arc<Mutex<PacedLinks>>) -> Self {
        // A parent has a lower number than its children. Staged files travel down. Upwards, the lane carries short reports and the
        // files of `--collect`.
        let may_be_paced = if here < peer { None } else { Some(false) };
        Self { here, peer, paced, staged: None, is_paced: false, may_be_paced }
    }

    /// Writes all bytes. `staged` says that bytes of staged files are among them: only these may be slowed down.
    pub(super) async fn write(&mut self, stream: &mut WriteHalf, bytes: &[u8], staged: bool) -> io::Result<()> {
        let connection = match stream {
            Either::Left(half) if staged => (*half).as_ref(),
            // A Unix socket leads to this machine. A pipe leads to a remote shell, which owns the connection.
            _ => {
                if self.staged.is_some_and(|staged| staged.elapsed() > STAGING_END) {
                    self.leave();
                }
                return stream.write_all(bytes).await;
            }
        };
        if !*self.may_be_paced.get_or_insert_with(|| has_network(connection)) {
            return stream.write_all(bytes).await;
        }
        self.join(connection);
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = self.piece_bytes_max().unwrap_or(rest.len());
            let (piece, later) = rest.split_at(length.min(rest.len()));
            send_at_once(connection, piece).await?;
            rest = later;
        }
        self.staged = Some(Instant::now());
        Ok(())
    }

    /// Joins the paced links.
    fn join(&mut self, connection: &TcpStream) {
        if self.is_paced {
            return;
        }
        let Ok(connection) = connection.as_fd().try_clone_to_owned() else { return };
        let mut paced = self.paced();
        let mut link = PacedLink { connection, piece_bytes_max: None };
        if let Some(limit) = paced.limits.of(self.peer) {
            let delivery = delivery(&link.connection).ok();
            link.limit(Some(limit), delivery.as_ref());
        }
        paced.links.insert(self.peer, link);
        drop(paced);
        self.is_paced = true;
    }

    /// Leaves the paced links. The connection has no limit any more.
    fn leave(&mut self) {
        if !std::mem::take(&mut self.is_paced) {
            return;
        }
        let mut paced = self.paced();
        if let Some(mut link) = paced.links.remove(&self.peer) {
            link.limit(None, None);
        }
        if paced.links.is_empty() {
            *paced = PacedLinks::default();
        }
    }

    /// Returns the most bytes to be written at once. `None` if there is no limit. Begins or ends a measurement if one is due.
    fn piece_bytes_max(&self) -> Option<usize> {
        let now = Instant::now();
        let mut paced = self.paced();
        if paced.pace.is_due(now) {
            let deliveries = paced.deliveries();
            paced.advance(now, self.here == AgentId::ROOT, &deliveries);
        }
        paced.links.get(&self.peer)?.piece_bytes_max
    }

    fn paced(&self) -> MutexGuard<'_, PacedLinks> {
        self.paced.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pacer {
    // The duplicate of the descriptor must not keep the connection open after the link's stream is closed.
    fn drop(&mut self) {
        self.leave();
    }
}

/// Returns whether a network is between the ends of a connection: the peer is not on this machine.
fn has_network(connection: &TcpStream) -> bool {
    match (connection.local_addr(), connection.peer_addr()) {
        (Ok(local), Ok(peer)) => local.ip() != peer.ip(),
        (Err(_), _) | (_, Err(_)) => true,
    }
}

/// Writes all bytes with MSG_EOR: the kernel does not join them with other writes. Otherwise the kernel sends bursts of
/// 64 KiB to a near peer, whatever the limit of the rate (tcp_tso_rtt_log).
async fn send_at_once(connection: &TcpStream, bytes: &[u8]) -> io::Result<()> {
    let flags = MsgFlags::MSG_EOR | MsgFlags::MSG_NOSIGNAL;
    let mut rest = bytes;
    while !rest.is_empty() {
        connection.writable().await?;
        let sent = connection.try_io(Interest::WRITABLE, || Ok(send(connection.as_raw_fd(), rest, flags)?));
        match sent {
            Ok(sent) => rest = &rest[sent..],
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;
    use crate::link::stream::Stream;

    const MS: Duration = Duration::from_millis(1);
    const CHILD: AgentId = AgentId(3);

    /// A link to a child that seems to be on another machine.
    struct Paced {
        near: Stream,
        far: TcpStream,
        pacer: Pacer,
    }

    impl Paced {
        async fn new(peer: AgentId, paced: &Arc<Mutex<PacedLinks>>) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (far, _) = listener.accept().await.unwrap();
            assert!(!has_network(&near));
            let mut pacer = Pacer::new(AgentId::ROOT, peer, Arc::clone(paced));
            pacer.may_be_paced = Some(true);
            Self { near: Stream::connection(near), far, pacer }
        }

        async fn write(&mut self, bytes: &[u8], staged: bool) {
            self.pacer.write(&mut self.near.write, bytes, staged).await.unwrap();
        }

        /// Writes staged bytes, which the peer reads and acknowledges.
        async fn stage(&mut self, bytes: &[u8]) {
            let mut read = vec![0; bytes.len()];
            let writing = self.pacer.write(&mut self.near.write, bytes, true);
            let (written, got) = tokio::join!(writing, self.far.read_exact(&mut read));
            written.unwrap();
            got.unwrap();
            assert!(read == bytes);
            // The peer's answer carries the acknowledgement of all that it has read.
            self.far.write_all(b"y").await.unwrap();
            self.near.read.read_exact(&mut [0]).await.unwrap();
        }
    }

    fn content(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index % 251) as u8).collect()
    }

    #[tokio::test]
    async fn pieces_arrive_in_order() {
        let mut link = Paced::new(CHILD, &Arc::default()).await;
        let content = content(500_000);
        for (index, part) in content.chunks(60_000).enumerate() {
            link.stage(part).await;
            let piece = [None, Some(1000), Some(4344)][index % 3];
            link.pacer.paced().links.get_mut(&CHILD).unwrap().piece_bytes_max = piece;
        }
    }

    #[tokio::test]
    async fn other_messages_end_the_limit() {
        let paced = Arc::default();
        let mut link = Paced::new(CHILD, &paced).await;
        link.write(b"staged", true).await;
        assert!(link.pacer.is_paced);
        link.pacer.staged = Some(Instant::now() + 3600 * 1000 * MS);
        link.write(b"other", false).await;
        assert!(link.pacer.is_paced, "more may follow");
        link.pacer.staged = Instant::now().checked_sub(STAGING_END + MS);
        link.write(b"other", false).await;
        assert!(!link.pacer.is_paced && link.pacer.paced().links.is_empty());
    }

    #[tokio::test]
    async fn a_pacer_that_ends_does_not_keep_the_connection_open() {
        let paced = Arc::default();
        let mut link = Paced::new(CHILD, &paced).await;
        link.write(b"staged", true).await;
        let Paced { near, mut far, pacer } = link;
        drop((near, pacer));
        let mut read = Vec::new();
        far.read_to_end(&mut read).await.unwrap();
        assert_eq!(read, b"staged");
        assert!(paced.lock().unwrap().links.is_empty());
    }

    #[tokio::test]
    async fn the_links_of_a_process_have_limits_together() {
        let paced = Arc::default();
        let (mut one, mut two) = (Paced::new(CHILD, &paced).await, Paced::new(AgentId(4), &paced).await);
        one.stage(b"joined").await;
        two.stage(b"joined").await;
        let piece = |link: &Paced| link.pacer.paced().links[&link.pacer.peer].piece_bytes_max;
        assert_eq!([piece(&one), piece(&two)], [None; 2]);
        one.stage(&content(300 << 10)).await;
        // An agent's links have a limit in any case.
        let advance = |time: Duration| {
            let mut paced = one.pacer.paced();
            let mut deliveries = paced.deliveries();
            // As if there had been no pause.
            deliveries.iter_mut().for_each(|(_, delivery)| delivery.sending += 3600 * time);
            paced.advance(Instant::now() + time, false, &deliveries);
        };
        advance(1000 * MS);
        assert!(piece(&one).is_some_and(|bytes| bytes >= 2 * 1000), "{:?}", piece(&one));
        assert!(piece(&two).is_some());
        let mut third = Paced::new(AgentId(5), &paced).await;
        third.write(b"joins later", true).await;
        assert!(piece(&third).is_some());
        drop(two);
        assert!(piece(&one).is_some(), "a link that leaves changes nothing");
        advance(3000 * MS);
        assert_eq!([piece(&one), piece(&third)], [None; 2], "the next measurement");
    }

    #[test]
    fn bytes_to_a_parent_are_not_slowed_down() {
        let may_be_paced = |here, peer| Pacer::new(AgentId(here), AgentId(peer), Arc::default()).may_be_paced;
        assert_eq!([may_be_paced(3, 1), may_be_paced(1, 3)], [Some(false), None]);
    }
}
