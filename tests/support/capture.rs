//! Captures what a process has written to a stream so far.

use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Reads a stream to its end in a thread. Clones share the captured bytes.
#[derive(Clone, Debug)]
pub struct Capture(Arc<(Mutex<State>, Condvar)>);

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    ended: bool,
}

impl Capture {
    /// Starts to read `source`.
    pub fn of(mut source: impl Read + Send + 'static) -> Self {
        let capture = Self(Arc::default());
        let shared = capture.clone();
        thread::spawn(move || {
            let mut block = vec![0; 256 * 1024];
            loop {
                match source.read(&mut block) {
                    Ok(count @ 1..) => shared.change(|state| state.bytes.extend_from_slice(&block[..count])),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    // Reading from a terminal whose other side is closed fails with EIO.
                    Ok(0) | Err(_) => return shared.change(|state| state.ended = true),
                }
            }
        });
        capture
    }

    /// Returns the capture of a stream that the test does not read.
    pub(crate) fn none() -> Self {
        let capture = Self(Arc::default());
        capture.change(|state| state.ended = true);
        capture
    }

    /// Returns the bytes captured so far.
    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// Returns the bytes captured so far as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.state().bytes).into_owned()
    }

    /// Waits until `condition` holds for the captured text. Returns false if the timeout expired or the stream ended
    /// before that.
    pub fn wait(&self, timeout: Duration, condition: impl Fn(&str) -> bool) -> bool {
        self.wait_for(timeout, |state| condition(&String::from_utf8_lossy(&state.bytes)))
    }

    /// Waits for the end of the stream. Returns false if the timeout expired before that.
    pub fn wait_end(&self, timeout: Duration) -> bool {
        self.wait_for(timeout, |state| state.ended)
    }

    fn wait_for(&self, timeout: Duration, condition: impl Fn(&State) -> bool) -> bool {
        let deadline = Instant::now() + timeout;
        let mut state = self.state();
        loop {
            if condition(&state) {
                return true;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.ended {
                return false;
            }
            state = self.0.1.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
