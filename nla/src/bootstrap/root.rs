//! The launcher's side of bootstrap: starts the agents and assembles them into the tree.
//!
//! [`Bootstrap`] owns the starter and applies the decisions of its assembly. [`assemble`] waits until enough nodes
//! have agents, leaves out those that failed, and gives out the positions in the tree. No rank starts before.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use super::decide::arrival_times::ArrivalTimes;
use super::decide::assembly::{Assembly, AssemblyAction, AssemblySettings};
use super::decide::failure::StartFailure;
use super::decide::node_choice::NodeChoice;
use super::protocol::{Below, BootOrder, BootReport, HostAt, Links, Method, Place, StartTimes, TargetReport};
use super::standing::{self, STANDING_TARGET};
use super::starter::{Keepers, Starter};
use crate::core::{AgentId, GuardianAt, Subtree};
use crate::link::{Accepted, Clock, ListensAt, Reach};
use crate::sys::{self, ForkedGuardian, ForkedGuardians};
use crate::tasks::Tasks;
use crate::wire::TreePosition;

/// How long agents that are not to join may take to leave before others are started in their places.
const LEAVE_TIME: Duration = Duration::from_secs(1);
/// How long the launcher tries to kill orphans that it may not signal (setuid programs).
const ORPHANS_TIME: Duration = Duration::from_secs(3);
/// The pause between two searches for orphans.
const ORPHANS_PAUSE: Duration = Duration::from_millis(20);
/// The interval at which [`Launch::on_progress`] is called.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// The times of starts without a deadline.
const FOREVER: StartTimes = StartTimes { hosts: Duration::ZERO, start: Duration::MAX };

/// The targets on other nodes, and how their agents are started.
#[derive(Clone, Debug)]
pub struct RemoteTargets {
    /// The host of each target, from target 1 on.
    pub hosts: Vec<HostAt>,
    /// How an agent is started there.
    pub method: Method,
    /// The keepers for [`Method::Keeper`].
    pub keepers: Option<Keepers>,
    /// The most agents that one agent starts; the launcher starts all of them if this is `None`.
    pub fanout: Option<u32>,
    /// How many remote shells one process opens at a time; adaptive if `None`.
    pub batch: Option<u32>,
    /// Writes the names of hosts as a host list, for the command that starts a step.
    pub fold: fn(&[&str]) -> String,
}

/// Agents between their start and the tree.
pub struct Bootstrap {
    starter: Starter,
    assembly: Assembly,
    clock: Clock,
    /// The processes of an agent and a guardian that were killed together become children of this process.
    adopts_orphans: bool,
    /// The agent that has joined before the session began, until its link is passed on.
    standing: Option<ForkedGuardian>,
}

impl Bootstrap {
    /// Starts all agents of `tree` on this machine, below `guardians`, one for each. One that stood by has joined already, and is the
    /// only one. `root` is where the launcher listens.
    pub fn local(
        guardians: ForkedGuardians,
        mut order: BootOrder,
        clock: Clock,
        tree: Subtree,
        fanout: u32,
        root: ListensAt,
        tasks: Tasks,
    ) -> Self {
        let agents = tree.size() - 1;
        // The number of an agent is that of its target.
        let position = TreePosition { agents, fanout, agent: AgentId::ROOT };
        let place = || Place { position, machine: sys::machine() };
        order.place = (order.links == Links::Pipes).then(place);
        let starters = Subtree::whole(agents, agents.max(1));
        let settings =
            AssemblySettings { starters, crosses_nodes: false, links: order.links, root, rejoins: order.rejoins };
        let mut bootstrap = Self::new(order, clock, (Method::Fork, None), None, FOREVER, settings, tasks);
        // Without remote shells, guardians are the only processes that the launcher starts. An orphan that it adopts has
        // lost its guardian and its agent.
        bootstrap.adopts_orphans = guardians.adopts_orphans;
        // Before orphans are ended: these are none.
        let (mut standing, forked): (Vec<_>, Vec<_>) =
            guardians.guardians.into_iter().partition(|guardian| guardian.report.is_some());
        bootstrap.standing = standing.pop();
        bootstrap.standing.iter().for_each(|guardian| bootstrap.starter.add_standing(STANDING_TARGET, guardian.pid));
        bootstrap.starter.add_forked(forked);
        if bootstrap.adopts_orphans {
            bootstrap.starter.end_orphans();
        }
        bootstrap.assembly.place((1..=agents).collect(), tree, fanout);
        if bootstrap.standing.is_some() {
            return bootstrap;
        }
        for target in 1..=agents {
            let is_leaf = tree.of(AgentId(target)).is_none_or(|subtree| subtree.size() == 1);
            let reach = if is_leaf { Reach::Nowhere } else { Reach::Here };
            bootstrap.starter.start(target, None, reach);
        }
        bootstrap
    }

