//! Measured start times beside the model's predictions. The test starts few hosts once and only checks that both
//! figures exist. `SCELA_STARTUP=1 cargo test --release -p tests --test hosts startup -- --nocapture` measures the
//! whole table of docs/results/startup.md, which takes minutes.

use std::io::{Write as _, stderr};
use std::time::Duration;

use tests::{Cluster, Run, scela};

/// Ranks on each host.
const PPN: u32 = 4;

fn on(cluster: &Cluster) -> Run {
    scela().on(cluster).env("XDG_CACHE_HOME", cluster.shared()).deadline(Duration::from_secs(300))
}

/// Returns the time, in seconds, that the model predicts for the plan of these options.
fn predicted(run: Run) -> f64 {
    let text = run.arg("--explain").program(vec!["true".into()]).run().out();
    let plan = text.lines().find(|line| line.ends_with("(this plan)")).expect("a plan");
    let times: Vec<f64> = plan.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    times[1]
}

/// Returns the time from the first remote shell to the start of the last rank, in seconds.
fn measured(run: Run) -> f64 {
    let outcome = run.arg("--timing").program(vec!["true".into()]).run();
    outcome.has_code(0);
    let said = outcome.err();
    let done = |name: &str| -> f64 {
        let line = said.lines().find(|line| line.starts_with(name)).expect("the phase");
        let mut words = line[name.len()..].split_whitespace();
        let time: f64 = words.next().and_then(|time| time.parse().ok()).expect("a time");
        if words.next() == Some("s") { time } else { time / 1e3 }
    };
    done("spawn ") - done("plan ")
}

#[test]
fn start_times_are_predicted_and_measured() {
    let is_whole = std::env::var_os("SCELA_STARTUP").is_some();
    // The table reports the median of this number of starts.
    let (sizes, times) = if is_whole { (vec![8, 16, 32], 3) } else { (vec![4], 1) };
    // A write error is ignored: the table is only for a reader of standard error.
    let say = |text: String| drop(writeln!(stderr(), "{text}"));
    let Some(largest) = Cluster::new_or_skip(sizes[sizes.len() - 1]) else { return };
    let calibrated = on(&largest).args(["--calibrate", &largest.names()]).run();
    calibrated.has_code(0);
    say(calibrated.out());
    say("| hosts | launch | predicted | measured | measured / predicted |\n|---|---|---|---|---|".into());
    for hosts in sizes {
        for launch in [&["flat"][..], &["tree", "--fanout", "2"], &["tree", "--fanout", "8"]] {
            let run = || {
                let list = format!("node[001-{hosts:03}]");
                let ranks = hosts as u32 * PPN;
                on(&largest).np(ranks).args(["-hosts", &list, "--launch"]).args(launch)
            };
            let predicted = predicted(run());
            let mut all: Vec<f64> = (0..times).map(|_| measured(run())).collect();
            all.sort_by(f64::total_cmp);
            let median = all[times / 2];
            assert!(predicted > 0.0 && median > 0.0);
            let launch = launch.join(" ").replace("--fanout", "fan-out");
            say(format!("| {hosts} | {launch} | {predicted:.2} s | {median:.2} s | {:.2} |", median / predicted));
        }
    }
}
