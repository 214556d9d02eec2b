//! Pools among several users: nothing passes between a user's pool or client and another user, even if permissions fail to
//! separate them. For root only.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use nix::unistd::Uid;
use nla::sys::Packets;
use tests::{Pool, skip};

/// The other user. The pools are root's.
const OTHER: u32 = 1002;

/// Listens at a socket as a user, and prints the first message of the first client.
const LISTENER: &str = "import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
os.setresuid(*[int(sys.argv[2])] * 3)
listener.listen()
print('listens', flush=True)
sys.stdout.buffer.write(listener.accept()[0].recv(1 << 20))
";

/// Sends standard input to a socket in one message, and prints the answer.
const CLIENT: &str = "import socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
client.connect(sys.argv[1])
try:
    client.send(sys.stdin.buffer.read())
    sys.stdout.buffer.write(client.recv(1 << 20))
except ConnectionError:
    pass
";

/// Returns whether this process may be several users.
fn is_root() -> bool {
    let is_root = Uid::effective().is_root();
    if !is_root {
        skip("only root can be two users");
    }
    is_root
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
}

/// A process that listens in the place of a pool's controller.
struct Listener {
    socket: PathBuf,
    process: Child,
    said: BufReader<ChildStdout>,
}

impl Listener {
    /// Starts one as `user`, in a directory of pools without a socket.
    fn start(pool: &Pool<'_>, user: u32) -> Self {
        let socket = pool.directory().join("default.sock");
        let mut command = Command::new("python3");
        command.args(["-c", LISTENER]).arg(&socket).arg(user.to_string()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("python3 is installed");
        let mut said = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        assert_eq!(line, "listens\n");
        Self { socket, process, said }
    }

    /// Ends it. Returns the message of the first client, if one had connected.
    fn end(mut self) -> Vec<u8> {
        // It accepts this connection if there was none before.
        let _ = Packets::connect(&self.socket);
        let mut bytes = Vec::new();
        self.said.read_to_end(&mut bytes).unwrap();
        assert!(self.process.wait().unwrap().success());
        fs::remove_file(&self.socket).unwrap();
        bytes
    }
}

/// Makes a directory of pools, as a pool does.
fn make_directory(pool: &Pool<'_>) {
    fs::create_dir(pool.directory()).unwrap();
    set_mode(&pool.directory(), 0o700);
}

/// Returns the bytes with which `scela status` asks a controller, and what it says if it gets no answer.
fn asked(pool: &Pool<'_>, listener: Listener) -> (Vec<u8>, String) {
    let output = pool.scela(&["status", "default"]);
    assert!(!output.status.success(), "{output:?}");
    (listener.end(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn a_client_sends_nothing_to_another_user() {
    if !is_root() {
        return;
    }
    let pool = Pool::unstarted();
    make_directory(&pool);
    let (request, _) = asked(&pool, Listener::start(&pool, 0));
    assert!(!request.is_empty(), "it asks a pool of its own user");
    let (request, said) = asked(&pool, Listener::start(&pool, OTHER));
    assert!(request.is_empty() && said.contains("there is no pool 'default' on this host"), "{request:?}: {said}");
}

#[test]
fn a_controller_answers_no_other_user() {
    if !is_root() {
        return;
    }
    let fake = Pool::unstarted();
    make_directory(&fake);
    let (request, _) = asked(&fake, Listener::start(&fake, 0));
    let pool = Pool::start(&[]);
    let (directory, socket) = (pool.directory(), pool.directory().join("default.sock"));
    // As if permissions were no obstacle.
    for (path, mode) in [(directory.parent().unwrap(), 0o711), (&directory, 0o711), (&socket, 0o777)] {
        set_mode(path, mode);
    }
    let answer = |user| {
        let mut command = Command::new("python3");
        command.args(["-c", CLIENT]).arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut client = command.uid(user).gid(user).current_dir("/").spawn().expect("python3 is installed");
        client.stdin.take().unwrap().write_all(&request).unwrap();
        let output = client.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        output.stdout
    };
    assert!(!answer(0).is_empty(), "its own user gets an answer");
    assert_eq!(answer(OTHER), b"");
    set_mode(&directory, 0o700);
}

#[test]
fn a_directory_of_another_user_is_not_used() {
    if !is_root() {
        return;
    }
    let pool = Pool::unstarted();
    make_directory(&pool);
    let start = || {
        let output = pool.scela(&["pool", "start"]);
        assert!(!output.status.success(), "{output:?}");
        assert!(fs::read_dir(pool.directory()).unwrap().next().is_none(), "it makes nothing");
    };
    chown(pool.directory(), Some(OTHER), Some(OTHER)).unwrap();
    start();
    // The listener is the pools' own user's: the directory alone is wrong.
    let (request, said) = asked(&pool, Listener::start(&pool, 0));
    assert!(request.is_empty(), "{said}");
    // That user could replace a directory of root's there.
    chown(pool.directory(), Some(0), Some(0)).unwrap();
    let above = pool.directory().parent().unwrap().to_owned();
    set_mode(&above, 0o755);
    chown(&above, Some(OTHER), Some(OTHER)).unwrap();
    start();
}