    /// Starts agents on other nodes, which wait for [`Bootstrap::commit`]. After `times` each has reported or has
    /// failed.
    pub fn remote(
        order: BootOrder,
        clock: Clock,
        targets: RemoteTargets,
        root: ListensAt,
        times: StartTimes,
        tasks: Tasks,
    ) -> Self {
        let RemoteTargets { hosts, method, keepers, fanout, batch, fold } = targets;
        let count = hosts.len() as u32;
        let fanout = fanout.unwrap_or(count).max(1);
        let own: Vec<IpAddr> = root.addresses.iter().map(SocketAddr::ip).collect();
        let starters = Subtree::whole(count, fanout);
        let settings = AssemblySettings {
            starters,
            crosses_nodes: method != Method::Fork,
            links: order.links,
            root,
            rejoins: order.rejoins,
        };
        let bootstrap = Self::new(order, clock, (method.clone(), keepers), batch, times, settings, tasks);
        let below = Below { targets: count, fanout, hosts, method, batch, times };
        match below.method {
            Method::Step { .. } => bootstrap.starter.start_steps(&below.hosts, &own, fold),
            Method::Fork | Method::Keeper | Method::RemoteShell { .. } => bootstrap.starter.start_tree(0, &below, own),
        }
        bootstrap
    }

    fn new(
        order: BootOrder,
        clock: Clock,
        (method, keepers): (Method, Option<Keepers>),
        batch: Option<u32>,
        times: StartTimes,
        settings: AssemblySettings,
        tasks: Tasks,
    ) -> Self {
        let assembly = Assembly::new(clock.now(), settings);
        let starter = Starter::new(order, method, keepers, batch, times, tasks);
        Self { starter, assembly, clock, adopts_orphans: false, standing: None }
    }

    /// Waits for the next report. Cancel safe.
    pub async fn next(&mut self) -> TargetReport {
        self.starter.next().await
    }

    /// Takes a report. Returns the agent that is lost to the tree, and why.
    pub fn on_report(&mut self, (target, report): TargetReport) -> Option<(AgentId, StartFailure)> {
        if let BootReport::Here { listens, host, descriptors, reads_log, guardian } = &report {
            tracing::debug!(target, ?host, descriptors, ?listens, reads_log, ?guardian, "an agent has reported");
        }
        let mut actions = Vec::new();
        let lost = self.assembly.on_report(self.clock.now(), target, report, &mut actions);
        self.act(actions);
        lost
    }

    /// Waits until each target has an agent or has failed; those that have done neither at `deadline` have failed.
    async fn settle(&mut self, deadline: Instant, mut on_progress: impl FnMut(&Self)) {
        while !self.assembly.is_settled() {
            match timeout_at(deadline.min(Instant::now() + PROGRESS_INTERVAL), self.next()).await {
                Ok(report) => drop(self.on_report(report)),
                Err(_) if Instant::now() < deadline => {}
                Err(_) => break,
            }
            on_progress(self);
        }
        self.assembly.fail_missing();
    }

    /// Returns how many agents have reported, and how many there are to be.
    pub fn progress(&self) -> (u32, u32) {
        self.assembly.progress()
    }

    /// Returns the targets whose agents have neither reported nor failed.
    pub fn unsettled(&self) -> Vec<u32> {
        self.assembly.unsettled()
    }

    /// Returns whether the agent stood by for the session, and is to stand by for the next one.
    pub fn has_standing(&self) -> bool {
        self.starter.processes().has_staying()
    }

    /// Returns the targets whose hosts cannot be reached and are tried again, and why.
    pub fn not_reached(&self) -> &BTreeMap<u32, StartFailure> {
        &self.assembly.not_reached
    }

