//! A child sends random messages, and is lost: the session still ends once the other agents have done their part.

use std::collections::VecDeque;

use super::*;
use crate::core::failure_policy::FailurePolicy;
use crate::core::limits::FAILURES_SINGLE_MAX;
use crate::core::stats::LevelStats;
use crate::core::tests::Random;
use crate::core::trace::TraceScope;

// The tree is 0 - 1 (2), 3 (4).
const HOSTILE: AgentId = AgentId(1);
const HEIR: AgentId = AgentId(2);
const HONEST: AgentId = AgentId(3);
/// The number of agents. The last one is a spare.
const AGENTS: u32 = 4;
const RANKS: u32 = 6;
/// More fences than anyone enters.
const MANY_FENCES: u32 = 1000;

/// The root with a hostile and an honest child.
struct Session {
    root: Root,
    random: Random,
    now: Time,
    over: bool,
    /// Agents of the hostile subtree whose links are up.
    linked: Vec<AgentId>,
    /// The subtrees whose agents may join.
    adopted: Vec<Subtree>,
    /// The ranks of the honest subtree that have not been reported as ended, and the messages that it has still to send.
    running: LiteMap<NamespaceId, Ranks>,
    unsent: VecDeque<Up>,
    /// The events so far, for a failed assertion.
    log: Vec<String>,
}

