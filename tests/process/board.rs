//! The bulletin board: every entry that is put can be got, in trees of every shape.

use tests::{CACHES, Outcome, Run, scela};

use crate::{rank, script};

/// Checks a run of `np` ranks for each shape of the tree, and each other cache policy in two of the shapes.
fn in_all_shapes(np: u32, check: impl Fn(Run)) {
    for (agents, fanout) in [(1, 2), (3, 2), (12, 2), (12, 3), (12, 32)] {
        check(scela().np(np).agents(agents).fanout(fanout));
    }
    for policy in &CACHES[1..] {
        for (agents, fanout) in [(1, 2), (12, 3)] {
            check(scela().np(np).agents(agents).fanout(fanout).cache(policy));
        }
    }
}

/// Asserts that every rank wrote these lines, each after its rank.
#[track_caller]
fn all_wrote(outcome: &Outcome, np: u32, lines: &[&str]) {
    let line = |rank| lines.iter().map(move |line| format!("{rank}: {line}"));
    outcome.is_quiet_success().wrote_lines((0..np).flat_map(line));
}

#[test]
fn each_rank_gets_entries_of_its_neighbours() {
    in_all_shapes(24, |run| {
        run.program(rank(["neighbours", "3"])).run().is_quiet_success();
    });
}

#[test]
fn each_rank_gets_entries_of_all_ranks() {
    in_all_shapes(24, |run| {
        run.program(rank(["everybody", "2"])).run().is_quiet_success();
    });
}

#[test]
fn each_of_many_ranks_gets_entries_of_all_ranks() {
    for policy in CACHES {
        // The board is many times larger than the smaller caches.
        let run = scela().np(128).agents(12).fanout(3).cache(policy);
        run.program(rank(["everybody", "1"])).run().is_quiet_success();
    }
}

#[test]
fn listing_the_entries_of_a_partial_board_is_refused() {
    let steps = ["init", "put k v", "fence", "cmd=getbyidx kvsname=x idx=0", "finalize"];
    for policy in &CACHES[1..] {
        let outcome = scela().np(1).cache(policy).program(script(steps)).run();
        outcome.is_quiet_success().wrote_among_others("0: cmd=getbyidx_results rc=-1");
    }
    scela().np(1).program(script(steps)).run().wrote_among_others("0: cmd=getbyidx_results rc=0 nextidx=1 key=k val=v");
}

#[test]
fn values_of_all_kinds_arrive_unchanged() {
    in_all_shapes(5, |run| {
        run.program(rank(["values"])).run().is_quiet_success();
    });
}

#[test]
fn hundreds_of_fences_complete() {
    in_all_shapes(6, |run| {
        run.program(rank(["fences", "500"])).run().is_quiet_success();
    });
}

#[test]
fn the_put_of_the_highest_rank_wins() {
    let steps = ["init", "put same first-{rank}", "put same {rank}", "fence", "get same", "fence", "finalize"];
    in_all_shapes(13, |run| all_wrote(&run.program(script(steps)).run(), 13, &["same=12"]));
}

#[test]
fn a_later_put_wins_over_an_earlier_one_of_a_higher_rank() {
    let steps = ["init", "@4", "put same high", "@*", "fence", "@1", "put same low", "@*", "fence", "get same"];
    in_all_shapes(5, |run| all_wrote(&run.program(script(steps)).run(), 5, &["same=low"]));
}

#[test]
fn puts_are_visible_after_the_next_fence() {
    let steps = [
        "init", "@0", "put a 1", "@*", "fence", "get a", "get b", "@3", "put b 2", "put a 3", "@*", "fence", "get a",
        "get b", "finalize",
    ];
    in_all_shapes(4, |run| all_wrote(&run.program(script(steps)).run(), 4, &["a=1", "b is absent", "a=3", "b=2"]));
}

