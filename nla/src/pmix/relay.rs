//! The agent's decisions about its `scela-pmix`, as a value: no process is needed to test it.
//!
//! libpmix reports a fence once per node; PMI reports it once per rank. So the arrival of this node at a fence of all ranks
//! becomes the arrival of each of its ranks. The node's data, which libpmix made from the puts of all its ranks, is one entry of
//! the namespace's board. After the release the relay concatenates the entries of all nodes. A request for the data of a rank
//! that no fence has collected goes to the agent of that rank.

mod known;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use bytes::{Bytes, BytesMut};
use litemap::LiteMap;
use pmi::{
    Answer, Meeting, NameError, PmixAnswer, PmixRequest, Rank, Ranks, Request, RootRequest, SpawnCommand, SpawnRequest,
};

use self::known::{Fence, Known};
use super::message::{Outcome, ProcessName, Purpose, Registration, ToAgent, ToHelper};
use super::query::View;
use crate::core::{NODE_REQUESTS_FROM, NamespaceId, NamespacePlan, PmixPlan, Requester, Variable};
use crate::sys::pmix::{CallError, Question};

/// Requests of this node that may be open at the root at a time. Further ones wait here.
const CALLS_MAX: u32 = 4096;
/// Requests that may wait here. The call of a further one fails.
const QUEUE_MAX: usize = 65_536;
/// Lookups of this node's ranks that may wait for their keys at a time. The other half of the numbers is left for other requests.
const LOOKUPS_MAX: usize = CALLS_MAX as usize / 2;

/// An effect of what happened.
#[derive(Debug)]
pub enum Step {
    /// Send a message to `scela-pmix`.
    Send(ToHelper),
    /// Hand a request of a rank to the core, or answer a get from this agent's board. Pass the answer to
    /// [`Relay::on_answer`].
    Ask(NamespaceId, Rank, Request),
    /// Report that a second process has joined as this rank, in these words.
    SecondJoiner(Rank, String),
    /// Start the ranks of the namespace with these variables; or do not start them, for this reason.
    Prepared(NamespaceId, Result<Vec<Variable>, String>),
    /// Answer the rank of another node that has asked for data.
    Reply(Requester, Option<Bytes>),
    /// No rank can be served.
    Failed(String),
}

/// A request to the root, and its use when it is answered.
#[derive(Clone, Debug)]
enum Asked {
    /// The call gets the root's answer.
    Call(u64),
    /// A fence of some ranks. The call gets the data of all if it collects it.
    Fence { call: u64, collect: bool },
    /// Ranks connect. libpmix must know these namespaces before the call is answered.
    Connect { call: u64, names: BTreeSet<String> },
    /// Ranks make a group of these members. The call gets its number.
    Group { call: u64, members: Vec<ProcessName> },
    /// A lookup that may wait for its keys.
    Lookup { call: u64, waits: bool },
    /// The description of the namespace of this name, with which libpmix registers it.
    Description(String),
    /// The data of a rank: the name of its job, and its number.
    Modex { call: u64, job: String, rank: Rank },
    /// The session's jobs, for these questions, and a description of some.
    Query { call: u64, questions: Vec<Question>, jobs: Vec<String> },
}

/// Finds the pid of a rank here that runs.
pub type PidOf<'a> = &'a dyn Fn(NamespaceId, Rank) -> Option<u32>;

/// Relays between `scela-pmix` and the core of an agent.
#[derive(Debug)]
pub struct Relay {
    plan: PmixPlan,
    known: Vec<Known>,
    /// The open requests to the root: those of this node, by their numbers, and those of ranks that spawn.
    asking: HashMap<(NamespaceId, Rank), Asked>,
    /// Requests to the root that wait for a number, and the namespaces of the callers, where libpmix names them. At most
    /// [`QUEUE_MAX`] when a call adds one. Others are added only for namespaces that ranks connect with, once for each, and
    /// for repeated requests, each of which had a number or a place here before.
    to_ask: VecDeque<(Asked, Option<NamespaceId>, PmixRequest)>,
    /// Registered namespaces without ranks here. Ranks here have connected with their ranks.
    foreign: BTreeSet<String>,
    /// Connections that wait until libpmix knows these namespaces.
    connecting: Vec<(u64, BTreeSet<String>)>,
    /// Ranks of other nodes that wait for data of ranks here.
    asked: LiteMap<u64, Requester>,
    last_asked: u64,
}

