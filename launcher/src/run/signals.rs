//! [`Signals`]: what is asked of the launcher by signals.

use std::io;

use nix::sys::signal::Signal;
use nla::sys;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// What a signal to the launcher means.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    End(i32),
    Forward(i32),
    Stop,
    Continue,
}

/// The signals that the launcher heeds, as they come.
pub(crate) struct Signals {
    asked: mpsc::Receiver<Asked>,
}

impl Signals {
    /// Listens to signals, but not to those that the shell had this process ignore (nohup, `&` in
    /// a script).
    pub(crate) fn new() -> io::Result<Self> {
        let ignored = sys::ShellState::recorded().ignored;
        let (heard, asked) = mpsc::channel(64);
        let meanings = [
            (SignalKind::interrupt(), Asked::End(2)),
            (SignalKind::terminate(), Asked::End(15)),
            (SignalKind::hangup(), Asked::End(1)),
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
            let heard = heard.clone();
            tokio::task::spawn_local(async move {
                while stream.recv().await.is_some() {
                    if heard.send(meaning).await.is_err() {
                        return;
                    }
                }
            });
        }
        Ok(Self { asked })
    }

    /// What the next one means.
    pub(crate) async fn next(&mut self) -> Option<Asked> {
        self.asked.recv().await
    }
}
