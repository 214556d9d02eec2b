//! Carries out what [`Plan`] decides.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nla::sys::signal_name;
use nla::tasks::{Panics, Tasks};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, LocalSet};
use tokio::time::{Interval, MissedTickBehavior, interval_at};
use tracing::Span;

use super::attempt::{self, End, Line};
use super::journal::Row;
use super::journal_file::JournalFile;
use super::list::List;
use super::plan::{Action, Input, Plan, Rules};
use super::printer::Printer;
use super::spool::{Held, Output, Spool};
use super::summary;
use super::waits::Waits;
use crate::exit;
use crate::pool::message::packed;
use crate::pool::{directory, handover};
use crate::run::front::{Front, ToJob};
use crate::run::signals::{Asked, Signals};
use crate::run::stderr::{self, Kind};
use crate::run::suspension::Suspension;

/// The longest time for which a killed controller may keep a connection open, in milliseconds.
const DYING_MS: u16 = 200;
/// Events of attempts that wait for the actor. A task with more to tell waits.
const EVENTS: usize = 1024;
/// The time between two updates of the progress on a terminal, and elsewhere.
const PROGRESS_PAUSE: Duration = Duration::from_millis(200);
const PROGRESS_LINES_PAUSE: Duration = Duration::from_secs(5);

/// The parts of a map.
pub(super) struct Setup {
    /// The pool's name.
    pub(super) pool: String,
    /// The commands.
    pub(super) list: List,
    /// The commands that are not run, because they have succeeded before.
    pub(super) skipped: Vec<bool>,
    /// The rules, as typed.
    pub(super) rules: Rules,
    /// How many ranks each command has.
    pub(super) ranks: u32,
    /// Progress is reported also if standard error is not a terminal.
    pub(super) progress: bool,
    /// The journal.
    pub(super) journal: Option<JournalFile>,
}

/// Runs all commands. Returns the exit code.
pub(super) fn run(setup: Setup) -> io::Result<u8> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = LocalSet::new().block_on(&runtime, live(setup));
    runtime.shutdown_background();
    ended
}

async fn live(setup: Setup) -> io::Result<u8> {
    let mut panics = Panics::new("map");
    let tasks = panics.tasks();
    let signals = Signals::new(&Front::Own, &tasks)?;
    let (events, incoming) = mpsc::channel(EVENTS);
    // One output is printed at a time.
    let (done, printed) = mpsc::channel(1);
    let mut actor = Actor {
        plan: Plan::new(setup.rules, &setup.skipped),
        waits: Rc::new(RefCell::new(Waits::new(&setup.pool))),
        pool: setup.pool.into(),
        list: Rc::new(setup.list),
        ranks: setup.ranks,
        journal: setup.journal,
        began: Instant::now(),
        began_at: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default(),
        directory: std::env::temp_dir(),
        signals,
        suspension: Suspension::default(),
        events,
        incoming,
        printed,
        printer: Printer::new(tasks.clone(), done),
        tasks,
        attempts: BTreeMap::new(),
        outputs: HashMap::new(),
        held: Held::default(),
        prints_held: false,
        has_lost_pool: false,
        has_lost_output: false,
        is_over: false,
    };
    let progress = Progress::new(setup.progress);
    let watched = panics.watch("map", Box::pin(actor.live(progress))).await;
    if let Err(panic) = watched {
        // Its jobs end with their lines.
        stderr::line(Kind::Report, &format!("scela: error: the commands were given up, because {panic}"));
        return Ok(exit::BUG);
    }
    Ok(actor.end())
}

/// An attempt that runs.
struct Attempt {
    line: Rc<Line>,
    task: AbortHandle,
}

/// An output, and whether it is in the file of those that wait.
struct Kept {
    output: Output,
    is_held: bool,
}

/// An event of an attempt at a command.
enum Attempted {
    Started(usize),
    Ended(usize, End, Spool),
}

/// Everything that the actor waits for.
enum Event {
    Asked(Asked),
    Attempted(Attempted),
    Printed(io::Result<()>),
    Progress,
}