impl Relay {
    /// A relay without namespaces.
    pub fn new(plan: PmixPlan) -> Self {
        Self {
            plan,
            known: Vec::new(),
            asking: HashMap::new(),
            to_ask: VecDeque::new(),
            foreign: BTreeSet::new(),
            connecting: Vec::new(),
            asked: LiteMap::new(),
            last_asked: 0,
        }
    }

    /// Registers a namespace with `ranks` here, some of them bound to these processors. [`Step::Prepared`] follows.
    pub fn register(&mut self, plan: &NamespacePlan, ranks: &Ranks, cpus: Vec<(u32, String)>) -> ToHelper {
        let name = self.plan.name_of(&plan.kvsname);
        let node = ranks.first().and_then(|rank| plan.mapping.node_of(rank)).unwrap_or_default();
        let nodes = (0..self.plan.hosts.len() as u32).filter(|node| plan.mapping.local_size(*node) > 0).collect();
        self.known.push(Known {
            id: plan.id,
            name: name.clone(),
            size: plan.size,
            node,
            nodes,
            own: ranks.clone(),
            ended: Ranks::new(),
            connected: Ranks::new(),
            dead: Ranks::new(),
            fences: 0,
            open: VecDeque::new(),
        });
        let spawner = plan.spawner.as_ref().map(|(job, rank)| (self.plan.name_of(job), Some(rank.0)));
        ToHelper::Register(Box::new(Registration {
            name,
            hosts: self.plan.hosts.clone(),
            node,
            spawner,
            job: plan.describe(),
            cpus,
        }))
    }

    /// Forgets a namespace.
    pub fn forget(&mut self, namespace: NamespaceId, steps: &mut Vec<Step>) {
        let Some(at) = self.known.iter().position(|known| known.id == namespace) else { return };
        steps.push(Step::Send(ToHelper::Deregister(self.known.remove(at).name)));
        // The answers to these requests would not arrive.
        let asking = self.asking.extract_if(|(asking, _), _| *asking == namespace).map(|(_, asked)| asked);
        let mut lost: Vec<_> = asking.collect();
        let is_lost = |(_, caller, _): &(_, Option<NamespaceId>, _)| *caller == Some(namespace);
        let (waiting, rest): (VecDeque<_>, _) = std::mem::take(&mut self.to_ask).into_iter().partition(is_lost);
        self.to_ask = rest;
        lost.extend(waiting.into_iter().map(|(asked, ..)| asked));
        for asked in lost {
            match asked.again(&self.plan).filter(|_| !self.known.is_empty()) {
                // The caller may have another namespace.
                Some(request) => self.to_ask.push_back((asked, None, request)),
                None => self.fail(&asked, steps),
            }
        }
        self.ask_next(steps);
    }

    /// The process of a rank here has ended.
    pub fn on_ended(&mut self, namespace: NamespaceId, rank: Rank, steps: &mut Vec<Step>) {
        let Some(known) = self.known.iter_mut().find(|known| known.id == namespace) else { return };
        known.own.remove(rank);
        known.ended.insert(rank);
        // libpmix stops waiting for a rank only when it sees the end of its connection. It does not see that of a rank that
        // it was told to forget.
        if !known.connected.remove(rank) {
            steps.push(Step::Send(ToHelper::Ended((known.name.clone(), Some(rank.0)))));
        }
        for fence in &mut known.open {
            fence.left.remove(rank);
        }
        known.advance(steps);
        // The rank no longer waits for the answer to its spawn.
        self.asking.remove(&(namespace, rank));
    }

