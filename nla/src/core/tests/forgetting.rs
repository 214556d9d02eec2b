//! Namespaces of MPI_Comm_spawn that have ended leave no state.

use litemap::LiteMap;
use pmi::{Answer, Puts, Rank, Request, RootRequest, SpawnCommand, SpawnRequest};

use super::NS;
use super::tree::{Tree, placements, shapes};
use crate::core::cache::CachePolicy;
use crate::core::failure_policy::FailurePolicy;
use crate::core::ids::{AgentId, NamespaceId};
use crate::core::limits::{FAILURES_SINGLE_MAX, NAMESPACES_ENDED_MAX};

fn tree(policy: CachePolicy, on_failure: FailurePolicy, (agents, fanout): (u32, u32), seed: u64) -> Tree {
    let nodes: LiteMap<_, _> = (1..=agents).map(|agent| (AgentId(agent), agent / 2)).collect();
    let placement = placements(agents).remove(0);
    Tree::with_policies(policy, on_failure, (agents, fanout), placement, &nodes, seed)
}

fn spawn(tree: &mut Tree, nprocs: u32) -> Answer {
    let command = SpawnCommand { program: b"child".to_vec(), args: Vec::new(), nprocs, info: Vec::new() };
    let request = SpawnRequest { commands: vec![command], preputs: vec![(b"port".to_vec(), b"p".to_vec())] };
    tree.answer_to(0, Request::Ask(RootRequest::Spawn(request))).expect("the spawn is answered")
}

/// Spawns namespace `id`, whose `nprocs` ranks put, fence and look up an entry, and end. Returns its name.
fn live(tree: &mut Tree, id: u32, nprocs: u32) -> String {
    let namespace = NamespaceId(id);
    let Answer::Spawned(Ok(spawned)) = spawn(tree, nprocs) else { panic!("namespace {id} is spawned") };
    for rank in 0..nprocs {
        tree.ask(namespace, rank, Request::Joined);
        let mut puts = Puts::new();
        puts.push(Rank(rank), format!("k{rank}").as_bytes(), b"v");
        tree.ask(namespace, rank, Request::Fence { puts, in_segment: false });
    }
    tree.settle();
    for rank in 0..nprocs {
        assert_eq!(tree.answer(namespace, rank), Some(Answer::Released), "namespace {id}");
        assert_eq!(tree.get(namespace, rank, &format!("k{}", (rank + 1) % nprocs)).as_deref(), Some("v"));
        tree.ask(namespace, rank, Request::Finalized);
    }
    tree.end_ranks(namespace);
    spawned.job
}

fn found(tree: &mut Tree, job: &str, key: &str) -> Option<Vec<u8>> {
    let request = RootRequest::GetFromJob { job: job.as_bytes().to_vec(), key: key.as_bytes().to_vec() };
    match tree.answer_to(0, Request::Ask(request)) {
        Some(Answer::GotFromJob(value)) => value,
        answer => panic!("{answer:?}"),
    }
}

#[test]
fn thousands_of_spawned_namespaces_do_not_add_up() {
    for (number, policy) in CachePolicy::ALL.into_iter().enumerate() {
        for on_failure in [FailurePolicy::Abort, FailurePolicy::Continue] {
            let mut tree = tree(policy, on_failure, (5, 2), number as u64);
            let mut sizes = Vec::new();
            // All policies, and one of them for longer.
            let last = if (policy, on_failure) == Default::default() { 2000 } else { 200 };
            for id in 1..=last {
                live(&mut tree, id, 7);
                if id % (last / 20) == 0 {
                    tree.settle();
                    sizes.push(tree.state_size());
                }
            }
            let (first, last) = (sizes[4], sizes[sizes.len() - 1]);
            // Counters get longer by a digit now and then; a namespace has several thousand letters.
            assert!(last <= first + 500, "{policy:?} {on_failure:?}: {sizes:?}");
            tree.end();
        }
    }
}

#[test]
fn the_last_ended_namespaces_can_still_be_asked() {
    for (agents, fanout) in shapes(4) {
        for (number, policy) in CachePolicy::ALL.into_iter().enumerate() {
            let mut tree = tree(policy, FailurePolicy::Abort, (agents, fanout), number as u64);
            let jobs: Vec<_> = (1..=NAMESPACES_ENDED_MAX as u32 + 2).map(|id| live(&mut tree, id, 3)).collect();
            tree.settle();
            let forgotten = jobs.len() - NAMESPACES_ENDED_MAX;
            for (at, job) in jobs.iter().enumerate() {
                let (known, value) = (at >= forgotten, found(&mut tree, job, "k2"));
                assert_eq!(value.as_deref(), known.then_some(&b"v"[..]), "{policy:?} {agents} {fanout}: {job}");
                let preput = found(&mut tree, job, "port");
                assert_eq!(preput.as_deref(), known.then_some(&b"p"[..]), "{policy:?} {agents} {fanout}: {job}");
                let connect = RootRequest::Connect { job: job.as_bytes().to_vec() };
                assert_eq!(tree.answer_to(0, Request::Ask(connect)), Some(Answer::Connected(known)));
            }
            tree.end();
        }
    }
}

#[test]
fn messages_about_a_forgotten_namespace_are_ignored() {
    // Reports of exits are under way when the look-ups are sent, so these meet the end of their namespaces anywhere.
    for seed in 0..8 {
        for (number, policy) in CachePolicy::ALL.into_iter().enumerate() {
            let mut tree = tree(policy, FailurePolicy::Abort, (5, 2), seed * 4 + number as u64);
            for id in 1..=12 {
                let namespace = NamespaceId(id);
                live(&mut tree, id, 5);
                let Some(job) = (id > 8).then(|| format!("scela-77_{}", id - 8)) else { continue };
                // The look-up may arrive before its namespace is forgotten, or later.
                let request = RootRequest::GetFromJob { job: job.into_bytes(), key: b"k4".to_vec() };
                tree.ask(NS, 0, Request::Ask(request));
                tree.settle();
                let answer = tree.answer(NS, 0);
                assert!(matches!(answer, Some(Answer::GotFromJob(_))), "{answer:?} {namespace}");
            }
            tree.end();
        }
    }
}

#[test]
fn spawns_that_fail_leave_no_state_and_are_all_answered() {
    for on_failure in [FailurePolicy::Abort, FailurePolicy::Continue] {
        let mut tree = tree(CachePolicy::default(), on_failure, (4, 2), 1);
        tree.refusing = Some(AgentId(3));
        let mut sizes = Vec::new();
        for number in 1..=5 * FAILURES_SINGLE_MAX {
            let Answer::Spawned(result) = spawn(&mut tree, 6) else { panic!("the spawn is answered") };
            assert_eq!(result, Err("it is not there".to_owned()), "spawn {number}");
            tree.end_ranks(NamespaceId(number));
            tree.settle();
            sizes.push(tree.state_size());
        }
        let first = sizes[99];
        assert!(sizes[100..].iter().all(|size| *size <= first + 200), "{on_failure:?}: {sizes:?}");
        tree.end();
    }
}
