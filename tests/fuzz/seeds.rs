//! Inputs in binary formats, made by the encoders of today: they stay valid when a format changes.
//!
//! They are checked and mutated like the kept corpus. `SCELA_FUZZ_SEEDS=DIR` writes them to `DIR/TARGET`, for libFuzzer.

use std::num::NonZeroU32;
use std::time::Duration;

use bytes::Bytes;
use launcher::pool::absences::{AbsenceKind, Absent, AbsentNodes};
use launcher::pool::message::{
    Ask, Description, JobRefusal, JobState, NodeChange, PoolState, Request, ToClient, ToController,
};
use launcher::pool::waits::{Needs, Room, Sharing, Unusable, Wait, Why};
use launcher::run::front::{FromJob, FromLauncher, ToJob, ToLauncher};
use nla::bootstrap::{
    Below, BootCommand, BootOrder, BootReport, HostAt, Joining, Links, MARKER, Method, Place, RemoteProgram, Sent,
    StartFailure, StartPhase, StartTimes,
};
use nla::core::{
    AcceleratorPlan, Agent, AgentId, BindingNote, BindingPolicy, BindingReport, Blob, BoundRanks, CachePolicy, Cause,
    CleanShm, CommandPlan, Contribution, CpuSet, DeviceRemedy, DirectOutput, Down, Failure, FailurePolicy, GuardianAt,
    Inherit, Input, Inquiry, InquiryKind, LackOfDevices, Level, LowLimit, NamespaceId, NamespacePlan, NotStartedReason,
    Piece, RankGroup, RankSessions, ReleaseContent, Reply, Requester, RingPosition, RingSegment, SessionPlan, SpanKind,
    StagePlan, StagedFile, StagedKind, Stats, Subtree, Timing, TraceScope, TraceSpan, Up, Update, pack,
};
use nla::core::{
    CacheBounds, CollectPattern, CollectPlan, Collected, CollectedFile, InMemory, StageUp, StagedTree, TreeEntry,
    TreeKind, hashes_message, part_header,
};
use nla::link::{ListensAt, LocalSocket, Reach};
use nla::pmix::message::{Fact, Outcome, Purpose, Registration, Row, ToAgent, ToHelper, write_frame};
use nla::sys::Surroundings;
use nla::sys::pmix::{CallError, Question};
use nla::wire::{Content, Hello, Lane, SessionId, TreePosition, TurnFrame, Welcome, decode, encode, framed};
use pmi::{
    Entry, Epoch, Keys, LookUpResult, Mapping, NameError, PostRange, Puts, Rank, Ranks, RootRequest, SpawnCommand,
    SpawnRequest,
};

const NS: NamespaceId = NamespaceId(0);

/// Returns a target's inputs; none for targets whose inputs are text.
pub(crate) fn of(target: &str) -> Vec<Vec<u8>> {
    match target {
        "boards" => boards(),
        "boot" => boot(),
        "lanes" => lanes(),
        "mappings" => mappings(),
        "messages" => messages(),
        "pieces" => pieces(),
        "pmix" => pmix(),
        "pools" => pools(),
        "profiles" => profiles(),
        "recordings" => vec![recording()],
        "staging" => staging(),
        "shell_channel" => vec![shell_channel()],
        _ => Vec::new(),
    }
}

fn puts() -> Puts {
    let mut puts = Puts::new();
    puts.push(Rank(1), b"key-1", b"value");
    puts.push(Rank(1), b"k", b"");
    puts
}

fn epoch() -> Epoch {
    Epoch::from_entries([(&b"key-1"[..], &b"value"[..]), (b"k", b""), (b"long", &[b'v'; 40])])
}

fn boards() -> Vec<Vec<u8>> {
    let mut log = epoch().bytes().to_vec();
    log.resize(log.len().next_multiple_of(64), 0);
    let at = log.len();
    log.extend(pmi::segment::directory([(0, epoch().bytes().len() as u64)]));
    log.push(at as u8);
    let keys = encode(&keys());
    vec![puts().bytes().to_vec(), epoch().bytes().to_vec(), log, keys[2..].to_vec()]
}

