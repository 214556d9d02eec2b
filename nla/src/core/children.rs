//! The children of the root or of an agent: how far each one is, and the statistics that it reported.
//!
//! If the session goes on after the loss of a child, the child's children take its place: they are orphaned until they
//! have joined here.

use std::collections::BTreeSet;

use super::ids::{AgentId, Time};
use super::stats::Stats;
use super::topology::Subtree;

/// The stage of a child's life, as its parent knows it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ChildStage {
    /// The child has not joined yet.
    Expected,
    /// The child's former parent was lost. The child has not joined here yet.
    Orphaned,
    /// The child's link is up.
    Joined,
    /// All agents of the child's subtree have joined.
    Ready,
    /// All agents of the child's subtree have the session's files.
    Staged,
    /// All processes of the child's subtree have ended.
    Ended,
    /// No further message arrives from the child.
    Lost,
}

impl ChildStage {
    /// Whether messages can be sent to the child.
    fn is_reachable(self) -> bool {
        !matches!(self, Self::Expected | Self::Orphaned | Self::Lost)
    }
}

#[derive(Debug)]
struct Child {
    id: AgentId,
    subtree: Subtree,
    stage: ChildStage,
    /// By when an orphaned child must have joined.
    until: Time,
    /// It has joined again, and gets what it has missed once it reports what it knows.
    is_behind: bool,
    stats: Option<Box<Stats>>,
}

impl Child {
    fn new(subtree: Subtree, stage: ChildStage, until: Time) -> Self {
        Self { id: subtree.head(), subtree, stage, until, is_behind: stage == ChildStage::Orphaned, stats: None }
    }
}

/// The parent's verdict on the report of a subtree's end.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum EndReport {
    /// The subtree has ended.
    Accepted,
    /// The child was given up before.
    Late,
    /// The report contradicts what is known of the subtree, or is the second one.
    Refused,
}

/// Keeps the state of each child, sorted by their numbers.
#[derive(Debug)]
pub(super) struct Children {
    all: Vec<Child>,
    /// Agents further down that were lost. Others have taken their places at their parents.
    lost_below: BTreeSet<AgentId>,
}

impl Children {
    /// The children of `parent`, all at the same stage.
    pub(super) fn new(parent: Subtree, stage: ChildStage) -> Self {
        let all = parent.children().map(|child| Child::new(child, stage, Time::MAX)).collect();
        Self { all, lost_below: BTreeSet::new() }
    }

    /// Notes that an agent further down was lost.
    pub(super) fn note_lost(&mut self, agent: AgentId) {
        self.lost_below.insert(agent);
    }

    /// Replaces a lost child by its own children, which must join by `until`. Skips agents further down that were lost
    /// too, in favour of their children. Returns the subtrees of the replacements.
    pub(super) fn replace(&mut self, lost: AgentId, until: Time) -> Vec<Subtree> {
        let Some(at) = self.all.iter().position(|child| child.id == lost) else { return Vec::new() };
        let mut heirs = Vec::new();
        let mut candidates: Vec<_> = self.all[at].subtree.children().collect();
        while let Some(candidate) = candidates.pop() {
            if self.lost_below.contains(&candidate.head()) {
                candidates.extend(candidate.children());
            } else {
                heirs.push(candidate);
            }
        }
        heirs.sort_by_key(Subtree::head);
        self.all[at].subtree = self.all[at].subtree.head_alone();
        // Numbered in pre-order, the heirs are between the lost child and the next one.
        let children = heirs.iter().map(|heir| Child::new(*heir, ChildStage::Orphaned, until));
        self.all.splice(at + 1..at + 1, children);
        heirs
    }

    /// The subtree of a child.
    pub(super) fn subtree(&self, child: AgentId) -> Option<Subtree> {
        self.get(child).map(|child| child.subtree)
    }

