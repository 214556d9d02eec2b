//! `scela-run --pool`: hands a job over to the pool and waits for its end.
//!
//! The job's launcher has this process's streams. This process passes signals on, and the input from a terminal: the launcher is
//! in another session, so the terminal would not protect a foreground process from it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{Shutdown, shutdown};
use nix::unistd::{read, write};
use nla::sys::{self, Packet, Packets, ShellState};

use super::attach::{Submitted, attach_with};
use super::handover::{Event, Handed, SEND_PAUSE, SEND_TIME, Submission};
use super::message::{
    AVOIDED_BYTES_MAX, Ask, Description, Detached, JobNumber, JobRefusal, ToClient, ToController, WORDS_CHARS_MAX,
    packed, unpacked,
};
use super::watch::Watch;
use super::{commands, directory, handover};
use crate::exit::{self, EarlyEnd};
use crate::plan::accelerators;
use crate::plan::checks::pool_hint;
use crate::plan::environment::environment_of_process;
use crate::plan::machine::is_background;
use crate::plan::placing::{Faults, NO_HISTORY};
use crate::plan::pool_name::POOL_DEFAULT;
use crate::plan::request::{Options, Program, Request as JobRequest};
use crate::refusal::{Refusal, shown};
use crate::run::front::ToJob;
use crate::run::output;
use crate::run::signals::{Asked, signals_with_meaning};
use crate::run::stderr::{self, Kind};
use crate::run::suspension::Suspension;

/// The signals that end a job.
pub(super) const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
/// How many of them the launcher may leave without an answer. The second one ends a job at once.
pub(super) const ENDS_WITHOUT_ANSWER: u32 = 3;
/// The words about the wait for a controller that does not answer.
const JOB_WAITS: &str = "the job waits";
/// Milliseconds between two checks whether this process is in the foreground again.
const BACKGROUND_PAUSE_MS: u16 = 500;
/// Bytes read from a terminal at a time: the longest line that it passes on.
const TERMINAL_BYTES: usize = 4096;

/// Runs the job of these arguments, the program's name first, and returns its exit code. `configfile` was read for them.
pub fn run(
    request: &JobRequest,
    arguments: Vec<OsString>,
    configfile: Option<(PathBuf, Vec<u8>)>,
) -> Result<u8, Refusal> {
    let options = &request.options;
    let pool = options.pool.as_deref().unwrap_or(POOL_DEFAULT);
    let failed = |error: io::Error| handover::failed(pool, &error);
    let controller = directory::connect(pool).map_err(|refusal| meant(request).unwrap_or(refusal))?;
    let ask = Ask {
        ranks: ranks(request),
        per_node: options.ppn,
        nodes: options.pool_nodes,
        is_exclusive: options.pool_exclusive,
        devices: accelerators::requests(&options.accelerators)?,
        avoided: avoided(options)?,
        priority: options.pool_priority.unwrap_or_default(),
        waits: !options.pool_no_wait,
        detached: detached(options),
        words: words(&arguments),
    };
    if ask.detached.is_some() {
        return run_detached(pool, ask, arguments, configfile, options);
    }
    let signals = signals().map_err(failed)?;
    let (terminal, input) = Terminal::of_input().map_err(failed)?;
    let description = Description::of_process(arguments, configfile, environment_of_process());
    let (null, stdin, stdout, stderr) = (sys::dev_null(true).map_err(failed)?, io::stdin(), io::stdout(), io::stderr());
    let output = if sys::stdout_was_closed() { null.as_fd() } else { stdout.as_fd() };
    let streams = [input.as_ref().map_or(stdin.as_fd(), AsFd::as_fd), output, stderr.as_fd()];
    let submission = Submission::new(ask, &description, streams).map_err(failed)?;
    send(&submission, &controller).map_err(failed)?;
    let line = submission.into_line();
    // The launcher's input ends with the terminal's alone.
    drop(input);
    let mut client = Client {
        controller: Some(controller),
        line,
        handed: Handed::new(pool),
        watch: Watch::new(pool, JOB_WAITS),
        signals,
        terminal,
        is_quiet: options.quiet,
    };
    client.wait(pool)
}

