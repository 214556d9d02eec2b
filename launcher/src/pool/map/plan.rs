//! Decides which command of a list starts when, what is printed when, and how the map ends. A value without clocks, processes and
//! files.
//!
//! Commands are named by their indexes in the list. They start in the order of the list; one that is run again starts before all
//! later ones. Each command that has ended is printed once, one at a time, in the order of the list, or in the order of their
//! ends. Commands that are not started any more are passed over.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::exit;

/// How many signals that end the jobs are passed on: the second one kills them.
const SIGNALS_PASSED: u32 = 2;

/// A time since the map began.
pub(super) type Time = Duration;

/// The rules of a map, as typed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rules {
    /// How many commands run at a time. At least 1.
    pub(super) at_once: usize,
    /// How often a command that fails is run again.
    pub(super) retries: u32,
    /// Print in the order of the list.
    pub(super) in_order: bool,
    /// Start no more commands once one has failed.
    pub(super) halts: bool,
}

/// Something that has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Input {
    /// The map begins.
    Begin,
    /// An attempt at a command has started: until now it may have waited in the pool.
    Started(usize),
    /// An attempt at a command has ended.
    Ended {
        /// The command.
        command: usize,
        /// Its exit code.
        code: u8,
        /// It has written nothing.
        is_silent: bool,
    },
    /// An attempt at a command was withdrawn before it started.
    NotStarted(usize),
    /// The output of a command was printed.
    Printed,
    /// A signal asks for the end.
    Signal(i32),
    /// The pool has ended, or accepts no more jobs.
    PoolLost,
    /// The output or the journal cannot be written any more; the map ends with this code.
    OutputLost(u8),
}

/// Something to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// Submit the command. The output of an earlier attempt is dropped.
    Start(usize),
    /// Write the journal's row of a command that has ended. A success is recorded once its output was printed: what is recorded
    /// as a success is never run again, so its output would be lost.
    Record {
        /// The command.
        command: usize,
        /// Its exit code.
        code: u8,
        /// How often it was run.
        attempts: u32,
        /// When its last attempt has started.
        began: Time,
        /// When that attempt has ended.
        ended: Time,
    },
    /// Keep the output of a command that has ended until it is printed.
    Hold(usize),
    /// Print the output of a command.
    Print(usize),
    /// Drop the output of a command.
    Drop(usize),
    /// Pass a signal on to all commands that run, and withdraw those that wait in the pool.
    Signal(i32),
    /// Nothing is left to be done.
    Over,
}

/// The state of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// To be started.
    Waits,
    /// Submitted, or started, at this time.
    Runs(Time),
    /// It has ended, and its output was not printed. The begin and the end of its last attempt, if they are to be recorded then.
    Ended(Option<(Time, Time)>),
    /// Nothing is left to be done for it.
    Over,
}

/// A command.
#[derive(Clone, Copy, Debug)]
struct Command {
    state: State,
    /// How often it was started.
    attempts: u32,
    /// The exit code of its last attempt that has ended.
    code: u8,
}

/// Why no more commands are started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    /// A command has failed.
    Failure,
    /// The pool has ended.
    Pool,
    /// The output cannot be written; the exit code.
    Output(u8),
    /// A signal has arrived.
    Signal(i32),
}

/// The progress of the commands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    /// All commands of the list, without those that `--resume` skips.
    pub(super) all: usize,
    /// Those that have succeeded.
    pub(super) succeeded: usize,
    /// Those that have failed.
    pub(super) failed: usize,
    /// Those that were submitted.
    pub(super) running: usize,
    /// Those that are to be started.
    pub(super) waiting: usize,
}

/// The commands of a list.
#[derive(Debug)]
pub(super) struct Plan {
    rules: Rules,
    commands: Vec<Command>,
    waiting: BTreeSet<usize>,
    running: usize,
    succeeded: usize,
    /// The commands that have failed, by their exit codes.
    failed: BTreeMap<u8, Vec<usize>>,
    /// Commands that have ended, in the order of their ends, if they are printed in that order.
    ready: VecDeque<usize>,
    /// The first command that was not printed, if they are printed in the order of the list.
    next: usize,
    printing: Option<usize>,
    stop: Option<Stop>,
    /// Signals that have arrived.
    signals: u32,
    /// Nothing is printed any more.
    drops_output: bool,
    /// The commands that have succeeded and whose outputs were dropped.
    dropped: usize,
    is_over: bool,
}

