//! The processes of an agent's ranks.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use pmi::{Rank, Ranks};
use tokio::sync::oneshot;

use crate::core::{Activity, Exit, LastCall, NamespaceId, ProcessState};
use crate::figures;
use crate::sys::{self, Child, Ended, MemoryShortage, MemoryWatch};

const SIGUSR1: i32 = 10;

/// A rank of this agent.
pub(super) type Key = (NamespaceId, Rank);

struct Entry {
    child: Child,
    ended: oneshot::Sender<Exit>,
    /// The rank's last call, as its task has noted it.
    last_call: Rc<Cell<LastCall>>,
}

/// The running ranks, by process and by rank. Only a rank in the table can be signalled. A rank is removed when its
/// process is reaped, so no signal is sent to a reused pid.
#[derive(Default)]
pub(super) struct RankTable {
    by_pid: HashMap<u32, Key>,
    by_rank: BTreeMap<Key, Entry>,
    memory: Option<MemoryWatch>,
}

impl RankTable {
    /// Adds a rank that has just started. Its exit is sent to `ended`. Its task notes each call of PMI in the result.
    pub(super) fn insert(&mut self, key: Key, child: Child, ended: oneshot::Sender<Exit>) -> Rc<Cell<LastCall>> {
        let last_call = Rc::default();
        self.by_pid.insert(child.pid(), key);
        self.by_rank.insert(key, Entry { child, ended, last_call: Rc::clone(&last_call) });
        last_call
    }

    /// Notes a call of a rank that its task has not seen.
    pub(super) fn note_call(&self, key: Key, call: LastCall) {
        if let Some(entry) = self.by_rank.get(&key) {
            entry.last_call.set(call);
        }
    }

    /// Stores the counters from before the first rank ran, at the first call.
    pub(super) fn watch_memory(&mut self, memory: MemoryWatch) {
        self.memory.get_or_insert(memory);
    }

    /// Sends a reaped child's exit to its rank's task. Returns true if the child was a rank, and false if it was an
    /// orphan that this agent had adopted as a subreaper.
    pub(super) fn on_reaped(&mut self, pid: u32, ended: Ended) -> bool {
        let Some(key) = self.by_pid.remove(&pid) else { return false };
        if let Some(entry) = self.by_rank.remove(&key) {
            // The rank's task has ended only if the agent is leaving.
            let _ = entry.ended.send(self.exit(ended));
        }
        true
    }

    /// Returns whether this is the process of a rank.
    pub(super) fn is_rank(&self, pid: u32) -> bool {
        self.by_pid.contains_key(&pid)
    }

    /// Returns the number of running ranks.
    pub(super) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Returns the processes of the running ranks.
    pub(super) fn pids(&self) -> Vec<u32> {
        self.by_pid.keys().copied().collect()
    }

    fn exit(&mut self, ended: Ended) -> Exit {
        match ended {
            Ended::Exited(code) => Exit::Code(code),
            Ended::Killed { signal, core } => {
                let shortage = self.memory.as_mut().filter(|_| signal == 9).and_then(MemoryWatch::take_kill);
                let out_of_memory = shortage.map(|shortage| self.memory_text(&shortage)).unwrap_or_default();
                Exit::Signal { signal, core, out_of_memory }
            }
        }
    }

    /// Says where memory ran out, and how much the ranks of this agent had.
    fn memory_text(&self, shortage: &MemoryShortage) -> String {
        let largest = figures::bytes(sys::largest_child_bytes());
        let text = format!("{shortage}; of this agent's ranks, the largest that has ended had {largest}");
        match self.len() {
            0 => text,
            left => {
                let have = figures::bytes(sys::resident_bytes(self.pids()));
                format!(
                    "{text}, and the {left} that {} left {} {have}",
                    if left == 1 { "is" } else { "are" },
                    if left == 1 { "has" } else { "have" }
                )
            }
        }
    }

    /// Returns the process of a rank that runs.
    pub(super) fn pid_of(&self, key: Key) -> Option<u32> {
        self.by_rank.get(&key).map(|entry| entry.child.pid())
    }

    /// Returns what those `ranks` do that still run.
    pub(super) fn activities(&self, namespace: NamespaceId, ranks: &Ranks) -> Vec<(Activity, Ranks)> {
        let mut found: BTreeMap<Activity, Ranks> = BTreeMap::new();
        for (start, end) in ranks.intervals() {
            for ((_, rank), entry) in self.by_rank.range((namespace, Rank(*start))..(namespace, Rank(*end))) {
                let process = state_of(sys::process_state(entry.child.pid()));
                found.entry(Activity { call: entry.last_call.get(), process }).or_default().insert(*rank);
            }
        }
        found.into_iter().collect()
    }

    /// Sends SIGUSR1 to the processes of the namespace's ranks that catch it: others would end.
    pub(super) fn notify(&self, namespace: NamespaceId) {
        for (_, entry) in self.by_rank.range((namespace, Rank(0))..=(namespace, Rank(u32::MAX))) {
            let pid = entry.child.pid();
            if sys::catches(pid, SIGUSR1)
                && let Err(error) = entry.child.signal(SIGUSR1)
            {
                tracing::debug!(%error, pid, "SIGUSR1 was not delivered");
            }
        }
    }

    /// Sends a signal to the process groups of those `ranks` that still run.
    pub(super) fn signal(&self, namespace: NamespaceId, ranks: &Ranks, signal: i32) {
        for (start, end) in ranks.intervals() {
            for (_, entry) in self.by_rank.range((namespace, Rank(*start))..(namespace, Rank(*end))) {
                if let Err(error) = entry.child.signal_group(signal) {
                    tracing::debug!(%error, signal, "a signal was not delivered");
                }
            }
        }
    }
}

/// Returns the meaning of a state's letter.
fn state_of(letter: Option<u8>) -> ProcessState {
    match letter {
        Some(b'R') => ProcessState::Running,
        Some(b'D') => ProcessState::Blocked,
        Some(b'T' | b't') => ProcessState::Stopped,
        // A process that was not reaped has ended too.
        None | Some(b'Z' | b'X' | b'x') => ProcessState::Ended,
        // S, I, and the rare states of a process that is about to sleep or to wake up.
        Some(_) => ProcessState::Sleeping,
    }
}
