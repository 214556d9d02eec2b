//! [`RankState`]: the state of one rank's conversation, the same for both versions of PMI.

use std::borrow::Cow;
use std::sync::Arc;

use crate::board::{DEAD_PROCESSES, PendingPuts, check_put};
use crate::engine::{Awaited, Refusal, Violation};
use crate::limits::{ABORT_MESSAGE_BYTES_MAX, FENCES_BESIDE_MAX};
use crate::{Board, Epoch, LookUp, Puts, Rank, Ranks, Request};

/// The attributes of a namespace, which are the same for all of its ranks on this agent.
#[derive(Clone, PartialEq, Debug)]
pub struct JobAttributes {
    /// The namespace's name on the wire: without blanks and at most 32 bytes long, since Charm++ cuts its lines when
    /// name and key are longer than 68 bytes together. It differs from the name of any job that this one may connect to.
    pub kvsname: String,
    /// The name of the namespace whose rank spawned this one.
    pub spawner: Option<String>,
    /// The number of ranks of the namespace.
    pub size: u32,
    /// The value of `MPI_UNIVERSE_SIZE`; a negative one hides the attribute.
    pub universe_size: i32,
    /// `PMI_process_mapping` ([`Mapping::wire_value`](crate::Mapping::wire_value)). With `None`, MPI libraries compare
    /// host names instead.
    pub mapping: Option<String>,
    /// The entries that the spawning rank put for its children; empty in a namespace that was not spawned.
    pub preputs: Epoch,
    /// Whether each put is handed on when it is made ([`Request::Put`]) instead of with the fence.
    pub puts_at_once: bool,
}

/// The key of the preput with the kinds of memory that the user asks the MPI library to support. MPICH reads it as an
/// attribute of the job; no rank can put it.
pub const MEMORY_ALLOC_KINDS: &[u8] = b"PMI_mpi_memory_alloc_kinds";

/// The attribute of the job with which MPICH 5 asks for the name of a file that describes the node to hwloc. The host makes
/// that file on request ([`Request::TopologyFile`]); no rank can put the key.
pub const TOPOLOGY_FILE: &[u8] = b"PMI_hwloc_xmlfile";

impl JobAttributes {
    /// Returns the value that the agent itself provides for a key.
    pub fn attribute(&self, key: &[u8]) -> Option<Vec<u8>> {
        match key {
            b"PMI_process_mapping" => self.mapping.as_deref().map(|mapping| mapping.as_bytes().to_vec()),
            b"universeSize" if self.universe_size >= 0 => Some(self.universe_size.to_string().into_bytes()),
            MEMORY_ALLOC_KINDS => self.preputs.get(key).map(<[u8]>::to_vec),
            _ => None,
        }
    }

    /// Returns the entries that ranks find before any rank has put anything: the bottom of a shared board.
    ///
    /// A preput of a key replaces the agent's own value.
    pub fn entries(&self) -> Epoch {
        let attributes = [&b"universeSize"[..], b"PMI_process_mapping", MEMORY_ALLOC_KINDS];
        let attributes: Vec<_> = attributes.iter().filter_map(|key| Some((*key, self.attribute(key)?))).collect();
        let attributes = attributes.iter().map(|(key, value)| (*key, value.as_slice()));
        let preputs = self.preputs.iter().filter(|(key, _)| !key.starts_with(b"PMI_"));
        Epoch::from_entries(attributes.chain(preputs))
    }
}

/// The phase of a rank's conversation.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    New,
    Active,
    Finalized,
    Broken,
}

/// The protocol version that a rank speaks, as chosen by its last `init`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    One,
    Two,
}

/// A fence that a rank is in while its other threads make requests.
#[derive(Clone, Debug)]
struct FenceBeside {
    /// The group and its tag; `None` for the fence of all ranks.
    group: Option<(Ranks, u32)>,
    thread: Option<u32>,
}

/// The state of one rank's conversation.
#[derive(Clone, Debug)]
pub(crate) struct RankState {
    pub(crate) attributes: Arc<JobAttributes>,
    pub(crate) rank: Rank,
    /// The number of the rank's command.
    pub(crate) appnum: i32,
    phase: Phase,
    pub(crate) version: Version,
    /// The answer that the rank waits for, and the version of its request.
    pub(crate) awaited: Option<(Version, Awaited)>,
    /// The fences that the rank is in beside other requests.
    fences: Vec<FenceBeside>,
    /// The rank's puts since the last fence that it entered with the others, whether they were handed on or not.
    pending: PendingPuts,
    /// The rank has started again, and has left no fence together with the others.
    pub(crate) catches_up: bool,
    /// The entries that fences of groups have shown since the last fence of all ranks.
    learned: Board,
    /// The length of the encoded puts that follow the last command.
    pub(crate) puts_bytes: Option<usize>,
}

