//! Reads the streams of a launcher: at full pace, slowly, or not at all.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tests::before;

use crate::draw::Pace;

/// The bytes of a stream that are stored: its beginning, for reports.
const STORED_BYTES: usize = 256 * 1024;
/// The bytes that a slow reader reads at a time.
const SLOW_BYTES: usize = 4096;
/// The pause of a slow reader.
const SLOW_PAUSE: Duration = Duration::from_millis(5);
/// How long a reader waits for bytes before it looks at its pace again.
const READ_WAIT_MS: u8 = 20;
struct State {
    pace: Pace,
    /// The beginning of the stream.
    stored: Vec<u8>,
}

/// Reads a stream at a pace that can be changed.
pub(crate) struct Reader {
    shared: Arc<(Mutex<State>, Condvar)>,
    /// Ends with the stream, or when the reader closes it.
    pub(crate) thread: Option<JoinHandle<()>>,
}

impl Reader {
    /// Starts to read `source` at full pace.
    pub(crate) fn of(mut source: impl Read + AsFd + Send + 'static) -> Self {
        let shared = Arc::new((Mutex::new(State { pace: Pace::Full, stored: Vec::new() }), Condvar::new()));
        let of_thread = Arc::clone(&shared);
        let read = move || {
            let (state, changed) = &*of_thread;
            let mut block = vec![0; 64 * 1024];
            loop {
                let mut size = block.len();
                {
                    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                    while state.pace == Pace::Stalled {
                        state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    }
                    if state.pace == Pace::Slow {
                        size = SLOW_BYTES;
                        state = changed.wait_timeout(state, SLOW_PAUSE).unwrap_or_else(PoisonError::into_inner).0;
                    }
                    if state.pace == Pace::Closed {
                        return;
                    }
                }
                let mut ready = [PollFd::new(source.as_fd(), PollFlags::POLLIN)];
                if poll(&mut ready, PollTimeout::from(READ_WAIT_MS)) == Ok(0) {
                    continue;
                }
                match source.read(&mut block[..size]) {
                    Ok(count @ 1..) => {
                        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
                        let room = STORED_BYTES.saturating_sub(state.stored.len()).min(count);
                        state.stored.extend_from_slice(&block[..room]);
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => return,
                }
            }
        };
        Self { shared, thread: Some(thread::spawn(read)) }
    }

    /// Changes the pace.
    pub(crate) fn set(&self, pace: Pace) {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).pace = pace;
        self.shared.1.notify_all();
    }

    /// Makes a slow or stalled reader fast again. Returns whether it was one.
    pub(crate) fn quicken(&self) -> bool {
        let pace = self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).pace;
        let was_slow = matches!(pace, Pace::Slow | Pace::Stalled);
        if was_slow {
            self.set(Pace::Full);
        }
        was_slow
    }

    /// Returns the beginning of the stream. If it has ended, all of it was read.
    pub(crate) fn text(&self) -> String {
        let is_done = || self.thread.as_ref().is_none_or(JoinHandle::is_finished).then_some(());
        before(Instant::now() + Duration::from_millis(200), is_done);
        String::from_utf8_lossy(&self.shared.0.lock().unwrap_or_else(PoisonError::into_inner).stored).into_owned()
    }
}
