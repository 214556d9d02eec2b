//! Inquiries about attributes of nodes and boards of other namespaces.

use super::*;
use crate::core::message::{Inquiry, InquiryKind, NODE_REQUESTS_FROM};

fn get(key: &str, wait: bool) -> Request {
    Request::NodeGet { key: key.into(), wait }
}

fn put(key: &str, value: &str) -> Request {
    Request::NodePut { key: key.into(), value: value.into() }
}

fn kind_of(request: Request) -> InquiryKind {
    match request {
        Request::NodePut { key, value } => InquiryKind::NodePut { key, value },
        Request::NodeGet { key, wait } => InquiryKind::NodeGet { key, wait },
        other => panic!("{other:?}"),
    }
}

fn inquiry(to: u32, requester: Requester, kind: InquiryKind) -> Inquiry {
    Inquiry { to: AgentId(to), requester, kind }
}

fn value(text: &str) -> Option<Vec<u8>> {
    Some(text.into())
}

#[test]
fn the_owner_answers_its_own_ranks_itself() {
    let mut world = World::leaf(3, "0-2");
    let answer = |rank, answer| Action::Answer(NS, Rank(rank), answer);
    assert_eq!(world.asks(0, get("k", false)), [answer(0, Answer::NodeGot(None))]);
    assert_eq!(world.asks(0, get("k", true)), []);
    assert_eq!(world.asks(2, get("k", true)), []);
    let got = || Answer::NodeGot(Some(b"v".to_vec()));
    assert_eq!(
        world.asks(1, put("k", "v")),
        [answer(1, Answer::NodePut(true)), answer(0, got()), answer(2, got())],
        "first the rank that put it, then the ranks that waited"
    );
    assert_eq!(world.asks(1, get("k", true)), [answer(1, got())]);
}

#[test]
fn an_agent_asks_the_owner_and_hands_its_reply_to_the_rank() {
    let mut world = World::on_node_of_agent_1();
    let put = put("k", "v");
    let asked = inquiry(1, requester(2, 3), kind_of(put.clone()));
    assert_eq!(world.asks(3, put), [Action::ToParent(Up::Inquire(asked))]);
    let reply = Down::Reply { requester: requester(2, 3), reply: Reply::NodePut(true) };
    assert_eq!(world.after(T, Input::FromParent(reply)), [Action::Answer(NS, Rank(3), Answer::NodePut(true))]);
}

#[test]
fn a_parked_inquiry_is_withdrawn_when_its_rank_ends() {
    let forget = |rank| Action::ToParent(Up::Inquire(inquiry(1, requester(2, rank), InquiryKind::NodeForget)));
    let ended = |rank| Input::RankEnded(NS, Rank(rank), Exit::Code(0));
    let mut world = World::on_node_of_agent_1();
    world.asks(2, get("k", true));
    world.asks(3, get("k", true));
    assert_eq!(world.after(T, ended(2)), [forget(2), Action::WakeAt(at(20))]);
    let reply = Down::Reply { requester: requester(2, 3), reply: Reply::NodeGot(value("v")) };
    world.after(T, Input::FromParent(reply));
    let actions = world.after(T, ended(3));
    assert!(!actions.contains(&forget(3)), "its get was answered: {actions:?}");

    let mut world = World::on_node_of_agent_1();
    world.asks(2, get("k", false));
    let actions = world.after(T, ended(2));
    assert!(!actions.contains(&forget(2)), "its get is not parked: {actions:?}");
}

