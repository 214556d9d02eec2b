//! Gives each target its position in the tree, and decides when its agent is ordered to join.
//!
//! A session on one machine knows its tree from the beginning: [`Assembly::place`] gives out all positions, and each
//! agent joins as soon as it and its parent have reported. On other nodes the tree consists of the agents that could
//! be started: once every target [is settled](Assembly::is_settled), [`Assembly::commit`] gives the positions to the
//! chosen targets and sends all other agents away.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::arrival_times::ArrivalTimes;
use super::failure::{StartFailure, StartPhase};
use crate::bootstrap::protocol::{BootCommand, BootReport, Joining, Links};
use crate::core::{AgentId, GuardianAt, Subtree, Time};
use crate::link::ListensAt;
use crate::wire::TreePosition;

/// A command to the starter.
#[derive(Clone, PartialEq, Debug)]
pub(in crate::bootstrap) enum AssemblyAction {
    /// Send the command to the agent at the target.
    Tell(u32, BootCommand),
    /// Tell the agent at the target to join over the channel that leads to it.
    AdmitOverChannel(u32, TreePosition),
}

/// The targets of an assembly and how their agents link.
pub(in crate::bootstrap) struct AssemblySettings {
    /// The targets, as a tree: the parent of each starts its agent.
    pub starters: Subtree,
    /// Agents are on other nodes than the launcher.
    pub crosses_nodes: bool,
    /// The carrier of links.
    pub links: Links,
    /// The launcher's addresses.
    pub root: ListensAt,
    /// Each agent is told where all its ancestors listen, so that it can join one when its parent is lost.
    pub rejoins: bool,
}

/// The agents between their start and the tree. The launcher is target 0 throughout.
pub(in crate::bootstrap) struct Assembly {
    settings: AssemblySettings,
    /// The state of each target. The first is the launcher's.
    states: Vec<TargetState>,
    /// How many agents have reported and have not failed since.
    reported: u32,
    /// The targets that have no agent, and why.
    pub failures: BTreeMap<u32, StartFailure>,
    /// The targets whose hosts cannot be reached and are tried again, and why.
    pub not_reached: BTreeMap<u32, StartFailure>,
    /// The target of each agent with a position. The first is the launcher's.
    targets: Vec<u32>,
    /// The agents with a position on each machine whose number is known.
    agents_on: HashMap<u64, BTreeSet<AgentId>>,
    tree: Subtree,
    fanout: u32,
    pub times: ArrivalTimes,
    /// All agents that have reported can read the launcher's log of long epochs.
    pub reads_log: bool,
}

#[derive(Clone, Default)]
struct TargetState {
    /// The addresses of its agent, if the agent has reported and has not failed since.
    listens: Option<ListensAt>,
    /// The guardian of its agent.
    guardian: Option<GuardianAt>,
    /// The number of its agent, if it has a position.
    agent: Option<AgentId>,
    /// When its agent was sent its position, unless it has joined.
    position_sent_at: Option<Time>,
}

impl Assembly {
    pub(in crate::bootstrap) fn new(now: Time, settings: AssemblySettings) -> Self {
        let mut states = vec![TargetState::default(); settings.starters.size() as usize];
        if let Some(root) = states.first_mut() {
            root.listens = Some(settings.root.clone());
        }
        Self {
            settings,
            states,
            reported: 0,
            failures: BTreeMap::new(),
            not_reached: BTreeMap::new(),
            targets: vec![0],
            agents_on: HashMap::new(),
            tree: Subtree::whole(0, 1),
            fanout: 1,
            times: ArrivalTimes::from(now),
            reads_log: true,
        }
    }

    /// Takes a report. Returns the agent that is lost to the tree, and why. A report on the launcher, or on a target that
    /// the session does not have, changes nothing.
    pub(in crate::bootstrap) fn on_report(
        &mut self,
        now: Time,
        target: u32,
        report: BootReport,
        actions: &mut Vec<AssemblyAction>,
    ) -> Option<(AgentId, StartFailure)> {
        let state = self.states.get_mut(target as usize).filter(|_| target != 0)?;
        self.not_reached.remove(&target);
        match report {
            BootReport::NotReached(failure) => {
                self.not_reached.insert(target, failure);
                None
            }
            BootReport::Here { listens, reads_log, guardian, .. } => {
                self.reads_log &= reads_log;
                state.guardian = guardian;
                if let (Some(agent), Some(guardian)) = (state.agent, guardian) {
                    self.agents_on.entry(guardian.machine).or_default().insert(agent);
                }
                self.reported += u32::from(state.listens.replace(listens).is_none());
                self.times.on_here(now, target);
                if let Some(here) = state.agent.and_then(|agent| self.tree.of(agent)) {
                    self.admit(now, here.head(), actions);
                    if self.settings.rejoins {
                        (1..here.size()).for_each(|next| self.admit(now, AgentId(here.head().0 + next), actions));
                    } else {
                        here.children().for_each(|child| self.admit(now, child.head(), actions));
                    }
                }
                None
            }
            BootReport::NotStarted(failure) => {
                self.reported -= u32::from(state.listens.take().is_some());
                self.failures.insert(target, failure.clone());
                Some((state.agent?, failure))
            }
            BootReport::Joined { took } => {
                if let Some(sent_at) = state.position_sent_at.take() {
                    self.times.on_joined(sent_at, target, took);
                }
                None
            }
            BootReport::Below(..) | BootReport::Task { .. } | BootReport::Joining => None,
        }
    }

