//! Inquiries and replies of agents about others, and the names of namespaces.

use super::*;

#[test]
fn inquiries_and_replies_between_agents_pass_through_the_root() {
    let mut world = World::on_one_node();
    let inquiry = Inquiry { to: AgentId(1), requester: requester(2, 3), kind: InquiryKind::NodeForget };
    assert_eq!(world.up(T, 2, Up::Inquire(inquiry.clone())), [RootAction::ToChild(AgentId(1), Down::Inquire(inquiry))]);
    let reply = || Reply::NodeGot(Some(b"v".to_vec()));
    assert_eq!(
        world.up(T, 1, Up::Reply { requester: requester(2, 3), reply: reply() }),
        [RootAction::ToChild(AgentId(2), Down::Reply { requester: requester(2, 3), reply: reply() })]
    );
}

#[test]
fn a_child_that_asks_or_replies_for_others_is_cut_off() {
    let inquiry =
        |to, agent, rank, kind| Up::Inquire(Inquiry { to: AgentId(to), requester: requester(agent, rank), kind });
    let answers = |agent, reply| Up::Reply { requester: requester(agent, 3), reply };
    let look_up = InquiryKind::LookUp { namespace: NS, key: b"k".to_vec() };
    let too_long = InquiryKind::NodeGet { key: vec![b'k'; pmi::limits::KEY_BYTES_MAX + 1], wait: true };
    for (message, why) in [
        (inquiry(1, 2, 1, InquiryKind::NodeForget), "the rank is not the child's"),
        (inquiry(1, 1, 3, InquiryKind::NodeForget), "the agent is not below the child"),
        (inquiry(2, 2, 3, InquiryKind::NodeForget), "the owner is below the child"),
        (inquiry(3, 2, 3, InquiryKind::NodeForget), "another agent is the owner"),
        (inquiry(0, 2, 3, InquiryKind::NodeForget), "the launcher owns no attributes"),
        (inquiry(1, 2, 3, look_up), "only the root sends that inquiry"),
        (inquiry(1, 2, 3, too_long), "the key is too long"),
        (answers(2, Reply::NodePut(true)), "the rank is below the child"),
        (answers(9, Reply::NodePut(true)), "the agent is unknown"),
        (answers(0, Reply::NodePut(true)), "the launcher has no ranks"),
        (answers(1, Reply::Connected(true)), "only the root sends that reply"),
    ] {
        let mut world = World::on_one_node();
        let actions = world.up(T, 2, message);
        let RootAction::CloseChild(AgentId(2), reason) = &actions[0] else { panic!("{why}: {actions:?}") };
        assert!(reason.to_string().contains("which is not allowed"), "{why}: {reason}");
        assert!(sent(&actions, 1).is_empty(), "{why}: {actions:?}");
    }
}

#[test]
fn a_namespace_is_found_by_its_name_until_it_is_undone() {
    let mut world = World::running();
    let connect = |job: &str| RootRequest::Connect { job: job.into() };
    let get = |job: &str, key: &str| RootRequest::GetFromJob { job: job.into(), key: key.into() };
    let reply = |reply| [RootAction::ToChild(AgentId(1), Down::Reply { requester: requester(1, 0), reply })];
    let ask = |to, namespace| {
        let kind = InquiryKind::LookUp { namespace, key: b"k".to_vec() };
        [RootAction::ToChild(AgentId(to), Down::Inquire(Inquiry { to: AgentId(to), requester: requester(1, 0), kind }))]
    };
    assert_eq!(world.asks(connect("scela-77_0")), reply(Reply::Connected(true)));
    assert_eq!(world.asks(get("scela-77_0", "k")), ask(1, NS), "the requester's own agent has the board");
    assert_eq!(world.asks(get("scela-77_0", "")), reply(Reply::GotFromJob(None)), "no rank can put that key");
    for unknown in ["scela-77_1", "scela-77_", "", "\u{fffd}"] {
        assert_eq!(world.asks(connect(unknown)), reply(Reply::Connected(false)));
        assert_eq!(world.asks(get(unknown, "k")), reply(Reply::GotFromJob(None)));
    }
    // The only rank is on agent 2: blocks are cut from the end.
    spawn(&mut world, 1);
    assert_eq!(world.asks(connect("scela-77_1")), reply(Reply::Connected(true)));
    assert_eq!(world.asks(get("scela-77_1", "k")), ask(2, NamespaceId(1)));
    let cause = Cause::NotStarted { why: not_found() };
    let failure = Failure { at: T, agent: AgentId(2), namespace: NamespaceId(1), ranks: ranks("0"), cause };
    world.up(T, 2, Up::Failed(failure));
    assert_eq!(world.asks(connect("scela-77_1")), reply(Reply::Connected(false)));
    assert_eq!(world.asks(get("scela-77_1", "k")), reply(Reply::GotFromJob(None)));
}