struct Actor {
    plan: Plan,
    pool: Rc<str>,
    list: Rc<List>,
    ranks: u32,
    journal: Option<JournalFile>,
    began: Instant,
    /// The same, since 1970.
    began_at: Duration,
    /// The place of outputs that wait.
    directory: PathBuf,
    signals: Signals,
    suspension: Suspension,
    events: mpsc::Sender<Attempted>,
    incoming: mpsc::Receiver<Attempted>,
    printed: mpsc::Receiver<io::Result<()>>,
    printer: Printer,
    tasks: Tasks,
    attempts: BTreeMap<usize, Attempt>,
    /// Watches the controller while attempts wait for it.
    waits: Rc<RefCell<Waits>>,
    /// Outputs of commands that have ended, but for empty ones.
    outputs: HashMap<usize, Kept>,
    held: Held,
    /// The output that is being printed is a held one.
    prints_held: bool,
    has_lost_pool: bool,
    /// It was reported that the output or the journal cannot be written.
    has_lost_output: bool,
    is_over: bool,
}

impl Actor {
    async fn live(&mut self, mut progress: Progress) {
        self.handle(Input::Begin);
        while !self.is_over {
            let event = tokio::select! {
                biased;
                Some(asked) = self.signals.next() => Event::Asked(asked),
                Some(printed) = self.printed.recv() => Event::Printed(printed),
                Some(attempted) = self.incoming.recv() => Event::Attempted(attempted),
                () = progress.due() => Event::Progress,
            };
            match event {
                Event::Asked(asked) => {
                    self.on_asked(asked);
                    while let Some(asked) = self.signals.received().await {
                        self.on_asked(asked);
                    }
                    self.suspension.act();
                }
                Event::Printed(printed) => self.on_printed(printed),
                Event::Attempted(Attempted::Started(command)) => self.handle(Input::Started(command)),
                Event::Attempted(Attempted::Ended(command, end, spool)) => self.on_ended(command, end, spool),
                Event::Progress => progress.show(&self.progress_text()),
            }
        }
        progress.end(&self.progress_text());
    }

    fn progress_text(&self) -> String {
        summary::progress(&self.plan.counts(), self.began.elapsed())
    }

    /// Reports what has failed. Returns the exit code.
    fn end(&self) -> u8 {
        if let Some(text) = summary::summary(&self.plan.counts(), self.plan.unprinted(), self.plan.failed(), &self.list)
        {
            complain(&text);
        }
        self.plan.code()
    }

    fn on_asked(&mut self, asked: Asked) {
        self.suspension.on_asked(asked);
        match asked {
            Asked::End(signal) => {
                let name = signal_name(signal);
                let text = format!("{name}: no more commands are started, and the running ones are ended");
                note(&format!("{text}; Ctrl-C again kills them, and a third time leaves them"));
                self.handle(Input::Signal(signal));
            }
            Asked::Forward(signal) => drop(self.pass_on(signal)),
            Asked::Survey => drop(self.pass_on(Signal::SIGQUIT as i32)),
            Asked::Stop => {
                self.pass_on_to_all(Signal::SIGTSTP);
                self.suspension.on_suspended();
            }
            Asked::Continue => self.pass_on_to_all(Signal::SIGCONT),
            Asked::PoolLost => {}
        }
    }

    /// Passes a signal on to the jobs that have started. Returns the commands of the others.
    fn pass_on(&self, signal: i32) -> Vec<usize> {
        let message = packed(&ToJob::Signal(signal));
        // A job that the signal ends makes room for one that waits: look at all of them before the first signal.
        let (begun, others): (Vec<_>, Vec<_>) = self.attempts.iter().partition(|(_, attempt)| attempt.line.has_begun());
        begun.iter().for_each(|(_, attempt)| attempt.line.send(&message));
        others.into_iter().map(|(command, _)| *command).collect()
    }

    /// Passes a stop, or its end, on to all submitted jobs. Otherwise, a job that has begun unknown to this process would run on while
    /// the map is stopped. One that waits gets both signals in their order when it begins.
    fn pass_on_to_all(&self, signal: Signal) {
        let message = packed(&ToJob::Signal(signal as i32));
        self.attempts.values().for_each(|attempt| attempt.line.send(&message));
    }

