//! The signals to the launcher, and their meanings.

use std::io;

use nix::sys::signal::Signal;
use nla::sys;
use nla::tasks::Tasks;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tracing::Span;

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
}

/// Receives signals.
pub(crate) struct Signals {
    asked: mpsc::Receiver<Asked>,
}

impl Signals {
    /// Handles all signals that have a meaning, except those that this process was started to ignore (by nohup, or by
    /// `&` in a script).
    pub(crate) fn new(tasks: &Tasks) -> io::Result<Self> {
        let ignored = sys::ShellState::recorded().ignored;
        let (received, asked) = mpsc::channel(64);
        let meanings = [
            (SignalKind::interrupt(), Asked::End(2)),
            (SignalKind::terminate(), Asked::End(15)),
            (SignalKind::hangup(), Asked::End(1)),
            (SignalKind::quit(), Asked::Survey),
            (SignalKind::user_defined1(), Asked::Forward(10)),
            (SignalKind::user_defined2(), Asked::Forward(12)),
            (SignalKind::from_raw(Signal::SIGTSTP as i32), Asked::Stop),
            (SignalKind::from_raw(Signal::SIGCONT as i32), Asked::Continue),
        ];
        for (kind, meaning) in meanings {
            if ignored >> (kind.as_raw_value() - 1) & 1 == 1 {
                continue;
            }
            let mut stream = signal(kind)?;
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

    /// Waits for the next signal.
    pub(crate) async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }
}
