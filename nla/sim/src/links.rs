//! Links: how long a message is, when it arrives, and what happens to it when the link fails.

use nla::core::{AgentId, Down, Input, ReleaseContent, RootInput, Up, Update};
use nla::wire::{Message, bytes_on_link, decode_down};
use pmi::{Epoch, Keys};

use crate::events::EventKind;
use crate::faults::Mutation;
use crate::world::{State, World};

/// Bytes of the record that an urgent message may have to wait for.
const RECORD_BYTES: u64 = nla::core::limits::RECORD_BYTES_MAX as u64;
/// Bytes on the wire of the end markers of two output lanes.
const STREAM_ENDS_BYTES: u64 = 2 * 23;
/// Bytes of the headers of these two messages.
const STREAM_ENDS_HEADERS: u64 = 2 * 4;

/// The link between an agent and its parent. An agent that joins another parent gets a new link, so that nothing of the old
/// one reaches either of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) parent: u32,
    pub(crate) child: u32,
    /// The link was cut: it delivers nothing.
    pub(crate) cut: bool,
    /// The link delivers nothing before this time.
    pub(crate) held_until: u64,
    /// The parent still receives from the link.
    pub(crate) parent_listens: bool,
    /// The child still receives from the link.
    pub(crate) child_listens: bool,
    /// The parent has not received the end marker of the child's output.
    pub(crate) stream_open: bool,
    /// When the last message of each lane arrives: control and board up, control and board down.
    last: [u64; 4],
}

impl Link {
    /// The link of a child that has not joined this parent.
    pub(crate) fn new(parent: u32, child: u32) -> Self {
        Self { parent, child, ..Self::default() }
    }

    /// Opens both ends.
    pub(crate) fn open(&mut self) {
        self.parent_listens = true;
        self.child_listens = true;
        self.stream_open = true;
    }

    /// Delivers nothing before this time: the packets are lost until then and sent again.
    pub(crate) fn hold(&mut self, until: u64) {
        self.held_until = self.held_until.max(until);
        // Later messages do not overtake those that wait.
        self.last.iter_mut().for_each(|last| *last = (*last).max(until + 1));
    }
}

/// A message that was sent and has not arrived.
pub(crate) struct InFlight {
    link: u32,
    from: u32,
    bytes: u64,
    payload: Payload,
}

/// The content of a message.
pub(crate) enum Payload {
    /// To the parent.
    Up(Up),
    /// To a child.
    Down(Down),
    /// To the parent: the end markers of all output lanes.
    StreamsEnded,
}

impl World {
    /// Sends a message to the parent.
    pub(crate) fn send_up(&mut self, from: usize, clock: &mut u64, message: Up) {
        if matches!(message, Up::Gathering { .. } | Up::Gathered { .. } | Up::Put { .. }) {
            self.members[from].fence_messages_up += 1;
        }
        let link = self.members[from].link;
        let encoded = message.encoded_bytes();
        let is_board = message.is_board();
        self.members[from].driver_counts.up.note(is_board, encoded);
        let message = if self.setup.checked { Up::decode(&message.encode()).unwrap_or(message) } else { message };
        self.send(from, link, clock, encoded, is_board, Payload::Up(message));
    }

    /// Sends a message to a child. It is dropped if the child has another parent.
    pub(crate) fn send_down(&mut self, from: usize, to: u32, clock: &mut u64, message: Down) {
        let link = self.members[to as usize].link;
        if self.links[link as usize].parent as usize != from {
            return;
        }
        self.counts.released += u64::from(matches!(message, Down::Release { .. }));
        let encoded = message.encoded_bytes();
        let is_board = message.is_board();
        self.members[from].driver_counts.down.note(is_board, encoded);
        let message = if self.setup.checked {
            decode_down(&message.encode().into(), |_, _| None).unwrap_or(message)
        } else {
            message
        };
        self.send(from, link, clock, encoded, is_board, Payload::Down(message));
    }

    /// Sends a message of `encoded` bytes.
    fn send(&mut self, from: usize, number: u32, clock: &mut u64, encoded: usize, is_board: bool, payload: Payload) {
        let is_stream = matches!(payload, Payload::StreamsEnded);
        let bytes = if is_stream { STREAM_ENDS_BYTES } else { bytes_on_link(encoded) as u64 };
        let costs = &self.setup.costs;
        self.members[from].driver_counts.link_bytes += bytes;
        *clock += costs.sending(bytes);
        let takes = costs.transmission(bytes);
        let out = &mut self.members[from].nic;
        let sent = if is_board {
            out[1] = out[1].max(*clock) + takes;
            out[1]
        } else {
            let idle = out[0].max(*clock);
            // A control message waits only for the record that is being sent, not for the rest of a board message.
            let record = costs.transmission(RECORD_BYTES).min(out[1].saturating_sub(idle));
            out[0] = idle + record + takes;
            out[1] = out[1].max(idle) + takes;
            out[0]
        };
        let delay = self.random_delay();
        let link = &mut self.links[number as usize];
        let is_up = link.child as usize == from;
        let to = if is_up { link.parent } else { link.child };
        if !is_stream {
            self.counts.note_sent(self.members[link.child as usize].depth, is_up, is_board, encoded, bytes);
        }
        let lane = usize::from(is_board) + if is_up { 0 } else { 2 };
        let arrives = (sent + self.setup.costs.latency + delay).max(link.last[lane]);
        link.last[lane] = arrives;
        let listened = if is_up { link.child_listens } else { link.parent_listens };
        if listened && !link.cut {
            let slot = self.messages.insert(InFlight { link: number, from: from as u32, bytes, payload });
            self.queue.push(arrives, to, EventKind::Message(slot));
        }
    }

