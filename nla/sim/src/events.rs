//! What is to happen, in order of time.
//!
//! A radix heap: time never goes back, so an event lies in the bucket of the highest bit in which its
//! time differs from now, and is moved down a bucket at a time as now comes nearer. Both ends cost a
//! few instructions, however many events there are. Events of one time leave in the order in which
//! they came in, so that a run is the same each time.

/// Something that will happen at a place of the tree.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Event {
    /// When, in nanoseconds.
    pub(crate) at: u64,
    /// At which agent; 0 is the root.
    pub(crate) to: u32,
    /// What.
    pub(crate) what: What,
}

/// See [`Event`]. Ranks are numbered among those of their agent.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// The agent has said hello to its parent.
    Join,
    /// The message in this slot arrives.
    Message(u32),
    /// The time of `WakeAt` has come.
    Timer,
    /// The next batch of ranks is to be started.
    StartRanks,
    /// A rank goes on.
    Step(u32),
    /// A rank's process has ended.
    Ended(u32),
    /// No descendant is left.
    Swept,
    /// The place's own output has been read.
    Drained,
    /// The parent has been told that no output follows.
    Told,
    /// The link to a child is gone.
    ChildLost(u32),
    /// The link to the parent is gone.
    ParentLost,
    /// The bootstrap has found this agent dead before it had joined.
    NeverJoined(u32),
    /// One of the scenario's faults strikes.
    Fault(u32),
}

const BUCKETS: usize = 65;

/// The events that have not happened yet.
pub(crate) struct Queue {
    buckets: Vec<Vec<Event>>,
    /// Which of the buckets behind the first have events.
    taken: u64,
    /// How many of the first bucket have left.
    left: usize,
    now: u64,
    len: usize,
}

impl Queue {
    /// Nothing to happen; the time is 0.
    pub(crate) fn new() -> Self {
        Self { buckets: vec![Vec::new(); BUCKETS], taken: 0, left: 0, now: 0, len: 0 }
    }

    /// The time of what happened last.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Whether nothing is left to happen.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event; one of the past happens now.
    pub(crate) fn push(&mut self, at: u64, to: u32, what: What) {
        self.len += 1;
        self.place(Event { at: at.max(self.now), to, what });
    }

    fn place(&mut self, event: Event) {
        let bucket = (u64::BITS - (event.at ^ self.now).leading_zeros()) as usize;
        if bucket > 0 {
            self.taken |= 1 << (bucket - 1);
        }
        self.buckets[bucket].push(event);
    }

    /// Takes the next event.
    pub(crate) fn pop(&mut self) -> Option<Event> {
        if self.left == self.buckets[0].len() {
            self.buckets[0].clear();
            self.left = 0;
            if self.taken == 0 {
                return None;
            }
            let bucket = self.taken.trailing_zeros() as usize + 1;
            self.taken &= !(1 << (bucket - 1));
            let mut events = std::mem::take(&mut self.buckets[bucket]);
            self.now = events.iter().map(|event| event.at).min().unwrap_or(self.now);
            for event in events.drain(..) {
                self.place(event);
            }
            // All went below; the memory is used again.
            self.buckets[bucket] = events;
        }
        let event = self.buckets[0][self.left];
        self.left += 1;
        self.len -= 1;
        Some(event)
    }
}

/// Things that are under way, by a number.
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Empty.
    pub(crate) fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Puts one in: its number.
    pub(crate) fn insert(&mut self, thing: T) -> u32 {
        match self.free.pop() {
            Some(slot) => {
                self.slots[slot as usize] = Some(thing);
                slot
            }
            None => {
                self.slots.push(Some(thing));
                self.slots.len() as u32 - 1
            }
        }
    }

    /// Takes one out.
    pub(crate) fn take(&mut self, slot: u32) -> Option<T> {
        let thing = self.slots.get_mut(slot as usize)?.take();
        if thing.is_some() {
            self.free.push(slot);
        }
        thing
    }

    /// How many are in it.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn events_leave_in_order_of_time_and_then_of_coming() {
        let mut random = Random::new(7);
        let (mut queue, mut all) = (Queue::new(), Vec::new());
        let mut left = Vec::new();
        for number in 0..20_000 {
            let spread = 1 << random.below(40);
            let at = queue.now() + random.below(spread);
            queue.push(at, number, What::Timer);
            all.push((at, number));
            if random.once_in(2) {
                left.extend(queue.pop().map(|event| (event.at, event.to)));
            }
        }
        left.extend(std::iter::from_fn(|| queue.pop()).map(|event| (event.at, event.to)));
        assert!(queue.is_empty());
        assert!(left.is_sorted());
        all.sort_unstable();
        assert_eq!(left, all);
    }

    #[test]
    fn slots_are_used_again() {
        let mut slab = Slab::new();
        let (one, two) = (slab.insert(1), slab.insert(2));
        assert_eq!((slab.take(one), slab.take(one), slab.len()), (Some(1), None, 1));
        assert_eq!(slab.insert(3), one);
        assert_eq!(slab.take(two), Some(2));
    }
}