/// Returns the refusal of a job whose default pool does not exist, if its program is the name of a pool that does.
fn meant(request: &JobRequest) -> Option<Refusal> {
    let Program::Named(program) = &request.commands.first()?.program else { return None };
    let name = program.to_str()?;
    let hint = pool_hint(name, request.options.pool_before_program)?;
    let is_pool = directory::names().is_ok_and(|names| names.iter().any(|known| known == name));
    is_pool.then(|| Refusal::new(format!("there is no pool '{POOL_DEFAULT}' on this host"), hint).of_system())
}

/// Returns how long the job goes on without a client, if it has none.
fn detached(options: &Options) -> Option<Detached> {
    let orphan_ms = options.pool_orphan_time.map(|time| time.as_millis() as u64);
    (options.pool_detach || orphan_ms.is_some()).then_some(Detached { orphan_ms })
}

/// Hands over a job that has no client. Prints its number if it is to be left alone; otherwise attaches this process to it.
fn run_detached(
    pool: &str,
    ask: Ask,
    arguments: Vec<OsString>,
    configfile: Option<(PathBuf, Vec<u8>)>,
    options: &Options,
) -> Result<u8, Refusal> {
    let failed = |error: io::Error| handover::failed(pool, &error);
    let is_left = options.pool_detach;
    if is_left && sys::stdout_was_closed() {
        return Err(Refusal::new("standard output is closed, and --detach prints the job's number there", ""));
    }
    let controller = directory::connect(pool)?;
    let signals = signals().map_err(failed)?;
    let (null, stdin) = (sys::dev_null(false).map_err(failed)?, io::stdin());
    let input = if stdin.is_terminal() { null.as_fd() } else { stdin.as_fd() };
    let description = Description::without_client(arguments, configfile, environment_of_process());
    // The controller opens files in the places of the other two.
    let submission = Submission::new(ask, &description, [input, null.as_fd(), null.as_fd()]).map_err(failed)?;
    send(&submission, &controller).map_err(failed)?;
    // A reader of standard error that stops must not delay signals.
    stderr::allow_thread();
    let mut watch = Watch::new(pool, JOB_WAITS);
    let mut handed = Handed::new(pool);
    let note = |text: &str| {
        if !options.quiet {
            stderr::line(Kind::Report, &format!("scela-run: {text}"));
        }
    };
    loop {
        let mut both = [controller.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut both, watch.pause());
        // Before the signals: the job may have been taken.
        if let Some(packet) = received(&controller) {
            match packet.as_ref().and_then(|packet| unpacked(packet).ok()) {
                Some(ToClient::Detached(job)) if is_left => return print_number(job),
                Some(ToClient::Detached(job)) => {
                    let submitted = Submitted { controller, handed };
                    return attach_with(pool, job, signals, options.quiet, Some(submitted));
                }
                Some(ToClient::Refused(why)) => return Err(handover::refused(pool, &why)),
                // The job waits. That is said before its number.
                Some(_) => {
                    if let Some(Event::Waits(text, _)) = handed.on_controller(packet.as_ref())
                        && !is_left
                    {
                        note(&text);
                    }
                    continue;
                }
                None => return Err(handover::pool_ended(pool, " before the job started")),
            }
        }
        watch.look().into_iter().for_each(|text| note(&text));
        if let Some(signal) = ending_signal(&signals) {
            withdraw(pool, &controller, signal)?;
            note(&format!("{}: the job is withdrawn", sys::signal_name(signal)));
            return Ok(exit::signalled(signal));
        }
    }
}

/// Prints the number of a job that is left alone.
fn print_number(job: JobNumber) -> Result<u8, Refusal> {
    output::print(&format!("{job}\n")).map(|()| EarlyEnd::Done.code()).map_err(|error| {
        let text = format!("job {job} was handed over, but its number cannot be written: {error}");
        Refusal::new(text, "'scela jobs' shows it").of_system()
    })
}

/// Withdraws a job without a client. The controller submits no job whose client has left; one that it has just submitted gets the
/// signal.
fn withdraw(pool: &str, controller: &Packets, signal: i32) -> Result<(), Refusal> {
    let _ = shutdown(controller.as_fd().as_raw_fd(), Shutdown::Both);
    while let Some(packet) = received(controller).flatten() {
        if let Ok(ToClient::Detached(job)) = unpacked(&packet) {
            commands::asked(pool, &ToController::Signal(vec![job], signal))?;
        }
    }
    Ok(())
}

