//! Links refuse strangers, and their traffic is unreadable.

use std::fmt::{Display, Formatter};
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use nla::core::AgentId;
use nla::wire::{HelloError, Initiator, PREAMBLE_BYTES, Role, SessionId};
use tests::{Capture, Process, Running, Tree, event_timeout, eventually, link_sockets, scela, tcp_sockets};

use crate::script;

const ROLE: Role = Role::Link { parent: AgentId::ROOT };

/// Where an agent listens.
#[derive(Clone, Debug)]
enum Door {
    Port(SocketAddrV4),
    /// The abstract name of a Unix socket.
    Socket(String),
}

impl Display for Door {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Port(address) => address.fmt(f),
            Self::Socket(name) => write!(f, "@{name}"),
        }
    }
}

/// A connection to an agent.
enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    fn open(door: &Door) -> io::Result<Self> {
        Ok(match door {
            Door::Port(address) => Self::Tcp(TcpStream::connect(address)?),
            Door::Socket(name) => {
                Self::Unix(UnixStream::connect_addr(&UnixAddress::from_abstract_name(name.as_bytes())?)?)
            }
        })
    }

    /// Sends only `bytes`, then reads until the peer closes.
    fn exchange(self, bytes: &[u8], answer: &mut Vec<u8>) -> io::Result<usize> {
        // Any call but the last fails if the peer has already read enough and closed the connection.
        match self {
            Self::Tcp(mut stream) => {
                stream.set_read_timeout(Some(event_timeout()))?;
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(Shutdown::Write);
                stream.read_to_end(answer)
            }
            Self::Unix(mut stream) => {
                stream.set_read_timeout(Some(event_timeout()))?;
                let _ = stream.write_all(bytes);
                let _ = stream.shutdown(Shutdown::Write);
                stream.read_to_end(answer)
            }
        }
    }
}

/// Returns a door at which `process` listens: its port, or with `local` its socket for its machine.
fn door(process: &Process, local: bool) -> Option<Door> {
    if local {
        let listening = link_sockets(process).into_iter().find(|socket| socket.listens);
        return listening.map(|socket| Door::Socket(socket.name));
    }
    tcp_sockets(process).into_iter().find(|socket| socket.listens).map(|socket| Door::Port(socket.local))
}

/// Starts a run in which one agent waits for another, whose guardian was stopped when it started. Returns the run,
/// a door of the agent, and the processes to continue. Returns `None` if the guardian was stopped too late. Links go over TCP, or
/// with `local` over Unix sockets. `log` is the level of the logs.
fn stopped_while_joining(local: bool, log: &str) -> Option<(Running, Door, Vec<Process>)> {
    let option: &[&str] = if local { &[] } else { &["--agents-as-nodes"] };
    let run = scela().args(option).np(3).agents(3).fanout(2).env("SCELA_LOG", log);
    let running = run.program(script(["init", "say here", "fence", "finalize"])).spawn();
    let launcher = running.launcher();
    let tree = Tree::new(3, 2);
    let (late, waiting) = (tree.leaf() as usize - 1, tree.parent(tree.leaf()) as usize - 1);
    let deadline = Instant::now() + event_timeout();
    // Poll without a pause, because the agents join within a few milliseconds. Do not stop the process before it
    // has become a guardian: until then its parent waits for it, as after a vfork.
    let seen = loop {
        // Of one look: a job that is not stopped in time may have ended at the next.
        let children = launcher.children();
        if let Some(guardian) = children.get(late).filter(|child| child.name == "scela-guard") {
            break Some((children[waiting].clone(), guardian.clone()));
        }
        if !running.stdout().text().is_empty() {
            break None;
        }
        assert!(Instant::now() < deadline, "no guardian was started");
    };
    let Some((first, guardian)) = seen else {
        running.finish().has_code(0);
        return None;
    };
    guardian.signal(Signal::SIGSTOP);
    let mut stopped = vec![guardian.clone()];
    stopped.extend(guardian.children());
    Process::signal_all(&stopped, Signal::SIGSTOP);
    let door = eventually(|| {
        let agents = first.children();
        let joined = if local {
            // Both children of the launcher: that one does not see whose end is whose.
            link_sockets(&launcher).iter().filter(|socket| !socket.listens).count() == 2
        } else {
            agents.iter().any(|agent| tcp_sockets(agent).iter().any(|socket| socket.established))
        };
        let door = agents.iter().find_map(|agent| door(agent, local));
        // An agent that has joined and does not listen has all its children: the guardian was stopped too late.
        (joined || !running.stdout().text().is_empty()).then_some(door)
    });
    match door.flatten() {
        Some(door) => Some((running, door, stopped)),
        None => {
            Process::signal_all(&stopped, Signal::SIGCONT);
            running.finish().has_code(0);
            None
        }
    }
}

