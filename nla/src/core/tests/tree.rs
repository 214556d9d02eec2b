//! The cores of a whole session in memory: a root, its agents, and the links between them.
//!
//! Only the messages of one lane of one link are in order. The next message to be delivered is drawn from a seed, and
//! each message is encoded and decoded. Invariants are checked after each step.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use litemap::LiteMap;
use pmi::{Answer, Board, LookUp, Rank, Ranks, Request};

use super::{NS, T};
use crate::core::accelerators::AcceleratorPlan;
use crate::core::agent::{Action, Agent, Input};
use crate::core::binding::BindingPolicy;
use crate::core::cache::{CachePeaks, CachePolicy};
use crate::core::cause::{Exit, Outcome};
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::{AgentId, NamespaceId, Time};
use crate::core::message::{Down, Up};
use crate::core::placement::owners;
use crate::core::plan::{DirectOutput, NamespacePlan, SessionPlan};
use crate::core::reason::{LossReason, NotStartedReason};
use crate::core::root::{Notice, Root, RootAction, RootInput, RootSettings};
use crate::core::stats::{DriverCounts, DurationHistogram, Stats};
use crate::core::survey::{Activity, LastCall, ProcessState, Survey};
use crate::core::topology::Subtree;
use crate::core::trace::TraceScope;
use crate::wire::{decode, encode};

const SIGTERM: i32 = 15;

/// A lane of a link: its sender, its receiver, and whether it is the board lane.
type Lane = (AgentId, AgentId, bool);

/// The activity of every rank of these trees.
pub(super) const BUSY: Activity = Activity { call: LastCall::Init, process: ProcessState::Running };

pub(super) struct Tree {
    tree: Subtree,
    root: Root,
    agents: LiteMap<AgentId, Agent>,
    /// The parent of each agent whose parent in the tree was lost.
    ancestors: LiteMap<AgentId, AgentId>,
    /// Agents whose parent was lost and that look for an ancestor.
    orphaned: Vec<AgentId>,
    /// The agents that each place lets join although they are no children in the tree.
    adopted: BTreeMap<AgentId, Vec<Subtree>>,
    lanes: LiteMap<Lane, VecDeque<Bytes>>,
    boards: LiteMap<(AgentId, NamespaceId), Board>,
    /// The agent of each rank.
    agent_of: LiteMap<(NamespaceId, Rank), AgentId>,
    answers: LiteMap<(NamespaceId, Rank), Answer>,
    /// The number of messages sent.
    pub(super) messages: usize,
    /// The traffic of each place, as its driver would count it.
    pub(super) counted: LiteMap<AgentId, DriverCounts>,
    pub(super) outcome: Option<Outcome>,
    on_failure: FailurePolicy,
    /// The agent that can start no spawned rank.
    pub(super) refusing: Option<AgentId>,
    survey: Option<Survey>,
    /// The placement after the last restart, if it has changed.
    pub(super) moved: Option<Vec<(AgentId, Ranks)>>,
    /// No agent could take over the ranks of a lost one.
    pub(super) has_no_spare: bool,
    now: Time,
    seed: u64,
}

impl Tree {
    /// Starts `agents` agents and, where `placement` says, the ranks of the first namespace. Agents on one node have the
    /// same number in `nodes`.
    pub(super) fn started(
        agents: u32,
        fanout: u32,
        placement: Vec<(AgentId, Ranks)>,
        nodes: &LiteMap<AgentId, u32>,
        seed: u64,
    ) -> Self {
        Self::with(CachePolicy::default(), agents, fanout, placement, nodes, seed)
    }

    /// Like [`Tree::started`], with this cache policy.
    pub(super) fn with(
        cache: CachePolicy,
        agents: u32,
        fanout: u32,
        placement: Vec<(AgentId, Ranks)>,
        nodes: &LiteMap<AgentId, u32>,
        seed: u64,
    ) -> Self {
        Self::with_policies(cache, FailurePolicy::Abort, (agents, fanout), placement, nodes, seed)
    }

