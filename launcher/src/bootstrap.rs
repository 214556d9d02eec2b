//! Starting agents on this machine: bootstrap "fork".
//!
//! Each agent is started under its guardian, which is this same program. The two pipes of a
//! guardian's standard input and output are the bootstrap channel: the session's key and the
//! address of the agent's parent go in, where the agent listens comes out. They are closed as soon
//! as the agent is part of the tree.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use nla::core::limits::BOOT_BYTES_MAX;
use nla::core::{AgentId, Subtree};
use nla::wire::{BootOrder, BootReport, ParentAddress, decode, encode, marked};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;

/// An agent that will not come.
#[derive(Debug)]
pub(crate) struct BootFailure {
    /// Which.
    pub(crate) agent: AgentId,
    /// Why, in words.
    pub(crate) why: String,
}

/// Where agents listen, as far as is known.
#[derive(Default)]
struct Addresses {
    known: RefCell<BTreeMap<AgentId, SocketAddr>>,
    changed: Notify,
}

/// The guardians that this launcher has started, until they have ended.
pub(crate) struct Guardians {
    children: Vec<Child>,
    conversations: Vec<AbortHandle>,
}

/// What all agents of a session are told.
pub(crate) struct Bootstrap {
    /// The order; `agent` is filled in for each.
    pub(crate) order: BootOrder,
    /// The whole tree.
    pub(crate) tree: Subtree,
    /// Where the root listens.
    pub(crate) root: SocketAddr,
    /// This host's name.
    pub(crate) host: String,
}

impl Bootstrap {
    /// Starts all agents; those that fail before they have joined go to `events`.
    pub(crate) fn start(self, events: &mpsc::UnboundedSender<BootFailure>) -> Guardians {
        let addresses = Rc::new(Addresses::default());
        addresses.known.borrow_mut().insert(AgentId::ROOT, self.root);
        let mut children = Vec::new();
        let mut conversations = Vec::new();
        for agent in (1..self.tree.size()).map(AgentId) {
            let order = BootOrder { agent, ..self.order.clone() };
            match self.spawn(&order) {
                Ok((child, input, output)) => {
                    let parent = self.tree.parent_of(agent).unwrap_or(AgentId::ROOT);
                    let (addresses, events) = (Rc::clone(&addresses), events.clone());
                    let conversation = tokio::task::spawn_local(async move {
                        if let Err(why) = converse(&order, parent, &addresses, input, output).await {
                            let _ = events.send(BootFailure { agent, why });
                        }
                    });
                    conversations.push(conversation.abort_handle());
                    children.push(child);
                }
                Err(error) => {
                    let why = format!("its process could not be started: {error}");
                    let _ = events.send(BootFailure { agent, why });
                }
            }
        }
        Guardians { children, conversations }
    }

    fn spawn(&self, order: &BootOrder) -> io::Result<(Child, Sender, Receiver)> {
        let mut child = Command::new("/proc/self/exe")
            .arg0("scela-guard")
            .args([&self.host, &order.label, &order.dead_time.as_millis().to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take()).ok_or_else(|| io::Error::other("no pipes"))?;
        let input = Sender::from_owned_fd(OwnedFd::from(pipes.0))?;
        let output = Receiver::from_owned_fd(OwnedFd::from(pipes.1))?;
        Ok((child, input, output))
    }
}

async fn converse(
    order: &BootOrder,
    parent: AgentId,
    addresses: &Addresses,
    mut input: Sender,
    mut output: Receiver,
) -> Result<(), String> {
    let gone = |_| "it ended before it had joined the tree; see SCELA_LOG=debug".to_owned();
    input.write_all(&frame(order)).await.map_err(gone)?;
    let mut said = Vec::new();
    let start = loop {
        match marked(&said, &order.marker) {
            Ok(Some(start)) => break start,
            Ok(None) => {}
            Err(error) => return Err(error.to_string()),
        }
        if output.read_buf(&mut said).await.map_err(gone)? == 0 {
            let words = String::from_utf8_lossy(&said);
            let words = words.trim();
            return Err(if words.is_empty() {
                "it ended before it had said anything".to_owned()
            } else {
                format!("it ended; its last words: {words}")
            });
        }
    };
    said.drain(..start);
    let tell_parent = async {
        let address = addresses.of(parent).await;
        input.write_all(&frame(&ParentAddress(address))).await
    };
    let listen = async {
        loop {
            match next_report(&mut said, &mut output).await? {
                BootReport::Listening { address, host, descriptors } => {
                    tracing::debug!(agent = %order.agent, %host, descriptors, "an agent is there");
                    if let Some(address) = address {
                        addresses.add(order.agent, address);
                    }
                }
                BootReport::Joined => return Ok(()),
                BootReport::Failed { why } => return Err(why),
            }
        }
    };
    let (told, joined) = tokio::join!(tell_parent, listen);
    joined.and(told.map_err(gone))
}

fn frame<M: serde::Serialize>(message: &M) -> Vec<u8> {
    let bytes = encode(message);
    [&(bytes.len() as u32).to_le_bytes(), &bytes[..]].concat()
}

async fn next_report(said: &mut Vec<u8>, output: &mut Receiver) -> Result<BootReport, String> {
    loop {
        if let Some(length) = said.first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > BOOT_BYTES_MAX {
                return Err("it said something that no agent says".to_owned());
            }
            if let Some(bytes) = said.get(4..4 + length) {
                let report = decode(bytes).map_err(|error| format!("it said {error}"))?;
                said.drain(..4 + length);
                return Ok(report);
            }
        }
        match output.read_buf(said).await {
            Ok(0) => return Err("it ended before it had joined the tree".to_owned()),
            Ok(_) => {}
            Err(error) => return Err(format!("its channel broke: {error}")),
        }
    }
}

impl Addresses {
    fn add(&self, agent: AgentId, address: SocketAddr) {
        self.known.borrow_mut().insert(agent, address);
        self.changed.notify_waiters();
    }

    async fn of(&self, agent: AgentId) -> SocketAddr {
        loop {
            let changed = self.changed.notified();
            if let Some(address) = self.known.borrow().get(&agent) {
                return *address;
            }
            changed.await;
        }
    }
}

impl Guardians {
    /// Waits until all have ended, for at most `patience`; those that are left are told to end
    /// what they guard, and waited for once more. Returns how many did not.
    pub(crate) async fn wait(&mut self, patience: Duration) -> usize {
        // An agent that has not joined ends when its channel does.
        self.conversations.drain(..).for_each(|conversation| conversation.abort());
        let Ok(mut ended) = signal(SignalKind::child()) else { return self.children.len() };
        for _ in 0..2 {
            let all = async {
                while !self.reap() {
                    ended.recv().await;
                }
            };
            if timeout(patience, all).await.is_ok() {
                return 0;
            }
            for child in &self.children {
                let pid = nix::unistd::Pid::from_raw(child.id() as i32);
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            }
        }
        self.children.len()
    }

    /// Takes out those that have ended. True when none is left.
    fn reap(&mut self) -> bool {
        self.children.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                tracing::debug!(code = status.code(), signal = status.signal(), "a guardian has ended");
                false
            }
            Err(_) => false,
        });
        self.children.is_empty()
    }
}