#[test]
fn a_get_of_an_absent_key_does_not_wait_for_other_ranks() {
    let run = scela().np(3).agents(3).fanout(2);
    let file = run.world().file("answered");
    let (touch, wait) = (format!("touch {}", file.display()), format!("await {}", file.display()));
    let steps = ["@0", "init", "get card-2", &touch, "@1", &wait, "init", "@2", &wait, "init", "@*", "fence"];
    run.program(script(steps)).run().is_quiet_success().wrote("0: card-2 is absent\n");
}

#[test]
fn an_absent_key_can_be_put_later() {
    let steps = ["init", "get k", "fence", "get k", "@2", "put k v", "@*", "fence", "get k", "finalize"];
    in_all_shapes(3, |run| all_wrote(&run.program(script(steps)).run(), 3, &["k is absent", "k is absent", "k=v"]));
}

#[test]
fn own_puts_are_seen_at_once_and_those_of_others_after_the_fence() {
    let run = scela().np(2).agents(1);
    let file = |name| run.world().file(name).display().to_string();
    let (put, looked) = (file("put"), file("looked"));
    let steps = [
        "init",
        "@0",
        "put k v",
        "get k",
        &format!("touch {put}"),
        &format!("await {looked}"),
        "@1",
        &format!("await {put}"),
        "get k",
        &format!("touch {looked}"),
        "@*",
        "fence",
        "get k",
        "finalize",
    ];
    run.program(script(steps)).run().is_quiet_success().wrote_lines(["0: k=v", "1: k is absent", "0: k=v", "1: k=v"]);
}

#[test]
fn any_kvsname_is_accepted() {
    let steps = ["init", "cmd=put kvsname=unknown key=k value=v", "fence", "cmd=get kvsname=other key=k", "finalize"];
    let lines = ["cmd=put_result rc=0 msg=success", "cmd=get_result rc=0 value=v"];
    all_wrote(&scela().np(2).agents(2).program(script(steps)).run(), 2, &lines);
}

#[test]
fn keys_and_values_are_accepted_up_to_their_bounds() {
    let put =
        |key: usize, value: usize| format!("cmd=put kvsname=x key={} value={}", "k".repeat(key), "v".repeat(value));
    let steps = ["init", &put(63, 1023), &put(64, 1), &put(1, 1024), &put(1, 0), "finalize"];
    let outcome = scela().np(1).program(script(steps)).run();
    outcome.is_quiet_success();
    let replies: Vec<String> = outcome.out().lines().map(str::to_owned).collect();
    assert_eq!(replies[0], "0: cmd=put_result rc=0 msg=success", "{outcome}");
    assert!(replies[1..3].iter().all(|reply| reply.starts_with("0: cmd=put_result rc=-1 msg=")), "{outcome}");
}

#[test]
fn reserved_keys_cannot_be_put() {
    let steps = ["init", "cmd=put kvsname=x key=PMI_process_mapping value=(vector,(0,9,9))", "finalize"];
    let outcome = scela().np(1).program(script(steps)).run();
    outcome.is_quiet_success().wrote_among_others("0: cmd=put_result rc=-1 msg=");
}

#[test]
fn a_large_board_reaches_all_ranks() {
    // Each of 32 ranks puts 40 entries of 900 bytes, which makes more than a megabyte in one fence.
    let puts: Vec<String> = (0..40).map(|n| format!("put key-{{rank}}-{n} {}", "v".repeat(900))).collect();
    let mut steps = vec!["init"];
    steps.extend(puts.iter().map(String::as_str));
    steps.extend(["fence", "get key-31-39", "get key-0-0", "finalize"]);
    let value = "v".repeat(900);
    let lines = [format!("key-31-39={value}"), format!("key-0-0={value}")];
    // The agents get the epoch through the launcher's log, then over links.
    for options in [&[][..], &["--agents-as-nodes"]] {
        let outcome = scela().np(32).agents(7).fanout(2).args(options).program(script(steps.clone())).run();
        all_wrote(&outcome, 32, &lines.each_ref().map(String::as_str));
    }
}
