//! The link to the parent. If the parent is lost, a link to an ancestor may replace it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use crate::link::{Link, Receipt};
use crate::wire::Lane;

/// The link to the parent, shared by all that send on it.
#[derive(Clone)]
pub(super) struct Uplink(Arc<Mutex<State>>);

enum State {
    /// The link is up, or was lost for good.
    Linked(Link),
    /// The parent was lost. Output waits for the next link, within its window: each message keeps its receipt.
    Waiting(Vec<(Lane, Bytes, Receipt)>),
}

impl State {
    fn queue(&mut self, lane: Lane, bytes: Bytes, receipt: Receipt) {
        match self {
            Self::Linked(link) => link.queue(lane, bytes, receipt),
            Self::Waiting(output) if lane.has_window() => output.push((lane, bytes, receipt)),
            Self::Waiting(_) => {}
        }
    }

    fn flush(&self) {
        if let Self::Linked(link) = self {
            link.flush();
        }
    }
}

impl Uplink {
    pub(super) fn new(link: Link) -> Self {
        Self(Arc::new(Mutex::new(State::Linked(link))))
    }

    /// Sends a message. Without a link, output is stored, and other messages are dropped: the core repeats them.
    pub(super) fn send(&self, lane: Lane, bytes: Bytes, receipt: Receipt) {
        let mut state = self.state();
        state.queue(lane, bytes, receipt);
        state.flush();
    }

    /// Like [`Uplink::send`], but the message may wait for the next [`Uplink::flush`].
    pub(super) fn queue(&self, lane: Lane, bytes: Bytes, receipt: Receipt) {
        self.state().queue(lane, bytes, receipt);
    }

    /// Sends the queued messages.
    pub(super) fn flush(&self) {
        self.state().flush();
    }

    /// Notes that the link was lost and another one may replace it.
    pub(super) fn wait(&self) {
        *self.state() = State::Waiting(Vec::new());
    }

    /// Replaces the lost link, and sends the output that has waited.
    pub(super) fn replace(&self, link: Link) {
        let before = std::mem::replace(&mut *self.state(), State::Linked(link.clone()));
        if let State::Waiting(output) = before {
            output.into_iter().for_each(|(lane, bytes, receipt)| link.send(lane, bytes, receipt));
        }
    }

    /// Writes out what is queued, then closes the link. Output that waits for a link is dropped.
    pub(super) fn close(&self) {
        match &mut *self.state() {
            State::Linked(link) => link.close(),
            State::Waiting(output) => output.clear(),
        }
    }

    /// Makes one without a link, which stores output.
    #[cfg(test)]
    pub(super) fn without_link() -> Self {
        Self(Arc::new(Mutex::new(State::Waiting(Vec::new()))))
    }

    /// Takes the stored messages.
    #[cfg(test)]
    pub(super) fn take_waiting(&self) -> Vec<(Lane, Bytes)> {
        match &mut *self.state() {
            State::Waiting(output) => output.drain(..).map(|(lane, bytes, _)| (lane, bytes)).collect(),
            State::Linked(_) => Vec::new(),
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