#[test]
fn an_owner_serves_ranks_of_other_agents() {
    let mut world = World::leaf(4, "0-1");
    let mut from_above =
        |requester, kind| world.after(T, Input::FromParent(Down::Inquire(inquiry(1, requester, kind))));
    let reply = |requester, reply| Action::ToParent(Up::Reply { requester, reply });
    assert_eq!(from_above(requester(2, 2), kind_of(get("k", true))), []);
    assert_eq!(from_above(requester(2, 3), kind_of(get("k", true))), []);
    assert_eq!(from_above(requester(2, 3), InquiryKind::NodeForget), []);
    assert_eq!(
        from_above(requester(3, 1), kind_of(put("k", "v"))),
        [reply(requester(3, 1), Reply::NodePut(true)), reply(requester(2, 2), Reply::NodeGot(value("v")))]
    );
    let stranger = Requester { namespace: NamespaceId(7), ..requester(2, 2) };
    for (requester, why) in [(requester(2, 4), "the rank is unknown"), (stranger, "the namespace is unknown")] {
        assert_eq!(from_above(requester, kind_of(get("k", true))), [reply(requester, Reply::NodeGot(None))], "{why}");
        assert_eq!(from_above(requester, kind_of(put("k", "v"))), [reply(requester, Reply::NodePut(false))], "{why}");
        assert_eq!(from_above(requester, InquiryKind::NodeForget), [], "{why}");
    }
}

#[test]
fn an_agent_that_owns_no_attributes_refuses() {
    let mut world = World::on_node_of_agent_1();
    let asked = Down::Inquire(inquiry(2, requester(1, 0), kind_of(get("k", true))));
    let refused = Up::Reply { requester: requester(1, 0), reply: Reply::NodeGot(None) };
    assert_eq!(world.after(T, Input::FromParent(asked)), [Action::ToParent(refused)]);
}

#[test]
fn inquiries_and_replies_are_routed_within_the_subtree() {
    let mut world = World::inner();
    // Agent 3 asks agent 1, which owns the attributes of its node.
    let asked = Up::Inquire(inquiry(1, requester(3, 4), kind_of(put("k", "v"))));
    let reply = Down::Reply { requester: requester(3, 4), reply: Reply::NodePut(true) };
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), asked)), [Action::ToChild(AgentId(2), reply)]);
    let down = Down::Inquire(inquiry(3, requester(9, 1), kind_of(get("k", true))));
    assert_eq!(world.after(T, Input::FromParent(down.clone())), [Action::ToChild(AgentId(2), down)]);
    let up = Up::Reply { requester: requester(9, 1), reply: Reply::NodeGot(None) };
    assert_eq!(world.after(T, Input::FromChild(AgentId(2), up.clone())), [Action::ToParent(up)]);
    // A message for an agent outside the subtree is dropped.
    let lost = Down::Inquire(inquiry(9, requester(1, 0), InquiryKind::NodeForget));
    assert_eq!(world.after(T, Input::FromParent(lost)), []);
    let lost = Down::Reply { requester: requester(9, 0), reply: Reply::NodePut(true) };
    assert_eq!(world.after(T, Input::FromParent(lost)), []);
}

#[test]
fn a_child_that_asks_or_replies_for_others_is_cut_off() {
    let fine = || kind_of(put("k", "v"));
    let reserved = kind_of(put("PMI_k", "v"));
    let long = "v".repeat(pmi::limits::ATTRIBUTE_BYTES_MAX + 1);
    let stranger = Requester { namespace: NamespaceId(7), ..requester(3, 4) };
    let look_up = InquiryKind::LookUp { namespace: NS, key: b"k".to_vec() };
    let answers = |agent, reply| Up::Reply { requester: requester(agent, 4), reply };
    for (message, why) in [
        (Up::Inquire(inquiry(1, requester(3, 1), fine())), "the rank is not the child's"),
        (Up::Inquire(inquiry(1, requester(1, 4), fine())), "the agent is not below the child"),
        (Up::Inquire(inquiry(1, stranger, fine())), "the namespace is unknown"),
        (Up::Inquire(inquiry(2, requester(2, 2), fine())), "the owner is below the child"),
        (Up::Inquire(inquiry(9, requester(3, 4), fine())), "another agent is the owner"),
        (Up::Inquire(inquiry(1, requester(3, 4), reserved)), "the key cannot be put"),
        (Up::Inquire(inquiry(1, requester(3, 4), kind_of(put("k", &long)))), "the value is too long"),
        (Up::Inquire(inquiry(1, requester(3, 4), look_up)), "only the root sends that inquiry"),
        (answers(3, Reply::NodePut(true)), "the rank is below the child"),
        (answers(9, Reply::NodeGot(value(&long))), "the value is too long"),
        (answers(9, Reply::Connected(true)), "only the root sends that reply"),
    ] {
        let mut world = World::inner();
        let actions = world.after(T, Input::FromChild(AgentId(2), message));
        assert!(
            matches!(&actions[0], Action::CloseChild(AgentId(2), reason) if reason.to_string().contains("which is not allowed")),
            "{why}: {actions:?}"
        );
        assert!(matches!(failures(&actions)[..], [Cause::Lost { .. }]) && actions.len() == 2, "{why}: {actions:?}");
    }
}

