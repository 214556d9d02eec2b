//! Epochs that arrive in pieces.

use std::num::NonZeroU32;

use super::*;
use crate::core::pieces::{Blob, Piece, PieceBytes, release_messages};

/// The length of pieces in the plan of [`World::session`].
const PIECE_BYTES: PieceBytes = NonZeroU32::new(100);

/// Agent 1 with ranks 0 and 1, whose child, agent 2, has rank 2. All ranks have arrived at fence 0.
fn arrived(on_failure: FailurePolicy) -> World {
    let mut world = World::joined(1, 2, 1);
    let session = SessionPlan { on_failure, ..World::session(false) };
    world.after(T, Input::FromParent(Down::Session(Box::new(session))));
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(3, &[(1, "0-1"), (2, "2")])))));
    world.after(T, Input::Started(NS, ranks("0-1")));
    for rank in 0..2 {
        world.after(T, Input::FromRank(NS, Rank(rank), Request::Fence { puts: Puts::new(), in_segment: false }));
    }
    let contribution = Contribution::Puts(Puts::new());
    let gathered = Up::Gathered { namespace: NS, number: 0, ranks: ranks("2"), contribution };
    let up = world.after(T, Input::FromChild(AgentId(2), gathered));
    assert!(matches!(up[..], [Action::ToParent(Up::Gathered { .. })]), "{up:?}");
    world
}

fn epoch() -> Epoch {
    let value = vec![b'v'; 500];
    Epoch::from_entries([(&b"one"[..], &value[..]), (&b"two"[..], &value[..])])
}

/// The messages that release fence 0 with [`epoch`]. The last one is the release.
fn messages() -> Vec<Down> {
    messages_of(false)
}

/// The same, with packed pieces if it `packs`.
fn messages_of(packs: bool) -> Vec<Down> {
    let content = ReleaseContent::Update(Update::Epoch(epoch()));
    let messages = release_messages((NS, 0), &content, 0, (PIECE_BYTES, packs));
    assert!(messages.len() > 10);
    // As they arrive over a link.
    messages.iter().map(|message| crate::wire::decode(&crate::wire::encode(message)).unwrap()).collect()
}

impl World {
    fn down(&mut self, message: &Down) -> Vec<Action> {
        self.after(T, Input::FromParent(message.clone()))
    }
}

fn reason(actions: &[Action]) -> String {
    let failed = actions.iter().find_map(|action| match action {
        Action::ToParent(Up::Failed(Failure { cause: Cause::Lost { why }, .. })) => Some(why.to_string()),
        _ => None,
    });
    failed.unwrap_or_else(|| panic!("{actions:?}"))
}

#[test]
fn pieces_are_forwarded_as_they_arrive_and_published_when_all_are_there() {
    for packs in [false, true] {
        let mut world = arrived(FailurePolicy::Abort);
        let messages = messages_of(packs);
        let (release, pieces) = messages.split_last().unwrap();
        let is_packed = |message: &Down| matches!(message, Down::Piece { piece, .. } if piece.is_packed());
        assert_eq!(pieces.iter().any(is_packed), packs);
        for piece in pieces {
            assert_eq!(world.down(piece), [Action::ToChild(AgentId(2), piece.clone())], "as it has arrived");
            assert_eq!(world.down(piece), [], "it is known");
        }
        let expected = [
            Action::ToChild(AgentId(2), release.clone()),
            Action::Publish(NS, epoch()),
            Action::Release(NS, ranks("0-1")),
        ];
        assert_eq!(world.down(release), expected);
        assert_eq!(world.down(&pieces[0]), [], "the fence is over");
    }
}

