//! `--on-failure restart`: all ranks start again after a failure.

use std::time::Duration;

use nix::sys::signal::Signal;
use tests::{Process, Program, Run, Running, Tree, scela, sh};

use crate::{DEAD_TIME, rank, script};

fn restarting(max: u32) -> Run {
    scela().args(["--on-failure", "restart", "--max-restarts", &max.to_string(), "--kill-grace", "2"])
}

#[test]
fn a_job_that_succeeds_at_the_third_start_is_a_success() {
    // Rank 2 fails twice, each time after all have written. The others would run for ever.
    let program = sh("i=$SCELA_INCARNATION; echo start $i; if [ $i = 2 ]; then exit 0; fi; : >$WRITTEN.$i.$PMI_RANK
        if [ $PMI_RANK = 2 ]; then
            for rank in 0 1 3; do until [ -e $WRITTEN.$i.$rank ]; do sleep 0.02; done; done; exit 9
        fi; exec sleep 1000");
    let run = restarting(3).np(4).agents(2).program(program);
    let written = run.world().file("written");
    let outcome = run.env("WRITTEN", written).run();
    outcome.has_code(0).says("rank 2 on ").says("exited with code 9; all ranks start again: restart 1 of at most 3");
    outcome.says("restart 2 of at most 3").never_says("restart 3");
    outcome.wrote_lines((0..3).flat_map(|start| vec![format!("start {start}"); 4]));
}

#[test]
fn the_last_failure_ends_the_job_with_its_code() {
    let outcome = restarting(2).np(2).program(sh("exit 7")).run();
    outcome.has_code(7).says("restart 2 of at most 2").says("rank ").says("exited with code 7\n");
}

#[test]
fn more_failures_than_are_reported_one_by_one_do_not_stop_a_restart() {
    restarting(2).np(70).program(sh("exit 7")).run().has_code(7).says("restart 2 of at most 2");
}

#[test]
fn fences_work_after_a_restart() {
    let fails = script(["init", "fence", "exit 3"]);
    let waits = script(["init", "fence", "fence", "finalize"]);
    let outcome = restarting(2).np(3).agents(3).fanout(2).program(waits).and(1, fails).run();
    // Each start gets to the second fence.
    outcome.has_code(3).says("rank 3 on ").says("restart 2 of at most 2");
}

#[test]
fn the_user_knows_only_one_job() {
    // Rank 1 fails at the first start. At the second one, rank 0 waits for it in a fence.
    let second = |words: &[&str]| {
        let mut program = sh("echo start $SCELA_INCARNATION; if [ $SCELA_INCARNATION = 0 ]; then
            [ $PMI_RANK = 0 ] && exec sleep 1000; exit 1; fi; exec \"$@\"");
        program.extend(script(words.iter().copied()));
        program
    };
    let run = restarting(1).args(["-l", "-v"]).np(1).agents(2).program(second(&["init", "fence", "finalize"]));
    let running = run.and(1, second(&["init", "say ready", "pause"])).spawn();
    running.wait_for("ready");
    let host = nla::sys::host_name();
    let line = format!("scela-run:   rank 1 on {host}: sleeping, last PMI call: PMI_Init\n");
    running.wait_until("the ranks of the second start are reported", || {
        running.signal(Signal::SIGQUIT);
        let said = running.stderr().text();
        (said.contains("scela-run: fence 0: 1 rank has arrived and waits for 1\n") && said.contains(&line))
            .then_some(())
    });
    running.rank(1).signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.has_code(137).never_says("of namespace");
    // The first start may be ended before it has written anything.
    outcome.wrote_among_others("[0] start 1\n").wrote_among_others("[1] start 1\n");
    assert!(!outcome.out().contains(":0] "), "{outcome}");
}

#[test]
fn nothing_of_a_start_is_left_when_the_next_one_begins() {
    // The process that each start leaves would write at the next start, before that of the next one has written.
    let program = sh("i=$SCELA_INCARNATION; echo start $i
        (trap '' TERM; setsid sh -c \"sleep 1; echo left; : >$WRITTEN.$i\" &)
        [ $i = 1 ] || exit 1; until [ -e $WRITTEN.1 ]; do sleep 0.05; done");
    let run = restarting(1).np(1).program(program);
    let written = run.world().file("written");
    let outcome = run.env("WRITTEN", written).run();
    outcome.has_code(0).says("that the ranks had left running");
    assert_eq!(
        outcome.out().matches("left").count(),
        1,
        "only the last start's process has time to write: {}",
        outcome.out()
    );
}

#[test]
fn an_interrupt_ends_a_job_that_starts_again() {
    let program = sh("trap '' TERM; echo up; if [ $PMI_RANK = 0 ]; then sleep 0.2; exit 1; fi; sleep 1000; sleep 1000");
    let running = restarting(1000).np(2).program(program).spawn();
    running.wait_for_error("restart 1 of at most 1000");
    running.signal(Signal::SIGTERM).signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

/// Ranks whose first start lasts until it is ended, and whose second one makes three rounds of fences.
fn three_rounds() -> Program {
    three_rounds_after(1)
}

/// Ranks of which so many starts last until they are ended. The next one makes three rounds of fences.
fn three_rounds_after(starts: u32) -> Program {
    let text = format!("if [ $SCELA_INCARNATION -lt {starts} ]; then exec \"$@\" 1000000; else exec \"$@\" 3; fi");
    let mut program = sh(&text);
    program.extend(rank(["survivors"]));
    program
}

/// Four ranks on four agents, each of which plays a node, and so many spare nodes.
fn with_spares(spares: u32) -> Run {
    let run = restarting(3).args(["-v", "--agents-as-nodes", "--dead-time", DEAD_TIME]);
    let run = run.args(["--spares", &spares.to_string()]);
    run.np(4).agents(4 + spares).fanout(2)
}

/// Kills the agent of a rank.
fn kill_agent_of(running: &Running, rank: u32) {
    let agent = running.rank(rank).parent;
    Process::of(agent).expect("the agent of a living rank lives").signal(Signal::SIGKILL);
}

#[test]
fn a_spare_takes_over_from_a_lost_inner_agent() {
    for policy in ["hcmab", "hcs"] {
        let running = with_spares(1).cache(&[policy]).program(three_rounds()).spawn();
        running.wait_for_error("fence 5: ");
        kill_agent_of(&running, 0);
        let outcome = running.finish();
        outcome.has_code(0).says("agent 1 on ").says("all ranks start again: restart 1 of at most 3");
        outcome.wrote_lines((0..4).map(|rank| format!("rank {rank}: 3 rounds, 0 failed, dead: ")));
    }
}

/// After the dead time the restart would wait for a quarter of an hour.
const LONG: [&str; 2] = ["--dead-time", "300"];

#[test]
fn no_restart_waits_for_an_agent_whose_guardian_has_ended() {
    for (policy, program) in [("restart", three_rounds()), ("restart=rank", rank(["survivors", "400"]))] {
        let options = ["-v", "--on-failure", policy, "--agents-as-nodes", "--spares", "1"];
        let running = scela().args(options).args(LONG).np(4).agents(5).fanout(2).program(program).spawn();
        running.wait_for_error("fence 5: ");
        kill_agent_of(&running, 3);
        running.finish().has_code(0).says("restart 1 of at most 3").took_less_than(Duration::from_secs(100));
    }
}

#[test]
fn two_spares_take_over_from_two_lost_agents_one_after_the_other() {
    let running = with_spares(2).program(three_rounds_after(2)).spawn();
    running.wait_for_error("fence 5: ");
    let pids = || running.world().ranks().iter().map(|(_, rank)| rank.pid).collect::<Vec<_>>();
    let first: Vec<_> = running.ranks(4).iter().map(|rank| rank.pid).collect();
    let inner = Process::of(running.rank(0).parent).expect("the agent of a living rank lives");
    kill_agent_of(&running, 1);
    let have_started_again = || {
        let now = pids();
        (now.len() == 4 && now.iter().all(|pid| !first.contains(pid))).then_some(())
    };
    tests::eventually(have_started_again).expect("all ranks start again");
    inner.signal(Signal::SIGKILL);
    let outcome = running.finish();
    outcome.has_code(0);
    outcome.wrote_lines((0..4).map(|rank| format!("rank {rank}: 3 rounds, 0 failed, dead: ")));
}

#[test]
fn without_a_spare_the_loss_of_an_agent_ends_the_job() {
    let running = with_spares(0).program(three_rounds()).spawn();
    running.wait_for_error("fence 5: ");
    kill_agent_of(&running, 2);
    let outcome = running.finish();
    outcome.has_code(252).says("no other host can take over the ranks of the lost one").never_says("restart 1");
}

#[test]
fn the_loss_of_a_spare_does_not_disturb_the_job() {
    let program = sh("echo up; until [ -e \"$GO\" ]; do sleep 0.05; done; echo done");
    let run = with_spares(1).program(program);
    let go = run.world().file("go");
    let running = run.env("GO", &go).spawn();
    running.wait_for_times("up", 4);
    let used: Vec<_> = running.ranks(4).iter().map(|rank| rank.parent).collect();
    let spare = running.world().agents().into_iter().find(|agent| !used.contains(&agent.pid)).expect("one has no rank");
    spare.signal(Signal::SIGKILL);
    running.wait_for_error("reported: agent 5 on ");
    std::fs::write(go, "").expect("it can be written");
    let outcome = running.finish();
    outcome.has_code(0).never_says("restart 1").wrote_lines([["up"; 4], ["done"; 4]].concat());
}

fn reviving(max: u32) -> Run {
    scela().args(["--on-failure", "restart=rank", "--max-restarts", &max.to_string()])
}

#[test]
fn only_the_failed_ranks_start_again() {
    for (extra, policy) in [(&[][..], "hcmab"), (&["--pmi-port"], "hcmab"), (&[], "hcs"), (&[], "hcmab-lru")] {
        let run = reviving(3).args(extra).cache(&[policy]).np(8).agents(4).fanout(2);
        let outcome = run.program(rank(["survivors", "4", "5@2", "2@3"])).run();
        outcome
            .has_code(0)
            .says("rank 5 on ")
            .says("was killed by signal 9 (KILL); it starts again: restart 1 of at most 3");
        outcome.says("rank 2 on ").says("restart 2 of at most 3").never_says("restart 3");
        outcome.wrote_lines((0..8).map(|rank| format!("rank {rank}: 4 rounds, 0 failed, dead: ")));
    }
}

#[test]
fn a_rank_that_keeps_failing_ends_the_job() {
    let program = sh("echo start $SCELA_INCARNATION; [ $PMI_RANK = 1 ] && exit 7; exec sleep 1000");
    let outcome = reviving(2).np(2).program(program).run();
    outcome
        .has_code(7)
        .says("restart 2 of at most 2")
        .says("rank 1 on ")
        .says("ranks had started again 2 times, as often as --max-restarts allows\n")
        .wrote_lines(["start 0", "start 0", "start 1", "start 2"]);
}

#[test]
fn what_a_failed_rank_has_started_ends_before_it_starts_again() {
    // The helper writes if it lives when the second start looks for it.
    let program = sh("pid=$PID.$PMI_RANK
        if [ $SCELA_INCARNATION = 0 ]; then sleep 1000 & echo $! >$pid; exit 1; fi
        kill -0 $(cat $pid) 2>/dev/null && echo alive; exit 0");
    let run = reviving(8).np(8).program(program);
    let pid = run.world().file("pid");
    run.env("PID", &pid).run().has_code(0).wrote_lines(Vec::<String>::new());
}

#[test]
fn an_abort_ends_a_job_whose_ranks_start_again() {
    let aborts = script(["init", ">cmd=abort exitcode=7", "pause"]);
    reviving(3).np(1).program(aborts).and(1, sh("exec sleep 1000")).run().has_code(7);
}

#[test]
fn ranks_killed_at_any_time_start_again() {
    let run = reviving(1000).arg("-v").np(6).agents(3).fanout(2);
    let running = run.program(rank(["survivors", "400"])).spawn();
    for fence in [5, 6, 7, 40, 41, 90, 150] {
        running.wait_for_error(&format!("fence {fence}: "));
        // At times, none has executed its program yet.
        let some_ranks = || Some(running.world().ranks()).filter(|ranks| !ranks.is_empty());
        let ranks = running.wait_until("a rank runs", some_ranks);
        ranks[fence % ranks.len()].1.signal(Signal::SIGKILL);
    }
    let outcome = running.finish();
    outcome.has_code(0).wrote_lines((0..6).map(|rank| format!("rank {rank}: 400 rounds, 0 failed, dead: ")));
}

#[test]
fn the_ranks_of_a_killed_agent_start_on_another_one_and_the_others_go_on() {
    for (is_inner, policy) in [(true, "hcmab"), (false, "hcs")] {
        let run = reviving(3).args(["-v", "--dead-time", DEAD_TIME]).cache(&[policy]).np(7).agents(7).fanout(2);
        let running = run.program(rank(["survivors", "400"])).spawn();
        running.wait_for_error("fence 5: ");
        let tree = Tree::new(7, 2);
        let lost = if is_inner { tree.inner() } else { 7 };
        tree.process(running.world(), lost).signal(Signal::SIGKILL);
        let outcome = running.finish();
        outcome.has_code(0).says(&format!("agent {lost} on "));
        outcome.says("its ranks start again on another one: restart 1 of at most 3").never_says("restart 2");
        outcome.wrote_lines((0..7).map(|rank| format!("rank {rank}: 400 rounds, 0 failed, dead: ")));
    }
}
