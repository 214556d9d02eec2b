//! One namespace at one agent: the agent's ranks, the exchange of entries, and reports that are still to be sent.

use litemap::LiteMap;
use pmi::{Puts, Rank, Ranks};

use super::node_attributes::NodeAttributes;
use super::reviving::{CatchUp, CatchUpStep};
use crate::core::cache::CachePolicy;
use crate::core::exchange::{Exchange, MoveIn};
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::limits::{EXIT_BATCH, FENCE_SLOW, UNFINALIZED_TIME};
use crate::core::lookup::Peer;
use crate::core::message::{Contribution, InquiryKind, NODE_REQUESTS_FROM, Requester, Up};
use crate::core::parent::EndState;
use crate::core::pieces::PieceBytes;
use crate::core::plan::{NamespacePlan, Variable, owner_of};
use crate::core::stats::DurationHistogram;
use crate::core::topology::Subtree;

/// A rank that moved to this agent in start `n` numbers its requests from `n` times two to this power.
const REQUESTS_OF_START_BITS: u32 = 20;

/// The stage of the life of one of this agent's ranks.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Stage {
    /// The core has ordered the driver to start it.
    #[default]
    Starting,
    /// Its process runs.
    Running,
    /// Its process has ended, or was never started.
    Ended,
}

/// The requests of one rank, or of the node under one number, to other agents and the launcher.
#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    /// How many were made.
    requests: u32,
    /// The number of the request that was not answered.
    asking: Option<u32>,
}

/// One of this agent's ranks.
#[derive(Debug, Default)]
struct LocalRank {
    stage: Stage,
    /// The number of fences at which it has arrived.
    fences: u32,
    /// It waits in the open fence for an answer.
    waiting: bool,
    /// Its failure was reported, so the end of its process is not reported as another one.
    failed: bool,
    /// It has spoken PMI and not finalized it.
    active: bool,
    /// It has spoken PMI at some time.
    joined: bool,
    /// It waits for another agent to answer when an attribute of the node is put.
    inquiring: bool,
    asks: Asks,
    /// The number of the start that follows once its process has ended.
    revival: Option<u32>,
    /// It has started again and has not caught up with the fences of the others.
    catch_up: Option<CatchUp>,
}

impl LocalRank {
    /// The only place where a rank's stage changes.
    fn enter(&mut self, rank: Rank, stage: Stage, why: &'static str) {
        tracing::trace!(rank = rank.0, from = ?self.stage, to = ?stage, why, "a rank's stage changes");
        self.stage = stage;
    }
}