/// Returns the names of nodes that the job avoids, those that are likeliest to fail if there are many. Tells the user on request.
fn avoided(options: &Options) -> Result<BTreeSet<String>, Refusal> {
    if !options.hosts.avoid_faults {
        return Ok(BTreeSet::new());
    }
    let Some(faults) = Faults::of_user(&options.hosts)? else {
        if !options.quiet {
            stderr::line(Kind::Report, &format!("scela-run: {NO_HISTORY}"));
        }
        return Ok(BTreeSet::new());
    };
    let names = sent_names(faults.likeliest());
    if options.verbose > 0 && !names.is_empty() {
        let text = format!("--avoid-faults: the pool uses hosts that may fail last: {}", faults.words_of(&names));
        stderr::line(Kind::Report, &format!("scela-run: {text}"));
    }
    Ok(names.into_iter().map(str::to_owned).collect())
}

/// Returns the first of these names, which fit into a request.
fn sent_names(mut names: Vec<&str>) -> Vec<&str> {
    let mut bytes = 0;
    names.retain(|name| {
        bytes += name.len();
        bytes <= AVOIDED_BYTES_MAX
    });
    names
}

/// Returns how many ranks the job has, if its options or all its commands say so.
fn ranks(request: &JobRequest) -> Option<u32> {
    request.commands.iter().map(|command| command.nprocs).try_fold(0u32, |sum, ranks| Some(sum.saturating_add(ranks?)))
}

/// Returns the words of a command line, for people.
fn words(arguments: &[OsString]) -> String {
    let words: Vec<_> = arguments.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    shown(&words.join(" "), WORDS_CHARS_MAX)
}

/// Blocks the signals that have a meaning for a job, unless this process ignores them, and returns the descriptor that yields them.
pub(super) fn signals() -> io::Result<SignalFd> {
    let ignored = ShellState::recorded().ignored;
    let mut set = SigSet::empty();
    for signal in signals_with_meaning().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
        set.add(Signal::try_from(signal)?);
    }
    set.thread_block()?;
    Ok(SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?)
}

/// Returns whether a signal ends a job.
pub(super) fn is_ending(signal: i32) -> bool {
    ENDING.iter().any(|end| *end as i32 == signal)
}

/// Waits for an answer of the controller, or the end of the connection. Returns a signal that ends this process before. Fails if the controller is stopped.
pub(super) fn wait_or_signal(controller: &Packets, pool: &str, signals: &SignalFd) -> Result<Option<i32>, Refusal> {
    let pause = PollTimeout::try_from(commands::LOOK_TIME).unwrap_or(PollTimeout::MAX);
    loop {
        let mut both = [controller.as_fd(), signals.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut both, pause);
        if both[0].any() == Some(true) {
            return Ok(None);
        }
        if let Some(signal) = ending_signal(signals) {
            return Ok(Some(signal));
        }
        commands::check_runs(pool)?;
    }
}

/// Reads the signals of a process that has no job yet. Returns the first one that ends it. Stops the process after SIGTSTP.
pub(super) fn ending_signal(signals: &SignalFd) -> Option<i32> {
    let mut suspension = Suspension::default();
    while let Ok(Some(info)) = signals.read_signal() {
        let signal = info.ssi_signo as i32;
        if is_ending(signal) {
            return Some(signal);
        }
        Asked::of_signal(signal).into_iter().for_each(|asked| suspension.on_asked(asked));
        if signal == Signal::SIGTSTP as i32 {
            suspension.on_suspended();
        }
    }
    suspension.act();
    None
}

/// Sends the job, again and again if the kernel has too many descriptors of this user on the way.
fn send(submission: &Submission<'_>, controller: &Packets) -> io::Result<()> {
    let began = Instant::now();
    while !submission.send(controller)? {
        if began.elapsed() > SEND_TIME {
            return Err(Errno::ETOOMANYREFS.into());
        }
        thread::sleep(SEND_PAUSE);
    }
    Ok(())
}