    /// Like [`Tree::with`], with this failure policy.
    pub(super) fn with_policies(
        cache: CachePolicy,
        on_failure: FailurePolicy,
        (agents, fanout): (u32, u32),
        placement: Vec<(AgentId, Ranks)>,
        nodes: &LiteMap<AgentId, u32>,
        seed: u64,
    ) -> Self {
        let tree = Subtree::whole(agents, fanout);
        let size = placement.iter().map(|(_, ranks)| ranks.len()).sum::<u64>() as u32;
        let node_of = |rank: Rank| nodes[&placement.iter().find(|(_, ranks)| ranks.contains(rank)).unwrap().0];
        let mapping = pmi::Mapping::from_nodes((0..size).map(|rank| node_of(Rank(rank))));
        let owners = owners(&placement, nodes);
        let settings = RootSettings {
            stuck_after: None,
            exit_timeout: None,
            expects_pmi: false,
            max_restarts: 100,
            packs: !seed.is_multiple_of(3),
            tree,
            session: SessionPlan {
                environment: Vec::new(),
                shell: Bytes::new(),
                hold_lines: true,
                direct: [DirectOutput::Never; 2],
                pmi_port: false,
                kill_grace: std::time::Duration::from_secs(5),
                cache,
                clean_shm: crate::core::CleanShm::default(),
                on_failure,
                dead_time: std::time::Duration::from_secs(5),
                has_ports: true,
                rank_sessions: crate::core::RankSessions::All,
                stats: true,
                trace: Some(TraceScope::of(agents)),
                pmix: None,
                binding: BindingPolicy::default(),
                accelerators: AcceleratorPlan::default(),
                // Odd seeds cut nearly every epoch.
                piece_bytes: std::num::NonZeroU32::new(if seed % 2 == 1 { 40 } else { 1 << 18 }),
                stage: crate::core::StagePlan::default(),
                profile: false,
                collect: crate::core::CollectPlan::default(),
                sent: std::time::Duration::ZERO,
            },
            first: NamespacePlan { mapping, owners, ..super::plan_of(size, placement) },
            nodes: nodes.clone(),
        };
        let ids = (1..=agents).map(AgentId);
        let mut world = Self {
            tree,
            root: Root::new(settings),
            agents: ids.map(|id| (id, Agent::new(tree.of(id).unwrap()))).collect(),
            ancestors: LiteMap::new(),
            orphaned: Vec::new(),
            adopted: BTreeMap::new(),
            lanes: LiteMap::new(),
            boards: LiteMap::new(),
            agent_of: LiteMap::new(),
            answers: LiteMap::new(),
            messages: 0,
            counted: LiteMap::new(),
            outcome: None,
            on_failure,
            refusing: None,
            survey: None,
            moved: None,
            has_no_spare: false,
            now: T,
            seed,
        };
        for id in 1..=agents {
            let id = AgentId(id);
            for child in tree.of(id).unwrap().children() {
                world.agent(id, Input::ChildJoined(child.head()));
            }
            world.agent(id, Input::Timeout);
        }
        world.settle();
        assert_eq!(world.agent_of.len(), size as usize, "all ranks were started");
        world
    }

    /// Sends a request of a rank.
    pub(super) fn ask(&mut self, namespace: NamespaceId, rank: u32, request: Request) {
        let rank = Rank(rank);
        assert!(!self.answers.contains_key(&(namespace, rank)), "rank {rank} has not read its answer");
        self.agent(self.agent_of[&(namespace, rank)], Input::FromRank(namespace, rank, request));
    }

    /// Gets a key for a rank, from its agent's board, or else through the tree until no message is left.
    pub(super) fn get(&mut self, namespace: NamespaceId, rank: u32, key: &str) -> Option<String> {
        let board = &self.boards[&(self.agent_of[&(namespace, Rank(rank))], namespace)];
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        match board.look_up(key.as_bytes()) {
            LookUp::Found(value) => Some(text(&value)),
            LookUp::Absent => None,
            LookUp::Unknown => {
                self.ask(namespace, rank, Request::Get { key: key.to_owned().into() });
                self.settle();
                match self.answer(namespace, rank) {
                    Some(Answer::Got(value)) => value.as_deref().map(text),
                    answer => panic!("{answer:?}"),
                }
            }
        }
    }

    /// The peaks of an agent's caches.
    pub(super) fn cache_peaks(&self, agent: u32) -> CachePeaks {
        self.agents[&AgentId(agent)].cache_peaks()
    }

