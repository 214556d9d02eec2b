//! A rank's conversation with a host that answers every request at once.

use std::sync::Arc;

use pmi::limits::{ABORT_MESSAGE_BYTES_MAX, SPAWN_RANKS_MAX};
use pmi::{Answer, Board, Conversation, Epoch, JobAttributes, PmixAnswer, Rank, Request, RootRequest, SpawnedJob};

/// All requests and replies of a conversation.
#[derive(PartialEq, Debug)]
pub(crate) struct Outcome {
    pub(crate) requests: Vec<Request>,
    pub(crate) replies: Vec<u8>,
}

/// The replies per received byte: a short get of a long value of PMI-2 has the most.
const REPLY_BYTES_PER_BYTE: usize = 100;
/// The replies to a few bytes.
const REPLY_BYTES: usize = 4096;

/// Says these pieces to a new conversation.
pub(crate) fn converse(pieces: &[&[u8]]) -> Outcome {
    let attributes = JobAttributes {
        kvsname: "kvs_1".into(),
        size: 4,
        universe_size: 8,
        mapping: Some("(vector,(0,2,2))".into()),
        preputs: Epoch::from_entries([(&b"PARENT_ROOT_PORT_NAME"[..], &b"tag#0$ x"[..])]),
        spawner: Some("kvs_0".into()),
        puts_at_once: false,
    };
    let mut conversation = Conversation::new(Arc::new(attributes), Rank(3), 1);
    let mut board = Board::new();
    let mut outcome = Outcome { requests: Vec::new(), replies: Vec::new() };
    for piece in pieces {
        conversation.receive(piece);
        while let Some(request) = conversation.advance(&board, &mut outcome.replies) {
            check_request(&request);
            if let Request::Fence { puts, .. } = &request {
                board.publish(Epoch::merge(puts).expect("a rank's puts are valid"));
            }
            let answer = answer_to(&request);
            outcome.requests.push(request);
            assert_eq!(answer.is_some(), conversation.is_waiting());
            if let Some(answer) = answer {
                conversation.answer(answer, &mut outcome.replies);
            }
            assert!(!conversation.is_waiting());
        }
    }
    let received: usize = pieces.iter().map(|piece| piece.len()).sum();
    assert!(outcome.replies.len() <= REPLY_BYTES + REPLY_BYTES_PER_BYTE * received);
    outcome
}

/// Checks that a conversation has the same outcome, however its bytes are split.
pub(crate) fn check_splits(said: &[u8]) -> Outcome {
    let whole = converse(&[said]);
    let (one, other) = super::split(said);
    assert_eq!(converse(&[one, other]), whole, "the split at byte {} changes the outcome", one.len());
    if said.len() <= 64 {
        assert_eq!(converse(&said.chunks(1).collect::<Vec<_>>()), whole, "single bytes change the outcome");
    }
    whole
}

fn check_request(request: &Request) {
    match request {
        Request::Abort { message, .. } => {
            super::check_shown(message);
            assert!(message.len() <= ABORT_MESSAGE_BYTES_MAX);
        }
        Request::Broken { why } => {
            super::check_shown(why);
            assert!(why.len() <= ABORT_MESSAGE_BYTES_MAX);
        }
        Request::Fence { puts, .. } | Request::Put { puts } => {
            for put in puts.iter() {
                let put = put.expect("a rank's puts are valid");
                assert_eq!(put.rank, Rank(3), "a put on behalf of another rank");
                assert_eq!(pmi::board::check_put(put.key, put.value), Ok(()));
            }
        }
        Request::Ask(RootRequest::Spawn(spawn)) => {
            assert_eq!(spawn.check(), Ok(()));
            assert!(spawn.ranks() <= u64::from(SPAWN_RANKS_MAX));
        }
        Request::Joined
        | Request::Get { .. }
        | Request::TopologyFile
        | Request::GroupFence { .. }
        | Request::Ring { .. }
        | Request::NodePut { .. }
        | Request::NodeGet { .. }
        | Request::Segment
        | Request::Ask(_)
        | Request::Finalized => {}
    }
}

/// Returns the answer to a request; `None` if it wants none.
fn answer_to(request: &Request) -> Option<Answer> {
    Some(match request {
        Request::Fence { in_segment: false, .. } => Answer::Released,
        Request::GroupFence { ranks, tag, payload } => {
            Answer::GroupFenced { ranks: ranks.clone(), tag: *tag, payload: Some(payload.clone()) }
        }
        Request::Ring { to_left, to_right } => {
            Answer::Ring { position: 0, from_left: to_right.clone(), from_right: to_left.clone() }
        }
        Request::Get { .. } | Request::TopologyFile => Answer::Got(None),
        Request::NodePut { .. } => Answer::NodePut(true),
        Request::NodeGet { .. } => Answer::NodeGot(None),
        Request::Segment => Answer::Segment(false),
        Request::Ask(RootRequest::GetFromJob { .. }) => Answer::GotFromJob(Some(b"v;".to_vec())),
        Request::Ask(RootRequest::Pmix(_)) => Answer::Pmix(PmixAnswer::Modex(None)),
        Request::Ask(RootRequest::Connect { .. }) => Answer::Connected(true),
        Request::Ask(RootRequest::Publish { .. }) => Answer::Published(Ok(())),
        Request::Ask(RootRequest::Lookup { .. }) => Answer::Found(Ok(b"p".to_vec())),
        Request::Ask(RootRequest::Unpublish { .. }) => Answer::Unpublished(Ok(())),
        Request::Ask(RootRequest::Spawn(_)) => Answer::Spawned(Ok(SpawnedJob { job: String::new(), codes: vec![0] })),
        Request::Fence { in_segment: true, .. }
        | Request::Put { .. }
        | Request::Joined
        | Request::Abort { .. }
        | Request::Finalized
        | Request::Broken { .. } => return None,
    })
}