/// A terminal whose input this process passes on.
struct Terminal {
    stdin: io::Stdin,
    /// Nonblocking.
    pipe: OwnedFd,
    /// Bytes that were read and not passed on.
    unsent: Vec<u8>,
}

impl Terminal {
    /// Returns the terminal if standard input is one, and the descriptor that the launcher reads instead of it.
    fn of_input() -> io::Result<(Option<Self>, Option<OwnedFd>)> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok((None, None));
        }
        if is_background(stdin.as_fd()) {
            // As without a pool: no rank reads the terminal.
            return Ok((None, Some(sys::dev_null(false)?)));
        }
        // A read in the background then fails instead of stopping this process.
        let mut ttin = SigSet::empty();
        ttin.add(Signal::SIGTTIN);
        ttin.thread_block()?;
        let (theirs, pipe) = sys::input_pipe()?;
        Ok((Some(Self { stdin, pipe, unsent: Vec::new() }), Some(theirs)))
    }

    /// Passes on the input that is there, as far as the pipe has room. Returns false at the end of the input, or if the launcher
    /// reads no more.
    fn pass_on(&mut self) -> bool {
        if self.unsent.is_empty() {
            let mut bytes = vec![0; TERMINAL_BYTES];
            match read(io::stdin(), &mut bytes) {
                Ok(count @ 1..) => {
                    bytes.truncate(count);
                    self.unsent = bytes;
                }
                Err(Errno::EINTR | Errno::EAGAIN) => return true,
                // A process that has just become a background process.
                Err(Errno::EIO) if is_background(io::stdin().as_fd()) => return true,
                Ok(_) | Err(_) => return false,
            }
        }
        match write(&self.pipe, &self.unsent) {
            Ok(count) => {
                self.unsent.drain(..count);
                true
            }
            Err(error) => matches!(error, Errno::EINTR | Errno::EAGAIN),
        }
    }

    /// Returns the descriptor to wait for, and for what; `None` while this process is in the background.
    fn waits_for(&self) -> Option<PollFd<'_>> {
        if !self.unsent.is_empty() {
            return Some(PollFd::new(self.pipe.as_fd(), PollFlags::POLLOUT));
        }
        let stdin = self.stdin.as_fd();
        (!is_background(stdin)).then(|| PollFd::new(stdin, PollFlags::POLLIN))
    }
}

/// A job that was handed over.
struct Client {
    /// The connection to the controller, until the job has started.
    controller: Option<Packets>,
    line: Packets,
    handed: Handed,
    watch: Watch,
    signals: SignalFd,
    terminal: Option<Terminal>,
    is_quiet: bool,
}

