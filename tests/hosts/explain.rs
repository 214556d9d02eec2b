//! The reports before a launch (`--explain`) and after it (`--timing`), and the measurement of the
//! model's constants (`--calibrate`).

use std::fs;

use tests::{Cluster, Outcome, Run, scela, sh};

use crate::rank;

/// Begins a run on the hosts of `cluster`, started from its front end. The user has no calibration yet.
fn on(cluster: &Cluster) -> Run {
    scela().on(cluster).env("XDG_CACHE_HOME", cluster.shared()).args(["-hosts", &cluster.names()])
}

#[test]
fn explain_prints_the_plan_and_starts_nothing() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let program = cluster.shared().join("touched");
    let outcome = on(&cluster)
        .args(["-np", "5", "-ppn", "2", "-genv", "MSG", "a b", "-genvnone", "--batch", "2", "--explain"])
        .program(sh(&format!("touch {}", program.display())))
        .run();
    let expected = "\
job: 5 ranks on 3 hosts, 3 agents
  node[001-002]: 2 ranks on each
  node003: 1 rank

launch: flat, fan-out 32, 1 level, 2 remote shells at a time
  level 1: scela-run starts node[001-003] (3 remote shells)
  links between agents, fan-out 32 by the model (a fence with 840 B of entries: 168 us), long boards packed (a byte saves 4.8 ns and costs 1.5 ns):
    scela-run ─── node[001-003]

bootstrap: ssh, as there is no allocation
  for node001: ssh -T -x -a -o BatchMode=yes -o ControlMaster=no -o ControlPath=none node001 /bin/sh -s
  for other hosts: the same with their names

environment of ranks: nothing of yours
  MSG='a b'

predicted time to start: with typical constants; 'scela-run --calibrate LIST' measures those of your hosts
                          published    scela-run
  linear                    0.302 s      0.601 s
  flat (SMP-aware)          0.242 s      0.402 s  (this plan)
  tree (multi-level)        0.244 s      0.202 s
  tree, batched             0.332 s      0.402 s
  published: by the equations of Charm++'s start-up (Gupta, Zheng, Kalé 2011)
  scela-run: by a model of this program; docs/clusters.md describes both

nothing was started; whether the hosts answer, and have the programs, was not checked
";
    outcome.is_quiet_success().wrote(expected);
    assert!(!program.exists(), "a rank was started");
    let tree = on(&cluster).args(["-np", "3", "--launch", "tree", "--fanout", "2", "--explain"]).program(sh("")).run();
    tree.is_quiet_success()
        .wrote_among_others("launch: tree, fan-out 2, 2 levels, number of remote shells at a time: adaptive\n")
        .wrote_among_others("  level 1: scela-run starts node[001-002] (2 remote shells)\n")
        .wrote_among_others("  level 2: node002 starts node003 (1 remote shell)\n")
        .wrote_among_others("    scela-run ─┬─ node002 ─── node003\n               └─ node001\n");
}

/// A line of the table of phases. Times are in milliseconds.
#[derive(Debug)]
struct Phase {
    name: String,
    done: f64,
    took: Vec<f64>,
    last: Vec<String>,
}

/// Parses the table of phases that a run wrote to standard error.
fn phases(outcome: &Outcome) -> Vec<Phase> {
    let said = outcome.err();
    let table = said.split("phases:\n").nth(1).expect("a table of phases");
    let milliseconds = |text: &str| {
        let (number, unit) = text.trim().rsplit_once(' ').expect("a number and a unit");
        let factor = [("us", 1e-3), ("ms", 1.0), ("s", 1e3)].into_iter().find(|(known, _)| *known == unit);
        number.parse::<f64>().expect("a number") * factor.expect("a unit of time").1
    };
    let of = |line: &str| {
        let line = line.replace(" us", "~us").replace(" ms", "~ms").replace(" s ", "~s ").replace('━', "");
        let at = line.find("  ").expect("a name and times");
        let words: Vec<String> = line[at..].split_whitespace().map(|word| word.replace('~', " ")).collect();
        let (times, last): (Vec<_>, Vec<_>) = words.into_iter().partition(|word| word.contains(' '));
        let mut times = times.iter().map(|time| milliseconds(time));
        let done = times.next().expect("when it was done");
        let last = last.iter().map(|name| name.trim_end_matches(',').to_owned()).collect();
        Phase { name: line[..at].to_owned(), done, took: times.collect(), last }
    };
    table.lines().skip(1).take_while(|line| line.contains('━')).map(of).collect()
}

