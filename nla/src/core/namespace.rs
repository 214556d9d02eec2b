//! One namespace as one agent sees it: its own ranks, its children's shares, the open fence, and
//! what has still to be told to the parent.

use std::collections::BTreeMap;

use pmi::{Puts, Rank, Ranks};

use super::cache::{Cache, CachePolicy, Place};
use super::fence::{Fence, FenceError, Part};
use super::ids::{AgentId, NamespaceId, Time};
use super::limits::{EXIT_BATCH, FENCE_SLOW};
use super::lookup::LookUps;
use super::message::{Contribution, Inquiry, InquiryKind, Up};
use super::node::Node;
use super::plan::{NamespacePlan, Variable};
use super::ring::RingPosition;
use super::stats::DurationHistogram;
use super::topology::Subtree;

/// Where one of the agent's own ranks is in its life.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    /// Handed to the driver to be started.
    Starting,
    /// It runs.
    Running,
    /// It has ended, or was never started.
    Ended,
}

#[derive(Debug)]
struct Local {
    stage: Stage,
    /// At how many fences it has arrived.
    fences: u32,
    /// It sits in the open fence and has an answer to come.
    waiting: bool,
    /// Its failure was reported; how its process ends is no news.
    failed: bool,
    /// It has spoken PMI and not finalized.
    active: bool,
    /// It has asked another agent for an attribute of the node, and waits for it to be put.
    inquiring: bool,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Namespace {
    pub(super) id: NamespaceId,
    pub(super) fence: Fence,
    /// The shares of the child subtrees that have ranks of it.
    pub(super) children: BTreeMap<AgentId, Ranks>,
    /// Its end was ordered: what ranks do is no failure any more.
    pub(super) undone: bool,
    /// The node's attributes, where this agent owns them.
    pub(super) node: Node,
    /// What is kept here of the board.
    pub(super) cache: Box<dyn Cache>,
    /// GetCounts that wait for an answer from elsewhere.
    pub(super) look_ups: LookUps,
    /// How long each fence took from when the whole subtree had arrived to its release.
    pub(super) fences: DurationHistogram,
    here: AgentId,
    size: u32,
    /// Agents of the subtree that do not own their node's attributes, and who does.
    owners: BTreeMap<AgentId, AgentId>,
    preputs: Vec<Variable>,
    own: Ranks,
    locals: BTreeMap<Rank, Local>,
    live: u64,
    /// Subtrees, this agent's own ranks among them, that have not yet been started.
    unstarted: u64,
    contacted: bool,
    waiting_told: Option<u32>,
    gathered_told: Option<u32>,
    /// When the parent was told of the open fence.
    gathered_at: Option<Time>,
    /// By the number of fences, and whether they were unfinished.
    exits: BTreeMap<(u32, bool), Ranks>,
    exits_since: Option<Time>,
    /// How many ranks of the subtree have ended with 0.
    exited: u64,
}

impl Namespace {
    /// `plan` is the share of `here`'s subtree.
    pub(super) fn new(plan: &NamespacePlan, here: Subtree, policy: CachePolicy) -> Self {
        let own = plan
            .placement
            .iter()
            .find(|(agent, _)| *agent == here.head())
            .map(|(_, ranks)| ranks.clone())
            .unwrap_or_default();
        let children: BTreeMap<_, _> = here
            .children()
            .map(|child| (child.head(), plan.ranks_of(child)))
            .filter(|(_, ranks)| !ranks.is_empty())
            .collect();
        let locals: BTreeMap<_, _> = own
            .iter()
            .map(|rank| {
                let local = Local {
                    stage: Stage::Starting,
                    fences: 0,
                    waiting: false,
                    failed: false,
                    active: false,
                    inquiring: false,
                };
                (rank, local)
            })
            .collect();
        Self {
            id: plan.id,
            fence: Fence::new(plan.ranks_of(here)),
            undone: false,
            node: Node::default(),
            cache: policy.at(Place::new(false, &children)),
            look_ups: LookUps::default(),
            fences: DurationHistogram::default(),
            here: here.head(),
            size: plan.size,
            owners: plan.owners.iter().copied().collect(),
            preputs: plan.preputs.clone(),
            live: locals.len() as u64,
            unstarted: children.len() as u64 + u64::from(!own.is_empty()),
            contacted: false,
            waiting_told: None,
            gathered_told: None,
            gathered_at: None,
            exits: BTreeMap::new(),
            exits_since: None,
            exited: 0,
            own,
            children,
            locals,
        }
    }

    /// This agent's own ranks.
    pub(super) fn own(&self) -> &Ranks {
        &self.own
    }