    /// Draws an additional delay; 0 if the scenario has none.
    pub(crate) fn random_delay(&mut self) -> u64 {
        let max = self.setup.faults.delay;
        if max > 0 { self.random.below(max) } else { 0 }
    }

    /// A message arrives, unless its link or its sender failed meanwhile.
    pub(crate) fn receive(&mut self, here: usize, at: u64, slot: u32) {
        let Some(message) = self.messages.take(slot) else { return };
        let InFlight { link: number, from, .. } = message;
        let link = &self.links[number as usize];
        if at < link.held_until {
            let slot = self.messages.insert(message);
            return self.queue.push(link.held_until, here as u32, EventKind::Message(slot));
        }
        let InFlight { bytes, payload, .. } = message;
        let listens = if from == link.child { link.parent_listens } else { link.child_listens };
        if link.cut || !listens || self.members[from as usize].state == State::Crashed {
            return;
        }
        self.on_processor(here, at, |world, clock| {
            *clock += world.setup.costs.receiving(bytes);
            match payload {
                Payload::Up(message) if here == 0 => {
                    let before = world.counts.released;
                    world.root_input(clock, RootInput::FromChild(AgentId(from), message));
                    world.counts.note_releases(before);
                }
                Payload::Up(message) => world.input(here, clock, Input::FromChild(AgentId(from), message)),
                Payload::Down(message) => world.receive_down(here, clock, message),
                Payload::StreamsEnded => {
                    if std::mem::take(&mut world.links[number as usize].stream_open) {
                        world.on_stream_end(here, clock);
                    }
                }
            }
        });
    }

    fn receive_down(&mut self, here: usize, clock: &mut u64, mut message: Down) {
        *clock += self.checking(&message);
        if matches!(message, Down::Release { .. }) {
            let sent = std::mem::take(&mut self.members[here].fence_messages_up);
            self.counts.note_fence_messages_up(sent);
        }
        if let Some(Mutation::MissUpdate { agent, after }) = self.setup.mutation
            && agent as usize == here
            && let Down::Release { number, content: ReleaseContent::Update(update), .. } = &mut message
            && *number == after
        {
            *update = match update {
                Update::Epoch(_) | Update::Pieces(_) => Update::Epoch(Epoch::default()),
                Update::Overwritten(_) => Update::Overwritten(Keys::default()),
            };
        }
        if let Some(Mutation::DamagePiece { agent, after }) = self.setup.mutation
            && agent as usize == here
            && let Down::Piece { number, piece, .. } = &mut message
            && *number == after
        {
            let mut bytes = piece.bytes().to_vec();
            bytes[0] ^= 1;
            *piece = piece.with_bytes(bytes.into());
        }
        let before = self.counts.released;
        self.input(here, clock, Input::FromParent(message));
        self.counts.note_releases(before);
    }

    /// An output stream of this place has ended: its own or a child's. After the last one an agent sends the end
    /// markers to its parent; at the root the launcher's writers finish.
    pub(crate) fn on_stream_end(&mut self, here: usize, clock: &mut u64) {
        let member = &mut self.members[here];
        member.streams_open = member.streams_open.saturating_sub(1);
        self.end_output(here, clock);
    }

    /// Reports the end of the subtree's output, once all of it has arrived and no other agent will join here.
    pub(crate) fn end_output(&mut self, here: usize, clock: &mut u64) {
        let is_final = match &self.members[here].core {
            _ if !self.setup.on_failure.adopts() => true,
            None => self.root.is_ending() && !self.root.awaits_agents(),
            Some(core) => !core.awaits_agents(),
        };
        let member = &mut self.members[here];
        if !is_final || member.state != State::Joined || member.streams_open > 0 || member.has_output_ended {
            return;
        }
        member.has_output_ended = true;
        if here == 0 {
            self.root_input(clock, RootInput::OutputDone);
        } else if member.core.is_some() {
            let link = member.link;
            member.driver_counts.stream_bytes += STREAM_ENDS_HEADERS;
            self.send(here, link, clock, 0, true, Payload::StreamsEnded);
            let sent = *clock + self.setup.costs.transmission(STREAM_ENDS_BYTES);
            self.queue.push(sent, here as u32, EventKind::OutputEndSent);
        }
    }

    /// A child has closed its end of the link, or has crashed. Returns false if the parent had closed its own end
    /// before.
    pub(crate) fn child_is_lost(&mut self, here: usize, link: u32) -> bool {
        let link = &mut self.links[link as usize];
        if !std::mem::take(&mut link.parent_listens) {
            return false;
        }
        if std::mem::take(&mut link.stream_open) {
            self.on_processor(here, self.queue.now(), |world, clock| world.on_stream_end(here, clock));
        }
        true
    }

    /// A place closes its link to a child. Messages sent before still arrive.
    pub(crate) fn close_child(&mut self, parent: usize, child: u32, clock: u64) {
        let number = self.members[child as usize].link;
        let link = &mut self.links[number as usize];
        if link.parent as usize != parent || !std::mem::take(&mut link.parent_listens) {
            return;
        }
        let stream_open = std::mem::take(&mut link.stream_open);
        let at = (clock + self.setup.costs.latency).max(link.last[2]).max(link.last[3]);
        self.queue.push(at, child, EventKind::ParentLost(number));
        if stream_open {
            let mut clock = clock;
            self.on_stream_end(parent, &mut clock);
        }
    }

    /// An agent closes its link to its parent.
    pub(crate) fn close_parent(&mut self, child: usize, clock: u64) {
        let number = self.members[child].link;
        let link = &mut self.links[number as usize];
        if std::mem::take(&mut link.child_listens) {
            let at = (clock + self.setup.costs.latency).max(link.last[0]).max(link.last[1]);
            self.queue.push(at, link.parent, EventKind::ChildLost(number));
        }
    }
}