    /// Returns whether each target has an agent or has failed.
    pub(in crate::bootstrap) fn is_settled(&self) -> bool {
        let (reported, all) = self.progress();
        reported as usize + self.failures.len() >= all as usize
    }

    /// Counts each target that is not settled as failed: the deadline has passed.
    pub(in crate::bootstrap) fn fail_missing(&mut self) {
        for target in 1..self.settings.starters.size() {
            if self.listens(target).is_none() {
                self.failures.entry(target).or_insert_with(StartFailure::late);
            }
        }
    }

    /// Gives the agents at `targets` their positions, in order, in a tree of as many. Each agent gets its position when it reports.
    pub(in crate::bootstrap) fn place(&mut self, targets: Vec<u32>, tree: Subtree, fanout: u32) {
        self.states.iter_mut().for_each(|state| state.agent = None);
        self.agents_on.clear();
        for (target, agent) in targets.iter().zip((1..).map(AgentId)) {
            if let Some(state) = self.states.get_mut(*target as usize) {
                state.agent = Some(agent);
                if let Some(guardian) = state.guardian {
                    self.agents_on.entry(guardian.machine).or_default().insert(agent);
                }
            }
        }
        self.targets.truncate(1);
        self.targets.extend(targets);
        (self.tree, self.fanout) = (tree, fanout);
    }

    /// Places the agents at `targets`, tells each of them to join, and tells all others to leave.
    pub(in crate::bootstrap) fn commit(
        &mut self,
        now: Time,
        targets: Vec<u32>,
        tree: Subtree,
        fanout: u32,
        actions: &mut Vec<AssemblyAction>,
    ) {
        self.place(targets, tree, fanout);
        let reported = (0..).zip(&self.states).filter(|(_, state)| state.listens.is_some() && state.agent.is_none());
        let spare = reported.map(|(target, _)| target).filter(|target| *target != 0);
        actions.extend(spare.map(|target| AssemblyAction::Tell(target, BootCommand::Leave)));
        for agent in (1..tree.size()).map(AgentId) {
            self.admit(now, agent, actions);
        }
    }

    /// Tells an agent to join if it and its parent have reported; if agents can join other ancestors, also those must
    /// have.
    fn admit(&mut self, now: Time, agent: AgentId, actions: &mut Vec<AssemblyAction>) {
        let parent = self.tree.parent_of(agent).and_then(|parent| self.target(parent));
        let (Some(target), Some(parent)) = (self.target(agent), parent) else { return };
        let Some(listens) = self.listens(parent).filter(|_| self.listens(target).is_some()).cloned() else { return };
        let Some(ancestors) = self.ancestors(agent) else { return };
        let position = TreePosition { agents: self.tree.size() - 1, fanout: self.fanout, agent };
        if self.settings.links.take_over_channels() {
            // The parent of an agent further down sends it its position after the parent has joined.
            if parent == 0 {
                self.note_position_sent(now, target);
                actions.push(AssemblyAction::AdmitOverChannel(target, position));
            }
            return;
        }
        let starter = self.settings.starters.parent_of(AgentId(target)).map(|starter| starter.0);
        let is_started_by_parent = self.settings.crosses_nodes && starter == Some(parent);
        let opener_port = listens.addresses.first().filter(|_| is_started_by_parent).map(|address| address.port());
        self.note_position_sent(now, target);
        let joining = Joining { position, parent: listens, opener_port, ancestors };
        actions.push(AssemblyAction::Tell(target, BootCommand::Join(joining)));
    }

