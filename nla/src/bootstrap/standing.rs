//! An agent of this machine that joins before its session begins: the launcher knows the session's key then, and not its plan.
//!
//! The order and the report of such an agent are those of any agent that the launcher has forked. The agent then rests until the
//! session begins, and finds its link ready.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use tokio::net::unix::pipe::{Receiver, Sender};

use super::protocol::{BootOrder, BootReport, Links, MARKER, Place};
use crate::core::AgentId;
use crate::link::{Accepted, Liveness, Reach, SessionKey, Stream};
use crate::sys::{self, ForkedGuardian, ForkedGuardians, StandingGuardian};
use crate::wire::{SessionId, TreePosition, decode, secret_frame};

/// The target and the number of the agent: it is the only one.
pub(super) const STANDING_TARGET: u32 = 1;

/// The facts of a session that are known before it begins.
#[derive(Debug)]
pub struct SessionAhead {
    /// Its public number.
    pub session: SessionId,
    /// Its key.
    pub key: SessionKey,
    /// The first bytes that the agent writes.
    pub marker: [u8; MARKER],
    /// When its links count as lost.
    pub liveness: Liveness,
}

/// An agent that stands by for sessions, one after the other, as the launcher sees it.
#[derive(Debug)]
pub struct StandingAgent {
    guardian: StandingGuardian,
    /// The pipes to the agent and its report, while it is in a session that has not been lent.
    joined: Option<([OwnedFd; 2], Vec<u8>)>,
}

impl StandingAgent {
    /// Takes the guardian of an agent that stands by.
    pub fn new(guardian: StandingGuardian) -> Self {
        Self { guardian, joined: None }
    }

    /// Lets the agent join its next session. Returns false if it has ended, or does not join within `limit`.
    pub fn join(&mut self, ahead: SessionAhead, limit: Duration) -> io::Result<bool> {
        let (input, mut output) = self.guardian.open_session()?;
        let marker = ahead.marker;
        // An agent that has ended does not report.
        let _ = File::from(input.try_clone()?).write_all(&secret_frame(&order(ahead)));
        let Some(report) = self.guardian.report(limit) else { return Ok(false) };
        // Written before the report.
        let mut first = [0; MARKER];
        let mut reader = File::from(output);
        reader.read_exact(&mut first)?;
        output = reader.into();
        self.joined = Some(([input, output], report));
        Ok(first == marker)
    }

    /// Tells the agent that the session has begun, when this time had passed on the clock that it has inherited.
    pub fn begin_session(&self, began: Duration) -> io::Result<()> {
        self.guardian.begin_session(began)
    }

    /// Returns the agent for the session that it has joined, if it still lives. To be called while nothing else reaps children.
    pub fn lend(&mut self) -> Option<ForkedGuardians> {
        let ([input, output], report) = self.joined.take().filter(|_| self.guardian.lives())?;
        Some(self.guardian.lend((input, output), report))
    }

    /// Returns the guardian, whose descriptor is readable once the agent, which rests, has ended.
    pub fn guardian(&self) -> &StandingGuardian {
        &self.guardian
    }

    /// Ends the agent and its guardian, and waits for them, at most for 1 s. To be called while nothing else reaps children.
    pub fn dismiss(self) {
        drop(self.joined);
        self.guardian.dismiss();
    }
}

/// Returns the order of an agent for a session that has not begun.
fn order(SessionAhead { session, key, marker, liveness }: SessionAhead) -> BootOrder {
    let position = TreePosition { agents: 1, fanout: 1, agent: AgentId(STANDING_TARGET) };
    BootOrder {
        session,
        key,
        marker,
        target: STANDING_TARGET,
        starter: 0,
        callback: Vec::new(),
        reach: Reach::Nowhere,
        links: Links::Pipes,
        uses_local_sockets: false,
        label: String::new(),
        dead_time: liveness.dead_time,
        stop_time: liveness.stop_time,
        heartbeat: liveness.heartbeat,
        rejoins: false,
        below: None,
        log: None,
        place: Some(Place { position, machine: sys::machine() }),
    }
}

/// Returns the report of an agent that has joined, and its link. Call it inside a tokio runtime.
pub(super) fn link_of(guardian: ForkedGuardian) -> io::Result<(BootReport, Accepted)> {
    let ForkedGuardian { input, output, report, .. } = guardian;
    let report = decode(&report.unwrap_or_default()).map_err(io::Error::other)?;
    let stream = Stream::pipes(Receiver::from_owned_fd(output)?, Sender::from_owned_fd(input)?, &[]);
    Ok((report, Accepted::over_inherited(stream, AgentId(STANDING_TARGET))))
}