    /// Returns the targets that have no agent, and why.
    pub fn failures(&self) -> &BTreeMap<u32, StartFailure> {
        &self.assembly.failures
    }

    /// Sends the links of the root's children to `joined` if links take over channels. To be called before the first
    /// [`on_report`](Self::on_report).
    pub fn take_links(&mut self, joined: mpsc::Sender<Accepted>) -> io::Result<()> {
        if let Some(guardian) = self.standing.take() {
            let (report, accepted) = standing::link_of(guardian)?;
            for report in [report, BootReport::Joined { took: Duration::ZERO }] {
                // It needs no answer.
                self.assembly.on_report(self.clock.now(), STANDING_TARGET, report, &mut Vec::new());
            }
            // The first link in the queue.
            let _ = joined.try_send(accepted);
        }
        self.starter.take_links(self.clock, joined);
        Ok(())
    }

    /// Gives the agents at these targets their positions, in order, in a tree of as many; all others leave.
    pub fn commit(&mut self, targets: Vec<u32>, tree: Subtree, fanout: u32) {
        let mut actions = Vec::new();
        self.assembly.commit(self.clock.now(), targets, tree, fanout, &mut actions);
        self.act(actions);
    }

    fn act(&self, actions: Vec<AssemblyAction>) {
        for action in actions {
            match action {
                AssemblyAction::Tell(target, command) => self.starter.tell(target, command),
                AssemblyAction::AdmitOverChannel(target, position) => self.starter.admit(target, position),
            }
        }
    }

    /// Returns the agents on this machine whose processes have all ended since the last call, as far as their guardians
    /// were forked here.
    pub fn take_ended(&self) -> Vec<AgentId> {
        self.starter.take_ended().into_iter().filter_map(|target| self.assembly.agent_at(target)).collect()
    }

    /// Returns whether all agents that have reported can read the launcher's log of long epochs.
    pub fn reads_log(&self) -> bool {
        self.assembly.reads_log
    }

    /// Returns the target to blame for an agent that was lost before all had joined.
    pub fn culprit(&self, lost: AgentId) -> Option<u32> {
        self.assembly.culprit(lost)
    }

    /// Returns the guardian of an agent in the tree, if it is known.
    pub fn guardian_of(&self, agent: AgentId) -> Option<GuardianAt> {
        self.assembly.guardian_of(agent)
    }

    /// Returns the other agents of the tree that are on the machine of `agent`.
    pub fn neighbours_of(&self, agent: AgentId) -> Vec<AgentId> {
        self.assembly.neighbours_of(agent)
    }

    /// Returns the agent at a target, if it has a position in the tree.
    pub fn agent_at(&self, target: u32) -> Option<AgentId> {
        self.assembly.agent_at(target)
    }

    /// Returns when agents reported and joined.
    pub fn arrivals(&self) -> &ArrivalTimes {
        &self.assembly.times
    }

    /// Ends all starts that are under way, and waits up to `timeout` for the guardians that were started here; then
    /// sends SIGTERM to those that are left, and waits once more. Returns how many have not exited.
    ///
    /// Then ends orphans that this process has adopted. Agents among them have `timeout` to end by themselves.
    pub async fn wait(&mut self, timeout: Duration) -> usize {
        let left = self.starter.wait(timeout).await;
        if self.adopts_orphans {
            let guardians = self.starter.processes().pids();
            let begun = Instant::now();
            while sys::end_orphans(&guardians, begun.elapsed() < timeout) > 0 {
                if begun.elapsed() > timeout + ORPHANS_TIME {
                    tracing::warn!("processes are left that cannot be killed");
                    break;
                }
                sleep(ORPHANS_PAUSE).await;
            }
        }
        left
    }
}

/// The places of a plan's agents.
#[derive(Clone, Debug)]
pub struct PlannedTree {
    /// The node of each agent, among those that the plan was made for.
    pub node_of_agent: Vec<usize>,
    /// The tree of the agents.
    pub tree: Subtree,
    /// Its fan-out.
    pub fanout: u32,
}

/// The launcher's part in [`assemble`].
pub trait Launch {
    /// Returns the nodes of this launch.
    fn nodes(&mut self) -> &mut NodeChoice;