    /// Returns where an agent's ancestors above its parent listen, the nearest first, if that is wanted; `None` if one has not
    /// reported.
    fn ancestors(&self, agent: AgentId) -> Option<Vec<ListensAt>> {
        if !self.settings.rejoins {
            return Some(Vec::new());
        }
        let parents = std::iter::successors(self.tree.parent_of(agent), |above| self.tree.parent_of(*above));
        let mut above = parents.skip(1);
        above.try_fold(Vec::new(), |mut all, ancestor| {
            all.push(self.listens(self.target(ancestor)?)?.clone());
            Some(all)
        })
    }

    fn note_position_sent(&mut self, now: Time, target: u32) {
        if let Some(state) = self.states.get_mut(target as usize) {
            state.position_sent_at = Some(now);
        }
    }

    /// Returns the agent at `target`, if it has a position.
    pub(in crate::bootstrap) fn agent_at(&self, target: u32) -> Option<AgentId> {
        self.states.get(target as usize)?.agent
    }

    /// Returns the target to blame for an agent that was lost before all had joined: of the highest ancestor that has not
    /// joined if the agent could not reach its parent, otherwise its own.
    pub(in crate::bootstrap) fn culprit(&self, lost: AgentId) -> Option<u32> {
        let could_not_reach = |target: u32| self.failures.get(&target).map(|why| why.phase == StartPhase::ConnectBack);
        let has_joined = |target: u32| {
            let waits = self.states.get(target as usize).is_none_or(|state| state.position_sent_at.is_some());
            !waits && !self.failures.contains_key(&target)
        };
        let (mut agent, mut blamed) = (lost, self.target(lost)?);
        let mut climbs = could_not_reach(blamed).unwrap_or(false);
        while climbs
            && let Some(parent) = self.tree.parent_of(agent)
            && let Some(target) = self.target(parent).filter(|target| *target != 0 && !has_joined(*target))
        {
            (agent, blamed) = (parent, target);
            climbs = could_not_reach(blamed).unwrap_or(true);
        }
        Some(blamed)
    }

    fn target(&self, agent: AgentId) -> Option<u32> {
        self.targets.get(agent.0 as usize).copied()
    }

    /// Returns where the launcher, or the agent at `target`, listens, if it has reported.
    fn listens(&self, target: u32) -> Option<&ListensAt> {
        self.states.get(target as usize)?.listens.as_ref()
    }

    /// Returns the guardian of an agent with a position, if it is known.
    pub(in crate::bootstrap) fn guardian_of(&self, agent: AgentId) -> Option<GuardianAt> {
        self.states.get(self.target(agent)? as usize)?.guardian
    }

    /// Returns the other agents that have a position and are on the machine of `agent`.
    pub(in crate::bootstrap) fn neighbours_of(&self, agent: AgentId) -> Vec<AgentId> {
        let all = self.guardian_of(agent).and_then(|guardian| self.agents_on.get(&guardian.machine));
        all.into_iter().flatten().copied().filter(|other| *other != agent).collect()
    }

    /// Returns how many agents have reported, and how many targets there are.
    pub(in crate::bootstrap) fn progress(&self) -> (u32, u32) {
        (self.reported, self.settings.starters.size() - 1)
    }

