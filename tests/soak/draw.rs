//! The sessions: how they are drawn from random numbers, written as command lines, and judged.

use std::fmt::{self, Display};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use crate::rank;
use tests::{Random, quote};

/// The maximum number of ranks of a session.
const RANKS_MAX: u32 = 256;
/// The maximum time from the last Ctrl-C to the end of a session. Ranks that do not ignore the signal end at once,
/// and the others get a second Ctrl-C. This is less than the 5 s that a launcher waits for stragglers.
const PROMPT: Duration = Duration::from_secs(4);
/// The maximum number of agents of a session.
const AGENTS_MAX: u32 = 16;

/// One session, or two at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// The sessions, started one right after the other.
    pub(crate) sessions: Vec<Session>,
}

/// One run of the launcher.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    label: String,
    ranks: u32,
    agents: u32,
    fanout: u32,
    /// The core to which all processes of the session are pinned.
    pinned: Option<u32>,
    kind: Kind,
}

/// The event that a session tests.
#[derive(Clone, Debug)]
enum Kind {
    /// Ranks put, fence and get, then end.
    Hello,
    /// Ranks that never use PMI.
    True,
    /// One rank exits with a code.
    Code { rank: u32, code: u8, others: Others },
    /// One rank kills itself with a signal.
    Killed { rank: u32, signal: i32, others: Others },
    /// One rank calls MPI_Abort while the others wait for it in a fence.
    Abort { rank: u32, code: i32 },
    /// One rank exits with 0 while the others wait for it in a fence.
    Left { rank: u32 },
    /// The launcher gets SIGINT at this time after its start, and perhaps a second one at this time after the
    /// first.
    Interrupt { after: Duration, again: Option<Duration>, program: Interrupted },
}

/// The behaviour of the other ranks when one fails.
#[derive(Copy, Clone, Debug)]
enum Others {
    Sleep,
    End,
}

/// The program that is running when the signal arrives.
#[derive(Copy, Clone, Debug)]
enum Interrupted {
    Hello,
    Sleep,
    /// Ranks that ignore TERM and INT.
    Stubborn,
}

impl Round {
    /// Draws the sessions of the round with this number.
    pub(crate) fn draw(random: &mut Random, number: u64) -> Self {
        let count = if random.once_in(8) { 2 } else { 1 };
        let session = |part| Session::draw(random, format!("soak-{}-{number}.{part}", std::process::id()));
        Self { sessions: (1..=count).map(session).collect() }
    }
}

impl Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, session) in self.sessions.iter().enumerate() {
            let and = if position > 0 { " & " } else { "" };
            write!(f, "{and}{session}")?;
        }
        Ok(())
    }
}

impl Session {
    fn draw(random: &mut Random, label: String) -> Self {
        let ranks = random.of_any_size(RANKS_MAX);
        let agents = random.of_any_size(AGENTS_MAX);
        let fanout = random.of(2..=4) as u32;
        let pinned = random.once_in(4).then(|| random.of(0..=i64::from(cores()) - 1) as u32);
        let rank = random.of(0..=i64::from(ranks) - 1) as u32;
        let others = if random.once_in(2) { Others::Sleep } else { Others::End };
        let kind = match random.of(0..=9) {
            0..=1 => Kind::Hello,
            2 => Kind::True,
            3 => Kind::Code { rank, code: random.of(1..=255) as u8, others },
            4 => Kind::Killed { rank, signal: [1, 6, 9, 11, 15][random.of(0..=4) as usize], others },
            5 => Kind::Abort { rank, code: random.of(-3..=1030) as i32 },
            6 if ranks > 1 => Kind::Left { rank },
            _ => {
                let again = random.once_in(3).then(|| Duration::from_millis(random.of(30..=130) as u64));
                let program = match random.of(0..=4) {
                    0..=1 => Interrupted::Hello,
                    // Only a second Ctrl-C, or the end of the grace, ends these ranks.
                    2 if again.is_some() => Interrupted::Stubborn,
                    _ => Interrupted::Sleep,
                };
                Kind::Interrupt { after: Duration::from_millis(random.of(0..=300) as u64), again, program }
            }
        };
        Self { label, ranks, agents, fanout, pinned, kind }
    }

    /// Returns the delays of the signals to send: the first after the start, each other one after its predecessor.
    pub(crate) fn interrupts(&self) -> Vec<Duration> {
        match &self.kind {
            Kind::Interrupt { after, again, .. } => std::iter::once(*after).chain(*again).collect(),
            _ => Vec::new(),
        }
    }

    /// Returns the command that runs the session with this launcher.
    pub(crate) fn command(&self, launcher: &Path) -> Command {
        // A launcher that inherits SIGINT as ignored (from `nohup`, or `&` in a script) makes its ranks ignore it,
        // and this test may itself be started that way.
        let mut command = Command::new("env");
        command.arg("--default-signal=INT");
        if let Some(core) = self.pinned {
            command.args(["taskset", "-c", &core.to_string()]);
        }
        command.arg(launcher);
        let (ranks, agents, fanout) = (self.ranks.to_string(), self.agents.to_string(), self.fanout.to_string());
        command.args(["--label", &self.label, "-np", &ranks, "--agents-per-node", &agents, "--fanout", &fanout]);
        command.args(self.program());
        command
    }

