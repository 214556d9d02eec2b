//! Decides what the silence of a peer means.
//!
//! A peer is lost after the dead time if its machine does not answer either. If the machine answers, the peer is
//! stopped or starved: it is lost after the stop time, and is reported to the user before. Silence counts only while this process
//! runs: after a pause of this process, each peer gets a full dead time again.

use std::time::Duration;

use tokio::time::Instant;

use super::lanes::Liveness;
use crate::core::LossReason;
use crate::core::limits::SILENCE_TOLD;
use crate::sys::Acks;

/// A running process wakes from its timers with at most this delay.
const LATE_MIN: Duration = Duration::from_millis(50);

/// The shortest wait for an answer. Linux answers two probes of a closed window per second at most (tcp_invalid_ratelimit), and
/// doubles the time between its own probes: an answer to the next one comes up to a second later.
const ASKED_MIN: Duration = Duration::from_millis(1500);

/// What is known of the machine of a silent peer.
#[derive(Copy, Clone, Debug)]
pub(super) enum There {
    /// The peer is on this machine, and its end of the stream is open: its process exists.
    Here,
    /// The state of the connection to another machine, or to an agent that acts as one.
    Acks(Acks),
    /// Nothing: the stream is a pipe to a remote shell, which does not show whether the other machine is reachable.
    Unknown,
}

/// The meaning of a peer's silence.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// It may be alive.
    Alive,
    /// It is stopped or starved: it is silent for this time, and its machine answers. Given once a minute.
    Told(Duration),
    /// It is lost.
    Lost(LossReason),
}

/// The watch over one peer.
#[derive(Debug)]
pub(super) struct Silence {
    liveness: Liveness,
    /// When the peer was last heard, or when its timeout was restarted.
    heard: Instant,
    /// By when it is to be judged again.
    next: Instant,
    /// When this process first saw unacknowledged data. `None` once the peer's machine has acknowledged something since.
    asked: Option<Instant>,
    /// When the user is to be told next.
    tell_at: Option<Instant>,
}

impl Silence {
    pub(super) fn new(liveness: Liveness, now: Instant) -> Self {
        Self { liveness, heard: now, next: now + liveness.dead_time, asked: None, tell_at: None }
    }

    /// Restarts the timeout at `at`: the peer was heard then, or this process was not running until then.
    pub(super) fn on_heard(&mut self, at: Instant) {
        if at > self.heard {
            *self = Self::new(self.liveness, at);
        }
    }

    /// Subtracts the lateness of this process, which woke at `now` instead of `due`. `period` is the time between its ticks.
    pub(super) fn on_waited(&mut self, now: Instant, due: Instant, period: Duration) {
        let late = now.saturating_duration_since(due);
        if late > period {
            self.on_heard(now);
        } else if late > LATE_MIN && self.heard + late <= now {
            self.heard += late;
            self.next += late;
        }
    }

    /// Returns by when the peer is to be judged again.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Judges the silence. Call it at each tick at which the peer is silent for longer than between two ticks: heartbeats are
    /// acknowledged.
    pub(super) fn judge(&mut self, now: Instant, there: There) -> Verdict {
        let Liveness { dead_time, stop_time, .. } = self.liveness;
        let silent = now.saturating_duration_since(self.heard);
        let cut_at = match there {
            There::Here => None,
            There::Unknown => Some(now),
            There::Acks(acks) => self.cut_at(now, acks),
        };
        if silent < dead_time {
            return Verdict::Alive;
        }
        match cut_at {
            Some(cut_at) if now >= cut_at => return Verdict::Lost(LossReason::Silent(dead_time)),
            None if silent >= stop_time => return Verdict::Lost(LossReason::Stopped(stop_time)),
            Some(cut_at) => {
                self.next = cut_at;
                return Verdict::Alive;
            }
            None => {}
        }
        let is_told = self.tell_at.is_some_and(|at| now < at);
        let tell_at = self.tell_at.filter(|_| is_told).unwrap_or(now + SILENCE_TOLD);
        self.tell_at = Some(tell_at);
        self.next = self.heard.checked_add(stop_time).map_or(tell_at, |lost_at| tell_at.min(lost_at));
        if is_told { Verdict::Alive } else { Verdict::Told(silent) }
    }

