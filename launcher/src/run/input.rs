//! Reads standard input, the launcher's own or a file, and sends it to the agents.
//!
//! A thread reads, because the descriptor may be of any type, and it reads only as fast as the slowest taker takes the
//! blocks. It reads nothing from a terminal while the launcher is in the background.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::read;
use nla::link::{Link, Receipt};
use nla::tasks::Tasks;
use nla::wire::Lane;
use tokio::sync::{Semaphore, mpsc};
use tracing::Span;

use crate::plan::InputSource;
use crate::plan::machine::is_background;

/// Bytes of a block.
const BLOCK_BYTES: usize = 32 * 1024;
/// Blocks that have been sent and not been taken by all.
const BLOCKS: usize = 8;
/// The pause between two checks whether the launcher is in the foreground again.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(500);

/// The thread that reads.
pub(crate) struct Reader {
    thread: Thread,
}

impl Reader {
    /// Reads `source` to its end and sends it to `takers`.
    pub(crate) fn start(source: &InputSource, takers: Vec<Link>, tasks: &Tasks) -> io::Result<Self> {
        let file = match source {
            InputSource::Standard => None,
            // Opening a FIFO blocks until it has a writer: only the thread may wait for that.
            InputSource::File(path) if fs::metadata(path)?.file_type().is_fifo() => Some(Err(path.clone())),
            InputSource::File(path) => Some(Ok(File::open(path)?)),
        };
        let (blocks, incoming) = mpsc::channel(1);
        let thread = tasks.spawn_thread("stdin", move || {
            match file {
                Some(file) => match file.or_else(File::open) {
                    Ok(file) => follow(file.as_fd(), &blocks),
                    Err(error) => tracing::error!(%error, "the input file cannot be opened"),
                },
                None => follow(io::stdin().as_fd(), &blocks),
            }
            // Ranks read to the end also if there was nothing to read.
            let _ = blocks.blocking_send(Bytes::new());
        })?;
        tasks.spawn("stdin blocks", Span::current(), send(incoming, takers));
        Ok(Self { thread })
    }

    /// Checks again whether the launcher is in the foreground. To be called when it was continued.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }
}

fn follow(source: BorrowedFd<'_>, blocks: &mpsc::Sender<Bytes>) {
    // With SIGTTIN blocked, a read in the background fails with EIO; otherwise it would stop the whole launcher.
    let mut ttin = SigSet::empty();
    ttin.add(Signal::SIGTTIN);
    let _ = ttin.thread_block();
    loop {
        if is_background(source) {
            std::thread::park_timeout(BACKGROUND_PAUSE);
            continue;
        }
        let mut block = vec![0; BLOCK_BYTES];
        match read(source, &mut block) {
            Ok(0) => break,
            Ok(count) => {
                block.truncate(count);
                if blocks.blocking_send(block.into()).is_err() {
                    return;
                }
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => std::thread::park_timeout(Duration::from_millis(10)),
            // The launcher has just become a background process.
            Err(Errno::EIO) if nix::unistd::isatty(source).unwrap_or(false) && is_background(source) => {}
            Err(_) => break,
        }
    }
}

async fn send(mut blocks: mpsc::Receiver<Bytes>, takers: Vec<Link>) {
    let room = Arc::new(Semaphore::new(BLOCKS));
    while let Some(block) = blocks.recv().await {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let permit = Arc::new(permit);
        for taker in &takers {
            taker.send(Lane::Stdin, block.clone(), Receipt::holding(Arc::clone(&permit)));
        }
        if block.is_empty() {
            return;
        }
    }
}