/// Returns packed pieces after their lengths.
fn pieces() -> Vec<Vec<u8>> {
    let packed = |bytes: &[u8]| [&(bytes.len() as u16).to_le_bytes(), &pack(bytes).expect("it repeats")[..]].concat();
    let cards: String =
        (0..40).map(|rank| format!("P{rank}-businesscard port#3{rank}$ifname#10.1.0.{rank}$")).collect();
    vec![packed(cards.as_bytes()), packed(&[0; 300]), packed(&b"abc".repeat(50))]
}

/// Returns a list of keys: `[length u16][key]` for each.
fn keys() -> Keys {
    Keys::from_bytes(Bytes::from_static(b"\x05\0key-1\x01\0k")).expect("two keys")
}

fn mappings() -> Vec<Vec<u8>> {
    let mapping = |nodes: &[u32]| encode(&Mapping::from_nodes(nodes.iter().copied()));
    let ranks: Ranks = "0-3,7,9-1000".parse().expect("a set of ranks");
    let mut inputs = vec![mapping(&[0, 0, 1, 1]), mapping(&[0, 1, 0, 1, 5]), encode(&ranks), b"0-3,7".to_vec()];
    inputs.extend(["0,0,1-3,2*4", "(vector,(0,2,2),(2,1,8))"].map(|text| text.as_bytes().to_vec()));
    inputs
}

fn lanes() -> Vec<Vec<u8>> {
    let stream = |lane: Lane| [&[lane as u8], &*framed(b"one"), &framed(b""), &framed(&[7; 90])].concat();
    let mut inputs: Vec<Vec<u8>> = Lane::ALL.map(stream).to_vec();
    for content in [Content::Alive, Content::Grant(Lane::Stdout, 4096), Content::Piece(Lane::Board, b"piece")] {
        let mut plain = Vec::new();
        content.write(&mut plain);
        inputs.push(plain);
    }
    inputs
}

/// Returns pieces, and messages of them.
fn profiles() -> Vec<Vec<u8>> {
    let pieces: [&[u8]; 4] = [
        &[5, 100, 0, 0, 0, 0],
        &[5, 100, 0, 2, 0, 0, 2, 200, 1, 1, 9, 1, 1],
        &[6, 100, 1, 1, 9, 1, 4, 255, 255, 255, 255, 255, 255, 255, 255, 255, 1, 3],
        &[6, 100, 0, 1, 9, 1, 198, 1, 0, 1],
    ];
    let message: Vec<u8> = pieces[1..].iter().flat_map(|piece| framed(piece)).collect();
    pieces.iter().map(|piece| piece.to_vec()).chain([message]).collect()
}

fn plan() -> NamespacePlan {
    let placement = vec![(AgentId(1), Ranks::range(0..2)), (AgentId(2), Ranks::range(2..4))];
    let command = CommandPlan {
        nprocs: 4,
        program: b"./a".to_vec(),
        staged: Some(b"bin/a".to_vec()),
        args: vec![b"x".to_vec(), Vec::new()],
        inherit: Inherit::Names(vec![b"HOME".to_vec()]),
        set: vec![(b"A".to_vec(), b"1".to_vec())],
        wdir: b"/tmp".to_vec(),
    };
    NamespacePlan {
        id: NS,
        kvsname: "kvs_1".to_owned(),
        size: 4,
        universe: 8,
        spawner: Some(("kvs_0".to_owned(), Rank(1))),
        commands: vec![command],
        mapping: Mapping::from_nodes([0, 0, 0, 0]),
        placement,
        owners: vec![(AgentId(2), AgentId(1))],
        preputs: vec![(b"PARENT_ROOT_PORT_NAME".to_vec(), b"tag#0$".to_vec())],
        stdin: Ranks::range(0..1),
    }
}