    fn on_printed(&mut self, printed: io::Result<()>) {
        let released = if std::mem::take(&mut self.prints_held) { self.held.release() } else { Ok(()) };
        match printed {
            Ok(()) => self.handle(Input::Printed),
            // The exit code of a process that SIGPIPE has killed: the reader has closed the output.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.handle(Input::OutputLost(exit::signalled(Signal::SIGPIPE as i32)));
            }
            Err(error) => self.on_output_lost(&format!("standard output cannot be written: {error}")),
        }
        if let Err(error) = released {
            self.on_output_lost(&self.not_stored_text(&error));
        }
    }

    fn on_ended(&mut self, command: usize, end: End, mut spool: Spool) {
        if self.attempts.remove(&command).is_none() {
            return;
        }
        let (code, text) = match end {
            End::Ended(code) => (code, None),
            End::Failed(code, text) => (code, Some(text)),
            End::Cut(code, why) => {
                self.on_output_lost(&self.not_stored_text(&why));
                // It is to be run again, whatever its own code is.
                (code.max(exit::OUTPUT_LOST), None)
            }
            End::PoolLost(refusal) => {
                self.on_pool_lost(&refusal.with_hint());
                return self.handle(Input::NotStarted(command));
            }
        };
        if code == exit::LOST && self.has_pool_ended() {
            self.on_pool_lost(&handover::pool_ended(&self.pool, "").with_hint());
        }
        let complained = text.map_or(Ok(()), |text| spool.complain(&text));
        let is_silent = match complained.and_then(|()| spool.into_output()) {
            Ok(output) if output.iter().any(|part| part.length > 0) => {
                self.outputs.insert(command, Kept { output, is_held: false });
                false
            }
            Ok(_) => true,
            Err(error) => {
                self.on_output_lost(&self.not_stored_text(&error));
                false
            }
        };
        self.handle(Input::Ended { command, code, is_silent });
    }

    /// Returns whether the pool has ended. A controller that is being killed may still take a connection, which then ends.
    fn has_pool_ended(&self) -> bool {
        let Ok(controller) = directory::connect(&self.pool) else { return true };
        let mut end = [PollFd::new(controller.as_fd(), PollFlags::POLLIN)];
        poll(&mut end, PollTimeout::from(DYING_MS)).is_ok_and(|ended| ended > 0)
    }

    fn on_pool_lost(&mut self, why: &str) {
        if !std::mem::replace(&mut self.has_lost_pool, true) {
            complain(why);
        }
        self.handle(Input::PoolLost);
    }

    fn on_output_lost(&mut self, why: &str) {
        let input = self.output_lost(why);
        self.handle(input);
    }

    /// Reports that the output or the journal cannot be written, unless that was reported before.
    fn output_lost(&mut self, why: &str) -> Input {
        if !std::mem::replace(&mut self.has_lost_output, true) {
            complain(why);
        }
        Input::OutputLost(exit::OUTPUT_LOST)
    }

    fn not_stored_text(&self, error: &dyn Display) -> String {
        format!("outputs cannot be stored in {}: {error}", self.directory.display())
    }

    /// Handles an input, and what follows from carrying it out.
    fn handle(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let mut actions = Vec::new();
            self.plan.handle(self.began.elapsed(), input, &mut actions);
            for action in actions {
                self.carry_out(action, &mut inputs);
            }
        }
    }

    fn carry_out(&mut self, action: Action, inputs: &mut VecDeque<Input>) {
        let failed = match action {
            Action::Start(command) => self.start(command).inspect_err(|_| inputs.push_back(Input::NotStarted(command))),
            Action::Record { command, code, attempts, began, ended } => {
                if let Err(text) = self.record(command, code, attempts, began, ended) {
                    self.journal = None;
                    inputs.push_back(self.output_lost(&text));
                }
                Ok(())
            }
            Action::Hold(command) => self.hold(command),
            Action::Print(command) => match self.outputs.remove(&command) {
                Some(kept) => {
                    self.prints_held = kept.is_held;
                    self.printer.print(kept.output)
                }
                None => {
                    inputs.push_back(Input::Printed);
                    Ok(())
                }
            },
            Action::Drop(command) => match self.outputs.remove(&command) {
                Some(Kept { is_held: true, .. }) => self.held.release(),
                _ => Ok(()),
            },
            Action::Signal(signal) => {
                for command in self.pass_on(signal) {
                    if let Some(attempt) = self.attempts.remove(&command) {
                        attempt.task.abort();
                    }
                    inputs.push_back(Input::NotStarted(command));
                }
                Ok(())
            }
            Action::Over => {
                self.is_over = true;
                Ok(())
            }
        };
        if let Err(error) = failed {
            let text = self.not_stored_text(&error);
            inputs.push_front(self.output_lost(&text));
        }
    }

    fn start(&mut self, command: usize) -> io::Result<()> {
        self.outputs.remove(&command);
        let spool = Spool::new(&self.directory)?;
        let line = Rc::new(Line::default());
        let (pool, list, ranks) = (Rc::clone(&self.pool), Rc::clone(&self.list), self.ranks);
        let (events, own, waits) = (self.events.clone(), Rc::clone(&line), Rc::clone(&self.waits));
        let attempt = async move {
            let words = list.command(command).unwrap_or_default();
            let started = async || drop(events.send(Attempted::Started(command)).await);
            let end = attempt::run(&pool, words, ranks, &spool, &own, &waits, started).await;
            let _ = events.send(Attempted::Ended(command, end, spool)).await;
        };
        let task = self.tasks.spawn("attempt", Span::current(), attempt).abort_handle();
        self.attempts.insert(command, Attempt { line, task });
        Ok(())
    }

    /// Writes a row of the journal.
    fn record(
        &mut self,
        index: usize,
        code: u8,
        attempts: u32,
        began: Duration,
        ended: Duration,
    ) -> Result<(), String> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let milliseconds = |time: Duration| time.as_millis() as u64;
        journal.append(&Row {
            number: index as u32 + 1,
            start_ms: milliseconds(self.began_at + began),
            run_ms: milliseconds(ended.saturating_sub(began)),
            code,
            attempts,
            command: self.list.command(index).unwrap_or_default(),
        })
    }

    fn hold(&mut self, command: usize) -> io::Result<()> {
        let Some(kept) = self.outputs.remove(&command) else { return Ok(()) };
        let output = self.held.hold(kept.output, &self.directory)?;
        self.outputs.insert(command, Kept { output, is_held: true });
        Ok(())
    }
}

