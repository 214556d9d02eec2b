//! Properties of a conversation for any input, split in any way.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::{Entry, NodeCache, PmixAnswer, SpawnedJob};

/// Valid and invalid lines.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let line = prop_oneof![
        "(cmd=(put|get|barrier_in|finalize|init|abort|getbyidx|lookup_name|publish_name|x))?\
         ( |kvsname=k|key=[ab]|value=[ =a]{0,3}|pmi_version=1|idx=0|service=s|port=p|exitcode=2){0,9}",
        "(mcmd=spawn|endcmd|nprocs=1|execname=a|totspawns=[12]|spawnssofar=[12]|arg1=x)",
        Just(INIT.trim_end().to_owned()),
        Just("cmd=put kvsname=k key=a value=b c".to_owned()),
        Just("cmd=get kvsname=k key=a".to_owned()),
        Just("cmd=barrier_in".to_owned()),
        Just("cmd=scela_segment".to_owned()),
        Just("cmd=scela_fence puts=0".to_owned()),
    ];
    vec(line, 0..24).prop_map(|lines| lines.join("\n").into_bytes())
}

/// Frames of PMI-2 and lines that choose a version.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let payload = prop_oneof![
        8 => "cmd=(kvs-put|kvs-get|info-putnodeattr|info-getnodeattr|info-getjobattr|name-publish|name-lookup|\
         name-unpublish|job-connect|job-disconnect|ring|scela-segment|fullinit|finalize|abort|x);\
         (thrid=0xa;)?(key=[ab;]{1,3};|value=[ =\n]{0,3};|wait=TRUE;|jobid=[kj]?;|name=s;|port=p;|ring-left=l;\
         |ring-right=r;|exitcode=2;|[;=x]){0,9}",
        2 => "cmd=spawn;(ncmds=1;)?(subcmd=a;maxprocs=1;argc=1;argv[01]=x;(infokeycount=0;)?){0,2}",
        1 => "[cmd=;x]{0,9}",
        3 => Just("cmd=kvs-put;key=a;value=b;;c;".to_owned()),
        3 => Just("cmd=kvs-get;jobid=;srcid=-1;key=a;".to_owned()),
        3 => Just("cmd=kvs-fence;".to_owned()),
        3 => Just("cmd=fullinit;pmirank=3;".to_owned()),
        1 => Just("cmd=scela-fence;puts=0;".to_owned()),
    ];
    let framed = payload.prop_map(|payload| format!("{:<6}{payload}", payload.len()));
    let piece = prop_oneof![
        12 => framed,
        1 => Just(INIT.to_owned()),
        2 => Just("cmd=init pmi_version=2 pmi_subversion=0\n".to_owned()),
    ];
    vec(piece, 0..24).prop_map(|pieces| format!("cmd=init pmi_version=2\n{}", pieces.concat()).into_bytes())
}

/// The part of the board that a host stores, and when it takes puts.
#[derive(Copy, Clone, Debug)]
struct Policy {
    part: Part,
    puts_at_once: bool,
}

#[derive(Copy, Clone, Debug)]
enum Part {
    Whole,
    Nothing,
    /// A cache of the keys that were looked up.
    Asked,
    /// A cache of all entries that were put.
    Put,
}

const WHOLE: Policy = Policy { part: Part::Whole, puts_at_once: false };

fn policies() -> impl Iterator<Item = Policy> {
    let parts = [Part::Whole, Part::Nothing, Part::Asked, Part::Put];
    parts.into_iter().flat_map(|part| [false, true].map(|puts_at_once| Policy { part, puts_at_once }))
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(policies().collect::<Vec<_>>())
}

/// A host that can answer every request.
struct Host {
    policy: Policy,
    /// Everything that was published, even if the conversation has only a part of it.
    board: Board,
    cache: Arc<NodeCache>,
    /// Puts that will be published with the next fence.
    early: Puts,
}

impl Host {
    fn new(policy: Policy) -> Self {
        Self { policy, board: Board::new(), cache: Arc::default(), early: Puts::new() }
    }

    /// Returns the board that the conversation uses.
    fn seen(&self) -> Board {
        match self.policy.part {
            Part::Whole => self.board.clone(),
            Part::Nothing => Board::partial(None),
            Part::Asked | Part::Put => Board::partial(Some(Arc::clone(&self.cache))),
        }
    }