fn staged() -> StagePlan {
    let file = |kind, name: &str, bytes| StagedFile { kind, name: name.into(), bytes, is_executable: bytes > 1 };
    let files = [(StagedKind::Program, "a", 70), (StagedKind::Library, "liba.so.1", 9), (StagedKind::File, "data", 0)];
    let entry =
        |parent, name: &str, kind| TreeEntry { parent, name: name.into(), kind, mode: 0o755, modified: (-7, 9) };
    let entries = vec![
        entry(0, "d", TreeKind::Directory),
        entry(1, "f", TreeKind::File { bytes: 9 }),
        entry(1, "l", TreeKind::Link { target: b"../../data".to_vec() }),
        entry(0, "t", TreeKind::Text { parts: vec![b"#!".to_vec().into(), b"/x".to_vec().into()] }),
    ];
    let trees = vec![StagedTree { name: b"tree".to_vec(), entries }];
    let cache = Some(CacheBounds { bytes: 1 << 30, age: Duration::from_secs(60) });
    let files = files.map(|(kind, name, bytes)| file(kind, name, bytes)).to_vec();
    StagePlan::new(files, trees, cache).expect("the names are good")
}

/// Plans, and messages of both directions.
fn staging() -> Vec<Vec<u8>> {
    let up = |collected| StageUp::Collected(AgentId(3), collected).message();
    let file = CollectedFile { rank: Rank(7), pattern: 1, is_executable: true, name: b"out/a" };
    vec![
        encode(&staged()),
        encode(&collect()),
        hashes_message(&[[1; 32], [2; 32]]),
        [&part_header(7)[..], b"bytes"].concat(),
        StageUp::Needs(b"\x05").message(),
        up(Collected::File(file)),
        up(Collected::Failed(b"no room")),
        StageUp::InMemory(AgentId(3), InMemory { is_last: true, place: b"/dev/shm" }).message(),
        StageUp::Left(AgentId(3), b"/tmp/a: Device or resource busy").message(),
        vec![9, 3, 1],
    ]
}

fn collect() -> CollectPlan {
    let patterns =
        ["out/*.dat", "$SCELA_STAGE_DIR/**"].map(|text| CollectPattern::new(text.as_bytes()).expect("it is good"));
    CollectPlan::new(patterns.to_vec(), 1000).expect("there are few")
}

fn session() -> SessionPlan {
    SessionPlan {
        environment: vec![(b"HOME".to_vec(), b"/tmp".to_vec())],
        shell: vec![1, 2, 3].into(),
        hold_lines: true,
        direct: [DirectOutput::WithPipe, DirectOutput::Never],
        pmi_port: false,
        kill_grace: Duration::from_secs(5),
        cache: CachePolicy::HcmabLru { entries: 64 },
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
        piece_bytes: NonZeroU32::new(100),
        stage: staged(),
        profile: true,
        collect: collect(),
        sent: Duration::from_millis(7),
    }
}

fn requester() -> Requester {
    Requester { agent: AgentId(2), namespace: NS, rank: Rank(3), number: 7 }
}

fn inquiry() -> Inquiry {
    Inquiry {
        to: AgentId(1),
        requester: requester(),
        kind: InquiryKind::NodePut { key: b"k".to_vec(), value: b"v".to_vec() },
    }
}

fn spawn() -> SpawnRequest {
    let command = SpawnCommand {
        program: b"child".to_vec(),
        args: vec![b"x".to_vec()],
        nprocs: 2,
        info: vec![(b"wdir".to_vec(), b"/tmp".to_vec())],
    };
    SpawnRequest { commands: vec![command], preputs: vec![(b"k".to_vec(), b"v".to_vec())] }
}

