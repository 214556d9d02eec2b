//! Reads standard input, the launcher's own or a file, and sends it to the agents.
//!
//! A thread reads, because the descriptor may be of any type, and it reads at the pace of the slowest receiver. It reads
//! nothing from a terminal while the launcher is in the background.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::thread::Thread;
use std::time::Duration;

use bytes::Bytes;
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{isatty, read};
use nla::link::{Link, Receipt};
use nla::tasks::Tasks;
use nla::wire::Lane;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::{Semaphore, mpsc};
use tracing::Span;

use crate::plan::InputSource;
use crate::plan::machine::is_background;
use crate::run::output::OutputEvent;

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
    /// Reads `source` to its end and sends it to `takers`. Sends [`OutputEvent::Failed`] if it cannot be read.
    pub(crate) fn start(
        source: InputSource,
        takers: Vec<Link>,
        events: UnboundedSender<OutputEvent>,
        tasks: &Tasks,
    ) -> io::Result<Self> {
        let (blocks, incoming) = mpsc::channel(1);
        let thread = tasks.spawn_thread("stdin", move || match read_all(&source, &blocks) {
            // Ranks read to the end also if there was nothing to read.
            Ok(()) => drop(blocks.blocking_send(Bytes::new())),
            Err(error) => drop(events.send(OutputEvent::Failed(cannot_be_read(&source, &error)))),
        })?;
        tasks.spawn("stdin blocks", Span::current(), send(incoming, takers));
        Ok(Self { thread })
    }

    /// Checks again whether the launcher is in the foreground. To be called when it was continued.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }
}

/// Returns the text for the user about `source`, which cannot be read.
pub(crate) fn cannot_be_read(source: &InputSource, error: &io::Error) -> String {
    match source {
        InputSource::Standard => format!("standard input cannot be read: {error}"),
        InputSource::File(path) => {
            format!("-stdin '{}' cannot be read: {error}", path.display())
        }
    }
}

/// Reads `source` to its end. Opens a file only here: opening a FIFO blocks until it has a writer, and only the thread
/// may wait for that.
fn read_all(source: &InputSource, blocks: &mpsc::Sender<Bytes>) -> io::Result<()> {
    match source {
        InputSource::Standard => follow(io::stdin().as_fd(), blocks),
        InputSource::File(path) => follow(File::open(path)?.as_fd(), blocks),
    }
}

fn follow(source: BorrowedFd<'_>, blocks: &mpsc::Sender<Bytes>) -> io::Result<()> {
    // With SIGTTIN blocked, a read in the background fails with EIO; otherwise it would stop the whole launcher.
    let mut ttin = SigSet::empty();
    ttin.add(Signal::SIGTTIN);
    let _ = ttin.thread_block();
    let is_terminal = isatty(source).unwrap_or(false);
    loop {
        if is_background(source) {
            std::thread::park_timeout(BACKGROUND_PAUSE);
            continue;
        }
        let mut block = vec![0; BLOCK_BYTES];
        match read(source, &mut block) {
            Ok(0) => return Ok(()),
            Ok(count) => {
                block.truncate(count);
                if blocks.blocking_send(block.into()).is_err() {
                    return Ok(());
                }
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => std::thread::park_timeout(Duration::from_millis(10)),
            // The launcher has just become a background process.
            Err(Errno::EIO) if is_terminal && is_background(source) => {}
            // The terminal was closed.
            Err(Errno::EIO) if is_terminal => return Ok(()),
            // Under nohup, standard input is open for writing only.
            Err(Errno::EBADF) => return Ok(()),
            Err(error) => return Err(error.into()),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn read(path: &std::path::Path) -> Result<(), String> {
        let source = InputSource::File(path.to_owned());
        let (blocks, mut incoming) = mpsc::channel(1);
        let result = read_all(&source, &blocks).map_err(|error| cannot_be_read(&source, &error));
        assert!(incoming.try_recv().is_err(), "no block follows");
        result
    }

    #[test]
    fn input_that_cannot_be_read_is_not_taken_for_its_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        assert_eq!(
            read(directory.path()),
            Err(format!("-stdin '{path}' cannot be read: Is a directory (os error 21)"))
        );
        let missing = format!("-stdin '{path}/missing' cannot be read: No such file or directory (os error 2)");
        assert_eq!(read(&directory.path().join("missing")), Err(missing));
        assert_eq!(read(std::path::Path::new("/dev/null")), Ok(()));
        let error = io::Error::from(Errno::EACCES);
        assert_eq!(
            cannot_be_read(&InputSource::Standard, &error),
            "standard input cannot be read: Permission denied (os error 13)"
        );
    }

    #[test]
    fn a_descriptor_that_is_only_open_for_writing_has_no_input() {
        let file = std::fs::OpenOptions::new().write(true).open("/dev/null").unwrap();
        let (blocks, _incoming) = mpsc::channel(1);
        assert!(follow(file.as_fd(), &blocks).is_ok());
    }
}