    /// The child whose subtree contains `agent`.
    pub(super) fn toward(&self, agent: AgentId) -> Option<AgentId> {
        let after = self.all.partition_point(|child| child.id <= agent);
        let child = self.all.get(after.checked_sub(1)?)?;
        child.subtree.contains(agent).then_some(child.id)
    }

    /// The subtrees of the children that are not lost.
    pub(super) fn subtrees(&self) -> Vec<Subtree> {
        self.all.iter().filter(|child| child.stage != ChildStage::Lost).map(|child| child.subtree).collect()
    }

    pub(super) fn is_lost(&self, child: AgentId) -> bool {
        self.stage(child) == Some(ChildStage::Lost)
    }

    pub(super) fn is_orphaned(&self, child: AgentId) -> bool {
        self.stage(child) == Some(ChildStage::Orphaned)
    }

    /// Returns the subtrees whose agents may join here. They include lost children: one that was only stopped joins to
    /// be told to end its ranks.
    pub(super) fn orphans(&self) -> Vec<Subtree> {
        let may_join = |child: &&Child| matches!(child.stage, ChildStage::Orphaned | ChildStage::Lost);
        self.all.iter().filter(may_join).map(|child| child.subtree).collect()
    }

    /// The orphaned children that have not joined in time.
    pub(super) fn late(&self, now: Time) -> Vec<AgentId> {
        self.orphaned().filter(|child| now >= child.until).map(|child| child.id).collect()
    }

    /// When the first orphaned child is late.
    pub(super) fn orphan_deadline(&self) -> Option<Time> {
        self.orphaned().map(|child| child.until).min()
    }

    /// Lets orphaned children join until this time at most.
    pub(super) fn hurry(&mut self, until: Time) {
        self.all.iter_mut().for_each(|child| child.until = child.until.min(until));
    }

    fn orphaned(&self) -> impl Iterator<Item = &Child> {
        self.all.iter().filter(|child| child.stage == ChildStage::Orphaned)
    }

    pub(super) fn contains(&self, child: AgentId) -> bool {
        self.stage(child).is_some()
    }

    fn stage(&self, child: AgentId) -> Option<ChildStage> {
        self.get(child).map(|child| child.stage)
    }

    fn get(&self, child: AgentId) -> Option<&Child> {
        self.all.binary_search_by_key(&child, |child| child.id).ok().map(|at| &self.all[at])
    }

    fn get_mut(&mut self, child: AgentId) -> Option<&mut Child> {
        self.all.binary_search_by_key(&child, |child| child.id).ok().map(|at| &mut self.all[at])
    }

    fn at(&self, is_meant: impl Fn(ChildStage) -> bool) -> impl Iterator<Item = AgentId> {
        self.all.iter().filter(move |child| is_meant(child.stage)).map(|child| child.id)
    }

    /// The children to which messages can be sent.
    pub(super) fn reachable(&self) -> impl Iterator<Item = AgentId> {
        self.at(ChildStage::is_reachable)
    }

    /// The children to which messages can be sent, except those that will get what they have missed.
    pub(super) fn up_to_date(&self) -> impl Iterator<Item = AgentId> {
        self.all.iter().filter(|child| child.stage.is_reachable() && !child.is_behind).map(|child| child.id)
    }

    /// The child has reported what it knows.
    pub(super) fn on_rejoined(&mut self, child: AgentId) {
        self.all.iter_mut().filter(|other| other.id == child).for_each(|child| child.is_behind = false);
    }

    pub(super) fn on_joined(&mut self, child: AgentId) {
        self.advance(child, ChildStage::Joined, "its link is up");
    }

    pub(super) fn on_ready(&mut self, child: AgentId) {
        self.advance(child, ChildStage::Ready, "all agents of its subtree have joined");
    }

