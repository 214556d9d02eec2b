//! Bounded queues from tasks to an actor, which reads them in turns, and the actor's alarm.

use std::future::pending;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

/// The bound of a queue. A sender waits while its queue is full.
pub(super) const QUEUE_EVENTS_MAX: usize = 1024;
/// The maximum number of events that an actor takes from one queue before it polls its other sources.
const TURN_EVENTS_MAX: usize = 256;

/// A queue of events, with the buffer of the current turn.
pub(super) struct Queue<T> {
    sender: mpsc::Sender<T>,
    incoming: mpsc::Receiver<T>,
    turn: Vec<T>,
}

impl<T> Queue<T> {
    pub(super) fn new() -> Self {
        let (sender, incoming) = mpsc::channel(QUEUE_EVENTS_MAX);
        Self { sender, incoming, turn: Vec::new() }
    }

    /// Returns a sender for tasks.
    pub(super) fn sender(&self) -> mpsc::Sender<T> {
        self.sender.clone()
    }

    /// Waits for events and returns them in order, at most [`TURN_EVENTS_MAX`]. Cancel-safe.
    pub(super) async fn next_turn(&mut self) -> Vec<T> {
        // Never closed: `self.sender` is a sender.
        self.incoming.recv_many(&mut self.turn, TURN_EVENTS_MAX).await;
        std::mem::take(&mut self.turn)
    }

    /// Waits for one event. Cancel-safe.
    pub(super) async fn next(&mut self) -> T {
        match self.incoming.recv().await {
            Some(event) => event,
            // Unreachable, as in `next_turn`.
            None => pending().await,
        }
    }

    /// Takes back the buffer of a turn, so that the next turn needs no allocation.
    pub(super) fn recycle(&mut self, mut turn: Vec<T>) {
        turn.clear();
        self.turn = turn;
    }
}

/// The time at which the core wants a timeout input.
#[derive(Default)]
pub(super) struct Alarm(Option<Instant>);

impl Alarm {
    /// Sets the time, replacing the previous one.
    pub(super) fn set(&mut self, at: Instant) {
        self.0 = Some(at);
    }

    /// Waits until the time, if one is set, and clears it. Cancel-safe.
    pub(super) async fn due(&mut self) {
        match self.0 {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_turn_is_bounded_and_keeps_the_order() {
        let mut queue = Queue::new();
        for event in 0..TURN_EVENTS_MAX + 1 {
            queue.sender().try_send(event).unwrap();
        }
        let turn = queue.next_turn().await;
        assert!(turn.iter().copied().eq(0..TURN_EVENTS_MAX));
        queue.recycle(turn);
        assert_eq!(queue.next_turn().await, [TURN_EVENTS_MAX]);
    }

    #[tokio::test]
    async fn an_alarm_goes_off_once() {
        let mut alarm = Alarm::default();
        let (short, long) = (Duration::from_millis(10), Duration::from_secs(3600));
        assert!(timeout(short, alarm.due()).await.is_err(), "none is set");
        alarm.set(Instant::now() + long);
        assert!(timeout(short, alarm.due()).await.is_err(), "too early");
        alarm.set(Instant::now());
        assert!(timeout(long, alarm.due()).await.is_ok());
        assert!(timeout(short, alarm.due()).await.is_err(), "it is cleared");
    }
}
