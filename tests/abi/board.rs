//! The shared board, used by programs through libpmi: every put is found, no rank can write to memory
//! that others read, and a process that dies at any point harms no other.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::process::Command;

use nix::sys::signal::Signal;
use tests::{CACHES, Cluster, Outcome, Program, Run, scela, skip};

use crate::libraries::Ours;

/// Returns a rank that runs these steps with libpmi: see programs/script.c.
fn script<'a>(steps: impl IntoIterator<Item = &'a str>) -> Program {
    script_with(&[], steps)
}

/// Like [`script`], compiled with these flags.
fn script_with<'a>(flags: &[&str], steps: impl IntoIterator<Item = &'a str>) -> Program {
    let program = Ours::pmi().compiled_with("script", flags).into_os_string();
    [program].into_iter().chain(steps.into_iter().map(OsString::from)).collect()
}

/// Runs `program` under a tool that inspects it. `None`, with a notice, if the tool is not installed.
fn under<'a>(tool: &str, words: impl IntoIterator<Item = &'a str>, program: Program) -> Option<Program> {
    if Command::new(tool).arg("--version").output().is_err() {
        skip(&format!("{tool} is not installed; Debian has it, ./tests/run installs it"));
        return None;
    }
    let words = words.into_iter().map(OsString::from);
    Some([OsString::from(tool)].into_iter().chain(words).chain(program).collect())
}

/// Returns a rank that runs these steps over the wire: see tests/support/rank.
fn wire<'a>(steps: impl IntoIterator<Item = &'a str>) -> Program {
    let program = env!("CARGO_BIN_EXE_rank");
    [program, "script"].into_iter().chain(steps).map(OsString::from).collect()
}

/// Runs the check for each shape of the tree, and for each cache policy in one of them.
fn in_all_shapes(check: impl Fn(Run)) {
    for (agents, fanout) in [(1, 2), (3, 2), (8, 2), (8, 32)] {
        check(scela().agents(agents).fanout(fanout));
    }
    for policy in &CACHES[1..] {
        check(scela().agents(12).fanout(3).cache(policy));
    }
}

#[test]
fn every_value_of_every_epoch_is_found() {
    in_all_shapes(|run| {
        run.np(16).program(script(["init", "rounds 40 1000", "finalize"])).run().is_quiet_success();
    });
}

#[test]
fn the_board_grows_while_ranks_read_it() {
    // More bytes than a reader maps at first.
    let program = script(["init", "rounds 300 1000", "maps", "finalize"]);
    let outcome = scela().np(128).agents(2).program(program).run();
    outcome.is_quiet_success().wrote_among_others("1 board, 0 writable, 0 private");
}

#[test]
fn ranks_on_the_wire_and_ranks_with_libpmi_share_a_board() {
    let steps = ["init", "put w{rank} {rank}", "fence", "get w0", "get w2", "get w4", "fence", "finalize"];
    let of = |rank: u32| [0, 2, 4].map(|other| format!("{rank}: w{other}={other}"));
    in_all_shapes(|run| {
        let run = run.np(2).program(wire(steps)).and(2, script(steps)).and(2, wire(steps));
        run.run().is_quiet_success().wrote_lines((0..6).flat_map(of));
    });
}

#[test]
fn a_second_put_replaces_the_value() {
    let steps = [
        "init",
        "put same {rank}",
        "put own-{rank} 1",
        "fence",
        "get same",
        "get own-0",
        "@0",
        "put same low",
        "put own-0 2",
        "@*",
        "fence",
        "get same",
        "get own-0",
        "get none",
        "finalize",
    ];
    let lines = ["same=12", "own-0=1", "same=low", "own-0=2", "none is absent"];
    let of = |rank: u32| lines.map(|line| format!("{rank}: {line}"));
    in_all_shapes(|run| {
        let run = run.np(6).program(script(steps)).and(7, wire(steps));
        run.run().is_quiet_success().wrote_lines((0..13).flat_map(of));
    });
}

