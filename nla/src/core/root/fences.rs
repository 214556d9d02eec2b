//! Fences and rings: what comes together at the root, and what goes out again.

use pmi::{Puts, Ranks};

use super::namespace::Namespace;
use super::{Notice, Root, RootAction};
use crate::core::cause::{Cause, Failure};
use crate::core::fence::{FenceError, Part};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::message::{Contribution, Down, ReleaseContent, Update};

impl Root {
    pub(super) fn on_gathered(
        &mut self,
        now: Time,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        ranks: Ranks,
        contribution: Contribution,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let nobody = Ranks::new();
        let share = ns.children.get(&from).unwrap_or(&nobody);
        match ns.fence.arrive(now, from, number, &ranks, share, contribution) {
            Ok(()) => release(now, ns, actions),
            Err(error @ FenceError::Mixed { .. }) => {
                let cause = Cause::Broken { why: error.to_string() };
                self.on_failure(now, Failure { at: now, agent: from, namespace, ranks, cause }, actions);
            }
            Err(error) => {
                let why = format!("fence {number} of namespace {namespace}: {error}");
                self.cut_off(now, from, why, actions);
            }
        }
    }

    /// A rank below has put something, ahead of its fence.
    pub(super) fn on_put(
        &mut self,
        now: Time,
        from: AgentId,
        (namespace, number): (NamespaceId, u32),
        puts: &Puts,
        actions: &mut Vec<RootAction>,
    ) {
        let Some(ns) = self.namespaces.get_mut(&namespace) else { return };
        let nobody = Ranks::new();
        let share = ns.children.get(&from).unwrap_or(&nobody);
        let passed = ns.fence.check_ahead(number, share, puts).and_then(|()| ns.cache.pass(puts));
        if let Err(error) = passed {
            let why = format!("a put for fence {number} of namespace {namespace}: {error}");
            self.cut_off(now, from, why, actions);
        }
    }
}

/// Releases the open fence if all have arrived.
fn release(now: Time, ns: &mut Namespace, actions: &mut Vec<RootAction>) {
    if !ns.fence.is_complete() {
        return;
    }
    let (namespace, number) = (ns.plan.id, ns.fence.number());
    let took = ns.fence.since().map_or(Time::ZERO, |since| now.saturating_sub(since));
    let mut to =
        |child, content| actions.push(RootAction::ToChild(child, Down::Release { namespace, number, content }));
    let (entries, bytes) = match ns.fence.take() {
        Contribution::Puts(puts) => {
            let (news, entries) = ns.cache.close(puts);
            for child in ns.children.keys() {
                to(*child, ReleaseContent::Update(news.clone()));
            }
            let bytes = match &news {
                Update::Epoch(epoch) => epoch.bytes().len(),
                Update::Overwritten(keys) => keys.bytes().len(),
            };
            // No rank is served here: nobody looks at a board.
            ns.cache.release(news);
            (entries, bytes)
        }
        Contribution::Ring(whole) => {
            // All parts were checked when they came in, so they have seats.
            for (part, seat) in ns.fence.seats(number, &whole.closed(), ns.plan.size).unwrap_or_default() {
                if let Part::Child(child) = part {
                    to(child, ReleaseContent::Ring(seat));
                }
            }
            (0, 0)
        }
    };
    actions.push(RootAction::Notice(Notice::Released { namespace, number, entries, bytes, took }));
    ns.fence.release(number);
}
