//! A run in progress, and the actions of a test on it.

use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::capture::Capture;
use crate::outcome::{Outcome, excerpt};
use crate::process::Process;
use crate::run::{Input, Run};
use crate::waiting::{before, event_timeout, eventually};
use crate::world::World;

/// How long streams may stay open after the launcher has exited. The launcher's end closes them, but the thread that
/// reads them may still have data to read.
const STREAMS_TIME: Duration = Duration::from_secs(60);
/// How long processes may exist on other hosts, and commands that started agents, after the launcher has exited.
const REMOTE_END_TIME: Duration = Duration::from_secs(60);

/// See [`Run::spawn`].
#[derive(Debug)]
pub struct Running {
    world: World,
    child: Child,
    /// Standard input, if [`Run::stdin_pipe`] was called.
    pub stdin: Option<ChildStdin>,
    unread: Option<ChildStdout>,
    stdout: Capture,
    stderr: Capture,
    since: Instant,
    deadline: Instant,
    command: String,
    is_over: bool,
}

impl Running {
    #[track_caller]
    pub(crate) fn start(run: Run) -> Self {
        let mut command = run.command();
        // A group of its own, so that a signal to the run's group does not reach the test.
        command.process_group(0);
        let since = Instant::now();
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => panic!("failed to start {command:?}: {error}"),
        };
        let Run { world, stdin: input, deadline, is_read, .. } = run;
        let mut stdin = child.stdin.take();
        if let Input::Bytes(bytes) = input
            && let Some(mut stdin) = stdin.take()
        {
            // A run that closes its standard input before the end is no failure here.
            thread::spawn(move || drop(stdin.write_all(&bytes)));
        }
        let mut unread = child.stdout.take();
        let stdout = match unread.take_if(|_| is_read) {
            Some(stdout) => Capture::of(stdout),
            None => Capture::none(),
        };
        let stderr = child.stderr.take().map_or_else(Capture::none, Capture::of);
        let (deadline, command, is_over) = (since + deadline, format!("{command:?}"), false);
        Self { world, child, stdin, unread, stdout, stderr, since, deadline, command, is_over }
    }

    /// Returns the world of the run.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the launcher's process.
    #[track_caller]
    pub fn launcher(&self) -> Process {
        Process::of(self.child.id() as i32).unwrap_or_else(|| self.fail("the launcher has exited"))
    }

    /// Returns the captured standard output.
    pub fn stdout(&self) -> &Capture {
        &self.stdout
    }

    /// Returns the captured standard error.
    pub fn stderr(&self) -> &Capture {
        &self.stderr
    }

    /// Starts to read the output of an [`unread`](Run::unread) run.
    pub fn read_output(&mut self) {
        if let Some(stdout) = self.unread.take() {
            self.stdout = Capture::of(stdout);
        }
    }

    /// Returns the output of an [`unread`](Run::unread) run, which the test then reads or closes.
    pub fn take_output(&mut self) -> Option<ChildStdout> {
        self.unread.take()
    }

    /// Waits until standard output contains `text`.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> &Self {
        self.wait_for_times(text, 1)
    }

    /// Waits until standard output contains `text` a number of times, for example once from each rank.
    #[track_caller]
    pub fn wait_for_times(&self, text: &str, times: usize) -> &Self {
        if !self.stdout.wait(event_timeout(), |said| said.matches(text).count() >= times) {
            self.fail(&format!("standard output never contained {text:?} {times} times"));
        }
        self
    }

    /// Waits until standard error contains `text`.
    #[track_caller]
    pub fn wait_for_error(&self, text: &str) -> &Self {
        if !self.stderr.wait(event_timeout(), |said| said.contains(text)) {
            self.fail(&format!("standard error never contained {text:?}"));
        }
        self
    }

    /// Waits until `condition` returns a value.
    #[track_caller]
    pub fn wait_until<T>(&self, what: &str, condition: impl FnMut() -> Option<T>) -> T {
        eventually(condition).unwrap_or_else(|| self.fail(&format!("timeout: {what}")))
    }

    /// Waits until a rank has executed its program, and returns its process. The launcher may have reported the rank as
    /// started before that.
    #[track_caller]
    pub fn rank(&self, number: u32) -> Process {
        self.world.rank(number)
    }

    /// Waits until `count` ranks have executed their programs, and returns their processes, by rank.
    #[track_caller]
    pub fn ranks(&self, count: u32) -> Vec<Process> {
        self.world.all_ranks(count)
    }

    /// Sends a signal to the launcher, as [`Process::signal`] does.
    #[track_caller]
    pub fn signal(&self, signal: Signal) -> &Self {
        // The child has not been waited for, so its pid has not been reused.
        self.launcher().signal(signal);
        self
    }

    /// Waits for the end. Panics if the deadline expires or if the run leaves anything behind.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        let status = self.wait();
        let outcome = self.outcome(status);
        let mut left = self.world.leftovers();
        // A helper process of srun exits shortly after srun.
        let may_end_later = |left: &str| self.world.has_hosts() || left.contains("srun");
        if left.as_deref().is_some_and(may_end_later) {
            // Guardians on other nodes exit right after their agents. The launcher has noticed the agents' exits only.
            before(Instant::now() + REMOTE_END_TIME, || self.world.leftovers().is_none().then_some(()));
            left = self.world.leftovers();
        }
        if let Some(left) = left {
            self.world.end_all();
            self.is_over = true;
            panic!("processes or files were left behind:\n{left}{outcome}");
        }
        self.is_over = true;
        outcome
    }

    /// Waits for the end of a launcher that cannot clean up, then until no process is left.
    #[track_caller]
    pub fn finish_killed(mut self) -> Outcome {
        let status = self.wait();
        if eventually(|| self.world.leftovers().is_none().then_some(())).is_none() {
            self.fail("processes or files are left after the timeout");
        }
        let outcome = self.outcome(status);
        self.is_over = true;
        outcome
    }

    #[track_caller]
    fn wait(&mut self) -> ExitStatus {
        self.stdin = None;
        self.read_output();
        let child = &mut self.child;
        match before(self.deadline, || child.try_wait().transpose()) {
            Some(Ok(status)) => status,
            Some(Err(error)) => self.fail(&format!("it cannot be waited for: {error}")),
            None => self.fail(&format!("it did not end in {:?}", self.since.elapsed())),
        }
    }

    #[track_caller]
    fn outcome(&self, status: ExitStatus) -> Outcome {
        let took = self.since.elapsed();
        if !self.stdout.wait_end(STREAMS_TIME) || !self.stderr.wait_end(STREAMS_TIME) {
            self.fail("its output is still held open after its end");
        }
        Outcome::new(status, self.stdout.bytes(), self.stderr.bytes(), took, self.command.clone())
    }

    /// Panics with everything known about the run.
    #[track_caller]
    pub fn fail(&self, what: &str) -> ! {
        panic!(
            "{what}\n--- {}\n--- running for {:?}\n--- processes\n{}--- stdout\n{}\n--- stderr\n{}\n",
            self.command,
            self.since.elapsed(),
            self.world.listing(),
            excerpt(&self.stdout.bytes()),
            excerpt(&self.stderr.bytes())
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_over {
            let _ = self.child.kill();
            let _: io::Result<ExitStatus> = self.child.wait();
            self.world.end_all();
        }
    }
}
