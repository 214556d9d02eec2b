//! The links to the children of one end of the tree, an agent or the root: joining, messages down, output, losses.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use litemap::LiteMap;
use tokio::sync::Notify;

use super::queue::Queue;
use crate::core::{AgentId, Down, LossReason, Traffic, Up};
use crate::link::{Accepted, Link, LinkEvent, Liveness, Meter, Receipt, StreamSink, Ticks};
use crate::tasks::Tasks;
use crate::wire::{DownEncoder, Lane, decode};

/// The settings and counters that all links of one end share, the link to a parent included.
pub(super) struct LinkContext {
    pub(super) tasks: Tasks,
    /// The times of heartbeats and of checks that peers are alive.
    pub(super) ticks: Ticks,
    /// While true, the silence of a peer is no sign of its loss.
    pub(super) suspended: Rc<Cell<bool>>,
    pub(super) meter: Meter,
    pub(super) events: Queue<(AgentId, LinkEvent)>,
}

impl LinkContext {
    /// The links of the agent `here`, or of the root.
    pub(super) fn new(here: AgentId, liveness: Liveness, tasks: Tasks) -> Self {
        let (suspended, meter) = (Rc::default(), Meter::default());
        let ticks = Ticks::start(here, liveness, &tasks);
        Self { tasks, ticks, suspended, meter, events: Queue::new() }
    }

    /// Starts the tasks of a link. Messages with a window go to `streams`, all others to the queue.
    pub(super) fn start(&self, accepted: Accepted, streams: StreamSink) -> Link {
        let (events, suspended) = (self.events.sender(), Rc::clone(&self.suspended));
        Link::start(accepted, events, streams, &self.ticks, suspended, self.meter.clone(), &self.tasks)
    }

    /// Waits until a link ends and returns its peer. Drops the messages before that.
    pub(super) async fn next_lost(&mut self) -> AgentId {
        loop {
            if let (peer, LinkEvent::Lost(_)) = self.events.next().await {
                return peer;
            }
        }
    }
}

struct Child {
    link: Link,
    /// The number of lanes to the root, of output, collected files and profiles, that have not ended.
    lanes_open: Rc<Cell<u8>>,
}

/// The meaning of an event of a child's link.
pub(super) enum Received {
    Message(Up),
    /// Nothing was heard from the child for this time, and its machine answers.
    Silent(Duration),
    /// The child is lost.
    Lost(LossReason),
    /// The child is lost before all output of its subtree has arrived.
    OutputLost(LossReason),
}

/// The children that have joined and are not lost.
#[derive(Default)]
pub(super) struct Children {
    links: LiteMap<AgentId, Child>,
    /// The session's plan asks for profiles, so each child sends an end of that lane, too.
    pub(super) sends_profiles: bool,
    /// The number of children that have ever joined; each joins once.
    pub(super) joined: usize,
    encoder: DownEncoder,
    /// The traffic sent down, in messages and bytes.
    pub(super) sent: Traffic,
    /// Notified of each output lane that ends and each child that is lost.
    pub(super) output_ended: Rc<Notify>,
}

impl Children {
    /// Adds a child. Its output goes to `forward`, which drops the receipt when the bytes have been passed on.
    pub(super) fn join(
        &mut self,
        accepted: Accepted,
        links: &LinkContext,
        mut forward: impl FnMut(Lane, Bytes, Receipt) + 'static,
    ) {
        let lanes_open = Rc::new(Cell::new(3 + u8::from(self.sends_profiles)));
        let (open, output_ended) = (Rc::clone(&lanes_open), Rc::clone(&self.output_ended));
        let child = accepted.peer;
        let streams: StreamSink = Box::new(move |lane, bytes, receipt| {
            if !matches!(lane, Lane::Stdout | Lane::Stderr | Lane::Stage | Lane::Profile) {
                // The other lanes lead down, or have no window.
            } else if bytes.is_empty() {
                open.set(open.get().saturating_sub(1));
                output_ended.notify_one();
            } else {
                forward(lane, bytes, receipt);
            }
        });
        let link = links.start(accepted, streams);
        self.joined += 1;
        self.links.insert(child, Child { link, lanes_open });
    }

    /// Expects profiles of all children. No child sends the end of its lanes before it has the session's plan.
    pub(super) fn expect_profiles(&mut self) {
        self.sends_profiles = true;
        self.links.values().for_each(|child| child.lanes_open.set(child.lanes_open.get() + 1));
    }

    /// Sends a message. `in_log` returns the offset of an epoch's bytes in the launcher's log, if the child can read it
    /// there. A message to a child that is lost is dropped.
    pub(super) fn send(
        &mut self,
        child: AgentId,
        message: &Down,
        receipt: Receipt,
        in_log: impl FnOnce(&Bytes) -> Option<u64>,
    ) {
        let Some(child) = self.links.get(&child) else { return };
        let lane = if message.is_board() { Lane::Board } else { Lane::Control };
        let bytes = self.encoder.encode(message, in_log);
        self.sent.note(message.is_board(), bytes.len());
        child.link.send(lane, bytes, receipt);
    }

    /// Drops the encoded release after it has been sent to all children.
    pub(super) fn forget_release(&mut self) {
        self.encoder.forget();
    }

    /// Closes the link to a child that broke the protocol, after the messages that are queued for the child.
    pub(super) fn cut_off(&mut self, child: AgentId) {
        if let Some(child) = self.links.remove(&child) {
            child.link.close();
            self.output_ended.notify_one();
        }
    }

    /// Removes a child whose link has ended. Returns false if it was removed before.
    pub(super) fn remove(&mut self, child: AgentId) -> bool {
        let was_linked = self.links.remove(&child).is_some();
        if was_linked {
            self.output_ended.notify_one();
        }
        was_linked
    }

    /// Takes an event of a child's link; `None` if it needs no answer. A child that sends no valid message is cut off;
    /// its messages that are still in the queue are dropped.
    pub(super) fn receive(&mut self, child: AgentId, event: LinkEvent) -> Option<Received> {
        match event {
            LinkEvent::Message(bytes) if self.links.contains_key(&child) => Some(match decode(&bytes) {
                Ok(message) => Received::Message(message),
                Err(error) => {
                    self.cut_off(child);
                    // Output that is still under way is lost with the link.
                    Received::OutputLost(LossReason::Undecodable(error.to_string()))
                }
            }),
            LinkEvent::Message(_) => None,
            LinkEvent::Silent(time) => self.links.contains_key(&child).then_some(Received::Silent(time)),
            LinkEvent::Lost(why) => {
                let lanes_open = self.links.get(&child)?.lanes_open.get();
                self.remove(child);
                Some(if lanes_open == 0 { Received::Lost(why) } else { Received::OutputLost(why) })
            }
        }
    }

    /// Returns the links to all children.
    pub(super) fn links(&self) -> Vec<(AgentId, Link)> {
        self.links.iter().map(|(id, child)| (*id, child.link.clone())).collect()
    }

    pub(super) fn link(&self, child: AgentId) -> Option<&Link> {
        self.links.get(&child).map(|child| &child.link)
    }

    /// Returns whether none of the remaining children will send output.
    pub(super) fn have_ended_output(&self) -> bool {
        self.links.values().all(|child| child.lanes_open.get() == 0)
    }

    /// Closes all links, after the messages that are queued for them.
    pub(super) fn close(&self) {
        self.links.values().for_each(|child| child.link.close());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// Returns the children whose links have not ended.
    pub(super) fn left(&self) -> Vec<AgentId> {
        self.links.keys().copied().collect()
    }
}
