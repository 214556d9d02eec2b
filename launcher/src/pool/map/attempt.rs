//! One attempt at a command: a job of the pool, from its submission to its end.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::future::pending;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nla::sys::{self, Packet, Packets, WatchedPackets};
use tokio::time::sleep;

use super::spool::Spool;
use crate::exit;
use crate::plan::environment::environment_of_process;
use crate::pool::directory;
use crate::pool::handover::{self, Event, Handed, SEND_PAUSE, SEND_TIME, Submission};
use crate::pool::message::{Ask, Description, JobRefusal, WORDS_CHARS_MAX};
use crate::refusal::{Refusal, shown};

/// The pause before a job is submitted again for which the pool had no room.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// The line to the launcher of a job, once the job has started.
pub(super) type Line = Rc<OnceCell<WatchedPackets>>;

/// How an attempt has ended.
#[derive(Debug)]
pub(super) enum End {
    /// With this exit code.
    Ended(u8),
    /// With this exit code, for a reason that the job itself could not write.
    Failed(u8, String),
    /// The pool accepts no more jobs.
    PoolLost(Refusal),
}

/// Runs a command with so many ranks in a pool, and waits for its end. When it has started, sets `line` and calls `started`. Dropping
/// the future withdraws the job, or ends it.
pub(super) async fn run(
    pool: &str,
    command: &[u8],
    ranks: u32,
    spool: &Spool,
    line: &Line,
    started: impl AsyncFn(),
) -> End {
    let words = shown(&String::from_utf8_lossy(command), WORDS_CHARS_MAX);
    let ask = Ask { ranks: Some(ranks), waits: true, words, ..Ask::default() };
    let command = OsStr::from_bytes(command).to_owned();
    let ranks = OsString::from(ranks.to_string());
    let arguments = vec!["scela-run".into(), "-np".into(), ranks, "sh".into(), "-c".into(), command];
    let mut description = Description::of_process(arguments, None, environment_of_process());
    // The command writes to a file, whatever this process has.
    description.stdout_is_closed = false;
    loop {
        // A pool that was found before.
        let Ok(controller) = directory::connect(pool) else { return End::PoolLost(handover::pool_ended(pool, "")) };
        let mut handed = Handed::new(pool);
        let submitted = match submit(&controller, &ask, &description, spool).await {
            Ok(other) => wait_for_start(controller, other, &mut handed, line).await,
            Err(error) => Err(error),
        };
        match submitted {
            Ok(Event::Started) => {
                started().await;
                return wait_for_end(&mut handed, line).await;
            }
            Ok(Event::Refused(JobRefusal::Full)) => sleep(FULL_PAUSE).await,
            Ok(Event::Refused(JobRefusal::Signalled(signal))) => return End::Ended(exit::signalled(signal)),
            Ok(Event::Refused(why)) => return End::PoolLost(handover::refused(pool, &why)),
            Ok(_) => return End::PoolLost(handover::pool_ended(pool, "")),
            Err(error) => return End::Failed(exit::NOT_LAUNCHED, handover::failed(pool, &error).to_string()),
        }
    }
}

/// Sends the job. Returns this process's end of its line.
async fn submit(controller: &Packets, ask: &Ask, description: &Description, spool: &Spool) -> io::Result<Packets> {
    let null = sys::dev_null(false)?;
    let [output, error] = spool.streams();
    let submission = Submission::new(ask.clone(), description, [null.as_fd(), output, error])?;
    let began = Instant::now();
    while !submission.send(controller)? {
        if began.elapsed() > SEND_TIME {
            return Err(Errno::ETOOMANYREFS.into());
        }
        sleep(SEND_PAUSE).await;
    }
    Ok(submission.into_line())
}

/// Waits until the job has started, which sets `line`, or does not start.
async fn wait_for_start(controller: Packets, other: Packets, handed: &mut Handed, line: &Line) -> io::Result<Event> {
    let controller = WatchedPackets::of(controller)?;
    let mut other = Some(WatchedPackets::of(other)?);
    loop {
        let packet = tokio::select! {
            packet = controller.receive() => packet.ok().flatten(),
            packet = from_launcher(&other) => {
                handed.on_launcher(packet.as_ref());
                if handed.has_started() {
                    // Signals go to the launcher from now on. The next message of the controller says that the job has started.
                    set(line, &mut other);
                }
                // After the end of the line, the controller says more.
                other = None;
                continue;
            }
        };
        match handed.on_controller(packet.as_ref()) {
            Some(Event::Waits(_)) | None => {}
            Some(Event::Started) => {
                set(line, &mut other);
                return Ok(Event::Started);
            }
            Some(event) => return Ok(event),
        }
    }
}

/// Waits for the first packet of a launcher, or the end of the line.
async fn from_launcher(other: &Option<WatchedPackets>) -> Option<Packet> {
    match other {
        Some(other) => other.receive().await.ok().flatten(),
        None => pending().await,
    }
}

/// Sets the line of a job that has begun, once for each attempt.
fn set(line: &Line, other: &mut Option<WatchedPackets>) {
    if let Some(other) = other.take() {
        let _ = line.set(other);
    }
}

/// Waits for the end of a job that has started.
async fn wait_for_end(handed: &mut Handed, line: &Line) -> End {
    loop {
        let packet = match line.get() {
            Some(line) => line.receive().await.ok().flatten(),
            None => None,
        };
        match handed.on_launcher(packet.as_ref()) {
            Some(Event::Ended(code)) => return End::Ended(code),
            Some(Event::NotLaunched(why)) => {
                return End::Failed(exit::NOT_LAUNCHED, handover::not_launched_text(&why));
            }
            Some(Event::Lost) => return End::Failed(exit::LOST, handed.lost_text()),
            Some(_) | None => {}
        }
    }
}