#[test]
fn a_damaged_epoch_is_not_published_and_ends_the_session() {
    let mut world = arrived(FailurePolicy::Abort);
    let mut messages = messages();
    let Down::Piece { piece, .. } = &mut messages[4] else { panic!("a piece") };
    let mut bytes = piece.bytes().to_vec();
    bytes[17] ^= 4;
    *piece = piece.with_bytes(bytes.into());
    let (release, pieces) = messages.split_last().unwrap();
    pieces.iter().for_each(|piece| drop(world.down(piece)));
    let actions = world.down(release);
    let why = reason(&actions);
    let beginning = "the entries of fence 0 that it received from the place above it cannot be used: its ";
    assert!(why.starts_with(beginning) && why.contains("were damaged on their way"), "{why}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Publish(..) | Action::Release(..))), "{actions:?}");
}

#[test]
fn a_piece_that_cannot_be_unpacked_ends_the_session() {
    let mut world = arrived(FailurePolicy::Abort);
    let mut messages = messages_of(true);
    let packed = |message: &mut Down| match message {
        Down::Piece { piece, .. } if piece.is_packed() => {
            *piece = piece.with_bytes(piece.bytes()[1..].to_vec().into());
            true
        }
        _ => false,
    };
    assert!(messages.iter_mut().any(packed));
    let actions: Vec<Action> = messages.iter().flat_map(|message| world.down(message)).collect();
    let why = reason(&actions);
    assert!(why.contains("the packed piece at byte ") && why.ends_with(" was damaged on its way"), "{why}");
    assert!(!actions.iter().any(|action| matches!(action, Action::Publish(..) | Action::Release(..))), "{actions:?}");
}

#[test]
fn a_release_never_overtakes_its_epoch() {
    let mut world = arrived(FailurePolicy::Abort);
    let messages = messages();
    let (release, pieces) = messages.split_last().unwrap();
    world.down(&pieces[0]);
    assert!(reason(&world.down(release)).contains("only 100 of its"));
    let mut world = arrived(FailurePolicy::Abort);
    world.down(&pieces[0]);
    assert!(
        reason(&world.down(&pieces[2])).contains("a piece of 100 bytes arrived at byte 200, where byte 100 was next")
    );
}

#[test]
fn an_agent_that_loses_its_parent_says_how_much_it_has_and_gets_the_rest() {
    let mut world = arrived(FailurePolicy::Continue);
    let messages = messages();
    let (release, pieces) = messages.split_last().unwrap();
    pieces[..3].iter().for_each(|piece| drop(world.down(piece)));
    world.after(T, Input::ParentLost { why: LossReason::Closed });
    let up = world.after(T, Input::Rejoined);
    let Action::ToParent(Up::Rejoined { fences, .. }) = &up[0] else { panic!("{up:?}") };
    assert_eq!(fences[..], [OpenFence { namespace: NS, number: 0, received: 300 }]);
    // The new parent forwards a piece before it has read that, then repeats it with those before.
    assert_eq!(world.down(&pieces[5]), []);
    assert_eq!(world.down(release), [], "it will be repeated, too");
    for piece in &pieces[3..] {
        assert_eq!(world.down(piece), [Action::ToChild(AgentId(2), piece.clone())]);
    }
    assert!(world.down(release).contains(&Action::Publish(NS, epoch())));
}

#[test]
fn an_adopted_child_gets_the_pieces_that_it_lacks() {
    let plain = messages();
    for packs in [false, true] {
        let mut world = arrived(FailurePolicy::Continue);
        let messages = messages_of(packs);
        let (release, pieces) = messages.split_last().unwrap();
        pieces[..5].iter().for_each(|piece| drop(world.down(piece)));
        let rejoined = |received| {
            let fences = vec![OpenFence { namespace: NS, number: 0, received }];
            Input::FromChild(AgentId(2), Up::Rejoined { has_plan: true, fences })
        };
        let sent = |actions: Vec<Action>| -> Vec<Down> {
            let board = |action| match action {
                Action::ToChild(AgentId(2), message @ (Down::Piece { .. } | Down::Release { .. })) => Some(message),
                _ => None,
            };
            actions.into_iter().filter_map(board).collect()
        };
        // From memory, they are not packed.
        assert_eq!(sent(world.after(T, rejoined(200))), plain[2..5]);
        assert_eq!(sent(world.after(T, rejoined(900))), [], "it has more");
        pieces[5..].iter().for_each(|piece| drop(world.down(piece)));
        world.down(release);
        assert_eq!(sent(world.after(T, rejoined(300))), plain[3..]);
    }
}

#[test]
fn pieces_need_a_plan_that_has_their_length() {
    let mut world = World::leaf(1, "0");
    let piece = Piece::alone(Blob { bytes: 200, hash: 0 }, 0, vec![0; 100].into());
    let actions = world.down(&Down::Piece { namespace: NS, number: 0, piece });
    assert!(reason(&actions).contains("in pieces, which this session does not use"));
}

/// The request by which a rank enters a fence with puts of about `bytes` bytes.
fn fence(rank: u32, bytes: usize) -> Input {
    let mut puts = Puts::new();
    puts.push(Rank(rank), format!("key-{rank}").as_bytes(), &vec![b'v'; bytes]);
    Input::FromRank(NS, Rank(rank), Request::Fence { puts, in_segment: false })
}

/// The ranks of contributions to a fence, and whether the contribution is the last one.
fn contributed(actions: &[Action]) -> Vec<(String, bool)> {
    let ranks = |action: &Action| match action {
        Action::ToParent(Up::Gathering { ranks, .. }) => Some((ranks.to_string(), false)),
        Action::ToParent(Up::Gathered { ranks, .. }) => Some((ranks.to_string(), true)),
        _ => None,
    };
    actions.iter().filter_map(ranks).collect()
}

fn gathering(of: &str, puts: &[u8]) -> Input {
    let mut batch = Puts::new();
    batch.push(ranks(of).first().unwrap(), b"key", puts);
    Input::FromChild(AgentId(2), Up::Gathering { namespace: NS, number: 0, ranks: ranks(of), puts: batch })
}

#[test]
fn contributions_as_long_as_a_piece_go_up_ahead_of_the_last_arrival() {
    let mut world = World::joined(1, 2, 1);
    world.configure(false);
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(6, &[(1, "0-3"), (2, "4-5")])))));
    world.after(T, Input::Started(NS, ranks("0-3")));
    assert_eq!(contributed(&world.after(T, fence(0, 40))), []);
    assert_eq!(contributed(&world.after(T, fence(2, 40))), [("0,2".to_owned(), false)]);
    assert_eq!(contributed(&world.after(T, gathering("5", &[b'v'; 100]))), [("5".to_owned(), false)]);
    assert_eq!(contributed(&world.after(T, fence(1, 500))), [("1".to_owned(), false)]);
    assert_eq!(contributed(&world.after(T, fence(3, 1))), []);
    let contribution = Contribution::Puts(Puts::new());
    let rest = Up::Gathered { namespace: NS, number: 0, ranks: ranks("4"), contribution };
    assert_eq!(contributed(&world.after(T, Input::FromChild(AgentId(2), rest))), [("3-4".to_owned(), true)]);
}