impl Plan {
    /// Plans the commands for which `skipped` is false.
    pub(super) fn new(rules: Rules, skipped: &[bool]) -> Self {
        let state = |is_skipped: &bool| if *is_skipped { State::Over } else { State::Waits };
        Self {
            rules,
            commands: skipped.iter().map(|skipped| Command { state: state(skipped), attempts: 0, code: 0 }).collect(),
            waiting: (0..skipped.len()).filter(|index| !skipped[*index]).collect(),
            running: 0,
            succeeded: 0,
            failed: BTreeMap::new(),
            ready: VecDeque::new(),
            next: 0,
            printing: None,
            stop: None,
            signals: 0,
            drops_output: false,
            dropped: 0,
            is_over: false,
        }
    }

    /// Handles an input and appends what is to be done.
    pub(super) fn handle(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        let mut ended = None;
        match input {
            Input::Begin => {}
            Input::Started(command) => {
                if let State::Runs(since) = &mut self.commands[command].state {
                    *since = now;
                }
            }
            Input::Ended { command, code, is_silent } => ended = self.end(now, command, code, is_silent, actions),
            Input::NotStarted(command) => self.put_back(command),
            Input::Printed => {
                if let Some(command) = self.printing.take() {
                    self.end_print(command, actions);
                }
            }
            Input::Signal(signal) => {
                self.signals += 1;
                self.stop(Stop::Signal(signal));
                if self.signals <= SIGNALS_PASSED {
                    actions.push(Action::Signal(signal));
                }
            }
            Input::PoolLost => self.stop(Stop::Pool),
            Input::OutputLost(code) => {
                self.stop(Stop::Output(code));
                if !std::mem::replace(&mut self.drops_output, true) {
                    self.drop_outputs(actions);
                    actions.push(Action::Signal(Signal::SIGTERM as i32));
                }
            }
        }
        self.go_on(now, actions);
        // Commands that are printed at once need not be kept.
        if let Some(command) = ended.filter(|command| self.printing != Some(*command)) {
            actions.push(Action::Hold(command));
        }
    }

    /// Ends an attempt. Returns the command if its output is to be printed.
    fn end(&mut self, now: Time, index: usize, code: u8, is_silent: bool, actions: &mut Vec<Action>) -> Option<usize> {
        let command = &mut self.commands[index];
        let State::Runs(began) = command.state else { return None };
        self.running -= 1;
        command.code = code;
        if code != 0 && command.attempts <= self.rules.retries && self.stop.is_none() {
            command.state = State::Waits;
            self.waiting.insert(index);
            return None;
        }
        let is_recorded = code != 0 || is_silent;
        command.state = State::Ended((!is_recorded).then_some((began, now)));
        if is_recorded {
            actions.push(Action::Record { command: index, code, attempts: command.attempts, began, ended: now });
        }
        if code == 0 {
            self.succeeded += 1;
        } else {
            self.failed.entry(code).or_default().push(index);
            if self.rules.halts {
                self.stop(Stop::Failure);
            }
        }
        if self.drops_output {
            self.dropped += usize::from(!is_recorded);
            self.commands[index].state = State::Over;
            actions.push(Action::Drop(index));
            return None;
        }
        if !self.rules.in_order {
            self.ready.push_back(index);
        }
        Some(index)
    }

    /// Notes that an output was printed, and records its command unless that was done when it ended.
    fn end_print(&mut self, index: usize, actions: &mut Vec<Action>) {
        let Command { state, attempts, code } = &mut self.commands[index];
        if let State::Ended(Some((began, ended))) = std::mem::replace(state, State::Over) {
            actions.push(Action::Record { command: index, code: *code, attempts: *attempts, began, ended });
        }
    }

    /// Takes back an attempt that has not started. If there was one before and no other follows, the command has failed.
    fn put_back(&mut self, index: usize) {
        let command = &mut self.commands[index];
        if let State::Runs(_) = command.state {
            self.running -= 1;
            command.attempts -= 1;
            if command.attempts > 0 && self.stop.is_some() {
                command.state = State::Over;
                self.failed.entry(command.code).or_default().push(index);
            } else {
                command.state = State::Waits;
                self.waiting.insert(index);
            }
        }
    }

