//! The simulation counts the same messages as a real run, because the same code sends them.

use serde_json::Value;
use sim::{Level, Pattern, Spec, Traffic};
use tests::{CACHES, scela};

use crate::rank;

/// Returns the messages and bytes that the agents of one level sent in the board lane, up and down.
fn measured(statistics: &Value, level: usize) -> [(u64, u64); 2] {
    let of = |direction: &str| {
        let traffic = &statistics["levels"][level][direction]["board"];
        let number = |what: &str| traffic[what].as_u64().unwrap_or_else(|| panic!("{what} of {statistics}"));
        (number("messages"), number("bytes"))
    };
    [of("up"), of("down")]
}

fn simulated(traffic: impl Fn(&Level) -> Traffic, levels: &[Level], number: Option<usize>) -> (u64, u64) {
    let traffic = number.and_then(|number| levels.get(number)).map(traffic).unwrap_or_default();
    (traffic.messages, traffic.encoded)
}

/// No agent evicts an entry under these policies here. Counts that depend on the order in which ranks ask would
/// differ from run to run.
#[test]
fn messages_and_bytes_of_64_agents_are_those_of_the_simulation() {
    for policy in &CACHES[..4] {
        for (word, pattern) in [("1:2", Pattern::Neighbours), ("1:p", Pattern::All)] {
            let run = scela().np(512).agents(64).arg("--agents-as-nodes").fanout(4).cache(policy);
            let place = tempfile::tempdir().expect("a temporary directory");
            let file = place.path().join("stats.json");
            let outcome = run.arg(format!("--stats={}", file.display())).program(rank(["cards", word])).run();
            outcome.is_quiet_success();
            let text = std::fs::read_to_string(&file).expect("statistics were written");
            let statistics: Value = serde_json::from_str(&text).expect("JSON");

            let cache = policy[0].parse().expect("a policy");
            let spec = Spec { nodes: 64, ppn: 8, fanout: 4, cache, pattern, ..Spec::default() };
            let levels = sim::run(&spec).expect("it can be simulated").levels;
            for level in 0..=levels.len() {
                let up = simulated(|level| level.up_board, &levels, level.checked_sub(1));
                let down = simulated(|level| level.down_board, &levels, Some(level));
                assert_eq!(
                    measured(&statistics, level),
                    [up, down],
                    "level {level}, {word} under {policy:?}\n{outcome}"
                );
            }
        }
    }
}
