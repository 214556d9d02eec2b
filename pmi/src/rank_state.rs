//! [`RankState`]: what the agent knows of one rank, whatever version of PMI it speaks.

use std::borrow::Cow;
use std::sync::Arc;

use crate::board::{PendingPuts, check_put};
use crate::limits::ABORT_MESSAGE_BYTES_MAX;
use crate::{Board, Epoch, LookUp, Puts, Rank, Request};

/// What is the same for all ranks of a namespace on this agent.
#[derive(Clone, PartialEq, Debug)]
pub struct JobAttributes {
    /// The namespace's name on the wire: without blanks, at most 32 bytes (Charm++ cuts its lines
    /// when name and key are longer than 68 together), different from that of any job that this one
    /// may connect to.
    pub kvsname: String,
    /// The name of the namespace whose rank spawned this one.
    pub spawner: Option<String>,
    /// How many ranks the namespace has.
    pub size: u32,
    /// What `MPI_UNIVERSE_SIZE` shall be; negative hides the attribute.
    pub universe_size: i32,
    /// `PMI_process_mapping` ([`Mapping::wire_value`](crate::Mapping::wire_value)); `None` makes
    /// MPI libraries compare host names instead.
    pub mapping: Option<String>,
    /// What the parent put for its children; empty in a namespace that was not spawned.
    pub preputs: Epoch,
    /// Each put is handed on when it is made ([`Request::Put`]), not with the fence.
    pub puts_at_once: bool,
}

impl JobAttributes {
    /// What the agent itself provides under a key: an attribute of the job.
    pub fn attribute(&self, key: &[u8]) -> Option<Vec<u8>> {
        match key {
            b"PMI_process_mapping" => self.mapping.as_deref().map(|mapping| mapping.as_bytes().to_vec()),
            b"universeSize" if self.universe_size >= 0 => Some(self.universe_size.to_string().into_bytes()),
            _ => None,
        }
    }

    /// All that can be looked up before anybody has put anything, the weakest of it first: what
    /// lies at the bottom of a shared board.
    pub fn entries(&self) -> Epoch {
        let attributes = [&b"universeSize"[..], b"PMI_process_mapping"];
        let attributes: Vec<_> = attributes.iter().filter_map(|key| Some((*key, self.attribute(key)?))).collect();
        let attributes = attributes.iter().map(|(key, value)| (*key, value.as_slice()));
        let preputs = self.preputs.iter().filter(|(key, _)| !key.starts_with(b"PMI_"));
        Epoch::from_entries(attributes.chain(preputs))
    }
}

/// How far the rank has come.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    New,
    Active,
    Finalized,
    Broken,
}

/// Which protocol the rank speaks: its last `init` says so.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum Version {
    One,
    Two,
}

/// See the module. The engines change it as the rank speaks.
#[derive(Clone, Debug)]
pub(crate) struct RankState {
    pub(crate) attributes: Arc<JobAttributes>,
    pub(crate) rank: Rank,
    /// The number of the rank's command.
    pub(crate) appnum: i32,
    pub(crate) phase: Phase,
    pub(crate) version: Version,
    /// What it put since its last fence, be it on its way already or not.
    pub(crate) pending: PendingPuts,
    /// The bytes of puts that follow what it said last.
    pub(crate) puts_bytes: Option<usize>,
}

impl RankState {
    pub(crate) fn new(attributes: Arc<JobAttributes>, rank: Rank, appnum: i32) -> Self {
        let (phase, version) = (Phase::New, Version::One);
        Self { attributes, rank, appnum, phase, version, pending: PendingPuts::default(), puts_bytes: None }
    }

    pub(crate) fn is_active(&self) -> bool {
        self.phase == Phase::Active
    }

    /// The rank has initialised PMI. Intel MPI does so more than once, without finalising in
    /// between, and joins only once.
    pub(crate) fn join(&mut self) -> Option<Request> {
        let joins = !self.is_active();
        self.phase = Phase::Active;
        joins.then_some(Request::Joined)
    }

    /// What a get finds, by the rules of [`crate::conversation`].
    pub(crate) fn look_up<'a>(&'a self, key: &[u8], board: &'a Board) -> LookUp<'a> {
        if key.starts_with(b"PMI_") {
            return found(self.attributes.attribute(key).map(Cow::Owned));
        }
        if let Some(value) = self.pending.get(key) {
            return LookUp::Found(value.into());
        }
        match board.look_up(key) {
            LookUp::Unknown if check_put(key, b"").is_ok() => LookUp::Unknown,
            // Or nobody can have put it.
            LookUp::Absent | LookUp::Unknown => found(self.default_value(key)),
            value @ LookUp::Found(_) => value,
        }
    }

    /// What a get finds of a key that no rank has put.
    pub(crate) fn default_value(&self, key: &[u8]) -> Option<Cow<'_, [u8]>> {
        let preput = self.attributes.preputs.get(key).map(Cow::Borrowed);
        preput.or_else(|| self.attributes.attribute(key).map(Cow::Owned))
    }

    /// Notes a put that was checked. `Err` when there is no room for it; a request when it is to be
    /// handed on at once.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Request>, PendingFull> {
        if !self.pending.push(self.rank, key, value) {
            return Err(PendingFull);
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

    /// What the rank put since its last fence and is not on its way yet.
    fn take_puts(&mut self) -> Puts {
        let puts = self.pending.take();
        if self.attributes.puts_at_once { Puts::new() } else { puts }
    }

    /// The rank has arrived at a fence, brings these puts of its own, and waits in the segment.
    pub(crate) fn fence_in_segment(&mut self, bytes: &[u8]) -> Request {
        if !self.is_active() {
            return self.break_off("entered a fence without having initialised".into());
        }
        match Puts::from_rank(self.rank, bytes) {
            Err(why) => self.break_off(format!("put what it may not: {why}")),
            // A rank puts one way or the other.
            Ok(puts) if self.pending.is_empty() => Request::Fence { puts, in_segment: true },
            Ok(own) => {
                let mut puts = self.take_puts();
                puts.append(&own);
                Request::Fence { puts, in_segment: true }
            }
        }
    }

    /// Ends the conversation from this side.
    pub(crate) fn break_off(&mut self, why: String) -> Request {
        self.phase = Phase::Broken;
        self.pending = PendingPuts::default();
        Request::Broken { why }
    }
}

/// There is no room for a put before the next fence.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct PendingFull;

fn found(value: Option<Cow<'_, [u8]>>) -> LookUp<'_> {
    value.map_or(LookUp::Absent, LookUp::Found)
}

/// A rank's words as they may be shown on a terminal.
pub(crate) fn readable(message: &[u8]) -> String {
    let message = &message[..message.len().min(ABORT_MESSAGE_BYTES_MAX)];
    let shown = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    String::from_utf8_lossy(message).chars().map(shown).collect()
}
