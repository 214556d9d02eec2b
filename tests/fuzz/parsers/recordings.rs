//! Recordings, and the cores themselves: messages of peers that break every rule.

use std::collections::VecDeque;
use std::time::Duration;

use nla::core::{
    AcceleratorPlan, Action, Agent, AgentId, BindingPolicy, CachePolicy, CleanShm, CollectPlan, CommandPlan,
    DirectOutput, DriverCounts, Exit, FailurePolicy, Inherit, Input, NamespaceId, NamespacePlan, RankSessions, Root,
    RootAction, RootInput, RootSettings, SessionPlan, StagePlan, Subtree, Time, TraceScope, Up, owners, place,
};
use nla::wire::{decode, replay};
use pmi::{Mapping, Rank, Ranks};

/// The most agents whose actions a check looks at: a tree of millions is only arithmetic.
const AGENTS: u32 = 4;
const FANOUT: u32 = 2;
const SIGKILL: i32 = 9;
/// The most ranks whose ends follow from one signal.
const RANKS_ENDED_MAX: usize = 64;
/// Actions of one turn.
const ACTIONS_MAX: usize = 1 << 16;

/// Replays the bytes, then hands every message in them to a new agent and a new root.
pub(super) fn check(data: &[u8]) {
    let _ = replay(data);
    let frames = || Frames(data);
    let tree = Subtree::whole(AGENTS, FANOUT);
    for number in 1..=AGENTS {
        let Some(place) = tree.of(AgentId(number)) else { continue };
        let mut agent = Agent::new(place);
        let mut now = Time::ZERO;
        for frame in frames() {
            let Some((at, input)) = from_peer(frame) else { continue };
            now = now.max(at);
            turn(&mut agent, now, input);
            turn(&mut agent, now, Input::Timeout);
        }
    }
    let mut root = root();
    let mut now = Time::ZERO;
    for frame in frames() {
        let Ok((at, Input::FromChild(child, up))) = decode::<(Time, Input)>(frame) else { continue };
        now = now.max(bounded(at));
        root_turn(&mut root, now, RootInput::FromChild(child, up));
        root_turn(&mut root, now, RootInput::Timeout);
    }
}

/// Returns the time and the input in a frame, if the input is one of which a peer decides the content.
fn from_peer(frame: &[u8]) -> Option<(Time, Input)> {
    let (at, input): (Time, Input) = decode(frame).ok()?;
    let is_peers = matches!(
        input,
        Input::FromParent(_)
            | Input::FromChild(..)
            | Input::ChildJoined(_)
            | Input::ChildLost(..)
            | Input::ParentLost { .. }
    );
    is_peers.then(|| (bounded(at), input))
}

/// The driver's clock never shows the end of time.
fn bounded(at: Time) -> Time {
    at.min(Duration::from_secs(10 * 365 * 24 * 3600))
}

/// Hands an input to an agent, and then the inputs with which a driver answers its actions.
fn turn(agent: &mut Agent, now: Time, input: Input) {
    let mut inputs = VecDeque::from([input]);
    while let Some(input) = inputs.pop_front() {
        let mut actions: Vec<Action> = Vec::new();
        agent.handle(now, input, &mut actions);
        agent.check_invariants();
        assert!(actions.len() <= ACTIONS_MAX);
        actions.into_iter().for_each(|action| inputs.extend(done(action)));
    }
}

/// Returns the inputs that follow from an action.
fn done(action: Action) -> Vec<Input> {
    match action {
        Action::Start(plan, ranks, _) if !ranks.is_empty() => vec![Input::Started(plan.id, ranks)],
        Action::Signal(namespace, ranks, SIGKILL) => {
            let ended = |rank: Rank| {
                Input::RankEnded(
                    namespace,
                    rank,
                    Exit::Signal { signal: SIGKILL, core: false, out_of_memory: String::new() },
                )
            };
            ranks.iter().take(RANKS_ENDED_MAX).map(ended).collect()
        }
        Action::Sweep => {
            vec![
                Input::Swept { leftovers: 0 },
                Input::Drained { counted: Box::new(DriverCounts::default()), spans: Vec::new() },
            ]
        }
        _ => Vec::new(),
    }
}

fn root_turn(root: &mut Root, now: Time, input: RootInput) {
    let mut actions: Vec<RootAction> = Vec::new();
    root.handle(now, input, &mut actions);
    root.check_invariants();
    assert!(actions.len() <= ACTIONS_MAX);
}

/// Returns a root whose agents have joined and were sent a plan of two ranks each.
fn root() -> Root {
    let tree = Subtree::whole(AGENTS, FANOUT);
    let nodes = (1..=AGENTS).map(|agent| (AgentId(agent), agent - 1));
    let size = 2 * AGENTS;
    let placement = place(size, &(1..=AGENTS).map(AgentId).collect::<Vec<_>>());
    let command = CommandPlan {
        nprocs: size,
        program: b"a".to_vec(),
        staged: None,
        args: Vec::new(),
        inherit: Inherit::All,
        set: Vec::new(),
        wdir: b"/".to_vec(),
    };
    let first = NamespacePlan {
        id: NamespaceId::FIRST,
        kvsname: "kvs_0".to_owned(),
        size,
        universe: -1,
        spawner: None,
        commands: vec![command],
        mapping: Mapping::from_nodes((0..size).map(|rank| rank / 2)),
        owners: owners(&placement, &nodes.clone().collect()),
        placement,
        preputs: Vec::new(),
        stdin: Ranks::new(),
    };
    let session = SessionPlan {
        environment: Vec::new(),
        shell: Vec::new().into(),
        hold_lines: true,
        direct: [DirectOutput::WithPipe, DirectOutput::Never],
        pmi_port: false,
        kill_grace: Duration::from_secs(5),
        cache: CachePolicy::default(),
        stats: true,
        trace: Some(TraceScope::of(2)),
        pmix: None,
        binding: BindingPolicy::default(),
        accelerators: AcceleratorPlan::default(),
        clean_shm: CleanShm::Mpi,
        on_failure: FailurePolicy::Continue,
        dead_time: Duration::from_secs(5),
        has_ports: true,
        rank_sessions: RankSessions::All,
        piece_bytes: None,
        stage: StagePlan::default(),
        profile: false,
        collect: CollectPlan::default(),
        sent: Duration::ZERO,
    };
    let mut root = Root::new(RootSettings {
        tree,
        session,
        first,
        nodes: nodes.collect(),
        stuck_after: None,
        exit_timeout: None,
        expects_pmi: false,
        max_restarts: 0,
        packs: true,
    });
    for child in tree.children() {
        root_turn(&mut root, Time::ZERO, RootInput::FromChild(child.head(), Up::Ready));
    }
    root
}

struct Frames<'a>(&'a [u8]);

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (length, rest) = self.0.split_first_chunk::<4>()?;
        let (frame, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        self.0 = rest;
        Some(frame)
    }
}
