//! Several hosts on one machine, for what happens between hosts.
//!
//! A host is a set of namespaces of the kernel: it has a name, an address, an interface, processes, a
//! home directory, /tmp, /run and /dev/shm of its own, and an sshd. It shares all other files with this
//! machine, as hosts of a real cluster share their installation. The hosts are connected by a switch, to
//! nothing but each other. Whoever is on one of them gets to each of the others by plain `ssh`, without a
//! question.
//!
//! The front end is one more host, from which users start things. It has the processes and the /tmp of
//! this machine, so that a test can do with what runs there what it does with any process, and no sshd.
//!
//! All namespaces are without names: they last as long as the processes in them, and the first process of
//! each host ends when the test lets go of it, be it because the test was killed.

mod files;
mod host;

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

use nix::sys::signal::Signal;

use crate::binary::found;
use crate::capture::Capture;
use crate::skip::skip;
use crate::waiting::patience;
use files::Files;
pub use host::{Broken, Host};

/// What a cluster is made with, and the Debian package that has it.
const PROGRAMS: [(&str, &str); 9] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("ssh", "openssh-client"),
    ("ssh-keygen", "openssh-client"),
    ("sshd", "openssh-server"),
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("mount", "mount"),
    ("sh", "dash"),
];

/// Some hosts and a front end. Dropping it ends all that runs on the hosts.
#[derive(Debug)]
pub struct Cluster {
    // In the order in which they are to go: nothing may be in use that is removed.
    hosts: Vec<Host>,
    front_end: Host,
    switch: Switch,
    files: Files,
}

/// See [`Cluster::builder`].
#[derive(Debug)]
pub struct Builder {
    names: Vec<String>,
    front_end: String,
    sshd: Vec<String>,
    kept: Vec<PathBuf>,
}

/// What the interfaces of all hosts are plugged into: a bridge in a namespace of its own.
#[derive(Debug)]
struct Switch {
    child: Child,
    /// It lives until this is closed.
    stdin: Option<ChildStdin>,
}

impl Cluster {
    /// A cluster of `node001`, `node002` and so on, seen from `login`.
    #[track_caller]
    pub fn new(hosts: usize) -> Self {
        Self::builder(hosts).start()
    }

    /// The same, unless this machine can have none, which is said.
    #[track_caller]
    pub fn here(hosts: usize) -> Option<Self> {
        match Self::missing() {
            None => Some(Self::new(hosts)),
            Some(why) => {
                skip(&why);
                None
            }
        }
    }

    /// Begins the description of a cluster of so many hosts.
    pub fn builder(hosts: usize) -> Builder {
        Builder {
            names: (1..=hosts).map(|number| format!("node{number:03}")).collect(),
            front_end: "login".into(),
            sshd: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Why there can be no cluster on this machine, if so.
    pub fn missing() -> Option<String> {
        if !nix::unistd::Uid::effective().is_root() {
            return Some("a cluster of namespaces is for root only, which this is not".into());
        }
        let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| found(name).is_none()).collect();
        (!missing.is_empty())
            .then(|| format!("a cluster needs (program, Debian package) {missing:?}; ./tests/run installs them"))
    }

    /// Its hosts, without the front end.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// A host, the first of which is 0.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Where users are.
    pub fn front_end(&self) -> &Host {
        &self.front_end
    }

    /// The front end and all hosts.
    pub fn everywhere(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.front_end).chain(&self.hosts)
    }

    /// Names of all hosts, with commas between them.
    pub fn names(&self) -> String {
        self.hosts.iter().map(Host::name).collect::<Vec<_>>().join(",")
    }

    /// A file with the name of each host on a line, to be read everywhere.
    pub fn host_file(&self) -> PathBuf {
        self.files.host_file()
    }

    /// A directory that all hosts and this machine see at the same place.
    pub fn shared(&self) -> PathBuf {
        self.files.shared()
    }

    /// From any one address no more than so many ssh connections at once, to whichever hosts: further
    /// ones are refused.
    #[track_caller]
    pub fn limit_ssh(&self, connections: u32) {
        let rules = format!(
            "table inet ssh_limit {{ chain output {{ type filter hook output priority 0;
            tcp dport 22 ct state new ct count over {connections} reject with tcp reset
            }}
            }}"
        );
        self.everywhere().for_each(|host| host.filter(&rules));
    }

    /// Takes the host's plug out of the switch: whatever is sent to it or by it is lost.
    #[track_caller]
    pub fn cut(&self, host: &Host) {
        self.switch.ip(&format!("link set {} down\n", port(host)));
    }

    /// Puts it back.
    #[track_caller]
    pub fn mend(&self, host: &Host) {
        self.switch.ip(&format!("link set {} up\n", port(host)));
    }
}

