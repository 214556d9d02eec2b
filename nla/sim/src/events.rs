//! Future events, in the order of their times.
//!
//! The queue is a radix heap. Time never goes back, so an event lies in the bucket of the highest bit in which its
//! time differs from the current time, and moves to lower buckets as that time approaches. Adding and removing an
//! event cost a few instructions, whatever the number of events. Events of the same time leave in the order in which
//! they were added, so that every run is reproducible.

/// An event that will happen at a place.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Event {
    /// Its time, in nanoseconds.
    pub(crate) at: u64,
    /// The number of the place; 0 is the root.
    pub(crate) member: u32,
    /// Its kind.
    pub(crate) kind: EventKind,
}

/// The kind of an [`Event`]. Ranks are given by their index among those of their agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum EventKind {
    /// The agent joins its parent.
    Join,
    /// The message in this slot arrives.
    Message(u32),
    /// The time of a `WakeAt` is reached.
    Timer,
    /// The agent starts its next group of ranks.
    StartRanks,
    /// A rank continues its program. The second number is that of its start.
    RankStep(u32, u32),
    /// A rank's process has ended. The second number is that of its start.
    RankEnded(u32, u32),
    /// The agent has no descendant process left.
    Swept,
    /// The place has read its own output to the end.
    OutputRead,
    /// The end markers of output have been sent to the parent.
    OutputEndSent,
    /// This link to a child has failed.
    ChildLost(u32),
    /// The child of this link is silent, and its host answers.
    ChildSilent(u32),
    /// This link to the parent has failed.
    ParentLost(u32),
    /// The place finds that it was stopped, for so many nanoseconds.
    Stopped(u64),
    /// An agent that has lost its parent looks for an ancestor.
    Search,
    /// Bootstrap finds that this agent died before it joined.
    NeverJoined(u32),
    /// A fault of the scenario is injected.
    Fault(u32),
}

const BUCKETS: usize = 65;

/// The events that have not happened yet.
pub(crate) struct Queue {
    buckets: Vec<Vec<Event>>,
    /// A bit for each bucket after the first: set if the bucket has events.
    occupied: u64,
    /// The number of events of the first bucket that were taken.
    taken: usize,
    now: u64,
}

impl Queue {
    /// Creates an empty queue at time 0.
    pub(crate) fn new() -> Self {
        Self { buckets: vec![Vec::new(); BUCKETS], occupied: 0, taken: 0, now: 0 }
    }

    /// Returns the time of the last event taken.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Returns whether no event is left.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.occupied == 0 && self.taken == self.buckets[0].len()
    }

    /// Adds an event. If `at` is in the past, the event happens now.
    pub(crate) fn push(&mut self, at: u64, member: u32, kind: EventKind) {
        self.insert(Event { at: at.max(self.now), member, kind });
    }

    fn insert(&mut self, event: Event) {
        let bucket = (u64::BITS - (event.at ^ self.now).leading_zeros()) as usize;
        if bucket > 0 {
            self.occupied |= 1 << (bucket - 1);
        }
        self.buckets[bucket].push(event);
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.taken == self.buckets[0].len() {
            self.buckets[0].clear();
            self.taken = 0;
            if self.occupied == 0 {
                return None;
            }
            let bucket = self.occupied.trailing_zeros() as usize + 1;
            self.occupied &= !(1 << (bucket - 1));
            let mut events = std::mem::take(&mut self.buckets[bucket]);
            self.now = events.iter().map(|event| event.at).min().unwrap_or(self.now);
            for event in events.drain(..) {
                self.insert(event);
            }
            // All events moved to lower buckets: put the empty vector back to keep its memory.
            self.buckets[bucket] = events;
        }
        let event = self.buckets[0][self.taken];
        self.taken += 1;
        Some(event)
    }
}

/// Items with a number each. Numbers are reused.
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Creates an empty slab.
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Adds an item and returns its number.
    pub(crate) fn insert(&mut self, item: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(item);
                slot
            }
            None => {
                self.slots.push(Some(item));
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Removes an item.
    pub(crate) fn take(&mut self, slot: u32) -> Option<T> {
        let item = self.slots.get_mut(slot as usize)?.take();
        if item.is_some() {
            self.free.push(slot);
        }
        item
    }

    /// Returns the number of items.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn events_leave_by_time_then_by_insertion() {
        let mut random = Random::new(7);
        let (mut queue, mut all) = (Queue::new(), Vec::new());
        let mut taken = Vec::new();
        for number in 0..20_000 {
            let spread = 1 << random.below(40);
            let at = queue.now() + random.below(spread);
            queue.push(at, number, EventKind::Timer);
            all.push((at, number));
            if random.once_in(2) {
                taken.extend(queue.pop().map(|event| (event.at, event.member)));
            }
        }
        taken.extend(std::iter::from_fn(|| queue.pop()).map(|event| (event.at, event.member)));
        assert!(queue.is_empty());
        assert!(taken.is_sorted());
        all.sort_unstable();
        assert_eq!(taken, all);
    }

    #[test]
    fn slots_are_reused() {
        let mut slab = Slab::new();
        let (one, two) = (slab.insert(1), slab.insert(2));
        assert_eq!((slab.take(one), slab.take(one), slab.len()), (Some(1), None, 1));
        assert_eq!(slab.insert(3), one);
        assert_eq!(slab.take(two), Some(2));
    }
}
