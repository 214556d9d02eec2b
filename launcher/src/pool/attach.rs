//! `scela attach`: shows the output of a job that has no client, passes signals on, and ends with the job.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use nix::unistd::{Whence, lseek};
use nla::core::printable;
use nla::figures::counted;
use nla::sys::Packets;

use super::client::{self, ENDING, ENDS_WITHOUT_ANSWER};
use super::message::{JobNumber, ToClient, ToController, unpacked};
use super::{commands, handover};
use crate::exit;
use crate::refusal::Refusal;
use crate::run::signals::Asked;
use crate::run::stderr::{self, Kind};
use crate::run::suspension::Suspension;

/// Bytes that are read from a file at a time.
const PIECE_BYTES: usize = 64 * 1024;
/// The time between two looks at files that inotify does not watch.
const LOOK_TIME: Duration = Duration::from_millis(200);

/// Attaches this process to a job until the job ends. Returns the job's exit code. SIGHUP, or the end of this process, leaves the
/// job alone. It says which nodes the job lacks, unless `is_quiet`.
pub fn attach(pool: &str, job: JobNumber, is_quiet: bool) -> Result<u8, Refusal> {
    let failed = |error: io::Error| {
        Refusal::new(format!("job {job} in the pool '{pool}' cannot be followed: {error}"), "").of_system()
    };
    let signals = client::signals().map_err(failed)?;
    let controller = commands::asked(pool, &ToController::Attach(job))?;
    commands::wait(&controller, pool, None)?;
    let packet = controller.receive(true).map_err(failed)?;
    let Some(packet) = packet else { return Err(handover::pool_ended(pool, "")) };
    let files = match unpacked(&packet).map_err(failed)? {
        ToClient::Attached => <[OwnedFd; 2]>::try_from(packet.descriptors).ok(),
        _ => None,
    };
    let Some([output, errors]) = files else {
        let text = format!("the pool '{pool}' has no job {job} that was detached");
        return Err(Refusal::new(text, "'scela jobs' lists those that wait or run").of_system());
    };
    let (output, errors) = (Followed::new(output), Followed::new(errors));
    Attached { pool, job, is_quiet, controller, signals, output, errors }.follow().map_err(failed)
}

/// A file that grows, and whose beginning may be freed.
struct Followed {
    file: File,
    /// The position behind the bytes that were copied or freed.
    at: u64,
    /// How many bytes were freed before they were copied.
    freed: u64,
}

impl Followed {
    fn new(file: OwnedFd) -> Self {
        Self { file: file.into(), at: 0, freed: 0 }
    }

    /// Copies what was added. Returns false once `to` has no reader.
    fn copy(&mut self, to: &mut dyn Write) -> io::Result<bool> {
        let mut piece = vec![0; PIECE_BYTES];
        while let Some(data) = self.next_data()? {
            self.freed += data - self.at;
            self.at = data;
            let length = self.file.read_at(&mut piece, data)?;
            // Bytes that are freed meanwhile read as zeros.
            if length == 0 || self.next_data()? != Some(data) {
                continue;
            }
            match to.write_all(&piece[..length]).and_then(|()| to.flush()) {
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(false),
                written => written?,
            }
            self.at += length as u64;
        }
        Ok(true)
    }

