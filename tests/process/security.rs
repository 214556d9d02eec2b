//! Links refuse strangers, and their traffic is unreadable.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use nla::core::AgentId;
use nla::wire::{HelloError, Initiator, PREAMBLE_BYTES, Role, SessionId};
use tests::{Capture, Process, Running, Tree, event_timeout, eventually, scela, tcp_sockets};

use crate::script;

const ROLE: Role = Role::Link { parent: AgentId::ROOT };

/// Returns the addresses at which `processes` listen.
fn listeners(processes: &[Process]) -> Vec<SocketAddrV4> {
    let listening = |process| tcp_sockets(process).into_iter().filter(|socket| socket.listens);
    processes.iter().flat_map(listening).map(|socket| socket.local).collect()
}

/// Starts a run in which one agent waits for another, whose guardian was stopped when it started. Returns the run,
/// the address at which the agent listens, and the processes to continue. Returns `None` if the guardian was
/// stopped too late.
fn stopped_while_joining() -> Option<(Running, SocketAddrV4, Vec<Process>)> {
    let run = scela().np(3).agents(3).fanout(2).env("SCELA_LOG", "warn");
    let running = run.program(script(["init", "say here", "fence", "finalize"])).spawn();
    let launcher = running.launcher();
    let tree = Tree::new(3, 2);
    let (late, waiting) = (tree.leaf() as usize - 1, tree.parent(tree.leaf()) as usize - 1);
    let deadline = Instant::now() + event_timeout();
    // Poll without a pause, because the agents join within a few milliseconds. Do not stop the process before it
    // has become a guardian: until then its parent waits for it, as after a vfork.
    let guardian = loop {
        if let Some(guardian) = launcher.children().get(late).filter(|child| child.name == "scela-guard").cloned() {
            break guardian;
        }
        assert!(Instant::now() < deadline, "no guardian was started");
    };
    guardian.signal(Signal::SIGSTOP);
    let mut stopped = vec![guardian.clone()];
    stopped.extend(guardian.children());
    Process::signal_all(&stopped, Signal::SIGSTOP);
    let first = launcher.children()[waiting].clone();
    let address = eventually(|| {
        let agents = first.children();
        let joined = agents.iter().any(|agent| tcp_sockets(agent).iter().any(|socket| socket.established));
        let address = listeners(&agents).first().copied();
        // An agent that has joined and does not listen has all its children: the guardian was stopped too late.
        (joined || !running.stdout().text().is_empty()).then_some(address)
    });
    match address.flatten() {
        Some(address) => Some((running, address, stopped)),
        None => {
            Process::signal_all(&stopped, Signal::SIGCONT);
            running.finish().has_code(0);
            None
        }
    }
}

/// Sends only `bytes`, then reads until the peer closes. Returns `None` if no process listens any more.
fn answer(address: SocketAddrV4, bytes: &[u8]) -> Option<Vec<u8>> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(event_timeout())).unwrap();
    // Either call fails if the peer has already read enough and closed the connection.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("{address} neither answers nor closes"),
        _ => Some(answer),
    }
}

/// Returns the error that an initiator of `session` with a wrong key receives from `address`.
fn refusal(address: SocketAddrV4, session: SessionId) -> Option<HelloError> {
    let (stranger, hello) = Initiator::new(session, &[7; 32], ROLE).unwrap();
    stranger.verdict(answer(address, &hello)?.first_chunk()?).err()
}

/// Tries every attempt of a stranger. Returns `None` if no process listens any more.
fn try_all_attempts(address: SocketAddrV4) -> Option<()> {
    assert_eq!(refusal(address, SessionId(1))?, HelloError::Session);
    let (_, hello) = Initiator::new(SessionId(1), &[7; 32], ROLE).unwrap();
    let mut other = hello.clone();
    other[8..10].copy_from_slice(&99u16.to_be_bytes());
    let words = answer(address, &other)?;
    // The session's public name is at the end of the preamble. It authenticates nothing.
    let session = words.get(PREAMBLE_BYTES - 8..PREAMBLE_BYTES)?.try_into().unwrap();
    assert_eq!(words.len(), PREAMBLE_BYTES + 1, "another version gets a preamble and a verdict");
    assert_eq!(refusal(address, SessionId(u64::from_be_bytes(session)))?, HelloError::Key);
    answer(address, b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: a client of some other protocol here\r\n\r\n")?;
    // An incomplete hello gets no answer.
    answer(address, &hello[..PREAMBLE_BYTES + 3])?.is_empty().then_some(())?;
    TcpStream::connect(address).ok().map(drop)
}

#[test]
fn strangers_are_refused_with_messages_and_the_job_continues() {
    // The last child may have joined between two checks. Then no process listens any more.
    let caught = (0..20).filter_map(|_| stopped_while_joining()).find_map(|(running, address, stopped)| {
        let listens = try_all_attempts(address).is_some();
        if !listens {
            Process::signal_all(&stopped, Signal::SIGCONT);
            running.finish().has_code(0);
            return None;
        }
        Some((running, address, stopped))
    });
    let (running, address, stopped) = caught.expect("in one of 20 runs, a guardian is stopped while agents join");
    // Connections that stay silent do not delay the job.
    let silent: Vec<_> = (0..20).flat_map(|_| TcpStream::connect(address)).collect();
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
    let run = scela().np(6).agents(3).fanout(2).env("OUTER_VARIABLE", "secret-inherited").stdin("secret-input\n");
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