fn ups() -> Vec<Up> {
    let ring = RingSegment { count: 2, to_left: b"l".to_vec(), to_right: b"r".to_vec() };
    let failure = |cause| {
        Up::Failed(Failure {
            at: Duration::from_secs(1),
            agent: AgentId(2),
            namespace: NS,
            ranks: Ranks::range(2..3),
            cause,
        })
    };
    let gathering = Up::Gathering { namespace: NS, number: 0, ranks: Ranks::range(2..3), puts: puts() };
    let gathered = |ranks, contribution| Up::Gathered { namespace: NS, number: 0, ranks, contribution };
    let ask = |request| Up::Ask { requester: requester(), request };
    vec![
        Up::Ready,
        Up::Staged,
        Up::Started { namespace: NS },
        Up::Contact { namespace: NS },
        gathering,
        gathered(Ranks::range(2..4), Contribution::Puts(puts())),
        gathered(Ranks::range(0..2), Contribution::Ring(ring)),
        Up::GroupGathered {
            namespace: NS,
            group: RankGroup { ranks: Ranks::range(0..3), tag: 1 },
            deaths: 0,
            ranks: Ranks::range(0..2),
            payload: b"payload"[..].into(),
        },
        Up::Put { namespace: NS, number: 0, puts: puts() },
        Up::Get { namespace: NS, key: "k".into() },
        Up::Got { namespace: NS, number: 1, result: LookUpResult::Entry(Entry::new(b"k", b"v")) },
        Up::Got { namespace: NS, number: 1, result: LookUpResult::Absent("k".into()) },
        Up::Waiting { namespace: NS, number: 0 },
        Up::Exited { namespace: NS, fences: 1, unfinished: true, ranks: Ranks::range(2..4) },
        failure(Cause::NotStarted { why: NotStartedReason::Reported("no memory".to_owned()) }),
        failure(Cause::NotStarted {
            why: NotStartedReason::LackOfDevices(LackOfDevices {
                text: "rank 3 needs 1 gpu".to_owned(),
                remedy: DeviceRemedy::DeclareTypes,
            }),
        }),
        failure(Cause::Code(3)),
        failure(Cause::Signal { signal: 11, core: true, out_of_memory: String::new() }),
        failure(Cause::Abort { code: 1, message: "out of luck".to_owned() }),
        failure(Cause::Broken { why: "sent a line without a command".to_owned() }),
        failure(Cause::ExitedEarly { in_fence: true }),
        failure(Cause::Unjoined),
        Up::FailedMore { count: 9 },
        Up::Silent { agent: AgentId(3), time: Duration::from_secs(20) },
        ask(RootRequest::Publish { service: b"s".to_vec(), port: b"p".to_vec() }),
        ask(RootRequest::Lookup { service: b"s".to_vec() }),
        ask(RootRequest::Unpublish { service: b"s".to_vec() }),
        ask(RootRequest::Spawn(spawn())),
        ask(RootRequest::Connect { job: b"kvs_1".to_vec() }),
        ask(RootRequest::GetFromJob { job: b"kvs_1".to_vec(), key: b"k".to_vec() }),
        Up::Inquire(inquiry()),
        Up::Reply { requester: requester(), reply: Reply::NodeGot(Some(b"v".to_vec())) },
        Up::Bound {
            agent: AgentId(2),
            report: Box::new(BindingReport {
                bound: vec![BoundRanks {
                    ranks: Ranks::range(0..2),
                    is_bound: true,
                    cpus: CpuSet::from_iter([0, 4]),
                    memory: CpuSet::from_iter([1]),
                    picture: "[BB/..]".to_owned(),
                    devices: "gpu 0-1".to_owned(),
                }],
                note: Some(BindingNote::Crowded {
                    ranks: 9,
                    cpus: CpuSet::from_iter([0, 4]),
                    room: 4,
                    count: 2,
                    level: Level::L3,
                }),
            }),
        },
        Up::LowLimits(
            vec![LowLimit { kind: 7, least: 500, most: 1000, agents: Ranks::range(3..18) }]
                .try_into()
                .expect("it is in order"),
        ),
        Up::Ended { leftovers: 1, timing: Box::default() },
        Up::Stats(Box::default()),
        Up::Stats(Box::new(stats())),
    ]
}