/// One namespace at one agent.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) id: NamespaceId,
    /// The ranks are those of the job itself, of its first start or of a later one.
    pub(super) is_job: bool,
    pub(super) exchange: Exchange,
    /// PMIx serves the ranks. libpmix completes the fences of one node by itself, so a rank here that has not joined can block
    /// the others in a fence that the core does not know.
    by_pmix: bool,
    /// The root has ordered its end: what its ranks do is no failure any more.
    pub(super) undone: bool,
    /// The root has forgotten the namespace.
    pub(super) forgotten: bool,
    /// The attributes of the node, if this agent owns them.
    pub(super) node: NodeAttributes,
    /// How long each fence took from the subtree's last arrival to the release.
    pub(super) fence_times: DurationHistogram,
    here: AgentId,
    pub(super) size: u32,
    /// For each agent of the subtree that does not own the attributes of its node, the agent that does.
    owners: Vec<(AgentId, AgentId)>,
    preputs: Vec<Variable>,
    /// This agent's ranks.
    pub(super) own: Ranks,
    locals: LiteMap<Rank, LocalRank>,
    /// The requests of the node, by their numbers from [`NODE_REQUESTS_FROM`] on.
    node_asks: LiteMap<Rank, Asks>,
    /// This agent's ranks that have not ended.
    pub(super) live: u64,
    /// The number of those that were not started yet. A large node reports its starts in many groups: none must read all ranks.
    starting: u64,
    /// The number of those that have spoken PMI and not finalized it.
    active: u64,
    /// This agent's ranks that have ended without having spoken PMI, and were not reported for it. Empty without PMIx.
    unjoined: Ranks,
    /// Since when there have been both.
    unjoined_since: Option<Time>,
    /// Children with ranks, and this agent if it has any, whose ranks are not all started.
    unstarted: Vec<AgentId>,
    contacted: bool,
    /// The plan of the subtree, if the session goes on after the loss of an agent.
    pub(super) plan: Option<Box<NamespacePlan>>,
    /// The subtree's contributions to the open fence that were sent, if they may have to be sent again: the ranks and their
    /// puts. There is a further one for ranks that have moved here meanwhile.
    gathered: Vec<(Ranks, Contribution)>,
    /// The ranks of all contributions that were sent.
    gathered_ranks: Ranks,
    /// The ranks of the subtree whose agents were lost, by agent, if they start again elsewhere.
    moved_out: Vec<(AgentId, Ranks)>,
    /// Puts that were sent ahead of the open fence, and may have to be sent again.
    sent_puts: Puts,
    /// The last fence that was reported as slow.
    slow_reported: Option<u32>,
    /// When the open fence was reported as complete.
    complete_since: Option<Time>,
    /// Ranks that ended with code 0 and were not reported yet, by their end states.
    exits: LiteMap<EndState, Ranks>,
    exits_since: Option<Time>,
    /// The same ranks after the report.
    reported: LiteMap<EndState, Ranks>,
    /// Ranks of the subtree that have ended with code 0 or died.
    gone: Ranks,
    /// The number of these.
    gone_count: u64,
    /// Ranks that have died, as the launcher has reported them.
    pub(super) dead: Ranks,
}

impl Namespace {
    /// The namespace of `plan`, which is the share of `here`'s subtree.
    pub(super) fn new(
        plan: &NamespacePlan,
        here: Subtree,
        children: &[Subtree],
        (policy, piece_bytes): (CachePolicy, PieceBytes),
        adopts: bool,
        by_pmix: bool,
    ) -> Self {
        let own = plan.ranks_at(here.head()).cloned().unwrap_or_default();
        let exchange = Exchange::new(plan, here, children, policy, piece_bytes);
        let has_own = (!own.is_empty()).then_some(here.head());
        let mut locals = LiteMap::new();
        for rank in own.iter() {
            locals.insert(rank, LocalRank::default());
        }
        Self {
            id: plan.id,
            is_job: plan.spawner.is_none(),
            by_pmix,
            undone: false,
            forgotten: false,
            node: NodeAttributes::default(),
            fence_times: DurationHistogram::default(),
            here: here.head(),
            size: plan.size,
            owners: plan.owners.clone(),
            preputs: plan.preputs.clone(),
            live: own.len(),
            starting: own.len(),
            active: 0,
            unjoined: Ranks::new(),
            unjoined_since: None,
            unstarted: exchange.with_ranks().chain(has_own).collect(),
            contacted: false,
            plan: adopts.then(|| Box::new(plan.clone())),
            gathered: Vec::new(),
            gathered_ranks: Ranks::new(),
            moved_out: Vec::new(),
            sent_puts: Puts::new(),
            slow_reported: None,
            complete_since: None,
            exits: LiteMap::new(),
            exits_since: None,
            reported: LiteMap::new(),
            gone: Ranks::new(),
            gone_count: 0,
            dead: Ranks::new(),
            locals,
            node_asks: LiteMap::new(),
            own,
            exchange,
        }
    }

    // ---- this agent's ranks ----

    /// This agent's ranks at `stage`.
    pub(super) fn at(&self, stage: Stage) -> Ranks {
        self.locals.iter().filter(|(_, local)| local.stage == stage).map(|(rank, _)| *rank).collect()
    }

