//! The environment in which a rank starts: that of the user's shell, with nothing added by the agent.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;
use tests::{Outcome, Process, Run, scela, sh};

use crate::script;

/// Runs `env` and returns the variables that the ranks print.
fn variables(run: Run) -> (Outcome, BTreeMap<String, String>) {
    let outcome = run.program(vec!["/usr/bin/env".into()]).run();
    outcome.has_code(0);
    let pairs = outcome
        .out()
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .collect();
    (outcome, pairs)
}

#[test]
fn a_rank_has_five_descriptors() {
    // The script avoids a pipe, because the shell would hold one end of it for a moment. `ls` is not the last
    // command, because the shell would then exec it, and `ls` opens the directory.
    let script = "echo fd=$PMI_FD; ls -l /proc/$$/fd; :";
    let outcome = scela().np(1).shell("exec 7</dev/null 8</dev/null 9</dev/null").program(sh(script)).run();
    let out = outcome.is_quiet_success().out();
    let fd = out.lines().find_map(|line| line.strip_prefix("fd=")).unwrap().to_owned();
    let number = |line: &'_ str| line.split_once(" -> ")?.0.split(' ').next_back().map(str::to_owned);
    let mut numbers: Vec<String> = out.lines().filter_map(number).collect();
    numbers.sort();
    let mut expected = ["0", "1", "2", &fd, "11"];
    expected.sort_unstable();
    assert_eq!(numbers, expected, "{outcome}");
    assert!(fd.parse::<u32>().unwrap() >= 10, "PMI_FD should be at least 10, as scripts use 3 to 9\n{outcome}");
    outcome.check(out.contains(&format!("{fd} -> socket:[")), "PMI_FD should be a socket");
    outcome.check(out.contains("11 -> /memfd:scela-topology"), "the file with the topology should be open");
}

#[test]
fn each_rank_has_a_session_and_a_process_group_of_its_own() {
    check_groups(scela(), true);
}

#[test]
fn ranks_without_sessions_have_process_groups() {
    check_groups(scela().arg("--no-rank-sessions"), false);
}