    /// Sends a request of a rank of the first namespace, delivers all messages, and returns the answer.
    pub(super) fn answer_to(&mut self, rank: u32, request: Request) -> Option<Answer> {
        self.ask(NS, rank, request);
        self.settle();
        self.answer(NS, rank)
    }

    /// Takes the answer to a rank's last request.
    pub(super) fn answer(&mut self, namespace: NamespaceId, rank: u32) -> Option<Answer> {
        self.answers.remove(&(namespace, Rank(rank)))
    }

    /// Makes a survey, and returns its answer.
    pub(super) fn survey(&mut self) -> Survey {
        self.root(RootInput::Survey);
        self.settle();
        self.survey.take().expect("all agents answer")
    }

    /// Ends all ranks with code 0, and with them the session. Returns the statistics.
    pub(super) fn end(&mut self) -> Stats {
        for ((namespace, rank), agent) in self.agent_of.clone() {
            self.agent(agent, Input::RankEnded(namespace, rank, Exit::Code(0)));
        }
        self.settle();
        self.root(RootInput::OutputDone);
        assert_eq!(self.outcome, None, "the root waits for statistics");
        for id in self.agents.keys().copied().collect::<Vec<_>>() {
            let boards = self.boards.iter().filter(|((agent, _), _)| *agent == id);
            let board_gets = boards.map(|(_, board)| board.answered()).sum();
            let counted = self.counted.entry(id).or_default();
            counted.board_gets = board_gets;
            let counted = Box::new(*counted);
            self.agent(id, Input::Drained { counted, spans: Vec::new() });
            self.step();
        }
        self.settle();
        assert_eq!(self.outcome, Some(Outcome::Success));
        self.root.stats(self.counted.get(&AgentId::ROOT).copied().unwrap_or_default(), DurationHistogram::default())
    }

    /// Ends the session's output, and has the agents report their statistics.
    pub(super) fn close_output(&mut self) {
        self.root(RootInput::OutputDone);
        self.settle();
        while self.rejoin() {
            self.settle();
        }
        for id in self.agents.keys().copied().collect::<Vec<_>>() {
            self.agent(id, Input::Drained { counted: Box::default(), spans: Vec::new() });
        }
        self.settle();
        assert!(self.outcome.is_some(), "the session is over: {:?}", self.root);
    }

    /// Ends the ranks of a namespace with code 0, if they have not ended otherwise.
    pub(super) fn end_ranks(&mut self, namespace: NamespaceId) {
        let of_it = |((id, _), _): &((NamespaceId, Rank), AgentId)| *id == namespace;
        for (key, agent) in self.agent_of.clone().into_iter().filter(of_it) {
            self.agent(agent, Input::RankEnded(namespace, key.1, Exit::Code(0)));
            self.agent_of.remove(&key);
        }
    }

    /// The length of the text that describes the state of the root and of all agents.
    pub(super) fn state_size(&self) -> usize {
        format!("{:?}{:?}{:?}", self.root, self.agents, self.boards).len()
    }

    /// The ranks that have died, as a rank sees them.
    pub(super) fn dead(&self, rank: u32) -> Option<&str> {
        self.boards[&(self.agent_of[&(NS, Rank(rank))], NS)].dead()
    }

    /// Hands an input to the agent of a rank.
    pub(super) fn input(&mut self, rank: u32, input: Input) {
        self.agent(self.agent_of[&(NS, Rank(rank))], input);
    }

    fn parent_of(&self, agent: AgentId) -> AgentId {
        self.ancestors.get(&agent).copied().unwrap_or_else(|| self.tree.parent_of(agent).unwrap())
    }

    /// The ranks of an agent that runs.
    pub(super) fn ranks_at(&self, agent: u32) -> Vec<u32> {
        let ranks = self.agent_of.iter().filter(|(_, at)| **at == AgentId(agent));
        ranks.map(|((_, rank), _)| rank.0).collect()
    }

    /// Whether the agent of a rank runs.
    pub(super) fn runs(&self, rank: u32) -> bool {
        self.agent_of.get(&(NS, Rank(rank))).is_some_and(|agent| self.agents.contains_key(agent))
    }

