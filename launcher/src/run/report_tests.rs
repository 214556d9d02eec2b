//! Tests of the full texts of reports.

use nla::core::{DeviceRemedy, Killed, LackOfDevices, LeftProcesses};

use super::*;

fn failure(ranks: &str, cause: Cause) -> Failure {
    Failure {
        at: Duration::from_millis(14_200),
        agent: AgentId(2),
        namespace: NamespaceId::FIRST,
        ranks: if ranks.is_empty() { Ranks::new() } else { ranks.parse().unwrap() },
        cause,
    }
}

fn report_of(size: u32, others: u64, first: Failure) -> String {
    report_at(NeedyHost::Here { files_max: 4096, raise: None }, size, others, first)
}

fn report_at(host: NeedyHost, size: u32, others: u64, first: Failure) -> String {
    let needs = HostNeeds { tasks: 77, ranks: size, host, in_pool: false };
    epilogue(&Outcome::Failed { first, others }, size, Some(&needs), None, |_| "n0427".to_owned(), &[]).unwrap()
}

#[test]
fn a_killed_rank_is_reported_with_its_signal() {
    let killed = failure("12", Cause::Signal { signal: 9, core: false, out_of_memory: String::new() });
    assert_eq!(
        report_of(64, 0, killed),
        "rank 12 on n0427 was killed by signal 9 (KILL)\n  \
         the job's 63 other ranks were ended; first failure at 14.200 s"
    );
}

#[test]
fn a_crash_is_reported_with_the_number_of_other_failures() {
    let crash = failure("0", Cause::Signal { signal: 11, core: true, out_of_memory: String::new() });
    assert_eq!(
        report_of(2, 1, crash),
        "rank 0 on n0427 was killed by signal 11 (SEGV, core dumped)\n  \
         the job's other rank was ended; first failure at 14.200 s\n  1 more failure was reported"
    );
}

#[test]
fn an_exit_beside_an_abort_may_be_the_first_cause() {
    let exit = failure("2", Cause::Code(5));
    let line = |cause| doubt(&Outcome::Failed { first: failure("4", cause), others: 1 }, &exit, "n0427");
    assert_eq!(
        line(Cause::Abort { code: 14, message: String::new() }).unwrap(),
        "rank 2 on n0427 exited with code 5 and did not abort; this exit may have caused the abort"
    );
    assert_eq!(line(Cause::Code(5)), None);
    assert_eq!(doubt(&Outcome::Success, &exit, "n0427"), None);
}

#[test]
fn a_job_that_went_on_is_reported_with_all_ranks_that_died() {
    let first = failure("5", Cause::Signal { signal: 9, core: false, out_of_memory: String::new() });
    let outcome = Outcome::Survived { first, others: 1, dead: "2,5".parse().unwrap() };
    assert_eq!(
        epilogue(&outcome, 8, None, None, |_| "n0427".to_owned(), &[]).unwrap(),
        "rank 5 on n0427 was killed by signal 9 (KILL)\n  the job went on without ranks 2,5; first failure at 14.200 s"
    );
}

#[test]
fn the_report_of_the_last_failure_says_that_no_restart_is_left() {
    let text = |restarts| {
        let first = failure("1", Cause::Code(7));
        epilogue(&Outcome::Failed { first, others: 0 }, 1, None, Some(restarts), |_| "n0427".to_owned(), &[]).unwrap()
    };
    assert_eq!(
        text(3),
        "rank 1 on n0427 exited with code 7\n  the job was ended; first failure at 14.200 s\n  \
         ranks had started again 3 times, as often as --max-restarts allows"
    );
    assert!(text(1).ends_with("ranks had started again once, as often as --max-restarts allows"));
}

#[test]
fn the_hint_after_a_loss_depends_on_the_spares_that_there_were() {
    assert!(
        no_spare_text(0).ends_with("the lost one\n  hint: name more hosts, and keep some in reserve with --spares")
    );
    assert!(
        no_spare_text(1)
            .ends_with("; the spare host is in use or lost\n  hint: reserve more hosts, for example --spares 2")
    );
    assert!(
        no_spare_text(2)
            .ends_with("; all 2 spare hosts are in use or lost\n  hint: reserve more hosts, for example --spares 3")
    );
}