    /// Starts the agents at the targets of [`nodes`](Self::nodes).
    fn start(&self, times: StartTimes) -> Bootstrap;

    /// Makes the plan again without the nodes in `left_out`, since these targets failed. The error says why that cannot
    /// be done.
    fn replan(&mut self, failures: &BTreeMap<u32, StartFailure>, left_out: &BTreeSet<usize>) -> Result<(), String>;

    /// Adds agents without ranks to the plan, after the others, one for each element of `agents_on`: its node. The agents
    /// of a node are adjacent. Returns how many were added: none if the session has no use for them.
    fn keep_spares(&mut self, agents_on: &[usize]) -> usize;

    /// Returns the tree of the plan as it is now.
    fn planned(&self) -> PlannedTree;

    /// Shows how many agents have reported. Called several times a second.
    fn on_progress(&mut self, bootstrap: &Bootstrap);
}

/// Why no tree was assembled.
#[derive(Debug)]
pub enum NotAssembled {
    /// A signal asked the launcher to end.
    Interrupted(i32),
    /// Too few nodes have agents.
    TooFewNodes,
    /// The plan cannot be made without the nodes that failed.
    Replan(String),
    /// Without the failed nodes, a node would have more agents than were started there.
    TooManyAgents,
}

/// Starts the agents of all targets, leaves out the nodes of those that fail if that is allowed, and gives the
/// others their positions. Returns the target of each agent.
///
/// If remote shells and links are one tree, a failure sends all agents away and starts them again without the failed
/// nodes, within the same `times`. `interrupted` yields the number of a signal that gives the launch up.
pub async fn assemble(
    launch: &mut dyn Launch,
    times: StartTimes,
    interrupted: impl Future<Output = i32>,
) -> (Bootstrap, Result<Vec<u32>, NotAssembled>) {
    let hosts_until = Instant::now() + times.hosts;
    let deadline = hosts_until + times.start;
    let mut interrupted = pin!(interrupted);
    loop {
        let now = Instant::now();
        let hosts = hosts_until.saturating_duration_since(now);
        let start = deadline.saturating_duration_since(now).saturating_sub(hosts);
        let nodes = launch.nodes();
        let times = StartTimes { hosts: nodes.timeout(hosts), start: nodes.timeout(start) };
        let mut bootstrap = launch.start(times);
        let until = now + times.hosts + times.start;
        let settled = bootstrap.settle(until, |bootstrap| launch.on_progress(bootstrap));
        tokio::select! {
            biased;
            signal = &mut interrupted => return (bootstrap, Err(NotAssembled::Interrupted(signal))),
            () = settled => {}
        }
        match choose(launch, bootstrap.failures()) {
            // Each round has fewer nodes than the one before, so that this ends.
            Ok(None) => drop(bootstrap.wait(LEAVE_TIME).await),
            Ok(Some(targets)) => {
                let PlannedTree { tree, fanout, .. } = launch.planned();
                bootstrap.commit(targets.clone(), tree, fanout);
                return (bootstrap, Ok(targets));
            }
            Err(why) => return (bootstrap, Err(why)),
        }
    }
}

