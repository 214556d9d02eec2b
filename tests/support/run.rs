//! A run of `scela-run` in words, before it begins.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::binary::scela_run;
use crate::cluster::Cluster;
use crate::outcome::Outcome;
use crate::running::Running;
use crate::world::World;

/// What ranks are to run: a program and its arguments.
pub type Program = Vec<OsString>;

/// A program that is a few lines of shell; `$1` and so on are `arguments`.
pub fn sh(script: &str) -> Program {
    ["sh", "-c", script, "sh"].map(OsString::from).into()
}

/// What has PyPI's MPICH go over TCP between nodes. With libfabric's own `tcp` or `sockets`, sixteen ranks on two
/// cores that took themselves for five nodes did not come out of MPI_Init in every seventh run, under Hydra as here
/// (`MPIR_CVAR_NUM_CLIQUES=5`); with `ofi_rxm` in none of eighty. Its buffers are made small, of which 512 ranks would
/// take more than 24 GB.
pub const MPICH_OVER_TCP: [(&str, &str); 5] = [
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("FI_PROVIDER", "tcp;ofi_rxm"),
    ("FI_OFI_RXM_BUFFER_SIZE", "2048"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "32"),
    ("FI_OFI_RXM_RX_SIZE", "256"),
];

/// All cache policies as they are typed: the default first, the bounded one with room for all that a
/// test puts, for some, and for nearly nothing.
pub const CACHES: [&[&str]; 6] = [
    &["hcmab"],
    &["hcs"],
    &["hcma"],
    &["hcmab-lru"],
    &["hcmab-lru", "--cache-entries", "16"],
    &["hcmab-lru", "--cache-entries", "1"],
];

/// Begins the description of a run.
pub fn scela() -> Run {
    Run {
        world: World::new(),
        elsewhere: Vec::new(),
        options: Vec::new(),
        program: Vec::new(),
        environment: Vec::new(),
        prelude: None,
        stdin: Input::Null,
        directory: None,
        deadline: Duration::from_secs(60),
        is_read: true,
    }
}

/// Where a run's standard input comes from.
#[derive(Debug)]
pub(crate) enum Input {
    /// /dev/null.
    Null,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// Whatever the test writes.
    Pipe,
    /// A file.
    File(PathBuf),
    /// None at all: the descriptor is closed.
    Closed,
}

/// See [`scela`].
#[derive(Debug)]
pub struct Run {
    pub(crate) world: World,
    /// The words in front of all others with which they run elsewhere; none for here.
    elsewhere: Vec<OsString>,
    options: Vec<OsString>,
    program: Program,
    environment: Vec<(OsString, OsString)>,
    prelude: Option<String>,
    pub(crate) stdin: Input,
    directory: Option<PathBuf>,
    pub(crate) deadline: Duration,
    pub(crate) is_read: bool,
}

impl Run {
    /// So many ranks.
    pub fn np(self, ranks: u32) -> Self {
        self.args(["-np", &ranks.to_string()])
    }

    /// So many agents.
    pub fn agents(self, agents: u32) -> Self {
        self.args(["--agents-per-node", &agents.to_string()])
    }

    /// At most so many children for an agent.
    pub fn fanout(self, fanout: u32) -> Self {
        self.args(["--fanout", &fanout.to_string()])
    }

    /// One of [`CACHES`].
    pub fn cache(self, policy: &[&str]) -> Self {
        self.arg("--cache").args(policy)
    }

    /// One more word for scela-run, in front of the program.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.options.push(word.as_ref().to_owned());
        self
    }

    /// More of them.
    pub fn args<T: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.options.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// What the ranks run.
    pub fn program(mut self, program: Program) -> Self {
        self.program.extend(program);
        self
    }

    /// A further program, for `ranks` ranks, behind a colon.
    pub fn and(mut self, ranks: u32, program: Program) -> Self {
        self.program.extend([":", "-np", &ranks.to_string()].map(OsString::from));
        self.program(program)
    }

    /// A variable in scela-run's own environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// More of them.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let owned = |(name, value): (N, V)| (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.extend(variables.into_iter().map(owned));
        self
    }

    /// Shell commands to be run in the shell that becomes scela-run: `ulimit -n 100`, `umask 077`.
    pub fn shell(mut self, prelude: &str) -> Self {
        self.prelude = Some(prelude.to_owned());
        self
    }

    /// The working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Standard input: these bytes.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Input::Bytes(bytes.into());
        self
    }

    /// Standard input: what the test writes into [`Running::stdin`].
    pub fn stdin_pipe(mut self) -> Self {
        self.stdin = Input::Pipe;
        self
    }

    /// Standard input: a file.
    pub fn stdin_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdin = Input::File(path.into());
        self
    }

    /// Standard input: none, the descriptor is closed.
    pub fn stdin_closed(mut self) -> Self {
        self.stdin = Input::Closed;
        self
    }

    /// Nobody reads standard output until the test does, by [`Running::read_output`] or
    /// [`Running::take_output`].
    pub fn unread(mut self) -> Self {
        self.is_read = false;
        self
    }

    /// Started on the front end of `cluster`. The run is to leave nothing on any of its hosts.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.elsewhere = cluster.front_end().entrance();
        self.world.extend_to(cluster);
        self
    }

    /// The run must be over by then; 60 s unless said otherwise.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The world that the run will live in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Runs it to its end. Fails if it leaves anything behind.
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.spawn().finish()
    }

    /// Starts it.
    #[track_caller]
    pub fn spawn(self) -> Running {
        Running::start(self)
    }

    /// All words of the command, the program scela-run first, behind those with which it runs elsewhere.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = self.elsewhere.clone();
        if !words.is_empty() {
            // Namespaces have working directories of their own.
            let directory = self.directory.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_default();
            let mut option = OsString::from("--wdns=");
            option.push(directory);
            words.extend([option, "--".into()]);
        }
        words.push(scela_run().clone().into_os_string());
        words.extend(["--label", self.world.label()].map(OsString::from));
        words.extend(self.options.iter().chain(&self.program).cloned());
        words
    }

    pub(crate) fn command(&self) -> Command {
        let words = self.words();
        let close = if matches!(self.stdin, Input::Closed) { "exec <&-\n" } else { "" };
        let mut command = match (&self.prelude, close) {
            (None, "") => Command::new(&words[0]),
            (prelude, close) => {
                let mut shell = Command::new("sh");
                shell.arg("-c").arg(format!("{}\n{close}exec \"$@\"", prelude.as_deref().unwrap_or_default()));
                shell.arg("sh").arg(&words[0]);
                shell
            }
        };
        command.args(&words[1..]);
        self.furnish(&mut command);
        command.stdin(match &self.stdin {
            Input::Null | Input::Closed => Stdio::null(),
            Input::Bytes(_) | Input::Pipe => Stdio::piped(),
            Input::File(path) => File::open(path).expect("the input file of a test is there").into(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Gives a command the environment and the directory of this run.
    pub(crate) fn furnish(&self, command: &mut Command) {
        let (name, label) = self.world.mark();
        command.env(name, label).env("TMPDIR", self.world.temporary());
        // What surrounds the tests is not to be told apart from what they say.
        command.env_remove("SCELA_LOG");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
    }
}
