//! The thread that prints outputs: a reader that does not read must delay neither jobs nor signals.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};

use nix::errno::Errno;
use nla::sys;
use nla::tasks::Tasks;
use tokio::sync::mpsc;

use super::spool::{Output, Part};
use crate::run::{output, stderr};

/// Bytes that are read at a time.
const READ_BYTES: usize = 64 * 1024;

/// Prints outputs in a thread, which starts with the first one.
pub(super) struct Printer {
    tasks: Tasks,
    orders: Option<SyncSender<Output>>,
    done: mpsc::Sender<io::Result<()>>,
}

impl Printer {
    /// Makes a printer that reports each output that is printed, or the error of standard output, to `done`.
    pub(super) fn new(tasks: Tasks, done: mpsc::Sender<io::Result<()>>) -> Self {
        Self { tasks, orders: None, done }
    }

    /// Prints an output. The one before must have been printed.
    pub(super) fn print(&mut self, output: Output) -> io::Result<()> {
        let orders = match &self.orders {
            Some(orders) => orders,
            None => self.orders.insert(self.start()?),
        };
        orders.send(output).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn start(&self) -> io::Result<SyncSender<Output>> {
        let (orders, incoming) = sync_channel::<Output>(1);
        let done = self.done.clone();
        self.tasks.spawn_thread("printer", move || {
            while let Ok(output) = incoming.recv() {
                if done.blocking_send(print(&output)).is_err() {
                    return;
                }
            }
        })?;
        Ok(orders)
    }
}

/// Prints an output. Fails if standard output cannot be written; nobody may read standard error.
fn print([out, err]: &Output) -> io::Result<()> {
    if out.length > 0 {
        if sys::stdout_was_closed() {
            return Err(Errno::EBADF.into());
        }
        stderr::clear_progress();
        stderr::wait_cleared();
        copy(out, |bytes| output::write_all(&io::stdout(), bytes))?;
    }
    if err.length > 0 {
        stderr::clear_progress();
        stderr::wait_written(std::time::Duration::MAX);
        let _ = copy(err, |bytes| output::write_all(&io::stderr(), bytes));
    }
    Ok(())
}

fn copy(part: &Part, mut write: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    let mut bytes = vec![0; READ_BYTES];
    let mut at = 0;
    loop {
        let count = part.read_at(&mut bytes, at)?;
        if count == 0 {
            return Ok(());
        }
        write(&bytes[..count])?;
        at += count as u64;
    }
}
