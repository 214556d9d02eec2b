//! Input that no PMI client should send, but some do. The rank gets the protocol's error, or is failed with a clear
//! report. Its agent continues.

use nix::sys::signal::Signal;
use tests::{Outcome, scela};

use crate::{host, script};

/// Runs four ranks on two agents. Rank 1 takes `steps`, then all ranks meet in a fence.
fn assert_replies(steps: &[&str], replies: &[&str]) {
    let steps = ["init", "@1"].iter().chain(steps).chain(&["@*", "put k v", "fence", "get k", "finalize"]).copied();
    let outcome = scela().np(4).agents(2).program(script(steps)).run();
    let lines = replies.iter().map(|reply| format!("1: {reply}")).chain((0..4).map(|rank| format!("{rank}: k=v")));
    outcome.is_quiet_success().wrote_lines(lines);
}

/// Runs four ranks on two agents. Rank 1 takes `steps` and is failed for the reason `why`.
fn assert_killed(steps: &[&str], why: &str) -> Outcome {
    let steps = ["@1"].iter().chain(steps).chain(&["<end", "pause", "@*", "init", "fence"]).copied();
    let outcome = scela().np(4).agents(2).program(script(steps)).run();
    outcome
        .has_code(1)
        .says(&format!("error: rank 1 on {} broke the PMI protocol and was killed: ", host()))
        .says(why)
        .says("the job's 3 other ranks were ended")
        .says("hint: was the program's MPI library built for another process manager?");
    outcome
}

#[test]
fn lines_sent_byte_by_byte_are_answered() {
    assert_replies(
        &["~cmd=put kvsname=x key=slow value=a b", "~cmd=get kvsname=x key=slow"],
        &["cmd=put_result rc=0 msg=success", "cmd=get_result rc=0 value=a b"],
    );
}

#[test]
fn lines_sent_at_once_are_answered_in_order() {
    assert_replies(
        &[">cmd=put kvsname=x key=a value=1\ncmd=get kvsname=x key=a\ncmd=get_appnum", "<3"],
        &["cmd=put_result rc=0 msg=success", "cmd=get_result rc=0 value=1", "cmd=appnum rc=0 appnum=0"],
    );
}

#[test]
fn lines_sent_during_a_barrier_are_answered_after_it() {
    let steps = ["init", "put k-{rank} v", ">cmd=barrier_in\ncmd=get kvsname=x key=k-1\ncmd=finalize", "<3"];
    let outcome = scela().np(2).agents(2).program(script(steps)).run();
    outcome.is_quiet_success();
    let expected = ["cmd=barrier_out rc=0", "cmd=get_result rc=0 value=v", "cmd=finalize_ack rc=0"];
    outcome.wrote_lines((0..2).flat_map(|rank| expected.map(|line| format!("{rank}: {line}"))));
}

#[test]
fn unknown_commands_are_refused() {
    assert_replies(&["cmd=make_coffee sugar=2"], &["cmd=make_coffee_result rc=-1 msg=unsupported"]);
    assert_replies(&["mcmd=make_tea\nendcmd"], &["cmd=make_tea_result rc=-1 msg=unsupported"]);
}

#[test]
fn blank_lines_are_ignored() {
    assert_replies(&[">", ">   ", "cmd=get_appnum"], &["cmd=appnum rc=0 appnum=0"]);
}

#[test]
fn commands_without_required_fields_are_refused() {
    let refused = |step: &str, reply: &str| {
        let outcome = scela().np(2).agents(2).program(script(["init", "@1", step, "@*", "fence", "finalize"])).run();
        outcome.is_quiet_success().wrote_among_others(&format!("1: cmd={reply} rc=-1 "));
        let line = outcome.out();
        let message = line.split(" rc=-1 ").nth(1).unwrap_or_default().trim_end();
        outcome.check(message.contains('=') && !message.contains(' '), "a refusal should be one field without blanks");
    };
    refused("cmd=put kvsname=x", "put_result");
    refused("cmd=put kvsname=x key=k", "put_result");
    refused("cmd=get kvsname=x", "get_result");
    refused("cmd=publish_name service=s", "publish_result");
    refused("cmd=lookup_name", "lookup_result");
    refused("cmd=getbyidx kvsname=x idx=many", "getbyidx_results");
}