    /// How many own ranks have not ended.
    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// The own ranks at `stage`.
    pub(super) fn at(&self, stage: Stage) -> Ranks {
        self.locals.iter().filter(|(_, local)| local.stage == stage).map(|(rank, _)| *rank).collect()
    }

    /// Own ranks were started. True when with that the whole subtree is.
    pub(super) fn on_started(&mut self, ranks: &Ranks) -> bool {
        for rank in ranks.iter() {
            if let Some(local) = self.locals.get_mut(&rank)
                && local.stage == Stage::Starting
            {
                local.stage = Stage::Running;
            }
        }
        self.locals.values().all(|local| local.stage != Stage::Starting) && self.on_part_started()
    }

    /// A part of the subtree is complete. True when it was the last.
    pub(super) fn on_part_started(&mut self) -> bool {
        self.unstarted = self.unstarted.saturating_sub(1);
        self.unstarted == 0
    }

    /// Own ranks will never run.
    pub(super) fn on_not_started(&mut self, ranks: &Ranks) {
        for rank in ranks.iter() {
            self.end(rank);
        }
    }

    /// An own rank's process is gone: at how many fences it had arrived, and whether it had spoken
    /// PMI and not finalized. None if it is not one of ours or had ended before.
    pub(super) fn end(&mut self, rank: Rank) -> Option<(u32, bool)> {
        let local = self.locals.get_mut(&rank).filter(|local| local.stage != Stage::Ended)?;
        local.stage = Stage::Ended;
        local.waiting = false;
        self.live -= 1;
        self.node.forget(rank);
        Some((local.fences, local.active))
    }

    /// A failure of an own rank is about to be reported. False if one was before.
    pub(super) fn note_failure(&mut self, rank: Rank) -> bool {
        self.locals.get_mut(&rank).is_none_or(|local| !std::mem::replace(&mut local.failed, true))
    }

    /// An own rank has begun, or ended, to speak PMI.
    pub(super) fn set_active(&mut self, rank: Rank, active: bool) {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.active = active;
        }
    }

    /// First contact: true once per namespace.
    pub(super) fn on_contact(&mut self) -> bool {
        !std::mem::replace(&mut self.contacted, true)
    }

