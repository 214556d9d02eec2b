//! The words of a client whose job waits for a controller that is stopped or does not answer. A value without clocks and processes.

use std::time::Duration;

/// The time between two looks of a client at the controller.
pub(super) const LOOK_TIME: Duration = Duration::from_secs(1);
/// The time for which a controller is stopped before the user is told: one that is being debugged may go on at once.
const STOPPED_TIME: Duration = Duration::from_secs(2);
/// The longest time that the first answer may take. A job that has been answered may wait without further messages.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// The controller's process, as a client sees it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Its pid.
    pub(super) pid: u32,
    /// The letter of its state; `None` if there is no such process.
    pub(super) state: Option<u8>,
}

impl Seen {
    fn is_stopped(self) -> bool {
        matches!(self.state, Some(b'T' | b't'))
    }
}

/// The silence of a controller, and what the user was told about it. All times are since the job was sent.
#[derive(Debug)]
pub(super) struct Silence {
    /// The words about what waits.
    waits: &'static str,
    has_answered: bool,
    stopped_since: Option<Duration>,
    /// The user was told that it is stopped. It has not gone on since.
    tells_stop: bool,
    /// The user was told that there is no answer.
    tells_silence: bool,
}

impl Silence {
    /// Begins without an answer. `waits` says what waits for the controller: "the job waits".
    pub(super) fn new(waits: &'static str) -> Self {
        Self { waits, has_answered: false, stopped_since: None, tells_stop: false, tells_silence: false }
    }

    /// Notes an answer.
    pub(super) fn on_answer(&mut self) {
        self.has_answered = true;
    }

    /// Notes what the controller does; `seen` is `None` if its process is unknown. Returns a text for the user, once for each reason.
    pub(super) fn look(&mut self, now: Duration, pool: &str, seen: Option<Seen>) -> Option<String> {
        if let Some(Seen { pid, .. }) = seen.filter(|seen| seen.is_stopped()) {
            let since = *self.stopped_since.get_or_insert(now);
            let is_new = now.saturating_sub(since) >= STOPPED_TIME && !self.tells_stop;
            self.tells_stop |= is_new;
            return is_new.then(|| {
                format!(
                    "the controller of the pool '{pool}', process {pid}, is stopped, and {} for it: 'kill -CONT {pid}' continues it",
                    self.waits
                )
            });
        }
        (self.stopped_since, self.tells_stop) = (None, false);
        if self.has_answered || self.tells_silence || now < ANSWER_TIME {
            return None;
        }
        self.tells_silence = true;
        let process = seen.map(|seen| format!(", process {},", seen.pid)).unwrap_or_default();
        Some(format!(
            "the controller of the pool '{pool}'{process} has not answered for {} s, and {} for it: 'scela pool status {pool}' \
             asks it as well",
            now.as_secs(),
            self.waits
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: Option<Seen> = Some(Seen { pid: 7, state: Some(b'S') });
    const STOPPED: Option<Seen> = Some(Seen { pid: 7, state: Some(b'T') });

    fn look(silence: &mut Silence, second: u64, seen: Option<Seen>) -> Option<String> {
        silence.look(Duration::from_secs(second), "night", seen)
    }

    #[test]
    fn a_stop_is_told_once_after_some_seconds() {
        let mut silence = Silence::new("the job waits");
        silence.on_answer();
        let text = "the controller of the pool 'night', process 7, is stopped, and the job waits for it: 'kill -CONT 7' continues it";
        let told = [(50, STOPPED), (51, STOPPED), (52, STOPPED), (53, STOPPED), (900, STOPPED)]
            .map(|(second, seen)| look(&mut silence, second, seen));
        assert_eq!(told, [None, None, Some(text.to_owned()), None, None]);
        assert_eq!(
            [(901, RUNS), (902, STOPPED), (903, RUNS), (904, STOPPED)].map(|(second, seen)| look(
                &mut silence,
                second,
                seen
            )),
            [None, None, None, None],
            "stops that are short"
        );
        assert_eq!(look(&mut silence, 906, STOPPED).as_deref(), Some(text), "another stop");
        let traced = Some(Seen { pid: 7, state: Some(b't') });
        assert_eq!(look(&mut silence, 907, traced), None);
    }

    #[test]
    fn a_controller_that_does_not_answer_is_told_once() {
        let mut silence = Silence::new("the job waits");
        let text = |process: &str| {
            Some(format!(
                "the controller of the pool 'night'{process} has not answered for 10 s, and the job waits for it: 'scela pool \
                          status night' asks it as well"
            ))
        };
        let told = [9, 10, 11, 60].map(|second| look(&mut silence, second, RUNS));
        assert_eq!(told, [None, text(", process 7,"), None, None]);
        assert_eq!(look(&mut Silence::new("the job waits"), 10, None), text(""));
        let mut answered = Silence::new("the job waits");
        answered.on_answer();
        assert_eq!(look(&mut answered, 60, RUNS), None, "a job may wait for hours");
    }
}
