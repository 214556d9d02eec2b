//! Processes that a lost agent leaves, if its guardian is stopped or killed as well, end before the ranks start again elsewhere.

use nix::sys::signal::Signal;
use tests::{Process, Program, Run, Running, scela, sh};

use crate::DEAD_TIME;

/// An agent and its guardian, which then do not act on each other's loss.
#[derive(Copy, Clone)]
enum Fault {
    BothStopped,
    BothKilled,
    GuardianStopped,
}

impl Fault {
    /// Strikes the agent of rank 0.
    fn strike(self, running: &Running) {
        let agent = Process::of(running.rank(0).parent).expect("the agent of a living rank lives");
        let guardian = Process::of(agent.parent).expect("the guardian of a living agent lives");
        assert_eq!((agent.name.as_str(), guardian.name.as_str()), ("scela-agent", "scela-guard"));
        guardian.signal(Signal::SIGSTOP);
        match self {
            Self::BothStopped => agent.signal(Signal::SIGSTOP),
            Self::BothKilled => Process::signal_all([&agent, &guardian], Signal::SIGKILL),
            Self::GuardianStopped => agent.signal(Signal::SIGKILL),
        }
    }
}

/// Two ranks. All agents are on this machine, as its own or as those of hosts.
fn on_this_machine(has_hosts: bool) -> Run {
    let run = scela().args(["--dead-time", &format!("{DEAD_TIME},{DEAD_TIME}"), "--kill-grace", "1"]).np(2);
    if has_hosts {
        run.args(["-hosts", "h1,h2,h3", "--bootstrap", "exec:env X={host}", "-ppn", "1", "--spares", "1"])
    } else {
        run.agents(2)
    }
}

/// A wrapper script, whose worker says if a worker of an earlier start of its rank lives. The first workers run until one is
/// started again.
fn workers(run: Run) -> Run {
    let worker = "file=$STARTS.$PMI_RANK; go=$STARTS.go
        for pid in $(cat $file 2>/dev/null); do kill -0 $pid 2>/dev/null && echo twice; done
        echo $$ >>$file; echo start
        if [ $SCELA_INCARNATION != 0 ]; then touch $go; fi; until [ -e $go ]; do sleep 0.05; done";
    let starts = run.world().file("starts");
    let program: Program = sh("sh -c \"$WORKER\"; exit $?");
    run.env("STARTS", starts).env("WORKER", worker).program(program)
}

fn never_runs_a_rank_twice(fault: Fault, policy: &str) {
    for has_hosts in [false, true] {
        let running = workers(on_this_machine(has_hosts).args(["--on-failure", policy])).spawn();
        running.wait_for_times("start", 2);
        fault.strike(&running);
        let outcome = running.finish();
        // All ranks start again, or one.
        let starts = if policy == "restart" { 4 } else { 3 };
        outcome.has_code(0).says("restart 1 of at most 3").wrote_lines(vec!["start"; starts]);
    }
}

#[test]
fn no_rank_runs_twice_if_agent_and_guardian_were_stopped() {
    never_runs_a_rank_twice(Fault::BothStopped, "restart=rank");
}

#[test]
fn no_rank_of_a_restarted_job_runs_twice_if_agent_and_guardian_were_stopped() {
    never_runs_a_rank_twice(Fault::BothStopped, "restart");
}

#[test]
fn no_rank_runs_twice_if_agent_and_guardian_were_killed() {
    never_runs_a_rank_twice(Fault::BothKilled, "restart=rank");
}

#[test]
fn no_rank_runs_twice_if_the_guardian_of_a_killed_agent_was_stopped() {
    never_runs_a_rank_twice(Fault::GuardianStopped, "restart=rank");
}

/// Without that, they would run on until the end of the job.
#[test]
fn what_a_lost_agent_has_left_ends_while_the_others_go_on() {
    for fault in [Fault::BothStopped, Fault::BothKilled, Fault::GuardianStopped] {
        let run = on_this_machine(true).args(["--on-failure", "continue"]);
        let running = run.program(sh("sleep 1000 & echo start; exec sleep 1000")).spawn();
        running.wait_for_times("start", 2);
        fault.strike(&running);
        running.wait_until("the processes of the lost agent end", || {
            let left = running.world().processes().into_iter();
            let left: Vec<_> = left.filter(|process| process.rank() == Some(0) || process.state == 'T').collect();
            left.is_empty().then_some(())
        });
        assert_eq!(running.world().ranks().len(), 1, "the other rank runs");
        running.signal(Signal::SIGTERM);
        running.finish().has_code(143);
    }
}