/// Reports how far the commands are, from time to time.
struct Progress {
    /// `None` if it is not wanted.
    ticks: Option<Interval>,
    /// One line on a terminal, which is replaced.
    is_terminal: bool,
}

impl Progress {
    fn new(is_asked: bool) -> Self {
        let is_terminal = io::stderr().is_terminal();
        let pause = if is_terminal { PROGRESS_PAUSE } else { PROGRESS_LINES_PAUSE };
        let ticks = (is_terminal || is_asked).then(|| {
            let mut ticks = interval_at(tokio::time::Instant::now() + pause, pause);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            ticks
        });
        Self { ticks, is_terminal }
    }

    async fn due(&mut self) {
        match &mut self.ticks {
            Some(ticks) => drop(ticks.tick().await),
            None => std::future::pending().await,
        }
    }

    fn show(&self, text: &str) {
        if self.is_terminal { stderr::show_progress(text) } else { stderr::line(Kind::Log, text) }
    }

    /// Reports the end.
    fn end(&self, text: &str) {
        stderr::clear_progress();
        if self.ticks.is_some() && !self.is_terminal {
            stderr::line(Kind::Log, text);
        }
    }
}

fn note(text: &str) {
    stderr::line(Kind::Report, &format!("scela: {text}"));
}

fn complain(text: &str) {
    stderr::line(Kind::Report, &format!("scela: error: {text}"));
}