#[test]
fn a_death_is_noted_when_the_others_go_on() {
    let death = failure("5", Cause::Code(3));
    assert_eq!(goes_on_text(&death, "n0427"), "rank 5 on n0427 exited with code 3; the other ranks go on");
    let loss = failure("", Cause::Lost { why: nla::core::LossReason::Closed });
    assert_eq!(
        goes_on_text(&loss, "n0427"),
        "agent 2 on n0427 was lost: it closed the connection; the other ranks go on"
    );
}

#[test]
fn a_rank_killed_for_lack_of_memory_gets_a_hint() {
    let killed =
        failure("3", Cause::Signal { signal: 9, core: false, out_of_memory: "the machine has 24.0 GiB".to_owned() });
    assert_eq!(
        report_of(1, 0, killed),
        "rank 3 on n0427 was killed by signal 9 (KILL); the kernel ended it because memory ran out: the machine has 24.0 GiB\n  \
         the job was ended; first failure at 14.200 s\n  \
         hint: give the job more memory, or start fewer ranks on the node"
    );
}

#[test]
fn aborts_and_exit_codes_are_reported() {
    let abort = Cause::Abort { code: 7, message: "no input".into() };
    assert!(report_of(4, 0, failure("1", abort)).starts_with("rank 1 on n0427 called MPI_Abort(7): no input\n"));
    assert!(report_of(4, 0, failure("1", Cause::Code(3))).starts_with("rank 1 on n0427 exited with code 3\n"));
}

#[test]
fn ranks_that_exit_without_finalize_are_reported() {
    let early = failure("3,5-7", Cause::ExitedEarly { in_fence: true });
    assert!(
        report_of(8, 0, early)
            .starts_with("ranks 3,5-7 on n0427 ended while others wait for it in a fence\n  the job's 4 other ranks")
    );
    assert!(report_of(8, 0, failure("3", Cause::Unjoined)).starts_with(
        "rank 3 on n0427 ended without joining PMIx while ranks of the same node that have joined it still run\n"
    ));
}

#[test]
fn a_directory_that_cannot_be_written_gets_a_hint() {
    let why = format!("scela-pmix could not be started: {} /tmp: No space left", nla::sys::pmix::NO_DIRECTORY);
    let cause = Cause::NotStarted { why: nla::core::NotStartedReason::Reported(why.as_str().into()) };
    assert_eq!(
        report_of(2, 0, failure("0-1", cause)),
        format!(
            "ranks 0-1 on n0427 could not be started: {why}\n  \
             no rank was left running\n  \
             hint: name another directory in TMPDIR"
        )
    );
}

#[test]
fn a_lack_of_devices_gets_a_hint_about_the_place_of_their_declarations() {
    let text = |remedy, in_pool| {
        let lack = LackOfDevices { text: "rank 3 needs 1 gpu, and there is none".to_owned(), remedy };
        let first = failure("3", Cause::NotStarted { why: NotStartedReason::LackOfDevices(lack) });
        let host = NeedyHost::Remote("n0427".to_owned());
        let needs = HostNeeds { tasks: 77, ranks: 4, host, in_pool };
        let outcome = Outcome::Failed { first, others: 0 };
        epilogue(&outcome, 4, Some(&needs), None, |_| "n0427".to_owned(), &[]).unwrap()
    };
    let first = "rank 3 on n0427 could not be started: rank 3 needs 1 gpu, and there is none\n  no rank was left running\n  hint: ";
    for (remedy, before) in [
        (DeviceRemedy::Declare, "declare its devices with gres="),
        (DeviceRemedy::DeclareTypes, "types are known only from gres="),
        (DeviceRemedy::OtherHosts, "ask for fewer, or name hosts that offer more with gres="),
    ] {
        assert_eq!(text(remedy, false), format!("{first}{before} in the file of -f"));
        assert_eq!(text(remedy, true), format!("{first}{before} in the file of 'scela pool start -f'"));
    }
    let fewer = format!("{first}start fewer ranks on it, or ask for fewer devices");
    assert_eq!([false, true].map(|in_pool| text(DeviceRemedy::Fewer, in_pool)), [fewer.clone(), fewer]);
}

