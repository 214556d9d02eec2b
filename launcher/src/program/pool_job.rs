//! A launcher of a pool: stands by, and runs one job after the other.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::time::Duration;

use nla::bootstrap::{SessionAhead, StandingAgent};
use nla::core::limits::DEAD_TIME;
use nla::driver::run_standing_agent;
use nla::link::Clock;
use nla::sys::{self, ForkedStanding, Packets};
use nla::wire::SessionId;

use super::{Ready, Run, Session, Standing, fail, guard, not_launched, run, standing_liveness, trace};
use crate::cli::{self, Typed};
use crate::exit::EarlyEnd;
use crate::pool::standby::{self, Allotted, Job, Taken};
use crate::pool::start::SharedOptions;
use crate::run::front::Front;
use crate::run::session::Secrets;
use crate::run::stderr;

/// Stands by for jobs of the pool, with an agent that does the same if they run on this machine, and runs them. Returns as [`begin`](super::begin) does.
pub(super) fn stand_by(controller: Packets, shared: &SharedOptions) -> (u8, Duration) {
    let forked = Clock::start();
    let fork = || if shared.launch.is_none() { sys::fork_standing("of a pool").map(Some) } else { Ok(None) };
    let mut agent = match fork() {
        Ok(None) => None,
        Ok(Some(ForkedStanding::Launcher(guardian))) => Some(StandingAgent::new(guardian)),
        Ok(Some(ForkedStanding::Guardian)) => {
            // A guardian has no descriptors of its launcher.
            drop(controller);
            let code = guard(DEAD_TIME, |guardian| run_standing_agent(guardian, forked));
            return (code, stderr::AGENT_EXIT_TIME);
        }
        Err(error) => return (fail(&error.to_string(), EarlyEnd::NotLaunched.code()), stderr::AGENT_EXIT_TIME),
    };
    let mut has_run = false;
    loop {
        let standing = match agent.take().map(join_next).transpose() {
            Ok(standing) => standing.map(Box::new),
            // An agent that has ended is no failure of the pool, which has others.
            Err(_) => return (EarlyEnd::Done.code(), stderr::AGENT_EXIT_TIME),
        };
        let arrived = match standby::next_job(&controller, standing.as_ref().map(|standing| standing.agent.guardian()))
        {
            Ok(Some(arrived)) => arrived,
            Ok(None) => {
                // Nothing of the pool is left when this process has exited.
                standing.into_iter().for_each(|standing| standing.agent.dismiss());
                return (EarlyEnd::Done.code(), stderr::AGENT_EXIT_TIME);
            }
            Err(error) => return (fail(&error.to_string(), EarlyEnd::Bug.code()), stderr::AGENT_EXIT_TIME),
        };
        let clock = Clock::start();
        // The agent prepares itself while this process reads the job and makes the plan. The end of an agent is noticed then.
        let _ = standing.as_ref().map(|standing| standing.agent.begin_session(forked.now()));
        let end = match arrived.take_over() {
            Ok(job) => run_job(job, &controller, shared, standing, clock, !std::mem::replace(&mut has_run, true)),
            Err(error) => return (fail(&error.to_string(), EarlyEnd::Bug.code()), stderr::AGENT_EXIT_TIME),
        };
        match end {
            JobEnd::Ended(_, Some(left)) if standby::has_recovered() => agent = Some(left),
            end => return leave(controller, end),
        }
    }
}

/// Lets an agent join the next session.
fn join_next(mut agent: StandingAgent) -> io::Result<Standing> {
    let (session, secrets) = Secrets::random()?;
    let ahead = SessionAhead {
        session: SessionId(session),
        key: secrets.key.clone(),
        marker: secrets.marker,
        liveness: standing_liveness(),
    };
    if !agent.join(ahead, DEAD_TIME)? {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(Standing { agent, session, secrets })
}

/// Runs a job that the launcher has taken before it has executed this program again.
pub(super) fn run_taken(words: &[OsString]) -> (u8, Duration) {
    match standby::taken_again(words) {
        Ok((controller, job)) => {
            let end = run_job(job, &controller, &SharedOptions::default(), None, Clock::start(), true);
            leave(controller, end)
        }
        Err(error) => (fail(&error.to_string(), EarlyEnd::Usage.code()), stderr::EXIT_TIME),
    }
}

/// Ends a launcher of a pool. Returns as [`begin`](super::begin) does.
fn leave(controller: Packets, end: JobEnd) -> (u8, Duration) {
    match end {
        JobEnd::Ended(code, _) => (code, Duration::ZERO),
        JobEnd::Forked(code) => {
            // A process that was forked has closed it.
            std::mem::forget(controller);
            (code, stderr::AGENT_EXIT_TIME)
        }
        JobEnd::NotBegun(job) => {
            let error = standby::start_again(&controller, &job);
            let code = not_launched(error);
            if let Ok(controller) = controller.duplicate() {
                Front::client(job.line, controller).end(code, stderr::EXIT_TIME);
            }
            (code, Duration::ZERO)
        }
    }
}

/// How [`run_job`] has returned.
enum JobEnd {
    /// The job has ended with this code. The agent that stood by is left if the job has used it.
    Ended(u8, Option<StandingAgent>),
    /// In a process that was forked for the job, at its end, with its code.
    Forked(u8),
    /// The job needs other agents, and this process must not fork them.
    NotBegun(Taken),
}

/// Runs a job of the pool, which has begun on `clock`. `may_fork` is false in a process that has run a session.
fn run_job(
    job: Job,
    controller: &Packets,
    shared: &SharedOptions,
    standing: Option<Box<Standing>>,
    clock: Clock,
    may_fork: bool,
) -> JobEnd {
    trace();
    let front = match controller.duplicate() {
        Ok(controller) => Front::client(job.line, controller),
        Err(error) => return JobEnd::Ended(not_launched(error), None),
    };
    let ready = Ready { standing, may_fork, has_used: false };
    let mut session = Session { clock, front, ready: Some(ready) };
    let read_file = |path: &Path| job.description.configfile(path);
    let mut arguments = job.description.arguments().into_iter();
    let name = arguments.next().unwrap_or_default();
    let (code, time) = match cli::parse(&name, arguments.collect(), &read_file) {
        Ok(Typed::Run(mut request)) => {
            let allotted = Allotted { slots: job.slots, hosts: job.hosts.as_deref(), gres: &job.gres };
            standby::restrict(&mut request, &allotted, shared);
            match run(*request, &mut session) {
                Run::Ended(code) => (code, stderr::EXIT_TIME),
                Run::Forked(code) => return JobEnd::Forked(code),
                Run::NotBegun => {
                    let Job { number, file, slots, gres, .. } = job;
                    return match session.front.into_line() {
                        Some(line) => JobEnd::NotBegun(Taken { number, file, slots, gres, line }),
                        None => JobEnd::Ended(EarlyEnd::Bug.code(), None),
                    };
                }
            }
        }
        Ok(_) => (fail("only jobs run in a pool", EarlyEnd::Usage.code()), stderr::EXIT_TIME),
        Err(error) => (fail(&error.with_hint(), EarlyEnd::Usage.code()), stderr::EXIT_TIME),
    };
    // The client exits when it has the code, so everything is written before.
    let code = session.front.end(code, time);
    let has_left = session.front.has_left();
    let used = session.ready.filter(|ready| ready.has_used && has_left).and_then(|ready| ready.standing);
    JobEnd::Ended(code, used.map(|standing| standing.agent))
}