    /// Returns the targets whose agents have neither reported nor failed.
    pub(in crate::bootstrap) fn unsettled(&self) -> Vec<u32> {
        let is_settled = |target: &u32| self.listens(*target).is_some() || self.failures.contains_key(target);
        (1..self.settings.starters.size()).filter(|target| !is_settled(target)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::time::Duration;

    use super::*;

    const NOW: Time = Duration::from_secs(1);

    fn address(target: u32) -> SocketAddr {
        format!("10.0.0.{target}:{}", 1000 + target).parse().unwrap()
    }

    /// The guardian at a target. The targets 1 and 2 are on one machine, 3 and 4 on another, and so on.
    fn guardian(target: u32) -> GuardianAt {
        GuardianAt { machine: u64::from(target.div_ceil(2)), guardian: (target, 7), agent: (target + 100, 8) }
    }

    fn here(target: u32) -> BootReport {
        BootReport::Here {
            listens: vec![address(target)].into(),
            host: format!("n{target}"),
            descriptors: 1024,
            reads_log: true,
            guardian: Some(guardian(target)),
        }
    }

    /// An assembly of so many targets on other nodes, each started by the launcher.
    fn remote(targets: u32, links: Links) -> Assembly {
        let starters = Subtree::whole(targets, targets);
        let root = vec![address(0)].into();
        Assembly::new(Duration::ZERO, AssemblySettings { starters, crosses_nodes: true, links, root, rejoins: false })
    }

    fn report(assembly: &mut Assembly, target: u32, report: BootReport) -> Vec<AssemblyAction> {
        let mut actions = Vec::new();
        assembly.on_report(NOW, target, report, &mut actions);
        actions
    }

    fn join(target: u32, agent: u32, agents: u32, parent: u32, opener_port: Option<u16>) -> AssemblyAction {
        let position = TreePosition { agents, fanout: 2, agent: AgentId(agent) };
        AssemblyAction::Tell(
            target,
            BootCommand::Join(Joining {
                position,
                parent: vec![address(parent)].into(),
                opener_port,
                ancestors: Vec::new(),
            }),
        )
    }

    #[test]
    fn an_agent_of_a_known_tree_joins_once_it_and_its_parent_have_reported() {
        // A chain: agent 1 is the parent of 2, and 2 of 3.
        let tree = Subtree::whole(3, 1);
        let settings = AssemblySettings {
            starters: Subtree::whole(3, 3),
            crosses_nodes: false,
            links: Links::Connections,
            root: vec![address(0)].into(),
            rejoins: false,
        };
        let mut assembly = Assembly::new(Duration::ZERO, settings);
        assembly.place(vec![1, 2, 3], tree, 2);
        assert_eq!(report(&mut assembly, 2, here(2)), [], "its parent has not reported");
        assert_eq!(report(&mut assembly, 1, here(1)), [join(1, 1, 3, 0, None), join(2, 2, 3, 1, None)]);
        assert_eq!(report(&mut assembly, 3, here(3)), [join(3, 3, 3, 2, None)]);
    }

    #[test]
    fn no_agent_of_other_nodes_joins_before_the_commit() {
        let mut assembly = remote(3, Links::Connections);
        for target in [1, 3] {
            assert_eq!(report(&mut assembly, target, here(target)), []);
        }
        assert!(!assembly.is_settled());
        assert_eq!(assembly.progress(), (2, 3));
        let refused = StartFailure::new(StartPhase::Refused, "Connection refused");
        assert_eq!(report(&mut assembly, 2, BootReport::NotStarted(refused.clone())), []);
        assert!(assembly.is_settled());
        assert_eq!(assembly.failures, BTreeMap::from([(2, refused)]));
        let mut actions = Vec::new();
        assembly.commit(NOW, vec![3], Subtree::whole(1, 2), 2, &mut actions);
        let leave = AssemblyAction::Tell(1, BootCommand::Leave);
        assert_eq!(actions, [leave, join(3, 1, 1, 0, Some(1000))], "a spare leaves; the port is that of the starter");
    }

    #[test]
    fn reports_on_targets_that_the_session_does_not_have_change_nothing() {
        let refused = || BootReport::NotStarted(StartFailure::new(StartPhase::Refused, "Connection refused"));
        for target in [0, 4, u32::MAX] {
            let mut assembly = remote(3, Links::Connections);
            for report in [refused(), here(9), BootReport::Joined { took: Duration::ZERO }] {
                let mut actions = Vec::new();
                assert_eq!(assembly.on_report(NOW, target, report, &mut actions), None);
                assert_eq!(actions, []);
            }
            assert_eq!((assembly.progress(), assembly.failures.len()), ((0, 3), 0));
            assert_eq!(assembly.listens(0), Some(&vec![address(0)].into()), "the launcher's own");
        }
        let mut assembly = remote(3, Links::Connections);
        report(&mut assembly, 3, here(3));
        assert_eq!(assembly.progress(), (1, 3), "the last target");
    }

    #[test]
    fn a_missing_agent_is_late_and_a_refused_one_keeps_its_reason() {
        let mut assembly = remote(3, Links::Connections);
        report(&mut assembly, 1, here(1));
        let refused = StartFailure::new(StartPhase::Refused, "Connection refused");
        report(&mut assembly, 2, BootReport::NotStarted(refused.clone()));
        assembly.fail_missing();
        assert_eq!(assembly.failures, BTreeMap::from([(2, refused), (3, StartFailure::late())]));
        assert!(assembly.is_settled());
    }

    #[test]
    fn a_failure_names_the_agent_only_once_it_has_a_position() {
        let mut assembly = remote(2, Links::Connections);
        (1..=2).for_each(|target| drop(report(&mut assembly, target, here(target))));
        let failure = StartFailure::new(StartPhase::Ended, "it ended");
        let mut actions = Vec::new();
        assembly.commit(NOW, vec![2, 1], Subtree::whole(2, 2), 2, &mut actions);
        let lost = assembly.on_report(NOW, 2, BootReport::NotStarted(failure.clone()), &mut Vec::new());
        assert_eq!(lost, Some((AgentId(1), failure.clone())));
        let mut assembly = remote(2, Links::Connections);
        assert_eq!(assembly.on_report(NOW, 2, BootReport::NotStarted(failure), &mut Vec::new()), None);
    }

    #[test]
    fn an_agent_that_cannot_reach_its_parent_is_not_the_culprit() {
        let mut assembly = remote(4, Links::Connections);
        (1..=4).for_each(|target| drop(report(&mut assembly, target, here(target))));
        assembly.commit(NOW, vec![4, 2, 1], Subtree::whole(3, 1), 1, &mut Vec::new());
        assert_eq!([1, 3].map(|agent| assembly.culprit(AgentId(agent))), [Some(4), Some(1)]);
        let failure = |phase| BootReport::NotStarted(StartFailure::new(phase, "why"));
        report(&mut assembly, 1, failure(StartPhase::ConnectBack));
        assert_eq!(assembly.culprit(AgentId(3)), Some(4), "no ancestor has joined");
        report(&mut assembly, 4, BootReport::Joined { took: NOW });
        assert_eq!(assembly.culprit(AgentId(3)), Some(2));
        report(&mut assembly, 2, BootReport::Joined { took: NOW });
        assert_eq!(assembly.culprit(AgentId(3)), Some(1), "its parent has joined");
        report(&mut assembly, 2, failure(StartPhase::Ended));
        assert_eq!(assembly.culprit(AgentId(3)), Some(2), "its parent has ended");
        report(&mut assembly, 4, failure(StartPhase::ConnectBack));
        assert_eq!(assembly.culprit(AgentId(1)), Some(4), "its parent is the launcher");
        assert_eq!(assembly.culprit(AgentId(4)), None);
    }

    #[test]
    fn agents_on_one_machine_are_neighbours() {
        let mut assembly = remote(5, Links::Connections);
        (1..=4).for_each(|target| drop(report(&mut assembly, target, here(target))));
        let unseen = BootReport::Here {
            listens: ListensAt::default(),
            host: String::new(),
            descriptors: 9,
            reads_log: false,
            guardian: None,
        };
        report(&mut assembly, 5, unseen);
        assert_eq!(assembly.guardian_of(AgentId(1)), None, "no agent has a position");
        assembly.commit(NOW, vec![4, 2, 1, 5], Subtree::whole(4, 2), 2, &mut Vec::new());
        assert_eq!(assembly.guardian_of(AgentId(1)), Some(guardian(4)));
        let neighbours = |agent| assembly.neighbours_of(AgentId(agent));
        assert_eq!(neighbours(1), [], "the agent of target 3 has left");
        assert_eq!([neighbours(2), neighbours(3)], [vec![AgentId(3)], vec![AgentId(2)]]);
        assert_eq!((neighbours(4), neighbours(9)), (Vec::new(), Vec::new()));
    }

    #[test]
    fn over_remote_shells_only_the_roots_children_are_admitted_from_here() {
        let starters = Subtree::whole(3, 1);
        let settings = AssemblySettings {
            starters,
            crosses_nodes: true,
            links: Links::RemoteShells,
            root: ListensAt::default(),
            rejoins: false,
        };
        let mut assembly = Assembly::new(Duration::ZERO, settings);
        (1..=3).for_each(|target| drop(report(&mut assembly, target, here(target))));
        let mut actions = Vec::new();
        assembly.commit(NOW, vec![1, 2, 3], starters, 1, &mut actions);
        let place = TreePosition { agents: 3, fanout: 1, agent: AgentId(1) };
        assert_eq!(actions, [AssemblyAction::AdmitOverChannel(1, place)]);
    }

    #[test]
    fn one_agent_without_the_log_is_enough() {
        let mut assembly = remote(2, Links::Connections);
        report(&mut assembly, 1, here(1));
        assert!(assembly.reads_log);
        let blind = BootReport::Here {
            listens: ListensAt::default(),
            host: String::new(),
            descriptors: 9,
            reads_log: false,
            guardian: None,
        };
        report(&mut assembly, 2, blind);
        assert!(!assembly.reads_log);
    }

    #[test]
    fn joining_is_timed_from_the_position_given() {
        let mut assembly = remote(1, Links::Connections);
        report(&mut assembly, 1, here(1));
        let joined = BootReport::Joined { took: Duration::from_millis(5) };
        report(&mut assembly, 1, joined.clone());
        assert_eq!(assembly.times.join().took.count(), 0, "it has no position");
        assembly.commit(NOW, vec![1], Subtree::whole(1, 2), 2, &mut Vec::new());
        report(&mut assembly, 1, joined);
        assert_eq!(assembly.times.join().took.count(), 1);
    }
}