    /// Ranks of a namespace have died, here or elsewhere, and others go on.
    pub fn on_died(&mut self, namespace: NamespaceId, ranks: &Ranks, steps: &mut Vec<Step>) {
        let Some(known) = self.known.iter_mut().find(|known| known.id == namespace) else { return };
        for rank in ranks.difference(&known.dead).iter() {
            steps.push(Step::Send(ToHelper::Died((known.name.clone(), Some(rank.0)))));
        }
        known.dead.union_with(ranks);
    }

    /// `scela-pmix` has sent a message.
    pub fn on_message(&mut self, message: ToAgent, steps: &mut Vec<Step>) {
        match message {
            ToAgent::Ready(Ok(version)) => tracing::debug!(version, "scela-pmix is ready"),
            ToAgent::Ready(Err(why)) => steps.push(Step::Failed(why)),
            ToAgent::Registered(name, result) => match self.known.iter().find(|known| known.name == name) {
                Some(known) => steps.push(Step::Prepared(known.id, result)),
                None => self.on_foreign(&name, result.is_ok(), steps),
            },
            ToAgent::Joined(process) => {
                self.note_connected(&process, true);
                self.report(&process, Request::Joined, steps);
            }
            ToAgent::SecondJoiner((name, rank), text) => {
                if let Some(rank) = rank.filter(|_| self.known.iter().any(|known| known.name == name)) {
                    steps.push(Step::SecondJoiner(Rank(rank), text));
                }
            }
            ToAgent::Finalized(call, process) => {
                self.note_connected(&process, false);
                self.report(&process, Request::Finalized, steps);
                steps.push(Step::Send(ToHelper::Answer(call, Outcome::Done)));
            }
            ToAgent::Abort(call, process, code, message) => {
                self.report(&process, Request::Abort { code, message }, steps);
                steps.push(Step::Send(ToHelper::Answer(call, Outcome::Done)));
            }
            ToAgent::Fence { call, members, data, collect, timeout_s } => {
                self.on_fence((call, collect), &members, data, timeout_s, steps);
            }
            ToAgent::Modex(call, process) => self.on_modex(call, process, steps),
            ToAgent::Publish { call, process, entries, once, range } => {
                let request = |rank| PmixRequest::Post { entries, once, range, rank };
                self.ask_for(Asked::Call(call), &process, request, steps);
            }
            ToAgent::Lookup { call, process, keys, wait, timeout_s } => {
                if wait && self.waiting_lookups() >= LOOKUPS_MAX {
                    return steps.push(Step::Send(ToHelper::Answer(call, Outcome::Failed(CallError::Exhausted))));
                }
                let request = |rank| PmixRequest::Read { keys, wait, timeout_s, rank };
                self.ask_for(Asked::Lookup { call, waits: wait }, &process, request, steps);
            }
            ToAgent::Unpublish(call, process, keys) => {
                self.ask_for(Asked::Call(call), &process, |rank| PmixRequest::Unpost { keys, rank }, steps);
            }
            ToAgent::Spawn(call, process, commands) => self.on_spawn(call, &process, commands, steps),
            ToAgent::Meet { call, purpose, members, data, timeout_s } => {
                self.on_meet((call, purpose), &members, data, timeout_s, steps);
            }
            ToAgent::Query(call, questions) => self.on_query(call, questions, steps),
            // The driver counts them.
            ToAgent::Alive => {}
            ToAgent::Got(call, data) => {
                if let Some(requester) = self.asked.remove(&call) {
                    steps.push(Step::Reply(requester, data));
                }
            }
        }
    }

    /// Notes that a rank here has joined PMIx, or finalized it.
    fn note_connected(&mut self, (name, rank): &ProcessName, is_connected: bool) {
        let known = self.known.iter_mut().find(|known| known.name == *name);
        if let (Some(known), Some(rank)) = (known, rank.map(Rank)) {
            if is_connected && known.own.contains(rank) {
                known.connected.insert(rank);
            } else {
                known.connected.remove(rank);
            }
        }
    }

    /// Passes a request of one of the ranks here to the core.
    fn report(&self, (name, rank): &ProcessName, request: Request, steps: &mut Vec<Step>) {
        let known = self.known.iter().find(|known| known.name == *name);
        // The agent may have reaped a rank before it reads that the rank has joined.
        if let (Some(known), Some(rank)) = (known, rank.map(Rank))
            && (known.own.contains(rank) || request == Request::Joined && known.ended.contains(rank))
        {
            steps.push(Step::Ask(known.id, rank, request));
        }
    }

