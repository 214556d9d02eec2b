//! The children of the root or of an agent: how far each one is, and the statistics that it reported.

use super::ids::AgentId;
use super::stats::Stats;
use super::topology::Subtree;

/// The stage of a child's life, as its parent knows it.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum ChildStage {
    /// The child has not joined yet.
    Expected,
    /// The child's link is up.
    Joined,
    /// All agents of the child's subtree have joined.
    Ready,
    /// All processes of the child's subtree have ended.
    Ended,
    /// No further message arrives from the child.
    Lost,
}

#[derive(Debug)]
struct Child {
    id: AgentId,
    stage: ChildStage,
    stats: Option<Box<Stats>>,
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
pub(super) struct Children(Vec<Child>);

impl Children {
    /// The children of `parent`, all at the same stage.
    pub(super) fn new(parent: Subtree, stage: ChildStage) -> Self {
        Self(parent.children().map(|child| Child { id: child.head(), stage, stats: None }).collect())
    }

    pub(super) fn contains(&self, child: AgentId) -> bool {
        self.stage(child).is_some()
    }

    fn stage(&self, child: AgentId) -> Option<ChildStage> {
        self.0.binary_search_by_key(&child, |child| child.id).ok().map(|at| self.0[at].stage)
    }

    fn get_mut(&mut self, child: AgentId) -> Option<&mut Child> {
        self.0.binary_search_by_key(&child, |child| child.id).ok().map(|at| &mut self.0[at])
    }

    fn at(&self, is_meant: impl Fn(ChildStage) -> bool) -> impl Iterator<Item = AgentId> {
        self.0.iter().filter(move |child| is_meant(child.stage)).map(|child| child.id)
    }

    /// The children to which messages can be sent.
    pub(super) fn reachable(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| !matches!(stage, ChildStage::Expected | ChildStage::Lost))
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
            Some(ChildStage::Expected | ChildStage::Joined | ChildStage::Ready) if fits => {
                self.advance(child, ChildStage::Ended, "all processes of its subtree have ended");
                EndReport::Accepted
            }
            Some(ChildStage::Expected | ChildStage::Joined | ChildStage::Ready | ChildStage::Ended) => {
                EndReport::Refused
            }
        }
    }

    /// Notes that nothing more arrives from `child`. Returns whether that is a failure, which it is once: before its
    /// subtree has ended, or before the output of its subtree has arrived.
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
        self.0.iter().filter_map(|child| child.stats.as_deref())
    }

    /// Whether no further statistics will arrive.
    pub(super) fn all_reported_stats(&self) -> bool {
        let done = |child: &Child| match child.stage {
            ChildStage::Expected | ChildStage::Lost => true,
            ChildStage::Joined | ChildStage::Ready | ChildStage::Ended => child.stats.is_some(),
        };
        self.0.iter().all(done)
    }

    pub(super) fn all_ready(&self) -> bool {
        self.not_ready().next().is_none()
    }

    /// The children whose subtrees have not joined completely.
    pub(super) fn not_ready(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| !matches!(stage, ChildStage::Ready | ChildStage::Ended))
    }

    pub(super) fn all_ended(&self) -> bool {
        self.not_ended().next().is_none()
    }

    /// The children that have joined and whose subtrees still have processes.
    pub(super) fn not_ended(&self) -> impl Iterator<Item = AgentId> {
        self.at(|stage| matches!(stage, ChildStage::Joined | ChildStage::Ready))
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
    fn a_child_lost_before_its_output_has_arrived_is_a_failure() {
        let mut children = one_child();
        children.on_joined(CHILD);
        assert_eq!(children.on_ended(CHILD, true), EndReport::Accepted);
        assert!(children.on_lost(CHILD, false));
        assert!(!children.on_lost(CHILD, false), "once");
    }
}
