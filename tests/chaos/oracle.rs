//! The conditions that a session must meet after faults: when it ends, with which code, and what it reports.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::draw::{DEAD_TIME, GRACE, Pace, Party, Place, Policy, Program, Session, Stream, Way, What};
use crate::stage::{Happened, Hit, Played};

/// The time in which a session must end after the last fault, or after the signal that ends it.
pub(crate) const END_TIME: Duration =
    DEAD_TIME.checked_add(GRACE).unwrap().checked_add(Duration::from_secs(2)).unwrap();
/// A fault that lasts for less may be over before it is noticed.
const NOTICED: Duration = Duration::from_secs(3);

/// The codes of README.
const FAILED: i32 = 1;
const USAGE: i32 = 2;
const NOT_LAUNCHED: i32 = 251;
const LOST: i32 = 252;
const BY_INT: i32 = 128 + 2;
const BY_KILL: i32 = 128 + 9;
const BY_PIPE: i32 = 128 + 13;
const BY_TERM: i32 = 128 + 15;

/// The effects that a fault may have.
struct Effect {
    /// The exit codes, beside those of a session without the fault.
    codes: Vec<i32>,
    /// The session ends by itself.
    ends: bool,
    /// The report that is due if the session ends with one of the codes.
    report: Option<String>,
}

impl Effect {
    fn none() -> Self {
        Self::perhaps([])
    }

    /// The session may end with one of these codes.
    fn perhaps(codes: impl Into<Vec<i32>>) -> Self {
        Self { codes: codes.into(), ends: false, report: None }
    }

    fn ends(code: i32, report: impl Into<String>) -> Self {
        Self { codes: vec![code], ends: true, report: Some(report.into()) }
    }

    fn if_it_ends(self, ends: bool) -> Self {
        Self { ends, ..self }
    }
}

/// Returns whether a fault lasts so long that it must be noticed.
pub(crate) fn is_long(lasts: Option<Duration>) -> bool {
    lasts.is_none_or(|lasts| lasts > NOTICED)
}

/// Returns whether the launcher was killed and could clean up nothing.
pub(crate) fn is_launcher_killed(happened: &[Happened]) -> bool {
    let is_kill = |what| matches!(what, What::Signal { party: Party::Launcher, signal: Signal::SIGKILL, .. });
    happened.iter().any(|happened| is_kill(happened.fault.what) && matches!(happened.hit, Hit::Launcher))
}

/// Returns whether an agent and its guardian were killed together, so that nothing has removed their directories.
pub(crate) fn may_leave_directories(happened: &[Happened]) -> bool {
    let kills = |party: Party| {
        happened.iter().any(|happened| {
            matches!(happened.fault.what, What::Signal { party: of, signal: Signal::SIGKILL, .. } if of == party)
                && !matches!(happened.hit, Hit::Nothing)
        })
    };
    kills(Party::Both) || kills(Party::Guardian) && happened.len() > 1
}

/// Returns the time after the last fault in which the session must end, if it must.
pub(crate) fn end_time(session: &Session) -> Duration {
    match (session.policy, session.place) {
        // An ssh that has bytes for a host that is cut off gets SIGKILL after 7 s.
        (Policy::Abort, Place::Hosts { by: Way::SshPipes, .. }) => END_TIME + Duration::from_secs(7),
        (Policy::Abort, _) | (_, Place::Here | Place::Pool) => END_TIME,
        // Until the ranks of a lost agent have ended for certain, nothing starts again: three dead times and 5 s.
        (_, Place::Hosts { .. }) => END_TIME + 3 * DEAD_TIME + Duration::from_secs(5),
    }
}

/// Returns the time after the last fault in which the processes on all hosts must end.
pub(crate) fn end_time_of_hosts(session: &Session) -> Duration {
    match session.policy {
        Policy::Abort => END_TIME,
        // The agent of a host that is cut off looks for another parent before it gives up.
        Policy::Continue | Policy::Restart | Policy::RestartRank => END_TIME + 2 * DEAD_TIME,
    }
}

/// Returns whether a session must end by itself after these faults.
pub(crate) fn ends(session: &Session, happened: &[Happened]) -> bool {
    // A connection that loses packets may be slow for as long as it does, and a host may be cut off before it is reached.
    let is_slow = |happened: &Happened| !happened.was_up || matches!(happened.fault.what, What::Loss { .. });
    let ends_itself = ends_without_fault(session) && !happened.iter().any(is_slow);
    happened.iter().any(|happened| effect(session, happened).ends) || ends_itself
}

fn ends_without_fault(session: &Session) -> bool {
    matches!(session.program, Program::Exits { .. }) && session.policy == Policy::Abort
}

