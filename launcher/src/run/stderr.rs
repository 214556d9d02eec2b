//! Standard error of this process: a bounded queue, and a thread that writes it.
//!
//! A terminal that Ctrl-S has stopped, or a pipe that is not read, blocks write(2) without a bound. The event loop must
//! answer its peers within the dead time, so it only queues reports, progress and logs. `Queue` decides what is stored,
//! dropped and written next; `Screen` carries that out.
//!
//! The ranks' standard error has a thread of its own ([`output`](super::output)), which waits until the texts that were
//! queued before have been written.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;
use std::{panic, thread};

use nla::core::printable;
use nla::sys;
use nla::tasks::spawn_process_thread;
use tracing_subscriber::fmt::MakeWriter;

use self::queue::{Change, Queue};
use super::output::write_all;
use crate::colour;

mod queue;

/// The time that queued texts have at the end of the launcher, for example until the user types Ctrl-Q.
pub const EXIT_TIME: Duration = Duration::from_secs(120);
/// The same for an agent, which has only logs to write.
pub const AGENT_EXIT_TIME: Duration = Duration::from_secs(1);
/// The part of that time in which signals are still ignored, so that a late one does not change the exit code.
const HANDLED_TIME: Duration = Duration::from_millis(200);
/// How long a panic waits until its message is written.
const PANIC_TIME: Duration = Duration::from_secs(1);
/// How long the ranks' standard output waits for the progress line to be cleared. It may have another reader.
const CLEAR_TIME: Duration = Duration::from_secs(1);

/// Whether a text may be dropped.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A log or a step. The oldest ones are dropped if too many wait.
    Log,
    /// A report, which is stored until it is written. It is dropped only in favour of newer reports.
    Report,
    /// The report of an error. Writing it calls the callback of `on_error_written`.
    Error,
}

struct State {
    queue: Queue,
    /// Everything before this number has been written or dropped.
    written: u64,
    has_thread: bool,
    /// The stream cannot be written any more: nothing is queued.
    is_closed: bool,
    /// The number of the change that cleared the progress line, until a thread has waited for it.
    cleared: Option<u64>,
    /// Reports that could not be written, if another process asks for them.
    lost: Vec<u8>,
    /// Called when an error has been written.
    on_error: Option<ErrorWritten>,
}

/// See `on_error_written`.
pub(crate) type ErrorWritten = Arc<dyn Fn() + Send + Sync>;

impl State {
    /// Returns the callback to run after the last batch is written.
    fn error_note(&mut self) -> Option<ErrorWritten> {
        self.queue.takes_error().then(|| self.on_error.clone()).flatten()
    }

    /// Keeps the beginning of what could not be written.
    fn lose(&mut self, text: &[u8]) {
        let room = LOST_BYTES_MAX.saturating_sub(self.lost.len());
        self.lost.extend_from_slice(&text[..text.len().min(room)]);
    }
}

/// A queue and its thread.
struct Screen {
    state: Mutex<State>,
    /// Notified when something is queued, and when something was written.
    changed: Condvar,
}

/// The most bytes of texts that are kept because they could not be written.
pub const LOST_BYTES_MAX: usize = 4096;

static STDERR: Screen = Screen::new();
/// The process may start the thread.
static MAY_START_THREAD: AtomicBool = AtomicBool::new(false);
/// Logs are dropped.
static DROPS_LOGS: AtomicBool = AtomicBool::new(false);