impl Client {
    /// Waits until the job has ended or is refused. Returns its exit code.
    fn wait(&mut self, pool: &str) -> Result<u8, Refusal> {
        let (mut suspension, mut asked_to_end) = (Suspension::default(), 0);
        let mut has_lost_pool = false;
        loop {
            self.wait_for_event()
                .map_err(|error| Refusal::new(format!("waiting for the job failed: {error}"), "").of_system())?;
            // Before the signals: the job may have begun.
            let controller = self.controller.as_ref().and_then(received);
            if controller.is_some() {
                self.watch.on_answer();
            } else if self.controller.is_some()
                && !self.handed.has_started()
                && let Some(text) = self.watch.look()
            {
                self.note(&text);
            }
            let from_controller = controller.and_then(|packet| self.handed.on_controller(packet.as_ref()));
            let from_line = received(&self.line);
            if has_lost_pool && matches!(from_line, Some(None)) && !self.handed.has_started() {
                return Err(handover::pool_ended(pool, " before the job started"));
            }
            let from_launcher = from_line.and_then(|packet| self.handed.on_launcher(packet.as_ref()));
            for event in [from_controller, from_launcher].into_iter().flatten() {
                match event {
                    Event::Started => self.controller = None,
                    Event::Waits(text, _) => self.note(&text),
                    Event::Refused(JobRefusal::Signalled(signal)) => {
                        self.note(&format!("{}: the job was ended before it started", sys::signal_name(signal)));
                        return Ok(exit::signalled(signal));
                    }
                    Event::Refused(why) => return Err(handover::refused(pool, &why)),
                    // The launcher may have begun the job before: then it says so, else the line ends.
                    Event::PoolEnded => (self.controller, has_lost_pool) = (None, true),
                    Event::Suspended => suspension.on_suspended(),
                    Event::NotLaunched(why) => {
                        return Err(Refusal::new(handover::not_launched_text(&why), "").of_system());
                    }
                    // The launcher has reported it to the same streams.
                    Event::OutputCut(_) => {}
                    Event::Ended(code) => return Ok(code),
                    Event::Lost => {
                        stderr::line(Kind::Report, &self.handed.lost_text());
                        return Ok(exit::LOST);
                    }
                }
            }
            while let Ok(Some(info)) = self.signals.read_signal() {
                let signal = info.ssi_signo as i32;
                Asked::of_signal(signal).into_iter().for_each(|asked| suspension.on_asked(asked));
                let has_started = self.handed.has_started();
                if !has_started && is_ending(signal) {
                    // The end of the connection withdraws the job, or ends it if it has just started.
                    self.note(&format!("{}: the job is withdrawn", sys::signal_name(signal)));
                    return Ok(exit::signalled(signal));
                }
                if !has_started && signal == Signal::SIGTSTP as i32 {
                    // It has no ranks.
                    suspension.on_suspended();
                    continue;
                }
                if is_ending(signal) {
                    asked_to_end += 1;
                    if asked_to_end > ENDS_WITHOUT_ANSWER {
                        let text = "the launcher of the job does not answer; the job ends when it does";
                        stderr::line(Kind::Report, &format!("scela-run: error: {text}"));
                        return Ok(exit::signalled(signal));
                    }
                }
                let _ = self.line.send(&packed(&ToJob::Signal(signal)), &[], false);
            }
            suspension.act();
        }
    }

    fn wait_for_event(&mut self) -> io::Result<()> {
        let input = self.terminal.as_ref().map(Terminal::waits_for);
        let pause = match (matches!(input, Some(None)), &self.controller) {
            (true, _) => PollTimeout::from(BACKGROUND_PAUSE_MS),
            (false, Some(_)) => self.watch.pause(),
            (false, None) => PollTimeout::NONE,
        };
        let readable = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut waited = vec![readable(self.signals.as_fd()), readable(self.line.as_fd())];
        waited.extend(self.controller.as_ref().map(|controller| readable(controller.as_fd())));
        let others = waited.len();
        waited.extend(input.flatten());
        match poll(&mut waited, pause) {
            Err(Errno::EINTR) => return Ok(()),
            polled => drop(polled?),
        }
        let has_input = waited.get(others).is_some_and(|input| input.any() == Some(true));
        drop(waited);
        if has_input {
            // Closing the pipe ends the ranks' input.
            self.terminal.take_if(|terminal| !terminal.pass_on());
        }
        Ok(())
    }

    fn note(&self, text: &str) {
        if !self.is_quiet {
            stderr::line(Kind::Report, &format!("scela-run: {text}"));
        }
    }
}

/// Returns the next packet of a connection, or `Some(None)` at its end; `None` if there is none now.
pub(super) fn received(packets: &Packets) -> Option<Option<Packet>> {
    match packets.receive(false) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
        received => Some(received.ok().flatten()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_request_names_nodes_to_be_avoided_only_if_the_user_asks_for_it() {
        let place = tempfile::tempdir().unwrap();
        let (now, history) = (SystemTime::now().duration_since(UNIX_EPOCH).unwrap(), place.path().join("faults"));
        std::fs::write(&history, format!("scela-faults 1\n{} n1\n", now.as_secs())).unwrap();
        let mut options = Options { quiet: true, ..Options::default() };
        options.hosts.fault_history = Some(history);
        assert_eq!(avoided(&options).unwrap(), BTreeSet::new());
        options.hosts.avoid_faults = true;
        assert_eq!(avoided(&options).unwrap(), BTreeSet::from(["n1".to_owned()]));
    }

    #[test]
    fn a_request_names_as_many_nodes_to_be_avoided_as_fit() {
        let name = "n".repeat(1024);
        assert_eq!(sent_names(vec![&name; 17]).len(), 16);
        assert_eq!(sent_names(vec!["a", &"n".repeat(16 * 1024), "b"]), ["a"]);
    }
}