/// Returns statistics with a span of a kind that has a number, and one of a phase.
fn stats() -> Stats {
    let span = |kind| TraceSpan::new(AgentId(1), kind, Duration::from_micros(20), Duration::from_micros(1500));
    Stats { levels: Vec::new(), spans: vec![span(SpanKind::Fence { number: 3 }), span(SpanKind::Sweep)] }
}

fn downs() -> Vec<Down> {
    let release = |content| Down::Release { namespace: NS, number: 0, content };
    let reply = |reply| Down::Reply { requester: requester(), reply };
    vec![
        Down::Session(Box::new(session())),
        Down::Launch(Box::new(plan())),
        release(ReleaseContent::Update(Update::Epoch(epoch()))),
        release(ReleaseContent::Update(Update::Epoch(Epoch::default()))),
        release(ReleaseContent::Update(Update::Overwritten(keys()))),
        release(ReleaseContent::Failed(Update::Pieces(Blob { bytes: 1000, hash: 7 }))),
        Down::Piece { namespace: NS, number: 0, piece: Piece::alone(Blob { bytes: 9, hash: 7 }, 4, "piece".into()) },
        Down::Piece { namespace: NS, number: 0, piece: Piece::packed(Blob { bytes: 9, hash: 7 }, 0, 8, "lz4".into()) },
        release(ReleaseContent::Ring(RingPosition { position: 2, from_left: b"l".to_vec(), from_right: Vec::new() })),
        Down::Get { namespace: NS, key: "k".into() },
        Down::Got { namespace: NS, result: LookUpResult::Entry(Entry::new(b"k", b"v")) },
        Down::Got { namespace: NS, result: LookUpResult::Absent("k".into()) },
        Down::Inquire(inquiry()),
        reply(Reply::Found(Err(NameError::Unknown))),
        reply(Reply::Found(Ok(b"port".to_vec()))),
        reply(Reply::Spawned(Ok(("kvs_2".to_owned(), 2)))),
        reply(Reply::Spawned(Err("no such program".to_owned()))),
        reply(Reply::Connected(true)),
        reply(Reply::GotFromJob(None)),
        Down::Signal { signal: 10 },
        Down::Suspend,
        Down::Resume,
        Down::Undo { namespace: NS },
        Down::Forget { namespace: NS },
        Down::End { signal: 15, grace: Duration::from_secs(5) },
        Down::EndNeighbour {
            agent: AgentId(2),
            lost: AgentId(1),
            guardian: GuardianAt { machine: 1 << 40, guardian: (4711, 123_456), agent: (4712, 123_457) },
        },
        Down::Leave,
    ]
}

fn position() -> TreePosition {
    TreePosition { agents: 4, fanout: 2, agent: AgentId(1) }
}

fn messages() -> Vec<Vec<u8>> {
    let mut inputs: Vec<Vec<u8>> = ups().iter().map(encode).collect();
    inputs.extend(downs().iter().map(encode));
    inputs.extend([encode(&inquiry()), encode(&plan()), encode(&session())]);
    inputs.extend([encode(&Stats::default()), encode(&stats()), encode(&Timing::default())]);
    inputs.push(encode(&Hello { agent: AgentId(3) }));
    inputs.push(encode(&Welcome { now: Duration::from_millis(1500) }));
    inputs.push(encode(&position()));
    inputs
}

