//! Strangers: processes without the session's key that connect to its ports.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket};

use crate::cluster::Host;
use crate::sockets::ports_of_thread;

/// Connections that a [`Strangers`] keeps open at a time. The process also needs descriptors for its tests.
const OPEN_MAX: usize = 4_000;
/// Connections that are begun at a time, and the pause after them.
const BURST: usize = 500;
const PAUSE: Duration = Duration::from_millis(5);
/// The time between two looks at the ports. The kernel lists all connections with them, which takes long.
const LOOK_TIME: Duration = Duration::from_millis(50);

/// The target of the connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// All ports on which processes of the host listen, sshd excepted.
    Ports,
    /// A program of their own that accepts each connection and closes it: what the connections alone cost.
    Acceptor,
}

/// Connections that a thread makes on a host, until it is stopped. In turn, one stays silent, one sends random bytes,
/// one is closed at once as by a port scan, and one sends the hello of another session.
pub struct Strangers {
    stop: Arc<AtomicBool>,
    made: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    /// Starts to connect from `host` to its own ports, at most `count` times. `hello` is the first message of a peer.
    #[track_caller]
    pub fn start(host: &Host, target: Target, count: usize, hello: Vec<u8>) -> Self {
        let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let limit = getrlimit(Resource::RLIMIT_NOFILE).map(|(_, hard)| hard).unwrap_or_default();
        setrlimit(Resource::RLIMIT_NOFILE, limit, limit).expect("the limit on open files can be raised");
        let namespace = File::open(format!("/proc/{}/ns/net", host.pid())).expect("a host has a network namespace");
        let mut threads = Vec::new();
        let (connects, counts, other) = (Arc::clone(&stop), Arc::clone(&made), namespace.try_clone());
        let mut acceptor = None;
        if target == Target::Acceptor {
            let (port, thread) = accept_and_close(other.expect("a descriptor"), Arc::clone(&stop));
            acceptor = Some(port);
            threads.push(thread);
        }
        threads.push(thread::spawn(move || {
            setns(&namespace, CloneFlags::CLONE_NEWNET).expect("a thread can enter a host's network");
            let (mut begun, mut open) = (VecDeque::new(), VecDeque::new());
            let mut random = File::open("/dev/urandom").expect("random bytes");
            let (mut ports, mut looked) = (acceptor.map_or_else(ports_of_thread, |port| vec![port]), Instant::now());
            while counts.load(Relaxed) < count && !connects.load(Relaxed) {
                if acceptor.is_none() && (ports.is_empty() || looked.elapsed() > LOOK_TIME) {
                    (ports, looked) = (ports_of_thread(), Instant::now());
                }
                let wanted = BURST.min(count - counts.load(Relaxed)).min(if ports.is_empty() { 0 } else { BURST });
                begun.extend(ports.iter().cycle().take(wanted).filter_map(|port| begin(*port).ok()));
                for _ in 0..begun.len() {
                    let Some(connection): Option<TcpStream> = begun.pop_front() else { break };
                    if connection.peer_addr().is_ok() {
                        behave(counts.fetch_add(1, Relaxed), connection, &hello, &mut random, &mut open);
                    } else if matches!(connection.take_error(), Ok(None)) {
                        // The kernel repeats the first packet.
                        begun.push_back(connection);
                    }
                }
                begun.drain(..begun.len().saturating_sub(OPEN_MAX));
                thread::park_timeout(PAUSE);
            }
        }));
        Self { stop, made, threads }
    }

    /// Stops, closes all connections, and returns how many were made.
    pub fn stop(mut self) -> usize {
        self.end();
        self.made.load(Relaxed)
    }

    fn end(&mut self) {
        self.stop.store(true, Relaxed);
        for thread in self.threads.drain(..).rev() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Begins a connection to a port of this thread's network, and does not wait for it.
fn begin(port: u16) -> io::Result<TcpStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    match connect(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}

/// Lets one of four kinds of strangers use a connection. The session may close it at any time.
fn behave(number: usize, mut connection: TcpStream, hello: &[u8], random: &mut File, open: &mut VecDeque<TcpStream>) {
    use std::io::Read;
    match number % 4 {
        0 => {}
        1 => {
            let mut noise = [0; 100];
            random.read_exact(&mut noise).expect("random bytes");
            let _ = connection.write_all(&noise);
        }
        2 => return,
        _ => drop(connection.write_all(hello)),
    }
    open.push_back(connection);
    if open.len() > OPEN_MAX {
        open.pop_front();
    }
}

/// Starts a thread in a network that accepts connections and closes them, until `stop`.
fn accept_and_close(namespace: File, stop: Arc<AtomicBool>) -> (u16, JoinHandle<()>) {
    let (told, port) = std::sync::mpsc::channel();
    let thread = thread::spawn(move || {
        setns(&namespace, CloneFlags::CLONE_NEWNET).expect("a thread can enter a host's network");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let _ = told.send(listener.local_addr().expect("an address").port());
        listener.set_nonblocking(true).expect("a listener can be made nonblocking");
        while !stop.load(Relaxed) {
            while let Ok((connection, _)) = listener.accept() {
                drop(connection);
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    });
    (port.recv().expect("the thread listens"), thread)
}
