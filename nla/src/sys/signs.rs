//! Signs of life that a guardian and its agent give each other, in memory that they share. There the agent also announces the
//! directory that the guardian is to remove if the agent cannot.

use std::ffi::OsStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};

/// The shortest wait between two checks, however short the dead time.
const WAIT_MIN: Duration = Duration::from_millis(10);

/// When each of the two last ran. Made before the fork.
#[derive(Copy, Clone, Debug)]
pub(super) struct Signs {
    began: Instant,
    shared: &'static Shared,
}

/// The longest path that can be announced.
const PATH_BYTES_MAX: usize = 1024;

#[derive(Debug)]
struct Shared {
    /// Times in nanoseconds after the beginning, zero if there is none.
    guardian: AtomicU64,
    agent: AtomicU64,
    /// How long the agent may be silent in its session, in nanoseconds; zero until the agent has its order.
    limit: AtomicU64,
    /// The length of the announced path, zero if there is none.
    path_bytes: AtomicUsize,
    path: [AtomicU8; PATH_BYTES_MAX],
}

/// The time of a process that rests.
const RESTS: u64 = u64::MAX;

/// The signs of one of the two.
pub(super) struct Sign {
    began: Instant,
    at: &'static AtomicU64,
}

impl Signs {
    /// Maps the memory, which stays mapped.
    pub(super) fn new() -> io::Result<Self> {
        const LENGTH: NonZeroUsize = NonZeroUsize::new(size_of::<Shared>()).expect("it has fields");
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, which overlaps no other.
        let page = unsafe { mmap_anonymous(None, LENGTH, access, MapFlags::MAP_SHARED) }?;
        // SAFETY: the mapping is as long as the value, aligned to a page, full of zeros, which are valid, and never unmapped.
        // Both processes change it only by atomic operations.
        let shared = unsafe { page.cast::<Shared>().as_ref() };
        Ok(Self { began: Instant::now(), shared })
    }

    /// When the memory was mapped.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    pub(super) fn guardian(&self) -> Sign {
        Sign { began: self.began, at: &self.shared.guardian }
    }

    pub(super) fn agent(&self) -> Sign {
        Sign { began: self.began, at: &self.shared.agent }
    }
}

impl Signs {
    /// Announces how long the agent may be silent. Called by the agent.
    pub(super) fn announce_limit(&self, time: Duration) {
        self.shared.limit.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the limit that was announced last.
    pub(super) fn limit(&self) -> Option<Duration> {
        let time = self.shared.limit.load(Ordering::Relaxed);
        (time > 0).then(|| Duration::from_nanos(time))
    }

    /// Announces a directory; `None` withdraws it. Call it from one thread of the agent at a time. Fails if the path is too long.
    pub(super) fn announce_directory(&self, path: Option<&Path>) -> io::Result<()> {
        let bytes = path.map(|path| path.as_os_str().as_bytes()).unwrap_or_default();
        if bytes.len() > PATH_BYTES_MAX {
            return Err(io::ErrorKind::InvalidFilename.into());
        }
        // The guardian reads it only when the agent has ended: it may have been killed at any instruction.
        self.shared.path_bytes.store(0, Ordering::Release);
        self.shared.path.iter().zip(bytes).for_each(|(to, byte)| to.store(*byte, Ordering::Relaxed));
        self.shared.path_bytes.store(bytes.len(), Ordering::Release);
        Ok(())
    }

    /// Returns the directory that was announced last.
    pub(super) fn announced_directory(&self) -> Option<PathBuf> {
        let length = self.shared.path_bytes.load(Ordering::Acquire);
        let bytes = self.shared.path.get(..length).filter(|bytes| !bytes.is_empty())?;
        let bytes: Vec<u8> = bytes.iter().map(|byte| byte.load(Ordering::Relaxed)).collect();
        Some(OsStr::from_bytes(&bytes).into())
    }
}

impl Sign {
    /// Notes that this process runs.
    pub(super) fn note(&self) {
        let since = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.at.store(since.clamp(1, RESTS - 1), Ordering::Relaxed);
    }

    /// Marks this process as idle: it gives no sign of life until its next session begins.
    pub(super) fn rest(&self) {
        self.at.store(RESTS, Ordering::Relaxed);
    }

    /// Whether the process rests.
    pub(super) fn rests(&self) -> bool {
        self.at.load(Ordering::Relaxed) == RESTS
    }

    /// When the process last ran, if it has noted that and does not rest.
    pub(super) fn last(&self) -> Option<Instant> {
        let since = self.at.load(Ordering::Relaxed);
        (![0, RESTS].contains(&since)).then(|| self.began + Duration::from_nanos(since))
    }
}

/// Decides when an agent has been silent for too long. It checks seldom: each check takes time from a rank.
#[derive(Debug)]
pub(super) struct Silence {
    /// How long the agent may be silent after its first sign.
    later: Duration,
    /// How long the agent may be silent now.
    limit: Duration,
    /// The last sign.
    last: Instant,
    /// How long this process did not run since then, although it should have.
    delay: Duration,
}

impl Silence {
    /// Begins at the time `began`. The first sign may take until `first`, later ones until `later`.
    pub(super) fn new(later: Duration, first: Duration, began: Instant) -> Self {
        Self { later, limit: first, last: began, delay: Duration::ZERO }
    }

    /// Sets the time that later signs may take.
    pub(super) fn set_later(&mut self, later: Duration) {
        if self.limit == self.later {
            self.limit = later;
        }
        self.later = later;
    }

    /// A sign was given at this time.
    pub(super) fn on_sign(&mut self, at: Instant) {
        if at > self.last {
            *self = Self { later: self.later, limit: self.later, last: at, delay: Duration::ZERO };
        }
    }