    fn publish(&mut self, puts: &Puts) {
        let mut all = std::mem::take(&mut self.early);
        all.append(puts);
        let epoch = Epoch::merge(&all).unwrap();
        self.cache.clear_absent();
        match self.policy.part {
            Part::Asked => self.cache.remove(epoch.iter().map(|(key, _)| key)),
            Part::Put => epoch.entries().for_each(|entry| self.cache.insert(entry)),
            Part::Whole | Part::Nothing => {}
        }
        self.board.publish(epoch);
    }

    fn get(&self, key: &[u8]) -> Answer {
        let value = self.board.get(key);
        match (self.policy.part, value) {
            (Part::Asked, Some(value)) => self.cache.insert(Entry::new(key, value)),
            (Part::Asked | Part::Put, None) => self.cache.insert_absent(key),
            (Part::Whole | Part::Put, Some(_)) => panic!("it was here"),
            (Part::Whole, None) => panic!("it is nowhere"),
            (Part::Nothing, _) => {}
        }
        Answer::Got(value.map(|value| value.to_vec().into()))
    }

    fn answer_to(&mut self, request: &Request) -> Option<Answer> {
        if let Request::Put { puts } = request {
            assert!(self.policy.puts_at_once && puts.validate() == Ok(1));
            self.early.append(puts);
        }
        if let Request::Fence { puts, .. } = request {
            self.publish(puts);
        }
        match request {
            Request::Get { key } => Some(self.get(key)),
            _ => answer_to(request),
        }
    }
}

/// Returns a host's answer to a request other than a get.
fn answer_to(request: &Request) -> Option<Answer> {
    Some(match request {
        Request::Fence { in_segment: false, .. } => Answer::Released,
        Request::GroupFence { ranks, tag, payload } => {
            Answer::GroupFenced { ranks: ranks.clone(), tag: *tag, payload: Some(payload.clone()) }
        }
        Request::Get { .. } => return None,
        Request::Ring { to_left, to_right } => {
            Answer::Ring { position: 0, from_left: to_right.clone(), from_right: to_left.clone() }
        }
        Request::NodePut { .. } => Answer::NodePut(true),
        Request::NodeGet { .. } => Answer::NodeGot(None),
        Request::Ask(RootRequest::GetFromJob { .. }) => Answer::GotFromJob(Some(b"v;".to_vec())),
        Request::Ask(RootRequest::Pmix(_)) => Answer::Pmix(PmixAnswer::Modex(None)),
        Request::Ask(RootRequest::Connect { .. }) => Answer::Connected(true),
        Request::TopologyFile => Answer::Got(None),
        Request::Segment => Answer::Segment(false),
        Request::Ask(RootRequest::Publish { .. }) => Answer::Published(Ok(())),
        Request::Ask(RootRequest::Lookup { .. }) => Answer::Found(Ok(b"p".to_vec())),
        Request::Ask(RootRequest::Unpublish { .. }) => Answer::Unpublished(Ok(())),
        Request::Ask(RootRequest::Spawn(_)) => Answer::Spawned(Ok(SpawnedJob { job: String::new(), codes: vec![0] })),
        Request::Fence { .. } | Request::Put { .. } => return None,
        Request::Joined | Request::Abort { .. } | Request::Finalized | Request::Broken { .. } => return None,
    })
}

/// Returns all requests and replies; each request is answered immediately.
fn serve(pieces: &[&[u8]]) -> (Vec<Request>, Vec<u8>) {
    let (requests, out, _) = serve_with(WHOLE, pieces);
    (requests, out)
}

/// Returns the same and everything that was published, with a board that may be partial.
fn serve_with(policy: Policy, pieces: &[&[u8]]) -> (Vec<Request>, Vec<u8>, Board) {
    let mut world = World::with(|attributes| attributes.puts_at_once = policy.puts_at_once);
    let mut host = Host::new(policy);
    world.board = host.seen();
    let (mut requests, mut out) = (Vec::new(), Vec::new());
    for piece in pieces {
        world.conversation.receive(piece);
        while let Some(request) = world.conversation.advance(&world.board, &mut out) {
            let answer = host.answer_to(&request);
            assert_eq!(answer.is_some(), wants_answer(&request));
            world.board = host.seen();
            requests.push(request);
            if let Some(answer) = answer {
                world.conversation.answer(answer, &mut out);
            }
            assert!(!world.conversation.is_waiting());
        }
    }
    (requests, out, host.board)
}