    /// Notes that the subtree of `child` reported its end, unless the report does not fit the subtree.
    pub(super) fn on_ended(&mut self, child: AgentId, fits: bool) -> EndReport {
        match self.stage(child) {
            None | Some(ChildStage::Lost) => EndReport::Late,
            Some(
                ChildStage::Expected
                | ChildStage::Orphaned
                | ChildStage::Joined
                | ChildStage::Ready
                | ChildStage::Staged,
            ) if fits => {
                self.advance(child, ChildStage::Ended, "all processes of its subtree have ended");
                EndReport::Accepted
            }
            Some(_) => EndReport::Refused,
        }
    }

    /// Notes that nothing more arrives from `child`. Returns true, once, if that is a failure: its subtree had not
    /// ended, or the output of its subtree had not arrived.
    pub(super) fn on_lost(&mut self, child: AgentId, is_output_complete: bool) -> bool {
        let Some(before) = self.stage(child) else { return false };
        self.advance(child, ChildStage::Lost, "its link, or its start, failed");
        before < ChildStage::Ended || before == ChildStage::Ended && !is_output_complete
    }

    /// Stores the statistics of a child's subtree. Returns false, and stores nothing, if there are some already.
    pub(super) fn on_stats(&mut self, child: AgentId, stats: Box<Stats>) -> bool {
        self.get_mut(child).is_some_and(|child| child.stats.is_none() && child.stats.replace(stats).is_none())
    }

    /// The statistics that were reported.
    pub(super) fn stats(&self) -> impl Iterator<Item = &Stats> {
        self.all.iter().filter_map(|child| child.stats.as_deref())
    }

    /// Whether no further statistics will arrive.
    pub(super) fn all_reported_stats(&self) -> bool {
        let done = |child: &Child| match child.stage {
            ChildStage::Expected | ChildStage::Orphaned | ChildStage::Lost => true,
            ChildStage::Joined | ChildStage::Ready | ChildStage::Staged | ChildStage::Ended => child.stats.is_some(),
        };
        self.all.iter().all(done)
    }

    /// All agents of the child's subtree have the session's files.
    pub(super) fn on_staged(&mut self, child: AgentId) {
        if self.stage(child) == Some(ChildStage::Ready) {
            self.advance(child, ChildStage::Staged, "all agents of its subtree have the files");
        }
    }

    /// Whether all subtrees have the session's files.
    pub(super) fn all_staged(&self) -> bool {
        self.not_staged().next().is_none()
    }

