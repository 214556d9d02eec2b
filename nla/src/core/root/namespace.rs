//! One namespace at the root: its plan, the exchange of entries, and the ranks that have ended.

use litemap::LiteMap;
use pmi::{Puts, Ranks};

use super::watching::Watched;
use super::{Notice, RootAction, Turn};
use crate::core::exchange::{Exchange, MoveIn};
use crate::core::fence::RingPart;
use crate::core::ids::{AgentId, Time};
use crate::core::limits::UNFINALIZED_TIME;
use crate::core::message::{Contribution, Down, ReleaseContent, Requester, Update};
use crate::core::parent::EndState;
use crate::core::pieces::release_messages;
use crate::core::plan::NamespacePlan;
use crate::core::topology::Subtree;

/// One namespace at the root.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) plan: NamespacePlan,
    pub(super) exchange: Exchange,
    /// Children with ranks of the namespace that have not reported them all started.
    pub(super) unstarted: Vec<AgentId>,
    /// Ranks of the other children.
    pub(super) started: u64,
    pub(super) contacted: bool,
    /// Ranks that ended with code 0, by the number of fences at which they had arrived and whether they had spoken PMI
    /// and not finalized it.
    exited: LiteMap<EndState, Ranks>,
    /// Ranks that have ended with code 0 or died.
    gone: Ranks,
    /// Ranks that have died, as all agents were told.
    dead: Ranks,
    /// The time of the first report of ranks that had not finalized PMI.
    unfinished_since: Option<Time>,
    /// A fence in which ranks wait although no child has reported its part as complete.
    pub(super) waiting: Option<(u32, Time)>,
    pub(super) watched: Watched,
    /// The rank that spawned the namespace, until it is answered.
    pub(super) requester: Option<Requester>,
}