    /// Ends the process of a rank with a failure. The rank runs again when its agent has been told so.
    pub(super) fn fail(&mut self, rank: u32) {
        let rank = Rank(rank);
        if let Some(agent) = self.agent_of.remove(&(NS, rank)) {
            self.agent(agent, Input::RankEnded(NS, rank, Exit::Code(7)));
        }
    }

    /// Whether an agent runs and has a parent.
    pub(super) fn is_linked(&self, agent: u32) -> bool {
        self.agents.contains_key(&AgentId(agent)) && !self.orphaned.contains(&AgentId(agent))
    }

    /// Whether an agent looks for an ancestor.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphaned.is_empty()
    }

    /// Kills an agent and its ranks. Messages in flight to and from it are lost.
    pub(super) fn crash(&mut self, agent: u32) {
        let agent = AgentId(agent);
        let parent = self.parent_of(agent);
        self.agents.remove(&agent);
        self.lanes.retain(|(from, to, _), _| *from != agent && *to != agent);
        self.answers.retain(|key, _| self.agent_of.get(key).is_some_and(|at| *at != agent));
        self.orphaned.retain(|orphan| *orphan != agent);
        let why = || LossReason::Closed;
        match parent {
            AgentId::ROOT => self.root(RootInput::ChildLost(agent, why())),
            _ if self.agents.contains_key(&parent) => self.agent(parent, Input::ChildLost(agent, why())),
            _ => {}
        }
        for child in self.agents.keys().copied().collect::<Vec<_>>() {
            if self.parent_of(child) == agent && !self.orphaned.contains(&child) {
                self.agent(child, Input::ParentLost { why: why() });
            }
        }
    }

    /// Lets the agents join that an ancestor accepts. Returns whether there was one.
    pub(super) fn rejoin(&mut self) -> bool {
        let found = self.orphaned.iter().find_map(|agent| {
            let above = std::iter::successors(Some(self.parent_of(*agent)), |above| self.tree.parent_of(*above));
            let nearest = above.skip(1).find(|above| *above == AgentId::ROOT || self.agents.contains_key(above))?;
            let orphans = self.adopted.get(&nearest)?;
            orphans.iter().any(|orphan| orphan.contains(*agent)).then_some((nearest, *agent))
        });
        let Some((above, agent)) = found else { return false };
        self.adopted.get_mut(&above).unwrap().retain(|orphan| !orphan.contains(agent));
        self.orphaned.retain(|orphan| *orphan != agent);
        self.ancestors.insert(agent, above);
        match above {
            AgentId::ROOT => self.root(RootInput::ChildJoined(agent)),
            above => self.agent(above, Input::ChildJoined(agent)),
        }
        self.agent(agent, Input::Rejoined);
        true
    }

    /// Delivers one message. Returns false if there is none.
    pub(super) fn step(&mut self) -> bool {
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let busy: Vec<Lane> = self.lanes.iter().filter(|(_, lane)| !lane.is_empty()).map(|(key, _)| *key).collect();
        let Some(&lane) = busy.get((self.seed >> 33) as usize % busy.len().max(1)) else { return false };
        let bytes = self.lanes.get_mut(&lane).unwrap().pop_front().unwrap();
        match lane {
            (from, AgentId::ROOT, _) => self.root(RootInput::FromChild(from, decode(&bytes).unwrap())),
            (from, to, _) if from < to => self.agent(to, Input::FromParent(decode(&bytes).unwrap())),
            (from, to, _) => self.agent(to, Input::FromChild(from, decode(&bytes).unwrap())),
        }
        true
    }

    /// Lets time pass for all cores.
    pub(super) fn advance(&mut self, time: Time) {
        self.now += time;
        self.root(RootInput::Timeout);
        for id in self.agents.keys().copied().collect::<Vec<_>>() {
            self.agent(id, Input::Timeout);
        }
    }

    /// Hands an input to an agent.
    pub(super) fn hand(&mut self, agent: AgentId, input: Input) {
        self.agent(agent, input);
    }

    /// The namespace that was started last.
    pub(super) fn newest_namespace(&self) -> NamespaceId {
        self.agent_of.keys().map(|(namespace, _)| *namespace).max().unwrap_or(NS)
    }

    /// The ranks of a namespace that run, with their agents.
    pub(super) fn running(&self, namespace: NamespaceId) -> Vec<(Rank, AgentId)> {
        let ranks = self.agent_of.iter().filter(|((of, _), at)| *of == namespace && self.agents.contains_key(at));
        ranks.map(|((_, rank), at)| (*rank, *at)).collect()
    }

    /// Delivers messages until none is left.
    pub(super) fn settle(&mut self) {
        while self.step() {}
    }

    fn send_up(&mut self, from: AgentId, message: &Up) {
        let is_expected = self.on_failure != FailurePolicy::Abort || self.refusing.is_some();
        assert!(is_expected || !matches!(message, Up::Failed(_)), "{message:?}");
        let to = self.parent_of(from);
        self.send((from, to, message.is_board()), encode(message));
    }

    fn send_down(&mut self, from: AgentId, to: AgentId, message: &Down) {
        self.send((from, to, message.is_board()), encode(message));
    }

    fn send(&mut self, lane: Lane, bytes: Vec<u8>) {
        let (from, to, is_board) = lane;
        let runs = |agent: AgentId| agent == AgentId::ROOT || self.agents.contains_key(&agent);
        let is_linked = from < to && self.parent_of(to) == from && !self.orphaned.contains(&to) || from > to;
        if !runs(to) || !is_linked {
            return;
        }
        let counted = self.counted.entry(from).or_default();
        if from < to { &mut counted.down } else { &mut counted.up }.note(is_board, bytes.len());
        self.messages += 1;
        self.lanes.entry(lane).or_default().push_back(bytes.into());
    }

    fn root(&mut self, input: RootInput) {
        let mut actions = Vec::new();
        self.root.handle(self.now, input, &mut actions);
        self.root.check_invariants();
        for action in actions {
            match action {
                RootAction::ToChild(to, message) => self.send_down(AgentId::ROOT, to, &message),
                RootAction::Adopt(orphans) => {
                    self.adopted.insert(AgentId::ROOT, orphans);
                }
                RootAction::Notice(Notice::Surveyed(survey, ..)) => self.survey = Some(*survey),
                RootAction::Notice(Notice::NoSpare) => self.has_no_spare = true,
                RootAction::Notice(Notice::Moved(placement)) => self.moved = Some(placement),
                RootAction::Notice(_) | RootAction::WakeAt(_) | RootAction::EndGuardian(_) => {}
                RootAction::Over(outcome) => self.outcome = Some(outcome),
                RootAction::CloseChild(child, _) if self.on_failure == FailurePolicy::RestartRank => {
                    self.crash(child.0);
                }
                RootAction::CloseChild(..) => panic!("{action:?}"),
            }
        }
    }

    fn agent(&mut self, id: AgentId, input: Input) {
        let mut actions = Vec::new();
        let agent = self.agents.get_mut(&id).unwrap();
        agent.handle(self.now, input, &mut actions);
        agent.check_invariants();
        for action in actions {
            match action {
                Action::ToParent(message) => self.send_up(id, &message),
                Action::ToChild(to, message) => self.send_down(id, to, &message),
                Action::Start(plan, ranks, board) => {
                    let namespace = plan.id;
                    self.agent_of.extend(ranks.iter().map(|rank| ((namespace, rank), id)));
                    if !ranks.is_empty() && self.refusing == Some(id) && namespace != NS {
                        let why = NotStartedReason::Reported("it is not there".to_owned());
                        self.agent(id, Input::NotStarted(namespace, ranks, why));
                    } else if !ranks.is_empty() {
                        self.boards.insert((id, namespace), board);
                        self.agent(id, Input::Started(namespace, ranks));
                    } else if self.on_failure == FailurePolicy::RestartRank {
                        self.boards.insert((id, namespace), board);
                    }
                }
                Action::Publish(namespace, epoch) => {
                    if let Some(board) = self.boards.get_mut(&(id, namespace)) {
                        board.publish(epoch);
                    }
                }
                Action::Release(namespace, ranks) => {
                    for rank in ranks.iter() {
                        self.answered(namespace, rank, Answer::Released);
                    }
                }
                Action::Adopt(orphans) => {
                    self.adopted.insert(id, orphans);
                }
                Action::Rejoin(_) => self.orphaned.push(id),
                Action::FailFence(namespace, ranks) => {
                    for rank in ranks.iter() {
                        self.answered(namespace, rank, Answer::FenceFailed);
                    }
                }
                Action::ShowDead(namespace, dead) => {
                    if let Some(board) = self.boards.get_mut(&(id, namespace)) {
                        board.set_dead(&dead);
                    }
                }
                Action::Answer(namespace, rank, answer) => self.answered(namespace, rank, answer),
                Action::LookUp { namespace, key, requester } => {
                    let board = self.boards.get(&(id, namespace));
                    let value = board.and_then(|board| board.get(&key).map(<[u8]>::to_vec));
                    self.agent(id, Input::LookedUp { namespace, key, requester, value });
                }
                Action::Modex { rank, requester, .. } => {
                    self.agent(id, Input::Modexed(requester, Some(rank.to_string().into())));
                }
                Action::Inspect(number, ranks) => {
                    let found = ranks.into_iter().map(|(namespace, ranks)| (namespace, vec![(BUSY, ranks)])).collect();
                    self.agent(id, Input::Inspected(number, found));
                }
                Action::Signal(namespace, ranks, SIGTERM) if self.on_failure == FailurePolicy::Restart => {
                    for rank in ranks.iter() {
                        let exit = Exit::Signal { signal: SIGTERM, core: false, out_of_memory: String::new() };
                        self.agent(id, Input::RankEnded(namespace, rank, exit));
                    }
                }
                Action::Restart(namespace, rank, _) => {
                    self.agent_of.insert((namespace, rank), id);
                    self.agent(id, Input::Started(namespace, std::iter::once(rank).collect()))
                }
                Action::Clear => {
                    self.agent_of.retain(|_, at| *at != id);
                    self.boards.retain(|(at, _), _| *at != id);
                    self.agent(id, Input::Cleared { leftovers: 0 });
                }
                Action::Forget(namespace) => drop(self.boards.remove(&(id, namespace))),
                Action::Sweep | Action::Linger => self.agent(id, Input::Swept { leftovers: 0 }),
                Action::Configure(_)
                | Action::WakeAt(_)
                | Action::CancelStarts
                | Action::EndLeft
                | Action::EndNeighbour(..)
                | Action::Leave(0) => {}
                Action::Signal(namespace, ranks, 9) if self.refusing.is_some() => {
                    let killed = Exit::Signal { signal: 9, core: false, out_of_memory: String::new() };
                    ranks.iter().for_each(|rank| self.agent(id, Input::RankEnded(namespace, rank, killed.clone())));
                }
                Action::CloseChild(child, _) if self.on_failure == FailurePolicy::RestartRank => self.crash(child.0),
                // A rank that has been waited for too long ignores it.
                Action::Signal(..) | Action::Suspended(_) if self.on_failure != FailurePolicy::Abort => {}
                Action::CloseChild(..) | Action::Signal(..) | Action::Suspended(_) | Action::Leave(_) => {
                    panic!("{action:?}")
                }
            }
        }
    }

    fn answered(&mut self, namespace: NamespaceId, rank: Rank, answer: Answer) {
        assert!(self.answers.insert((namespace, rank), answer).is_none(), "rank {rank} is answered once");
    }
}

/// Trees of up to `agents` agents with a fan-out of up to 3.
pub(super) fn shapes(agents: u32) -> impl Iterator<Item = (u32, u32)> {
    (1..=agents).flat_map(|agents| (1..=3).map(move |fanout| (agents, fanout)))
}

/// Placements of ranks on `agents` agents: in blocks, cyclic, all on the last agent, and reversed; with fewer ranks than
/// agents, and with more.
pub(super) fn placements(agents: u32) -> Vec<Vec<(AgentId, Ranks)>> {
    let dealt = |size: u32, agent_of: &dyn Fn(u32) -> u32| {
        let mut placement: LiteMap<AgentId, Ranks> = LiteMap::new();
        for rank in 0..size {
            placement.entry(AgentId(1 + agent_of(rank) % agents)).or_default().insert(Rank(rank));
        }
        placement.into_iter().collect::<Vec<_>>()
    };
    let mut all = Vec::new();
    for size in [1, 2, agents, 2 * agents + 1] {
        all.push(dealt(size, &|rank| rank * agents / size));
        all.push(dealt(size, &|rank| rank));
        all.push(dealt(size, &|_| agents - 1));
        all.push(dealt(size, &|rank| size - 1 - rank));
    }
    all
}