#[test]
fn an_agent_repeats_its_parts_one_by_one_and_parts_do_not_report_deaths() {
    let mut world = World::joined(1, 2, 1);
    let session = SessionPlan { on_failure: FailurePolicy::Continue, ..World::session(false) };
    world.after(T, Input::FromParent(Down::Session(Box::new(session))));
    world.after(T, Input::FromParent(Down::Launch(Box::new(plan(4, &[(1, "0-1"), (2, "2-3")])))));
    world.after(T, Input::Started(NS, ranks("0-1")));
    world.after(T, fence(0, 100));
    world.after(T, gathering("2", &[b'v'; 100]));
    let part = |of: &str, is_last| (of.to_owned(), is_last);
    assert_eq!(repeated(&mut world), [part("0", false), part("2", false)]);
    assert_eq!(contributed(&world.after(T, gathering("2", &[b'v'; 100]))), [], "it is known");
    world.after(T, fence(1, 1));
    let up = world.after(T, Input::FromChild(AgentId(2), Up::Died { namespace: NS, ranks: ranks("3") }));
    assert_eq!(contributed(&up), [part("1", true)]);
    assert_eq!(repeated(&mut world), [part("0", false), part("2", false), part("1", true)]);
}

/// The agent loses its parent, joins another, and repeats its contributions.
fn repeated(world: &mut World) -> Vec<(String, bool)> {
    world.after(T, Input::ParentLost { why: LossReason::Closed });
    contributed(&world.after(T, Input::Rejoined))
}