    /// Returns where the next bytes are that were written and not freed; `None` if there are none.
    fn next_data(&self) -> io::Result<Option<u64>> {
        match lseek(&self.file, self.at.cast_signed(), Whence::SeekData) {
            Ok(data) => Ok(Some(data.cast_unsigned())),
            Err(Errno::ENXIO) => Ok(None),
            // The file system frees nothing.
            Err(Errno::EINVAL) => Ok((self.file.metadata()?.len() > self.at).then_some(self.at)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Watches files that grow. `None` if the kernel has no instance of inotify left for the user, who has 128 by default: then the files
/// are looked at again and again.
struct Growth(Option<Inotify>);

impl Growth {
    /// Watches these files by `inotify`, which the kernel may have refused.
    fn of(inotify: nix::Result<Inotify>, files: [&File; 2]) -> io::Result<Self> {
        let watched = inotify.and_then(|inotify| {
            for file in files {
                let path = format!("/proc/self/fd/{}", file.as_raw_fd());
                inotify.add_watch(path.as_str(), AddWatchFlags::IN_MODIFY)?;
            }
            Ok(inotify)
        });
        match watched {
            Ok(inotify) => Ok(Self(Some(inotify))),
            // The bounds of a user's instances and watches, and of all open files.
            Err(Errno::EMFILE | Errno::ENOSPC | Errno::ENFILE) => Ok(Self(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the files may have grown, or one of the others can be read.
    fn wait(&self, others: [BorrowedFd<'_>; 2]) {
        let inotify = self.0.as_ref().map(AsFd::as_fd);
        let waited = others.into_iter().chain(inotify);
        let mut waited: Vec<PollFd<'_>> = waited.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let _ = poll(&mut waited, self.pause());
        let _ = self.0.as_ref().map(Inotify::read_events);
    }

    fn pause(&self) -> PollTimeout {
        let looks = || PollTimeout::try_from(LOOK_TIME).unwrap_or(PollTimeout::MAX);
        self.0.as_ref().map_or_else(looks, |_| PollTimeout::NONE)
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
    output: Followed,
    errors: Followed,
}

impl Attached<'_> {
    fn follow(&mut self) -> io::Result<u8> {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        let growth = Growth::of(inotify, [&self.output.file, &self.errors.file])?;
        let (mut suspension, mut asked_to_end) = (Suspension::default(), 0);
        loop {
            // Everything is in the files before the job's end is reported.
            let code = self.ended();
            let is_read = self.output.copy(&mut io::stdout().lock())? && self.errors.copy(&mut io::stderr().lock())?;
            if code.is_some() {
                self.report_freed();
            }
            match code {
                _ if !is_read => return Ok(exit::signalled(Signal::SIGPIPE as i32)),
                Some(code) => return Ok(code),
                None => {}
            }
            growth.wait([self.controller.as_fd(), self.signals.as_fd()]);
            while let Ok(Some(info)) = self.signals.read_signal() {
                let signal = info.ssi_signo as i32;
                if signal == Signal::SIGHUP as i32 {
                    return Ok(exit::signalled(signal));
                }
                Asked::of_signal(signal).into_iter().for_each(|asked| suspension.on_asked(asked));
                if signal == Signal::SIGTSTP as i32 {
                    // The job runs on.
                    suspension.on_suspended();
                    continue;
                }
                if ENDING.iter().any(|end| *end as i32 == signal) {
                    asked_to_end += 1;
                }
                let sent = commands::asked(self.pool, &ToController::Signal(vec![self.job], signal));
                if asked_to_end > ENDS_WITHOUT_ANSWER || sent.is_err() {
                    let text = "the job does not answer; it goes on without this command";
                    stderr::line(Kind::Report, &format!("scela: error: {text}"));
                    return Ok(exit::signalled(signal));
                }
            }
            suspension.act();
        }
    }

    fn report_freed(&self) {
        let freed = self.output.freed + self.errors.freed;
        if freed > 0 {
            let text = format!("{} of older output were freed before they were read", counted(freed, "byte"));
            stderr::line(Kind::Report, &format!("scela: {text}"));
        }
    }

    /// Returns the exit code of the job, if it or its pool has ended.
    fn ended(&self) -> Option<u8> {
        match self.controller.receive(false) {
            Ok(Some(packet)) => match unpacked(&packet) {
                Ok(ToClient::Ended(code)) => Some(code),
                Ok(ToClient::Waits(job, wait, absent)) => {
                    if !self.is_quiet {
                        let text = handover::waits_text(self.pool, job, &wait, &absent);
                        stderr::line(Kind::Report, &format!("scela: {text}"));
                    }
                    self.ended()
                }
                Ok(ToClient::Unwritten(text)) => {
                    // Its lines begin with the name of the program that has written them.
                    let _ = io::stderr().write_all(printable(&text).as_bytes());
                    self.ended()
                }
                _ => None,
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            Ok(None) | Err(_) => {
                stderr::line(Kind::Report, &format!("scela: error: the pool '{}' has ended", self.pool));
                Some(exit::LOST)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_followed_without_inotify() {
        let (first, second) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let of = |inotify| Growth::of(inotify, [&first, &second]);
        let told = of(Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)).unwrap();
        assert_eq!(
            told.pause(),
            told.0.as_ref().map_or(PollTimeout::try_from(LOOK_TIME).unwrap(), |_| PollTimeout::NONE)
        );
        for error in [Errno::EMFILE, Errno::ENOSPC] {
            let looks = of(Err(error)).unwrap();
            assert_eq!(looks.pause(), PollTimeout::try_from(LOOK_TIME).unwrap());
            let (silent, _open) = nix::unistd::pipe().unwrap();
            // It returns, though nothing tells that a file has grown.
            looks.wait([silent.as_fd(), silent.as_fd()]);
        }
        assert!(of(Err(Errno::EPERM)).is_err());
    }
}