    /// A rank with an answer to come has entered the open fence.
    pub(super) fn on_entered(&mut self, rank: Rank) {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.fences = local.fences.wrapping_add(1);
            local.waiting = true;
        }
    }

    /// The whole subtree has arrived and the parent has not been told: the message to tell it.
    pub(super) fn gathered(&mut self, now: Time) -> Option<Up> {
        let number = self.fence.number();
        if !self.fence.is_complete() || self.gathered_told == Some(number) {
            return None;
        }
        self.gathered_told = Some(number);
        self.gathered_at = Some(now);
        let (ranks, contribution) = (self.fence.arrived().clone(), self.fence.take());
        if let Contribution::Puts(puts) = &contribution {
            self.cache.gather(puts);
        }
        Some(Up::Gathered { namespace: self.id, number, ranks, contribution })
    }

    /// Ranks of `child` arrive at fence `number`.
    pub(super) fn arrive(
        &mut self,
        now: Time,
        child: AgentId,
        number: u32,
        ranks: &Ranks,
        contribution: Contribution,
    ) -> Result<(), FenceError> {
        let nobody = Ranks::new();
        let share = self.children.get(&child).unwrap_or(&nobody);
        self.fence.arrive(now, child, number, ranks, share, contribution)
    }

    /// A put of own ranks, or of those of `child`, comes ahead of fence `number`.
    pub(super) fn pass(&mut self, child: Option<AgentId>, number: u32, puts: &Puts) -> Result<(), FenceError> {
        let nobody = Ranks::new();
        let share = child.map_or(&self.own, |child| self.children.get(&child).unwrap_or(&nobody));
        self.fence.check_ahead(number, share, puts)?;
        self.cache.pass(puts)
    }

    /// The seats of the parts of the open ring here; `whole` is that of the subtree.
    pub(super) fn seats(&self, number: u32, whole: &RingPosition) -> Result<Vec<(Part, RingPosition)>, FenceError> {
        self.fence.seats(number, whole, self.size)
    }

    /// The open fence was released: the own ranks that may go on.
    pub(super) fn release(&mut self, now: Time, number: u32) -> Option<Ranks> {
        if !self.fence.release(number) {
            return None;
        }
        if let Some(gathered) = self.gathered_at.take() {
            self.fences.note(now.saturating_sub(gathered));
        }
        let mut released = Ranks::new();
        for (rank, local) in self.locals.iter_mut().filter(|(_, local)| local.waiting) {
            local.waiting = false;
            released.insert(*rank);
        }
        Some(released)
    }

    // ---- the node's attributes, the board from elsewhere ----

    /// The agent that owns the attributes of the node of `agent`.
    pub(super) fn owner_of(&self, agent: AgentId) -> AgentId {
        self.owners.get(&agent).copied().unwrap_or(agent)
    }

    /// Whether the attributes of the node are this agent's, and `rank` can be one that shares them.
    pub(super) fn is_owner_for(&self, rank: Rank) -> bool {
        !self.own.is_empty() && self.owner_of(self.here) == self.here && rank.0 < self.size
    }

    /// Whether `child` may pass this on: it comes from a rank of its own, to who owns its node.
    pub(super) fn may_inquire(&self, child: AgentId, inquiry: &Inquiry) -> bool {
        let requester = inquiry.requester;
        let theirs = self.children.get(&child).is_some_and(|ranks| ranks.contains(requester.rank));
        theirs && self.owner_of(requester.agent) == inquiry.to && inquiry.kind.is_of_rank()
    }

    /// Whether `child` may ask for this key: it has ranks that can, and not too many have asked.
    pub(super) fn may_get(&self, child: AgentId, key: &[u8]) -> bool {
        self.children.contains_key(&child) && self.look_ups.admits(self.fence.expected(), key)
    }

    /// An own rank asks another agent; whether it is to be forgotten there when it ends.
    pub(super) fn on_inquiry(&mut self, rank: Rank, kind: &InquiryKind) {
        if let Some(local) = self.locals.get_mut(&rank) {
            local.inquiring = matches!(kind, InquiryKind::NodeGet { wait: true, .. });
        }
    }

    /// An own rank has been answered, or has ended. Whether it was waiting at another agent.
    pub(super) fn take_inquiring(&mut self, rank: Rank) -> bool {
        self.locals.get_mut(&rank).is_some_and(|local| std::mem::take(&mut local.inquiring))
    }

    /// What is on the board from the beginning.
    pub(super) fn preput(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.preputs.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// An own rank ended with 0; the parent hears of it together with others.
    pub(super) fn note_exit(&mut self, now: Time, fences: u32, unfinished: bool, ranks: &Ranks) {
        self.exits.entry((fences, unfinished)).or_default().union_with(ranks);
        self.exits_since.get_or_insert(now);
        self.exited += ranks.len();
    }

    /// Nothing is left to come from the subtree: there is nothing to wait for.
    pub(super) fn is_exited(&self) -> bool {
        self.exited >= self.fence.expected()
    }

    /// When [`Namespace::due`] will have something to say.
    pub(super) fn deadline(&self) -> Option<Time> {
        let exits = self.exits_since.map(|since| since + EXIT_BATCH);
        let slow = self
            .fence
            .since()
            .filter(|_| !self.fence.is_complete() && self.waiting_told != Some(self.fence.number()))
            .map(|since| since + FENCE_SLOW);
        exits.into_iter().chain(slow).min()
    }

    /// What the parent has to hear by now. With `all`, also what could wait.
    pub(super) fn due(&mut self, now: Time, all: bool) -> Vec<Up> {
        let mut messages = Vec::new();
        if self.exits_since.is_some_and(|since| all || now >= since + EXIT_BATCH) {
            self.exits_since = None;
            for ((fences, unfinished), ranks) in std::mem::take(&mut self.exits) {
                messages.push(Up::Exited { namespace: self.id, fences, unfinished, ranks });
            }
        }
        if self.fence.since().is_some_and(|since| now >= since + FENCE_SLOW) && !self.fence.is_complete() {
            messages.extend(self.tell_waiting(self.fence.number()));
        }
        messages
    }

    /// Somebody of the subtree waits in a slow fence: told once per fence.
    pub(super) fn tell_waiting(&mut self, number: u32) -> Option<Up> {
        if number != self.fence.number() || self.waiting_told == Some(number) {
            return None;
        }
        self.waiting_told = Some(number);
        Some(Up::Waiting { namespace: self.id, number })
    }

    /// What must hold between two inputs.
    pub(super) fn check_invariants(&self) {
        let live = self.locals.values().filter(|local| local.stage != Stage::Ended).count() as u64;
        assert_eq!(live, self.live, "live ranks are counted");
        for (rank, local) in &self.locals {
            assert!(
                !local.waiting || self.fence.arrived().contains(*rank),
                "rank {rank} waits outside of the open fence"
            );
            assert!(!local.inquiring || self.owner_of(self.here) != self.here, "rank {rank} waits here");
            if local.stage == Stage::Ended {
                assert!(!local.inquiring && !self.node.is_parked(*rank), "rank {rank} waits and has ended");
            }
        }
        self.fence.check_invariants();
        self.node.check_invariants();
    }
}