fn pools() -> Vec<Vec<u8>> {
    let words = "-np 4 ./a.out".to_owned();
    let ask = Ask {
        ranks: Some(4),
        nodes: Some(2),
        priority: -5,
        avoided: ["n3".to_owned()].into(),
        waits: true,
        words: words.clone(),
        ..Ask::default()
    };
    let pool = PoolState {
        name: "night".to_owned(),
        pid: 4711,
        host: "n1".to_owned(),
        age_ms: 90_000,
        slots: 8,
        ended: 12,
        idle_ms: Some(60_000),
        is_stopping: true,
    };
    let unusable = Unusable { drained: 1, down: 2, starting: 0 };
    let room = Room { needs: Needs::Nodes { nodes: 4, each: Some(2), sharing: Sharing::Devices }, free: 1, unusable };
    let needs = Needs::Slots { slots: 4, sharing: Sharing::Alone };
    let wait = Some(Wait { why: Why::Room(Room { needs, ..room }), ahead: 0 });
    let job =
        JobState { job: 3, launcher: Some(4712), slots: 4, priority: 0, age_ms: 1500, wait, is_returned: true, words };
    let group =
        |kind, why: &str| AbsentNodes { names: "n[1-2]".to_owned(), count: 2, kind, why: why.to_owned(), age_ms: 1500 };
    let groups =
        vec![group(AbsenceKind::Down, "no route"), group(AbsenceKind::Drained, ""), group(AbsenceKind::Starting, "")];
    let absent = Absent { groups, others: 1 };
    let environment = vec![("PATH".into(), "/bin".into())];
    let configfile = Some(("file".into(), b"-np 1 true\n".to_vec()));
    let description = Description::of_process(vec!["scela-run".into(), "true".into()], configfile, environment);
    vec![
        encode(&Request::of(&ToController::Run(ask.clone()))),
        encode(&ToController::Run(ask)),
        encode(&ToController::Stop { kills: true }),
        encode(&ToController::Nodes(
            NodeChange::Add { gres: "gpu:2".parse().expect("it is a list") },
            "n[1-4]:2".to_owned(),
        )),
        encode(&ToController::Signal(vec![1, 2], 15)),
        encode(&ToClient::Waits(3, Wait { why: Why::Room(room), ahead: 2 }, absent.clone())),
        encode(&ToClient::Waits(4, Wait { why: Why::Kept(3), ahead: 1 }, Absent::default())),
        encode(&ToClient::Refused(JobRefusal::Busy(Why::Launcher, absent))),
        encode(&ToClient::Refused(JobRefusal::NoDevices("gpu:a100:2".parse().expect("it is a list")))),
        encode(&ToClient::Refused(JobRefusal::AllocationLost("Slurm job 7".to_owned()))),
        encode(&ToClient::Pool(pool)),
        encode(&ToClient::Job(job)),
        encode(&ToLauncher::Run { job: 3, slots: 8, gres: "gpu:a100:2@1+3".parse().expect("it is a list") }),
        encode(&FromLauncher::Forked { pid: 4712 }),
        encode(&FromLauncher::Ready),
        encode(&ToJob::Signal(2)),
        encode(&FromJob::Ended(251)),
        encode(&FromJob::Reported),
        encode(&FromJob::OutputCut("No space left on device (os error 28)".to_owned())),
        encode(&description),
    ]
}