    /// Records that a wait ended `late` after its deadline. A suspended or overloaded machine does not kill a healthy agent.
    pub(super) fn on_waited(&mut self, late: Duration) {
        self.delay += late;
    }

    fn silent(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.last).saturating_sub(self.delay)
    }

    /// Returns the time until the next check, at most three quarters of the limit for later signs: a sign does not end the wait. The last
    /// wait is shorter, so a stop of both processes that ends before it is no silence.
    pub(super) fn next_check(&self, now: Instant) -> Duration {
        let silent = self.silent(now);
        let soon = self.limit / 4 * 3;
        let next = if silent < soon { soon } else { self.limit };
        next.saturating_sub(silent).min(self.later / 4 * 3).max(WAIT_MIN)
    }

    /// Whether the agent has been silent for too long.
    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.silent(now) >= self.limit
    }
}

/// How long a process may stay stopped by a signal. It is not zero, because a batch system that resumes a suspended job continues
/// the guardian and the agent one after the other.
const STOPPED_MAX: Duration = Duration::from_secs(1);

/// The time between two looks at a process that runs.
const LOOK_PERIOD: Duration = Duration::from_secs(1);

/// The time between two looks at a process that is stopped.
pub(super) const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// Decides when a process has stayed stopped for too long. One that does not get a processor is not stopped.
#[derive(Default, Debug)]
pub struct Stop {
    /// For how long it has been stopped; `None` if it was not at the last look.
    time: Option<Duration>,
}

impl Stop {
    /// Whether the process was stopped at the last look.
    pub fn is_stopped(&self) -> bool {
        self.time.is_some()
    }

    /// How long after the last look the next one is due.
    pub fn next_look(&self) -> Duration {
        if self.is_stopped() { LOOK_PAUSE } else { LOOK_PERIOD }
    }

    /// Takes a look, `elapsed` after the last one, and returns whether the process has been stopped for too long. A late look
    /// counts as one in time: the looking process may have been stopped, too.
    pub fn is_over(&mut self, is_stopped: bool, elapsed: Duration) -> bool {
        let before = self.time.map_or(Duration::ZERO, |time| time + elapsed.min(LOOK_PAUSE));
        self.time = is_stopped.then_some(before);
        is_stopped && before >= STOPPED_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(time: u64) -> Duration {
        Duration::from_secs(time)
    }

    #[test]
    fn signs_are_read_at_the_other_end() {
        let signs = Signs::new().unwrap();
        assert_eq!((signs.agent().last(), signs.guardian().last()), (None, None));
        signs.agent().note();
        let last = signs.agent().last().unwrap();
        assert!(last >= signs.began() && last <= Instant::now() && signs.guardian().last().is_none());
        assert_eq!(signs.limit(), None);
        signs.announce_limit(s(40));
        assert_eq!(signs.limit(), Some(s(40)));
    }

    #[test]
    fn an_agent_is_checked_twice_before_it_is_silent() {
        let began = Instant::now();
        let mut silence = Silence::new(s(20), s(110), began);
        assert_eq!(silence.next_check(began), s(15), "the first sign may come at any time");
        assert!(!silence.is_over(began + s(109)) && silence.is_over(began + s(110)));
        silence.on_sign(began + s(10));
        assert_eq!(silence.next_check(began + s(12)), s(13));
        assert_eq!(silence.next_check(began + s(25)), s(5));
        assert_eq!(silence.next_check(began + s(30)), WAIT_MIN);
        assert!(!silence.is_over(began + s(29)) && silence.is_over(began + s(30)));
        silence.on_sign(began + s(10));
        assert!(silence.is_over(began + s(30)), "it is the same sign");
        silence.on_sign(began + s(28));
        assert!(!silence.is_over(began + s(47)) && silence.is_over(began + s(48)));
    }

    #[test]
    fn a_session_may_have_another_limit_than_its_guardian_was_started_with() {
        let began = Instant::now();
        let mut silence = Silence::new(s(20), s(110), began);
        silence.set_later(s(40));
        assert!(
            !silence.is_over(began + s(109)) && silence.is_over(began + s(110)),
            "the first sign has its own limit"
        );
        silence.on_sign(began + s(10));
        assert_eq!(silence.next_check(began + s(12)), s(28));
        assert!(!silence.is_over(began + s(49)) && silence.is_over(began + s(50)));
        silence.set_later(s(20));
        assert!(!silence.is_over(began + s(29)) && silence.is_over(began + s(30)));
    }

    #[test]
    fn time_in_which_the_guardian_did_not_run_is_no_silence() {
        let began = Instant::now();
        let mut silence = Silence::new(s(20), s(20), began);
        silence.on_waited(s(100));
        assert_eq!(silence.next_check(began + s(115)), s(5));
        assert!(!silence.is_over(began + s(119)) && silence.is_over(began + s(120)));
        silence.on_sign(began + s(120));
        assert!(silence.is_over(began + s(140)), "delays before a sign do not count");
    }

    #[test]
    fn a_process_may_be_stopped_for_a_second_in_which_the_other_runs() {
        let mut stop = Stop::default();
        assert!(!stop.is_over(true, s(7)) && stop.is_stopped(), "since the look before it ran");
        let looks = STOPPED_MAX.as_millis() / LOOK_PAUSE.as_millis();
        for look in 1..looks {
            assert!(!stop.is_over(true, s(60)), "late look {look}");
        }
        assert!(stop.is_over(true, LOOK_PAUSE));
        assert!(!stop.is_over(false, LOOK_PAUSE) && !stop.is_stopped());
        assert!(!stop.is_over(true, LOOK_PAUSE), "it is another stop");
    }
}