impl Session {
    fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        for _ in 0..8 {
            random.below(2);
        }
        let mut settings = settings(RANKS, AGENTS - 1, 2);
        settings.tree = Subtree::whole(AGENTS, 2);
        settings.nodes = (1..=AGENTS).map(|agent| (AgentId(agent), agent)).collect();
        settings.session.on_failure = FailurePolicy::ALL[random.below(4) as usize];
        settings.session.has_ports = random.below(4) > 0;
        settings.session.stats = random.below(2) == 0;
        settings.session.trace = (random.below(2) == 0).then(|| TraceScope::of(AGENTS));
        settings.max_restarts = random.below(3);
        let log = vec![format!("seed {seed}: {:?}", settings.session)];
        let mut session = Self {
            root: Root::new(settings),
            random,
            now: T,
            over: false,
            linked: vec![HOSTILE],
            adopted: Vec::new(),
            running: LiteMap::new(),
            unsent: VecDeque::from([Up::Ready]),
            log,
        };
        session.hand(RootInput::Timeout);
        if session.random.below(4) > 0 {
            session.hand(RootInput::FromChild(HOSTILE, Up::Ready));
            session.answer();
        }
        session
    }

    fn hand(&mut self, input: RootInput) {
        self.log.push(format!("{:?} {input:?}", self.now));
        let mut actions = Vec::new();
        self.root.handle(self.now, input, &mut actions);
        self.root.check_invariants();
        for action in actions {
            match action {
                RootAction::ToChild(HONEST, message) => self.take(message),
                RootAction::CloseChild(HONEST, why) => panic!("the honest child is cut off: {why}\n{:#?}", self.log),
                RootAction::CloseChild(child, _) => self.linked.retain(|linked| *linked != child),
                RootAction::Adopt(subtrees) => self.adopted = subtrees,
                RootAction::Over(_) => self.over = true,
                RootAction::ToChild(..) | RootAction::Notice(_) | RootAction::WakeAt(_) => {}
                RootAction::EndGuardian(agent) => assert_ne!(agent, HONEST, "{:#?}", self.log),
            }
        }
    }

    /// The honest subtree obeys.
    fn take(&mut self, message: Down) {
        match message {
            Down::Launch(plan) => {
                let ranks = plan.placement.iter().fold(Ranks::new(), |mut all, (_, ranks)| {
                    all.union_with(ranks);
                    all
                });
                if !ranks.is_empty() {
                    self.unsent.push_back(Up::Started { namespace: plan.id });
                }
                self.running.insert(plan.id, ranks);
            }
            Down::MoveIn { namespace, ranks, .. } => {
                self.running.entry(namespace).or_default().union_with(&ranks);
            }
            Down::Undo { namespace } | Down::Forget { namespace } => drop(self.running.remove(&namespace)),
            Down::Clear { .. } => {
                self.running.clear();
                self.unsent.push_back(Up::Cleared { leftovers: 0 });
            }
            Down::End { .. } if self.root.children.not_ended().any(|child| child == HONEST) => {
                self.running.clear();
                self.unsent = VecDeque::from([Up::Ended { leftovers: 0, timing: Box::default() }]);
                if self.root.session.has_last_reports() {
                    let level = LevelStats { members: 1, ..LevelStats::default() };
                    self.unsent.push_back(Up::Stats(Box::new(Stats { levels: vec![level], spans: Vec::new() })));
                }
            }
            _ => {}
        }
    }

    /// The honest subtree sends a message that is due. Returns false if none is.
    fn answer(&mut self) -> bool {
        let message = self.unsent.pop_front();
        let is_sent = message.is_some();
        if let Some(message) = message {
            self.hand(RootInput::FromChild(HONEST, message));
        }
        is_sent
    }

    /// All ranks of the honest subtree that run end with code 0. Returns false if there are none.
    fn end_ranks(&mut self) -> bool {
        let running = std::mem::take(&mut self.running);
        let mut any = false;
        for (namespace, ranks) in running.into_iter().filter(|(_, ranks)| !ranks.is_empty()) {
            any = true;
            self.hand(RootInput::FromChild(
                HONEST,
                Up::Exited { namespace, fences: MANY_FENCES, unfinished: false, ranks },
            ));
        }
        any
    }

    /// Time passes until the next deadline. Returns false if there is none.
    fn wait(&mut self) -> bool {
        let Some(at) = self.root.wake_at else { return false };
        self.now = self.now.max(at);
        self.hand(RootInput::Timeout);
        true
    }

    fn some_ranks(&mut self) -> Ranks {
        // Mostly its own, 0 to 3.
        let first = if self.random.below(8) == 0 { self.random.below(RANKS + 1) } else { self.random.below(3) };
        Ranks::range(first..first + self.random.below(3))
    }

    fn some_cause(&mut self) -> Cause {
        match self.random.below(7) {
            0 => Cause::NotStarted { why: not_found() },
            1 | 2 => Cause::Lost { why: LossReason::Closed },
            3 => Cause::Terminated { signal: 15 },
            4 => Cause::Signal { signal: 9, core: false, out_of_memory: String::new() },
            5 => Cause::Code(3),
            _ => Cause::Abort { code: 1, message: String::new() },
        }
    }

    fn some_request(&mut self) -> RootRequest {
        let command = SpawnCommand {
            program: b"p".to_vec(),
            args: Vec::new(),
            nprocs: 1 + self.random.below(6),
            info: Vec::new(),
        };
        match self.random.below(3) {
            0 => RootRequest::Connect { job: b"scela-77_0".to_vec() },
            1 => RootRequest::GetFromJob { job: b"scela-77_0".to_vec(), key: b"k".to_vec() },
            _ => RootRequest::Spawn(SpawnRequest { commands: vec![command], preputs: Vec::new() }),
        }
    }

    fn some_message(&mut self) -> Up {
        let namespace = NamespaceId([0, 0, 0, 1, 2][self.random.below(5) as usize]);
        let number = self.random.below(3);
        let agent = AgentId([1, 1, 2, 2, 3, 4, 9][self.random.below(7) as usize]);
        let ranks = self.some_ranks();
        let requester = Requester { agent, namespace, rank: Rank(self.random.below(RANKS)), number };
        match self.random.below(40) {
            0..=2 => Up::Ready,
            3..=5 => Up::Started { namespace },
            6 => Up::Contact { namespace },
            7 => Up::Gathered { namespace, number, ranks, contribution: Contribution::Puts(Puts::new()) },
            8 => Up::Put { namespace, number, puts: Puts::new() },
            9 => Up::Get { namespace, key: Bytes::from_static(b"k") },
            10 => Up::Waiting { namespace, number },
            11..=15 => Up::Exited { namespace, fences: number, unfinished: self.random.below(2) == 0, ranks },
            16..=18 => Up::Cleared { leftovers: 0 },
            19 | 20 => Up::Died { namespace, ranks },
            21 | 22 => Up::MovedOut { namespace, agent, ranks },
            23 => Up::Rejoined { has_plan: self.random.below(2) == 0, fences: open(&[(namespace, number)]) },
            24..=32 => {
                let ranks = if self.random.below(2) == 0 { Ranks::new() } else { ranks };
                Up::Failed(Failure { at: self.now, agent, namespace, ranks, cause: self.some_cause() })
            }
            33 => Up::FailedMore { count: u64::from(FAILURES_SINGLE_MAX) },
            34..=36 => Up::Ask { requester, request: self.some_request() },
            37 => Up::Inquire(Inquiry { to: agent, requester, kind: InquiryKind::NodeForget }),
            38 if self.root.is_ending() => Up::Stats(Box::default()),
            _ if self.random.below(2) == 0 => Up::Contact { namespace },
            _ => Up::Ended { leftovers: 0, timing: Box::default() },
        }
    }

    /// A step of any agent, or time passes.
    fn step(&mut self) {
        match self.random.below(8) {
            0 | 1 => drop(self.answer()),
            2 if self.random.below(4) == 0 => drop(self.end_ranks()),
            3 => self.now += at(u64::from(self.random.below(60))),
            // The honest agents are never late.
            4 if self.random.below(4) == 0 && self.unsent.is_empty() => drop(self.wait()),
            5 if self.adopted.iter().any(|subtree| subtree.head() == HEIR) && self.random.below(2) == 0 => {
                self.adopted.clear();
                self.linked.push(HEIR);
                self.hand(RootInput::ChildJoined(HEIR));
            }
            6 if self.random.below(6) == 0 => self.lose_hostile(),
            7 if self.random.below(8) == 0 => {
                let input = match self.random.below(4) {
                    0 => RootInput::Interrupt(2),
                    1 => RootInput::Interrupt(SIGTERM),
                    2 => RootInput::Survey,
                    _ => RootInput::Stopped(Duration::from_secs(10)),
                };
                self.hand(input);
            }
            _ => {
                let message = self.some_message();
                if let Some(from) = self.linked.last().copied() {
                    self.hand(RootInput::FromChild(from, message));
                }
            }
        }
    }

    fn lose_hostile(&mut self) {
        for child in std::mem::take(&mut self.linked) {
            let lost = if self.random.below(2) == 0 { RootInput::ChildLost } else { RootInput::ChildOutputLost };
            self.hand(lost(child, LossReason::Closed));
        }
    }

    /// The hostile agents are lost. The honest ones do their part, and time passes.
    fn finish(&mut self) {
        self.lose_hostile();
        // No deadline is longer than a day.
        let end = self.now + Duration::from_secs(24 * 60 * 60);
        while !self.over {
            if matches!(self.root.phase, Phase::Flushing { .. }) && !self.root.output_done {
                self.hand(RootInput::OutputDone);
                continue;
            }
            let goes_on = self.answer() || self.end_ranks() || self.wait();
            assert!(goes_on, "the session waits for ever\n{:#?}\n{:#?}", self.log, self.root.phase);
            assert!(self.now < end, "the session does not end\n{:#?}\n{:#?}", self.log, self.root.phase);
        }
    }
}

#[test]
fn a_session_ends_whatever_a_lost_child_has_reported() {
    let (mut running, mut restarting) = (0, 0);
    for seed in 1..5_000 {
        let mut session = Session::new(seed);
        for _ in 0..session.random.below(40) {
            if !session.over {
                session.step();
            }
        }
        running += u32::from(matches!(session.root.phase, Phase::Running));
        restarting += u32::from(matches!(session.root.phase, Phase::Restarting { .. }));
        session.finish();
    }
    assert!(running > 500 && restarting > 20, "{running} sessions were running, {restarting} restarting");
}
