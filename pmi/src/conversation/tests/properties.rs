//! Whatever a rank sends, in whatever pieces.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::Launched;

/// Lines as clients send them, and as they should not.
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

/// Frames of PMI-2, and lines that choose a version.
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

/// What a host answers that can answer all.
fn answer_to(request: &Request, board: &mut Board) -> Option<Answer> {
    Some(match request {
        Request::Fence { puts, in_segment } => {
            board.publish(Epoch::merge(puts).unwrap());
            if *in_segment {
                return None;
            }
            Answer::Released
        }
        Request::Ring { to_left, to_right } => {
            Answer::Ring { position: 0, from_left: to_right.clone(), from_right: to_left.clone() }
        }
        Request::NodePut { .. } => Answer::NodePut(true),
        Request::NodeGet { .. } => Answer::NodeGot(None),
        Request::Elsewhere { .. } => Answer::Elsewhere(Some(b"v;".to_vec())),
        Request::Connect { .. } => Answer::Connected(true),
        Request::Segment => Answer::Segment(false),
        Request::Publish { .. } => Answer::Published(Ok(())),
        Request::Lookup { .. } => Answer::Found(Ok(b"p".to_vec())),
        Request::Unpublish { .. } => Answer::Unpublished(Ok(())),
        Request::Spawn(_) => Answer::Spawned(Ok(Launched { job: String::new(), codes: vec![0] })),
        Request::Joined | Request::Abort { .. } | Request::Finalized | Request::Broken { .. } => return None,
    })
}

/// All requests and replies, each answer given as soon as it is owed.
fn serve(pieces: &[&[u8]]) -> (Vec<Request>, Vec<u8>) {
    let mut world = World::new();
    let (mut requests, mut out) = (Vec::new(), Vec::new());
    for piece in pieces {
        world.conversation.receive(piece);
        while let Some(request) = world.conversation.advance(&world.board, &mut out) {
            let answer = answer_to(&request, &mut world.board);
            assert_eq!(answer.is_some(), request.wants_answer());
            requests.push(request);
            if let Some(answer) = answer {
                world.conversation.answer(answer, &mut out);
            }
            assert!(!world.conversation.is_waiting());
        }
    }
    (requests, out)
}

/// The same bytes in pieces.
fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]]).collect()
}

proptest! {
    #[test]
    fn splits_do_not_matter(lines in lines(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        let lines = [INIT.as_bytes(), &lines].concat();
        prop_assert_eq!(serve(&cut(&lines, &cuts)), serve(&[&lines]));
    }

    #[test]
    fn splits_of_frames_do_not_matter(frames in frames(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        prop_assert_eq!(serve(&cut(&frames, &cuts)), serve(&[&frames]));
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
    fn no_bytes_panic(bytes in vec(prop_oneof![Just(b'\n'), Just(b'='), any::<u8>()], 0..300)) {
        serve(&[INIT.as_bytes(), b"cmd=", &bytes]);
    }

    #[test]
    fn no_bytes_in_frames_panic(
        payloads in vec(vec(prop_oneof![Just(b';'), Just(b'='), any::<u8>()], 0..60), 0..9),
        rest in vec(any::<u8>(), 0..20),
    ) {
        let mut bytes = b"cmd=init pmi_version=2\n".to_vec();
        for payload in payloads {
            bytes.extend(format!("{:>6}cmd=", payload.len() + 4).into_bytes());
            bytes.extend(payload);
        }
        serve(&[&bytes, &rest]);
    }
}