#[test]
fn own_puts_are_visible_at_once_and_those_of_others_after_the_fence() {
    let steps = ["init", "put k{rank} v", "get k{rank}", "@1", "get k0", "@*", "fence", "get k0", "finalize"];
    let lines = ["0: k0=v", "1: k1=v", "1: k0 is absent", "0: k0=v", "1: k0=v"];
    scela().np(2).program(script(steps)).run().is_quiet_success().wrote_lines(lines);
}

/// The steps whose output [`check_boards`] checks.
const BOARD_STEPS: [&str; 8] = ["init", "put k v", "fence", "maps", "clobber", "fence", "get k", "finalize"];

/// Checks that each rank has mapped one board and could not write to it, and that two ranks map the
/// same board exactly if they have the same agent. Each agent has `ranks_per_agent` ranks.
#[track_caller]
fn check_boards(outcome: &Outcome, ranks: u32, ranks_per_agent: u32) {
    outcome.is_quiet_success();
    let lines = outcome.sorted_lines();
    let of = |rank: u32, word: &str| {
        let found = lines.iter().find_map(|line| line.strip_prefix(&format!("{rank}: {word}")));
        found.unwrap_or_else(|| panic!("rank {rank} has not printed '{word}'\n{outcome}")).to_owned()
    };
    let mut boards = BTreeSet::new();
    for rank in 0..ranks {
        assert_eq!(of(rank, "1 board"), ", 0 writable, 0 private");
        assert_eq!(of(rank, "k="), "v");
        assert_eq!(of(rank, "clobbered"), "");
        assert_eq!(of(rank, "inode "), of(rank - rank % ranks_per_agent, "inode "));
        boards.insert(of(rank, "inode "));
    }
    outcome.check(!outcome.out().contains("not refused"), "no write to the board succeeds");
    outcome.check(boards.len() as u32 == ranks / ranks_per_agent, "each agent has its own board");
}

#[test]
fn a_rank_maps_the_board_of_its_agent_read_only() {
    check_boards(&scela().np(4).agents(2).program(script(BOARD_STEPS)).run(), 4, 2);
}

#[test]
fn a_rank_on_another_host_maps_the_board_of_its_agent_read_only() {
    let Some(cluster) = Cluster::new_or_skip(8) else { return };
    // In the directory that all hosts share.
    let library = Ours::pmi();
    std::fs::copy(&library.file, cluster.shared().join(library.api.soname())).expect("the library can be read");
    let program = cluster.shared().join("script");
    std::fs::copy(library.compiled("script"), &program).expect("the program can be read");
    let words = [program.into_os_string()].into_iter().chain(BOARD_STEPS.map(OsString::from));
    let run = scela().on(&cluster).args(["-hosts", &cluster.names()]).env("LD_LIBRARY_PATH", cluster.shared());
    check_boards(&run.np(16).program(words.collect()).run(), 16, 2);
}

#[test]
fn an_agent_creates_no_segment_for_ranks_that_do_not_request_one() {
    let steps = ["init", "put k v", "fence", "touch {rank}.here", "await go", "fence", "finalize"];
    let run = scela().np(2).program(wire(steps));
    let directory = run.world().file("");
    let running = run.directory(&directory).spawn();
    running.wait_until("both ranks have left the fence", || {
        (0..2).all(|rank| directory.join(format!("{rank}.here")).exists()).then_some(())
    });
    for agent in running.world().agents() {
        let maps = std::fs::read_to_string(agent.file("maps")).unwrap_or_default();
        assert!(!maps.contains("scela-board"), "{maps}");
    }
    std::fs::write(directory.join("go"), "").expect("failed to create the file");
    running.finish().is_quiet_success();
}

#[test]
fn a_rank_killed_between_put_and_fence_is_reported() {
    let steps = ["init", "rounds 3 100", "@2", "put k v", "kill 9", "@*", "fence", "finalize"];
    let outcome = scela().np(4).agents(2).program(script(steps)).run();
    outcome.has_code(137).says("rank 2 on ").says("signal 9");
}

