//! A terminal with an interactive shell, and a simulated user.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};

use nix::pty::openpty;

use crate::capture::Capture;
use crate::run::Run;
use crate::waiting::event_timeout;
use crate::world::World;

/// The shell's prompt. It is set as two words that the shell joins, so that the echo of setting it does not look like
/// the prompt.
const PROMPT: (&str, &str) = ("re", "ady> ");

/// An interactive shell on a terminal of its own.
#[derive(Debug)]
pub struct Terminal {
    world: World,
    keyboard: File,
    screen: Capture,
    shell: Child,
    seen: usize,
}

impl Terminal {
    /// Opens a terminal with the environment of `run` and types the command of the run without pressing Enter.
    pub fn open(run: Run) -> Self {
        let pty = openpty(None, None).expect("a pseudo-terminal");
        let side = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
        let mut command = Command::new("setsid");
        command.args(["--ctty", "bash", "--norc", "--noprofile", "--noediting", "-i"]);
        command.env("TERM", "dumb");
        run.set_environment(&mut command);
        command.env("PS1", "").env_remove("PROMPT_COMMAND");
        command.stdin(side(&pty.slave)).stdout(side(&pty.slave)).stderr(pty.slave);
        let shell = command.spawn().expect("setsid and bash are installed");
        let words = run.words();
        let typed: Vec<_> = words.iter().map(|word| quoted(&word.to_string_lossy())).collect();
        let screen = Capture::of(File::from(side(&pty.master)));
        let mut terminal = Self { world: run.world, keyboard: File::from(pty.master), screen, shell, seen: 0 };
        terminal.enter(&format!("stty -echoctl; PS1={}''{}", PROMPT.0, quoted(PROMPT.1)));
        terminal.wait_for_prompt();
        terminal.echoed(&typed.join(" "));
        terminal
    }

    /// Returns the world of the run.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Returns the captured output of the terminal.
    pub fn screen(&self) -> &Capture {
        &self.screen
    }

    /// Types text.
    pub fn type_in(&mut self, text: &str) -> &mut Self {
        self.keyboard.write_all(text.as_bytes()).expect("a terminal takes what is typed");
        self
    }

    /// Types text and Enter. Later waits ignore what was on the screen before.
    #[track_caller]
    pub fn enter(&mut self, text: &str) -> &mut Self {
        self.echoed(text).type_in("\n")
    }

    /// Types text and waits until the terminal has echoed it, so that the echo is not taken for an answer to later
    /// input.
    #[track_caller]
    fn echoed(&mut self, text: &str) -> &mut Self {
        self.type_in(text).wait_for(text);
        self.seen = self.screen.text().len();
        self
    }

    /// Waits until `text` has appeared since the last [`Terminal::enter`].
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) -> &mut Self {
        self.wait_for_times(text, 1)
    }

    /// Waits until `text` has appeared a number of times since the last [`Terminal::enter`].
    #[track_caller]
    pub fn wait_for_times(&mut self, text: &str, times: usize) -> &mut Self {
        let seen = self.seen;
        let there = |screen: &str| screen.get(seen..).is_some_and(|new| new.matches(text).count() >= times);
        if !self.screen.wait(event_timeout(), there) {
            self.fail(&format!("{text:?} did not appear {times} times"));
        }
        self
    }

    /// Waits until the shell prints its prompt.
    #[track_caller]
    pub fn wait_for_prompt(&mut self) -> &mut Self {
        self.wait_for(&format!("{}{}", PROMPT.0, PROMPT.1))
    }

    /// Returns the exit code of the last command.
    #[track_caller]
    pub fn code(&mut self) -> i32 {
        self.enter("echo co''de=$?.");
        self.wait_for("code=").wait_for_prompt();
        let screen = self.screen.text();
        let code = screen.rsplit("code=").next().and_then(|rest| rest.split('.').next());
        code.and_then(|code| code.parse().ok()).unwrap_or_else(|| self.fail("no code was shown"))
    }

    /// Exits the shell and asserts that no process is left.
    #[track_caller]
    pub fn close(mut self) -> String {
        let shell = self.shell.id() as i32;
        if self.world.processes().iter().any(|process| process.pid != shell) {
            self.fail("processes or files were left behind");
        }
        self.enter("exit");
        self.screen.text()
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        panic!("{what}\n--- processes\n{}--- screen\n{}\n", self.world.listing(), self.screen.text())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.shell.kill();
        let _ = self.shell.wait();
        self.world.end_all();
    }
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}