#[test]
fn lost_agents_and_failed_launches_are_reported() {
    let lost = failure("", Cause::Lost { why: nla::core::LossReason::Closed });
    assert!(
        report_of(4, 0, lost).starts_with("agent 2 on n0427 was lost: it closed the connection\n  the job was ended")
    );
    let failed = failure(
        "0-3",
        Cause::NotStarted { why: nla::core::NotStartedReason::Reported("program 'x' was not found".into()) },
    );
    assert_eq!(
        report_of(4, 0, failed),
        "ranks 0-3 on n0427 could not be started: program 'x' was not found\n  no rank was left running"
    );
}

#[test]
fn control_characters_of_names_are_not_printed() {
    let why = nla::core::NotStartedReason::Reported("program '\x1b[31mx\ny' was not found".into());
    let text = report_of(4, 0, failure("0-3", Cause::NotStarted { why }));
    assert!(text.contains("program '?[31mx?y' was not found\n"), "{text}");
}

#[test]
fn a_lack_of_processes_is_reported_with_the_needed_number() {
    let why = nla::core::NotStartedReason::Reported("no process could be created: Try again (errno 11)".into());
    let text = report_of(32, 0, failure("", Cause::NotStarted { why }));
    let hint = "\n  hint: allow 77 processes and threads for the job, beside those of others ('ulimit -u', pids.max of its cgroups)";
    assert!(text.ends_with(hint), "{text}");
}

#[test]
fn limits_that_keep_ranks_from_starting_are_named_with_what_raises_them() {
    let failed =
        |words: &str| failure("", Cause::NotStarted { why: nla::core::NotStartedReason::Reported(words.to_owned()) });
    let setup = "its agent could not set itself up: Resource temporarily unavailable (os error 11)";
    let here = || NeedyHost::Here { files_max: 4096, raise: Some("'ulimit -u 90'".to_owned()) };
    let text = report_at(here(), 32, 0, failed(setup));
    assert!(
        text.ends_with("\n  hint: raise the limit: 'ulimit -u 90'; the job then starts, with 77 processes and threads"),
        "{text}"
    );
    let remote = || NeedyHost::Remote("n0427".to_owned());
    let text =
        report_at(remote(), 32, 0, failed("no process could be created: Try again (errno 11); ulimit -u allows 9"));
    let hint =
        "\n  hint: raise that limit on n0427: the job needs 77 processes and threads there, beside those of others";
    assert!(text.ends_with(hint), "{text}");
    let text =
        report_at(remote(), 32, 0, failed("its agent could not set itself up: Too many open files (os error 24)"));
    assert!(text.contains("\n  hint: allow an agent on n0427 some 306 open files: a hard limit there ("), "{text}");
    assert!(!report_at(here(), 32, 0, failed("program 'x' was not found")).contains("hint"));
}

