//! `scela attach`: shows the output of a job that has no client, passes signals on, and ends with the job.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nla::core::printable;
use nla::figures::counted;
use nla::sys::Packets;

use super::client::{self, ENDING, ENDS_WITHOUT_ANSWER, received};
use super::followed::{Copying, Cut};
use super::handover::{Event, Handed};
use super::message::{JobNumber, ToClient, ToController, unpacked};
use super::{commands, handover};
use crate::exit;
use crate::plan::pool_name::POOL_DEFAULT;
use crate::refusal::Refusal;
use crate::run::signals::Asked;
use crate::run::stderr::{self, Kind};
use crate::run::suspension::Suspension;

/// How long the last texts for standard error may take until signals end this process.
const LAST_TEXTS_TIME: Duration = Duration::from_millis(200);

/// Attaches this process to a job until the job ends. Returns the job's exit code. SIGHUP, or the end of this process, leaves the
/// job alone. It says which nodes the job lacks, unless `is_quiet`.
pub fn attach(pool: &str, job: JobNumber, is_quiet: bool) -> Result<u8, Refusal> {
    let signals = client::signals().map_err(|error| cannot_follow(pool, job, &error))?;
    attach_with(pool, job, signals, is_quiet, None)
}

/// A job that this process has submitted.
pub(super) struct Submitted {
    /// The connection on which the job was submitted.
    pub(super) controller: Packets,
    /// The state of the job, as this connection has said.
    pub(super) handed: Handed,
}

/// The same with signals that are blocked already, and perhaps for a job of this process: a signal before the answer ends that job.
pub(super) fn attach_with(
    pool: &str,
    job: JobNumber,
    signals: SignalFd,
    is_quiet: bool,
    submitted: Option<Submitted>,
) -> Result<u8, Refusal> {
    // A reader of standard error that stops must not delay signals.
    stderr::allow_thread();
    let failed = |error: io::Error| cannot_follow(pool, job, &error);
    let controller = commands::asked(pool, &ToController::Attach(job))?;
    if let Some(signal) = client::wait_or_signal(&controller, pool, &signals)? {
        if submitted.is_some() && signal != Signal::SIGHUP as i32 {
            commands::asked(pool, &ToController::Signal(vec![job], signal))?;
        }
        return Ok(exit::signalled(signal));
    }
    let packet = controller.receive(true).map_err(failed)?;
    let Some(packet) = packet else { return Err(handover::pool_ended(pool, "")) };
    let files = match unpacked(&packet).map_err(failed)? {
        ToClient::Attached => <[OwnedFd; 2]>::try_from(packet.descriptors).ok(),
        _ => None,
    };
    let Some(files) = files else {
        let text = format!("the pool '{pool}' has no job {job} that was detached");
        return Err(Refusal::new(text, "'scela jobs' lists those that wait or run").of_system());
    };
    let copying = Copying::start(files).map_err(failed)?;
    let (code, unwritten) = (None, String::new());
    let ended = Attached { pool, job, is_quiet, controller, signals, copying, submitted, code, unwritten }.follow();
    if !stderr::wait_written(LAST_TEXTS_TIME) {
        // The reader of standard error has stopped: a signal ends this process while it waits for it.
        let _ = ENDING.into_iter().collect::<nix::sys::signal::SigSet>().thread_unblock();
    }
    ended
}

fn cannot_follow(pool: &str, job: JobNumber, error: &io::Error) -> Refusal {
    Refusal::new(format!("job {job} in the pool '{pool}' cannot be followed: {error}"), "").of_system()
}

/// The meaning of a signal to an attached client.
#[derive(PartialEq, Eq, Debug)]
enum Meaning {
    /// It leaves the job alone and ends.
    Leave,
    /// It stops itself. The job runs on.
    Stop,
    /// It sends the signal to the job.
    PassOn,
    /// It does nothing.
    Nothing,
}

