//! MPI_Comm_spawn, as a raw PMI client requests it.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tests::{Outcome, Process, before, event_timeout, scela};

use crate::script;

/// Returns the lines of one `mcmd=spawn` of `count` ranks that run a script.
fn spawn_block(count: u32, program: &str, args: &[&str], more: &[&str]) -> Vec<String> {
    let mut lines = vec!["mcmd=spawn".to_owned(), format!("nprocs={count}"), format!("execname={program}")];
    lines.extend(["totspawns=1", "spawnssofar=1"].map(str::to_owned));
    lines.extend(args.iter().zip(1..).map(|(arg, n)| format!("arg{n}={arg}")));
    lines.push(format!("argcnt={}", args.len()));
    lines.extend(more.iter().map(|line| (*line).to_owned()));
    lines.push("endcmd".to_owned());
    lines
}

/// Joins the lines into the step that sends them.
fn step(lines: &[String]) -> String {
    lines.join("\n")
}

fn lines_with(outcome: &Outcome, mark: &str) -> Vec<String> {
    let mut lines: Vec<_> = outcome.out().lines().filter(|line| line.contains(mark)).map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn children_run_on_all_agents_in_a_namespace_of_their_own() {
    let child = [
        "script",
        "init",
        "say child",
        "get PARENT_ROOT_PORT_NAME",
        "get parents",
        "put card child",
        "fence",
        "get card",
        "cmd=get_my_kvsname",
        "cmd=get_appnum",
        "finalize",
    ];
    let preput = ["preput_num=1", "preput_key_0=PARENT_ROOT_PORT_NAME", "preput_val_0=tag#0$desc#a b$", "info_num=0"];
    let spawn = step(&spawn_block(5, env!("CARGO_BIN_EXE_rank"), &child, &preput));
    let steps =
        ["init", "put parents x", "put card parent", "fence", "@0", &spawn, "@*", "fence", "get card", "finalize"];
    let outcome = scela().np(3).agents(3).fanout(2).program(script(steps)).run();
    outcome.is_quiet_success();
    assert_eq!(lines_with(&outcome, "spawn_result"), ["0: cmd=spawn_result rc=0"], "{outcome}");
    assert_eq!(lines_with(&outcome, ": child").len(), 5, "{outcome}");
    assert_eq!(lines_with(&outcome, "PARENT_ROOT_PORT_NAME=tag#0$desc#a b$").len(), 5, "{outcome}");
    assert_eq!(lines_with(&outcome, "parents is absent").len(), 5, "{outcome}");
    assert_eq!(lines_with(&outcome, "card=child").len(), 5, "{outcome}");
    assert_eq!(lines_with(&outcome, "card=parent").len(), 3, "{outcome}");
}

#[test]
fn children_have_variables_of_a_spawned_rank() {
    let child = ["-c", "echo spawned=$PMI_SPAWNED rank=$PMI_RANK size=$PMI_SIZE parent=$PPID"];
    let spawn = step(&spawn_block(6, "sh", &child, &[]));
    let outcome = scela().np(3).agents(3).program(script(["init", "@0", &spawn, "@*", "fence", "finalize"])).run();
    outcome.is_quiet_success();
    let lines = lines_with(&outcome, "spawned=1");
    assert_eq!(lines.len(), 6, "{outcome}");
    for (rank, line) in lines.iter().enumerate() {
        outcome.check(line.contains(&format!("rank={rank} size=6 ")), "each child should have a rank of its own");
    }
    let mut parents: Vec<_> = lines.iter().filter_map(|line| line.split("parent=").nth(1)).collect();
    parents.sort_unstable();
    parents.dedup();
    assert_eq!(parents.len(), 3, "all three agents should have children\n{outcome}");
}

#[test]
fn one_spawn_starts_several_programs() {
    let block = |n: u32, count: u32, word: &str| {
        format!(
            "mcmd=spawn\nnprocs={count}\nexecname=sh\ntotspawns=2\nspawnssofar={n}\narg1=-c\narg2=echo {word} $PMI_RANK of $PMI_SIZE\nargcnt=2\nendcmd"
        )
    };
    let spawn = format!("{}\n{}", block(1, 1, "first"), block(2, 2, "second"));
    let outcome = scela().np(1).agents(2).program(script(["init", &spawn, "finalize"])).run();
    outcome.is_quiet_success();
    outcome.wrote_lines(["0: cmd=spawn_result rc=0", "first 0 of 3", "second 1 of 3", "second 2 of 3"]);
}

#[test]
fn children_run_in_the_given_working_directory() {
    let run = scela().np(1);
    let directory = run.world().file("here");
    std::fs::create_dir(&directory).unwrap();
    let info = ["info_num=1", "info_key_0=wdir", &format!("info_val_0={}", directory.display())];
    let spawn = step(&spawn_block(1, "pwd", &[], &info));
    let outcome = run.program(script(["init", &spawn, "finalize"])).run();
    outcome.is_quiet_success().wrote_among_others(&format!("{}\n", directory.display()));
}

#[test]
fn a_missing_program_fails_only_the_spawn() {
    let spawn = step(&spawn_block(5, "/no/such/program", &[], &[]));
    let steps = ["init", "@1", &spawn, "@*", "put k v", "fence", "get k", "finalize"];
    let outcome = scela().np(3).agents(3).program(script(steps)).run();
    outcome.is_quiet_success();
    let refused = lines_with(&outcome, "spawn_result");
    assert!(refused.len() == 1 && refused[0].starts_with("1: cmd=spawn_result rc=-1 msg="), "{outcome}");
    outcome.check(!refused[0].split("msg=").nth(1).unwrap().contains(' '), "the message should have no blanks");
    assert_eq!(lines_with(&outcome, "k=v").len(), 3, "{outcome}");
}

#[test]
fn a_spawn_with_one_missing_program_leaves_no_process() {
    let block = |n: u32, program: &str| {
        format!("mcmd=spawn\nnprocs=3\nexecname={program}\ntotspawns=2\nspawnssofar={n}\narg1=1000\nargcnt=1\nendcmd")
    };
    let spawn = format!("{}\n{}", block(1, "sleep"), block(2, "/no/such/program"));
    let steps = ["init", "@0", &spawn, "@*", "fence", "finalize"];
    let outcome = scela().np(2).agents(3).fanout(2).program(script(steps)).run();
    outcome.is_quiet_success().wrote_among_others("0: cmd=spawn_result rc=-1 msg=");
}

#[test]
fn a_child_that_fails_ends_the_session() {
    let spawn = step(&spawn_block(2, "sh", &["-c", "exit $((PMI_RANK * 9))"], &[]));
    let outcome = scela().np(2).agents(2).program(script(["init", "@0", &spawn, "@*", "pause"])).run();
    outcome.has_code(9).says("rank 1 of namespace 1 on ").says("exited with code 9");
}

#[test]
fn children_may_outlive_their_parents() {
    let child = ["script", "init", "fence", "say late", "finalize"];
    let spawn = step(&spawn_block(3, env!("CARGO_BIN_EXE_rank"), &child, &[]));
    let outcome = scela().np(1).agents(2).program(script(["init", &spawn, "finalize", "exit 0"])).run();
    outcome.is_quiet_success();
    assert_eq!(lines_with(&outcome, ": late").len(), 3, "{outcome}");
}

#[test]
fn children_can_spawn_further_children() {
    let inner =
        "mcmd=spawn\\nnprocs=2\\nexecname=echo\\ntotspawns=1\\nspawnssofar=1\\narg1=grandchild\\nargcnt=1\\nendcmd";
    let child = ["-c", r#"exec "$1" script init "$(printf "$2")" finalize"#, "sh", env!("CARGO_BIN_EXE_rank"), inner];
    let spawn = step(&spawn_block(2, "sh", &child, &[]));
    let outcome = scela().np(1).agents(2).program(script(["init", &spawn, "finalize"])).run();
    outcome.is_quiet_success();
    assert_eq!(lines_with(&outcome, "grandchild").len(), 4, "{outcome}");
}

/// Returns the anonymous memory and the number of descriptors of each process.
fn resources(processes: &[Process]) -> Vec<(u64, usize)> {
    processes.iter().map(|process| (process.anonymous_bytes(), process.open_files().len())).collect()
}

/// How much the memory of a process may grow by 200 spawns. Agents that stored all namespaces grew by twice as much.
const MEMORY_MARGIN: u64 = 256 << 10;

/// The memory that a process keeps after a burst may exceed the margin once, a leak does each time.
const ROUNDS: u32 = 3;

/// How long a process may take to free what the last jobs of a round have used. The spawning rank waits for the next
/// round meanwhile, for at most [`event_timeout`].
const FREEING_TIME: Duration = Duration::from_secs(10);

/// 300 jobs of PMI clients, or 100 and as many as `SCELA_SPAWNS` says. After the first 100, neither launcher nor agents
/// nor guardians grow. If one does, as many jobs again decide.
#[test]
fn jobs_spawned_in_a_row_grow_neither_memory_nor_descriptors() {
    let more: u32 = std::env::var("SCELA_SPAWNS").map_or(200, |count| count.parse().unwrap());
    let time = event_timeout() + Duration::from_secs(u64::from(more) / 3);
    let child = ["script", "init", "cmd=scela_segment", "put {rank} v", "fence", "get 0", "finalize"];
    let repeat = |count: u32| {
        format!("repeat {count} {}", step(&spawn_block(3, env!("CARGO_BIN_EXE_rank"), &child, &["info_num=0"])))
    };
    let run = scela().np(1).agents(3).fanout(2).deadline((1 + ROUNDS) * time);
    let go = |round: u32| run.world().file(&format!("go-{round}"));
    let mut steps = vec!["init".to_owned(), repeat(100), "say a hundred".into()];
    for round in 0..ROUNDS {
        steps.extend([format!("await {}", go(round).display()), repeat(more), format!("say round {round}")]);
    }
    steps.push("await /proc/self/none".into());
    let gos: Vec<_> = (0..ROUNDS).map(go).collect();
    let run = run.program(script(steps.iter().map(String::as_str))).spawn();
    run.wait_for("0: a hundred\n");
    let one_rank = || (run.world().ranks().len() == 1).then_some(());
    run.wait_until("the spawned ranks end", one_rank);
    let mut processes = run.world().agents();
    processes.extend(run.world().guardians());
    processes.push(run.launcher());
    let mut has_grown = true;
    for (round, go) in gos.iter().enumerate() {
        let before_round = resources(&processes);
        std::fs::write(go, "").unwrap();
        let began = Instant::now();
        assert!(run.stdout().wait(time, |said| said.contains(&format!("0: round {round}\n"))), "all jobs are spawned");
        run.wait_until("the spawned ranks end", one_rank);
        println!("{more} spawns in {:?}", began.elapsed());
        // The exits of the last jobs are reported together, after a moment.
        let mut after = Vec::new();
        let is_bounded = before(Instant::now() + FREEING_TIME, || {
            after = resources(&processes);
            let mut pairs = before_round.iter().zip(&after);
            let bounded = pairs.all(|(before, after)| after.0 <= before.0 + MEMORY_MARGIN && after.1 <= before.1 + 4);
            bounded.then_some(())
        });
        for (process, (before, after)) in processes.iter().zip(before_round.into_iter().zip(after)) {
            println!("{}, bytes and descriptors: {before:?}, then {after:?}", process.name);
        }
        has_grown = is_bounded.is_none();
        if !has_grown {
            break;
        }
    }
    run.signal(Signal::SIGTERM);
    run.finish().has_code(143);
    assert!(!has_grown, "a process has grown in each round");
}