    /// This node has arrived at a fence. A fence with a timeout is a meeting, because the tree's fences have none.
    fn on_fence(
        &mut self,
        (call, collect): (u64, bool),
        members: &[ProcessName],
        data: Bytes,
        timeout_s: u32,
        steps: &mut Vec<Step>,
    ) {
        let known = self.known.iter_mut().find(|known| timeout_s == 0 && known.is_whole(members));
        let Some(known) = known else {
            let data = if collect { data } else { Bytes::new() };
            return self.meet(Asked::Fence { call, collect }, (b"fence".to_vec(), timeout_s), members, data, steps);
        };
        let fence = Fence {
            call,
            collect,
            data,
            number: known.fences,
            left: Ranks::new(),
            failed: false,
            to_get: VecDeque::new(),
            getter: Rank(0),
            collected: BytesMut::new(),
        };
        known.fences = known.fences.wrapping_add(1);
        known.open.push_back(fence);
        if known.open.len() == 1 {
            known.enter(steps);
        }
    }

    /// A rank here asks for the data of a rank elsewhere.
    fn on_modex(&mut self, call: u64, (name, rank): ProcessName, steps: &mut Vec<Step>) {
        match (self.plan.job_of(&name), rank) {
            (Some(job), Some(rank)) => {
                let asked = Asked::Modex { call, job: job.to_owned(), rank: Rank(rank) };
                self.ask_again(asked, steps);
            }
            _ => steps.push(Step::Send(ToHelper::Answer(call, Outcome::Failed(CallError::NotFound)))),
        }
    }

    /// A rank here queries keys.
    fn on_query(&mut self, call: u64, questions: Vec<Question>, steps: &mut Vec<Step>) {
        let view = self.view(&|_, _| None);
        match view.jobs_of(&questions) {
            (jobs, true) => self.ask_again(Asked::Query { call, questions, jobs }, steps),
            (_, false) => steps.push(Step::Send(ToHelper::Answer(call, view.answer(&questions, &[], &[])))),
        }
    }

    /// The data for queries. A query without a namespace is about the only namespace here.
    fn view<'a>(&'a self, pid_of: &'a dyn Fn(&str, Rank) -> Option<u32>) -> View<'a> {
        let own = if let [known] = &self.known[..] { Some(known.name.as_str()) } else { None };
        View { plan: &self.plan, own, node: self.known.first().map_or(0, |known| known.node), pid_of }
    }

    /// A rank here spawns others. The rank itself makes the request, because the new ranks inherit from it.
    fn on_spawn(&mut self, call: u64, (name, rank): &ProcessName, commands: Vec<SpawnCommand>, steps: &mut Vec<Step>) {
        let known = self.known.iter().find(|known| known.name == *name);
        let key = known.zip(*rank).map(|(known, rank)| (known.id, Rank(rank)));
        let request = SpawnRequest { commands, preputs: Vec::new() };
        match key.filter(|key| !self.asking.contains_key(key) && request.check().is_ok()) {
            Some(key) => {
                self.asking.insert(key, Asked::Call(call));
                steps.push(Step::Ask(key.0, key.1, Request::Ask(RootRequest::Spawn(request))));
            }
            None => steps.push(Step::Send(ToHelper::Answer(call, Outcome::Failed(CallError::Error)))),
        }
    }

    /// Ranks here meet others.
    fn on_meet(
        &mut self,
        (call, purpose): (u64, Purpose),
        members: &[ProcessName],
        data: Bytes,
        timeout_s: u32,
        steps: &mut Vec<Step>,
    ) {
        let (asked, name) = match purpose {
            Purpose::Connect => {
                let names = members.iter().map(|(name, _)| name.clone()).collect();
                (Asked::Connect { call, names }, b"connect".to_vec())
            }
            Purpose::Disconnect => (Asked::Call(call), b"disconnect".to_vec()),
            Purpose::Group(name) => {
                (Asked::Group { call, members: members.to_vec() }, [b"group ", name.as_bytes()].concat())
            }
            Purpose::EndOfGroup(name) => (Asked::Call(call), [b"end of group ", name.as_bytes()].concat()),
        };
        self.meet(asked, (name, timeout_s), members, data, steps);
    }