impl Meaning {
    /// Returns the meaning of a signal before or after the end of the job.
    fn of(signal: i32, has_ended: bool) -> Self {
        match Asked::of_signal(signal) {
            // After the end of the job only its output is left to be copied, for a reader that may have stopped.
            Some(Asked::End(_)) if has_ended || signal == Signal::SIGHUP as i32 => Self::Leave,
            Some(Asked::Stop) => Self::Stop,
            Some(Asked::End(_) | Asked::Forward(_) | Asked::Survey) if !has_ended => Self::PassOn,
            // A job that was not stopped needs no SIGCONT.
            _ => Self::Nothing,
        }
    }
}

/// A job that this process is attached to.
struct Attached<'a> {
    pool: &'a str,
    job: JobNumber,
    /// It does not say why the job waits.
    is_quiet: bool,
    controller: Packets,
    signals: SignalFd,
    copying: Copying,
    /// The job is one of this process, and has not started.
    submitted: Option<Submitted>,
    /// The exit code of the job, if it or its pool has ended.
    code: Option<u8>,
    /// Texts of the job that could not be stored with its standard error.
    unwritten: String,
}

impl Attached<'_> {
    fn follow(mut self) -> Result<u8, Refusal> {
        let (mut suspension, mut asked_to_end) = (Suspension::default(), 0);
        loop {
            let is_copied = self.wait_for_event();
            self.note_wait();
            self.receive_end();
            if is_copied {
                return self.conclude();
            }
            while let Ok(Some(info)) = self.signals.read_signal() {
                let signal = info.ssi_signo as i32;
                Asked::of_signal(signal).into_iter().for_each(|asked| suspension.on_asked(asked));
                match Meaning::of(signal, self.code.is_some()) {
                    Meaning::Leave => return Ok(exit::signalled(signal)),
                    Meaning::Stop => suspension.on_suspended(),
                    Meaning::Nothing => {}
                    Meaning::PassOn => {
                        asked_to_end += u32::from(client::is_ending(signal));
                        let sent = commands::asked(self.pool, &ToController::Signal(vec![self.job], signal));
                        if asked_to_end > ENDS_WITHOUT_ANSWER || sent.is_err() {
                            let text = "the job does not answer; it goes on without this command";
                            self.report(&format!("error: {text}"));
                            return Ok(exit::signalled(signal));
                        }
                    }
                }
            }
            suspension.act();
        }
    }

    /// Waits until something has happened. Returns whether all output was copied, or cannot be.
    fn wait_for_event(&self) -> bool {
        let submitted = self.submitted.as_ref().map(|submitted| submitted.controller.as_fd());
        // After the end of the job its connection is over.
        let controller = self.code.is_none().then_some(self.controller.as_fd());
        let waited = [self.copying.end(), self.signals.as_fd()].into_iter().chain(controller).chain(submitted);
        let mut waited: Vec<PollFd<'_>> = waited.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut waited, PollTimeout::NONE);
        waited.first().is_some_and(|end| end.any() == Some(true))
    }

    /// Says that a job of this process waits, once the controller has said so.
    fn note_wait(&mut self) {
        while let Some(submitted) = &mut self.submitted {
            let Some(packet) = received(&submitted.controller) else { return };
            match submitted.handed.on_controller(packet.as_ref()) {
                Some(Event::Waits(text, _)) if !self.is_quiet => self.report(&text),
                Some(Event::Waits(..)) | None => {}
                // It has started. The other connection reports its end.
                Some(_) => self.submitted = None,
            }
        }
    }

    /// Receives what the controller says about the end of the job. Everything is in the files before.
    fn receive_end(&mut self) {
        while self.code.is_none() {
            let Some(packet) = received(&self.controller) else { return };
            match packet.map(|packet| unpacked(&packet)) {
                Some(Ok(ToClient::Ended(code))) => self.code = Some(code),
                Some(Ok(ToClient::Unwritten(text))) => self.unwritten = text,
                // A process that has submitted the job hears it on that connection, too.
                Some(Ok(ToClient::Waits(job, wait, absent))) if self.submitted.is_none() && !self.is_quiet => {
                    self.report(&handover::waits_text(self.pool, job, &wait, &absent));
                }
                Some(Ok(_)) => {}
                Some(Err(_)) | None => {
                    self.report(&format!("error: the pool '{}' has ended", self.pool));
                    self.code = Some(exit::LOST);
                }
            }
        }
        self.copying.finish();
    }

    /// Reports what was not copied. Returns the exit code.
    fn conclude(self) -> Result<u8, Refusal> {
        let Self { pool, job, copying, code, unwritten, .. } = self;
        match copying.result() {
            Ok(freed) => {
                if !unwritten.is_empty() {
                    // Its lines begin with the name of the program that has written them.
                    stderr::line(Kind::Report, printable(&unwritten).trim_end());
                }
                if freed > 0 {
                    let text = format!("{} of older output were freed before they were read", counted(freed, "byte"));
                    stderr::line(Kind::Report, &format!("{}: {text}", stderr::name()));
                }
                Ok(code.unwrap_or(exit::LOST))
            }
            Err(Cut::NoReader) => Ok(exit::signalled(Signal::SIGPIPE as i32)),
            Err(Cut::Unwritten(error)) => {
                let text = unwritten_text(pool, job, &error, code.is_some());
                stderr::line(Kind::Report, &format!("{}: error: {text}", stderr::name()));
                Ok(exit::OUTPUT_LOST)
            }
            Err(Cut::Unread(error)) => Err(cannot_follow(pool, job, &error)),
        }
    }

    fn report(&self, text: &str) {
        stderr::line(Kind::Report, &format!("{}: {text}", stderr::name()));
    }
}

