//! From a plan to agents in their tree.
//!
//! On this machine alone the tree is known from the beginning: each agent joins as soon as its parent is
//! there. On other nodes it is made of those that can be started: [`Bootstrap::callback`] waits until each
//! target has an agent or has failed, and [`Bootstrap::commit`] gives those that are wanted their places.
//! No rank starts before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use nla::bootstrap::StartFailure;
use nla::bootstrap::{Below, BootCommand, BootOrder, BootReport, Links, Method};
use nla::bootstrap::{Starter, TargetReport};
use nla::core::{AgentId, Subtree, Time};
use nla::link::Reach;
use nla::link::{Accepted, Clock};
use nla::wire::TreePosition;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::cluster::hosts::fold;
use crate::plan::remote_launch::RemoteLaunch;
use crate::run::progress::PAUSE;
use crate::run::timing::Arrivals;

/// Agents on their way into the tree.
pub(crate) struct Bootstrap {
    starter: Starter,
    reports: mpsc::UnboundedReceiver<TargetReport>,
    /// Where the agents that are there may be reached, and the launcher, which is target 0.
    addresses: BTreeMap<u32, Vec<SocketAddr>>,
    failures: BTreeMap<u32, StartFailure>,
    /// The agents of targets, once the tree is known.
    agents: BTreeMap<u32, AgentId>,
    targets: BTreeMap<AgentId, u32>,
    tree: Subtree,
    fanout: u32,
    /// Who starts whom.
    openers: Subtree,
    /// To other nodes.
    goes_out: bool,
    links: Links,
    clock: Clock,
    arrivals: Arrivals,
    /// When agents that have not joined were told their places, by target.
    told: BTreeMap<u32, Time>,
    /// All agents that have come can.
    reads_log: bool,
}

impl Bootstrap {
    /// Starts all agents of `tree` on this machine.
    pub(crate) fn here(order: BootOrder, clock: Clock, tree: Subtree, fanout: u32, root: Vec<SocketAddr>) -> Self {
        let agents = tree.size() - 1;
        let mut bootstrap = Self::new(order, clock, Method::Fork, None, Duration::MAX, root, agents, agents.max(1));
        bootstrap.seat((1..=agents).collect(), tree, fanout);
        for target in 1..=agents {
            let is_leaf = tree.of(AgentId(target)).is_none_or(|subtree| subtree.size() == 1);
            let reach = if is_leaf { Reach::Nobody } else { Reach::Here };
            bootstrap.starter.start(target, None, reach);
        }
        bootstrap
    }

    /// Starts agents on other nodes, which wait for [`Bootstrap::commit`]; after `patience` they are there or have
    /// failed.
    pub(crate) fn there(
        order: BootOrder,
        clock: Clock,
        expedition: &RemoteLaunch,
        root: Vec<SocketAddr>,
        patience: Duration,
    ) -> Self {
        let hosts = expedition.hosts();
        let RemoteLaunch { method, fanout, batch, .. } = expedition;
        let (method, batch) = (method.clone(), *batch);
        let targets = hosts.len() as u32;
        let fanout = fanout.unwrap_or(targets).max(1);
        let below = Below { targets, fanout, hosts, method: method.clone(), batch, patience };
        let own: Vec<IpAddr> = root.iter().map(SocketAddr::ip).collect();
        let bootstrap = Self::new(order, clock, method, batch, patience, root, targets, fanout);
        match below.method {
            Method::Step { .. } => bootstrap.starter.start_steps(&below.hosts, &own, |names| fold(names)),
            _ => bootstrap.starter.start_tree(0, &below, own),
        }
        bootstrap
    }

    #[expect(clippy::too_many_arguments, reason = "the two ways to make one know them from different places")]
    fn new(
        order: BootOrder,
        clock: Clock,
        method: Method,
        batch: Option<u32>,
        patience: Duration,
        root: Vec<SocketAddr>,
        targets: u32,
        opens: u32,
    ) -> Self {
        // Bounded by the number of targets.
        let (events, reports) = mpsc::unbounded_channel();
        let goes_out = method != Method::Fork;
        let links = order.links;
        let arrivals = Arrivals::from(clock.now());
        Self {
            starter: Starter::new(order, method, batch, patience, events),
            reports,
            addresses: BTreeMap::from([(0, root)]),
            failures: BTreeMap::new(),
            agents: BTreeMap::new(),
            targets: BTreeMap::new(),
            tree: Subtree::whole(0, 1),
            fanout: 1,
            openers: Subtree::whole(targets, opens),
            goes_out,
            links,
            clock,
            arrivals,
            told: BTreeMap::new(),
            reads_log: true,
        }
    }

    /// The next report.
    pub(crate) async fn next(&mut self) -> Option<TargetReport> {
        self.reports.recv().await
    }