fn effect(session: &Session, happened: &Happened) -> Effect {
    let is_abort = session.policy == Policy::Abort;
    let Happened { fault, was_up, hit } = happened;
    let effect = match (fault.what, hit) {
        (_, Hit::Nothing) => Effect::none(),
        (What::Signal { party: Party::Launcher, signal, .. }, _) => match signal {
            Signal::SIGKILL => Effect { report: None, ..Effect::ends(BY_KILL, "") },
            Signal::SIGTERM => return Effect { report: None, ..Effect::ends(BY_TERM, "") },
            Signal::SIGINT => return Effect { report: None, ..Effect::ends(BY_INT, "") },
            // Agents on the launcher's machine wait for it without a limit.
            _ if is_long(fault.lasts) && matches!(session.place, Place::Hosts { .. }) => {
                Effect::ends(LOST, "was lost: ")
            }
            _ => Effect::none(),
        },
        (What::Signal { party: Party::Rank, signal, .. }, Hit::Rank { number }) => {
            let killed = format!("rank {number} on ");
            match signal {
                Signal::SIGKILL => Effect::ends(BY_KILL, killed).if_it_ends(is_abort),
                Signal::SIGTERM if session.program == Program::Stubborn => Effect::perhaps([BY_TERM]),
                Signal::SIGTERM => Effect::ends(BY_TERM, killed).if_it_ends(is_abort),
                _ => Effect::none(),
            }
        }
        (What::Signal { party: Party::JobLauncher, .. }, _) => Effect::ends(LOST, " was killed; its ranks were ended"),
        (What::Signal { party: Party::PmixServer, .. }, _) => {
            // A server that has not registered the ranks yet is why they are not started.
            Effect { codes: vec![NOT_LAUNCHED, LOST], ..Effect::ends(LOST, "scela-pmix ended; was it killed?") }
        }
        (What::Signal { signal, .. }, hit) => {
            let number = if let Hit::Agent { number: Some(number) } = hit { number.to_string() } else { String::new() };
            match signal {
                Signal::SIGTERM => Effect::ends(BY_TERM, format!("agent {number}")),
                Signal::SIGSTOP if !is_long(fault.lasts) => Effect::perhaps([LOST]),
                _ => Effect::ends(LOST, format!("agent {number}")).if_it_ends(is_abort),
            }
        }
        (What::Cut { .. }, _) if is_long(fault.lasts) => Effect::ends(LOST, "was lost: ").if_it_ends(is_abort),
        (What::Cut { .. } | What::Loss { .. }, _) => Effect::perhaps([LOST]),
        (What::Reader { stream: Stream::Output, pace: Pace::Closed }, _) if session.program == Program::Flood => {
            // While ranks start again there is no output, and the launcher does not notice.
            let restarts = matches!(session.policy, Policy::Restart | Policy::RestartRank);
            Effect { report: None, ..Effect::ends(BY_PIPE, "") }.if_it_ends(!restarts || session.faults.len() == 1)
        }
        (What::Reader { stream: Stream::Output, pace: Pace::Closed }, _) => Effect::perhaps([BY_PIPE]),
        (What::Reader { .. }, _) => Effect::none(),
        (What::FullDisk, _) => return Effect::ends(FAILED, "No space left on device"),
        // The shell ends with 2 if it can start no process, and with 126 or 127 if it cannot execute a program.
        (What::Files(_) | What::Processes(_), _) => {
            return Effect::perhaps([FAILED, USAGE, 126, 127, NOT_LAUNCHED, LOST]);
        }
    };
    if *was_up {
        effect
    } else {
        Effect { codes: [effect.codes, vec![NOT_LAUNCHED, LOST]].concat(), ends: false, report: None }
    }
}

/// Returns the codes with which a session may end by itself, apart from the effects of its faults.
fn own_codes(session: &Session, happened: &[Happened]) -> Vec<i32> {
    match session.program {
        Program::Exits { code, .. } => vec![i32::from(code)],
        // Ranks that are started again, and ranks below a lost agent, read the end of standard input.
        Program::Sum if session.policy != Policy::Abort => vec![0],
        // A fence fails if a rank has died before it.
        Program::Fences if session.policy != Policy::Abort && !happened.is_empty() => vec![FAILED],
        _ => Vec::new(),
    }
}

/// Judges the code and the report of a session that has ended in time.
pub(crate) fn judge(played: &Played<'_>) -> Result<(), String> {
    let Played { session, happened, code, was_ended, errors } = played;
    let effects: Vec<Effect> = happened.iter().map(|happened| effect(session, happened)).collect();
    let mut codes: BTreeSet<i32> = effects.iter().flat_map(|effect| effect.codes.iter().copied()).collect();
    codes.extend(own_codes(session, happened));
    codes.extend(was_ended.then_some(BY_TERM));
    if !codes.contains(code) {
        return Err(format!("  it ended with {code}, not with one of {codes:?}\n"));
    }
    for word in ["panicked", "this is a bug", "RUST_BACKTRACE"] {
        if errors.contains(word) {
            return Err(format!("  it reported a bug: {word:?}\n"));
        }
    }
    let is_read = |happened: &Happened| !matches!(happened.fault.what, What::Reader { stream: Stream::Errors, .. });
    if is_launcher_killed(happened) || !happened.iter().all(is_read) {
        return Ok(());
    }
    let is_failure = [FAILED, NOT_LAUNCHED, LOST].contains(code);
    if is_failure && !errors.contains("scela-run: error: ") {
        return Err(format!("  it ended with {code} without a report\n"));
    }
    // Of two faults either may be the first cause.
    if let ([effect], [happened]) = (effects.as_slice(), happened.as_slice())
        && effect.codes.contains(code)
        && (!was_ended || *code != BY_TERM)
        && let Some(report) = &effect.report
        && !errors.lines().any(|line| line.contains(report.as_str()))
    {
        return Err(format!("  {}: it ended with {code} and did not report {report:?}\n", happened.fault));
    }
    if let (Place::Hosts { .. }, LOST) = (session.place, *code)
        && !errors.contains("node0")
    {
        return Err("  it did not report the host of a lost agent\n".into());
    }
    Ok(())
}
