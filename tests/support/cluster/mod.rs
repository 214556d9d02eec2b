//! Several hosts on one machine, for tests of what happens between hosts.
//!
//! A host is a set of kernel namespaces: it has its own name, address, interface, processes, home directory, /tmp, /run
//! and /dev/shm, and an sshd. It shares all other files with this machine, as the hosts of a real cluster share their
//! installation. A switch connects the hosts with each other and with nothing else. From each host, plain `ssh` reaches
//! every other host without a prompt.
//!
//! The front end is one more host, on which users start sessions. It uses the processes and the /tmp of this machine,
//! so that a test can handle its processes like any others, and it has no sshd.
//!
//! All namespaces are unnamed: they last as long as the processes in them. The first process of each host exits when
//! the test closes its pipe, which also happens when the test is killed.

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
use crate::waiting::event_timeout;
use files::Files;
pub use host::{Broken, Host};

/// The programs that a cluster needs, each with its Debian package.
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

/// Hosts and a front end. Dropping it ends all processes on the hosts.
#[derive(Debug)]
pub struct Cluster {
    // In the order of dropping: nothing may be removed while it is in use.
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

/// The switch to which the interfaces of all hosts are connected: a bridge in a namespace of its own.
#[derive(Debug)]
struct Switch {
    child: Child,
    /// The switch lasts until this is closed.
    stdin: Option<ChildStdin>,
}

impl Cluster {
    /// Creates a cluster of `node001`, `node002` and so on, with the front end `login`.
    #[track_caller]
    pub fn new(hosts: usize) -> Self {
        Self::builder(hosts).start()
    }

    /// Creates the same cluster. If this machine cannot have one, prints a notice and returns `None`.
    #[track_caller]
    pub fn new_or_skip(hosts: usize) -> Option<Self> {
        match Self::missing() {
            None => Some(Self::new(hosts)),
            Some(why) => {
                skip(&why);
                None
            }
        }
    }

    /// Returns the builder of a cluster of `hosts` hosts.
    pub fn builder(hosts: usize) -> Builder {
        Builder {
            names: (1..=hosts).map(|number| format!("node{number:03}")).collect(),
            front_end: "login".into(),
            sshd: Vec::new(),
            kept: Vec::new(),
        }
    }

    /// Returns the reason why this machine can have no cluster, if there is one.
    pub fn missing() -> Option<String> {
        if !nix::unistd::Uid::effective().is_root() {
            return Some("a cluster of namespaces is for root only, which this is not".into());
        }
        let missing: Vec<_> = PROGRAMS.iter().filter(|(name, _)| found(name).is_none()).collect();
        (!missing.is_empty())
            .then(|| format!("a cluster needs (program, Debian package) {missing:?}; ./tests/run installs them"))
    }

    /// Returns the hosts without the front end.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns a host by its index, from 0.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Returns the front end, on which users work.
    pub fn front_end(&self) -> &Host {
        &self.front_end
    }

    /// Returns the front end and all hosts.
    pub fn everywhere(&self) -> impl Iterator<Item = &Host> {
        std::iter::once(&self.front_end).chain(&self.hosts)
    }

    /// Returns the names of all hosts, separated by commas.
    pub fn names(&self) -> String {
        self.hosts.iter().map(Host::name).collect::<Vec<_>>().join(",")
    }

    /// Returns a file with the name of each host on a line, readable on all hosts.
    pub fn host_file(&self) -> PathBuf {
        self.files.host_file()
    }

    /// Returns a directory that all hosts and this machine see at the same path.
    pub fn shared(&self) -> PathBuf {
        self.files.shared()
    }

    /// Limits the concurrent ssh connections from any one address, to all hosts together. Further connections are
    /// refused.
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

    /// Disconnects the host from the switch: packets to it and from it are lost.
    #[track_caller]
    pub fn cut(&self, host: &Host) {
        self.switch.ip(&format!("link set {} down\n", port(host)));
    }

    /// Makes the host lose this share of the packets that other hosts send to it, chosen at random.
    #[track_caller]
    pub fn lose_packets(&self, host: &Host, percent: u32) {
        host.filter(&format!(
            "table inet loss {{ chain input {{ type filter hook input priority 0;
            iifname != \"lo\" numgen random mod 100 < {percent} drop
            }}
            }}"
        ));
    }

    /// Makes the host receive all packets again.
    #[track_caller]
    pub fn lose_no_packets(&self, host: &Host) {
        // The first line creates the table if there is none.
        host.filter("table inet loss\ndelete table inet loss");
    }

    /// Reconnects the host to the switch.
    #[track_caller]
    pub fn mend(&self, host: &Host) {
        self.switch.ip(&format!("link set {} up\n", port(host)));
    }
}

impl Builder {
    /// Sets the names of the hosts.
    pub fn names<T: Into<String>>(mut self, names: impl IntoIterator<Item = T>) -> Self {
        self.names = names.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the name of the front end.
    pub fn front_end(mut self, name: &str) -> Self {
        self.front_end = name.to_owned();
        self
    }

    /// Adds a line of sshd_config in front of others. If several lines set the same option, the first one counts.
    pub fn sshd(mut self, line: &str) -> Self {
        self.sshd.push(line.to_owned());
        self
    }

    /// Makes a directory visible on all hosts, even one that they would have of their own. The repository, the target
    /// directory and the tests' virtual environments are always visible.
    pub fn keep(mut self, directory: impl Into<PathBuf>) -> Self {
        self.kept.push(directory.into());
        self
    }

    /// Creates the cluster. Panics if [`Cluster::missing`] returns a reason, or if the kernel refuses.
    #[track_caller]
    pub fn start(self) -> Cluster {
        if let Some(why) = Cluster::missing() {
            panic!("{why}");
        }
        let names = std::iter::once(self.front_end.as_str()).chain(self.names.iter().map(String::as_str));
        // The number of the front end is far above those of the hosts.
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
        // The front end's processes are processes of this machine, so they do not end with its first process.
        self.front_end.processes().iter().for_each(|process| process.send(Signal::SIGKILL));
        // Close all hosts first, then wait for each.
        self.hosts.iter_mut().chain([&mut self.front_end]).for_each(Host::close_stdin);
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
        assert!(
            said.wait(event_timeout(), |said| said.contains("up")),
            "the bridge was not created: does the kernel support bridges?"
        );
        switch
    }

    /// Gives each host an interface whose other end is a port of the switch.
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

    /// Runs `ip` with these lines as its commands.
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

/// Returns the address with this number.
fn address(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 77, high, low)
}

/// Returns the name of a host's port. The host's own name may be too long for an interface.
fn port(host: &Host) -> String {
    let [.., high, low] = host.address().octets();
    format!("port{}", u16::from_be_bytes([high, low]))
}