    /// The children whose subtrees lack files of the session.
    pub(super) fn not_staged(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| !matches!(stage, ChildStage::Staged | ChildStage::Ended))
    }

    pub(super) fn all_ready(&self) -> bool {
        self.not_ready().next().is_none()
    }

    /// The children whose subtrees have not joined completely.
    pub(super) fn not_ready(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| !matches!(stage, ChildStage::Ready | ChildStage::Staged | ChildStage::Ended))
    }

    pub(super) fn all_ended(&self) -> bool {
        self.not_ended().next().is_none()
    }

    /// The children that have joined here or elsewhere and whose subtrees still have processes.
    pub(super) fn not_ended(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| {
            matches!(stage, ChildStage::Orphaned | ChildStage::Joined | ChildStage::Ready | ChildStage::Staged)
        })
    }

    /// Whether all children have joined and have reported their ends.
    pub(super) fn have_ended_in_order(&self) -> bool {
        self.at(|stage| stage != ChildStage::Ended).next().is_none()
    }

    /// The only place where a child's stage changes. It never goes back.
    fn advance(&mut self, id: AgentId, stage: ChildStage, why: &'static str) {
        if let Some(child) = self.get_mut(id).filter(|child| child.stage < stage) {
            tracing::debug!(child = id.0, from = ?child.stage, to = ?stage, why, "a child's stage changes");
            child.stage = stage;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHILD: AgentId = AgentId(2);

    fn one_child() -> Children {
        // 1 - 2
        Children::new(Subtree::whole(2, 1).of(AgentId(1)).unwrap(), ChildStage::Expected)
    }

    #[test]
    fn a_child_that_never_joins_is_neither_sent_to_nor_waited_for() {
        let mut children = one_child();
        assert_eq!((children.reachable().count(), children.all_ready(), children.all_ended()), (0, false, true));
        assert!(children.on_lost(CHILD, true), "its failure is to be reported");
        assert!(!children.on_lost(CHILD, false), "once");
        children.on_joined(CHILD);
        assert_eq!(children.reachable().count(), 0, "it was given up");
        assert_eq!(children.on_ended(CHILD, true), EndReport::Late);
    }

    #[test]
    fn a_child_reports_its_end_once_and_its_statistics_after_it() {
        let mut children = one_child();
        children.on_joined(CHILD);
        children.on_ready(CHILD);
        assert_eq!(children.not_ended().collect::<Vec<_>>(), [CHILD]);
        assert_eq!(children.on_ended(CHILD, false), EndReport::Refused);
        assert_eq!(children.on_ended(CHILD, true), EndReport::Accepted);
        assert_eq!(children.on_ended(CHILD, true), EndReport::Refused);
        assert!(children.all_ended() && !children.all_reported_stats());
        assert_eq!(children.reachable().collect::<Vec<_>>(), [CHILD], "it still has to be told to leave");
        assert!(children.on_stats(CHILD, Box::default()) && !children.on_stats(CHILD, Box::default()));
        assert!(children.all_reported_stats());
        assert!(!children.on_lost(CHILD, true), "a link that closes after the end is no failure");
    }

    #[test]
    fn the_children_of_a_lost_child_take_its_place() {
        let whole = Subtree::whole(9, 3); // 0 - 1 (2, 3), 4 (5, 6), 7 (8, 9)
        let mut children = Children::new(whole, ChildStage::Ready);
        assert!(children.on_lost(AgentId(4), false));
        let heirs: Vec<_> = children.replace(AgentId(4), Time::from_secs(5)).iter().map(Subtree::head).collect();
        assert_eq!(heirs, [AgentId(5), AgentId(6)]);
        let toward: Vec<_> = (0..11).map(|agent| children.toward(AgentId(agent)).map(|child| child.0)).collect();
        let expected = [None, Some(1), Some(1), Some(1), Some(4), Some(5), Some(6), Some(7), Some(7), Some(7), None];
        assert_eq!(toward, expected);
        assert!(children.is_lost(AgentId(4)) && children.subtrees().len() == 4);
        assert!(children.contains(AgentId(6)) && !children.contains(AgentId(2)), "agent 2 has another parent");
        assert_eq!(children.reachable().count(), 2, "the orphaned ones have not joined");
        assert!(!children.all_ended(), "their processes still run");
        children.on_joined(AgentId(5));
        assert_eq!(children.late(Time::from_secs(4)), []);
        assert_eq!(children.late(Time::from_secs(5)), [AgentId(6)]);
        assert!(children.on_lost(AgentId(6), true), "that is a loss");
        assert_eq!(children.orphan_deadline(), None);
        assert_eq!(children.replace(AgentId(6), Time::MAX), [], "a leaf has no children");
        let mut children = Children::new(Subtree::whole(4, 1), ChildStage::Ready); // 0 - 1 - 2 - 3 - 4
        children.note_lost(AgentId(2));
        let heirs = children.replace(AgentId(1), Time::MAX);
        assert_eq!(heirs.iter().map(Subtree::head).collect::<Vec<_>>(), [AgentId(3)], "agent 2 was lost before");
    }

    #[test]
    fn a_child_lost_before_its_output_has_arrived_is_a_failure() {
        let mut children = one_child();
        children.on_joined(CHILD);
        assert_eq!(children.on_ended(CHILD, true), EndReport::Accepted);
        assert!(children.on_lost(CHILD, false));
        assert!(!children.on_lost(CHILD, false), "once");
    }
}