    /// Takes a report. Returns the agent that will not come, and why.
    pub(crate) fn on_report(&mut self, (target, report): TargetReport) -> Option<(AgentId, StartFailure)> {
        match report {
            BootReport::Here { addresses, host, descriptors, reads_log } => {
                tracing::debug!(target, %host, descriptors, ?addresses, reads_log, "an agent is there");
                self.reads_log &= reads_log;
                self.addresses.insert(target, addresses);
                self.arrivals.on_here(self.clock.now(), target);
                if let Some(agent) = self.agents.get(&target).copied() {
                    self.admit(agent);
                    let below: Vec<_> = self.tree.of(agent).iter().flat_map(Subtree::children).collect();
                    below.iter().for_each(|child| self.admit(child.head()));
                }
                None
            }
            BootReport::NotStarted(failure) => {
                self.addresses.remove(&target);
                let agent = self.agents.get(&target).copied();
                self.failures.insert(target, failure.clone());
                Some((agent?, failure))
            }
            BootReport::Joined { took } => {
                if let Some(told) = self.told.remove(&target) {
                    self.arrivals.on_joined(told, target, took);
                }
                None
            }
            BootReport::Below(..) | BootReport::Task { .. } | BootReport::Joining => None,
        }
    }

    /// Waits until each target has an agent or has failed; what has done neither at `deadline` has
    /// failed. `look` is called now and then.
    pub(crate) async fn callback(&mut self, deadline: Instant, mut look: impl FnMut(&Self)) {
        let targets = self.openers.size() - 1;
        while (self.addresses.len() - 1 + self.failures.len()) < targets as usize {
            match timeout_at(deadline.min(Instant::now() + PAUSE), self.next()).await {
                Ok(Some(report)) => drop(self.on_report(report)),
                Err(_) if Instant::now() < deadline => {}
                Ok(None) | Err(_) => break,
            }
            look(self);
        }
        for target in 1..=targets {
            if !self.addresses.contains_key(&target) {
                self.failures.entry(target).or_insert_with(StartFailure::late);
            }
        }
    }

    /// How many agents are there, and how many are to be.
    pub(crate) fn come(&self) -> (u32, u32) {
        (self.addresses.len() as u32 - 1, self.openers.size() - 1)
    }

    /// Stations that have no agent, and why.
    pub(crate) fn failures(&self) -> &BTreeMap<u32, StartFailure> {
        &self.failures
    }

    /// Where links go over sessions: those of the root's children go to `joined`. To be called before
    /// [`commit`](Self::commit).
    pub(crate) fn take_links(&self, joined: mpsc::Sender<Accepted>) {
        self.starter.take_links(self.clock, joined);
    }

    /// Gives the agents at these targets their places, in order, in a tree of as many; all others leave.
    pub(crate) fn commit(&mut self, targets: Vec<u32>, tree: Subtree, fanout: u32) {
        let chosen: BTreeSet<u32> = targets.iter().copied().collect();
        for target in self.addresses.keys().filter(|target| **target != 0 && !chosen.contains(target)) {
            self.starter.tell(*target, BootCommand::Leave);
        }
        self.seat(targets, tree, fanout);
        for agent in (1..tree.size()).map(AgentId) {
            self.admit(agent);
        }
    }

    fn seat(&mut self, targets: Vec<u32>, tree: Subtree, fanout: u32) {
        let agents = || (1..).map(AgentId);
        self.agents = targets.iter().copied().zip(agents()).collect();
        self.targets = agents().zip(targets).collect();
        (self.tree, self.fanout) = (tree, fanout);
    }

    fn target(&self, agent: AgentId) -> Option<u32> {
        if agent == AgentId::ROOT { Some(0) } else { self.targets.get(&agent).copied() }
    }

    /// Lets an agent join, if it and its parent are there.
    fn admit(&mut self, agent: AgentId) {
        let parent = self.tree.parent_of(agent).and_then(|parent| self.target(parent));
        let (Some(target), Some(parent)) = (self.target(agent), parent) else { return };
        let Some(addresses) = self.addresses.get(&parent).filter(|_| self.addresses.contains_key(&target)) else {
            return;
        };
        let place = TreePosition { agents: self.tree.size() - 1, fanout: self.fanout, agent };
        if self.links == Links::RemoteShells {
            // Who is below an agent is told its place by that agent.
            if parent == 0 {
                self.told.insert(target, self.clock.now());
                self.starter.admit(target, place);
            }
            return;
        }
        let opener = self.openers.parent_of(AgentId(target)).map(|opener| opener.0);
        let opener_port = addresses.first().filter(|_| self.goes_out && opener == Some(parent)).map(SocketAddr::port);
        let parent = addresses.clone();
        self.told.insert(target, self.clock.now());
        self.starter.tell(target, BootCommand::Join { place, parent, opener_port });
    }

    /// Whether all agents that have come can read the launcher's log.
    pub(crate) fn reads_log(&self) -> bool {
        self.reads_log
    }

    /// When agents have come.
    pub(crate) fn arrivals(&self) -> &Arrivals {
        &self.arrivals
    }

    /// See [`Starter::wait`].
    pub(crate) async fn wait(&mut self, patience: Duration) -> usize {
        self.starter.wait(patience).await
    }
}
