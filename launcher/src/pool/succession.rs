//! Takes the name of a pool. If a pool of that name is ending, waits for it to end.

use std::io;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nix::sys::signalfd::SignalFd;

use super::client;
use super::commands::{ANSWER_TIME, check_runs, wait};
use super::directory::{self, Place};
use super::message::{Request, ToClient, ToController, packed, unpacked};
use crate::refusal::Refusal;
use crate::run::stderr::{self, Kind};

/// The longest wait for the end of a pool. It covers the default grace of a job and the end of keepers that are killed.
const END_TIME: Duration = Duration::from_secs(15);
/// A wait that takes longer is reported to the user.
const NOTE_TIME: Duration = Duration::from_millis(500);
/// The time between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// The pool that has a name, as one look shows it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Holder {
    /// It runs.
    Runs,
    /// It is being stopped.
    Ends,
    /// It accepts no clients: its controller has just ended, or is about to begin.
    Closed,
}

/// The next step after a look.
#[derive(PartialEq, Eq, Debug)]
enum Next {
    /// Looks again.
    Wait,
    /// Tells the user of the wait, and looks again.
    Tell(String),
}

/// A wait for the end of a pool. A value without clocks and processes.
struct Waiting<'a> {
    name: &'a str,
    is_told: bool,
}

impl Waiting<'_> {
    /// Decides what is done about a holder of the name after a wait of this time. `pid` is its controller's, if that is known.
    fn look(&mut self, waited: Duration, holder: Holder, pid: Option<u32>) -> Result<Next, Refusal> {
        let name = self.name;
        if holder == Holder::Runs {
            let hint = format!("'scela pool status {name}' shows it, 'scela pool stop {name}' ends it");
            return Err(Refusal::new(format!("the pool '{name}' exists already"), hint).of_system());
        }
        // The lock of a pool that accepts no clients may have the pid of a process that is gone.
        let pid = pid.filter(|_| holder == Holder::Ends);
        let process = pid.map(|pid| format!(" (its controller is process {pid})")).unwrap_or_default();
        if waited >= END_TIME {
            let (text, hint) = match holder {
                Holder::Ends => (
                    "is ending",
                    format!("'scela pool stop --kill {name}' kills the launchers of its jobs; then try again"),
                ),
                _ => (
                    "accepts no clients, but one of its processes is left",
                    "'ps -eo pid,args' shows it as scela-...; end it, or start the pool under another name".to_owned(),
                ),
            };
            let text = format!("the pool '{name}' {text}{process}: waited {} s for its end", END_TIME.as_secs());
            return Err(Refusal::new(text, hint).of_system());
        }
        if self.is_told || waited < NOTE_TIME {
            return Ok(Next::Wait);
        }
        self.is_told = true;
        let text =
            format!("the pool '{name}' is ending{process}; waiting for its end, at most {} s", END_TIME.as_secs());
        Ok(Next::Tell(text))
    }
}

/// The signals that have a meaning for a job, held back from this process.
pub(super) struct HeldSignals {
    /// Yields them.
    pub(super) descriptor: SignalFd,
    before: SigSet,
}

impl HeldSignals {
    fn hold() -> io::Result<Self> {
        let before = SigSet::thread_get_mask()?;
        Ok(Self { descriptor: client::signals()?, before })
    }

    /// Lets them reach this process again.
    pub(super) fn release(self) -> io::Result<()> {
        Ok(self.before.thread_set_mask()?)
    }
}

/// Takes the name of a pool in the first of the directories for new pools that can be used, after the end of a pool that has it and is ending. Signals are held from
/// before its files are made, so that none leaves them behind. Fails if the pool runs, cannot be asked, or does not end in time.
pub(super) fn take(directories: &[PathBuf], name: &str) -> Result<(Place, HeldSignals), Refusal> {
    let began = Instant::now();
    let failed =
        |error: io::Error| Refusal::new(format!("the pool '{name}' cannot be started: {error}"), "").of_system();
    let mut waiting = Waiting { name, is_told: false };
    loop {
        let held = HeldSignals::hold().map_err(failed)?;
        if let Some(place) = directory::take(directories, name)? {
            return Ok((place, held));
        }
        held.release().map_err(failed)?;
        let holder = holder(name)?;
        if let Next::Tell(text) = waiting.look(began.elapsed(), holder, directory::controller(name))? {
            stderr::line(Kind::Report, &format!("scela: {text}"));
        }
        thread::sleep(PAUSE);
    }
}

/// Looks at the pool that has this name. Fails if its controller is stopped, or does not answer.
fn holder(name: &str) -> Result<Holder, Refusal> {
    let Ok(controller) = directory::connect(name) else { return Ok(Holder::Closed) };
    check_runs(name)?;
    if controller.send(&packed(&Request::of(&ToController::Status)), &[], true).is_err() {
        return Ok(Holder::Closed);
    }
    wait(&controller, name, Some(ANSWER_TIME))?;
    Ok(match controller.receive(true) {
        Ok(Some(packet)) => match unpacked(&packet) {
            Ok(ToClient::Pool(pool)) if pool.is_stopping => Holder::Ends,
            // A pool of another version also has the name.
            _ => Holder::Runs,
        },
        Ok(None) | Err(_) => Holder::Closed,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(waiting: &mut Waiting<'_>, waited_ms: u64, holder: Holder) -> Result<Next, String> {
        waiting.look(Duration::from_millis(waited_ms), holder, Some(7)).map_err(|refusal| refusal.with_hint())
    }

    #[test]
    fn a_pool_that_runs_keeps_its_name() {
        let text = "the pool 'night' exists already\n  hint: 'scela pool status night' shows it, 'scela pool stop night' ends it";
        let mut waiting = Waiting { name: "night", is_told: false };
        assert_eq!(look(&mut waiting, 0, Holder::Runs), Err(text.to_owned()));
        assert_eq!(look(&mut waiting, 20_000, Holder::Runs), Err(text.to_owned()), "another one has begun meanwhile");
    }

    #[test]
    fn the_end_of_a_pool_is_awaited_for_a_time() {
        for (holder, process, words) in [
            (
                Holder::Ends,
                " (its controller is process 7)",
                "is ending (its controller is process 7): waited 15 s for its end\n  hint: 'scela pool stop --kill night' kills \
                 the launchers of its jobs; then try again",
            ),
            (
                Holder::Closed,
                "",
                "accepts no clients, but one of its processes is left: waited 15 s for its end\n  hint: 'ps -eo pid,args' shows it \
                 as scela-...; end it, or start the pool under another name",
            ),
        ] {
            let mut waiting = Waiting { name: "night", is_told: false };
            let told = format!("the pool 'night' is ending{process}; waiting for its end, at most 15 s");
            let found = [0, 499, 500, 501, 14_999].map(|waited| look(&mut waiting, waited, holder));
            let wait = || Ok(Next::Wait);
            assert_eq!(found, [wait(), wait(), Ok(Next::Tell(told)), wait(), wait()]);
            assert_eq!(look(&mut waiting, 15_000, holder), Err(format!("the pool 'night' {words}")));
        }
    }
}
