//! Meetings: ranks of one or more namespaces wait for each other. PMIx has several kinds: fences of some ranks, connections of
//! jobs, groups.
//!
//! Meetings are rare. Each takes one request and one reply per agent; the tree carries both.

use bytes::Bytes;
use pmi::{Meeting, Met, PmixAnswer, Ranks};

use super::posts::until;
use super::{Root, Turn};
use crate::core::ids::{NamespaceId, Time};
use crate::core::limits::{FENCE_BYTES_MAX, MEETINGS_MAX};
use crate::core::message::{Reply, Requester};

/// Meetings that have begun and are not complete.
#[derive(Debug, Default)]
pub(super) struct Meetings {
    open: Vec<Open>,
    /// The number of the last one that was complete.
    last: u64,
}

#[derive(Debug)]
struct Open {
    name: Vec<u8>,
    members: Vec<(String, Option<Ranks>)>,
    /// The ranks that have not arrived.
    missing: Vec<(NamespaceId, Ranks)>,
    /// The requesters that wait for the reply, with their data.
    arrived: Vec<(Requester, Bytes)>,
    bytes: usize,
    /// The end of the shortest time that a requester waits.
    until: Option<Time>,
}

impl Meetings {
    /// The time at which ranks have waited long enough in a meeting.
    pub(super) fn deadline(&self) -> Option<Time> {
        self.open.iter().filter_map(|open| open.until).min()
    }
}

impl Open {
    /// Notes the arrival of ranks. Returns false if they are not expected, or if their data is too long.
    fn arrive(&mut self, requester: Requester, here: &[(NamespaceId, Ranks)], data: Bytes) -> bool {
        for (namespace, ranks) in here {
            let missing = self.missing.iter_mut().find(|(expected, _)| expected == namespace);
            let Some((_, missing)) = missing.filter(|(_, missing)| missing.contains_all(ranks)) else { return false };
            *missing = missing.difference(ranks);
        }
        self.bytes = self.bytes.saturating_add(data.len());
        self.arrived.push((requester, data));
        self.bytes <= FENCE_BYTES_MAX
    }

    fn is_complete(&self) -> bool {
        self.missing.iter().all(|(_, ranks)| ranks.is_empty())
    }
}

impl Root {
    /// Ranks of an agent have arrived at a meeting.
    pub(super) fn meet(&mut self, requester: Requester, meeting: Meeting, turn: &mut Turn<'_>) {
        let Meeting { name, members, here, data, timeout_s } = meeting;
        let here: Option<Vec<_>> =
            here.into_iter().map(|(job, ranks)| Some((self.namespace_of(job.as_bytes())?.plan.id, ranks))).collect();
        let is_same = |open: &Open| open.name == name && open.members == members;
        let at = match self.meetings.open.iter().position(is_same) {
            Some(at) => at,
            None => {
                let missing: Option<Vec<_>> = members.iter().map(|(job, ranks)| self.expected(job, ranks)).collect();
                let (Some(missing), true) = (missing, self.meetings.open.len() < MEETINGS_MAX) else {
                    return self.reply(requester, Reply::Pmix(PmixAnswer::Met(None)), turn);
                };
                let arrived = Vec::new();
                self.meetings.open.push(Open { name, members, missing, arrived, bytes: 0, until: None });
                self.meetings.open.len() - 1
            }
        };
        let open = &mut self.meetings.open[at];
        open.until = open.until.into_iter().chain(until(turn.now, timeout_s)).min();
        if !here.is_some_and(|here| open.arrive(requester, &here, data)) {
            let open = self.meetings.open.swap_remove(at);
            self.reply(requester, Reply::Pmix(PmixAnswer::Met(None)), turn);
            return self.refuse_meeting(&open, requester, turn);
        }
        if open.is_complete() {
            let open = self.meetings.open.swap_remove(at);
            self.meetings.last += 1;
            let met =
                Met { number: self.meetings.last, data: open.arrived.iter().map(|(_, data)| data.clone()).collect() };
            for (requester, _) in open.arrived {
                self.reply(requester, Reply::Pmix(PmixAnswer::Met(Some(met.clone()))), turn);
            }
        }
    }

    /// The ranks of a job that a meeting expects. `None` if the job has no such ranks.
    fn expected(&self, job: &str, ranks: &Option<Ranks>) -> Option<(NamespaceId, Ranks)> {
        let plan = &self.namespace_of(job.as_bytes())?.plan;
        let all = Ranks::range(0..plan.size);
        let ranks = ranks.clone().unwrap_or_else(|| all.clone());
        all.contains_all(&ranks).then_some((plan.id, ranks))
    }

    /// Fails the meetings that wait for a rank that has ended.
    pub(super) fn end_hopeless_meetings(&mut self, turn: &mut Turn<'_>) {
        let namespaces = &self.namespaces;
        let is_hopeless = |open: &mut Open| {
            open.missing.iter().any(|(id, missing)| {
                !missing.is_empty() && namespaces.get(id).is_none_or(|ns| ns.not_gone(missing).len() < missing.len())
            })
        };
        let hopeless: Vec<_> = self.meetings.open.extract_if(.., is_hopeless).collect();
        for open in hopeless {
            for (requester, _) in &open.arrived {
                self.reply(*requester, Reply::Pmix(PmixAnswer::Met(None)), turn);
            }
        }
    }

    /// Fails the meetings whose time is over.
    pub(super) fn end_late_meetings(&mut self, turn: &mut Turn<'_>) {
        let now = turn.now;
        let is_late = |open: &mut Open| open.until.is_some_and(|until| now >= until);
        for open in self.meetings.open.extract_if(.., is_late).collect::<Vec<_>>() {
            for (requester, _) in open.arrived {
                self.reply(requester, Reply::Pmix(PmixAnswer::TimedOut), turn);
            }
        }
    }

    /// Answers all requesters of a failed meeting except `but`.
    fn refuse_meeting(&mut self, open: &Open, but: Requester, turn: &mut Turn<'_>) {
        for (requester, _) in open.arrived.iter().filter(|(requester, _)| *requester != but) {
            self.reply(*requester, Reply::Pmix(PmixAnswer::Met(None)), turn);
        }
    }
}
