//! The root's bounds: exactly so much is accepted, and one more is refused.

use super::*;
use crate::core::limits::{FAILURES_SINGLE_MAX, NAMES_MAX, NAMESPACES_MAX};

/// Returns the reply to the only rank that waits for one.
fn reply(actions: &[RootAction], child: u32) -> Option<Reply> {
    match sent(actions, child)[..] {
        [Down::Reply { reply, .. }] => Some(reply.clone()),
        _ => None,
    }
}

#[test]
fn as_many_names_as_the_bound_can_be_published() {
    let mut world = World::running();
    let mut publish = |name: usize| {
        let request = RootRequest::Publish { service: name.to_string().into_bytes(), port: b"p".to_vec() };
        reply(&world.asks(request), 1)
    };
    for name in 0..NAMES_MAX {
        assert_eq!(publish(name), Some(Reply::Published(Ok(()))), "name {name}");
    }
    assert_eq!(publish(NAMES_MAX), Some(Reply::Published(Err(NameError::Full))));
    assert_eq!(publish(0), Some(Reply::Published(Err(NameError::Taken))));
    let unpublish = RootRequest::Unpublish { service: b"0".to_vec() };
    assert_eq!(reply(&world.asks(unpublish), 1), Some(Reply::Unpublished(Ok(()))));
    let request = RootRequest::Publish { service: b"one more".to_vec(), port: b"p".to_vec() };
    assert_eq!(reply(&world.asks(request), 1), Some(Reply::Published(Ok(()))));
}

#[test]
fn as_many_namespaces_as_the_bound_can_be_spawned() {
    let mut world = World::running();
    // The last namespace but one: each spawn takes the next number.
    let (id, kvsname) = (NamespaceId(NAMESPACES_MAX - 2), "scela-77_last-but-one".to_owned());
    let plan = NamespacePlan { id, kvsname, ..plan_of(4, place(4, &[AgentId(1), AgentId(2)])) };
    world.root.launch(plan, None, &mut Turn { now: T, actions: &mut Vec::new() });
    let actions = spawn(&mut world, 2);
    let [Down::Launch(share)] = sent(&actions, 1)[..] else { panic!("{actions:?}") };
    assert_eq!(share.id, NamespaceId(NAMESPACES_MAX - 1));
    let actions = spawn(&mut world, 2);
    assert_eq!(reply(&actions, 2), Some(Reply::Spawned(Err("too_many_namespaces".to_owned()))), "{actions:?}");
}

#[test]
fn failures_beyond_the_bound_are_only_counted() {
    const RANKS: u32 = FAILURES_SINGLE_MAX + 3;
    let mut world = World::new(RANKS, 1, 1);
    world.up(T, 1, Up::Ready);
    for rank in 0..RANKS {
        world.fails(T, 1, rank, Cause::Code(1));
        let stored = world.root.failures.len() as u32;
        assert_eq!(
            (stored, world.root.failures_more),
            match rank + 1 {
                failures if failures <= FAILURES_SINGLE_MAX => (failures, 0),
                failures => (FAILURES_SINGLE_MAX, u64::from(failures - FAILURES_SINGLE_MAX)),
            }
        );
    }
    // A child may have counted any number of further ones.
    world.up(T, 1, Up::FailedMore { count: u64::MAX });
    world.after(at(1000), RootInput::Timeout);
    let actions = world.up(at(1000), 1, Up::Ended { leftovers: 0, timing: Box::default() });
    assert_eq!(outcome(&actions), None);
    let actions = world.after(at(1000), RootInput::OutputDone);
    let Some(Outcome::Failed { others, .. }) = outcome(&actions) else { panic!("{actions:?}") };
    assert_eq!(*others, u64::MAX);
}