impl Screen {
    const fn new() -> Self {
        let state = State {
            queue: Queue::new(),
            written: 0,
            has_thread: false,
            is_closed: false,
            cleared: None,
            lost: Vec::new(),
            on_error: None,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No holder of the lock panics while the state is inconsistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no thread holds the lock, for a bounded number of tries. Returns whether it is free.
    fn is_soon_unlocked(&self) -> bool {
        const TRIES: u32 = 10_000;
        (0..TRIES).any(|_| {
            let is_locked = matches!(self.state.try_lock(), Err(TryLockError::WouldBlock));
            if is_locked {
                thread::yield_now();
            }
            !is_locked
        })
    }

    /// Changes the queue. `start` starts the thread that runs [`write_out`](Self::write_out). Without a thread the caller
    /// writes with `write`.
    fn change(
        &self,
        change: impl FnOnce(&mut State),
        start: impl FnOnce() -> io::Result<()>,
        write: impl FnOnce(&[u8]) -> io::Result<()>,
    ) {
        let mut state = self.lock();
        if state.is_closed {
            // Only reports are of interest.
            change(&mut state);
            let mut out = Vec::new();
            state.queue.take(&mut out);
            state.written = state.queue.taken();
            return state.lose(&out);
        }
        change(&mut state);
        if !state.has_thread {
            state.has_thread = start().is_ok();
        }
        if state.has_thread {
            self.changed.notify_all();
        } else {
            let mut out = Vec::new();
            state.queue.take(&mut out);
            state.written = state.queue.taken();
            let note = state.error_note();
            drop(state);
            // A closed standard error is no error here.
            match write(&out) {
                Ok(()) => note.iter().for_each(|note| note()),
                Err(_) => self.lock().lose(&out),
            }
        }
    }

    /// Writes what is queued until the stream cannot be written any more. Each write has whole lines, so that the ranks'
    /// output splits none.
    fn write_out(&self, mut write: impl FnMut(&[u8]) -> io::Result<()>) {
        let mut out = Vec::new();
        let mut state = self.lock();
        loop {
            out.clear();
            state.queue.take(&mut out);
            let taken = state.queue.taken();
            if out.is_empty() {
                state.written = taken;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let note = state.error_note();
            drop(state);
            let result = write(&out);
            // Call it before waking threads that wait for this text.
            note.iter().filter(|_| result.is_ok()).for_each(|note| note());
            state = self.lock();
            state.written = taken;
            if result.is_err() {
                state.lose(&out);
                state.is_closed = true;
                self.changed.notify_all();
                return;
            }
            self.changed.notify_all();
        }
    }

    /// Waits until everything before `number` has been written, at most for `time`. Returns whether it has.
    fn wait(&self, number: u64, time: Duration) -> bool {
        let is_waiting = |state: &mut State| state.written < number && !state.is_closed;
        let waited = self.changed.wait_timeout_while(self.lock(), time, is_waiting);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Does the same for everything that is queued now.
    fn wait_written(&self, time: Duration) -> bool {
        let number = {
            let state = self.lock();
            if state.written == state.queue.next {
                return true;
            }
            state.queue.next
        };
        self.wait(number, time)
    }

    /// Waits until the progress line is cleared, if a thread is the first to wait for that.
    fn wait_cleared(&self, time: Duration) {
        let cleared = self.lock().cleared.take();
        if let Some(number) = cleared {
            self.wait(number + 1, time);
        }
    }
}

fn change(change: impl FnOnce(&mut State)) {
    let write = |bytes: &[u8]| write_all(&io::stderr(), bytes);
    let start = || match MAY_START_THREAD.load(Ordering::Relaxed) {
        true => spawn_process_thread("messages", move || STDERR.write_out(write)),
        false => Err(io::ErrorKind::WouldBlock.into()),
    };
    STDERR.change(change, start, write);
}

/// The name that the user has typed, for messages of the process itself. Messages about jobs are those of `scela-run`.
static IS_SCELA: AtomicBool = AtomicBool::new(false);

/// Notes whether messages of this process begin with `scela`, as those of its subcommands other than `scela run` do.
pub fn call_scela(is_scela: bool) {
    IS_SCELA.store(is_scela, Ordering::Relaxed);
}

/// Returns the name with which messages of this process begin.
pub fn name() -> &'static str {
    if IS_SCELA.load(Ordering::Relaxed) { "scela" } else { "scela-run" }
}

/// Lets this process start the thread with the next text. Until then the caller writes each text itself, because the launcher
/// needs to have one thread when it forks its guardians. No peer depends on it yet.
pub fn allow_thread() {
    MAY_START_THREAD.store(true, Ordering::Relaxed);
}

/// Undoes [`allow_thread`]. A thread that has started stays.
pub fn forbid_thread() {
    MAY_START_THREAD.store(false, Ordering::Relaxed);
}

/// Drops the logs of this process from now on. An agent that was forked has the launcher's subscriber.
pub fn drop_logs() {
    DROPS_LOGS.store(true, Ordering::Relaxed);
}

/// Queues a line in place of the progress line, coloured on a terminal. `text` may have several lines.
pub fn line(kind: Kind, text: &str) {
    let text = colour::for_stream(&io::stderr(), &format!("{text}\n"));
    change(|state| state.queue.push(kind, text.as_bytes()));
}

/// Shows a progress line, which replaces the previous one. The next text replaces it in turn.
pub(crate) fn show_progress(text: &str) {
    change(|state| state.queue.change_progress(Change::Show(printable(text))));
}

/// Clears the progress line, if one is shown.
pub(crate) fn clear_progress() {
    if STDERR.lock().queue.has_progress() {
        change(|state| {
            state.cleared = Some(state.queue.next);
            state.queue.change_progress(Change::Clear);
        });
    }
}

/// Waits until everything that is queued now has been written, at most for `time`. Returns whether it has.
pub fn wait_written(time: Duration) -> bool {
    STDERR.wait_written(time)
}

/// Replaces the standard library's panic hook, which writes to standard error without a bound: a panic on the event loop
/// would block it until the reader reads.
pub fn queue_panic_messages() {
    panic::set_hook(Box::new(|info| {
        // A panic of the code that holds the lock cannot be queued.
        if !STDERR.is_soon_unlocked() {
            return;
        }
        let backtrace = Backtrace::capture();
        let backtrace = match backtrace.status() {
            BacktraceStatus::Captured => format!("stack backtrace:\n{backtrace}"),
            _ => "  note: RUST_BACKTRACE=1 prints a backtrace".to_owned(),
        };
        let thread = thread::current();
        let name = thread.name().unwrap_or("<unnamed>");
        line(Kind::Report, &printable(&format!("thread '{name}' {info}\n{backtrace}")));
        // A panic that nothing catches ends the process before its other threads have run.
        wait_written(PANIC_TIME);
    }));
}

/// Waits at the end of the process until everything that is queued has been written, at most for `time`. A signal ends
/// the process while it waits for a reader that has stopped.
pub fn finish(time: Duration) {
    if !wait_written(HANDLED_TIME) {
        sys::restore_termination_signals();
        wait_written(time);
    }
}

/// Takes the texts that could not be written, the first [`LOST_BYTES_MAX`] of them.
pub(crate) fn take_lost() -> String {
    String::from_utf8_lossy(&std::mem::take(&mut STDERR.lock().lost)).into_owned()
}

/// Calls `note` from now on when an error has been written, possibly in another thread, before a wait for the error ends.
pub(crate) fn on_error_written(note: Option<ErrorWritten>) {
    STDERR.lock().on_error = note;
}

/// Takes standard error for one that can be written again: it is another one.
pub(crate) fn reopen() {
    let mut state = STDERR.lock();
    // A thread that has ended is started again by the next text.
    (state.has_thread, state.is_closed) = (state.has_thread && !state.is_closed, false);
}

/// Waits until the progress line is cleared, at most for [`CLEAR_TIME`].
pub(crate) fn wait_cleared() {
    STDERR.wait_cleared(CLEAR_TIME);
}

/// Returns whether [`wait_cleared`] would not wait.
pub(super) fn is_cleared() -> bool {
    STDERR.lock().cleared.is_none()
}

/// Queues the lines of `tracing`.
#[derive(Copy, Clone, Default, Debug)]
pub struct Logs;

impl<'a> MakeWriter<'a> for Logs {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        Self
    }
}

impl Write for Logs {
    /// Queues an event: `tracing_subscriber` writes each with one call.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        if !DROPS_LOGS.load(Ordering::Relaxed) {
            change(|state| state.queue.push(Kind::Log, event));
        }
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::thread;

    use super::queue::LOG_BYTES_MAX;
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    /// A reader that takes a write each time the test receives one.
    fn slow_reader() -> (Arc<Screen>, Receiver<Vec<u8>>) {
        let (writes, read): (SyncSender<Vec<u8>>, _) = sync_channel(0);
        let screen = Arc::new(Screen::new());
        let thread = Arc::clone(&screen);
        thread::spawn(move || thread.write_out(|bytes| writes.send(bytes.to_vec()).map_err(io::Error::other)));
        (screen, read)
    }

    fn push(screen: &Screen, kind: Kind, text: &str) {
        screen.change(|state| state.queue.push(kind, text.as_bytes()), || Ok(()), |_| unreachable!());
    }

    #[test]
    fn a_reader_that_stops_blocks_no_writer_and_loses_no_report() {
        let (screen, reader) = slow_reader();
        push(&screen, Kind::Report, "first\n");
        // The reader has stopped. Far more than the bound is queued.
        let log = format!("{}\n", "x".repeat(1023));
        (0..4096).for_each(|_| push(&screen, Kind::Log, &log));
        push(&screen, Kind::Report, "final\n");
        assert!(!screen.wait_written(Duration::from_millis(10)), "a deadline ends the wait");
        assert!(screen.lock().queue.logs.bytes <= LOG_BYTES_MAX);
        let mut read = String::new();
        while !read.ends_with("final\n") {
            read.push_str(&String::from_utf8(reader.recv_timeout(LONG).unwrap()).unwrap());
        }
        assert!(screen.wait_written(LONG));
        let dropped: u64 = read
            .lines()
            .filter_map(|line| line.strip_prefix("scela-run: warning: "))
            .fold(0, |sum, line| sum + line.split(' ').next().unwrap().parse::<u64>().unwrap());
        let shown = read.lines().filter(|line| line.starts_with('x')).count() as u64;
        assert_eq!(dropped + shown, 4096, "each line was written or counted");
        assert!(dropped >= 3000, "{dropped}");
        assert_eq!(read.matches("first\n").count(), 1);
    }

    #[test]
    fn a_closed_stream_ends_all_waits_and_queues_nothing() {
        let (screen, reader) = slow_reader();
        drop(reader);
        push(&screen, Kind::Report, "a\n");
        assert!(screen.wait_written(LONG));
        push(&screen, Kind::Report, "b\n");
        assert_eq!(screen.lock().queue.reports.bytes, 0);
    }

    #[test]
    fn the_caller_writes_if_no_thread_can_be_started() {
        let screen = Screen::new();
        let mut written = Vec::new();
        let no_thread = || Err(io::ErrorKind::WouldBlock.into());
        screen.change(
            |state| state.queue.push(Kind::Log, b"a\n"),
            no_thread,
            |bytes| {
                written.extend_from_slice(bytes);
                Ok(())
            },
        );
        assert_eq!(written, b"a\n");
        assert!(screen.wait_written(LONG));
    }

    #[test]
    fn one_thread_waits_for_the_cleared_progress_line() {
        let (screen, reader) = slow_reader();
        push(&screen, Kind::Report, "a\n");
        screen.change(|state| state.cleared = Some(state.queue.next), || Ok(()), |_| unreachable!());
        screen.change(|state| state.queue.change_progress(Change::Clear), || Ok(()), |_| unreachable!());
        screen.wait_cleared(Duration::from_millis(10));
        assert_eq!(screen.lock().cleared, None);
        assert_eq!(reader.recv_timeout(LONG).unwrap(), b"a\n");
    }
}
