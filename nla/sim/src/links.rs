//! Links: what a message weighs, how long it takes, and what becomes of it when a link breaks.

use nla::core::{AgentId, Down, Input, ReleaseContent, RootInput, Up, Update};
use nla::wire::{Message, bytes_on_link, decode_down};
use pmi::{Epoch, Keys};

use crate::events::What;
use crate::faults::Mutation;
use crate::report::Way;
use crate::world::{State, World};

/// Bytes that an urgent message may find being sent before it.
const RECORD_BYTES: u64 = nla::core::limits::RECORD_BYTES_MAX as u64;
/// Bytes of the end markers of two lanes of output.
const STREAM_ENDS_BYTES: u64 = 2 * 23;
/// Those of them that are the headers of the two messages.
const STREAM_ENDS_HEADERS: u64 = 2 * 4;

/// The link between an agent and its parent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    /// Nothing comes through any more.
    pub(crate) cut: bool,
    /// The parent takes in what comes.
    pub(crate) parent_listens: bool,
    /// The child takes in what comes.
    pub(crate) child_listens: bool,
    /// The parent has not heard that no output follows.
    pub(crate) stream_open: bool,
    /// When the last message of each lane arrives: control and board up, control and board down.
    last: [u64; 4],
}

/// What is on its way.
pub(crate) struct ShellLinks {
    from: u32,
    bytes: u64,
    body: Body,
}

/// A message.
pub(crate) enum Body {
    /// To the parent.
    Up(Up),
    /// To a child.
    Down(Down),
    /// No output follows.
    StreamsEnded,
}

impl World {
    /// Sends to the parent.
    pub(crate) fn send_up(&mut self, from: usize, clock: &mut u64, message: Up) {
        if matches!(message, Up::Gathered { .. } | Up::Put { .. }) {
            self.places[from].told_up += 1;
        }
        let to = self.places[from].parent;
        let encoded = message.encoded_bytes();
        let bytes = bytes_on_link(encoded) as u64;
        let is_board = message.is_board();
        self.places[from].counted.up.note(is_board, encoded);
        let message = if self.checked { Up::decode(&message.encode()).unwrap_or(message) } else { message };
        self.send(from, to, clock, (encoded, bytes), is_board, Body::Up(message));
    }

    /// Sends to a child.
    pub(crate) fn send_down(&mut self, from: usize, to: u32, clock: &mut u64, message: Down) {
        self.tally.released += u64::from(matches!(message, Down::Release { .. }));
        let encoded = message.encoded_bytes();
        let bytes = bytes_on_link(encoded) as u64;
        let is_board = message.is_board();
        self.places[from].counted.down.note(is_board, encoded);
        let message =
            if self.checked { decode_down(&message.encode().into(), |_, _| None).unwrap_or(message) } else { message };
        self.send(from, to, clock, (encoded, bytes), is_board, Body::Down(message));
    }

    /// Sends something that is so long, by itself and on the wire.
    fn send(
        &mut self,
        from: usize,
        to: u32,
        clock: &mut u64,
        (encoded, bytes): (usize, u64),
        is_board: bool,
        body: Body,
    ) {
        self.places[from].counted.link_bytes += bytes;
        *clock += self.costs.sending(bytes);
        let takes = self.costs.transmission(bytes);
        let out = &mut self.places[from].nic;
        let sent = if is_board {
            out[1] = out[1].max(*clock) + takes;
            out[1]
        } else {
            let idle = out[0].max(*clock);
            // Whatever else is being sent waits, but for the record that is under way.
            let record = self.costs.transmission(RECORD_BYTES).min(out[1].saturating_sub(idle));
            out[0] = idle + record + takes;
            out[1] = out[1].max(idle) + takes;
            out[0]
        };
        let delay = if self.delay > 0 { self.random.below(self.delay) } else { 0 };
        let child = from.max(to as usize);
        let is_up = child == from;
        if !matches!(body, Body::StreamsEnded) {
            let way = if is_up { Way::Up } else { Way::Down };
            self.tally.note_sent(self.places[child].depth, way, is_board, encoded, bytes);
        }
        let link = &mut self.places[child].link;
        let lane = usize::from(is_board) + if is_up { 0 } else { 2 };
        let arrives = (sent + self.costs.latency + delay).max(link.last[lane]);
        link.last[lane] = arrives;
        let listened = if is_up { link.child_listens } else { link.parent_listens };
        if listened && !link.cut {
            let slot = self.messages.insert(ShellLinks { from: from as u32, bytes, body });
            self.queue.push(arrives, to, What::Message(slot));
        }
    }

