//! One host of a cluster, and the ways to break it.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::files::{Files, SSHD_PID};
use crate::binary::found;
use crate::capture::Capture;
use crate::process::Process;
use crate::waiting::{event_timeout, eventually};

/// The script that becomes the host's first process.
const SCRIPT: &str = include_str!("host.sh");

/// A script after which no file that is written later can be executed.
const NO_EXEC: &str = include_str!("no_exec.sh");

/// A script that hides the interpreters, which could run a program without an executable file.
const NO_INTERPRETER: &str = concat!(include_str!("hide.sh"), include_str!("no_interpreter.sh"));

/// The script that hides files that all hosts share.
const HIDE: &str = include_str!("hide.sh");

/// One host of a [`Cluster`](super::Cluster).
#[derive(Debug)]
pub struct Host {
    name: String,
    address: Ipv4Addr,
    has_own_processes: bool,
    /// The process that created the namespaces.
    child: Child,
    /// The host ends when this is closed.
    stdin: Option<ChildStdin>,
    said: Capture,
    /// The pid of the host's first process on this machine; until it exists, the pid of [`child`](Self::child).
    first: i32,
    /// The directory with the host's files on this machine.
    directory: PathBuf,
    /// The directory with the files that all hosts share.
    common: PathBuf,
}

/// A fault of a host that concerns logins by ssh.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Broken {
    /// No host can resolve its name.
    NameUnknown,
    /// No sshd listens.
    Refused,
    /// The sshd does not accept the user's key.
    NoLogin,
    /// A user who logs in can write no executable file and finds neither Perl nor Python.
    NoExec,
    /// Connections are accepted, but nothing is ever sent.
    Silent,
}