impl Builder {
    /// Hosts with these names instead.
    pub fn names<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// A front end with this name.
    pub fn front_end(mut self, name: &str) -> Self {
        self.front_end = name.to_owned();
        self
    }

    /// A line of sshd_config, in front of others; of several that say different things the first counts.
    pub fn sshd(mut self, line: &str) -> Self {
        self.sshd.push(line.to_owned());
        self
    }

    /// A directory that all hosts are to see, even if it is one that they would have of their own. The
    /// repository, what it was built into, and the tests' virtual environments are seen anyway.
    pub fn keep(mut self, directory: impl Into<PathBuf>) -> Self {
        self.kept.push(directory.into());
        self
    }

    /// Makes it. Fails where [`Cluster::missing`] says why, or where the kernel refuses.
    #[track_caller]
    pub fn start(self) -> Cluster {
        if let Some(why) = Cluster::missing() {
            panic!("{why}");
        }
        let names = std::iter::once(self.front_end.as_str()).chain(self.names.iter().map(String::as_str));
        // The front end is far behind those that may be there.
        let numbers = std::iter::once(u16::from_be_bytes([255, 1])).chain(1..);
        let all = names.zip(numbers.map(address));
        let files = Files::new(all.clone(), &self.sshd, &self.kept);
        let switch = Switch::start();
        let mut hosts: Vec<Host> =
            all.enumerate().map(|(index, (name, address))| Host::begin(&files, name, address, index == 0)).collect();
        hosts.iter_mut().for_each(Host::wait_mounted);
        switch.connect(&hosts);
        hosts.iter_mut().for_each(Host::plug_in);
        hosts.iter().for_each(Host::wait_up);
        Cluster { front_end: hosts.remove(0), hosts, switch, files }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Its processes are this machine's, and do not end with the first.
        self.front_end.processes().iter().for_each(|process| process.signal(Signal::SIGKILL));
        // All of them at once; each is then waited for.
        self.hosts.iter_mut().chain([&mut self.front_end]).for_each(Host::let_go);
    }
}

impl Switch {
    #[track_caller]
    fn start() -> Self {
        let script = "ip link add bridge type bridge && ip link set bridge up && echo up && exec cat";
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", script]).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("failed to start unshare: {error}"));
        let stdin = child.stdin.take();
        let said = child.stdout.take().map_or_else(Capture::none, Capture::of);
        let switch = Self { child, stdin };
        assert!(said.wait(patience(), |said| said.contains("up")), "there is no bridge: does the kernel have them?");
        switch
    }

    /// Gives each host an interface, with the other end in a port of the switch.
    #[track_caller]
    fn connect(&self, hosts: &[Host]) {
        let mut commands = String::new();
        for host in hosts {
            let port = port(host);
            let _ = writeln!(commands, "link add {port} type veth peer name eth0 netns {}", host.pid());
            let _ = writeln!(commands, "link set {port} master bridge up");
        }
        self.ip(&commands);
    }

    /// Has `ip` do what these lines say.
    #[track_caller]
    fn ip(&self, commands: &str) {
        let mut ip = Command::new("nsenter");
        ip.args(["--target", &self.child.id().to_string(), "--net", "ip", "-batch", "-"]);
        let mut ip =
            ip.stdin(Stdio::piped()).spawn().unwrap_or_else(|error| panic!("failed to start nsenter: {error}"));
        let written = ip.stdin.take().map(|mut stdin| stdin.write_all(commands.as_bytes()));
        let ended = ip.wait().expect("a child can be waited for");
        assert!(ended.success() && matches!(written, Some(Ok(()))), "ip failed to do this:\n{commands}");
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stdin = None;
        let _ = self.child.wait();
    }
}

/// The address with this number.
fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// The port of a host. Its name may be too long for the kernel.
fn port(host: &Host) -> String {
    let [.., high, low] = host.address().octets();
    format!("port{}", u16::from_be_bytes([high, low]))
}