/// Reports that standard output cannot be written, and how to go on with the job.
fn unwritten_text(pool: &str, job: JobNumber, error: &io::Error, has_ended: bool) -> String {
    let words = if pool == POOL_DEFAULT { job.to_string() } else { format!("--pool {pool} {job}") };
    let text = format!("standard output cannot be written: {error}");
    let (text, hint) = match has_ended {
        true => (text, format!("'scela attach {words}' shows the output of the job")),
        false => (
            format!("{text}; job {job} in the pool '{pool}' goes on"),
            format!("'scela attach {words}' shows its output, 'scela kill {words}' ends it"),
        ),
    };
    Refusal::new(text, hint).with_hint()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_to_an_attached_client_reach_the_job_unless_they_are_about_the_client() {
        let of = |signal, has_ended| Meaning::of(signal as i32, has_ended);
        for signal in [Signal::SIGINT, Signal::SIGTERM] {
            assert_eq!([false, true].map(|ended| of(signal, ended)), [Meaning::PassOn, Meaning::Leave], "{signal}");
        }
        for signal in [Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2] {
            assert_eq!([false, true].map(|ended| of(signal, ended)), [Meaning::PassOn, Meaning::Nothing], "{signal}");
        }
        for (signal, meaning) in [
            (Signal::SIGHUP, [Meaning::Leave, Meaning::Leave]),
            (Signal::SIGTSTP, [Meaning::Stop, Meaning::Stop]),
            (Signal::SIGCONT, [Meaning::Nothing, Meaning::Nothing]),
        ] {
            assert_eq!([false, true].map(|ended| of(signal, ended)), meaning, "{signal}");
        }
    }

    #[test]
    fn a_job_whose_output_cannot_be_written_is_named() {
        let text = |pool, has_ended| unwritten_text(pool, 7, &io::Error::other("no"), has_ended);
        let goes_on = "standard output cannot be written: no; job 7 in the pool 'default' goes on\n  hint: 'scela attach 7' shows its \
                       output, 'scela kill 7' ends it";
        assert_eq!(text(POOL_DEFAULT, false), goes_on);
        let ended =
            "standard output cannot be written: no\n  hint: 'scela attach --pool night 7' shows the output of the job";
        assert_eq!(text("night", true), ended);
    }
}