    /// Asks the root for a meeting of these ranks.
    fn meet(
        &mut self,
        asked: Asked,
        (name, timeout_s): (Vec<u8>, u32),
        processes: &[ProcessName],
        data: Bytes,
        steps: &mut Vec<Step>,
    ) {
        let mut members: BTreeMap<&str, Option<Ranks>> = BTreeMap::new();
        for (name, rank) in processes {
            let Some(job) = self.plan.job_of(name) else { return self.fail(&asked, steps) };
            match (members.entry(job).or_insert_with(|| Some(Ranks::new())), rank) {
                (Some(ranks), Some(rank)) => drop(ranks.insert(Rank(*rank))),
                (all, None) => *all = None,
                (None, Some(_)) => {}
            }
        }
        let mut caller = None;
        let here = |(job, ranks): (&&str, &Option<Ranks>)| {
            let known = self.known.iter().find(|known| self.plan.job_of(&known.name) == Some(job))?;
            let here = ranks.as_ref().map_or_else(|| known.own.clone(), |ranks| ranks.intersection(&known.own));
            caller = caller.or((!here.is_empty()).then_some(known.id));
            (!here.is_empty()).then(|| ((*job).to_owned(), here))
        };
        let here = members.iter().filter_map(here).collect();
        let members = members.into_iter().map(|(job, ranks)| (job.to_owned(), ranks)).collect();
        self.ask(asked, caller, PmixRequest::Meet(Meeting { name, members, here, data, timeout_s }), steps);
    }

    /// Asks the root. `caller` is the namespace of the calling ranks, if libpmix names them. The root's answer arrives unless
    /// this namespace ends before.
    fn ask(&mut self, asked: Asked, caller: Option<NamespaceId>, request: PmixRequest, steps: &mut Vec<Step>) {
        if self.to_ask.len() >= QUEUE_MAX {
            let refuse = |call| Step::Send(ToHelper::Answer(call, Outcome::Failed(CallError::Exhausted)));
            return steps.extend(asked.call().map(refuse));
        }
        self.to_ask.push_back((asked, caller, request));
        self.ask_next(steps);
    }

    /// Asks the root on behalf of a rank here.
    fn ask_for(
        &mut self,
        asked: Asked,
        (name, rank): &ProcessName,
        request: impl FnOnce(Rank) -> PmixRequest,
        steps: &mut Vec<Step>,
    ) {
        match (self.known.iter().find(|known| known.name == *name), rank) {
            (Some(known), Some(rank)) => self.ask(asked, Some(known.id), request(Rank(*rank)), steps),
            _ => self.fail(&asked, steps),
        }
    }

    /// Makes a request that may be repeated. libpmix does not name the caller.
    fn ask_again(&mut self, asked: Asked, steps: &mut Vec<Step>) {
        match asked.again(&self.plan) {
            Some(request) => self.ask(asked, None, request, steps),
            None => self.fail(&asked, steps),
        }
    }

    /// The number of lookups that wait for their keys.
    fn waiting_lookups(&self) -> usize {
        let all = self.asking.values().chain(self.to_ask.iter().map(|(asked, ..)| asked));
        all.filter(|asked| matches!(asked, Asked::Lookup { waits: true, .. })).count()
    }

    /// Sends waiting requests to the root, each under a free number: the core takes one request at a time under a number.
    fn ask_next(&mut self, steps: &mut Vec<Step>) {
        let Some(first) = self.known.first().map(|known| known.id) else { return };
        while !self.to_ask.is_empty() {
            let is_free = |rank: &Rank| self.known.iter().all(|known| !self.asking.contains_key(&(known.id, *rank)));
            let mut numbers = (0..CALLS_MAX).map(|number| Rank(NODE_REQUESTS_FROM + number));
            let Some(number) = numbers.find(is_free) else { return };
            if let Some((asked, caller, request)) = self.to_ask.pop_front() {
                let namespace = caller.unwrap_or(first);
                self.asking.insert((namespace, number), asked);
                steps.push(Step::Ask(namespace, number, Request::Ask(RootRequest::Pmix(request))));
            }
        }
    }

