//! Boards that are long enough to travel in pieces.

use std::fs;

use serde_json::Value;
use tests::{Cluster, scela};

use crate::rank;

/// Each rank checks the entries of its neighbours, half of which are on other hosts for some.
#[test]
fn a_long_board_of_similar_entries_travels_packed_and_arrives_whole() {
    let Some(cluster) = Cluster::new_or_skip(4) else { return };
    let file = cluster.shared().join("stats.json");
    let options = ["-hosts", &cluster.names(), "-np", "640", "-ppn", "160", "--fanout", "2"];
    let run = scela().on(&cluster).args(options).arg(format!("--stats={}", file.display()));
    run.program(rank(["cards", "1:2"])).run().is_quiet_success();
    let statistics: Value = serde_json::from_str(&fs::read_to_string(&file).expect("statistics")).expect("JSON");
    // A board of 340 kB, sent to two children, in two pieces and a release; then the release of the second fence.
    let down = &statistics["levels"][0]["down"]["board"];
    let [messages, bytes] = ["messages", "bytes"].map(|what| down[what].as_u64().unwrap_or_default());
    assert_eq!(messages, 8, "{statistics}");
    assert!((1..340_000).contains(&bytes), "{statistics}");
}