#[test]
fn killing_a_rank_at_any_moment_corrupts_no_value_of_the_others() {
    // Rank 1 dies at a different moment of its exchange each time. The other ranks check every value
    // they read until the job ends, and report a wrong one.
    for milliseconds in [1, 3, 7, 12, 20, 35] {
        let killer = format!("killer {milliseconds}");
        let steps = ["init", "@1", &killer, "@*", "rounds 100000 600", "finalize"];
        let outcome = scela().np(6).agents(2).program(script(steps)).run();
        outcome
            .has_code(137)
            .says("rank 1 on ")
            .never_says("and not")
            .never_says("was never put")
            .never_says("failed with");
    }
}

#[test]
fn a_stopped_rank_does_not_block_gets_of_others() {
    let steps = [
        "init",
        "put k{rank} v",
        "fence",
        "@1",
        "touch stopped",
        "kill 19",
        "@0",
        "await stopped",
        "get k1",
        "get none",
        "touch read",
        "@*",
        "fence",
        "finalize",
    ];
    let run = scela().np(2).program(script(steps));
    let directory = run.world().file("");
    let running = run.directory(&directory).spawn();
    running.wait_until("rank 0 has read", || directory.join("read").exists().then_some(()));
    let stopped = running.rank(1);
    running.wait_until("rank 1 is stopped", || stopped.has_stopped().then_some(()));
    stopped.signal(Signal::SIGCONT);
    running.finish().is_quiet_success().wrote_lines(["0: k1=v", "0: none is absent"]);
}

#[test]
fn ranks_waiting_in_a_fence_end_with_their_agent() {
    let steps = ["init", "fence", "say here", "@0", "pause", "@*", "fence"];
    let running = scela().np(8).agents(2).program(script(steps)).spawn();
    running.wait_for_times("here", 8);
    running.world().agents()[1].signal(Signal::SIGKILL);
    running.finish().has_code(252).says(" was lost: ");
}

#[test]
fn a_rank_that_exits_while_others_wait_is_reported() {
    let steps = ["init", "fence", "@1", "exit 0", "@*", "fence", "finalize"];
    let outcome = scela().np(4).agents(2).program(script(steps)).run();
    outcome.has_code(1).says("rank 1 on ");
}

#[test]
fn a_get_makes_no_system_call() {
    let steps = ["init", "put k{rank} v", "fence", "say begin", "gets 5000", "say end", "fence", "finalize"];
    let run = scela().np(2);
    let place = tempfile::tempdir().expect("failed to create a temporary directory");
    let trace = place.path().join("trace").display().to_string();
    let Some(program) = under("strace", ["-ff", "-o", &trace], script(steps)) else { return };
    run.program(program).run().has_code(0);
    let mut seen = 0;
    for entry in std::fs::read_dir(place.path()).expect("strace has written no trace").flatten() {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let mut lines = text.lines().skip_while(|line| !line.contains(": begin"));
        if lines.next().is_none() {
            continue;
        }
        let next = lines.next().unwrap_or_default();
        assert!(next.contains(": end"), "a system call between two fences: {next}");
        seen += 1;
    }
    assert_eq!(seen, 2, "not both ranks were traced");
}

#[test]
fn valgrind_finds_nothing() {
    let steps = ["init", "rounds 6 400", "get none", "fence", "finalize"];
    let words = ["--quiet", "--error-exitcode=99", "--leak-check=full", "--errors-for-leak-kinds=definite"];
    let Some(program) = under("valgrind", words, script(steps)) else { return };
    scela().np(3).agents(2).program(program).run().is_quiet_success();
}

#[test]
fn sanitizers_find_nothing() {
    let steps = ["init", "rounds 20 900", "get none", "fence", "finalize"];
    let program = script_with(&["-fsanitize=address,undefined", "-fno-sanitize-recover"], steps);
    scela().np(4).agents(2).program(program).run().is_quiet_success();
}