#[test]
fn hosts_that_reported_the_same_are_named_in_one_line() {
    let why = nla::core::NotStartedReason::Reported("no socket could be made: Too many open files".into());
    let outcome = Outcome::Failed { first: failure("", Cause::NotStarted { why }), others: 5 };
    let text = |alike: &[&str]| epilogue(&outcome, 8, None, None, |_| "n0427".to_owned(), alike).unwrap();
    let first = "agent 2 on n0427 could not be started: no socket could be made: Too many open files\n";
    assert_eq!(
        text(&["n0430", "n0427", "n0429", "n0428", "n0429"]),
        format!("{first}  n[0428-0430] reported the same\n  no rank was left running\n  1 more failure was reported")
    );
    assert_eq!(text(&["n0427"]), format!("{first}  no rank was left running\n  5 more failures were reported"));
    let many: Vec<String> = (0..64).map(|number| format!("host-{number}-of-rack-{}", number * 7)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert!(text(&many).contains("\n  host-0-of-rack-0 and 63 more reported the same\n"), "{}", text(&many));
}

#[test]
fn a_lack_of_descriptors_is_reported_with_the_needed_number() {
    let why =
        nla::core::NotStartedReason::Reported("no socket could be made: Too many open files (os error 24)".into());
    let text = report_of(32, 0, failure("", Cause::NotStarted { why }));
    assert!(text.ends_with("\n  hint: allow an agent some 306 open files: 'ulimit -n 306' before scela-run; the hard limit here is 4096"), "{text}");
}

#[test]
fn files_that_ranks_have_left_are_named() {
    let text = |removed, left, names: &[&str]| {
        let left_names = names.iter().map(|name| (*name).to_owned()).collect();
        files_text("n0427", &FileReport { removed, removed_bytes: 4_200_000 * removed, left, left_names })
    };
    assert_eq!(text(1, 0, &[]), "n0427: 1 file of ended ranks removed from /dev/shm, 4.20 MB");
    assert_eq!(text(0, 1, &["a"]), "n0427: 1 file left in /dev/shm: a");
    assert_eq!(
        text(2, 3, &["a\x1b", "b"]),
        "n0427: 2 files of ended ranks removed from /dev/shm, 8.40 MB; 3 files left in /dev/shm: a?, b and 1 more"
    );
}

#[test]
fn dropped_output_is_counted() {
    let time = Duration::from_millis(2500);
    assert_eq!(
        dropped_text(262_144, time, true),
        "warning: standard output was not read for 2.5 s: output was dropped, at least 262144 bytes"
    );
    assert!(dropped_text(1, time, false).starts_with("warning: standard error was not read"));
}

#[test]
fn leftovers_are_counted() {
    let killed = |set: &str, namespace| Killed {
        namespace: NamespaceId(namespace),
        ranks: set.parse().unwrap(),
        signal: 15,
        after: Duration::from_millis(5003),
    };
    assert_eq!(killed_text(&killed("0", 0)), "rank 0 was killed 5 s after TERM");
    assert_eq!(killed_text(&killed("0-3", 1)), "ranks 0-3 of namespace 1 were killed 5 s after TERM");
    let (host, grace) = (|agent: AgentId| format!("n{}", agent.0), Duration::from_millis(500));
    let text = |count, left: &[LeftProcesses]| leftovers_text(count, left, grace, host);
    assert_eq!(text(1, &[]), "1 process that the ranks had left running was ended");
    assert_eq!(text(2, &[]), "2 processes that the ranks had left running were ended");
    let left = |program: &str, count, ranks: &str| LeftProcesses {
        program: program.to_owned(),
        count,
        example: (AgentId(2), 17),
        ranks: ranks.parse().unwrap(),
    };
    assert_eq!(
        text(4, &[left("sleep", 1, "3"), left("python3", 2, "0-1"), left("tee", 1, "")]),
        "4 processes that the ranks had left running were ended, 0.5 s after the last rank (--kill-grace): \
         sleep of rank 3 (pid 17 on n2), python3 of ranks 0-1 (2 processes, one is pid 17 on n2), tee (pid 17 on n2)"
    );
}

#[test]
fn silent_agents_are_told_in_one_line() {
    let (s, host) = (Duration::from_secs, |agent: AgentId| ["", "n1", "n2", "n3"][agent.0 as usize]);
    let liveness = Liveness { heartbeat: s(6), dead_time: s(20), stop_time: s(600) };
    assert_eq!(
        silent_text(&[(AgentId(2), s(20))], host, liveness),
        "nothing was heard from agent 2 on n2 for 20 s, although its machine answers: it is stopped or starved; it counts as \
         lost after 600 s (--dead-time)"
    );
    let all = [(AgentId(1), s(80)), (AgentId(2), s(20)), (AgentId(3), s(20))];
    assert_eq!(
        silent_text(&all, host, liveness),
        "nothing was heard from agents 1-3 on n[1-3] for 80 s, although their machines answer: they are stopped or starved; \
         they count as lost after 600 s (--dead-time)"
    );
}
