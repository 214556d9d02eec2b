//! The commands of PMI-1 other than put, get and fence: names, sizes, indexes, port mode.

use nix::sys::signal::Signal;
use tests::{scela, scela_run};

use crate::script;

#[test]
fn the_server_reports_maxima_and_sizes() {
    let steps = ["init", "cmd=get_maxes", "cmd=get_universe_size", "cmd=get_appnum", "finalize"];
    let outcome = scela().np(1000).agents(2).program(script(["@7"].into_iter().chain(steps))).run();
    outcome.is_quiet_success().wrote_lines([
        "7: cmd=maxes rc=0 kvsname_max=64 keylen_max=64 vallen_max=1024",
        "7: cmd=universe_size rc=0 size=-1",
        "7: cmd=appnum rc=0 appnum=0",
    ]);
    let program = script(["@1", "init", "cmd=get_universe_size", "finalize"]);
    let outcome = scela().np(2).args(["-usize", "64"]).program(program).run();
    outcome.is_quiet_success().wrote_lines(["1: cmd=universe_size rc=0 size=64"]);
}

/// MPICH reads them as `PMI_mpi_memory_alloc_kinds`.
#[test]
fn the_kinds_of_memory_reach_the_ranks() {
    let get = "cmd=get kvsname=x key=PMI_mpi_memory_alloc_kinds";
    let run = || scela().np(2).agents(2).program(script(["@1", "init", get, "finalize"]));
    run()
        .run()
        .is_quiet_success()
        .wrote_lines(["1: cmd=get_result rc=-1 msg=key_PMI_mpi_memory_alloc_kinds_not_found value=unknown"]);
    let outcome = run().args(["-memory-alloc-kinds", "mpi,cuda:device"]).run();
    outcome.is_quiet_success().wrote_lines(["1: cmd=get_result rc=0 value=mpi,cuda:device"]);
}

#[test]
fn each_program_has_its_appnum() {
    let program = || script(["init", "cmd=get_appnum", "finalize"]);
    let outcome = scela().np(2).agents(2).program(program()).and(1, program()).and(2, program()).run();
    let line = |(rank, number)| format!("{rank}: cmd=appnum rc=0 appnum={number}");
    outcome.is_quiet_success().wrote_lines([(0, 0), (1, 0), (2, 1), (3, 2), (4, 2)].map(line));
}

#[test]
fn the_name_of_the_namespace_is_short_and_unique() {
    let name = || {
        let steps = ["init", "cmd=get_my_kvsname", "cmd=get_my_kvsname", "finalize"];
        let outcome = scela().np(3).agents(3).program(script(steps)).run();
        let lines = outcome.is_quiet_success().sorted_lines();
        let names: Vec<_> = lines.iter().filter_map(|line| line.split("kvsname=").nth(1)).collect();
        assert!(names.len() == 6 && names.iter().all(|name| name == &names[0]), "{outcome}");
        assert!(names[0].len() <= 32 && !names[0].contains(' '), "{outcome}");
        names[0].to_owned()
    };
    assert_ne!(name(), name());
}

#[test]
fn the_process_mapping_lists_the_blocks_of_the_agents() {
    let run = scela().np(10).agents(3).arg("--agents-as-nodes");
    let program = script(["init", "get PMI_process_mapping", "finalize"]);
    let outcome = run.program(program).run();
    // The three agents run blocks of 3, 3 and 4 ranks.
    let line = |rank| format!("{rank}: PMI_process_mapping=(vector,(0,2,3),(2,1,4))");
    outcome.is_quiet_success().wrote_lines((0..10).map(line));
}