/// Sends only `bytes`, then reads until the peer closes. Returns `None` if no process listens any more.
fn answer(door: &Door, bytes: &[u8]) -> Option<Vec<u8>> {
    let connection = Connection::open(door).ok()?;
    let mut answer = Vec::new();
    match connection.exchange(bytes, &mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{door} neither answers nor closes"),
        _ => Some(answer),
    }
}

/// Returns the error that an initiator of `session` with a wrong key receives at `door`.
fn refusal(door: &Door, session: SessionId) -> Option<HelloError> {
    let (stranger, hello) = Initiator::new(session, &[7; 32], ROLE).unwrap();
    stranger.verdict(answer(door, &hello)?.first_chunk()?).err()
}

/// Tries every attempt of a stranger. Returns `None` if no process listens any more.
fn try_all_attempts(door: &Door) -> Option<()> {
    assert_eq!(refusal(door, SessionId(1))?, HelloError::Session);
    let (_, hello) = Initiator::new(SessionId(1), &[7; 32], ROLE).unwrap();
    let mut other = hello.clone();
    other[8..10].copy_from_slice(&99u16.to_be_bytes());
    let words = answer(door, &other)?;
    // The session's public name is at the end of the preamble. It authenticates nothing.
    let session = words.get(PREAMBLE_BYTES - 8..PREAMBLE_BYTES)?.try_into().unwrap();
    assert_eq!(words.len(), PREAMBLE_BYTES + 1, "another version gets a preamble and a verdict");
    assert_eq!(refusal(door, SessionId(u64::from_be_bytes(session)))?, HelloError::Key);
    answer(door, b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a client of some other protocol here\r\n\r\n")?;
    // An incomplete hello gets no answer.
    answer(door, &hello[..PREAMBLE_BYTES + 3])?.is_empty().then_some(())?;
    Connection::open(door).ok().map(drop)
}

/// Starts a run as [`stopped_while_joining`] does, and makes `attempts` at its door, which return `None` if no process listens there
/// any more.
fn tried_while_joining(
    local: bool,
    log: &str,
    attempts: impl Fn(&Door) -> Option<()>,
) -> (Running, Door, Vec<Process>) {
    // The last child may have joined between two checks. Then no process listens any more.
    let caught = (0..20).filter_map(|_| stopped_while_joining(local, log)).find_map(|(running, door, stopped)| {
        if attempts(&door).is_none() {
            Process::signal_all(&stopped, Signal::SIGCONT);
            running.finish().has_code(0);
            return None;
        }
        Some((running, door, stopped))
    });
    caught.expect("in one of 20 runs, a guardian is stopped while agents join")
}

fn refuses_strangers(local: bool) {
    let (running, door, stopped) = tried_while_joining(local, "debug", try_all_attempts);
    // Connections that stay silent do not delay the job.
    let silent: Vec<_> = (0..20).flat_map(|_| Connection::open(&door)).collect();
    Process::signal_all(&stopped, Signal::SIGCONT);
    let outcome = running.finish();
    drop(silent);
    outcome.has_code(0).wrote_lines(["0: here", "1: here", "2: here"]);
    for words in [
        "the other end belongs to another session",
        "the other end is ScELA 0.1.0 (protocol 99), this is ",
        "the other end does not know this session's key",
        "the other end does not speak ScELA's protocol",
        "the connection ended in the middle of the hello",
    ] {
        outcome.says(words);
    }
    let said = outcome.err();
    let warnings = said.lines().filter(|line| line.contains("WARN") && line.contains("was refused"));
    assert_eq!(warnings.count(), 1, "the first refusal is a warning: {said}");
}

#[test]
fn strangers_are_refused_with_messages_and_the_job_continues() {
    refuses_strangers(false);
}

/// Processes of the same user: those of others are closed at once.
#[test]
fn strangers_at_the_socket_of_a_machine_are_refused_with_the_same_messages() {
    refuses_strangers(true);
}

#[test]
fn another_user_at_the_socket_writes_nothing_to_the_terminal() {
    if !geteuid().is_root() {
        return;
    }
    let connect =
        "import socket, sys\nfor _ in range(50):\n    socket.socket(socket.AF_UNIX).connect('\\0' + sys.argv[1])\n";
    let (running, _, stopped) = tried_while_joining(true, "warn", |door| {
        let Door::Socket(name) = door else { panic!("{door} is no Unix socket") };
        let mut command = Command::new("python3");
        command.args(["-c", connect, name]).uid(65534).gid(65534).current_dir("/").stderr(Stdio::null());
        command.status().expect("python3 is installed").success().then_some(())
    });
    Process::signal_all(&stopped, Signal::SIGCONT);
    let outcome = running.finish();
    outcome.has_code(0);
    assert_eq!(outcome.err(), "");
}

/// A recording of the packets on the loopback interface during a run.
struct Recording {
    tcpdump: std::process::Child,
    said: Capture,
    file: std::path::PathBuf,
}

impl Recording {
    fn start(file: std::path::PathBuf) -> Self {
        let mut tcpdump = Command::new("tcpdump")
            .args(["-i", "lo", "-U", "-s", "0", "-B", "65536", "-Z", "root", "-w"])
            .arg(&file)
            .stderr(Stdio::piped())
            .spawn()
            .expect("tcpdump is installed (apt-get install tcpdump)");
        let said = Capture::of(tcpdump.stderr.take().unwrap());
        assert!(said.wait(event_timeout(), |said| said.contains("listening on")), "tcpdump: {}", said.text());
        Self { tcpdump, said, file }
    }

    fn stop(mut self) -> Vec<u8> {
        // Packets sent so far may still be in the kernel's buffer. A last packet of the test's own shows when
        // tcpdump has written them all.
        let mark = b"the end of the recording";
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        stream.write_all(mark).unwrap();
        let bytes = tests::eventually(|| fs::read(&self.file).ok().filter(|bytes| contains(bytes, mark)));
        kill(Pid::from_raw(self.tcpdump.id() as i32), Signal::SIGTERM).unwrap();
        self.tcpdump.wait().unwrap();
        assert!(self.said.wait_end(event_timeout()), "tcpdump has exited, but its standard error is still open");
        let said = self.said.text();
        assert!(said.contains("0 packets dropped by kernel"), "tcpdump: {said}");
        bytes.unwrap_or_else(|| panic!("tcpdump never wrote the last packet: {said}"))
    }
}

fn contains(bytes: &[u8], word: &[u8]) -> bool {
    bytes.windows(word.len()).any(|window| window == word)
}

#[test]
fn nothing_is_sent_in_clear_text() {
    let run = scela().np(6).agents(3).fanout(2).arg("--agents-as-nodes").stdin("secret-input\n");
    let run = run.env("OUTER_VARIABLE", "secret-inherited");
    let file = run.world().file("capture");
    let recording = Recording::start(file);
    let steps = [
        "init",
        "put secret-key-{rank} secret-value-{rank}",
        "fence",
        "get secret-key-0",
        "say secret-output",
        "cmd=publish_name service=secret-service-{rank} port=secret-port",
        "finalize",
    ];
    let outcome = run.args(["-env", "VARIABLE", "secret-variable"]).program(script(steps)).spawn();
    outcome.wait_for_times("secret-output", 6);
    let bytes = recording.stop();
    let outcome = outcome.finish();
    outcome.is_quiet_success();
    // The preamble is not encrypted, so it shows that the run was recorded.
    assert!(contains(&bytes, b"ScELA\r\n"), "the recording should have a preamble");
    // The recording also contains the bytes of other tests, which use neither word. The first one is in the arguments, in a
    // variable, in the input, in the output, and in commands.
    for word in ["secret-", "OUTER_VARIABLE"] {
        assert!(!contains(&bytes, word.as_bytes()), "{word:?} was sent in clear text");
    }
}

#[test]
fn the_key_is_in_no_argument_variable_or_readable_memory() {
    let running = scela().np(3).agents(3).fanout(2).program(script(["init", "say here", "pause"])).spawn();
    running.wait_for_times("here", 3);
    for process in running.world().agents().iter().chain(&running.world().guardians()) {
        let shown = format!("scela-guard {}", running.world().label());
        assert!(process.argv[0] == shown && process.argv[1..].iter().all(String::is_empty), "{process:?}");
        let own: Vec<_> = process
            .environment()
            .into_iter()
            .filter(|(name, _)| name.starts_with("SCELA_") && !name.starts_with("SCELA_SOAK_"))
            .collect();
        let known = ["SCELA_TEST_WORLD", "SCELA_RUN", "SCELA_LOG"];
        assert!(own.iter().all(|(name, value)| known.contains(&name.as_str()) && value.len() < 64), "{own:?}");
        let status = fs::metadata(process.file("mem")).map(|metadata| std::os::unix::fs::MetadataExt::uid(&metadata));
        assert_eq!(status.ok(), Some(0), "a process that is not dumpable has files of root in /proc");
    }
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143).took_less_than(Duration::from_secs(30));
}