    /// The root has answered.
    fn on_root_answer(&mut self, asked: Asked, answer: Answer, pid_of: PidOf<'_>, steps: &mut Vec<Step>) {
        let (call, outcome) = match (asked, answer) {
            (Asked::Modex { call, .. }, Answer::Pmix(PmixAnswer::Modex(Some(data)))) => (call, Outcome::Data(data)),
            (Asked::Query { call, questions, .. }, Answer::Pmix(PmixAnswer::Jobs { names, described })) => {
                let pid_of = |job: &str, rank| {
                    let known = self.known.iter().find(|known| self.plan.job_of(&known.name) == Some(job))?;
                    pid_of(known.id, rank)
                };
                (call, self.view(&pid_of).answer(&questions, &names, &described))
            }
            (Asked::Call(call), Answer::Pmix(PmixAnswer::Posted(Ok(())) | PmixAnswer::Met(Some(_)))) => {
                (call, Outcome::Done)
            }
            (Asked::Lookup { call, .. }, Answer::Pmix(PmixAnswer::Read(entries))) => (call, Outcome::Found(entries)),
            (Asked::Call(call), Answer::Spawned(Ok(spawned))) => {
                (call, Outcome::Spawned(self.plan.name_of(&spawned.job)))
            }
            (Asked::Fence { call, collect }, Answer::Pmix(PmixAnswer::Met(Some(met)))) => {
                let data = if collect { met.data.concat().into() } else { Bytes::new() };
                (call, Outcome::Data(data))
            }
            (Asked::Group { call, members }, Answer::Pmix(PmixAnswer::Met(Some(met)))) => {
                (call, Outcome::Group(met.number, members, met.data.concat().into()))
            }
            (Asked::Connect { call, names }, Answer::Pmix(PmixAnswer::Met(Some(_)))) => {
                return self.connect(call, names, steps);
            }
            (Asked::Description(name), Answer::Pmix(PmixAnswer::Described(Some(job)))) => {
                let spawner = job.spawner.as_ref().map(|(job, rank)| (self.plan.name_of(job), Some(rank.0)));
                let node = self.known.first().map_or(0, |known| known.node);
                let hosts = self.plan.hosts.clone();
                let registration = Registration { name, hosts, node, spawner, job: *job, cpus: Vec::new() };
                return steps.push(Step::Send(ToHelper::Register(Box::new(registration))));
            }
            (asked, answer) => match (asked.call(), &answer) {
                (Some(call), Answer::Pmix(PmixAnswer::TimedOut)) => (call, Outcome::Failed(CallError::TimedOut)),
                (Some(call), Answer::Pmix(PmixAnswer::Posted(Err(NameError::Taken)))) => {
                    (call, Outcome::Failed(CallError::Taken))
                }
                (Some(call), Answer::Pmix(PmixAnswer::Posted(Err(NameError::Full)) | PmixAnswer::Full)) => {
                    (call, Outcome::Failed(CallError::Exhausted))
                }
                _ => return self.fail(&asked, steps),
            },
        };
        steps.push(Step::Send(ToHelper::Answer(call, outcome)));
    }

    /// A call cannot be answered.
    fn fail(&mut self, asked: &Asked, steps: &mut Vec<Step>) {
        let why = if matches!(asked, Asked::Modex { .. }) { CallError::NotFound } else { CallError::Error };
        match asked {
            Asked::Description(name) => self.on_foreign(name, false, steps),
            asked => {
                let answer = asked.call().map(|call| Step::Send(ToHelper::Answer(call, Outcome::Failed(why))));
                steps.extend(answer);
            }
        }
    }