    /// Notes that ranks of this agent were started. Returns whether all ranks of the subtree are.
    pub(super) fn on_started(&mut self, ranks: &Ranks) -> bool {
        for rank in ranks.iter() {
            if let Some(local) = self.locals.get_mut(&rank)
                && local.stage == Stage::Starting
            {
                local.enter(rank, Stage::Running, "it was started");
                self.starting -= 1;
            }
        }
        self.starting == 0 && self.on_part_started(self.here)
    }

    /// Notes that all ranks of a child, or all of this agent's ranks, were started. Returns whether that was the last
    /// part.
    pub(super) fn on_part_started(&mut self, part: AgentId) -> bool {
        let Some(at) = self.unstarted.iter().position(|unstarted| *unstarted == part) else { return false };
        self.unstarted.swap_remove(at);
        self.unstarted.is_empty()
    }

    /// Lets `heirs` take the place of a lost child. Returns the ranks that are lost with it.
    pub(super) fn inherit(&mut self, lost: Subtree, heirs: &[Subtree]) -> Ranks {
        let Some(plan) = &self.plan else { return Ranks::new() };
        let (ranks, with_ranks) = self.exchange.inherit(plan, lost, heirs);
        if self.unstarted.contains(&lost.head()) {
            self.unstarted.extend(with_ranks);
        }
        ranks.difference(&self.gone)
    }

    /// Forgets ranks of the subtree whose agent was lost. Returns those that the agent had.
    pub(super) fn move_out(&mut self, agent: AgentId, ranks: &Ranks) -> Ranks {
        let Some(plan) = &mut self.plan else { return Ranks::new() };
        let ranks = plan.move_out(agent, ranks);
        if ranks.is_empty() {
            return ranks;
        }
        self.moved_out.push((agent, ranks.clone()));
        self.exchange.fence.move_out(&ranks);
        self.gathered_ranks = self.gathered_ranks.difference(&ranks);
        self.sent_puts = self.sent_puts.without(&ranks);
        for (theirs, contribution) in &mut self.gathered {
            *theirs = theirs.difference(&ranks);
            if let Contribution::Puts(puts) = contribution {
                *puts = puts.without(&ranks);
            }
        }
        self.gathered.retain(|(theirs, _)| !theirs.is_empty());
        let gathered = self.gathered.iter().filter_map(|(_, contribution)| match contribution {
            Contribution::Puts(puts) => Some(puts),
            Contribution::Ring(_) => None,
        });
        self.exchange.move_out(&ranks, &gathered.collect::<Vec<_>>());
        ranks
    }

    /// Expects ranks that an agent of the subtree starts, below this child, or here. Returns false if the order is a
    /// repeated one.
    pub(super) fn move_in(&mut self, moved: MoveIn, child: Option<AgentId>) -> bool {
        let Some(plan) = &mut self.plan else { return false };
        if !plan.move_in(moved.to, &moved.ranks) {
            return false;
        }
        if child.is_none() {
            self.own.union_with(&moved.ranks);
            self.live += moved.ranks.len();
            self.starting += moved.ranks.len();
            // The launcher knows the numbers of the requests that the rank has made elsewhere.
            let requests = moved.incarnation.wrapping_shl(REQUESTS_OF_START_BITS);
            for rank in moved.ranks.iter() {
                let catch_up = Some(CatchUp::default());
                let asks = Asks { requests, asking: None };
                self.locals.insert(rank, LocalRank { asks, catch_up, ..LocalRank::default() });
            }
        }
        self.exchange.move_in(moved, child);
        true
    }

    /// Records the end of one of this agent's ranks. Returns `None` for another rank, or if the rank had ended before.
    pub(super) fn end(&mut self, rank: Rank, why: &'static str) -> Option<EndState> {
        let local = self.locals.get_mut(&rank).filter(|local| local.stage != Stage::Ended)?;
        self.starting -= u64::from(local.stage == Stage::Starting);
        local.enter(rank, Stage::Ended, why);
        local.waiting = false;
        self.live -= 1;
        self.active -= u64::from(local.active);
        if self.by_pmix && !local.joined {
            self.unjoined.insert(rank);
        }
        self.node.forget(rank);
        Some(EndState { fences: local.fences, unfinished: local.active })
    }