impl Host {
    /// Creates the host's namespaces, in which its script then sets up the mounts. The caller then calls
    /// [`wait_mounted`](Self::wait_mounted), [`plug_in`](Self::plug_in) and [`wait_up`](Self::wait_up).
    #[track_caller]
    pub(super) fn begin(files: &Files, name: &str, address: Ipv4Addr, is_front_end: bool) -> Self {
        let directory = files.of_host(name);
        let log = File::create(directory.join("log")).expect("a log can be written");
        let mut command = Command::new("unshare");
        command.args(["--net", "--uts", "--ipc", "--mount"]);
        if !is_front_end {
            command.args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        }
        let sshd = if is_front_end { None } else { found("sshd") };
        command.args(["sh", "-c", SCRIPT, "host"]).process_group(0);
        command.env("HOST_NAME", name).env("HOST_ADDRESS", address.to_string());
        command.env("HOST_COVERS", files.covers(name, !is_front_end)).env("HOST_KEPT", files.kept());
        command.env("HOST_COMMON", files.common()).env("HOST_SSHD", sshd.unwrap_or_default());
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).spawn();
        let mut child = started.unwrap_or_else(|error| panic!("failed to start unshare: {error}"));
        let stdin = child.stdin.take();
        let said = child.stdout.take().map_or_else(Capture::none, Capture::of);
        let first = child.id() as i32;
        let (name, common) = (name.to_owned(), files.common());
        Self { name, address, has_own_processes: !is_front_end, child, stdin, said, first, directory, common }
    }

    /// Waits until the host has everything of its own except an interface.
    #[track_caller]
    pub(super) fn wait_mounted(&mut self) {
        self.wait_said("mounted\n");
        if self.has_own_processes {
            let first = Process::of(self.first).and_then(|unshare| unshare.children().first().cloned());
            self.first = first.unwrap_or_else(|| self.fail("has lost its first process")).pid;
        }
    }

    /// Tells the host's script that the host has an interface now.
    pub(super) fn plug_in(&mut self) {
        if let Some(stdin) = &mut self.stdin {
            // If the host has exited, the wait that follows reports it.
            let _ = stdin.write_all(b"\n");
        }
    }

    /// Waits until the host is reachable.
    #[track_caller]
    pub(super) fn wait_up(&self) {
        self.wait_said("up\n");
        if self.has_own_processes {
            self.wait_sshd();
        }
    }

    /// Waits until the host's sshd is ready: it writes its pid file once it listens on all addresses.
    #[track_caller]
    fn wait_sshd(&self) {
        let has_number = || fs::read_to_string(self.path(SSHD_PID)).is_ok_and(|number| number.ends_with('\n'));
        if eventually(|| (self.listens() && has_number()).then_some(())).is_none() {
            self.fail("has no sshd that listens");
        }
    }

    /// Closes the standard input of the host's first process, which makes the host end.
    pub(super) fn close_stdin(&mut self) {
        self.stdin = None;
    }

    /// Returns the host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the host's address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Returns the pid, on this machine, of the host's first process, which is in all of the host's namespaces.
    pub fn pid(&self) -> i32 {
        self.first
    }

    /// Returns the path on this machine of the user's home directory on the host.
    pub fn home(&self) -> PathBuf {
        self.directory.join("home")
    }

    /// Returns the path on this machine of a file of the host. The path is valid while the host runs.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        let absolute = absolute.as_ref();
        Path::new(&format!("/proc/{}/root", self.first)).join(absolute.strip_prefix("/").unwrap_or(absolute))
    }

    /// Returns the processes of the host except the first.
    pub fn processes(&self) -> Vec<Process> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
        let Some(own) = namespace(self.first) else { return Vec::new() };
        let holders = [self.child.id() as i32, self.first];
        let mut all = Process::all();
        all.retain(|process| !holders.contains(&process.pid) && namespace(process.pid).as_ref() == Some(&own));
        all
    }

    /// Returns the words in front of a command that make it run on this host.
    pub(crate) fn nsenter(&self) -> Vec<OsString> {
        let target = self.first.to_string();
        let mut words = vec!["nsenter", "--target", &target, "--net", "--uts", "--ipc", "--mount"];
        if self.has_own_processes {
            words.push("--pid");
        }
        words.into_iter().map(OsString::from).collect()
    }

    /// Returns a command that runs on the host without ssh. On the front end, the started process is the command
    /// itself; on other hosts, it is a process that waits for the command.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let nsenter = self.nsenter();
        let mut command = Command::new(&nsenter[0]);
        command.args(&nsenter[1..]).args(["--wdns=/", "--"]).arg(program).stdin(Stdio::null());
        command
    }

    /// Runs a command on the host to its end.
    #[track_caller]
    pub fn run<T: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = T>) -> Output {
        let mut words = words.into_iter();
        let program = words.next().expect("a command has a first word");
        let output = self.command(program).args(words).output();
        output.unwrap_or_else(|error| panic!("failed to start nsenter: {error}"))
    }

    /// Breaks the host.
    #[track_caller]
    pub fn break_as(&self, broken: Broken) {
        match broken {
            Broken::NameUnknown => Files::forget(&self.common, &self.name),
            Broken::Refused => self.stop_sshd(),
            Broken::NoLogin => {
                fs::remove_file(self.home().join(".ssh/authorized_keys")).expect("the key was authorised")
            }
            Broken::NoExec => {
                self.shell(NO_INTERPRETER, [""]);
                self.forbid_new_programs();
            }
            // The kernel still accepts connections that a stopped sshd does not serve.
            Broken::Silent => {
                self.signal_sshd("STOP");
                // Until then it may still serve a connection.
                let is_sshd = |process: &Process| process.name == "sshd" && process.parent == self.first;
                let stopped = || self.processes().into_iter().filter(is_sshd).all(|sshd| sshd.has_stopped());
                if eventually(|| stopped().then_some(())).is_none() {
                    self.fail("has an sshd that does not stop");
                }
            }
        }
    }

    /// Gives the host the name back of which [`Broken::NameUnknown`] has deprived it.
    pub fn name_again(&self) {
        Files::remember(&self.common, &self.name, self.address);
    }

    /// Restarts the host's sshd with these lines of sshd_config in front of the others. Existing logins continue.
    #[track_caller]
    pub fn restart_sshd(&self, lines: &[&str]) {
        if self.listens() {
            self.stop_sshd();
        }
        let sshd = found("sshd").unwrap_or_default().into_os_string();
        let options = lines.iter().flat_map(|line| ["-o".into(), OsString::from(line)]);
        let words = [sshd, "-f".into(), self.common.join("sshd_config").into(), "-E".into(), "/run/sshd.log".into()];
        self.shell("exec \"$@\"", words.into_iter().chain(options));
        self.wait_sshd();
    }

    /// Makes each login by ssh wait for `delay` before its command begins.
    pub fn delay_logins(&self, delay: Duration) {
        let rc = format!("sleep {}\n", delay.as_secs_f64());
        fs::write(self.home().join(".ssh/rc"), rc).expect("a file of a home directory can be written");
    }

    /// Hides a file or directory of the host. The other entries of its directory cannot be changed any more.
    #[track_caller]
    pub fn hide(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        let (Some(place), Some(name)) = (path.parent(), path.file_name()) else { panic!("the root cannot be hidden") };
        self.shell(&format!("{HIDE}hide \"$@\""), [place.as_os_str(), name]);
    }

    /// Makes files that a user writes not executable. No more files can be [hidden](Self::hide) after that.
    #[track_caller]
    pub fn forbid_new_programs(&self) {
        self.shell(NO_EXEC, [""]);
    }

    /// Makes the home directory read-only.
    #[track_caller]
    pub fn make_home_read_only(&self) {
        self.shell("mount -o remount,bind,ro ~", [""]);
    }

    /// Drops packets from other hosts to all TCP ports but `ports`. Several ports are written as a set of nft:
    /// `{ 22, 80-90 }`.
    #[track_caller]
    pub fn drop_all_tcp_but(&self, ports: impl Display) {
        self.filter(&format!(
            "table inet firewall {{ chain input {{ type filter hook input priority 0;
            iifname != \"lo\" tcp dport != {ports} tcp flags & (fin | syn | rst | ack) == syn drop
            }}
            }}"
        ));
    }

    /// Adds rules to the host's packet filter, in the language of nft.
    #[track_caller]
    pub fn filter(&self, rules: &str) {
        self.shell("printf '%s\\n' \"$1\" | nft -f -", [rules]);
    }

    /// Stops all processes of the host but the first. A host that is out of memory or has lost its disk behaves like
    /// this: its kernel still answers.
    #[track_caller]
    pub fn freeze(&self) {
        let frozen = eventually(|| {
            // Processes that are not stopped yet may start more.
            let mut running = self.processes();
            running.retain(|process| !process.has_stopped());
            running.iter().for_each(|process| process.send(Signal::SIGSTOP));
            running.is_empty().then_some(())
        });
        if frozen.is_none() {
            self.fail("cannot be frozen");
        }
    }

    /// Continues the stopped processes.
    pub fn thaw(&self) {
        // Children first, so that no parent notices that its child was stopped.
        self.processes().iter().rev().for_each(|process| process.signal(Signal::SIGCONT));
    }

    /// Returns the log of the host's sshd.
    pub fn sshd_log(&self) -> String {
        fs::read_to_string(self.path("/run/sshd.log")).unwrap_or_default()
    }

    #[track_caller]
    fn signal_sshd(&self, signal: &str) {
        self.shell("kill -s \"$1\" \"$(cat \"$2\")\"", [signal, SSHD_PID]);
    }

    #[track_caller]
    fn stop_sshd(&self) {
        self.signal_sshd("TERM");
        // The sshd removes its pid file last.
        if eventually(|| (!self.listens() && !self.path(SSHD_PID).exists()).then_some(())).is_none() {
            self.fail("has an sshd that does not end");
        }
    }

    /// Returns whether a process listens on port 22.
    fn listens(&self) -> bool {
        let table = fs::read_to_string(format!("/proc/{}/net/tcp", self.first)).unwrap_or_default();
        table.lines().any(|line| line.contains("00000000:0016 00000000:0000 0A"))
    }

    /// Runs a script on the host. Panics if the script fails.
    #[track_caller]
    fn shell<T: AsRef<OsStr>>(&self, script: &str, arguments: impl IntoIterator<Item = T>) {
        let output = self.command("sh").args(["-euc", script, "sh"]).args(arguments).output();
        let output = output.unwrap_or_else(|error| panic!("failed to start nsenter: {error}"));
        if !output.status.success() {
            self.fail(&format!("has failed to run {script:?}: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }

    #[track_caller]
    fn wait_said(&self, text: &str) {
        if !self.said.wait(event_timeout(), |said| said.contains(text)) {
            self.fail(&format!("never said {text:?}"));
        }
    }

    #[track_caller]
    fn fail(&self, what: &str) -> ! {
        let log = fs::read_to_string(self.directory.join("log")).unwrap_or_default();
        panic!("{} {what}\n{log}{}", self.name, self.sshd_log());
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.close_stdin();
        if eventually(|| self.child.try_wait().ok().flatten()).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