    /// All ranks have met. libpmix must know their namespaces before they go on.
    fn connect(&mut self, call: u64, mut names: BTreeSet<String>, steps: &mut Vec<Step>) {
        names.retain(|name| !self.foreign.contains(name) && self.known.iter().all(|known| known.name != *name));
        if names.is_empty() {
            return steps.push(Step::Send(ToHelper::Answer(call, Outcome::Done)));
        }
        for name in &names {
            let is_asked = self.connecting.iter().any(|(_, names)| names.contains(name));
            let asked = Asked::Description(name.clone());
            if let Some(request) = asked.again(&self.plan).filter(|_| !is_asked) {
                self.to_ask.push_back((asked, None, request));
            }
        }
        self.connecting.push((call, names));
        self.ask_next(steps);
    }

    /// The registration of a namespace without ranks here has succeeded or failed.
    fn on_foreign(&mut self, name: &str, is_known: bool, steps: &mut Vec<Step>) {
        if is_known {
            self.foreign.insert(name.to_owned());
        }
        self.connecting.retain_mut(|(call, names)| {
            let was_awaited = names.remove(name);
            if was_awaited && !is_known {
                steps.push(Step::Send(ToHelper::Answer(*call, Outcome::Failed(CallError::Error))));
                return false;
            }
            if names.is_empty() {
                steps.push(Step::Send(ToHelper::Answer(*call, Outcome::Done)));
            }
            !names.is_empty()
        });
    }

    /// A rank of another node asks for the data of a rank here.
    pub fn on_asked(&mut self, namespace: NamespaceId, rank: Rank, requester: Requester) -> Step {
        let Some(known) = self.known.iter().find(|known| known.id == namespace && known.own.contains(rank)) else {
            return Step::Reply(requester, None);
        };
        self.last_asked += 1;
        self.asked.insert(self.last_asked, requester);
        Step::Send(ToHelper::Ask(self.last_asked, (known.name.clone(), Some(rank.0))))
    }

    /// The core has answered a rank. `pid_of` finds the pids of the ranks here. Returns the answer if the relay has not asked
    /// for it.
    pub fn on_answer(
        &mut self,
        (namespace, rank): (NamespaceId, Rank),
        answer: Answer,
        pid_of: PidOf<'_>,
        steps: &mut Vec<Step>,
    ) -> Option<Answer> {
        let known = self.known.iter_mut().find(|known| known.id == namespace);
        match (answer, known) {
            (answer @ (Answer::Released | Answer::FenceFailed), Some(known)) => {
                let Some(fence) = known.open.front_mut().filter(|fence| fence.left.contains(rank)) else {
                    return Some(answer);
                };
                fence.left.remove(rank);
                fence.failed |= answer == Answer::FenceFailed;
                known.advance(steps);
            }
            (Answer::Got(value), Some(known)) => {
                let Some(fence) =
                    known.open.front_mut().filter(|fence| fence.getter == rank && !fence.to_get.is_empty())
                else {
                    return Some(Answer::Got(value));
                };
                fence.on_got(value.as_deref());
                known.advance(steps);
            }
            (answer, _) => {
                let Some(asked) = self.asking.remove(&(namespace, rank)) else { return Some(answer) };
                self.on_root_answer(asked, answer, pid_of, steps);
                self.ask_next(steps);
            }
        }
        None
    }
}

impl Asked {
    /// The number of the call.
    fn call(&self) -> Option<u64> {
        match self {
            Self::Call(call)
            | Self::Lookup { call, .. }
            | Self::Modex { call, .. }
            | Self::Query { call, .. }
            | Self::Fence { call, .. }
            | Self::Group { call, .. }
            | Self::Connect { call, .. } => Some(*call),
            Self::Description(_) => None,
        }
    }

    /// The request, if it may be repeated.
    fn again(&self, plan: &PmixPlan) -> Option<PmixRequest> {
        match self {
            Self::Description(name) => plan.job_of(name).map(|job| PmixRequest::Describe { job: job.into() }),
            Self::Modex { job, rank, .. } => Some(PmixRequest::Modex { job: job.as_bytes().to_vec(), rank: *rank }),
            Self::Query { jobs, .. } => Some(PmixRequest::Jobs { described: jobs.clone() }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