fn boot() -> Vec<Vec<u8>> {
    let host = |name: &str| HostAt { name: name.to_owned(), user: Some("ada".to_owned()), is_here: false };
    let sent = Sent { digest: "0123456789abcdef".to_owned(), size: 4 << 20 };
    let program = RemoteProgram::Own { path: "/opt/scela-run".to_owned(), sent: Some(sent), stores: true };
    let words = ["ssh", "-x", "{host}"].map(str::to_owned).to_vec();
    let below = Below {
        targets: 4,
        fanout: 2,
        hosts: vec![host("n2"), host("n3")],
        method: Method::RemoteShell { words: words.clone(), lasts: true, program: program.clone() },
        batch: Some(8),
        times: StartTimes { hosts: Duration::from_secs(600), start: Duration::from_secs(60) },
    };
    let order = BootOrder {
        session: SessionId(7),
        key: decode(&encode(&[250u8; 32])).expect("a key"),
        marker: [9; MARKER],
        target: 1,
        starter: 0,
        callback: vec!["10.0.0.1:4711".parse().expect("an address"), "[::1]:4711".parse().expect("an address")],
        reach: Reach::Network(Some((5000, 6000))),
        links: Links::Connections,
        uses_local_sockets: true,
        label: "a label".to_owned(),
        dead_time: Duration::from_secs(20),
        stop_time: Duration::from_secs(600),
        heartbeat: Duration::from_secs(5),
        rejoins: true,
        below: Some(below.clone()),
        log: Some((4711, 5)),
        place: Some(Place { position: position(), machine: Some(1 << 40) }),
    };
    let step = Method::Step { words, program: RemoteProgram::Command("exec scela-run".to_owned()) };
    let shared = BootOrder { target: 0, below: Some(Below { method: step, ..below }), ..order.clone() };
    let at = Surroundings { machine: 1 << 40, users: 4_026_531_837, network: 4_026_531_840, user: 1000 };
    let listens = ListensAt { local: Some(LocalSocket { name: [0xc3; 16], at }), addresses: order.callback.clone() };
    let join = BootCommand::Join(Joining {
        position: position(),
        parent: listens.clone(),
        opener_port: Some(22),
        ancestors: vec![listens.clone(), order.callback.clone().into()],
    });
    let failure = StartFailure::new(StartPhase::Login, "Permission denied (publickey).");
    let here = BootReport::Here {
        listens,
        host: "n1".to_owned(),
        descriptors: 1024,
        reads_log: true,
        guardian: Some(GuardianAt { machine: 1 << 40, guardian: (4711, 123_456), agent: (4712, 123_457) }),
    };
    let below = |report| BootReport::Below(3, Box::new(report));
    vec![
        encode(&order),
        encode(&shared),
        encode(&join),
        encode(&BootCommand::Leave),
        encode(&BootCommand::Alive),
        encode(&BootCommand::Below(2, Box::new(BootCommand::Below(3, Box::new(join))))),
        encode(&BootReport::Task { node: "n1".to_owned() }),
        encode(&here),
        encode(&BootReport::Joining),
        encode(&BootReport::Joined { took: Duration::from_millis(3) }),
        encode(&BootReport::NotReached(failure.clone())),
        encode(&BootReport::NotStarted(failure.clone())),
        encode(&below(below(BootReport::NotStarted(failure)))),
    ]
}

/// Returns frames of each direction, and messages without their lengths.
fn pmix() -> Vec<Vec<u8>> {
    let rank = |rank: u32| ("c0ffee.scela-5_0".to_owned(), Some(rank));
    let (bytes, keys) = (Bytes::from_static(b"\0data\xff"), vec![b"key".to_vec()]);
    let command = SpawnCommand { program: b"a.out".to_vec(), args: keys.clone(), nprocs: 2, info: Vec::new() };
    let registration = Registration {
        name: "c0ffee.scela-5_0".to_owned(),
        hosts: vec!["n0".to_owned(), "n1".to_owned()],
        node: 1,
        spawner: Some(rank(1)),
        job: plan().describe(),
        cpus: vec![(1, "0,2-3".to_owned())],
    };
    let question = Question { key: "pmix.qry.ptable".to_owned(), namespace: Some("c0ffee.scela-5_0".to_owned()) };
    let row = Row { process: rank(0), host: "n0".to_owned(), program: b"a.out".to_vec(), pid: 7, has_ended: false };
    let facts = vec![("pmix.qry.ptable".to_owned(), Fact::Table(vec![row])), ("x".to_owned(), Fact::Ranks(4))];
    let outcomes = [
        Outcome::Failed(CallError::TimedOut),
        Outcome::Data(bytes.clone()),
        Outcome::Found(vec![(b"key".to_vec(), b"value".to_vec())]),
        Outcome::Spawned("c0ffee.scela-5_1".to_owned()),
        Outcome::Group(3, vec![rank(0), ("m".to_owned(), None)], bytes.clone()),
        Outcome::Answered(facts, false),
    ];
    let begin = ToHelper::Begin {
        library: b"libpmix.so.2".to_vec(),
        directory: "/tmp/d".to_owned(),
        host: "n0".to_owned(),
        namespace: "c0ffee.server".to_owned(),
    };
    let mut to_helper = vec![begin, ToHelper::Register(Box::new(registration)), ToHelper::Ping];
    to_helper.extend((0..).zip(outcomes).map(|(call, outcome)| ToHelper::Answer(call, outcome)));
    to_helper.extend([ToHelper::Ended(rank(1)), ToHelper::Ask(9, rank(0))]);
    let members = vec![rank(0), rank(1)];
    let fence = ToAgent::Fence { call: 1, members: members.clone(), data: bytes.clone(), collect: true, timeout_s: 5 };
    let purpose = Purpose::Group("group".to_owned());
    let entries = vec![(b"key".to_vec(), b"value".to_vec())];
    let to_agent = [
        ToAgent::Ready(Ok("5.0".to_owned())),
        ToAgent::Registered("c0ffee.scela-5_0".to_owned(), Ok(vec![(b"PMIX_RANK".to_vec(), b"0".to_vec())])),
        ToAgent::Joined(rank(0)),
        ToAgent::SecondJoiner(rank(0), "text".to_owned()),
        ToAgent::Abort(2, rank(1), 7, "why".to_owned()),
        fence,
        ToAgent::Publish { call: 3, process: rank(0), entries, once: true, range: PostRange::Node },
        ToAgent::Lookup { call: 4, process: rank(0), keys: keys.clone(), wait: true, timeout_s: 1 },
        ToAgent::Unpublish(5, rank(0), keys),
        ToAgent::Spawn(6, rank(1), vec![command]),
        ToAgent::Meet { call: 7, purpose, members, data: bytes.clone(), timeout_s: 0 },
        ToAgent::Query(8, vec![question]),
        ToAgent::Got(9, Some(bytes)),
        ToAgent::Alive,
    ];
    let mut frames = (Vec::new(), Vec::new());
    to_helper.iter().for_each(|message| write_frame(&mut frames.0, message).expect("a vector takes all bytes"));
    to_agent.iter().for_each(|message| write_frame(&mut frames.1, message).expect("a vector takes all bytes"));
    let messages = to_helper.iter().map(encode).chain(to_agent.iter().map(encode));
    [frames.0, frames.1].into_iter().chain(messages).collect()
}