#[test]
fn a_spawn_of_no_processes_is_refused() {
    assert_replies(
        &[">mcmd=spawn\nnprocs=0\nexecname=x\ntotspawns=1\nspawnssofar=1\nargcnt=0\nendcmd", "<1"],
        &["cmd=spawn_result rc=-1 msg=number_of_processes_not_in_1..1048576"],
    );
}

#[test]
fn a_line_without_end_gets_its_rank_killed() {
    assert_killed(&["init", "#1048577"], "1048576");
}

#[test]
fn a_line_that_is_too_long_gets_its_rank_killed() {
    assert_killed(&["init", ">>cmd=put kvsname=x key=k value=", "#2000000", ">"], "1048576");
}

#[test]
fn the_longest_line_is_answered() {
    let steps = ["init", ">>cmd=put kvsname=x key=k value=", "#1000000", ">", "<1", "finalize"];
    let outcome = scela().np(1).program(script(steps)).run();
    outcome.is_quiet_success().wrote_among_others("0: cmd=put_result rc=-1 msg=");
}

#[test]
fn bytes_that_are_no_command_get_their_rank_killed() {
    assert_killed(&["init", "%00ff80fe0a"], "");
    assert_killed(&["GET / HTTP/1.1"], "");
    assert_killed(&["init", ">put=cmd"], "");
}

#[test]
fn a_barrier_before_init_gets_its_rank_killed() {
    assert_killed(&[">cmd=barrier_in"], "entered a barrier without having initialised");
}

#[test]
fn a_barrier_after_finalize_gets_its_rank_killed() {
    assert_killed(&["init", "finalize", ">cmd=barrier_in"], "entered a barrier without having initialised");
}

#[test]
fn other_commands_before_init_are_refused() {
    let steps =
        ["@1", "cmd=get kvsname=x key=k", "cmd=put kvsname=x key=k value=v", "cmd=finalize", "@*", "init", "fence"];
    let outcome = scela().np(2).agents(2).program(script(steps)).run();
    outcome.is_quiet_success().wrote(
        "1: cmd=get_result rc=-1 msg=not_initialized\n1: cmd=put_result rc=-1 msg=not_initialized\n\
         1: cmd=finalize_ack rc=-1 msg=not_initialized\n",
    );
}

#[test]
fn an_abort_is_never_answered() {
    let outcome =
        scela().np(2).agents(2).program(script(["init", "@1", ">cmd=abort exitcode=4", "<end", "pause"])).run();
    outcome.has_code(4).says("called MPI_Abort(4)");
    outcome.check(!outcome.out().contains("cmd="), "an abort should have no reply");
}

#[test]
fn an_abort_may_precede_init_and_lack_a_code() {
    scela().np(2).program(script([">cmd=abort", "pause"])).run().has_code(1).says("called MPI_Abort(1)");
}

#[test]
fn invalid_groups_in_a_barrier_are_refused() {
    assert_replies(&["cmd=barrier_in group=0,99:0"], &["cmd=barrier_out rc=-1 msg=group_invalid"]);
    let not_in_group = "cmd=barrier_out rc=-1 msg=a_process_of_the_group_has_died_or_does_not_exist";
    assert_replies(&["cmd=barrier_in group=2:0"], &[not_in_group]);
}

#[test]
fn a_closed_connection_alone_is_no_failure() {
    let close = "eval \"exec $PMI_FD<&-\"; echo closed";
    // dash accepts single digits only as a descriptor. bash accepts every value of PMI_FD.
    let program = ["bash", "-c", close].map(Into::into).into();
    scela().np(2).agents(2).program(program).run().is_quiet_success().wrote("closed\nclosed\n");
}

#[test]
fn a_rank_that_sends_without_reading_does_not_delay_other_ranks() {
    let steps = ["init", "@1", "*20000 cmd=get kvsname=x key=absent", "@*", "put k {rank}", "get k", "pause"];
    let running = scela().np(3).agents(1).program(script(steps)).spawn();
    running.wait_for("0: k=0\n").wait_for("2: k=2\n").signal(Signal::SIGTERM);
    running.finish().has_code(143);
}
