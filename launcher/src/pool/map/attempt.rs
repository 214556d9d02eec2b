//! One attempt at a command: a job of the pool, from its submission to its end.

use std::cell::{Cell, RefCell};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nla::sys::{self, Packet, Packets, WatchedPackets};
use tokio::time::sleep;

use super::spool::Spool;
use super::waits::Waits;
use crate::exit;
use crate::plan::environment::environment_of_process;
use crate::pool::directory;
use crate::pool::handover::{self, Event, Handed, SEND_PAUSE, SEND_TIME, Submission};
use crate::pool::message::{Ask, Description, JobRefusal, WORDS_CHARS_MAX};
use crate::refusal::{Refusal, shown};
use crate::run::stderr::{self, Kind};

/// The pause before a job is submitted again for which the pool had no room.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// The line to the launcher of a job. It exists from the submission on: messages that are sent before a launcher has the job stay in
/// it, and the launcher reads them in their order when the job begins.
#[derive(Debug, Default)]
pub(super) struct Line {
    packets: RefCell<Option<Rc<WatchedPackets>>>,
    has_begun: Cell<bool>,
}

impl Line {
    /// Returns whether the job has begun, so that it can be ended by a signal. No rank runs before the launcher has said so here.
    pub(super) fn has_begun(&self) -> bool {
        let has_message = || self.packets.borrow().as_ref().is_some_and(|packets| packets.has_message());
        self.has_begun.get() || has_message()
    }

    /// Sends a message if the job is submitted.
    pub(super) fn send(&self, message: &[u8]) {
        if let Some(packets) = &*self.packets.borrow() {
            // The end of the line reports a lost launcher.
            let _ = packets.try_send(message, &[]);
        }
    }

    async fn receive(&self) -> Option<Packet> {
        let packets = self.packets.borrow().clone()?;
        packets.receive().await.ok().flatten()
    }
}

/// How an attempt has ended.
#[derive(Debug)]
pub(super) enum End {
    /// With this exit code.
    Ended(u8),
    /// With this exit code, but some of its output could not be stored, for this reason.
    Cut(u8, String),
    /// With this exit code, and this line, for a reason that the job itself could not write.
    Failed(u8, String),
    /// The pool accepts no more jobs.
    PoolLost(Refusal),
}

/// Runs a command with so many ranks in a pool, and waits for its end. `line` is the connection to the job that was submitted last.
/// `waits` has what is said about all attempts that wait. Calls `started` when the job has started. Dropping the future withdraws the job, or ends it.
pub(super) async fn run(
    pool: &str,
    command: &[u8],
    ranks: u32,
    spool: &Spool,
    line: &Line,
    waits: &RefCell<Waits>,
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
        let submitted = match submit(&controller, &ask, &description, spool, line).await {
            Ok(()) => wait_for_start(controller, &mut handed, line, waits).await,
            Err(error) => Err(error),
        };
        match submitted {
            Ok(Event::Started) => {
                waits.borrow_mut().on_started();
                started().await;
                return wait_for_end(&mut handed, line).await;
            }
            Ok(Event::Refused(JobRefusal::Full)) => sleep(FULL_PAUSE).await,
            Ok(Event::Refused(JobRefusal::Signalled(signal))) => return End::Ended(exit::signalled(signal)),
            Ok(Event::Refused(why)) => return End::PoolLost(handover::refused(pool, &why)),
            Ok(_) => return End::PoolLost(handover::pool_ended(pool, "")),
            Err(error) => return not_launched(&handover::failed(pool, &error).to_string()),
        }
    }
}

/// Sends the job, and sets `line` to this process's end of its line.
async fn submit(
    controller: &Packets,
    ask: &Ask,
    description: &Description,
    spool: &Spool,
    line: &Line,
) -> io::Result<()> {
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
    line.packets.replace(Some(Rc::new(WatchedPackets::of(submission.into_line())?)));
    Ok(())
}

/// Waits until the job has started or does not start.
async fn wait_for_start(
    controller: Packets,
    handed: &mut Handed,
    line: &Line,
    waits: &RefCell<Waits>,
) -> io::Result<Event> {
    let controller = WatchedPackets::of(controller)?;
    // Until the launcher's first message. Later ones are read by `wait_for_end`.
    let mut is_read = true;
    loop {
        let look_time = waits.borrow().watch.time_left();
        let packet = tokio::select! {
            biased;
            packet = controller.receive() => packet.ok().flatten(),
            packet = line.receive(), if is_read => {
                handed.on_launcher(packet.as_ref());
                // The next message of the controller says that the job has started, or why the line has ended.
                line.has_begun.set(handed.has_started());
                is_read = false;
                continue;
            }
            () = sleep(look_time), if is_read => {
                let text = waits.borrow_mut().watch.look();
                text.into_iter().for_each(|text| note(&text));
                continue;
            }
        };
        waits.borrow_mut().watch.on_answer();
        match handed.on_controller(packet.as_ref()) {
            Some(Event::Waits(text, absent)) => {
                let text = waits.borrow_mut().on_waits(text, &absent);
                text.into_iter().for_each(|text| note(&text));
            }
            None => {}
            Some(Event::Started) => {
                line.has_begun.set(true);
                return Ok(Event::Started);
            }
            Some(Event::PoolEnded) => {
                // The launcher may have begun the job before: then it says so, else the line ends.
                if is_read {
                    handed.on_launcher(line.receive().await.as_ref());
                }
                line.has_begun.set(handed.has_started());
                return Ok(if handed.has_started() { Event::Started } else { Event::PoolEnded });
            }
            Some(event) => return Ok(event),
        }
    }
}

fn note(text: &str) {
    stderr::line(Kind::Report, &format!("scela: {text}"));
}

fn not_launched(why: &str) -> End {
    End::Failed(exit::NOT_LAUNCHED, format!("scela-run: error: {why}"))
}

/// Waits for the end of a job that has started.
async fn wait_for_end(handed: &mut Handed, line: &Line) -> End {
    let mut cut = None;
    loop {
        match handed.on_launcher(line.receive().await.as_ref()) {
            Some(Event::OutputCut(why)) => cut = cut.or(Some(why)),
            Some(Event::Ended(code)) => return cut.map_or(End::Ended(code), |why| End::Cut(code, why)),
            Some(Event::NotLaunched(why)) => {
                return not_launched(&handover::not_launched_text(&why));
            }
            Some(Event::Lost) => return End::Failed(exit::LOST, handed.lost_text()),
            Some(_) | None => {}
        }
    }
}