fn shell_channel() -> Vec<u8> {
    let report = BootReport::Task { node: "n1".to_owned() };
    let frames = [framed(&encode(&report)), framed(&encode(&BootReport::Joining))].concat();
    [&b"Welcome!\r\nscela-script:need\nmore greetings\n0123456789abcdef"[..], &frames].concat()
}

/// Records an agent whose children join, that starts ranks, releases a fence, and ends.
fn recording() -> Vec<u8> {
    let mut recording = position().frame();
    let place = position().subtree().expect("the tree has the agent");
    let mut agent = Agent::new(place);
    let children: Vec<AgentId> = place.children().map(|child| child.head()).collect();
    let share = |subtree: Subtree| plan().share_of(subtree).expect("ranks are placed there");
    let mut inputs: Vec<Input> = children.iter().map(|child| Input::ChildJoined(*child)).collect();
    let from = |up: Up| children.iter().map(|child| Input::FromChild(*child, up.clone())).collect::<Vec<_>>();
    inputs.extend(from(Up::Ready));
    inputs.push(Input::FromParent(Down::Session(Box::new(session()))));
    inputs.push(Input::FromParent(Down::Launch(Box::new(share(place)))));
    inputs.push(Input::Started(NS, Ranks::range(0..2)));
    inputs.extend(from(Up::Started { namespace: NS }));
    inputs.extend(ups().into_iter().flat_map(from));
    inputs.extend(downs().into_iter().map(Input::FromParent));
    for (at, input) in (0..).zip(inputs) {
        let now = Duration::from_millis(at);
        let turn = TurnFrame::of(now, &input);
        let mut actions = Vec::new();
        agent.handle(now, input, &mut actions);
        recording.extend(turn.with(&actions));
    }
    recording
}

#[test]
fn a_recording_can_be_replayed() {
    let turns = nla::wire::replay(&recording()).expect("it can be replayed");
    assert!(turns > ups().len() + downs().len(), "{turns} turns");
}