#[test]
fn agents_run_the_blocks_of_the_process_mapping() {
    let run = scela().np(10).agents(3).arg("--agents-as-nodes");
    let running = run.program(script(["init", "say here", "pause"])).spawn();
    running.wait_for_times("here", 10);
    let parents: Vec<i32> = running.ranks(10).iter().map(|rank| rank.parent).collect();
    let blocks: Vec<usize> = parents.chunk_by(|one, next| one == next).map(<[i32]>::len).collect();
    assert_eq!(blocks, [3, 3, 4], "{parents:?}");
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn agents_of_one_node_are_one_node() {
    let outcome = scela().np(10).agents(3).program(script(["@9", "init", "get PMI_process_mapping", "finalize"])).run();
    outcome.is_quiet_success().wrote("9: PMI_process_mapping=(vector,(0,1,10))\n");
}

#[test]
fn entries_are_listed_by_index() {
    let steps = [
        "init",
        "put key-{rank} value-{rank}",
        "fence",
        "@1",
        "cmd=getbyidx kvsname=x idx=0",
        "cmd=getbyidx kvsname=x idx=1",
        "cmd=getbyidx kvsname=x idx=2",
    ];
    let outcome = scela().np(2).agents(2).program(script(steps)).run();
    let lines = outcome.is_quiet_success().sorted_lines();
    let entries: Vec<_> = lines.iter().filter(|line| line.contains("rc=0")).collect();
    assert_eq!(entries.len(), 2, "{outcome}");
    for (line, next) in entries.iter().zip([1, 2]) {
        outcome.check(line.contains(&format!(" nextidx={next} key=key-")), "the index should grow by one");
        outcome.check(line.contains(" val=value-"), "an entry should have its value");
    }
    outcome.wrote_among_others("1: cmd=getbyidx_results rc=-1 reason=no_more_keyvals\n");
}

#[test]
fn names_are_published_for_all_agents() {
    let run = scela().np(3).agents(3).fanout(2);
    let file = run.world().file("published");
    let (touch, wait) = (format!("touch {}", file.display()), format!("await {}", file.display()));
    let steps = [
        "init",
        "@0",
        "cmd=publish_name service=svc one port=tag#0$desc#abc$",
        "cmd=publish_name service=svc one port=other",
        &touch,
        "@1",
        &wait,
        "cmd=lookup_name service=svc one",
        "cmd=lookup_name service=unknown",
        "@*",
        "fence",
        "@2",
        "cmd=unpublish_name service=svc one",
        "cmd=unpublish_name service=svc one",
        "@*",
        "fence",
        "@1",
        "cmd=lookup_name service=svc one",
        "@*",
        "finalize",
    ];
    let outcome = run.program(script(steps)).run();
    let lines = outcome.is_quiet_success().out();
    let of =
        |rank: u32| lines.lines().filter(|line| line.starts_with(&format!("{rank}: "))).collect::<Vec<_>>().join("\n");
    outcome.check(of(0).starts_with("0: cmd=publish_result rc=0"), "the first publication should succeed");
    outcome.check(of(0).contains("\n0: cmd=publish_result rc=-1 "), "the second publication should be refused");
    let found: Vec<_> = lines.lines().filter(|line| line.starts_with("1: ")).collect();
    outcome.check(
        found[0].contains("rc=0") && found[0].contains("port=tag#0$desc#abc$"),
        "the published name should be found",
    );
    outcome.check(found[1].contains("rc=-1"), "a name that was never published should not be found");
    outcome.check(found[2].contains("rc=-1"), "an unpublished name should not be found");
    outcome.check(
        of(2).contains("unpublish_result rc=0") && of(2).contains("unpublish_result rc=-1"),
        "a name can be unpublished only once",
    );
}

#[test]
fn ranks_can_connect_to_a_port() {
    let run = scela().np(5).agents(2).arg("--pmi-port");
    let steps = ["init", "put card-{rank} {rank}", "fence", "get card-0", "get card-4", "finalize"];
    let lines = (0..5).flat_map(|rank| [format!("{rank}: card-0=0"), format!("{rank}: card-4=4")]);
    run.program(script(steps)).run().is_quiet_success().wrote_lines(lines);
}

#[test]
fn two_programs_in_sequence_can_use_one_port() {
    let script = r#"
        "$1" script init 'put k-{rank} first' fence 'get k-1' finalize &&
        "$1" script init fence 'get k-0' finalize"#;
    let mut program = tests::sh(script);
    program.push(env!("CARGO_BIN_EXE_rank").into());
    let outcome = scela().np(2).agents(2).arg("--pmi-port").program(program).run();
    outcome.is_quiet_success().wrote_lines(["0: k-1=first", "1: k-1=first", "0: k-0=first", "1: k-0=first"]);
}

#[test]
fn the_handshake_on_a_port_is_four_lines() {
    let steps = ["@1", ">cmd=initack pmiid=1", "<4", "cmd=init pmi_version=1 pmi_subversion=1", "finalize"];
    let outcome = scela().np(3).arg("--pmi-port").program(script(steps)).run();
    outcome.is_quiet_success().wrote(
        "1: cmd=initack rc=0\n1: cmd=set size=3\n1: cmd=set rank=1\n1: cmd=set debug=0\n\
         1: cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n",
    );
}

#[test]
fn a_rank_may_initialise_again_after_finalize() {
    let steps = ["init", "put a 1", "fence", "finalize", "init", "put b 2", "fence", "get a", "get b", "finalize"];
    let lines = (0..3).flat_map(|rank| [format!("{rank}: a=1"), format!("{rank}: b=2")]);
    scela().np(3).agents(2).program(script(steps)).run().is_quiet_success().wrote_lines(lines);
}

#[test]
fn a_rank_may_initialise_twice_without_finalize() {
    scela().np(2).agents(2).program(script(["init", "init", "fence", "finalize"])).run().is_quiet_success();
}

#[test]
fn a_third_version_of_the_protocol_is_refused() {
    let outcome = scela().np(1).program(script(["cmd=init pmi_version=3 pmi_subversion=0"])).run();
    outcome.is_quiet_success().wrote_among_others("0: cmd=response_to_init rc=-1");
}

#[test]
fn a_launcher_in_a_rank_does_not_disturb_the_ranks_conversation() {
    let (program, rank) = (scela_run().display(), env!("CARGO_BIN_EXE_rank"));
    let inner = format!("{rank} script init 'put k1 inner' fence 'get k1' finalize");
    for options in ["", "--pmi-port"] {
        let launch = format!("sh {program} -np 2 {options} {inner}");
        let steps = [
            &launch,
            "init",
            &launch,
            "put k{rank} outer",
            &launch,
            "fence",
            &launch,
            "get k0",
            "get k1",
            "finalize",
            &launch,
        ];
        let outcome = scela().np(2).args(options.split_whitespace()).program(script(steps)).run();
        outcome.is_quiet_success();
        let outer = ["0: k0=outer", "0: k1=outer", "1: k0=outer", "1: k1=outer"];
        let inner = (0..20).map(|number| if number % 2 == 0 { "0: k1=inner" } else { "1: k1=inner" });
        outcome.wrote_lines(outer.into_iter().chain(inner));
    }
}

/// A rank that opens idle connections to its PMI port, and then one that names it.
const CROWDING_RANK: &str = r#"
import os, socket, time
host, port = os.environ["PMI_PORT"].split(":")
began = time.monotonic()
idle = [socket.create_connection((host, int(port))) for _ in range(50)]
own = socket.create_connection((host, int(port)))
own.sendall(b"cmd=initack pmiid=0\n")
print(own.recv(16), "at once" if time.monotonic() - began < 2 else "late")
"#;

/// The agent has fewer descriptors than there are connections. Each of them ends after 2 s by itself.
#[test]
fn connections_to_a_port_that_use_up_the_descriptors_keep_no_rank_out() {
    // A busy machine may make some of them late.
    const TRIES: u32 = 5;
    for number in 1..=TRIES {
        let run = scela().np(1).arg("--pmi-port").shell("ulimit -n 64");
        let program = ["python3", "-c", CROWDING_RANK].iter().map(Into::into).collect();
        let outcome = run.program(program).run();
        if number == TRIES || outcome.out() != "b'cmd=initack rc=0' late\n" {
            outcome.has_code(0).wrote("b'cmd=initack rc=0' at once\n");
            return;
        }
    }
}

/// Ranks 0 and 3, on different agents, see each other's puts; rank 1 sees them after the fence of all.
#[test]
fn a_group_exchanges_puts_in_a_barrier_of_its_own() {
    let outcome = scela().np(4).agents(2).program(script([
        "init",
        "@0",
        "put a 0",
        "cmd=barrier_in group=0,3:5",
        "get d",
        "@3",
        "put d 3",
        "cmd=barrier_in group=3,0:5",
        "get a",
        "@*",
        "fence",
        "@1",
        "get a",
        "get d",
        "@*",
        "finalize",
    ]));
    let released = |rank: u32| format!("{rank}: cmd=barrier_out rc=0");
    outcome.run().is_quiet_success().wrote_lines([
        released(0),
        "0: d=3".into(),
        released(3),
        "3: a=0".into(),
        "1: a=0".into(),
        "1: d=3".into(),
    ]);
}

/// A process that a rank starts joins as the same rank: it is refused, told once, and the rank goes on.
#[test]
fn a_second_process_of_a_rank_is_refused_and_the_first_goes_on() {
    let child =
        format!("sh for i in 1 2 3; do ! {} script init 2>/dev/null || exit 1; done", env!("CARGO_BIN_EXE_rank"));
    for options in [&[][..], &["--pmi-port"]] {
        let steps = ["init", "put k{rank} v", "@0", &child, "@*", "fence", "get k0", "@0", &child, "@*", "finalize"];
        let outcome = scela().np(2).args(options).program(script(steps)).run();
        outcome.has_code(0).wrote_lines(["0: k0=v", "1: k0=v"]);
        outcome.says(&format!("warning: rank 0 on {}: process ", nla::sys::host_name()));
        outcome.says(" (rank) tried to join as this rank, which process ").says(" (rank) still is, and was refused");
        outcome.says("hint: a process that a rank starts inherits its place");
        outcome.check(outcome.err().matches("tried to join").count() == 1, "it is told once");
    }
}

/// Both processes read from one socket, so the second one must not wait there: it might take the first one's reply.
#[test]
fn a_second_process_is_ended_while_the_first_waits() {
    let directory = tempfile::tempdir().expect("a directory");
    let [begun, ended] = ["begun", "ended"].map(|name| directory.path().join(name).display().to_string());
    let rank = env!("CARGO_BIN_EXE_rank");
    for options in [&[][..], &["--pmi-port"]] {
        let child = format!(
            "sh rm -f {begun} {ended}; (await={begun}; while [ ! -e $await ]; do sleep 0.01; done; \
                             {rank} script init; touch {ended}) >/dev/null 2>&1 &"
        );
        let (begin, wait) = (format!("touch {begun}"), format!("await {ended}"));
        let steps = ["init", "fence", "@0", &child, "@*", "fence", "@1", &begin, &wait, "@*", "fence", "finalize"];
        let outcome = scela().np(2).args(options).program(script(steps)).run();
        outcome.has_code(0).says("tried to join as this rank");
    }
}

#[test]
fn a_program_may_follow_one_that_has_not_finalized() {
    let mut program = tests::sh(r#""$1" script init 'exit 0'; "$1" script init fence finalize"#);
    program.push(env!("CARGO_BIN_EXE_rank").into());
    for options in [&[][..], &["--pmi-port"]] {
        scela().np(2).args(options).program(program.clone()).run().is_quiet_success();
    }
}