#[test]
fn phases_follow_each_other_and_name_the_last_hosts() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    for shape in ["flat", "tree"] {
        let run = on(&cluster).np(6).args(["--timing", "--launch", shape, "--fanout", "2"]);
        let outcome = run.program(rank(["neighbours", "2"])).run();
        outcome.has_code(0);
        let phases = phases(&outcome);
        let (middle, ends) = (&phases[1..phases.len() - 1], [&phases[0], &phases[phases.len() - 1]]);
        assert_eq!(ends.map(|phase| phase.name.as_str()), ["plan", "end"], "{outcome}");
        assert!(middle.iter().map(|phase| phase.done).is_sorted(), "{outcome}");
        // Clocks differ by the latency of a link, so phases that end soon after each other may change their places.
        let mut names: Vec<_> = phases.iter().map(|phase| phase.name.as_str()).collect();
        names.sort_unstable();
        let order = ["plan", "bootstrap", "join", "job description", "spawn", "first contact", "last contact"];
        let order = [&order[..], &["fence 0", "fence 1", "fence 2", "fence 3", "run", "teardown", "end"]].concat();
        let mut expected = order.clone();
        expected.sort_unstable();
        assert_eq!(names, expected, "{outcome}");
        for phase in &phases {
            let Phase { name, took, last, .. } = phase;
            if ["plan", "end"].contains(&name.as_str()) {
                assert!(took.is_empty() && last.is_empty(), "{phase:?}");
                continue;
            }
            assert!(took.len() == 3 && took.is_sorted(), "{phase:?}");
            assert!(took[2] <= phase.done, "{phase:?}");
            let mut hosts = last.clone();
            hosts.sort();
            assert_eq!(hosts, ["node001", "node002", "node003"], "{phase:?}");
        }
        // First contacts happen while ranks are being started, so they are not compared.
        let order = order.iter().filter(|name| !["spawn", "first contact"].contains(name));
        let order: Vec<_> = order.flat_map(|name| phases.iter().find(|phase| phase.name == *name)).collect();
        for pair in order.windows(2) {
            // The clocks of hosts agree to within the latency of a link, which here connects two busy processes.
            assert!(pair[0].done <= pair[1].done + 2000.0, "{pair:?}\n{outcome}");
        }
    }
}

#[test]
fn a_trace_has_the_agents_of_all_hosts_on_one_clock() {
    let Some(cluster) = Cluster::new_or_skip(3) else { return };
    let file = cluster.shared().join("trace.json");
    let run = on(&cluster).np(6).arg("--trace").arg(&file).args(["--launch", "tree", "--fanout", "2"]);
    run.program(rank(["neighbours", "2"])).run().is_quiet_success();
    let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let names = events.iter().filter(|event| event["name"] == "process_name");
    let names: Vec<_> = names.map(|event| event["args"]["name"].as_str().unwrap()).collect();
    let expected = ["node001, ranks 0-1", "node002, ranks 2-3", "node003, ranks 4-5"];
    assert!(expected.iter().zip(&names[1..]).all(|(host, name)| name.ends_with(host)), "{names:?}");
    let end = |agent: u64, name: &str| {
        let of_it = |event: &&serde_json::Value| event["pid"] == agent && event["name"] == name;
        let event = events.iter().find(of_it).unwrap_or_else(|| panic!("agent {agent} has no {name}"));
        event["ts"].as_f64().unwrap() + event["dur"].as_f64().unwrap()
    };
    for agent in 1..=3 {
        let times =
            ["bootstrap", "join", "job description", "spawn", "fence 0", "run", "sweep"].map(|name| end(agent, name));
        // Clocks differ by the latency of a link, in microseconds here, and the launcher noted the first two.
        assert!(times.windows(2).all(|two| two[0] <= two[1] + 2000.0), "agent {agent}: {times:?}");
    }
}

#[test]
fn a_failed_launch_has_a_table_of_phases_only_on_request() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(tests::Broken::Refused);
    let run = || on(&cluster).np(2);
    let outcome = run().arg("--timing").program(sh("")).run();
    outcome.has_code(251).says("phases of the launch:\n").says("\nplan ").says("\nbootstrap ").never_says("spawn");
    run().program(sh("")).run().has_code(251).never_says("phases");
    run().args(["-q", "--timing"]).program(sh("")).run().has_code(251).never_says("phases");
}

#[test]
fn the_next_plan_uses_the_measured_constants() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let list = cluster.names();
    let run = || scela().on(&cluster).env("XDG_CACHE_HOME", cluster.shared());
    let outcome = run().args(["--calibrate", &list]).run();
    let file = cluster.shared().join("scela/model.json");
    outcome
        .is_quiet_success()
        .wrote_among_others("measured on node[001-004]:\n")
        .wrote_among_others("4 remote shells at once")
        .wrote_among_others("cores that all hosts share")
        .wrote_among_others(&format!("written to '{}'\n", file.display()));
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("\"tc_ns\"") && !text.contains("\"shared_cores\": null"), "{text}");
    let explain = || run().args(["-hosts", &list, "-np", "4", "--explain"]).program(sh("")).run();
    explain().is_quiet_success().wrote_among_others("with constants that --calibrate measured\n");
    fs::write(&file, "{}").unwrap();
    explain().has_code(0).wrote_among_others("with typical constants").says("are not used: ");
}

#[test]
fn hosts_that_fail_are_not_measured() {
    let Some(cluster) = Cluster::new_or_skip(2) else { return };
    cluster.host(1).break_as(tests::Broken::NameUnknown);
    let run =
        |list: &str| scela().on(&cluster).env("XDG_CACHE_HOME", cluster.shared()).args(["--calibrate", list]).run();
    run(&cluster.names())
        .has_code(251)
        .says("node002: Name or service not known")
        .says("nothing was measured")
        .wrote("");
    run("localhost").has_code(2).says("--calibrate measures remote shells to other hosts");
    assert!(!cluster.shared().join("scela").exists(), "a failed calibration leaves no directory");
}
