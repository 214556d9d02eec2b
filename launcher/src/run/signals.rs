//! The signals to the launcher, and their meanings.

use std::io;

use nix::sys::signal::Signal;
use nla::sys;
use nla::tasks::Tasks;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tracing::Span;

use crate::run::front::Front;

/// The meaning of a signal to the launcher.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    /// SIGINT, SIGTERM, SIGHUP: end the session.
    End(i32),
    /// SIGUSR1, SIGUSR2: forward it to the ranks.
    Forward(i32),
    /// SIGQUIT: report how far the ranks are.
    Survey,
    /// SIGTSTP: stop the ranks, then the launcher.
    Stop,
    /// SIGCONT: the launcher has been continued.
    Continue,
    /// No signal: the controller of the pool was lost, so end the session.
    PoolLost,
}

impl Asked {
    /// The meanings of signals.
    const MEANINGS: [(i32, Self); 8] = [
        (Signal::SIGINT as i32, Self::End(Signal::SIGINT as i32)),
        (Signal::SIGTERM as i32, Self::End(Signal::SIGTERM as i32)),
        (Signal::SIGHUP as i32, Self::End(Signal::SIGHUP as i32)),
        (Signal::SIGQUIT as i32, Self::Survey),
        (Signal::SIGUSR1 as i32, Self::Forward(Signal::SIGUSR1 as i32)),
        (Signal::SIGUSR2 as i32, Self::Forward(Signal::SIGUSR2 as i32)),
        (Signal::SIGTSTP as i32, Self::Stop),
        (Signal::SIGCONT as i32, Self::Continue),
    ];

    /// Returns the meaning of a signal; `None` if it has none.
    pub(crate) fn of_signal(signal: i32) -> Option<Self> {
        Self::MEANINGS.into_iter().find(|(known, _)| *known == signal).map(|(_, meaning)| meaning)
    }
}

/// Returns the signals that have a meaning.
pub(crate) fn signals_with_meaning() -> impl Iterator<Item = i32> {
    Asked::MEANINGS.into_iter().map(|(signal, _)| signal)
}

/// Receives signals.
pub(crate) struct Signals {
    asked: mpsc::Receiver<Asked>,
}

impl Signals {
    /// Handles all signals that have a meaning, except those that this process was started to ignore (by nohup, or by
    /// `&` in a script). So does the other process of the front.
    pub(crate) fn new(front: &Front, tasks: &Tasks) -> io::Result<Self> {
        let ignored = sys::ShellState::recorded().ignored;
        let (received, asked) = mpsc::channel(64);
        front.listen(&received, tasks)?;
        for (number, meaning) in Asked::MEANINGS {
            if ignored >> (number - 1) & 1 == 1 {
                continue;
            }
            let mut stream = signal(SignalKind::from_raw(number))?;
            let received = received.clone();
            tasks.spawn("signals", Span::current(), async move {
                while stream.recv().await.is_some() {
                    if received.send(meaning).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { asked })
    }

    /// Receives these signals only.
    #[cfg(test)]
    pub(crate) fn of(signals: impl IntoIterator<Item = Asked>) -> Self {
        let (received, asked) = mpsc::channel(64);
        for signal in signals {
            let _ = received.try_send(signal);
        }
        Self { asked }
    }

    /// Returns a signal that came before the call; `None` if there is none.
    pub(crate) async fn received(&mut self) -> Option<Asked> {
        // The runtime looks for signals before it resumes a task that has yielded. The tasks of `new` run before the second time.
        for _ in 0..2 {
            yield_now().await;
        }
        self.asked.try_recv().ok()
    }

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }
}