    /// A message arrives, if it does.
    pub(crate) fn arrive(&mut self, here: usize, at: u64, slot: u32) {
        let Some(ShellLinks { from, bytes, body }) = self.messages.take(slot) else { return };
        let is_up = from as usize > here;
        let link = &self.places[here.max(from as usize)].link;
        let listens = if is_up { link.parent_listens } else { link.child_listens };
        if link.cut || !listens || self.places[from as usize].state == State::Crashed {
            return;
        }
        let began = self.processors.begin(here, at);
        let mut clock = began + self.costs.receiving(bytes);
        match body {
            Body::Up(message) => {
                if here == 0 {
                    let before = self.tally.released;
                    self.root_input(&mut clock, RootInput::FromChild(AgentId(from), message));
                    self.tally.note_told_down(before);
                } else {
                    self.input(here, &mut clock, Input::FromChild(AgentId(from), message));
                }
            }
            Body::Down(message) => self.take_down(here, &mut clock, message),
            Body::StreamsEnded => {
                if std::mem::take(&mut self.places[from as usize].link.stream_open) {
                    self.on_stream_end(here, &mut clock);
                }
            }
        }
        self.processors.done(here, began, clock);
    }

    fn take_down(&mut self, here: usize, clock: &mut u64, message: Down) {
        *clock += self.checking(&message);
        if matches!(message, Down::Release { .. }) {
            let told = std::mem::take(&mut self.places[here].told_up);
            self.tally.note_told_up(told);
        }
        let message = self.missed(here, message);
        let before = self.tally.released;
        self.input(here, clock, Input::FromParent(message));
        self.tally.note_told_down(before);
    }

    /// What is left of a message where the mutation has an agent miss what a fence brought.
    fn missed(&mut self, here: usize, message: Down) -> Down {
        match (self.mutation, message) {
            (
                Some(Mutation::MissUpdate { agent, after }),
                Down::Release { namespace, number, content: ReleaseContent::Update(news) },
            ) if agent as usize == here && number == after => {
                let news = match news {
                    Update::Epoch(_) => Update::Epoch(Epoch::default()),
                    Update::Overwritten(_) => Update::Overwritten(Keys::default()),
                };
                Down::Release { namespace, number, content: ReleaseContent::Update(news) }
            }
            (_, message) => message,
        }
    }

    /// Output from this place has come to its end, its own or a child's; when that was the last, the
    /// parent is told, or the launcher's writers finish.
    pub(crate) fn on_stream_end(&mut self, here: usize, clock: &mut u64) {
        let place = &mut self.places[here];
        place.streams_open = place.streams_open.saturating_sub(1);
        if place.streams_open > 0 {
            return;
        }
        if here == 0 {
            self.root_input(clock, RootInput::OutputDone);
        } else if place.core.is_some() {
            let parent = place.parent;
            place.counted.stream_bytes += STREAM_ENDS_HEADERS;
            self.send(here, parent, clock, (0, STREAM_ENDS_BYTES), true, Body::StreamsEnded);
            self.queue.push(*clock + self.costs.transmission(STREAM_ENDS_BYTES), here as u32, What::Told);
        }
    }

    /// A child's end of its link is gone. False if the parent's is too.
    pub(crate) fn child_is_lost(&mut self, here: usize, child: u32) -> bool {
        let link = &mut self.places[child as usize].link;
        if !std::mem::take(&mut link.parent_listens) {
            return false;
        }
        if std::mem::take(&mut link.stream_open) {
            let began = self.processors.begin(here, self.queue.now());
            let mut clock = began;
            self.on_stream_end(here, &mut clock);
            self.processors.done(here, began, clock);
        }
        true
    }

    /// A place closes its link to a child: what was sent before still arrives.
    pub(crate) fn close_child(&mut self, child: u32, clock: u64) {
        let parent = self.places[child as usize].parent as usize;
        let link = &mut self.places[child as usize].link;
        if !std::mem::take(&mut link.parent_listens) {
            return;
        }
        let stream_open = std::mem::take(&mut link.stream_open);
        let at = (clock + self.costs.latency).max(link.last[2]).max(link.last[3]);
        self.queue.push(at, child, What::ParentLost);
        if stream_open {
            let mut clock = clock;
            self.on_stream_end(parent, &mut clock);
        }
    }

    /// An agent closes its link to its parent.
    pub(crate) fn close_parent(&mut self, child: usize, clock: u64) {
        let parent = self.places[child].parent;
        let link = &mut self.places[child].link;
        if std::mem::take(&mut link.child_listens) {
            let at = (clock + self.costs.latency).max(link.last[0]).max(link.last[1]);
            self.queue.push(at, parent, What::ChildLost(child as u32));
        }
    }
}