    /// Returns when the peer's machine will count as cut off, unless it answers before; `None` if it answers. Data without an
    /// acknowledgement at the first look may get it soon: the kernel's probes of a peer that does not read are up to two
    /// minutes apart.
    fn cut_at(&mut self, now: Instant, Acks { last, is_asked }: Acks) -> Option<Instant> {
        let is_answered = self.asked.is_some_and(|at| last < now.saturating_duration_since(at));
        let asked = self.asked.filter(|_| !is_answered).unwrap_or(now);
        self.asked = is_asked.then_some(asked);
        let time = self.liveness.dead_time;
        is_asked.then(|| (asked + ASKED_MIN.max(time / 8)).max(now + time.saturating_sub(last)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(time: u64) -> Duration {
        Duration::from_secs(time)
    }

    const LIVENESS: Liveness = Liveness { heartbeat: s(6), dead_time: s(20), stop_time: s(600) };
    const LOST: Verdict = Verdict::Lost(LossReason::Silent(s(20)));
    const STOPPED: Verdict = Verdict::Lost(LossReason::Stopped(s(600)));

    fn acks(last: u64, is_asked: bool) -> There {
        There::Acks(Acks { last: s(last), is_asked })
    }

    /// A peer that was heard at this time.
    fn heard() -> (Silence, Instant) {
        let now = Instant::now();
        (Silence::new(LIVENESS, now), now)
    }

    #[test]
    fn a_silent_process_of_this_machine_is_told_each_minute_and_lost_after_the_stop_time() {
        let (mut silence, began) = heard();
        assert_eq!(silence.next(), began + s(20));
        assert_eq!(silence.judge(began + s(19), There::Here), Verdict::Alive);
        assert_eq!(silence.judge(began + s(20), There::Here), Verdict::Told(s(20)));
        assert_eq!(silence.next(), began + s(80));
        assert_eq!(silence.judge(began + s(79), There::Here), Verdict::Alive);
        assert_eq!(silence.judge(began + s(80), There::Here), Verdict::Told(s(80)));
        silence.on_heard(began + s(90));
        assert_eq!((silence.judge(began + s(109), There::Here), silence.next()), (Verdict::Alive, began + s(110)));
        assert_eq!(silence.judge(began + s(110), There::Here), Verdict::Told(s(20)));
        assert_eq!(silence.judge(began + s(690), There::Here), STOPPED);
    }

    #[test]
    fn a_process_without_a_stop_time_is_never_lost_while_its_stream_is_open() {
        let began = Instant::now();
        let mut silence = Silence::new(Liveness { stop_time: Duration::MAX, ..LIVENESS }, began);
        assert_eq!(silence.judge(began + s(20), There::Here), Verdict::Told(s(20)));
        assert_eq!(silence.judge(began + s(86_400), There::Here), Verdict::Told(s(86_400)));
        assert_eq!(silence.next(), began + s(86_460));
    }

    #[test]
    fn a_peer_behind_a_remote_shell_is_lost_after_the_dead_time() {
        let (mut silence, began) = heard();
        assert_eq!(silence.judge(began + s(19), There::Unknown), Verdict::Alive);
        assert_eq!(silence.judge(began + s(20), There::Unknown), LOST);
    }

    #[test]
    fn a_host_that_acknowledges_nothing_is_lost_after_the_dead_time() {
        let (mut silence, began) = heard();
        assert_eq!(silence.judge(began + s(8), acks(8, false)), Verdict::Alive);
        assert_eq!(silence.judge(began + s(14), acks(14, true)), Verdict::Alive);
        assert_eq!(silence.next(), began + s(20));
        assert_eq!(silence.judge(began + s(20), acks(20, true)), LOST);
        // The last acknowledgement came after the last heartbeat.
        let (mut silence, began) = heard();
        silence.judge(began + s(14), acks(9, true));
        assert_eq!(silence.judge(began + s(20), acks(15, true)), Verdict::Alive);
        assert_eq!(silence.next(), began + s(25));
        assert_eq!(silence.judge(began + s(25), acks(20, true)), LOST);
    }

    #[test]
    fn a_silent_process_of_a_host_that_acknowledges_has_the_stop_time() {
        let (mut silence, began) = heard();
        for time in (7..600).step_by(7) {
            // What was sent last may be on its way.
            let verdict = silence.judge(began + s(time), acks(6, time % 2 == 0));
            assert!(!matches!(verdict, Verdict::Lost(_)), "{time}: {verdict:?}");
            assert!(silence.next() > began + s(time));
        }
        assert_eq!(silence.judge(began + s(600), acks(1, false)), STOPPED);
    }

    /// Its window is closed, and the kernel asks ever more seldom.
    #[test]
    fn a_host_that_was_asked_seldom_and_answers_is_no_lost_one() {
        let (mut silence, began) = heard();
        for (time, last, is_asked) in
            [(20, 1, false), (40, 21, false), (119, 100, false), (120, 101, true), (121, 0, false)]
        {
            let verdict = silence.judge(began + s(time), acks(last, is_asked));
            assert!(!matches!(verdict, Verdict::Lost(_)), "{time}: {verdict:?}");
            assert!(silence.next() > began + s(time));
        }
        assert_eq!(silence.judge(began + s(240), acks(119, true)), Verdict::Alive);
        assert_eq!(silence.judge(began + s(243), acks(122, true)), LOST, "this probe has no answer");
    }

    #[test]
    fn a_probe_that_linux_leaves_without_an_answer_does_not_count() {
        let ms = Duration::from_millis;
        let began = Instant::now();
        let mut silence = Silence::new(Liveness { dead_time: s(1), ..LIVENESS }, began);
        // The kernel probes after 0.2, 0.6 and 1.4 s. It gets no answer to the second probe.
        for (time, last, is_asked) in [(500, 300, false), (700, 500, true), (1390, 1190, true), (1500, 100, false)] {
            let there = There::Acks(Acks { last: ms(last), is_asked });
            let verdict = silence.judge(began + ms(time), there);
            assert!(!matches!(verdict, Verdict::Lost(_)), "{time}: {verdict:?}");
        }
    }

    #[test]
    fn time_in_which_this_process_did_not_run_is_no_silence() {
        let (mut silence, began) = heard();
        silence.on_waited(began + s(18), began + s(13), s(7));
        assert_eq!(silence.next(), began + s(25), "a little late");
        silence.on_waited(began + s(100), began + s(20), s(7));
        assert_eq!(silence.next(), began + s(120), "it was stopped");
        assert_eq!(silence.judge(began + s(100), acks(90, true)), Verdict::Alive);
        assert_eq!(silence.judge(began + s(119), acks(109, true)), Verdict::Alive);
        assert_eq!(silence.judge(began + s(120), acks(110, true)), LOST);
        let (mut silence, began) = heard();
        silence.on_waited(began + s(10), began + s(10) - LATE_MIN, s(7));
        assert_eq!(silence.next(), began + s(20));
    }
}
