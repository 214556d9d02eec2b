//! The builder of a run of `scela-run`.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::binary::scela_run;
use crate::cluster::Cluster;
use crate::outcome::Outcome;
use crate::running::Running;
use crate::world::World;

/// The words that ranks run: a program and its arguments.
pub type Program = Vec<OsString>;

/// Returns a program of a few lines of shell, run by `sh -c`.
pub fn sh(script: &str) -> Program {
    ["sh", "-c", script, "sh"].map(OsString::from).into()
}

/// Quotes a word for a shell.
pub fn quote(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./=+:,@%".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Makes PyPI's MPICH use TCP between nodes. With libfabric's own `tcp` or `sockets`, sixteen ranks on two cores,
/// configured to look like five nodes (`MPIR_CVAR_NUM_CLIQUES=5`), hung in MPI_Init in every seventh run, under Hydra
/// as under scela-run; with `ofi_rxm`, in none of eighty runs. The buffers are made small, because those of 512 ranks
/// would take more than 24 GB.
pub const MPICH_OVER_TCP: [(&str, &str); 5] = [
    ("MPIR_CVAR_CH4_NETMOD", "ofi"),
    ("FI_PROVIDER", "tcp;ofi_rxm"),
    ("FI_OFI_RXM_BUFFER_SIZE", "2048"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "32"),
    ("FI_OFI_RXM_RX_SIZE", "256"),
];

/// All cache policies as command-line options. The default is first. The bounded policy has room for all values of a
/// test, for some, and for nearly none.
pub const CACHES: [&[&str]; 6] = [
    &["hcmab"],
    &["hcs"],
    &["hcma"],
    &["hcmab-lru"],
    &["hcmab-lru", "--cache-entries", "16"],
    &["hcmab-lru", "--cache-entries", "1"],
];

/// Returns the builder of a run of `scela-run`.
pub fn scela() -> Run {
    Run {
        world: World::new(),
        nsenter: Vec::new(),
        subcommand: Vec::new(),
        options: Vec::new(),
        program: Vec::new(),
        environment: Vec::new(),
        prelude: None,
        stdin: Input::Null,
        directory: None,
        deadline: Duration::from_secs(180),
        is_read: true,
    }
}

/// A script that mounts the directory `$1` on /dev/shm, in the mount namespace of the run, and becomes the other words.
const OWN_SHARED_MEMORY: &str = "mount --bind \"$1\" /dev/shm && shift && exec \"$@\"";

/// Returns whether this process may create mount namespaces and mount directories in them.
fn may_mount() -> bool {
    static MAY_MOUNT: OnceLock<bool> = OnceLock::new();
    *MAY_MOUNT.get_or_init(|| {
        let tried = Command::new("unshare").args(["--mount", "mount", "--bind", "/dev/shm", "/dev/shm"]).output();
        tried.is_ok_and(|tried| tried.status.success())
    })
}

/// The source of a run's standard input.
#[derive(Debug)]
pub(crate) enum Input {
    /// /dev/null.
    Null,
    /// These bytes, then the end.
    Bytes(Vec<u8>),
    /// The bytes that the test writes.
    Pipe,
    /// A file.
    File(PathBuf),
    /// None: the descriptor is closed.
    Closed,
}

/// See [`scela`].
#[derive(Debug)]
pub struct Run {
    pub(crate) world: World,
    /// The words in front of the command that make it run on a host of a cluster; empty for this machine.
    nsenter: Vec<OsString>,
    /// The words of a subcommand of `scela`; empty for scela-run.
    subcommand: Vec<OsString>,
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
    /// Runs this subcommand of `scela` instead of scela-run.
    pub(crate) fn subcommand<const N: usize>(mut self, words: [&str; N]) -> Self {
        self.subcommand = words.map(OsString::from).into();
        self
    }

    /// Sets the number of ranks.
    pub fn np(self, ranks: u32) -> Self {
        self.args(["-np", &ranks.to_string()])
    }

    /// Sets the number of agents.
    pub fn agents(self, agents: u32) -> Self {
        self.args(["--agents-per-node", &agents.to_string()])
    }

    /// Sets the maximum number of children of an agent.
    pub fn fanout(self, fanout: u32) -> Self {
        self.args(["--fanout", &fanout.to_string()])
    }

    /// Sets one of [`CACHES`].
    pub fn cache(self, policy: &[&str]) -> Self {
        self.arg("--cache").args(policy)
    }

    /// Adds one word to scela-run's arguments, in front of the program.
    pub fn arg(mut self, word: impl AsRef<OsStr>) -> Self {
        self.options.push(word.as_ref().to_owned());
        self
    }

    /// Adds words to scela-run's arguments, in front of the program.
    pub fn args<T: AsRef<OsStr>>(mut self, words: impl IntoIterator<Item = T>) -> Self {
        self.options.extend(words.into_iter().map(|word| word.as_ref().to_owned()));
        self
    }

    /// Sets the program that the ranks run.
    pub fn program(mut self, program: Program) -> Self {
        self.program.extend(program);
        self
    }

    /// Adds a further program for `ranks` ranks, after a colon.
    pub fn and(mut self, ranks: u32, program: Program) -> Self {
        self.program.extend([":", "-np", &ranks.to_string()].map(OsString::from));
        self.program(program)
    }

    /// Sets a variable in scela-run's own environment.
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Sets several variables in scela-run's own environment.
    pub fn envs<N: AsRef<OsStr>, V: AsRef<OsStr>>(mut self, variables: impl IntoIterator<Item = (N, V)>) -> Self {
        let owned = |(name, value): (N, V)| (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.environment.extend(variables.into_iter().map(owned));
        self
    }

    /// Sets shell commands that run in the shell that then becomes scela-run: `ulimit -n 100`, `umask 077`.
    pub fn shell(mut self, prelude: &str) -> Self {
        self.prelude = Some(prelude.to_owned());
        self
    }

    /// Sets the working directory.
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Makes these bytes standard input.
    pub fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.stdin = Input::Bytes(bytes.into());
        self
    }

    /// Makes a pipe standard input, to which the test writes by [`Running::stdin`].
    pub fn stdin_pipe(mut self) -> Self {
        self.stdin = Input::Pipe;
        self
    }

    /// Makes a file standard input.
    pub fn stdin_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.stdin = Input::File(path.into());
        self
    }

    /// Closes the descriptor of standard input.
    pub fn stdin_closed(mut self) -> Self {
        self.stdin = Input::Closed;
        self
    }

    /// Leaves standard output unread until the test calls [`Running::read_output`] or [`Running::take_output`].
    pub fn unread(mut self) -> Self {
        self.is_read = false;
        self
    }

    /// Starts the run on the front end of `cluster`. The run must leave nothing behind on any host of it.
    pub fn on(mut self, cluster: &Cluster) -> Self {
        self.nsenter = cluster.front_end().nsenter();
        self.world.extend_to(cluster);
        self
    }

    /// Gives the run a /dev/shm of its own, which is removed with it, for ranks of MPI libraries that leave files there
    /// when they are killed. Without the right to mount, the run uses the /dev/shm of this machine.
    pub fn own_shared_memory(mut self) -> Self {
        if may_mount() {
            self.world.create_shared_memory();
        }
        self
    }

    /// Fails the run if it leaves any file in its [own /dev/shm](Run::own_shared_memory).
    pub fn leaves_no_shared_memory(mut self) -> Self {
        self.world.watch_shared_memory();
        self
    }

    /// Sets the time after which the run fails. The default is 60 s.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Returns the world of the run.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// Runs it to its end. Panics if it leaves anything behind.
    #[track_caller]
    pub fn run(self) -> Outcome {
        self.spawn().finish()
    }

    /// Starts it.
    #[track_caller]
    pub fn spawn(self) -> Running {
        Running::start(self)
    }

    /// Returns all words of the command: the words of nsenter, if it runs on a host, then scela-run, then its arguments.
    pub fn words(&self) -> Vec<OsString> {
        let mut words = self.nsenter.clone();
        if !words.is_empty() {
            // Namespaces have working directories of their own.
            let directory = self.directory.clone().or_else(|| std::env::current_dir().ok()).unwrap_or_default();
            let mut option = OsString::from("--wdns=");
            option.push(directory);
            words.extend([option, "--".into()]);
        }
        if let Some(directory) = self.world.shared_memory() {
            words.extend(["unshare", "--mount", "sh", "-c", OWN_SHARED_MEMORY, "sh"].map(OsString::from));
            words.push(directory.into());
        }
        if self.subcommand.is_empty() {
            words.push(scela_run().clone().into_os_string());
            words.extend(["--label", self.world.label()].map(OsString::from));
        } else {
            words.push(scela_run().with_file_name("scela").into_os_string());
            words.extend(self.subcommand.iter().cloned());
        }
        words.extend(self.options.iter().chain(&self.program).cloned());
        words
    }

    /// Returns the command, for a test that starts it itself.
    pub fn command(&self) -> Command {
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
        self.set_environment(&mut command);
        command.stdin(match &self.stdin {
            Input::Null | Input::Closed => Stdio::null(),
            Input::Bytes(_) | Input::Pipe => Stdio::piped(),
            Input::File(path) => File::open(path).expect("the input file of a test is there").into(),
        });
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Gives a command the environment and the directory of this run.
    pub fn set_environment(&self, command: &mut Command) {
        let (name, label) = self.world.mark();
        command.env(name, label).env("TMPDIR", self.world.temporary());
        // The history of lost hosts in the user's home must not learn of the tests' hosts.
        command.env("XDG_STATE_HOME", self.world.file("state"));
        // A SCELA_LOG in the tests' own environment must not change what the run prints.
        command.env_remove("SCELA_LOG");
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
    }
}