    /// Starts no more commands. The first reason decides the exit code, except that a signal comes before all others, and the failure
    /// of a command after them.
    fn stop(&mut self, why: Stop) {
        let is_weaker = match self.stop {
            None | Some(Stop::Failure) => true,
            Some(Stop::Pool | Stop::Output(_)) => matches!(why, Stop::Signal(_)),
            Some(Stop::Signal(_)) => false,
        };
        if is_weaker {
            self.stop = Some(why);
        }
    }

    /// Drops the outputs of all commands that have ended. Those that have succeeded are not recorded.
    fn drop_outputs(&mut self, actions: &mut Vec<Action>) {
        self.printing = None;
        self.ready.clear();
        for (index, command) in self.commands.iter_mut().enumerate() {
            if let State::Ended(unrecorded) = command.state {
                self.dropped += usize::from(unrecorded.is_some());
                command.state = State::Over;
                actions.push(Action::Drop(index));
            }
        }
    }

    fn go_on(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.is_over {
            return;
        }
        while self.stop.is_none() && self.running < self.rules.at_once {
            let Some(index) = self.waiting.pop_first() else { break };
            let command = &mut self.commands[index];
            (command.state, command.attempts) = (State::Runs(now), command.attempts + 1);
            self.running += 1;
            actions.push(Action::Start(index));
        }
        if self.printing.is_none() {
            self.printing = if self.rules.in_order { self.next_in_order() } else { self.ready.pop_front() };
            actions.extend(self.printing.map(Action::Print));
        }
        let has_more = self.running > 0 || self.printing.is_some() || (self.stop.is_none() && !self.waiting.is_empty());
        if !has_more || self.signals > SIGNALS_PASSED {
            self.is_over = true;
            actions.push(Action::Over);
        }
    }

    /// Returns the first command that was not printed, if it has ended.
    fn next_in_order(&mut self) -> Option<usize> {
        loop {
            match self.commands.get(self.next)?.state {
                State::Ended(_) => return Some(self.next),
                State::Runs(_) => return None,
                State::Waits if self.stop.is_none() => return None,
                State::Waits | State::Over => self.next += 1,
            }
        }
    }

    /// Returns how far the commands are.
    pub(super) fn counts(&self) -> Counts {
        let (succeeded, running, waiting) = (self.succeeded, self.running, self.waiting.len());
        let failed = self.failed.values().map(Vec::len).sum();
        Counts { all: succeeded + failed + running + waiting, succeeded, failed, running, waiting }
    }

    /// Returns how many commands have succeeded without their outputs being printed, once the map is over.
    pub(super) fn unprinted(&self) -> usize {
        let is_left = |command: &&Command| matches!(command.state, State::Ended(Some(_)));
        self.dropped + self.commands.iter().filter(is_left).count()
    }

    /// Returns the commands that have failed, by their exit codes, in the order of their ends.
    pub(super) fn failed(&self) -> &BTreeMap<u8, Vec<usize>> {
        &self.failed
    }

    /// Returns the exit code of the map, once it is over.
    pub(super) fn code(&self) -> u8 {
        match self.stop {
            Some(Stop::Signal(signal)) => exit::signalled(signal),
            Some(Stop::Output(code)) => code,
            Some(Stop::Pool) => exit::LOST,
            Some(Stop::Failure) | None => exit::failed_commands(self.counts().failed),
        }
    }

    /// Checks what always holds.
    #[cfg(test)]
    fn check_invariants(&self) {
        let is = |wanted: fn(&State) -> bool| self.commands.iter().filter(|command| wanted(&command.state)).count();
        assert_eq!(self.running, is(|state| matches!(state, State::Runs(_))));
        assert_eq!(self.waiting.len(), is(|state| *state == State::Waits));
        assert!(self.running <= self.rules.at_once);
        assert!(self.commands.iter().all(|command| command.attempts <= self.rules.retries + 1));
        assert!(self.printing.is_none_or(|index| matches!(self.commands[index].state, State::Ended(_))));
    }
}

#[cfg(test)]
mod tests;