/// Decides what to do after these failures: the target of each agent, or `None` if all are to be started again.
fn choose(launch: &mut dyn Launch, failures: &BTreeMap<u32, StartFailure>) -> Result<Option<Vec<u32>>, NotAssembled> {
    let failed = || failures.keys().copied();
    let left_out = launch.nodes().left_out(failed()).ok_or(NotAssembled::TooFewNodes)?;
    if !failures.is_empty() {
        launch.replan(failures, &left_out).map_err(NotAssembled::Replan)?;
    }
    let PlannedTree { node_of_agent, .. } = launch.planned();
    let nodes = launch.nodes();
    if !failures.is_empty() && nodes.is_one_tree {
        nodes.restart(&node_of_agent, &left_out, failed());
        return Ok(None);
    }
    let mut targets = nodes.target_of_agent(&node_of_agent, &left_out).ok_or(NotAssembled::TooManyAgents)?;
    let spares = nodes.spares(&targets, failed());
    nodes.exclude(failed());
    let agents_on: Vec<usize> = spares.iter().filter_map(|target| nodes.node_of(*target)).collect();
    let kept = launch.keep_spares(&agents_on);
    targets.extend(spares.into_iter().take(kept));
    Ok(Some(targets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::StartPhase;

    /// A launch of one agent per node, whose plan is one node per kept node.
    struct Planned {
        nodes: NodeChoice,
        agents: usize,
        replanned: Option<BTreeSet<usize>>,
        keeps_spares: bool,
    }

    impl Planned {
        fn new(nodes: usize, min: usize, max: usize, is_one_tree: bool) -> Self {
            let targets: Vec<usize> = (0..nodes).collect();
            let pool = targets.iter().copied().collect();
            Self {
                nodes: NodeChoice { nodes, targets, pool, passed_over: BTreeSet::new(), min, max, is_one_tree },
                agents: max,
                replanned: None,
                keeps_spares: false,
            }
        }
    }

    impl Launch for Planned {
        fn nodes(&mut self) -> &mut NodeChoice {
            &mut self.nodes
        }

        fn start(&self, _: StartTimes) -> Bootstrap {
            unreachable!("these tests start no process")
        }

        fn replan(&mut self, _: &BTreeMap<u32, StartFailure>, left_out: &BTreeSet<usize>) -> Result<(), String> {
            self.replanned = Some(left_out.clone());
            self.agents = self.agents.min(self.nodes.nodes - left_out.len());
            if self.agents == 1 { Err("one is too few".to_owned()) } else { Ok(()) }
        }

        fn keep_spares(&mut self, agents_on: &[usize]) -> usize {
            if self.keeps_spares { agents_on.len() } else { 0 }
        }

        fn planned(&self) -> PlannedTree {
            let agents = self.agents as u32;
            PlannedTree { node_of_agent: (0..self.agents).collect(), tree: Subtree::whole(agents, 2), fanout: 2 }
        }

        fn on_progress(&mut self, _: &Bootstrap) {}
    }

    fn failures(targets: &[u32]) -> BTreeMap<u32, StartFailure> {
        targets.iter().map(|target| (*target, StartFailure::new(StartPhase::Login, "no"))).collect()
    }

    #[test]
    fn without_failures_the_plan_stays_and_spares_are_not_used() {
        let mut launch = Planned::new(4, 3, 3, false);
        assert_eq!(choose(&mut launch, &failures(&[])).unwrap(), Some(vec![1, 2, 3]));
        assert_eq!(launch.replanned, None);
    }

    #[test]
    fn spares_are_kept_if_the_session_wants_them() {
        let mut launch = Planned { keeps_spares: true, ..Planned::new(6, 3, 3, false) };
        assert_eq!(choose(&mut launch, &failures(&[2, 5])).unwrap(), Some(vec![1, 3, 4, 6]), "node 4 has failed too");
    }

    #[test]
    fn the_plan_is_made_again_with_the_spare() {
        let mut launch = Planned::new(4, 3, 3, false);
        assert_eq!(choose(&mut launch, &failures(&[2])).unwrap(), Some(vec![1, 3, 4]));
        assert_eq!(launch.replanned, Some([1].into()));
    }

    #[test]
    fn one_tree_is_started_again_without_the_failed_node() {
        let mut launch = Planned::new(4, 3, 3, true);
        assert_eq!(choose(&mut launch, &failures(&[2])).unwrap(), None);
        assert_eq!(launch.nodes.targets, [0, 2, 3]);
        assert_eq!(choose(&mut launch, &failures(&[])).unwrap(), Some(vec![1, 2, 3]), "the second round");
    }

    #[test]
    fn a_launch_is_given_up_with_too_few_nodes_or_without_a_plan() {
        let mut launch = Planned::new(4, 3, 3, false);
        assert!(matches!(choose(&mut launch, &failures(&[1, 2])), Err(NotAssembled::TooFewNodes)));
        assert_eq!(launch.replanned, None);
        let mut launch = Planned::new(2, 1, 2, false);
        assert!(
            matches!(choose(&mut launch, &failures(&[1])), Err(NotAssembled::Replan(why)) if why == "one is too few")
        );
        let mut launch = Planned { agents: 5, ..Planned::new(4, 3, 4, false) };
        assert!(matches!(choose(&mut launch, &failures(&[])), Err(NotAssembled::TooManyAgents)));
    }
}