#[test]
fn a_board_is_looked_up_for_a_rank_of_another_namespace() {
    let mut world = World::joined(1, 1, 2);
    let preputs = vec![(b"preput".to_vec(), b"p".to_vec())];
    world.after(T, Input::FromParent(Down::Launch(Box::new(NamespacePlan { preputs, ..plan(2, &[(1, "0-1")]) }))));
    let requester = Requester { agent: AgentId(5), namespace: NamespaceId(3), rank: Rank(8), number: 0 };
    let look_up = |namespace, key: &str| {
        Input::FromParent(Down::Inquire(inquiry(1, requester, InquiryKind::LookUp { namespace, key: key.into() })))
    };
    let found = |value| Action::ToParent(Up::Reply { requester, reply: Reply::GotFromJob(value) });
    for (key, on_board, expected) in [
        ("k", Some("v"), value("v")),
        ("k", None, None),
        ("preput", None, value("p")),
        ("preput", Some("v"), value("v")),
    ] {
        let action = Action::LookUp { namespace: NS, key: key.into(), requester };
        assert_eq!(world.after(T, look_up(NS, key)), [action]);
        let value = on_board.map(Into::into);
        let looked_up = Input::LookedUp { namespace: NS, key: key.into(), requester, value };
        assert_eq!(world.after(T, looked_up), [found(expected)]);
    }
    assert_eq!(world.after(T, look_up(NamespaceId(9), "k")), [found(None)], "its launch may not have arrived yet");
}

#[test]
fn questions_about_other_namespaces_go_to_the_root() {
    let mut world = World::leaf(1, "0");
    let job = || b"scela-77_1".to_vec();
    let ask =
        |number, request| [Action::ToParent(Up::Ask { requester: Requester { number, ..requester(1, 0) }, request })];
    assert_eq!(
        world.asks(0, Request::Ask(RootRequest::Connect { job: job() })),
        ask(0, RootRequest::Connect { job: job() })
    );
    let key = || b"k".to_vec();
    assert_eq!(
        world.asks(0, Request::Ask(RootRequest::GetFromJob { job: job(), key: key() })),
        ask(1, RootRequest::GetFromJob { job: job(), key: key() })
    );
    assert_eq!(world.asks(0, Request::Segment), [], "the driver answers it");
}

/// A rank has one request under way. A node may have several, under different numbers.
#[test]
fn requests_of_the_node_are_answered_in_any_order() {
    let mut world = World::leaf(1, "0");
    let lookup = || RootRequest::Lookup { service: b"s".to_vec() };
    let asks = |world: &mut World, number: u32, round| {
        let requester = Requester { number: round, ..requester(1, NODE_REQUESTS_FROM + number) };
        let actions = world.asks(NODE_REQUESTS_FROM + number, Request::Ask(lookup()));
        assert_eq!(actions, [Action::ToParent(Up::Ask { requester, request: lookup() })]);
        requester
    };
    let (first, second) = (asks(&mut world, 0, 0), asks(&mut world, 1, 0));
    let reply = |requester| Input::FromParent(Down::Reply { requester, reply: Reply::Found(Ok(b"p".to_vec())) });
    let answer = |requester: Requester| [Action::Answer(NS, requester.rank, Answer::Found(Ok(b"p".to_vec())))];
    assert_eq!(world.after(T, reply(second)), answer(second));
    assert_eq!(world.after(T, reply(second)), [], "a repeated request has two replies");
    let again = asks(&mut world, 1, 1);
    assert_eq!(world.after(T, reply(first)), answer(first));
    assert_eq!(world.after(T, reply(again)), answer(again));
}
