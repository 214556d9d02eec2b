//! Processors: when a place can begin, and how long it is then busy.

/// The processors of all places.
#[derive(Clone, Debug)]
pub(crate) struct Processors {
    /// Each place does one thing after another, and is busy until then.
    places: Vec<u64>,
    /// When all places share a machine: until when each of its cores is busy.
    cores: Vec<u64>,
}

impl Processors {
    /// One for each of `places`; or so many `cores` for all of them, as on one machine.
    pub(crate) fn new(places: usize, cores: Option<u32>) -> Self {
        Self { places: vec![0; places], cores: vec![0; cores.unwrap_or(0) as usize] }
    }

    /// When the place can begin with what comes to it at this time.
    pub(crate) fn begin(&self, here: usize, at: u64) -> u64 {
        at.max(self.places[here]).max(self.cores.iter().copied().min().unwrap_or(0))
    }

    /// What was begun at `began` is done at `clock`.
    pub(crate) fn done(&mut self, here: usize, began: u64, clock: u64) {
        self.places[here] = clock;
        if clock > began
            && let Some(core) = self.cores.iter_mut().min()
        {
            *core = clock;
        }
    }

    /// The place does nothing for so long.
    pub(crate) fn stall(&mut self, here: usize, at: u64, nanoseconds: u64) {
        self.places[here] = at.max(self.places[here]) + nanoseconds;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_does_one_thing_after_another() {
        let mut processors = Processors::new(2, None);
        assert_eq!(processors.begin(0, 10), 10);
        processors.done(0, 10, 30);
        assert_eq!((processors.begin(0, 15), processors.begin(1, 15)), (30, 15));
        processors.stall(1, 20, 5);
        assert_eq!(processors.begin(1, 0), 25);
    }

    #[test]
    fn on_one_machine_places_wait_for_a_core() {
        let mut processors = Processors::new(3, Some(2));
        processors.done(0, 0, 30);
        processors.done(1, 0, 40);
        assert_eq!(processors.begin(2, 5), 30);
        processors.done(2, 30, 50);
        assert_eq!(processors.begin(0, 31), 40);
    }
}
