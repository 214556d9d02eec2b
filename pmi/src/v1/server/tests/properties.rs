//! Whatever a rank sends, in whatever pieces.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

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
    ];
    vec(line, 0..24).prop_map(|lines| lines.join("\n").into_bytes())
}

/// All requests and replies, each answer given as soon as it is owed.
fn serve(pieces: &[&[u8]]) -> (Vec<Request>, Vec<u8>) {
    let mut world = World::joined();
    let (mut requests, mut out) = (Vec::new(), Vec::new());
    for piece in pieces {
        world.conversation.receive(piece);
        while let Some(request) = world.conversation.advance(&world.board, &mut out) {
            let answer = match &request {
                Request::Fence { puts } => {
                    world.board.publish(Epoch::merge(puts).unwrap());
                    Some(Answer::Released)
                }
                Request::Publish { .. } => Some(Answer::Published(Ok(()))),
                Request::Lookup { .. } => Some(Answer::Found(Ok(b"p".to_vec()))),
                Request::Unpublish { .. } => Some(Answer::Unpublished(Ok(()))),
                Request::Spawn(_) => Some(Answer::Spawned(Ok(vec![0]))),
                Request::Joined | Request::Abort { .. } => None,
                Request::Finalized | Request::Broken { .. } => None,
            };
            assert_eq!(answer.is_some(), request.wants_answer());
            requests.push(request);
            if let Some(answer) = answer {
                world.conversation.answer(answer, &mut out);
            }
        }
    }
    (requests, out)
}

proptest! {
    #[test]
    fn splits_do_not_matter(lines in lines(), cuts in vec(any::<prop::sample::Index>(), 0..12)) {
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(lines.len() + 1)).collect();
        cuts.extend([0, lines.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&[u8]> = cuts.windows(2).map(|cut| &lines[cut[0]..cut[1]]).collect();
        prop_assert_eq!(serve(&pieces), serve(&[&lines]));
    }

    #[test]
    fn replies_are_whole_lines_that_begin_with_cmd(lines in lines()) {
        let (_, out) = serve(&[&lines]);
        prop_assert!(out.is_empty() || out.ends_with(b"\n"));
        for line in out.split_inclusive(|&byte| byte == b'\n') {
            prop_assert!(line.starts_with(b"cmd="), "{}", String::from_utf8_lossy(line));
        }
    }

    #[test]
    fn no_bytes_panic(bytes in vec(prop_oneof![Just(b'\n'), Just(b'='), any::<u8>()], 0..300)) {
        serve(&[b"cmd=", &bytes]);
    }
}