    /// Orders the next start of one of this agent's ranks. Returns whether it can start now; otherwise its process has
    /// still to end.
    pub(super) fn revive(&mut self, rank: Rank, incarnation: u32) -> bool {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.revival = Some(incarnation);
        }
        self.take_revival(rank).is_some()
    }

    /// Takes the number of the next start of a rank whose process has ended. The rank counts as starting.
    pub(super) fn take_revival(&mut self, rank: Rank) -> Option<u32> {
        let local = self.locals.get_mut(&rank).filter(|local| local.stage == Stage::Ended)?;
        let incarnation = local.revival.take()?;
        let catch_up = Some(CatchUp::default());
        // Numbers of requests are not used again: the answer to an old one may be under way.
        let asks = Asks { asking: None, ..local.asks };
        *local = LocalRank { stage: Stage::Ended, asks, catch_up, ..LocalRank::default() };
        local.enter(rank, Stage::Starting, "it starts again");
        self.live += 1;
        self.starting += 1;
        self.unjoined.remove(rank);
        Some(incarnation)
    }

    /// The state of a rank that has not caught up with the others.
    pub(super) fn catch_up(&mut self, rank: Rank) -> Option<&mut CatchUp> {
        self.locals.get_mut(&rank)?.catch_up.as_mut()
    }

    /// A rank that catches up makes its next fence.
    pub(super) fn step_of_catch_up(&mut self, rank: Rank) -> Option<CatchUpStep> {
        let fence = &self.exchange.fence;
        let local = self.locals.get_mut(&rank)?;
        let step = local.catch_up.as_mut()?.step(fence.number(), fence.arrived().contains(rank));
        match step {
            CatchUpStep::Pass => local.fences = local.fences.wrapping_add(1),
            CatchUpStep::Wait => {
                local.fences = local.fences.wrapping_add(1);
                local.waiting = true;
            }
            CatchUpStep::Enter(_) => local.catch_up = None,
        }
        Some(step)
    }

    /// Notes that a failure of one of this agent's ranks is about to be reported. Returns false if one was before.
    pub(super) fn note_failure(&mut self, rank: Rank) -> bool {
        self.locals.get_mut(&rank).is_none_or(|local| !std::mem::replace(&mut local.failed, true))
    }

    /// Notes that one of this agent's ranks has initialized (true) or finalized (false) PMI.
    pub(super) fn set_active(&mut self, rank: Rank, active: bool) {
        if let Some(local) = self.locals.get_mut(&rank).filter(|local| local.stage != Stage::Ended) {
            self.active = self.active + u64::from(active) - u64::from(local.active);
            local.active = active;
            local.joined = true;
        }
        // The process may have ended before its report was read. libpmix knows that it had joined.
        self.unjoined.remove(rank);
    }

    /// Takes this agent's ranks that have ended without joining PMIx, if others here that have joined it have run on for
    /// [`UNFINALIZED_TIME`]. None while the session ends.
    pub(super) fn take_unjoined(&mut self, now: Time, is_serving: bool) -> Option<Ranks> {
        if !is_serving || self.undone || self.active == 0 || self.unjoined.is_empty() {
            self.unjoined_since = None;
            return None;
        }
        let since = *self.unjoined_since.get_or_insert(now);
        (now >= since + UNFINALIZED_TIME).then(|| {
            self.unjoined_since = None;
            std::mem::take(&mut self.unjoined)
        })
    }

    /// Notes that a rank of the subtree has spoken PMI. Returns true for the first one.
    pub(super) fn on_contact(&mut self) -> bool {
        !std::mem::replace(&mut self.contacted, true)
    }

    /// Whether the root expects nothing of the namespace any more, and no rank of this agent is left.
    pub(super) fn is_freeable(&self) -> bool {
        (self.undone || self.forgotten) && self.live == 0
    }

    // ---- the open fence ----

    /// Notes that one of this agent's ranks has entered the open fence and waits for an answer.
    pub(super) fn on_entered(&mut self, rank: Rank) {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.fences = local.fences.wrapping_add(1);
            local.waiting = true;
        }
    }

    /// Takes the report that the whole subtree has arrived, once; or, ahead of it, what some of its ranks have put, if that is
    /// as long as a piece.
    pub(super) fn take_gathered(&mut self, now: Time) -> Option<Up> {
        let Exchange { fence, cache, piece_bytes, .. } = &mut self.exchange;
        let number = fence.number();
        let is_complete = fence.is_complete();
        let is_piece = || piece_bytes.is_some_and(|piece| fence.pending_bytes() >= piece.get() as usize);
        if !is_complete && !is_piece() || fence.arrived() == &self.gathered_ranks {
            return None;
        }
        if is_complete {
            self.complete_since = Some(now);
        }
        let (ranks, contribution) = (fence.arrived().difference(&self.gathered_ranks), fence.take());
        self.gathered_ranks.union_with(&ranks);
        if let Contribution::Puts(puts) = &contribution {
            cache.gather(puts);
        }
        if self.plan.is_some() {
            self.gathered.push((ranks.clone(), contribution.clone()));
        }
        Some(self.gathered_message(number, ranks, contribution, is_complete))
    }

    /// The report of ranks that have arrived. `is_last`: the subtree is complete with them.
    fn gathered_message(&self, number: u32, ranks: Ranks, contribution: Contribution, is_last: bool) -> Up {
        let namespace = self.id;
        match contribution {
            Contribution::Puts(puts) if !is_last => Up::Gathering { namespace, number, ranks, puts },
            contribution => Up::Gathered { namespace, number, ranks, contribution },
        }
    }

    /// Notes puts that were sent ahead of the open fence.
    pub(super) fn on_put_sent(&mut self, puts: &Puts) {
        if self.plan.is_some() {
            self.sent_puts.append(puts);
        }
    }

    /// All reports of the subtree that a lost parent may not have passed on.
    pub(super) fn repeated(&self) -> Vec<Up> {
        let (namespace, number) = (self.id, self.exchange.fence.number());
        let mut messages = Vec::new();
        for (agent, ranks) in self.moved_out.clone() {
            messages.push(Up::MovedOut { namespace, agent, ranks });
        }
        if self.unstarted.is_empty() {
            messages.push(Up::Started { namespace });
        }
        if self.contacted {
            messages.push(Up::Contact { namespace });
        }
        if self.sent_puts.bytes_len() > 0 {
            messages.push(Up::Put { namespace, number, puts: self.sent_puts.clone() });
        }
        let fence = &self.exchange.fence;
        let is_complete = fence.is_complete() && fence.arrived() == &self.gathered_ranks;
        for (at, (ranks, contribution)) in self.gathered.iter().cloned().enumerate() {
            let is_last = is_complete && at + 1 == self.gathered.len();
            messages.push(self.gathered_message(number, ranks, contribution, is_last));
        }
        let dead = self.exchange.fence.dead();
        if !dead.is_empty() {
            messages.push(Up::Died { namespace, ranks: dead.clone() });
        }
        for (EndState { fences, unfinished }, ranks) in &self.reported {
            messages.push(Up::Exited { namespace, fences: *fences, unfinished: *unfinished, ranks: ranks.clone() });
        }
        if self.slow_reported == Some(number) {
            messages.push(Up::Waiting { namespace, number });
        }
        messages.extend(self.exchange.groups.repeated(namespace));
        let asked = self.exchange.look_ups.asked(Peer::Parent).into_iter();
        messages.extend(asked.map(|key| Up::Get { namespace, key }));
        messages
    }

    /// Releases the open fence. Returns two sets of this agent's ranks that wait in it: those that have entered it, and those
    /// that catch up, whose former processes had entered it. `None` if `number` is not complete and open.
    pub(super) fn release(&mut self, now: Time, number: u32) -> Option<(Ranks, Ranks)> {
        if !self.exchange.fence.release(number) {
            return None;
        }
        self.gathered.clear();
        self.gathered_ranks = Ranks::new();
        self.sent_puts = Puts::new();
        if let Some(since) = self.complete_since.take() {
            self.fence_times.note(now.saturating_sub(since));
        }
        let (mut released, mut passed) = (Ranks::new(), Ranks::new());
        for (rank, local) in self.locals.iter_mut().filter(|(_, local)| local.waiting) {
            local.waiting = false;
            if local.catch_up.is_none() { &mut released } else { &mut passed }.insert(*rank);
        }
        Some((released, passed))
    }

    // ---- attributes of the node, gets from other namespaces ----

    /// The agent that owns the attributes of the node of `agent`.
    pub(super) fn owner_of(&self, agent: AgentId) -> AgentId {
        owner_of(&self.owners, agent)
    }

    /// Whether this agent owns the attributes of its node, and `rank` can be one that shares them.
    pub(super) fn is_owner_for(&self, rank: Rank) -> bool {
        !self.own.is_empty() && self.owner_of(self.here) == self.here && rank.0 < self.size
    }

    /// Notes that one of this agent's ranks asks another agent, which has to forget the rank if it ends while it waits.
    pub(super) fn on_inquiry(&mut self, rank: Rank, kind: &InquiryKind) {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.inquiring = matches!(kind, InquiryKind::NodeGet { wait: true, .. });
        }
    }

    /// Notes that one of this agent's ranks has been answered, or has ended. Returns whether it was waiting for another
    /// agent.
    pub(super) fn take_inquiring(&mut self, rank: Rank) -> bool {
        self.locals.get_mut(&rank).is_some_and(|local| std::mem::take(&mut local.inquiring))
    }

    /// The requests of one of this agent's ranks, or of its node under this number.
    fn asks(&mut self, rank: Rank) -> Option<&mut Asks> {
        if rank.0 >= NODE_REQUESTS_FROM {
            return Some(self.node_asks.entry(rank).or_default());
        }
        self.locals.get_mut(&rank).map(|local| &mut local.asks)
    }

    /// Numbers a new request of one of this agent's ranks, or of its node.
    pub(super) fn next_request(&mut self, rank: Rank) -> Requester {
        let mut number = 0;
        if let Some(asks) = self.asks(rank) {
            number = asks.requests;
            *asks = Asks { requests: number.wrapping_add(1), asking: Some(number) };
        }
        Requester { agent: self.here, namespace: self.id, rank, number }
    }

    /// The last request of one of this agent's ranks.
    pub(super) fn last_request(&self, rank: Rank) -> Requester {
        let number = self.locals.get(&rank).map_or(0, |local| local.asks.requests.wrapping_sub(1));
        Requester { agent: self.here, namespace: self.id, rank, number }
    }

    /// Takes the reply to a rank's request. Returns whether the rank waits for it: a repeated request has two replies.
    pub(super) fn take_reply(&mut self, rank: Rank, number: u32) -> bool {
        self.asks(rank).is_some_and(|asks| asks.asking.take_if(|asking| *asking == number).is_some())
    }

    /// The value that is on the board from the beginning.
    pub(super) fn preput(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.preputs.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    // ---- reports to the parent ----

    /// Notes ranks that ended with code 0, to report several together.
    pub(super) fn note_exited(&mut self, now: Time, state: EndState, ranks: &Ranks) {
        self.exits.entry(state).or_default().union_with(ranks);
        self.exits_since.get_or_insert(now);
        self.gone.union_with(ranks);
        self.gone_count = self.gone.len();
    }

    /// Whether all ranks of the subtree have ended with code 0 or died: no further exit will be reported.
    pub(super) fn is_exited(&self) -> bool {
        self.gone_count >= self.exchange.fence.expected()
    }

    /// The ranks of the subtree that have no agent: theirs was lost.
    pub(super) fn without_agent(&self, plan: &NamespacePlan, here: Subtree) -> Ranks {
        let all = plan.ranks_of(here).difference(&self.own);
        self.exchange.children.iter().fold(all, |rest, (_, ranks)| rest.difference(ranks))
    }

    /// Stops waiting for those of `ranks` that are in the subtree: they have died.
    pub(super) fn mark_dead(&mut self, ranks: &Ranks) {
        self.exchange.fence.mark_dead(ranks);
        self.gone.union_with(self.exchange.fence.dead());
        self.gone_count = self.gone.len();
    }

    /// The time at which [`Namespace::due_reports`] will return a message.
    pub(super) fn deadline(&self) -> Option<Time> {
        let fence = &self.exchange.fence;
        let exits = self.exits_since.map(|since| since + EXIT_BATCH);
        let slow = fence
            .since()
            .filter(|_| !fence.is_complete() && self.slow_reported != Some(fence.number()))
            .map(|since| since + FENCE_SLOW);
        let unjoined = self.unjoined_since.map(|since| since + UNFINALIZED_TIME);
        exits.into_iter().chain(slow).chain(unjoined).min()
    }

    /// Takes the reports that are due by now; with `all`, also those that could wait.
    pub(super) fn due_reports(&mut self, now: Time, all: bool) -> Vec<Up> {
        let mut messages = Vec::new();
        if self.exits_since.is_some_and(|since| all || now >= since + EXIT_BATCH) {
            self.exits_since = None;
            for (EndState { fences, unfinished }, ranks) in std::mem::take(&mut self.exits) {
                if self.plan.is_some() {
                    self.reported.entry(EndState { fences, unfinished }).or_default().union_with(&ranks);
                }
                messages.push(Up::Exited { namespace: self.id, fences, unfinished, ranks });
            }
        }
        let fence = &self.exchange.fence;
        if fence.since().is_some_and(|since| now >= since + FENCE_SLOW) && !fence.is_complete() {
            messages.extend(self.take_waiting(fence.number()));
        }
        messages
    }

    /// Takes the report that ranks of the subtree wait in a slow fence, once per fence.
    pub(super) fn take_waiting(&mut self, number: u32) -> Option<Up> {
        if number != self.exchange.fence.number() || self.slow_reported == Some(number) {
            return None;
        }
        self.slow_reported = Some(number);
        Some(Up::Waiting { namespace: self.id, number })
    }

    /// Panics if an invariant between two inputs is broken.
    pub(super) fn check_invariants(&self) {
        let live = self.locals.values().filter(|local| local.stage != Stage::Ended).count() as u64;
        assert_eq!(live, self.live, "the count of live ranks is right");
        let starting = self.locals.values().filter(|local| local.stage == Stage::Starting).count() as u64;
        assert_eq!(starting, self.starting, "the count of ranks that were not started is right");
        let active = self.locals.values().filter(|local| local.active && local.stage != Stage::Ended).count() as u64;
        assert_eq!(active, self.active, "the count of active ranks is right");
        let arrived = self.exchange.fence.arrived();
        for (rank, local) in &self.locals {
            assert!(!local.waiting || arrived.contains(*rank), "rank {rank} waits outside of the open fence");
            assert!(
                !local.inquiring || self.owner_of(self.here) != self.here,
                "rank {rank} waits for another agent although its own one owns the attributes"
            );
            if local.stage == Stage::Ended {
                assert!(!local.inquiring && !self.node.is_parked(*rank), "rank {rank} waits although it has ended");
            }
        }
        self.exchange.fence.check_invariants();
        self.node.check_invariants();
    }
}