impl RankState {
    pub(crate) fn new(attributes: Arc<JobAttributes>, rank: Rank, appnum: i32) -> Self {
        let (phase, version) = (Phase::New, Version::One);
        let pending = PendingPuts::default();
        let learned = Board::new();
        let (awaited, fences, puts_bytes) = (None, Vec::new(), None);
        Self {
            attributes,
            rank,
            appnum,
            phase,
            version,
            awaited,
            fences,
            pending,
            catches_up: false,
            learned,
            puts_bytes,
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// The rank has initialised PMI. Intel MPI does so more than once without finalising in between, and joins once.
    pub(crate) fn join(&mut self) -> Option<Request> {
        let joins = !self.is_active();
        self.enter(Phase::Active, "init");
        joins.then_some(Request::Joined)
    }

    /// The rank has finalised PMI.
    pub(crate) fn finalize(&mut self) -> Request {
        self.fences.clear();
        self.enter(Phase::Finalized, "finalize");
        Request::Finalized
    }

    /// Ends the conversation.
    pub(crate) fn break_off(&mut self, violation: Violation) -> Request {
        let why = violation.to_string();
        self.enter(Phase::Broken, &why);
        self.pending = PendingPuts::default();
        Request::Broken { why }
    }

    /// Changes the phase.
    fn enter(&mut self, phase: Phase, why: &str) {
        if self.phase != phase {
            tracing::trace!(rank = self.rank.0, from = ?self.phase, to = ?phase, why, "the phase of a rank's PMI changes");
            self.phase = phase;
        }
    }

    /// Looks up a key by the rules of [`crate::conversation`].
    pub(crate) fn look_up<'a>(&'a self, key: &[u8], board: &'a Board) -> LookUp<'a> {
        if key == DEAD_PROCESSES {
            return found(board.dead().map(|ranks| ranks.as_bytes().into()));
        }
        if key.starts_with(b"PMI_") {
            return found(self.attributes.attribute(key).map(Cow::Owned));
        }
        if let Some(value) = self.pending.get(key) {
            return LookUp::Found(value.into());
        }
        if let Some(value) = self.learned.get(key) {
            return LookUp::Found(value.into());
        }
        match board.look_up(key) {
            LookUp::Unknown if check_put(key, b"").is_ok() => LookUp::Unknown,
            // No rank has put it, or could put it.
            LookUp::Absent | LookUp::Unknown => found(self.default_value(key)),
            value @ LookUp::Found(_) => value,
        }
    }

    /// Returns the value of a key that no rank has put.
    pub(crate) fn default_value(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let preput = self.attributes.preputs.get(key).map(Cow::Borrowed);
        preput.or_else(|| self.attributes.attribute(key).map(Cow::Owned))
    }

    /// Stores a put that was checked. Returns a request if puts are handed on at once.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Request>, Refusal<'static>> {
        if !self.pending.push(self.rank, key, value) {
            return Err(Refusal::PendingFull);
        }
        Ok(self.attributes.puts_at_once.then(|| {
            let mut puts = Puts::new();
            puts.push(self.rank, key, value);
            Request::Put { puts }
        }))
    }

    /// The rank has arrived at a fence and waits for the reply.
    pub(crate) fn fence(&mut self) -> Request {
        Request::Fence { puts: self.take_puts(), in_segment: false }
    }

    /// The rank has arrived at a fence with these encoded puts and waits in the segment.
    pub(crate) fn fence_in_segment(&mut self, bytes: &[u8]) -> Result<Request, Violation> {
        if !self.is_active() {
            return Err(Violation::FenceBeforeInit);
        }
        let mut puts = Puts::from_rank(self.rank, bytes)?;
        // A rank uses one interface for its puts, but may use both.
        if !self.pending.is_empty() {
            let mut all = self.take_puts();
            all.append(&puts);
            puts = all;
        }
        Ok(Request::Fence { puts, in_segment: true })
    }

    /// The rank enters a fence, and makes other requests before it is over.
    pub(crate) fn enter_fence(
        &mut self,
        group: Option<(Ranks, u32)>,
        thread: Option<u32>,
    ) -> Result<(), Refusal<'static>> {
        if self.fences.iter().any(|fence| fence.group == group) {
            return Err(Refusal::InFence);
        }
        if self.fences.len() >= FENCES_BESIDE_MAX {
            return Err(Refusal::TooManyFences);
        }
        self.fences.push(FenceBeside { group, thread });
        Ok(())
    }

    /// Such a fence is over. Returns the `thrid` of its request, `None` if the rank is not in it.
    pub(crate) fn leave_fence(&mut self, group: Option<(&Ranks, u32)>) -> Option<Option<u32>> {
        let is_it = |fence: &FenceBeside| fence.group.as_ref().map(|(ranks, tag)| (ranks, *tag)) == group;
        let at = self.fences.iter().position(is_it)?;
        Some(self.fences.swap_remove(at).thread)
    }

    /// Returns the encoded puts since the last fence of all ranks.
    pub(crate) fn pending_bytes(&self) -> &[u8] {
        self.pending.bytes()
    }

    /// The rank has left a fence of a group, whose ranks contributed these encoded puts.
    pub(crate) fn learn(&mut self, payload: &[u8]) {
        let learned = Puts::from_peers(payload).and_then(|puts| Epoch::merge(&puts));
        match learned {
            Ok(epoch) => self.learned.publish(epoch),
            Err(error) => tracing::warn!(rank = self.rank.0, %error, "the puts of a group cannot be read"),
        }
    }

    /// The rank has left a fence together with the others.
    pub(crate) fn catch_up(&mut self) {
        if !self.learned.is_empty() {
            self.learned = Board::new();
        }
        if std::mem::take(&mut self.catches_up) {
            self.pending = PendingPuts::default();
        }
    }

    /// Returns the puts since the last fence that were not handed on yet.
    fn take_puts(&mut self) -> Puts {
        let at_once = self.attributes.puts_at_once;
        if self.catches_up {
            return if at_once { Puts::new() } else { self.pending.pass_on() };
        }
        let puts = self.pending.take();
        if at_once { Puts::new() } else { puts }
    }
}

fn found(value: Option<Cow<'_, [u8]>>) -> LookUp<'_> {
    value.map_or(LookUp::Absent, LookUp::Found)
}

/// Cuts a rank's text and replaces control characters, so that a terminal can show it.
pub(crate) fn readable(message: &[u8]) -> String {
    let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    String::from_utf8_lossy(message).chars().map(shown).collect()
}
