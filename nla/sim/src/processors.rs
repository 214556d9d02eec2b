//! Processors: when a place can handle an event, and how long it is busy.

/// The processors of all places.
#[derive(Clone, Debug)]
pub(crate) struct Processors {
    /// When each place finishes its current work.
    members: Vec<u64>,
    /// When each core of the shared machine is free. Empty if places do not share one.
    cores: Vec<u64>,
}

impl Processors {
    /// Creates a processor per place. If `cores` is given, all places share that many cores.
    pub(crate) fn new(members: usize, cores: Option<u32>) -> Self {
        Self { members: vec![0; members], cores: vec![0; cores.unwrap_or(0) as usize] }
    }

    /// Returns when a place can begin to handle an event that arrives at `at`.
    pub(crate) fn begin(&self, here: usize, at: u64) -> u64 {
        at.max(self.members[here]).max(self.cores.iter().copied().min().unwrap_or(0))
    }

    /// Records that a place was busy from `began` to `clock`.
    pub(crate) fn done(&mut self, here: usize, began: u64, clock: u64) {
        self.members[here] = clock;
        if clock > began
            && let Some(core) = self.cores.iter_mut().min()
        {
            *core = clock;
        }
    }

    /// Stops a place for `nanoseconds`.
    pub(crate) fn stall(&mut self, here: usize, at: u64, nanoseconds: u64) {
        self.members[here] = at.max(self.members[here]) + nanoseconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_handles_one_event_at_a_time() {
        let mut processors = Processors::new(2, None);
        assert_eq!(processors.begin(0, 10), 10);
        processors.done(0, 10, 30);
        assert_eq!((processors.begin(0, 15), processors.begin(1, 15)), (30, 15));
        processors.stall(1, 20, 5);
        assert_eq!(processors.begin(1, 0), 25);
    }

    #[test]
    fn members_on_one_machine_wait_for_a_free_core() {
        let mut processors = Processors::new(3, Some(2));
        processors.done(0, 0, 30);
        processors.done(1, 0, 40);
        assert_eq!(processors.begin(2, 5), 30);
        processors.done(2, 30, 50);
        assert_eq!(processors.begin(0, 31), 40);
    }
}