    fn program(&self) -> Vec<String> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let shell = |script: String| vec!["sh".to_owned(), "-c".to_owned(), script];
        let one = |rank: u32, does: String, others: Others| {
            let others = match others {
                Others::Sleep => "exec sleep 600",
                Others::End => "exit 0",
            };
            shell(format!("[ $PMI_RANK = {rank} ] && {does}; {others}"))
        };
        let own = |arguments: &[&str]| {
            let myself = std::env::current_exe().expect("/proc is mounted");
            let mut all = vec![myself.to_string_lossy().into_owned(), rank::ARGUMENT.to_owned()];
            all.extend(arguments.iter().map(|word| (*word).to_owned()));
            all
        };
        match &self.kind {
            Kind::Hello | Kind::Interrupt { program: Interrupted::Hello, .. } => words(&["--demo"]),
            Kind::True => words(&["true"]),
            Kind::Code { rank, code, others } => one(*rank, format!("exit {code}"), *others),
            Kind::Killed { rank, signal, others } => one(*rank, format!("kill -{signal} $$"), *others),
            Kind::Abort { rank, code } => own(&[rank::ABORT, &rank.to_string(), &code.to_string()]),
            Kind::Left { rank } => own(&[rank::LEAVE, &rank.to_string()]),
            Kind::Interrupt { program: Interrupted::Sleep, .. } => words(&["sleep", "600"]),
            Kind::Interrupt { program: Interrupted::Stubborn, .. } => {
                shell("trap '' INT TERM; sleep 600; sleep 600".to_owned())
            }
        }
    }

    /// Returns the expected exit codes. A launcher that was itself ended by signal n counts as 128+n.
    fn codes(&self) -> Vec<i32> {
        match &self.kind {
            Kind::Hello | Kind::True => vec![0],
            Kind::Code { code, .. } => vec![i32::from(*code)],
            Kind::Killed { signal, .. } => vec![128 + signal],
            Kind::Abort { code, .. } => vec![(code & 255).max(1)],
            Kind::Left { .. } => vec![1],
            // The session may have ended before the signal arrived.
            Kind::Interrupt { program: Interrupted::Hello, .. } => vec![130, 0],
            Kind::Interrupt { .. } => vec![130],
        }
    }

    /// Checks the exit status, the time since the last signal, and the output of a session that has ended.
    pub(crate) fn judge(
        &self,
        status: ExitStatus,
        went_on: Option<Duration>,
        stdout: &str,
        stderr: &str,
    ) -> Result<(), String> {
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        let codes = self.codes();
        if !code.is_some_and(|code| codes.contains(&code)) {
            return Err(format!("it ended with {status}, not with {codes:?}"));
        }
        if let Some(went_on) = went_on.filter(|went_on| *went_on > PROMPT) {
            return Err(format!("it went on for {:.1} s after the signal", went_on.as_secs_f64()));
        }
        // The ranks write nothing, so every line is a message of the launcher.
        if let Some(line) = stderr.lines().find(|line| !line.starts_with("scela-run: ") && !line.starts_with("  ")) {
            return Err(format!("it said {line:?}"));
        }
        let lacks = |what: &str, text: &str| Err(format!("its {what} lacks {text:?}"));
        let hello = format!("{} rank{} said hello", self.ranks, if self.ranks == 1 { "" } else { "s" });
        let says_hello = matches!(&self.kind, Kind::Hello | Kind::Interrupt { program: Interrupted::Hello, .. });
        match &self.kind {
            _ if code == Some(0) && says_hello && !stdout.contains(&hello) => lacks("standard output", &hello),
            Kind::Hello | Kind::True if !stderr.is_empty() => Err("it said something on standard error".to_owned()),
            Kind::Code { rank, .. } | Kind::Killed { rank, .. } | Kind::Abort { rank, .. } | Kind::Left { rank } => {
                let first = format!("error: rank {rank} on ");
                if stderr.contains(&first) { Ok(()) } else { lacks("standard error", &first) }
            }
            _ => Ok(()),
        }
    }
}

impl Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let command = self.command(Path::new("scela-run"));
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let quoted: Vec<String> = words.map(|word| quote(&word.to_string_lossy())).collect();
        write!(f, "{}", quoted.join(" "))?;
        for (position, after) in self.interrupts().iter().enumerate() {
            let before = if position == 0 { "its start" } else { "that" };
            write!(f, "  [SIGINT {} ms after {before}]", after.as_millis())?;
        }
        Ok(())
    }
}

fn cores() -> u32 {
    u32::try_from(nla::sys::cores()).unwrap_or(1).max(1)
}