impl Namespace {
    pub(super) fn new(plan: NamespacePlan, exchange: Exchange, requester: Option<Requester>) -> Self {
        Self {
            plan,
            unstarted: exchange.with_ranks().collect(),
            exchange,
            started: 0,
            contacted: false,
            exited: LiteMap::new(),
            gone: Ranks::new(),
            dead: Ranks::new(),
            unfinished_since: None,
            waiting: None,
            watched: Watched::default(),
            requester,
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.gone.len() >= u64::from(self.plan.size)
    }

    /// Whether the spawn was answered and all ranks have ended: no agent has more to report.
    pub(super) fn has_ended(&self) -> bool {
        self.unstarted.is_empty() && self.requester.is_none() && self.is_over()
    }

    pub(super) fn on_exited(&mut self, now: Time, state: EndState, ranks: &Ranks) {
        if state.unfinished {
            self.unfinished_since.get_or_insert(now);
        }
        self.watched.left.get_or_insert(now);
        self.exited.entry(state).or_default().union_with(ranks);
        self.gone.union_with(ranks);
    }

    /// Lets `heirs` take the place of a lost child. Returns the ranks that are lost with it.
    pub(super) fn inherit(&mut self, lost: Subtree, heirs: &[Subtree]) -> Ranks {
        let (ranks, with_ranks) = self.exchange.inherit(&self.plan, lost, heirs);
        if self.unstarted.contains(&lost.head()) {
            self.unstarted.extend(with_ranks);
        }
        ranks.difference(&self.gone)
    }

    /// The ranks that have ended with code 0 or died.
    pub(super) fn gone(&self) -> &Ranks {
        &self.gone
    }

    /// Those of `ranks` that have not ended.
    pub(super) fn not_gone(&self, ranks: &Ranks) -> Ranks {
        ranks.difference(&self.gone)
    }

    /// Ranks have lost their agent. The open fence still waits for them. Returns those that the agent had.
    pub(super) fn move_out(&mut self, agent: AgentId, ranks: &Ranks) -> Ranks {
        let ranks = self.plan.move_out(agent, ranks);
        self.exchange.fence.withdraw(&ranks);
        self.exchange.move_out(&ranks, &[]);
        ranks
    }

    /// An agent below this child starts ranks that have lost their agent.
    pub(super) fn move_in(&mut self, moved: MoveIn, child: Option<AgentId>) {
        self.plan.move_in(moved.to, &moved.ranks);
        self.exchange.move_in(moved, child);
    }

    /// The ranks that have died, as all agents were told.
    pub(super) fn dead(&self) -> &Ranks {
        &self.dead
    }

    /// Stops waiting for ranks that have died. Returns the ones that were not dead before.
    pub(super) fn mark_dead(&mut self, ranks: &Ranks) -> Ranks {
        let new = ranks.difference(&self.dead);
        self.exchange.fence.mark_dead(&new);
        self.dead.union_with(&new);
        self.gone.union_with(&new);
        new
    }

    /// The ranks that ended too early, and whether others wait for them in a fence.
    pub(super) fn exited_early(&self, now: Time) -> Option<(Ranks, bool)> {
        if self.is_over() {
            return None;
        }
        let missed = self.missed();
        if !missed.is_empty() {
            return Some((missed, true));
        }
        let is_late = self.unfinished_since.is_some_and(|since| now >= since + UNFINALIZED_TIME);
        let late = if is_late { self.unfinished() } else { Ranks::new() };
        (!late.is_empty()).then_some((late, false))
    }

    /// The ranks that have ended without finalizing PMI and were not reported as dead.
    fn unfinished(&self) -> Ranks {
        union(self.exited.iter().filter(|(state, _)| state.unfinished)).difference(&self.dead)
    }

    /// Notes that the result of [`Namespace::exited_early`] was reported. The wait begins again for ranks that end
    /// later.
    pub(super) fn on_early_reported(&mut self) {
        self.unfinished_since = None;
    }

    /// When [`Namespace::exited_early`] may return ranks for which no other waits in a fence.
    pub(super) fn unfinalized_deadline(&self) -> Option<Time> {
        let since = self.unfinished_since.filter(|_| !self.is_over() && !self.unfinished().is_empty())?;
        Some(since + UNFINALIZED_TIME)
    }

    /// Since when the root has known that ranks wait in the open fence.
    pub(super) fn waiting_since(&self) -> Option<Time> {
        let fence = &self.exchange.fence;
        let reported = self.waiting.filter(|(number, _)| *number == fence.number()).map(|(_, since)| since);
        fence.since().into_iter().chain(reported).min()
    }

    /// The ranks that have ended and for which others wait in the open fence.
    fn missed(&self) -> Ranks {
        let open = self.exchange.fence.number();
        if self.waiting_since().is_some() {
            let missed = union(self.exited.iter().take_while(|(state, _)| state.fences <= open));
            missed.difference(&self.dead)
        } else {
            Ranks::new()
        }
    }

    /// An agent that has ranks of the namespace, and so its board: the requester's own, or one picked by the
    /// requester's number, so that not all ask the same one.
    pub(super) fn agent_for(&self, requester: AgentId) -> Option<AgentId> {
        let placement = &self.plan.placement;
        let at = placement.binary_search_by_key(&requester, |(agent, _)| *agent);
        let at = at.unwrap_or(requester.0 as usize % placement.len().max(1));
        placement.get(at).map(|(agent, _)| *agent)
    }

    /// Releases the open fence, which is complete, and stores the content if the session `keeps` it. A long epoch is packed if it
    /// `packs`. The fence fails if a rank has died before its first fence.
    pub(super) fn release(&mut self, keeps: bool, packs: bool, turn: &mut Turn<'_>) {
        let Exchange { fence, cache, children, last, piece_bytes, .. } = &mut self.exchange;
        let (namespace, number) = (self.plan.id, fence.number());
        let took = fence.since().map_or(Time::ZERO, |since| turn.now.saturating_sub(since));
        self.watched.released = Some(turn.now);
        // A rank that died before its first fence is a member of which the others know nothing. In a ring it leaves a
        // gap. Its later fences can do without it.
        let fails = fence.has_absent() && (number == 0 || fence.is_ring());
        let contribution = match fence.take() {
            Contribution::Ring(_) if fails => Contribution::Puts(Puts::new()),
            contribution => contribution,
        };
        let (entries, bytes) = match contribution {
            Contribution::Puts(puts) => {
                let content = if fails { ReleaseContent::Failed } else { ReleaseContent::Update };
                let (update, entries) = cache.close(puts);
                let content = content(update.clone());
                // Piece by piece, so that all children can begin to forward at once.
                for message in release_messages((namespace, number), &content, 0, (*piece_bytes, packs)) {
                    for (child, _) in children.iter() {
                        turn.push(RootAction::ToChild(*child, message.clone()));
                    }
                }
                *last = keeps.then_some(content);
                let bytes = match &update {
                    Update::Epoch(epoch) => epoch.bytes().len(),
                    Update::Overwritten(keys) => keys.bytes().len(),
                    Update::Pieces(_) => 0,
                };
                // The root serves no ranks, so there is no board on which to publish the epoch.
                cache.release(update);
                (entries, bytes)
            }
            Contribution::Ring(whole) => {
                *last = keeps.then(ReleaseContent::failed);
                // All segments were checked on arrival, so they have positions.
                let positions = fence.ring_positions(number, &whole.closed(), self.plan.size);
                for (part, position) in positions.unwrap_or_default() {
                    if let RingPart::Child(child) = part {
                        let content = ReleaseContent::Ring(position);
                        turn.push(RootAction::ToChild(child, Down::Release { namespace, number, content }));
                    }
                }
                (0, 0)
            }
        };
        turn.push(RootAction::Notice(Notice::Released { namespace, number, entries, bytes, took }));
        fence.release(number);
    }
}

fn union<'a, K>(sets: impl Iterator<Item = (K, &'a Ranks)>) -> Ranks {
    let mut all = Ranks::new();
    sets.for_each(|(_, ranks)| all.union_with(ranks));
    all
}