#[track_caller]
fn check_groups(run: Run, leads_session: bool) {
    let running = run.np(3).agents(2).program(sh("sleep 1000 & echo here; wait")).spawn();
    running.wait_for_times("here", 3);
    for rank in running.ranks(3) {
        assert_eq!((rank.group, rank.session == rank.pid), (rank.pid, leads_session));
        let children: Vec<_> = Process::all().into_iter().filter(|process| process.parent == rank.pid).collect();
        assert!(children.iter().all(|child| child.group == rank.pid), "{children:?}");
    }
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn ranks_have_the_limits_of_the_shell() {
    let script = "ulimit -n; ulimit -Hn; ulimit -c; ulimit -s; ulimit -f";
    let prelude = "ulimit -Sn 300; ulimit -Hn 700; ulimit -c 0; ulimit -s 4096; ulimit -f 12345";
    let outcome = scela().np(1).shell(prelude).program(sh(script)).run();
    outcome.is_quiet_success().wrote("300\n700\n0\n4096\n12345\n");
}

#[test]
fn many_ranks_start_under_a_low_descriptor_limit() {
    let run = scela().np(150).shell("ulimit -Sn 64; ulimit -Hn 256");
    run.program(sh("ulimit -n")).run().is_quiet_success().wrote(&"64\n".repeat(150));
}

#[test]
fn ranks_have_the_umask_and_directory_of_the_shell() {
    let run = scela().np(1).shell("umask 027");
    let directory = fs::canonicalize(run.world().file("")).unwrap();
    let outcome = run.directory(&directory).program(sh("umask; pwd -P")).run();
    outcome.is_quiet_success().wrote(&format!("0027\n{}\n", directory.display()));
}

#[test]
fn signal_dispositions_are_those_of_the_shell() {
    let script = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let here = std::process::Command::new("sh").arg("-c").arg(script).output().unwrap();
    let expected: Vec<_> = String::from_utf8(here.stdout).unwrap().lines().map(str::to_owned).collect();
    // Rust's runtime makes this test ignore SIGPIPE. std resets that when it starts a program.
    let outcome = scela().np(1).program(vec!["sh".into(), "-c".into(), script.into()]).run();
    outcome.is_quiet_success();
    assert_eq!(outcome.out().lines().collect::<Vec<_>>(), expected, "{outcome}");
    let ignored = |run: Run| run.program(vec!["grep".into(), "SigIgn".into(), "/proc/self/status".into()]).run();
    let before = u64::from_str_radix(expected[1].split_ascii_whitespace().nth(1).unwrap(), 16).unwrap();
    ignored(scela().np(1)).is_quiet_success().wrote(&format!("SigIgn:\t{before:016x}\n"));
    let with_hup = before | 1;
    ignored(scela().np(1).shell("trap '' HUP")).is_quiet_success().wrote(&format!("SigIgn:\t{with_hup:016x}\n"));
}

/// Intel MPI and Open MPI 4 spin while they wait unless they know that ranks share cores.
#[test]
fn ranks_that_share_cores_are_told_so() {
    let cores = nla::sys::cores();
    for (name, value) in [("I_MPI_THREAD_YIELD", "2"), ("OMPI_MCA_mpi_oversubscribe", "1")] {
        let told = |run: Run| variables(run).1.get(name).cloned();
        let many = || scela().np(cores as u32 + 1);
        assert_eq!(told(many()).as_deref(), Some(value));
        assert_eq!(told(many().env(name, "0")).as_deref(), Some("0"), "the user has decided");
        assert_eq!(told(scela().np(cores as u32)), None);
    }
}

#[test]
fn the_environment_is_passed_and_changed() {
    let run = scela().np(1).env("INHERITED", "yes, with blanks").env("CHANGED", "before").env("PASSED", "on").args([
        "-genv", "GLOBAL", "1", "-x", "SHORT=2", "-x", "PASSED", "-env", "LOCAL", "3=3", "-genv", "CHANGED", "after",
    ]);
    let (outcome, variables) = variables(run);
    outcome.is_quiet_success();
    let expected = [
        ("INHERITED", "yes, with blanks"),
        ("CHANGED", "after"),
        ("PASSED", "on"),
        ("GLOBAL", "1"),
        ("SHORT", "2"),
        ("LOCAL", "3=3"),
        ("PMI_RANK", "0"),
        ("PMI_SIZE", "1"),
        ("MPI_LOCALRANKID", "0"),
        ("MPI_LOCALNRANKS", "1"),
        ("GFORTRAN_UNBUFFERED_PRECONNECTED", "y"),
    ];
    for (name, value) in expected {
        assert_eq!(variables.get(name).map(String::as_str), Some(value), "{name}\n{outcome}");
    }
}

#[test]
fn an_env_option_applies_to_one_program_only() {
    let show = || sh("echo $PMI_RANK ${A-unset} ${B-unset}");
    let run = scela().np(1).args(["-env", "A", "1"]).program(show());
    let run = run.program([":", "-np", "1", "-env", "B", "2"].map(Into::into).into()).program(show());
    run.run().is_quiet_success().wrote_lines(["0 1 unset", "1 unset 2"]);
}

#[test]
fn options_reduce_the_inherited_environment() {
    let run = || scela().np(1).env("WANTED", "1").env("ELSE", "2");
    let (_, nothing) = variables(run().args(["-envnone", "-env", "SET", "3"]));
    assert!(!nothing.contains_key("WANTED") && !nothing.contains_key("ELSE") && nothing["SET"] == "3", "{nothing:?}");
    assert!(nothing.contains_key("PMI_RANK"), "{nothing:?}");
    let (_, list) = variables(run().args(["-genvlist", "WANTED"]));
    assert!(list["WANTED"] == "1" && !list.contains_key("ELSE") && list.contains_key("PMI_FD"), "{list:?}");
}

#[test]
fn variables_of_an_outer_launcher_are_removed() {
    let foreign = [
        "PMI_PORT",
        "PMI_ID",
        "SCELA_INCARNATION",
        "PMI_SPAWNED",
        "PMI_VERSION",
        "PMI_DEBUG",
        "PMIX_RANK",
        "PMIX_NAMESPACE",
        "HYDI_CONTROL_FD",
        "HYDRA_LAUNCH_TYPE",
        "I_MPI_PMI_LIBRARY",
        "SLURM_PROCID",
        "OMPI_COMM_WORLD_RANK",
        "MPIRUN_RSH_LAUNCH",
        "MPIRUN_RANK",
        "MPIRUN_NPROCS",
    ];
    let names_own_socket = |value: &str| value.starts_with("2:");
    let outer = [("PMI_RANK", "77"), ("PMI_SIZE", "99"), ("SCELA_SEGMENT", "5"), ("SCELA_AGENT", "5")];
    let run = outer.iter().fold(scela().np(1), |run, (name, value)| run.env(name, value));
    let run = foreign.iter().fold(run, |run, name| run.env(name, "5"));
    let (outcome, variables) = variables(run);
    for name in foreign {
        assert!(!variables.contains_key(name), "{name} was not removed\n{outcome}");
    }
    assert_eq!((variables["PMI_RANK"].as_str(), variables["PMI_SIZE"].as_str()), ("0", "1"));
    assert!(names_own_socket(&variables["SCELA_SEGMENT"]), "SCELA_SEGMENT should not be the inherited one\n{outcome}");
    assert!(variables["SCELA_AGENT"].ends_with("-1"), "it names the session and the agent\n{outcome}");
    let own: Vec<_> = variables
        .keys()
        .filter(|name| name.contains("SCELA_") && *name != "SCELA_TEST_WORLD" && *name != "SCELA_RUN")
        // libpmi reads this variable to learn that it may ask for the segment.
        .filter(|name| *name != "SCELA_SEGMENT")
        // By this one, the processes of a lost agent are found.
        .filter(|name| *name != "SCELA_AGENT")
        // All tests inherit the variables that configure the soak.
        .filter(|name| !name.starts_with("SCELA_SOAK_"))
        .collect();
    assert!(own.is_empty(), "ranks should get no variables of ScELA: {own:?}");
}

#[test]
fn local_ranks_are_counted_by_node_not_by_agent() {
    let show = || sh("echo $PMI_RANK: $MPI_LOCALRANKID of $MPI_LOCALNRANKS");
    let outcome = scela().np(4).agents(2).program(show()).run();
    outcome.is_quiet_success().wrote_lines(["0: 0 of 4", "1: 1 of 4", "2: 2 of 4", "3: 3 of 4"]);
    let outcome = scela().np(4).agents(2).arg("--agents-as-nodes").program(show()).run();
    outcome.is_quiet_success().wrote_lines(["0: 0 of 2", "1: 1 of 2", "2: 0 of 2", "3: 1 of 2"]);
}

#[test]
fn agents_and_guardians_are_recognisable_in_ps() {
    let running = scela().np(2).agents(2).program(script(["init", "say here", "pause"])).spawn();
    running.wait_for_times("here", 2);
    let world = running.world();
    let shown = format!("scela-guard {}", world.label());
    for process in world.agents().iter().chain(&world.guardians()) {
        assert_eq!(process.argv[0], shown, "{process:?}");
    }
    assert_eq!((world.agents().len(), world.guardians().len()), (2, 2));
    running.signal(nix::sys::signal::Signal::SIGTERM);
    running.finish().has_code(143);
}

#[test]
fn files_in_a_shared_memory_of_its_own_are_removed_with_the_run() {
    let run = scela().np(2).own_shared_memory();
    let name = format!("left-by-{}", run.world().label());
    let file = Path::new("/dev/shm").join(&name);
    let program = sh(&format!("[ $PMI_RANK = 0 ] || exit 0; echo text >{0}; cat {0}", file.display()));
    let is_isolated = run.world().has_own_shared_memory();
    run.program(program).run().is_quiet_success().wrote("text\n");
    // Without the right to mount, the file is in the /dev/shm of this machine.
    let is_left = fs::remove_file(&file).is_ok();
    assert_eq!(is_left, !is_isolated, "{} is left", file.display());
}

/// Whoever waits for children must get the signal, or waits for them until something else wakes it.
#[test]
fn a_sigchld_that_is_blocked_at_the_start_is_blocked_in_ranks_only() {
    let run = scela().np(2).agents(2).shell("set -- env --block-signal=CHLD \"$@\"");
    let running = run.program(vec!["/bin/sleep".into(), "1000".into()]).spawn();
    let blocks = |process: &Process| {
        let status = fs::read_to_string(process.file("status")).unwrap();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:\t")).unwrap();
        u64::from_str_radix(mask, 16).unwrap() & 1 << (Signal::SIGCHLD as u32 - 1) != 0
    };
    let ranks = running.ranks(2);
    assert_eq!(ranks.iter().map(blocks).collect::<Vec<_>>(), [true, true]);
    let agents = running.world().agents();
    let waiting = agents.iter().chain([&running.launcher()]).map(blocks).collect::<Vec<_>>();
    assert_eq!(waiting, [false; 3]);
    running.signal(Signal::SIGTERM);
    running.finish().has_code(143);
}