/// Returns the outcome without what may depend on whether the board is whole.
fn outcome(policy: Policy, bytes: &[u8]) -> (Vec<Request>, Vec<Vec<u8>>, Board) {
    let (mut requests, out, board) = serve_with(policy, &[bytes]);
    requests.retain(|request| !matches!(request, Request::Put { .. } | Request::Get { .. }));
    for request in &mut requests {
        if let Request::Fence { puts, .. } = request {
            *puts = Puts::new();
        }
    }
    let lines = out.split_inclusive(|&byte| byte == b'\n').map(<[u8]>::to_vec);
    // Only a whole board lists entries.
    let lines = lines.filter(|line| !line.starts_with(b"cmd=getbyidx_results"));
    (requests, lines.collect(), board)
}

/// Cuts bytes into pieces.
fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect()
}

proptest! {
    #[test]
    fn the_outcome_does_not_depend_on_how_lines_are_split(lines in lines(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        let lines = [INIT.as_bytes(), &lines].concat();
        prop_assert_eq!(serve(&cut(&lines, &cuts)), serve(&[&lines]));
    }

    #[test]
    fn the_outcome_does_not_depend_on_how_frames_are_split(frames in frames(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        prop_assert_eq!(serve(&cut(&frames, &cuts)), serve(&[&frames]));
    }

    #[test]
    fn the_outcome_does_not_depend_on_splits_on_any_board(
        policy in policy(),
        lines in lines(),
        cuts in vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let lines = [INIT.as_bytes(), &lines].concat();
        prop_assert_eq!(serve_with(policy, &cut(&lines, &cuts)), serve_with(policy, &[&lines]));
    }

    #[test]
    fn the_outcome_does_not_depend_on_where_the_board_is(lines in lines(), frames in frames()) {
        for said in [&[INIT.as_bytes(), &lines].concat(), &frames] {
            let expected = outcome(WHOLE, said);
            for policy in policies() {
                prop_assert_eq!(&outcome(policy, said), &expected, "{:?}", policy);
            }
        }
    }

    #[test]
    fn replies_are_whole_lines_that_begin_with_cmd(lines in lines()) {
        let (_, out) = serve(&[INIT.as_bytes(), &lines]);
        prop_assert!(out.is_empty() || out.ends_with(b"\n"));
        for line in out.split_inclusive(|&byte| byte == b'\n') {
            prop_assert!(line.starts_with(b"cmd="), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn replies_to_frames_are_whole_frames_that_begin_with_cmd_and_have_rc(frames in frames()) {
        let (_, out) = serve(&[&frames]);
        let mut rest = &out[..];
        while !rest.is_empty() {
            if frame::is_line(rest) {
                let end = rest.iter().position(|&byte| byte == b'\n').expect("whole lines");
                prop_assert!(rest.starts_with(b"cmd="));
                rest = &rest[end + 1..];
                continue;
            }
            let length = frame::length(rest).unwrap().expect("whole frames");
            let payload = &rest[frame::HEADER_BYTES..][..length];
            let shown = String::from_utf8_lossy(payload).into_owned();
            prop_assert!(payload.starts_with(b"cmd=") && payload.ends_with(b";"), "{shown}");
            prop_assert!(v2::pairs::Pairs::of(payload).get(b"rc").is_some(), "{shown}");
            rest = &rest[frame::HEADER_BYTES + length..];
        }
    }

    #[test]
    fn no_bytes_panic(policy in policy(), bytes in vec(prop_oneof![Just(b'\n'), Just(b'='), any::<u8>()], 0..300)) {
        serve_with(policy, &[INIT.as_bytes(), b"cmd=", &bytes]);
    }

    #[test]
    fn no_bytes_in_frames_panic(
        policy in policy(),
        payloads in vec(vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 0..60), 0..9),
        rest in vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = b"cmd=init pmi_version=2\n".to_vec();
        for payload in payloads {
            bytes.extend(format!("{:>6}cmd=", payload.len() + 4).into_bytes());
            bytes.extend(payload);
        }
        serve_with(policy, &[&bytes, &rest]);
    }
}
